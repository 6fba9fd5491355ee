"""`Staging`: tensors on an accelerator go to the host block by block, while blocks before them are being encoded.

The copies run on a stream of their own, into pinned memory, and a block is encoded as soon as the event after its copy
has come. Which buffer may be filled again, and when, is the business of `Ring`; only `CudaCopies` calls the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import torch

from streamxf import engine
from streamxf.buffers import flat_view
from streamxf.stream.encoder import Load

SMALL = 16 * 1024  # bytes; below, a copy of its own is cheaper


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory for one block."""

    memory: memoryview
    handle: Any


class Ring:
    """Buffers that are made when they are first needed, and lent out again when they come back.

    One thread takes them; any thread gives them back.

    Parameters
    ----------
    make : callable
        Makes a buffer.
    count : int
        The most that are made.
    """

    def __init__(self, make: Callable[[], Buffer], count: int) -> None:
        self._make = make
        self._left = count
        self._free: SimpleQueue[Buffer] = SimpleQueue()

    def take(self) -> Buffer:
        """A free buffer; waits for one if all are lent out."""
        try:
            return self._free.get_nowait()
        except Empty:
            if self._left:
                self._left -= 1
                return self._make()
            return self._free.get()

    def give(self, buffer: Buffer) -> None:
        """Say that `buffer` may be filled again."""
        self._free.put(buffer)


class Copies(Protocol):
    """What a device does for a save."""

    def memory(self, size: int) -> torch.Tensor:
        """`size` bytes on the host that the device can write to by itself."""

    def begin(self) -> None:
        """Let copies that come see all that was computed before."""

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> Callable[[], None]:
        """Begin to copy bytes to the host; what it returns waits for them."""


class CudaCopies:
    """CUDA, and ROCm, which goes by the same name."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def memory(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)

    def begin(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> Callable[[], None]:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            source.record_stream(self._stream)  # its memory is not given to others before, even after an error
            copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            copied.record(self._stream)
        return copied.synchronize


COPIES: dict[str, Callable[[torch.device], Copies]] = {"cuda": CudaCopies}


class Staging:
    """The buffers and streams of one file that is being written; for one thread."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._devices: dict[torch.device, tuple[Copies, Ring]] = {}

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` should go this way: it is on a device that can, and is worth it."""
        return tensor.device.type in COPIES and tensor.nbytes >= SMALL

    def source(self, flat: torch.Tensor) -> DeviceSource:
        """The bytes of a contiguous tensor of one dimension."""
        if flat.device not in self._devices:
            copies = COPIES[flat.device.type](flat.device)
            # each worker has one, one is being filled, and one is put together
            self._devices[flat.device] = copies, Ring(self._maker(copies), engine.shared().workers + 2)
        copies, ring = self._devices[flat.device]
        copies.begin()
        return DeviceSource(flat.view(torch.uint8), copies, ring)

    def _maker(self, copies: Copies) -> Callable[[], Buffer]:
        def make() -> Buffer:
            memory = copies.memory(self._block_size)
            return Buffer(flat_view(memory.numpy().data), memory)

        return make


class DeviceSource:
    """Bytes on a device, which are copied block by block into the buffers of a ring."""

    def __init__(self, flat: torch.Tensor, copies: Copies, ring: Ring) -> None:
        self.size = flat.numel()
        self._flat = flat
        self._copies = copies
        self._ring = ring

    def load(self, start: int, stop: int) -> Load:
        buffer = self._ring.take()
        wait = self._copies.copy(self._flat[start:stop], buffer.handle[: stop - start])
        return _Copied(self._ring, buffer, stop - start, wait)


class _Copied:
    """A part of a buffer that is being filled."""

    __slots__ = ("_buffer", "_ring", "_size", "_wait")

    lent = True

    def __init__(self, ring: Ring, buffer: Buffer, size: int, wait: Callable[[], None]) -> None:
        self._ring = ring
        self._buffer = buffer
        self._size = size
        self._wait = wait

    def take(self, scratch: Callable[[int], memoryview]) -> memoryview:
        self._wait()
        return self._buffer.memory[: self._size]

    def release(self) -> None:
        self._ring.give(self._buffer)
