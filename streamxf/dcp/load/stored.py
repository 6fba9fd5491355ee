"""`StoredTensor`: a tensor in a container whose payload can be found without unpickling anything.

What ``torch.save`` writes around a plain tensor's payload depends on its geometry alone (`framing.frame_of`). If a
stream has exactly the right length, and begins and ends with exactly these bytes, then what lies between is the memory
of that tensor, and torch need not be asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch

from streamxf.dcp.tensors.boxes import contiguous_strides
from streamxf.dcp.tensors.framing import Frame, frame_of
from streamxf.errors import MetadataError, StreamxfError
from streamxf.fileio.blocks import BlockReader


@dataclass(frozen=True, slots=True)
class Geometry:
    """What the metadata says of a stored tensor, and in which order its elements may stand.

    Attributes
    ----------
    dtype : torch.dtype
    shape : tuple of int
    strides : tuple of int
        In elements, without gaps.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def row_major(cls, dtype: torch.dtype, shape: tuple[int, ...]) -> Self:
        """The usual order."""
        return cls(dtype, shape, contiguous_strides(shape))

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def check(self, tensor: torch.Tensor) -> None:
        """Raise MetadataError if this is not the tensor that the metadata says."""
        if tensor.dtype != self.dtype or tuple(tensor.size()) != self.shape:
            raise MetadataError(
                f"the stored tensor is {tensor.dtype} of shape {tuple(tensor.size())}, the metadata says {self.dtype} "
                f"of shape {self.shape}: one of them was altered, or comes from another save"
            )


class Framing:
    """The frame that a stream is expected to have, which can be compared piece by piece.

    Parameters
    ----------
    frame : Frame
    size : int
        Bytes of the stream.

    Attributes
    ----------
    start, stop : int
        Where the payload begins and ends.
    """

    __slots__ = ("_prefix", "_suffix", "start", "stop")

    def __init__(self, frame: Frame, size: int) -> None:
        self._prefix = frame.prefix
        self._suffix = frame.suffix
        self.start = len(frame.prefix)
        self.stop = size - len(frame.suffix)

    @classmethod
    def of(cls, geometry: Geometry, size: int, requires_grad: bool = False) -> Framing | None:
        """The frame of a tensor in a stream of `size` bytes; None if the two do not go together, or torch makes no
        frame for such a tensor.
        """
        payload = geometry.nbytes
        if not 0 <= payload <= size:  # nobody may have vouched for the metadata: torch need not see what it claims
            return None
        try:
            frame = frame_of(geometry.dtype, geometry.shape, geometry.strides, requires_grad)
        except (RuntimeError, ValueError, StreamxfError):  # not for every dtype; torch.load may know better
            return None
        return cls(frame, size) if len(frame.prefix) + payload + len(frame.suffix) == size else None

    def matches(self, position: int, data: memoryview) -> bool:
        """Whether the stream's bytes from `position` are what they should be, as far as they are not payload."""
        end = position + len(data)
        # bytes() because comparing views goes byte by byte
        if position < self.start and bytes(data[: self.start - position]) != self._prefix[position:end]:
            return False
        return end <= self.stop or (
            bytes(data[max(0, self.stop - position) :]) == self._suffix[max(0, position - self.stop) : end - self.stop]
        )

    def blocks(self, reader: BlockReader) -> Iterator[int]:
        """The blocks that hold more than payload."""
        size = reader.block_size
        yield from sorted({*range(-(-self.start // size)), *range(self.stop // size, reader.count)})


class StoredTensor:
    """A tensor's container, and the blocks that hold more than payload, once they were decoded.

    Parameters
    ----------
    reader : BlockReader

    Attributes
    ----------
    edges : dict of int to memoryview
        Decoded blocks, by number.
    """

    def __init__(self, reader: BlockReader) -> None:
        self.reader = reader
        self.edges: dict[int, memoryview] = {}

    def framing(self, geometry: Geometry) -> Framing | None:
        """The frame that a tensor of `geometry`, saved by streamxf, would have here; nobody has compared it yet."""
        return Framing.of(geometry, self.reader.size)

    def find(self, geometry: Geometry) -> Framing | None:
        """Decode what is needed to compare frames, and return that of `geometry` if the tensor has it.

        Raises
        ------
        StreamxfError
            If a block is not as it was stored.
        """
        for requires_grad in (False, True):
            framing = Framing.of(geometry, self.reader.size, requires_grad)
            if framing is not None and all(self._matches(framing, index) for index in framing.blocks(self.reader)):
                return framing
        return None

    def _matches(self, framing: Framing, index: int) -> bool:
        data = self.edges.get(index)
        if data is None:
            data = memoryview(bytearray(self.reader.size_of(index)))
            self.reader.decode(index, data)
            self.edges[index] = data
        return framing.matches(index * self.reader.block_size, data)
