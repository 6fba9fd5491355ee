"""`Follower`: weights that are kept as the newest published version has them."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from contextlib import ExitStack
from typing import Any

from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.errors import IdentityError, MetadataError, ParameterError, StreamxfError, UnsupportedError, shorten
from streamxf.places import Location, open_storage
from streamxf.publishing.update import Flat, Update, changes, flat_of, tensor_of, zeros_for
from streamxf.publishing.version import HINT, Version, items_of, opened
from streamxf.reading import Access, KeysLike, TensorItem, TrustLike
from streamxf.wording import some

_TRIES = 5  # at versions that are removed or replaced while they are read
Place = tuple[tuple[Any, ...], ...]


class Follower:
    """Keeps tensors as the newest version of a run has them, whoever published it::

        follower = streamxf.Follower("s3://bucket/policy", into=dict(model.named_parameters()))
        if update := follower.prepare():  # downloads, and checks all of it, while serving goes on
            update.apply()  # at the pause

    It reads with read-only credentials, and puts nothing into the run's folder.

    Parameters
    ----------
    run : path, str or Storage
        The folder of a `Publisher`, or its URL.
    into : dict
        Tensors on the CPU, of torch or NumPy, by name, whose memory an update changes. Of a version, the tensors of
        these names are read, and each must be there. If the dict is empty, the first update puts all of them there.
    keys, trust, allow_unsigned
        As in `FileSystemReader`.
    run_id : str, optional
        The only run whose versions are acceptable; by default that of the first version that is prepared.
    allow_older : bool
        Whether to go back to a version that was published earlier than the one that is there.
    storage_options : mapping, optional
        fsspec's, for a URL.

    Attributes
    ----------
    held : Version or None
        What is there.

    Raises ParameterError, UnsupportedError if tensors are not such that they can be changed in place.
    """

    def __init__(
        self,
        run: Location,
        into: MutableMapping[str, Any],
        *,
        keys: KeysLike = None,
        trust: TrustLike = None,
        allow_unsigned: bool = False,
        run_id: str | None = None,
        allow_older: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._storage = open_storage(run, storage_options).past_caches()
        self._access = Access.of(keys, trust, allow_unsigned)
        self._into = into
        self._run_id, self._allow_older = run_id, allow_older
        self._flats = {name: _memory_of(name, tensor) for name, tensor in into.items()}
        self._places = dict[str, Place]()
        self.held: Version | None = None

    def prepare(self) -> Update | None:
        """Download the newest version, if it is newer than what is there, and check every tag, CRC and signature.
        Nothing changes before `Update.apply`. Returns None if there is nothing newer, which takes one small request.

        Raises
        ------
        IdentityError
            If the newest version is of another run, or older than the one that is there.
        MetadataError, UnsupportedError
            If the hint or the version is malformed, or lacks a tensor, or has it with another dtype or shape.
        StreamxfError, OSError
            As `Checkpoint`, if the version is damaged or was altered, or cannot be reached.
        """
        for left in reversed(range(_TRIES)):
            hint = Version.hinted(self._storage)
            if hint is None or (self.held is not None and hint.save_id == self.held.save_id):
                return None
            try:
                return self._prepared(hint)
            except (StreamxfError, OSError):
                if not left or Version.hinted(self._storage) == hint:
                    raise  # else it was removed or replaced meanwhile: the newest is another one
        raise AssertionError

    def _prepared(self, hint: Version) -> Update:
        with ExitStack() as stack:
            checkpoint = stack.enter_context(opened(self._storage, hint.folder, self._access))
            version = Version.of(checkpoint, hint.folder)
            self._check(version, hint)
            items = self._wanted(checkpoint)
            places = {name: _places_of(checkpoint, item) for name, item in items.items()}
            changed = [item for name, item in items.items() if self._places.get(name) != places[name]]
            flats = self._flats or {name: zeros_for(item) for name, item in items.items()}
            known = self._flats if self._flats else {}
            parts = changes(checkpoint, changed, known)

            def done(update: Update) -> None:
                if self.held != update.since:
                    raise ParameterError(f"another update was applied since: {self.held} is there")
                if not self._flats:
                    self._fill(items, flats)
                self._places, self.held, self._run_id = places, version, version.run

            return Update(version, self.held, items, flats, parts, done)

    def _check(self, version: Version, hint: Version) -> None:
        """Check what vouched metadata says against the hint, and against what is there."""
        label = self._storage.label(HINT)
        if version.number < hint.number or (version.number == hint.number and version != hint):
            raise IdentityError(
                f"the hint names {hint}, and its folder has {version}: one of them was altered", file=label
            )
        if self._run_id not in (None, version.run):
            raise IdentityError(f"the newest version is of the run {version.run}, not of {self._run_id}", file=label)
        if self.held is not None and version.number < self.held.number and not self._allow_older:
            raise IdentityError(
                f"the newest is {version}, which was published before what is there, {self.held}: somebody put it "
                "back. Pass allow_older=True to take it",
                file=label,
            )

    def _wanted(self, checkpoint: Checkpoint) -> dict[str, TensorItem]:
        items = items_of(checkpoint)
        if not self._into:
            return items
        if missing := [name for name in self._into if name not in items]:
            raise MetadataError(f"the version lacks {some(map(shorten, missing))}", file=checkpoint.storage.label())
        for name, tensor in self._into.items():
            have, item = (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)), items[name]
            if have != (item.dtype, item.shape):
                text = f"the version has {item.dtype} {list(item.shape)}, and there is {have[0]} {list(have[1])}"
                raise UnsupportedError(text, item=shorten(name))
        return {name: items[name] for name in self._into}

    def _fill(self, items: Mapping[str, TensorItem], flats: Mapping[str, Flat]) -> None:
        self._flats = dict(flats)
        self._into.update({name: tensor_of(item, flats[name]) for name, item in items.items()})


def _places_of(checkpoint: Checkpoint, item: TensorItem) -> Place:
    """Which containers have a tensor, by what no two containers share, wherever a file lies."""
    files = {name: file.writer for each in checkpoint.metadata for name, file in each.files.items()}
    found = ((chunk.offset, chunk.shape, chunk.place) for chunk in item.chunks)
    return tuple((files[place.file], place.file.rpartition("/")[2], place.at, *box) for *box, place in found)


def _memory_of(name: str, tensor: Any) -> Flat:
    """A tensor's elements in its own memory."""
    if hasattr(tensor, "untyped_storage"):
        if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            raise UnsupportedError("an update changes contiguous tensors on the CPU: give such a copy", item=name)
        import torch

        array = tensor.detach().reshape(-1).view(torch.uint8).numpy().view(f"u{min(tensor.itemsize, 8)}")
        return flat_of(array)
    if not getattr(tensor, "flags", None) or not (tensor.flags.c_contiguous and tensor.flags.writeable):
        raise ParameterError("into= has tensors of torch, or contiguous arrays that can be written to", item=name)
    return flat_of(tensor)
