"""What belongs to one save of one process: its writer id, its renewed chain, and the files that it wrote."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import IO, Any, cast

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.planner import SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from streamxf.container.header import WRITER_ID_BYTES, Identity, Kind
from streamxf.dcp.extensions import Extensions, SaveStream
from streamxf.dcp.framing import save_tensor
from streamxf.dcp.manifest import FileFacts
from streamxf.dcp.output import OutputFile
from streamxf.dcp.payload import minimal
from streamxf.errors import AbortedError, located

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
        output = OutputFile(raw)
        ordered = sorted(items, key=lambda item: item.type != WriteItemType.BYTE_IO)
        try:
            with located(file=path):
                results = [self._write_item(output, path, item, planner) for item in ordered]
                output.finish(self.sync)
        except BaseException:
            self._failed.set()
            raise
        if results:
            record = FileRecord(path, output.facts(self.writer_id), self._modules, self.extensions.summary())
            setattr(results[0].storage_data, RECORD_ATTRIBUTE, record)
        return results

    def _write_item(self, output: OutputFile, path: str, item: WriteItem, planner: SavePlanner) -> WriteResult:
        if self._failed.is_set():
            raise AbortedError("another file of this save failed")
        start = output.size
        data: Any = planner.resolve_data(item)
        with located(item=item.index.fqn):
            self._write_data(output, item, data.detach() if isinstance(data, torch.Tensor) else data)
        length = output.size - start
        info = _StorageInfo(path, start, length, transform_descriptors=self._descriptors)
        return WriteResult(index=item.index, size_in_bytes=length, storage_data=info)

    def _write_data(self, output: OutputFile, item: WriteItem, data: Any) -> None:
        if item.type == WriteItemType.BYTE_IO:
            target = self._open(output, item, None)
            _finish_or_abort(target, lambda: target.write_owned(data.getbuffer()))
        elif not self.extensions:
            _save_bare(data, output)
        else:
            target = self._open(output, item, data)
            _finish_or_abort(target, lambda: save_tensor(data, target))

    def _open(self, output: OutputFile, item: WriteItem, tensor: torch.Tensor | None) -> SaveStream:
        dtype = str(tensor.dtype).removeprefix("torch.") if tensor is not None else None
        return self.extensions.open(
            output, identity_of(self.writer_id, item), published=True, dtype=dtype, block_log2=self.block_log2
        )


def identity_of(writer_id: bytes, item: WriteItem) -> Identity:
    """The identity that an item's container is bound to."""
    kind = Kind.BYTES if item.type == WriteItemType.BYTE_IO else Kind.TENSOR
    return Identity(writer_id, kind, tuple(item.index.offset or ()), item.index.fqn)


def _finish_or_abort(target: SaveStream, write: Any) -> None:
    try:
        write()
        target.close()
    except BaseException:
        target.abort()
        raise


def _save_bare(tensor: torch.Tensor, output: OutputFile) -> None:
    """Write a tensor without any chain: the same bytes as torch's own writer."""
    try:
        torch.save(minimal(tensor.cpu()), cast("IO[bytes]", output))
    except RuntimeError:
        if output.error is None:
            raise
    if output.error is not None:
        raise output.error
