"""`Follower`: weights that are kept as the newest published version has them."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.errors import (
    IdentityError,
    MetadataError,
    NoCheckpointError,
    ParameterError,
    StreamxfError,
    UnsupportedError,
    is_damage,
    shorten,
)
from streamxf.lazy import torch
from streamxf.places import GLOBAL, Location, open_storage
from streamxf.publishing.folder import HubFolder
from streamxf.publishing.update import Coming, Flat, Part, Update, WeightStore, changes, flat_of, tensor_of, zeros_for
from streamxf.publishing.version import HINT, Version, items_of
from streamxf.reading import Access, KeysLike, TensorItem, TrustLike
from streamxf.wording import some

_TRIES = 5  # at versions that are removed or replaced while they are read


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
    into : dict or path
        Tensors on the CPU, of torch or NumPy, by name, whose memory an update changes. Of a version, the tensors of
        these names are read, and each must be there. If the dict is empty, updates put all of a version there, and
        remove what the next one lacks.
        Or a folder, for one of Hugging Face's, as ``streamxf follow`` keeps it.
    in_place : bool
        Of a folder, whether its files are changed in place; else ``newest`` in it is a link to one of two.
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
    folder : Path or None
        The folder with the weights; None in memory.

    Raises ParameterError, UnsupportedError if tensors are not such that they can be changed in place.
    """

    def __init__(
        self,
        run: Location,
        into: MutableMapping[str, Any] | str | os.PathLike[str],
        *,
        in_place: bool = False,
        keys: KeysLike = None,
        trust: TrustLike = None,
        allow_unsigned: bool = False,
        run_id: str | None = None,
        allow_older: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._storage = open_storage(run, storage_options).past_caches()
        self._access = Access.of(keys, trust, allow_unsigned)
        self._run_id, self._allow_older = run_id, allow_older
        self._target = HubFolder(into, in_place) if isinstance(into, str | os.PathLike) else Tensors(into)

    @property
    def held(self) -> Version | None:
        return self._target.held

    @property
    def folder(self) -> Path | None:
        return self._target.folder

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
        known = self._target.digests
        for left in reversed(range(_TRIES)):
            hint = Version.hinted(self._storage)
            if hint is None or (self.held is not None and hint.save_id == self.held.save_id):
                return None
            try:
                with Checkpoint.at(self._storage.child(hint.folder), self._access) as checkpoint:
                    version = Version.of(checkpoint, hint.folder)
                    self._check(version, hint)
                    return self._target.update(checkpoint, self._coming(checkpoint, version))
            except (StreamxfError, OSError) as error:
                if not left or Version.hinted(self._storage) == hint:  # else it was removed or replaced meanwhile
                    if not left or not is_damage(error) or not self._target.digests:
                        self._target.digests = known
                        raise
                    self._target.digests = {}  # what is held may have been altered: nothing builds on it now
        raise MetadataError("other versions were published again and again while it read", file=self._storage.label())

    def why_none(self) -> str:
        """What to say while there is no version to `prepare`."""
        try:
            folders = self._storage.folders()
        except FileNotFoundError:
            return "there is no such folder yet"
        if not any(self._storage.child(name).exists(GLOBAL) for name in folders):
            return "no version was published yet"
        return f"there are checkpoints, and no hint ({HINT}): no Publisher saved them, or it was not copied with them"

    def verify(self) -> tuple[str, ...]:
        """Read all of the version that is there once more, and compare. Returns the tensors that are not as it has
        them. Raises NoCheckpointError if nothing is there, and as `prepare`, also if the version is gone.
        """
        if (held := self.held) is None:
            raise NoCheckpointError("no version was applied yet", file=self._storage.label())
        access = replace(self._access, expected_saves=frozenset([held.save_id]))
        with Checkpoint.at(self._storage.child(held.folder), access) as checkpoint:
            items = self._target.wanted(items_of(checkpoint))
            found = changes(checkpoint, items.values(), self._target.flats(items))
            return tuple(dict.fromkeys(part.name for part in found))

    def close(self) -> None:
        """Let another follower have the folder, as the end of a ``with`` block does."""
        self._target.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _coming(self, checkpoint: Checkpoint, version: Version) -> Coming:
        try:
            items = self._target.wanted(items_of(checkpoint))
        except (MetadataError, UnsupportedError) as error:
            text = f"{version} cannot be taken: {error.message}"
            raise type(error)(text, item=error.item, file=error.file or checkpoint.storage.label()) from None
        files = {name: file.writer for each in checkpoint.metadata for name, file in each.files.items()}
        return Coming(version, items, {name: _places_of(item, files) for name, item in items.items()}, {})

    def _check(self, version: Version, hint: Version) -> None:
        """Check what vouched metadata says against the hint, and against what is there."""
        label, held = self._storage.label(HINT), self.held
        if version.number < hint.number or (version.number == hint.number and version != hint):
            text = f"the hint names {hint}, and its folder has {version}: one of them was altered"
            raise IdentityError(text, file=label)
        run = self._run_id or (held and held.run)
        if run not in (None, version.run):
            text = (
                f"the newest version is of the run {version.run}, not of {run}. To take it, pass run_id='{version.run}'"
            )
            raise IdentityError(f"{text}, and allow_older=True if its number is lower", file=label)
        if held is not None and version.number < held.number and not self._allow_older:
            raise IdentityError(
                f"the newest is {version}, which was published before what is there, {held}: somebody put it "
                "back. Pass allow_older=True to take it",
                file=label,
            )
        same = held is not None and (version.run, version.number) == (held.run, held.number)
        if same and version != held and not self._allow_older:
            text = f"the newest is {version}, and not that {version} which is there: two publishers write to this run"
            raise IdentityError(f"{text}. Pass allow_older=True to take it", file=label)


class Tensors(WeightStore):
    """Tensors in memory, by name."""

    def __init__(self, into: Any) -> None:
        if not isinstance(into, MutableMapping):
            text = "into= is a folder, or a dict of tensors, such as dict(module.named_parameters())"
            raise ParameterError(f"{text}, not {type(into).__name__}")
        if not into:
            _ = torch.Tensor  # what is put there; without torch, this says so before anything is fetched
        self._into, self._tensors, self._takes_all = into, dict(into), not into
        self._flats = {name: _memory_of(name, tensor) for name, tensor in into.items()}

    def wanted(self, items: Mapping[str, TensorItem]) -> dict[str, TensorItem]:
        if (missing := [name for name in self._flats if name not in items]) and not self._takes_all:
            raise MetadataError(f"the version lacks {some(map(shorten, missing))}")
        for name in self._flats.keys() - missing:
            tensor = self._tensors[name]
            have, item = (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)), items[name]
            if have != (item.dtype, item.shape):
                text = f"the version has {item.dtype} {list(item.shape)}, and there is {have[0]} {list(have[1])}"
                raise UnsupportedError(text, item=shorten(name))
        return dict(items) if self._takes_all else {name: items[name] for name in self._flats}

    def flats(self, items: Mapping[str, TensorItem]) -> Mapping[str, Flat]:
        return self._flats

    def update(self, checkpoint: Checkpoint, coming: Coming) -> Update:
        changed = coming.opened(checkpoint, self, self._flats)
        parts = changes(checkpoint, changed, self._flats)
        new = {name: zeros_for(item) for name, item in coming.items.items() if name not in self._flats}
        flats = {name: new[name] if name in new else self._flats[name] for name in coming.items}
        kept = []
        for part in parts:
            if part.name in new:  # as it comes: there is nothing yet that could be left half changed
                part.put(new[part.name], part.values)
            else:
                kept.append(part)
        whole = (Part(name, 0, flat.size, None, flat) for name, flat in new.items())
        return Update(self, coming, flats, [*kept, *whole])

    def settle(self, coming: Coming | None, flats: Mapping[str, Flat]) -> None:
        if coming is not None:
            new = {name: tensor_of(coming.items[name], flats[name]) for name in flats if name not in self._tensors}
            gone = {name: tensor for name, tensor in self._tensors.items() if name not in flats}
            tensors = self._tensors | new
            try:
                self._into.update(new)
                for name in gone:
                    self._into.pop(name, None)
            except BaseException:
                for name in new:
                    self._into.pop(name, None)
                self._into.update(gone)
                raise
            self._flats, self._tensors = dict(flats), {name: tensors[name] for name in flats}
        super().settle(coming, flats)


def _places_of(item: TensorItem, files: Mapping[str, bytes]) -> str:
    """Which containers have a tensor, by what no two of them share, wherever their files lie; `files` have writers."""
    of_chunk = ((*each[:2], each.place) for each in item.chunks)
    found = [(*box, files[place.file], os.path.basename(place.file), place.at) for *box, place in of_chunk]
    return sha256(repr(found).encode()).hexdigest()


def _memory_of(name: str, tensor: Any) -> Flat:
    """A tensor's elements in its own memory."""
    if hasattr(tensor, "untyped_storage"):
        if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            raise UnsupportedError("an update changes contiguous tensors on the CPU: give such a copy", item=name)
        flat: Flat = tensor.detach().reshape(-1).view(torch.uint8).numpy()
        return flat.view(f"u{min(tensor.itemsize, 8)}")
    if not getattr(tensor, "flags", None) or not (tensor.flags.c_contiguous and tensor.flags.writeable):
        raise ParameterError("into= has tensors of torch, or contiguous arrays that can be written to", item=name)
    return flat_of(tensor)
