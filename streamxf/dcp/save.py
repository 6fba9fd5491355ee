"""What belongs to one save of one process: its writer id, its renewed chain, and the files that it wrote."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import IO, Any

import torch
from torch.distributed.checkpoint.planner import SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from streamxf.container.header import WRITER_ID_BYTES
from streamxf.dcp.datafile import DataFile
from streamxf.dcp.extensions import Extensions
from streamxf.dcp.manifest import FileFacts
from streamxf.dcp.output import OutputFile
from streamxf.errors import AbortedError, located
from streamxf.meter import Meter

RECORD_ATTRIBUTE = "streamxf_record"


@dataclass(frozen=True)
class FileRecord:
    """What a process tells the coordinator about a file: it travels on the first of the file's results.

    Attributes
    ----------
    path : str
        Relative to the checkpoint.
    facts : FileFacts
    modules : tuple of str
        The third-party packages that provided its codecs.
    chain : str
        The extensions and the ids of the keys, for people; all ranks must have the same.
    """

    path: str
    facts: FileFacts
    modules: tuple[str, ...]
    chain: str


@dataclass
class Save:
    """One save by one process.

    The writer id is minted here, for each save, rather than taken from DCP: every rank draws its own ``save_id``, it
    survives into the next save, and cached plans bring back the file names of the first.

    Attributes
    ----------
    extensions : Extensions
        Renewed for this save.
    block_log2 : int
    sync : bool
        Whether each file must be on the disk before the save goes on.
    writer_id : bytes
    meter : Meter
        What all threads of the save count in.
    """

    extensions: Extensions
    block_log2: int
    sync: bool
    writer_id: bytes = field(default_factory=lambda: os.urandom(WRITER_ID_BYTES))

    def __post_init__(self) -> None:
        self._descriptors = (
            self.extensions.descriptors() or None
        )  # one object for all items: pickle then stores it once
        self._modules = tuple(self.extensions.providers())
        self.meter = Meter()
        self._failed = threading.Event()
        self._begun = threading.Lock()

    def begin(self) -> None:
        """Say that writing begins.

        Raises
        ------
        AbortedError
            If it has begun before: another save has started on the same writer, and both would write the same files.
        """
        if not self._begun.acquire(blocking=False):
            raise AbortedError(
                "another save through this writer is under way; wait for its future, or make a writer for each save"
            )

    def fail(self) -> None:
        """Have the files that are being written stop before their next item."""
        self._failed.set()

    def file_name(self, rank: int, number: int) -> str:
        """A name that no other save or process uses."""
        return f"__{rank}_{number}_{self.writer_id.hex()}.distcp"

    def write_file(
        self, raw: IO[bytes], path: str, items: Iterable[WriteItem], planner: SavePlanner
    ) -> list[WriteResult]:
        """Write items into one file.

        Parameters
        ----------
        raw : binary file
            Empty, open for writing.
        path : str
            Relative to the checkpoint.

        Raises
        ------
        Exception
            Whatever went wrong. All other files of this save then stop, too.
        """
        output = OutputFile(raw, self.meter, self.sync)
        file = DataFile(output, path, self.extensions, self._descriptors, self.writer_id, self.block_log2, self.meter)
        ordered = sorted(items, key=lambda item: item.type != WriteItemType.BYTE_IO)
        try:
            with located(file=path):
                for item in ordered:
                    if self._failed.is_set():
                        raise AbortedError("another file of this save failed")
                    data: Any = planner.resolve_data(item)
                    file.write(item, data.detach() if isinstance(data, torch.Tensor) else data)
                file.finish()
                output.finish()
        except BaseException:
            self.fail()
            file.cancel()
            raise
        if file.results:
            record = FileRecord(path, output.facts(self.writer_id), self._modules, self.extensions.summary())
            setattr(file.results[0].storage_data, RECORD_ATTRIBUTE, record)
        return file.results
