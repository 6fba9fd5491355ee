"""Writing a conversion's items, file by file, each of which is kept if the process is killed; in the end they are
published as a save is.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from time import perf_counter
from typing import IO, NamedTuple

from torch.distributed.checkpoint.planner import WriteItem

from streamxf.checkpoint.disk import Mount
from streamxf.checkpoint.publish import locked, remove_leftovers
from streamxf.dcp.metadata import Stored, places_of
from streamxf.dcp.save.datafile import planned_bytes
from streamxf.dcp.save.output import storing
from streamxf.dcp.save.publishing import assemble, publish
from streamxf.dcp.save.session import RECORD_ATTRIBUTE, Save
from streamxf.dcp.save.space import check_size
from streamxf.errors import ParameterError, StreamxfError
from streamxf.progress import Progress
from streamxf.tools.convert.conversion import Conversion, Data, Part
from streamxf.tools.convert.destination import Destination
from streamxf.tools.convert.result import Converted
from streamxf.tools.convert.slips import Finished, finished_files, placed, slip_of, write_slip
from streamxf.wording import many

_log = logging.getLogger(__name__)


def convert(to: Destination, conversion: Conversion, file_size: int, progress: Progress | None = None) -> Converted:
    """Write a conversion's items to data files of about `file_size` bytes, and publish them.

    Whatever it raises, nothing was published then, and finished files stay for the next call.
    """
    if file_size < 1:
        raise ParameterError(f"file_size {file_size}: it must be a number of bytes, at least 1")
    begin = perf_counter()
    made = to.make()
    try:
        with ThreadPoolExecutor(1) as syncing:  # a file is brought to the disk while the next one is written
            return _Converter(to, conversion, conversion.files(file_size), syncing).run(file_size, progress, begin)
    except BaseException:
        with suppress(OSError):  # it is not empty, or was removed
            for folder in made:
                folder.rmdir()
        raise


class _Unsynced(NamedTuple):
    """A data file that has all its bytes, and is being synced."""

    file: Finished
    parts: Sequence[Part]
    synced: Future[None] | None


class _Converter:
    def __init__(
        self, to: Destination, conversion: Conversion, files: Sequence[Sequence[Part]], syncing: ThreadPoolExecutor
    ) -> None:
        self._to = to
        self._conversion = conversion
        self._files = files
        self._syncing = syncing
        self._save = Save(to.extensions.renew(), to.block_log2, sync=False)
        self._done: list[Finished] = []

    def run(self, file_size: int, progress: Progress | None, begin: float) -> Converted:
        storage, save, rank = self._to.storage, self._save, self._conversion.rank or 0
        self._id = self._conversion.id(self._to, file_size)
        if storage.local is not None:
            save.place = Mount.of(storage.local)
        kept, discarded = finished_files(storage, save, self._id, self._files, rank)
        left = {save.file_name(rank, n): parts for n, parts in enumerate(self._files) if n not in kept}
        expected = sum(planned_bytes(write) for parts in left.values() for _, write in parts)
        if storage.local is not None:
            check_size(storage.local, expected, save.extensions)
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
        return Converted(str(chain), *who, (save_id,), *counts, perf_counter() - begin)

    def _write_all(self, files: Mapping[str, Sequence[Part]]) -> None:
        leaving: deque[_Unsynced] = deque()
        try:
            for name, parts in files.items():
                leaving.append(self._write(name, parts))
                if len(leaving) > 1:
                    self._finish(leaving.popleft())
            while leaving:
                self._finish(leaving.popleft())
        except BaseException as error:
            for each in leaving:  # these can be kept, too
                with suppress(OSError, StreamxfError):  # the first error is the one to report
                    self._finish(each)
            if self._done:
                error.add_note(
                    f"nothing was published; {len(self._done)} of {len(self._files)} data files are finished and stay, "
                    "so repeat it to resume"
                )
            elif isinstance(error, KeyboardInterrupt):
                error.add_note("nothing was published, and no data file is finished: repeating it starts over")
            raise

    def _write(self, name: str, parts: Sequence[Part]) -> _Unsynced:
        storage, wanted = self._to.storage, {id(write): each for each, write in parts}

        def resolve(write: WriteItem) -> Data:
            return self._conversion.read(wanted[id(write)])

        try:
            with storing(storage.create(name)) as raw:
                results = self._save.write_file(raw, name, [write for _, write in parts], resolve)
                synced = self._sync(raw) if storage.local is not None else None
        except BaseException:
            storage.remove([name])
            raise
        record = getattr(results[0].storage_data, RECORD_ATTRIBUTE, None)
        assert record is not None
        extensions = self._save.extensions
        places = places_of(results, extensions.recorded, Stored(framed=not extensions.in_blocks))
        return _Unsynced(Finished(record, places), parts, synced)

    def _sync(self, raw: IO[bytes]) -> Future[None]:
        # the same open file: on another one the kernel might not report what it could not write
        descriptor = os.dup(raw.fileno())

        def sync() -> None:
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

        return self._syncing.submit(sync)

    def _finish(self, leaving: _Unsynced) -> None:
        """Wait until a file is stored, and note that it is."""
        storage, name = self._to.storage, leaving.file.record.path
        items = {wanted.item.name: wanted.item for wanted, _ in leaving.parts}
        try:
            if leaving.synced is not None:
                leaving.synced.result()
            write_slip(storage, self._save, self._id, items.values(), leaving.file)
        except BaseException:
            if slip_of(name) not in storage.names():  # an interrupt may come late
                storage.remove([name])
            raise
        self._done.append(leaving.file)

    def _publish(self, save_id: str) -> int:
        """Publish all files; returns the stored bytes of all items."""
        storage, conversion, extensions = self._to.storage, self._conversion, self._save.extensions
        places = {key: stored for file in self._done for key, stored in file.places.items()}
        records = tuple(file.record for file in self._done)
        try:
            items = placed(conversion.items, places)
            made = assemble(items, conversion.extra, records, extensions, save_id, conversion.rank, storage.given)
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
