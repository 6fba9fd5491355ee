"""Writing a conversion's items, file by file, each of which is kept if the process is killed; in the end they are
published as a save is.

Until then each finished file has a slip beside it, by which the next call recognizes it. A slip is a metadata file of a
rank that no process has, without a pickle. So it is read as metadata is, with all checks, and where the data is
encrypted, only who has a key can have made it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import NamedTuple

import torch

from streamxf.checkpoint.access import Access
from streamxf.checkpoint.metadata import read_metadata
from streamxf.checkpoint.opening import Wanted
from streamxf.checkpoint.publish import remove_leftovers
from streamxf.dcp.metadata import places_of
from streamxf.dcp.save.datafile import planned_bytes
from streamxf.dcp.save.publishing import assemble, publish
from streamxf.dcp.save.session import RECORD_ATTRIBUTE, FileRecord, Save
from streamxf.dcp.save.sources import Streamed
from streamxf.dcp.save.space import check_copy
from streamxf.errors import ParameterError, StreamxfError
from streamxf.format.header import Kind
from streamxf.format.items import Chunk, Item, ObjectItem, Place
from streamxf.format.names import OWN_SLIP, SLIP
from streamxf.progress import Progress
from streamxf.storage.lock import locked
from streamxf.tools.convert.conversion import Conversion, Destination, Part, wanted_of
from streamxf.tools.convert.result import Converted
from streamxf.wording import many

_log = logging.getLogger(__name__)

_NO_RANK = 2**31 - 1

Key = tuple[str, tuple[int, ...] | None]
"""An item's name, and of a shard its offset."""

Places = Mapping[Key, tuple[Place, bool]]
"""Where objects and shards are, and whether these are framed."""


class _Finished(NamedTuple):
    """A data file that is stored."""

    record: FileRecord
    places: Places


def convert(to: Destination, conversion: Conversion, file_size: int, progress: Progress | None = None) -> Converted:
    """Write a conversion's items to data files of about `file_size` bytes, and publish them.

    Whatever it raises, nothing was published then, and finished files stay for the next call.
    """
    if file_size < 1:
        raise ParameterError(f"file_size {file_size}: it must be a number of bytes, at least 1")
    begin = perf_counter()
    made = to.storage.make_folder()
    try:
        return replace(_Session(to, conversion, file_size).run(progress), seconds=perf_counter() - begin)
    except BaseException:
        with suppress(OSError):  # it is not empty, or was removed
            for folder in made:
                folder.rmdir()
        raise


