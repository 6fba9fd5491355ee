"""What is saved as sources of bytes: elements, row-major, block by block, and never a whole item at once.

Torch is imported only by whoever has one of its tensors. Those on an accelerator are copied to pinned memory of the
host block by block, on a stream of their own, while blocks before them are being encoded. Which buffer may be filled
again, and when, is the business of `Ring`; only `CudaCopies` calls the device.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from streamxf import engine
from streamxf.buffers import flat_view
from streamxf.checkpoint.elements import Array, boxes_of_run, unsigned
from streamxf.errors import UnsupportedError
from streamxf.format.header import Kind
from streamxf.format.items import ITEMSIZES
from streamxf.stream.encoder import ByteSource, Load, MemorySource

if TYPE_CHECKING:
    import torch


class Content(NamedTuple):
    """The bytes of an item: a tensor's elements, or what ``torch.save`` writes of a tensor or an object."""

    source: ByteSource
    kind: Kind


class Gathered:
    """An array whose elements do not stand in memory as they are stored; workers gather them.

    - `array`: of NumPy or torch.
    - `view`: makes a flat array of its kind and dtype of memory.
    """

    def __init__(self, array: Any, size: int, view: Callable[[memoryview], Any]) -> None:
        self.size = size
        self.array = array
        self.view = view

    @classmethod
    def of_array(cls, array: Array) -> Gathered:
        """Of NumPy's, in any byte order."""
        import numpy as np

        dtype = array.dtype.newbyteorder("<")
        return cls(array, array.nbytes, lambda memory: np.frombuffer(memory, dtype))

    def load(self, start: int, stop: int) -> Load:
        return _Gathering(self, start, stop)


@dataclass(slots=True)
class _Gathering:
    source: Gathered
    start: int
    stop: int
    lent: bool = False

    def take(self, scratch: Callable[[int], memoryview]) -> memoryview:
        array = self.source.array
        first, last = self.start // array.itemsize, self.stop // array.itemsize
        memory = scratch(self.stop - self.start)
        out: Any = self.source.view(memory) if first < last else None
        for at, box in boxes_of_run(tuple(array.shape), first, last):
            shape = [stop - begin for begin, stop in box]
            part = out[at - first : at - first + math.prod(shape)].reshape(shape)
            part[...] = array[tuple(slice(begin, stop) for begin, stop in box)]
        return memory

    def release(self) -> None:
        """The memory belongs to the block."""


SMALL = 16 * 1024  # bytes; below, a copy of its own is cheaper than a buffer of the ring


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype in the format."""
    return str(dtype).removeprefix("torch.")


def has_elements(tensor: torch.Tensor) -> bool:
    """Whether a tensor is its elements and nothing else: torch's own kind, strided, of a dtype that the format has."""
    import torch

    return (
        type(tensor) is torch.Tensor
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and dtype_name(tensor.dtype) in ITEMSIZES
    )


def check_storable(tensor: torch.Tensor) -> None:
    """Raise UnsupportedError for a tensor that DCP cannot save, or that has no data."""
    if tensor.device.type == "meta":
        raise UnsupportedError(
            "the tensor is on the device 'meta', so it has no data to save; allocate it first (to_empty), and fill it"
        )
    if str(tensor.layout) != "torch.strided":
        raise UnsupportedError(
            f"DCP cannot save a tensor of layout {tensor.layout}: a load would leave its target as it was. Save it as "
            "dense, or its indices and values"
        )


def content_of(tensor: torch.Tensor, staging: Staging) -> Content:
    """A tensor, or what torch saves of one that is more than its elements. Raises as `check_storable`."""
    check_storable(tensor)
    if has_elements(tensor):
        return Content(source_of(tensor, staging), Kind.TENSOR)
    import torch

    tensor = tensor.cpu()
    if type(tensor) is torch.Tensor and tensor.untyped_storage().size() != tensor.nbytes:
        tensor = tensor.clone()  # in a storage of its own size
    sink = io.BytesIO()
    torch.save(tensor, sink)
    return Content(MemorySource(sink.getbuffer()), Kind.FRAMED)


