"""What belongs to one save of one process: its writer id, its renewed chain, and the files that it wrote."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import IO, Any
from weakref import finalize

import torch
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from streamxf.dcp.extensions import Extensions
from streamxf.dcp.save.datafile import DataFile
from streamxf.errors import AbortedError, StreamxfError, escaped, located
from streamxf.format.limits import WRITER_ID_BYTES
from streamxf.format.names import data_name
from streamxf.progress import Progress
from streamxf.report import Meter, SaveReport
from streamxf.storage.disk import Mount
from streamxf.storage.storage import Storage
from streamxf.threads import side_by_side
from streamxf.torchsave.check import quick_needs
from streamxf.wording import some

RECORD_ATTRIBUTE = "streamxf_record"
_REASONS = 3  # in a warning


@dataclass(frozen=True)
class FileRecord:
    """What a process tells the coordinator about a file: it travels on the first of the file's results.

    - `path`: relative to the checkpoint.
    - `crc`: CRC-32C of the whole file, where its items have no containers.
    - `wrapped`: the wrapped data key of the process, as text; empty where the chain does not encrypt.
    - `modules`: the third-party packages that provided its codecs.
    - `chain`: the extensions and the ids of the keys, for people; all ranks must have the same.
    - `place`: where the process found the checkpoint's folder, if that is a local or mounted one.
    """

    path: str
    size: int
    crc: int | None
    writer_id: bytes
    wrapped: str
    modules: tuple[str, ...]
    chain: str
    place: Mount | None


@dataclass
class Save:
    """One save by one process.

    The writer id is minted here, for each save, rather than taken from DCP: every rank draws its own ``save_id``, it
    survives into the next save, and cached plans bring back the file names of the first.

    - `storage`: the checkpoint's folder, held open from `enter` to `leave`.
    - `extensions`: renewed for this save.
    - `sync`: whether each file must be on the disk before the save goes on.
    - `place`: where the checkpoint's folder is, once it is there; None if it is not local.
    - `report`: what was written, once all of it is.
    - `meter`: what all threads of the save count in.
    - `begun`: taken when writing begins.
    - `alone`: whether no other rank writes to it.
    - `unpublished`: where it is to be published, removes what all ranks wrote if this object goes before.
    """

    storage: Storage
    extensions: Extensions
    block_log2: int
    sync: bool
    writer_id: bytes = field(default_factory=lambda: os.urandom(WRITER_ID_BYTES))
    place: Mount | None = None
    report: SaveReport | None = None
    progress: Progress | None = None
    unpublished: finalize[..., Save] | None = None
    alone: bool = False

    def __post_init__(self) -> None:
        self.modules = tuple(self.extensions.providers())
        self.meter = Meter()
        self.begun = threading.Lock()
        self._needs: dict[str, tuple[tuple[str, ...], str]] = {}
        self._failures: list[BaseException] = []  # in the order of time: appending needs no lock

    def enter(self, *, links: bool = True) -> Storage:
        """Hold a local folder open, whatever is put in its place; AbortedError for a link that is not followed."""
        self.storage = self.storage.hold(links=links)
        return self.storage

    def leave(self) -> None:
        self.storage = self.storage.let_go()

    def file_name(self, rank: int, number: int) -> str:
        """A name that no other save or process uses."""
        return data_name(rank, number, self.writer_id)

    def refused_objects(self) -> tuple[frozenset[str], str]:
        """What readers refuse by default of the objects that were saved: the names that they need, and a text that says
        so, or "" if there is nothing.
        """
        needs = sorted(self._needs.items())
        names = sorted({name for _, (names, _) in needs for name in names})
        reasons = {item: reason for item, (_, reason) in needs if reason}
        if not needs:
            return frozenset(), ""
        text = f"readers will refuse objects of this checkpoint by default: {some([item for item, _ in needs])}."
        if names:
            text += f" They need {some(names, most=20)}; pass the reader safe_globals=[{some(names, most=20)}]."
        for item, reason in list(reasons.items())[:_REASONS]:
            text += f" {some([item])} does not load then either: {reason}; store a list, a dict or a string instead."
        return frozenset([*names, *reasons.values()]), text

    def write_files(
        self,
        files: Iterable[tuple[str, list[WriteItem]]],
        threads: int,
        opening: Callable[[str], AbstractContextManager[Any]],
        resolve: Callable[[WriteItem], Any],
    ) -> list[WriteResult]:
        """Write files, each with its items, in up to `threads` threads, this one among them. Returns when all have
        stopped, or raises the first failure in any; an interrupt of this thread is one, too.
        """
        waiting = deque(files)
        results: dict[str, list[WriteResult]] = {name: [] for name, _ in waiting}

        def work() -> None:
            while not self._failures:
                try:
                    name, items = waiting.popleft()
                except IndexError:  # another thread took the last one
                    return
                try:
                    with opening(name) as raw:
                        results[name] = self.write_file(raw, name, items, resolve)
                        begin = perf_counter()
                    self.meter.io(perf_counter() - begin)  # an object store uploads when the file is closed
                except BaseException as error:
                    self._failures.append(error)

        side_by_side(work, min(threads, len(waiting)), self._failures.append)
        if self._failures:
            # what only stopped because something else failed says so; the cause is what people need
            causes = [error for error in self._failures if not isinstance(error, AbortedError)]
            cause = next(iter(causes or self._failures))
            try:
                raise cause
            finally:  # or it would lead to itself and to all memory that was in use, until the garbage is collected
                self._failures = []
                del cause, causes
        return [result for each in results.values() for result in each]

    def write_file(
        self, raw: IO[bytes], path: str, items: Iterable[WriteItem], resolve: Callable[[WriteItem], Any]
    ) -> list[WriteResult]:
        """Write items into one file; after any error all other files of this save stop, too."""
        made = self.extensions, self.writer_id, self.block_log2, self.meter, self.progress
        file = DataFile(raw, path, *made, sync=self.sync)
        ordered = sorted(items, key=lambda item: item.type != WriteItemType.BYTE_IO)
        place = "nothing yet"
        try:
            with located(file=path):
                for item in ordered:
                    if self._failures:
                        raise AbortedError("another file of this save failed")
                    place = f"item {item.index.fqn}"
                    data: Any = resolve(item)
                    if item.type == WriteItemType.BYTE_IO:
                        self._look_at(item.index.fqn, data)
                    file.add(item, data.detach() if isinstance(data, torch.Tensor) else data)
                place = "the end"
                file.finish()
        except BaseException as error:
            if not isinstance(error, StreamxfError):
                error.add_note(escaped(f"while {place} was written to file {path}"))
            self._failures.append(error)
            file.cancel()
            raise
        if file.results:
            encryption = self.extensions.encryption
            wrapped = encryption.wrapped if encryption is not None else ""
            about = (self.modules, self.extensions.summary(), self.place)
            record = FileRecord(path, file.size, file.crc, self.writer_id, wrapped, *about)
            setattr(file.results[0].storage_data, RECORD_ATTRIBUTE, record)
        return file.results

    def _look_at(self, item: str, data: Any) -> None:
        with suppress(AttributeError):  # a planner's own bytes, for a planner's own load
            names, reason = quick_needs(data.getbuffer())
            if names or reason:
                self._needs[item] = names, reason