class _Session:
    def __init__(self, to: Destination, conversion: Conversion, file_size: int) -> None:
        self._to = to
        self._storage = to.storage
        self._conversion = conversion
        self._files = conversion.files(file_size)
        self._job = conversion.id(to, file_size)
        self._rank = conversion.rank or 0
        self._save = Save(to.storage, to.extensions.renew(), to.block_log2, sync=True, place=to.storage.mount())
        self._done: list[_Finished] = []

    def run(self, progress: Progress | None) -> Converted:
        storage, save = self._storage, self._save
        kept, discarded = self._finished_earlier()
        left = {save.file_name(self._rank, n): parts for n, parts in enumerate(self._files) if n not in kept}
        expected = sum(planned_bytes(write) for parts in left.values() for _, write in parts)
        parts = [part for parts in left.values() for part in parts if planned_bytes(part[1])]
        block_at = partial(self._block_at, [wanted for wanted, _ in parts])
        check_copy(storage, [write for _, write in parts], block_at, save.extensions, save.block_log2)
        if progress is not None:
            save.progress = progress
            progress.expect(expected)
        self._done += [kept[number] for number in sorted(kept)]
        self._write_all(left)
        save_id = os.urandom(16).hex()
        stored, items = self._publish(save_id), sum(map(len, self._files))
        chain = self._to.extensions.chain
        recipients, signer = (chain.encryption.recipients, chain.encryption.signer) if chain.encryption else ((), None)
        who = tuple(f"{key.kind}:{key.id}" for key in recipients), (signer.id,) if signer is not None else ()
        counts = items, len(self._files), len(kept), discarded, save.meter.total().raw_bytes, stored
        return Converted(str(chain), *who, (save_id,), *counts, 0.0)

    def _block_at(self, parts: Sequence[Wanted], number: int, place: float) -> torch.Tensor | None:
        """A block of a shard's elements, by the shard's number and a share of its bytes; None if it has none alone."""
        data = self._conversion.read(parts[number])
        if not isinstance(data, Streamed) or data.kind is not Kind.TENSOR:
            return None
        start = int(place * data.source.size) >> self._to.block_log2 << self._to.block_log2
        load = data.source.load(start, min(start + (1 << self._to.block_log2), data.source.size))
        memory = load.take(lambda size: memoryview(bytearray(size)))
        load.release()
        return torch.frombuffer(memory, dtype=torch.uint8).view(getattr(torch, data.dtype))

    def _write_all(self, files: Mapping[str, Sequence[Part]]) -> None:
        try:
            for name, parts in files.items():
                self._write(name, parts)
        except BaseException as error:
            if self._done:
                error.add_note(
                    f"nothing was published; finished data files, which stay: {len(self._done)} of "
                    f"{len(self._files)}; repeat it to resume"
                )
            elif isinstance(error, KeyboardInterrupt):
                error.add_note("nothing was published, and no data file is finished: repeating it starts over")
            raise

    def _write(self, name: str, parts: Sequence[Part]) -> None:
        """Write a data file and its slip, which says that it is there."""
        wanted = {id(write): each for each, write in parts}
        try:
            with self._storage.create(name) as raw:
                results = self._save.write_file(
                    raw, name, [write for _, write in parts], lambda write: self._conversion.read(wanted[id(write)])
                )
            record = getattr(results[0].storage_data, RECORD_ATTRIBUTE, None)
            assert record is not None
            places = places_of(results, self._save.extensions)
            items = {each.item.name: each.item for each in wanted.values()}
            stored = _placed(items.values(), places)
            slip = assemble(stored, {}, (record,), self._save.extensions, self._job, _NO_RANK, None)
            # not synced: one that a crash damages is ignored, and the data file is on the disk already
            self._storage.put(f"{name}{SLIP}", slip.data, sync=False)
        except BaseException:
            self._storage.remove([name])
            raise
        self._done.append(_Finished(record, places))

    def _publish(self, save_id: str) -> int:
        """Publish all files; returns the stored bytes of all items."""
        storage, conversion, extensions = self._storage, self._conversion, self._save.extensions
        places = {key: stored for file in self._done for key, stored in file.places.items()}
        records = tuple(file.record for file in self._done)
        try:
            items = _placed(conversion.items, places)
            about = save_id, conversion.rank, storage.given, conversion.run
            made = assemble(items, conversion.extra, records, extensions, *about)
            with locked(storage) as alone:
                # the files are kept, since another call may have found and published them
                how = {"alone": alone, "overwrite": self._to.overwrite, "sync": True, "keep": True}
                old = publish(storage, made, **how, check=conversion.check)
                try:
                    remove_leftovers(storage, old, made.index.keyed)
                except Warning as warning:  # where filters make errors of warnings; the checkpoint is published
                    _log.warning("%s", warning)
        except BaseException as error:
            error.add_note(
                f"its {many(len(self._files), 'data file')} stay: repeat it to resume while source and "
                "target are as they were, and `streamxf clean` removes what no checkpoint needs"
            )
            raise
        return sum(place.size for place, _ in places.values())

    # -- what earlier calls finished -----------------------------------------------------------------

    def _finished_earlier(self) -> tuple[dict[int, _Finished], int]:
        """Data files of earlier calls, by number; and how many slips are of other conversions or unusable."""
        storage, save, access = self._storage, self._save, self._access()
        listed = storage.names()
        found: dict[int, _Finished] = {}
        others = 0
        for name in sorted(listed):
            match = OWN_SLIP.fullmatch(name)
            if match is None or int(match["rank"]) != self._rank:
                continue
            path = name.removesuffix(SLIP)
            number = int(match["number"])
            try:
                slip = read_metadata(storage, name, access, rank=_NO_RANK)
            except (StreamxfError, FileNotFoundError):  # damaged, a link, or not authenticated by a key of this call
                others += 1
                continue
            index = slip.index
            if index is None or index.save_id != self._job or number >= len(self._files) or {*index.files} != {path}:
                others += 1
            elif number not in found and listed.get(path) == index.files[path].size:
                facts, wrapped = index.files[path], slip.wrapped[index.dek] if index.dek is not None else ""
                about = (save.modules, save.extensions.summary(), save.place)
                record = FileRecord(path, facts.size, facts.crc, index.writers[facts.writer].id, wrapped, *about)
                stored = wanted_of(index.items.values())
                places = {_key_of(each): (each.place, each.kind is Kind.FRAMED) for each in stored}
                if places.keys() == {_key_of(each) for each, _ in self._files[number]}:
                    found[number] = _Finished(record, places)
        return found, others

    def _access(self) -> Access:
        """What opens the slips of this conversion; if it encrypts, they must be authentic."""
        encryption = self._save.extensions.encryption
        if encryption is None:
            return Access()
        signer = encryption.signer
        return Access.of(list(encryption.recipients), trust=signer.verify_key if signer is not None else None)


def _placed(items: Iterable[Item], places: Places) -> dict[str, Item]:
    """Items at their new places, by name, tensors with the shards that have one."""
    made: dict[str, Item] = {}
    for item in items:
        if isinstance(item, ObjectItem):
            made[item.name] = replace(item, place=places[item.name, None][0])
            continue
        stored = ((chunk, places.get((item.name, chunk.offset))) for chunk in item.chunks)
        chunks = tuple(Chunk(chunk.offset, chunk.shape, *found) for chunk, found in stored if found is not None)
        made[item.name] = replace(item, chunks=chunks)
    return made


def _key_of(wanted: Wanted) -> Key:
    return wanted.item.name, wanted.chunk.offset if wanted.chunk is not None else None
