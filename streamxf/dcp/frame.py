"""``torch.save``'s frame around a tensor's elements, for torch's own readers.

What torch writes around the elements of a plain contiguous tensor depends on dtype and shape alone. So torch writes it
once for each of these, around a tensor whose memory is never touched.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from streamxf.buffers import mapped
from streamxf.checkpoint.elements import contiguous_strides
from streamxf.errors import StreamxfError, UnsupportedError
from streamxf.format.items import ITEMSIZES, elements_size
from streamxf.torch_private import PyTorchFileWriter, save_records, storage_number

# A frame takes about 1.5 KiB; a model has far fewer geometries than tensors.
_FRAMES_KEPT = 1024
_ALIGNMENT = 64
_PROTOCOL = 2
_MAPPED = 2**26  # bytes; a process may have some ten thousand mappings
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0  # of which Python knows from 3.13 on


@lru_cache(_FRAMES_KEPT)
def frame_of(dtype: str, shape: tuple[int, ...]) -> tuple[bytes, bytes]:
    """What ``torch.save`` writes before and after the elements of a plain tensor; raises StreamxfError if this torch
    does not write as expected.
    """
    tensor = shell(dtype, shape)
    parts = frame_around(tensor, [tensor])
    # torch does not seek over no elements, and then it does not matter where these would stand
    return (parts[0], b"") if len(parts) == 1 else (parts[0], parts[2])  # type: ignore[return-value]


def frame_around(value: Any, shells: Sequence[torch.Tensor]) -> list[bytes | int]:
    """What ``torch.save`` writes of a value, with numbers of `shells` in the place of their elements; raises as
    `frame_of`.
    """
    target: Any = _Target()
    writer: Any = PyTorchFileWriter(target, False, _ALIGNMENT)
    # a shell's storage may have the address of no other one
    records = _Records(
        writer, {storage_number(tensor.untyped_storage()): number for number, tensor in enumerate(shells)}
    )
    # nothing global is switched, so other threads may call torch.save meanwhile
    save_records(value, records, pickle, _PROTOCOL, False)  # type: ignore[no-untyped-call]
    writer.write_end_of_file()
    if [size for _, size in target.gaps] != [shells[number].nbytes for number in records.left_out]:
        raise _unexpected()
    parts: list[bytes | int] = []
    at = 0
    for (place, _), number in zip(target.gaps, records.left_out, strict=True):
        parts += [bytes(target.data[at:place]), number]
        at = place
    return [*parts, bytes(target.data[at:])]


def shell(dtype: str, shape: Sequence[int]) -> torch.Tensor:
    """A contiguous tensor on the CPU whose memory was never touched, so that it takes none, however large it is.

    ``torch.empty`` fills what it gives when deterministic algorithms are asked for. Raises UnsupportedError if there
    can be no such tensor.
    """
    if dtype not in ITEMSIZES:
        raise UnsupportedError(f"elements of {dtype} cannot be copied one by one")
    try:
        storage = _untouched(elements_size(dtype, shape))
        made = torch.empty(0, dtype=getattr(torch, dtype), device="cpu")
        return made.set_(storage, 0, tuple(shape), contiguous_strides(shape))
    except (OverflowError, OSError, MemoryError) as error:
        raise UnsupportedError(f"there can be no tensor of {dtype} and shape {tuple(shape)} here: {error}") from None


def _untouched(size: int) -> torch.UntypedStorage:
    if size < _MAPPED:
        return torch.UntypedStorage(size, device="cpu")  # type: ignore[no-untyped-call]
    # malloc would be refused what cannot be there
    return torch.frombuffer(mapped(size, _NO_RESERVE), dtype=torch.uint8).untyped_storage()


class _Records:
    """What ``torch.serialization._save`` takes for a zip file: it passes records on, and shells as empty places.

    `left_out` are the numbers of the shells that have elements, in the order of their places.
    """

    def __init__(self, writer: Any, shells: Mapping[int, int]) -> None:
        self._writer = writer
        self.write_record_metadata = writer.write_record_metadata
        self._shells = shells
        self.left_out: list[int] = []

    def write_record(self, name: str, data: Any, size: int) -> None:
        if not isinstance(data, torch.UntypedStorage) or storage_number(data) not in self._shells:
            self._writer.write_record(name, data, size)
            return
        if size:
            self.left_out.append(self._shells[storage_number(data)])
        self.write_record_metadata(name, size)


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
