"""`Publisher`: weights as versions of a run, each a checkpoint in a folder of its own that builds on the one before."""

from __future__ import annotations

import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain as chained
from itertools import islice
from typing import Any

from streamxf import errors, torch_private
from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.checkpoint.memory import SaveMemory
from streamxf.checkpoint.writer import CheckpointWriter
from streamxf.errors import AbortedError, MetadataError, ParameterError, StreamxfError, escaped
from streamxf.lazy import torch
from streamxf.manager.forget import remove_checkpoints
from streamxf.manager.listing import Run
from streamxf.manager.pins import pin_base
from streamxf.manager.retention import duration
from streamxf.places import GLOBAL, Location, Storage, open_storage
from streamxf.publishing.version import HINT, Version
from streamxf.reading import Access, ChainsLike, KeysLike, SignerLike

_BLIND = (errors.KeyMissingError, errors.WrongKeyError)
_PAIRS = "names and tensors, such as model.named_parameters()"
_FAR = 2**52  # a greater number is none that was counted
_log = logging.getLogger(__name__)


class Publisher:
    """Publishes weights as versions of a run, for a `Follower` or ``streamxf follow``::

        publisher = streamxf.Publisher("s3://bucket/policy", chain="floatzip+checksum")
        publisher.publish(step, model.named_parameters())

    A version is a checkpoint in a folder of the run, ``step-100``, like those of a `CheckpointManager`. Of what has
    changed since the version before the differences are stored, for which a copy of what changes is held in memory. A
    small hint beside the folders names the newest; a publish that fails changes nothing that followers see.

    Parameters
    ----------
    run : path, str or Storage
        The folder for the versions, or its URL. It is made if there is none. Each run has one publisher at a time.
    chain, block_size
        As in `CheckpointWriter`.
    keys : Key, PublicKey, location or several, optional
        Who may read, as `recipients` of `CheckpointWriter`: the public keys of replicas, say.
    signer : SigningKey or location, optional
        Signs each version, so that followers `trust` no others.
    group : ProcessGroup, optional
        The processes that publish together, of which each gives what it holds, such as
        ``torch.distributed.group.WORLD``. Then `publish` is called by all of them.
    full_every : int
        Every how many versions all is stored, so that damage to one does not last.
    keep : int
        How many of the newest versions stay at least.
    grace : float or str
        For how long a version stays at least once there is a newer one, in seconds or as ``"30m"``, so that who reads
        it can do so to the end.
    storage_options : mapping, optional
        fsspec's, for a URL.

    Raises ParameterError if an argument is invalid; otherwise as `CheckpointWriter`.
    """

    def __init__(
        self,
        run: Location,
        *,
        chain: ChainsLike | None = None,
        keys: KeysLike = None,
        signer: SignerLike | None = None,
        group: Any = None,
        full_every: int = 16,
        keep: int = 2,
        grace: float | str = "1h",
        block_size: int = 2**20,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        for name, value in ("full_every", full_every), ("keep", keep):
            if type(value) is not int or value < 1:
                raise ParameterError(f"{name}={value!r:.40}: it is a whole number from 1")
        seconds = duration(grace) if isinstance(grace, str) else grace
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
            raise ParameterError(f"grace={grace!r:.40}: it is a time, in seconds or as '30m', '1h'")
        self._storage = open_storage(run, storage_options).past_caches()
        self._how: dict[str, Any] = {"chain": chain, "recipients": keys, "signer": signer, "block_size": block_size}
        CheckpointWriter(self._storage.child("step-0"), overwrite=True, **self._how)  # raises for what cannot be used
        self._access = Access.of(keys)
        self._full_every, self._keep, self._grace = full_every, keep, float(seconds)
        self._memory = SaveMemory(copies=None)
        self._versions: list[tuple[Version, float]] | None = None  # the newest last, each with when it was published
        self._group, self._rank = group, 0 if group is None else torch.distributed.get_rank(group)
        self._since_full = 0
        self._run, self._number = secrets.token_hex(16), 0
        self._base: Version | None = None
        self._hint: Version | None = None  # as it was before the last attempt to publish

    def publish(self, step: int, tensors: Iterable[tuple[Any, ...]] | Mapping[str, Any]) -> Version:
        """Publish weights, and remove versions that nothing needs any more. Returns what was published.

        Parameters
        ----------
        step : int
            Training's. It may be smaller than that of the version before, after training has gone back.
        tensors : iterable of str and tensor, or mapping
            Names and tensors, of torch or NumPy, which are stored one by one as they come. In a `group` a name comes
            from one process, or else of each process its shard: a DTensor, or the name, the tensor's shape, the shard's
            offset and the shard. Nobody gathers whole tensors.

        Raises AbortedError if another publisher has published to this run meanwhile, ParameterError if there are no
        tensors, or a checkpoint of this step that is no version, and as `CheckpointWriter`; in a group on all ranks.
        Then followers see what they saw before.
        """
        if type(step) is not int or step < 0:
            raise ParameterError(f"step={step!r:.40}: it is a whole number from 0")
        versions, coming = self._together(lambda: self._coming(step))
        pairs = self._together(lambda: _pairs(tensors), everywhere=True)
        first = self._together(lambda: [*islice(pairs, 1)], everywhere=True)
        if not any(self._gather(bool(first))):
            raise ParameterError(
                "no tensors were given, so nothing was published: is this an iterator that was used up?"
            )
        base = self._base if self._since_full + 1 < self._full_every else None
        where = None if base is None or base.folder == coming.folder else self._storage.child(base.folder)
        more: dict[str, Any] = {"extra": coming.member, "base": where, "memory": self._memory, **self._how}
        place = self._storage.child(coming.folder)
        writer = self._together(lambda: CheckpointWriter(place, overwrite=True, **more), everywhere=True)
        writer.pin, writer.rank, writer.gather = pin_base, self._rank, self._gather
        writer.check = partial(self._check_alone, place, None if self._rank else place.version(GLOBAL))
        try:
            with writer:
                for given in chained(first, pairs):
                    for name, tensor, how in _shards(given):
                        writer.add(name, tensor, **how)
        except OSError as error:
            if error.errno and not os.path.isabs(error.filename or ""):  # of a file in an open folder
                error.filename = place.label(error.filename or "")
            raise
        self.report = writer.report
        made: Version = replace(coming, save_id=str(writer.save_id))
        self._since_full = 0 if where is None else self._since_full + 1
        self._base, self._number = made, made.number
        self._together(lambda: self._announce(versions, made))
        return made

    def _together(self, make: Callable[[], Any], *, everywhere: bool = False) -> Any:
        """What rank 0 makes, or `everywhere` what this process does. If one of them fails, all do."""
        try:
            made = make() if everywhere or self._rank == 0 else None
        except BaseException as error:
            self._gather(f"{type(error).__name__}: {error}")
            raise
        found = self._gather(() if everywhere else (made,))
        for rank, text in enumerate(found):
            if isinstance(text, str):
                raise AbortedError(f"rank {rank} failed, so nothing was published: {text}")
        return made if everywhere else found[0][0]

    def _coming(self, step: int) -> tuple[list[tuple[Version, float]], Version]:
        hint, folder = self._hinted(), f"step-{step}"
        if self._versions is not None and hint not in (None, self._hint, *(each for each, _ in self._versions)):
            raise self._other(f"another publisher wrote {hint} to this run")
        versions, self._hint = self._known(hint), hint
        found = Run.at(self._storage, unverified=True).record(folder)
        if found is not None and found.version is None and not found.damaged and (found.complete or found.run):
            text = "a checkpoint is here that is no version of weights, and this one would take its place: publish to"
            raise ParameterError(f"{text} a folder of its own, or remove it", file=self._storage.label(folder))
        return versions, Version(self._run, self._number + 1, step, "", folder)

    def _hinted(self) -> Version | None:
        try:
            return Version.hinted(self._storage)
        except MetadataError:  # it is written anew
            return None

    def _other(self, what: str) -> AbortedError:
        text = f"{what}, and a run has one at a time: stop the other, and make a new Publisher to go on"
        return AbortedError(text, file=self._storage.label())

    def _check_alone(self, place: Storage | None = None, before: object = None) -> None:
        """Raise AbortedError if somebody has published since this publish began."""
        if self._hinted() != self._hint or (place is not None and place.version(GLOBAL) != before):
            raise self._other("another publisher published to this run at the same moment")

    def _gather(self, value: Any) -> list[Any]:
        """What all processes that publish have."""
        if self._group is None:
            return [value]
        found: list[Any] = [None] * torch.distributed.get_world_size(self._group)
        torch.distributed.all_gather_object(found, value, self._group)
        return found

    def _announce(self, versions: list[tuple[Version, float]], made: Version) -> None:
        self._versions = versions = [each for each in versions if each[0].folder != made.folder]
        versions.append((made, time.monotonic()))
        try:
            made.put_hint(self._storage, self._check_alone)
        except AbortedError:
            self._removed([made])
            raise
        old = [each for each, _ in versions[: -self._keep]]
        newer = [published for _, published in versions[1:]]
        now = time.monotonic()
        going = [each for each, over in zip(old, newer, strict=False) if now - over >= self._grace]
        gone = self._removed(going) if going else ()  # what cannot be removed is tried again after the next one
        self._versions = [each for each in versions if each[0] not in gone]

    def _known(self, hint: Version | None) -> list[tuple[Version, float]]:
        """The versions that are there. What an earlier process published is taken for published now."""
        if self._versions is None:
            found, failure = [], None
            with suppress(FileNotFoundError):
                for folder in filter(re.compile("step-[0-9]{1,15}").fullmatch, self._storage.folders()):
                    try:
                        found.append(_said(self._storage, folder, self._access))
                    except (errors.ForeignError, errors.KeyServiceError):
                        raise
                    except (StreamxfError, FileNotFoundError) as error:
                        text = f"{self._storage.label(folder)} is no version that counts, and stays: {error}"
                        _log.info("%s", escaped(text))
                        failure = error
            if failure is not None and not found and self._storage.exists(HINT):
                raise failure  # or followers would be given another run, and refuse it
            found.sort(key=lambda each: (each.number, each == hint))
            if found:
                self._run, self._number = found[-1].run, found[-1].number
                if hint is not None and hint.run == self._run and hint.number < _FAR:
                    self._number = max(self._number, hint.number)  # of what is damaged now, and was taken by followers
            now = time.monotonic()
            self._versions = [(each, now) for each in found if each.run == self._run]
        return self._versions

    def _removed(self, going: Sequence[Version]) -> list[Version]:
        """Remove these, and return those that are gone."""
        try:
            run, ids = Run.at(self._storage, unverified=True), {each.save_id for each in going}
            records = [record for each in going if (record := run.record(each.folder)) is not None]
            in_use, failed = remove_checkpoints(run, [each for each in records if each.save_id in ids])
        except (OSError, StreamxfError) as error:
            _log.warning("%s", escaped(f"old versions in {self._storage.label()} were not removed: {error}"))
            return []
        for name, why in failed.items():
            _log.warning("%s", escaped(f"{self._storage.label(name)} was not removed: {why}"))
        return [each for each in going if each.folder not in in_use and each.folder not in failed]


def _pairs(tensors: Any) -> Iterator[Any]:
    if not isinstance(tensors, Iterable):
        raise ParameterError(f"what is published are {_PAIRS}, not {type(tensors).__name__}")
    return iter(tensors.items() if isinstance(tensors, Mapping) else tensors)


def _shards(given: Any) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """What this process stores of a tensor, and where it is in that."""
    if not isinstance(given, tuple | list) or len(given) not in (2, 4):
        raise ParameterError(f"what is published are {_PAIRS}, not {type(given).__name__}")
    name, shape, offset, tensor = given if len(given) == 4 else (given[0], None, None, given[1])
    if not (hasattr(tensor, "shape") and hasattr(tensor, "dtype")):
        raise ParameterError(f"what is published are tensors, not {type(tensor).__name__}", item=name)
    if shape is not None:
        yield name, tensor, {"offset": offset, "of": shape}
    elif not hasattr(tensor, "device_mesh"):
        yield name, tensor, {}
    else:
        if any(each.is_partial() for each in tensor.placements):
            raise ParameterError("what processes have of this tensor is yet to be summed: redistribute it", item=name)
        local, ranks = tensor.to_local(), tensor.device_mesh.get_coordinate()
        shards = ranks is not None and zip(tensor.placements, ranks, strict=True)
        copies = not shards or any(at and (each.is_replicate() or not tensor.numel()) for each, at in shards)
        if not copies and (local.numel() or not tensor.numel()):
            (chunk,) = torch_private.create_chunk_list(tensor)
            yield name, local, {"offset": chunk.offsets, "of": tensor.shape}


def _said(storage: Storage, folder: str, access: Access) -> Version:
    try:
        checkpoint = Checkpoint.at(storage.child(folder), access)
    except _BLIND:  # who only writes cannot verify what it has written; what is said orders its own versions alone
        checkpoint = Checkpoint.at(storage.child(folder), Access(), listing=True)
    with checkpoint:
        return Version.of(checkpoint, folder)
