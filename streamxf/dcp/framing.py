"""``torch.save``'s framing for one tensor, written by torch's own zip writer, with the payload streamed in from
outside.

``torch.save`` hands the whole tensor over in one piece, spends most of its time on a CRC-32 that ``torch.load`` never
checks, and ignores what ``write`` returns. Here torch writes everything around the payload, without the CRC, and seeks
over the payload itself (``write_record_metadata``); at that seek the payload is written. Nothing global is switched, so
other threads may call ``torch.save`` meanwhile.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import torch

from streamxf.dcp.extensions import SaveStream
from streamxf.dcp.payload import Payload
from streamxf.errors import StreamxfError

PICKLE_PROTOCOL = 2
ALIGNMENT = 64


def save_tensor(tensor: torch.Tensor, target: SaveStream) -> None:
    """Write `tensor` to `target` so that ``torch.load`` reads it.

    Raises
    ------
    OSError, StreamxfError
        Whatever writing raised, rather than the RuntimeError that torch's writer makes of it.
    """
    payload = Payload.of(tensor)
    stream: Any = _ZipTarget(target)
    try:
        zip_writer = torch._C.PyTorchFileWriter(stream, False, ALIGNMENT)
        torch.serialization._save(  # type: ignore[no-untyped-call]
            payload.shell, _Records(zip_writer, stream, payload), pickle, PICKLE_PROTOCOL, False
        )
        zip_writer.write_end_of_file()
    except RuntimeError:
        if stream.error is not None:
            raise stream.error from None
        raise
    if stream.error is not None:
        raise stream.error


class _ZipTarget:
    """The file that torch's zip writer sees: counts positions, keeps the first error, and puts the payload where it
    seeks.
    """

    def __init__(self, target: SaveStream) -> None:
        self._target = target
        self._position = 0
        self.pieces: Iterator[memoryview] | None = None
        self.error: BaseException | None = None

    def write(self, data: Any) -> int:
        size = len(data)
        try:
            if self._target.stream.write(data) not in (size, None):
                raise OSError("a stream extension took only a part of what was written to it")
        except BaseException as error:
            self.error = self.error or error
            raise
        self._position += size
        return size

    def seek(self, offset: int, whence: int = 0) -> int:
        try:
            self._write_payload(offset, whence)
        except BaseException as error:
            self.error = self.error or error
            raise
        self._position += offset
        return self._position

    def _write_payload(self, size: int, whence: int) -> None:
        if whence != 1 or self.pieces is None:
            raise StreamxfError("torch's zip writer seeks where it did not before; this torch is not supported yet")
        pieces, self.pieces = self.pieces, None
        written = 0
        for piece in pieces:
            self._target.write_owned(piece)
            written += len(piece)
        if written != size:
            raise StreamxfError(
                f"the tensor gave {written} bytes where {size} belong; was it changed while it was saved?"
            )

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        """Blocks leave when they are full."""


class _Records:
    """What ``torch.serialization._save`` takes for a zip file: passes records on, and storages on as empty places."""

    def __init__(self, zip_writer: Any, stream: _ZipTarget, payload: Payload) -> None:
        self._zip = zip_writer
        self._stream = stream
        self._payload = payload

    def write_record(self, name: str, data: Any, size: int) -> None:
        if not isinstance(data, torch.UntypedStorage):
            self._zip.write_record(name, data, size)
            return
        self._stream.pieces = self._payload.pieces(data)
        self._zip.write_record_metadata(name, size)