def source_of(tensor: torch.Tensor, staging: Staging) -> ByteSource:
    """The elements of a tensor that has nothing else."""
    tensor = tensor.resolve_conj().resolve_neg()
    if tensor.is_contiguous():
        if tensor.device.type in COPIES and tensor.nbytes >= SMALL:
            return staging.source(tensor.reshape(-1))
        if tensor.device.type == "cpu":
            return MemorySource(memory_of(tensor))
    if tensor.device.type == "cpu":  # torch's copy_ would wake threads of its own, beside the workers
        return Gathered.of_array(array_of(tensor))
    return Gathered(tensor, tensor.nbytes, lambda memory: _tensor_in(memory, tensor.dtype))


def _tensor_in(memory: memoryview, dtype: torch.dtype) -> torch.Tensor:
    import torch

    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype)


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor."""
    import torch

    flat = tensor.reshape(-1)
    if flat.numel() < 2:  # whatever stride this has means nothing, but view() below insists on 1
        flat = flat.as_strided(flat.shape, (1,))
    return flat_view(flat.view(torch.uint8).numpy().data)


def array_of(tensor: torch.Tensor) -> Array:
    """A CPU tensor's memory as an array of unsigned numbers (or, of 16 bytes, complex ones) with its shape and strides;
    it has no conj or neg bit.
    """
    import torch

    plain = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
    size = tensor.element_size()
    return tensor.view(plain[size]).numpy().view(unsigned(size))


# -- accelerators ------------------------------------------------------------------------------------


class Ring:
    """Buffers, at most `count`, that are made when they are first needed, and lent out again when they come back.

    One thread takes them, and waits if all are lent out; any thread gives them back.
    """

    def __init__(self, make: Callable[[], torch.Tensor], count: int) -> None:
        self._make = make
        self._left = count
        self._free: SimpleQueue[torch.Tensor] = SimpleQueue()

    def take(self) -> torch.Tensor:
        try:
            return self._free.get_nowait()
        except Empty:
            if self._left:
                self._left -= 1
                return self._make()
            return self._free.get()

    def give(self, buffer: torch.Tensor) -> None:
        self._free.put(buffer)


class CudaCopies:
    """CUDA, and ROCm, which goes by the same name."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def memory(self, size: int) -> torch.Tensor:
        """`size` bytes on the host that the device can write to by itself."""
        import torch

        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)

    def begin(self) -> None:
        """Let copies that come see all that was computed before."""
        import torch

        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> Callable[[], None]:
        """Begin to copy bytes to the host; what it returns waits for them."""
        import torch

        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            source.record_stream(self._stream)  # its memory is not given to others before, even after an error
            copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            copied.record(self._stream)
        return copied.synchronize


COPIES: dict[str, Callable[[torch.device], CudaCopies]] = {"cuda": CudaCopies}


class Staging:
    """The buffers and streams of one file that is being written; for one thread."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._devices: dict[torch.device, tuple[CudaCopies, Ring]] = {}

    def source(self, flat: torch.Tensor) -> ByteSource:
        if flat.device not in self._devices:
            made = COPIES[flat.device.type](flat.device)
            # each worker has one, one is being filled, and one is put together
            count = engine.shared().at_once(self._block_size) + 2
            self._devices[flat.device] = made, Ring(lambda: made.memory(self._block_size), count)
        copies, ring = self._devices[flat.device]
        copies.begin()
        return DeviceSource(flat, copies, ring)


class DeviceSource:
    """Bytes on a device, which are copied block by block into the buffers of a ring."""

    def __init__(self, flat: torch.Tensor, copies: CudaCopies, ring: Ring) -> None:
        import torch

        self._flat = flat.view(torch.uint8)
        self.size = flat.nbytes
        self._copies = copies
        self._ring = ring

    def load(self, start: int, stop: int) -> Load:
        buffer = self._ring.take()
        wait = self._copies.copy(self._flat[start:stop], buffer[: stop - start])
        return _Copied(self._ring, buffer, stop - start, wait)


@dataclass(slots=True)
class _Copied:
    """A part of a buffer that is being filled."""

    ring: Ring
    buffer: torch.Tensor
    size: int
    wait: Callable[[], None]
    lent: bool = True

    def take(self, scratch: Callable[[int], memoryview]) -> memoryview:
        self.wait()
        return flat_view(self.buffer.numpy().data)[: self.size]

    def release(self) -> None:
        self.ring.give(self.buffer)
