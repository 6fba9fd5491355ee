"""``torch.save``'s frame around a tensor's elements, for torch's own readers.

What torch writes around the elements of a plain contiguous tensor depends on dtype and shape alone. So torch writes it
once for each of these, around a tensor whose memory nobody touches.
"""

from __future__ import annotations

import mmap
import os
import pickle
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from streamxf.checkpoint.boxes import contiguous_strides
from streamxf.errors import StreamxfError
from streamxf.format.dtypes import elements_size

# A frame takes about 1.5 KiB; a model has far fewer geometries than tensors.
_FRAMES_KEPT = 1024
_ALIGNMENT = 64
_PROTOCOL = 2
_MAPPED = 2**26  # bytes; a process may have some ten thousand mappings
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0  # of which Python knows from 3.13 on


@lru_cache(_FRAMES_KEPT)
def frame_of(dtype: str, shape: tuple[int, ...]) -> tuple[bytes, bytes]:
    """What ``torch.save`` writes before and after the elements of a plain tensor.

    Raises
    ------
    StreamxfError
        If this torch does not write as expected.
    """
    target: Any = _Target()
    writer: Any = torch._C.PyTorchFileWriter(target, False, _ALIGNMENT)
    # nothing global is switched, so other threads may call torch.save meanwhile
    torch.serialization._save(_shell(dtype, shape), _Records(writer), pickle, _PROTOCOL, False)  # type: ignore[no-untyped-call]
    writer.write_end_of_file()
    size = elements_size(dtype, shape)
    # torch does not seek over no elements, and then it does not matter where these would stand
    at, skipped = target.gaps[0] if target.gaps else (len(target.data), 0)
    if len(target.gaps) > 1 or skipped != size:
        raise _unexpected()
    return bytes(target.data[:at]), bytes(target.data[at:])


def _shell(dtype: str, shape: Sequence[int]) -> torch.Tensor:
    """A contiguous tensor on the CPU whose memory nobody has touched, so that it takes none, however large it is.

    ``torch.empty`` fills what it gives when deterministic algorithms are asked for.
    """
    size = elements_size(dtype, shape)
    storage = torch.UntypedStorage(size, device="cpu") if size < _MAPPED or os.name == "nt" else _mapped(size)  # type: ignore[no-untyped-call]
    made = torch.empty(0, dtype=getattr(torch, dtype), device="cpu")
    return made.set_(storage, 0, tuple(shape), contiguous_strides(shape))


def _mapped(size: int) -> torch.UntypedStorage:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE  # malloc would be refused what cannot be there
    return torch.frombuffer(mmap.mmap(-1, size, flags), dtype=torch.uint8).untyped_storage()


class _Records:
    """What ``torch.serialization._save`` takes for a zip file: it passes records on, and storages as empty places."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write_record(self, name: str, data: Any, size: int) -> None:
        if isinstance(data, torch.UntypedStorage):
            self._writer.write_record_metadata(name, size)
        else:
            self._writer.write_record(name, data, size)

    def write_record_metadata(self, name: str, size: int) -> None:
        self._writer.write_record_metadata(name, size)


class _Target:
    """The file that torch's zip writer sees: it keeps what it gets, and notes where it seeks over elements."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.gaps: list[tuple[int, int]] = []
        self._position = 0

    def write(self, data: Any) -> int:
        self.data += data
        self._position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence != 1:
            raise _unexpected()
        self.gaps.append((len(self.data), offset))
        self._position += offset
        return self._position

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        """There is nothing to flush."""


def _unexpected() -> StreamxfError:
    return StreamxfError("torch's zip writer seeks where it did not before; this torch is not supported yet")
