"""Tensors of accelerators on their way to the host and back, through pinned memory, while other blocks are coded.

The copies have a stream of their own, which first waits for whatever the caller has put into its streams. Which buffer
may be filled again, and when, is the business of `Ring`; only `CudaCopies` calls the device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, get_ident
from typing import Any
from weakref import WeakValueDictionary, finalize

from streamxf import engine
from streamxf.buffers import flat_view
from streamxf.checkpoint.elements import BlockTarget, boxes_of_run
from streamxf.lazy import torch
from streamxf.stream.encoder import ByteSource, Load

RING_BYTES = 64 * 2**20  # the most that all saves and loads of a process pin for blocks of one size
_LEAST_LOG2 = 20  # of a buffer's bytes
Copy = tuple["torch.Tensor", "torch.Tensor"]  # from where, and to where


def _nothing() -> None:
    return None


class Ring:
    """Buffers of one size, at most `count`, that are made when they are first needed, and lent out again when they come
    back. Any thread takes and gives; one that takes waits if all are lent out.
    """

    def __init__(self, make: Callable[[], torch.Tensor], count: int) -> None:
        self._make = make
        self._unmade = iter(range(count))
        self._free: SimpleQueue[tuple[torch.Tensor | None, Callable[[], None]]] = SimpleQueue()

    def take(self, *, patient: bool = True) -> torch.Tensor | None:
        """A buffer; None if all are lent out, unless `patient`."""
        try:
            buffer, wait = self._free.get_nowait()
        except Empty:
            if next(self._unmade, None) is not None:
                buffer, wait = None, _nothing
            elif patient:
                buffer, wait = self._free.get()
            else:
                return None
        try:
            wait()
            return self._make() if buffer is None else buffer
        except BaseException:
            self.give(None)
            raise

    def give(self, buffer: torch.Tensor | None, wait: Callable[[], None] = _nothing) -> None:
        """Give a buffer back, for which whoever takes it waits; or None for one that is lost, so that another may be
        made. torch gives the memory of that to nobody before the copies in it are over.
        """
        self._free.put((buffer, wait))


_rings: WeakValueDictionary[Any, Ring] = WeakValueDictionary()  # of all saves and loads; gone with the last of them
_sharing = Lock()


class CudaCopies:
    """CUDA, and ROCm, which goes by the same name."""

    def __init__(self, device: torch.device) -> None:
        self._torch: Any = torch
        self._device = device
        self._stream = self._torch.cuda.Stream(device)

    @staticmethod
    def memory(size: int) -> torch.Tensor:
        """`size` bytes on the host that the device can reach by itself; if there are none, others, which are slower."""
        with suppress(RuntimeError):
            return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
        return torch.empty(size, dtype=torch.uint8, device="cpu")

    def begin(self) -> None:
        """Let copies that come see all that this thread has begun before."""
        self._stream.wait_stream(self._torch.cuda.current_stream(self._device))

    def copy(self, copies: Iterable[Copy], tensor: torch.Tensor) -> Callable[[], None]:
        """Begin to copy bytes from or to parts of `tensor`; what it returns waits for them. Any thread may call it."""
        torch, stream = self._torch, self._stream
        # a thread's own device stays as it was, and is not woken; a target may only be changed in inference mode
        with torch.cuda.device(self._device), torch.cuda.stream(stream), torch.inference_mode():
            tensor.record_stream(stream)  # its memory is not given to others before, even after an error
            for source, target in copies:
                target.copy_(source, non_blocking=True)
            copied = torch.cuda.Event(blocking=True)
            copied.record(stream)
        return copied.synchronize  # type: ignore[no-any-return]

    def end(self) -> None:
        """Let what this thread begins from now on see all that was copied."""
        self._torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def wait(self) -> None:
        """Wait until all is copied, so that every stream sees it."""
        self._stream.synchronize()


COPIES: dict[str, Callable[[torch.device], CudaCopies]] = {"cuda": CudaCopies}


class Staging:
    """The buffers and streams of one save or load; made by the thread that calls for that, used by any."""

    def __init__(self) -> None:
        self._devices: dict[torch.device, CudaCopies] = {}
        self._rings: dict[Any, Ring] = {}
        self._thread = get_ident()
        torch: Any = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            cuda = torch.cuda
            self._device = cuda.current_device()
            current = [(cuda.current_stream(n), cuda.default_stream(n)) for n in range(cuda.device_count())]
            self._streams = [stream for stream, default in current if stream != default]

    def adopt(self) -> None:
        """Have a thread that works for this save alone use the caller's streams: what was begun there comes first."""
        if self._thread != get_ident() and hasattr(self, "_streams"):
            for stream in self._streams:
                torch.cuda.set_stream(stream)
            torch.cuda.set_device(self._device)

    def source(self, tensor: torch.Tensor) -> ByteSource | None:
        """The bytes of a tensor, row-major; None where it is on no device whose copies are known."""
        copies = self._copies(tensor)
        return None if copies is None else DeviceSource(tensor, copies, partial(self._ring, copies))

    def memory(self, tensor: torch.Tensor) -> DeviceMemory | None:
        """What takes the elements of a tensor; None as for `source`, and where they do not lie one after another."""
        copies = self._copies(tensor) if tensor.is_contiguous() else None
        return None if copies is None else DeviceMemory(tensor, copies, partial(self._ring, copies))

    def end(self, device: torch.device) -> None:
        """As `CudaCopies.end`."""
        if device in self._devices:
            self._devices[device].end()

    def wait(self) -> None:
        """As `CudaCopies.wait`, for all devices."""
        for copies in self._devices.values():
            copies.wait()

    def _copies(self, tensor: torch.Tensor) -> CudaCopies | None:
        make, device = COPIES.get(tensor.device.type), tensor.device
        if make is None:
            return None
        copies = self._devices.get(device) or self._devices.setdefault(device, make(device))
        copies.begin()
        return copies

    def _ring(self, copies: CudaCopies, length: int) -> Ring:
        """That whose buffers take a block of `length` bytes."""
        size = 1 << max(_LEAST_LOG2, (length - 1).bit_length())
        key = copies.memory, size
        if key not in self._rings:
            # each worker has one, as many are copied to or wait for their turn
            count = max(1, min(RING_BYTES // size, 2 * engine.shared().workers + 2))
            with _sharing:
                self._rings[key] = _rings.setdefault(key, Ring(partial(copies.memory, size), count))
        return self._rings[key]


class DeviceSource:
    """The bytes of a tensor, which are copied block by block into the buffers of a ring."""

    def __init__(self, tensor: torch.Tensor, copies: CudaCopies, ring: Callable[[int], Ring]) -> None:
        self.size = tensor.nbytes
        self._tensor = as_numbers(tensor.view(-1) if tensor.is_contiguous() else tensor)
        self._copies = copies
        self._ring = ring

    def load(self, start: int, stop: int) -> Load:
        tensor, ring = self._tensor, self._ring(stop - start)
        buffer = ring.take()
        assert buffer is not None
        try:
            part = buffer[: stop - start]
            wait = self._copies.copy(self._parts(start, stop, part), tensor)
        except BaseException:
            ring.give(None)
            raise

        def take(_: object, tensor: object = tensor) -> memoryview:  # which has to stay until it was copied
            wait()
            return flat_view(part.numpy().data)

        dropped = finalize(take, ring.give, None)  # a block that is not wanted any more may be on its way
        dropped.atexit = False

        def release() -> None:
            if dropped.detach() is not None:
                ring.give(buffer)

        return Load(take, release)

    def _parts(self, start: int, stop: int, part: torch.Tensor) -> Iterator[Copy]:
        tensor, itemsize = self._tensor, self._tensor.itemsize
        for at, box in boxes_of_run(tensor.shape, start // itemsize, stop // itemsize):
            source = tensor[tuple(slice(*span) for span in box)]
            first = at * itemsize - start
            yield source, part[first : first + source.nbytes].view(tensor.dtype).view(source.shape)


class DeviceMemory(BlockTarget):
    """The memory of a tensor without gaps, which is filled block by block from the buffers of a ring."""

    def __init__(self, tensor: torch.Tensor, copies: CudaCopies, ring: Callable[[int], Ring]) -> None:
        self.shape = tuple(tensor.shape)
        self.nbytes = tensor.nbytes
        self._flat = flat_bytes(tensor)
        self._copies = copies
        self._ring = ring

    def fill(self, decode: Callable[[memoryview], None], length: int, part: slice, at: int) -> None:
        """As there; the copy is begun, and `Staging.end` or `wait` comes after all of them."""
        ring = self._ring(length)
        # no worker waits for a buffer that a save has filled, whose block waits for a worker
        lent = ring.take(patient=False)
        buffer = torch.empty(length, dtype=torch.uint8, device="cpu") if lent is None else lent
        try:
            decode(flat_view(buffer[:length].numpy().data))
            target = self._flat[at : at + part.stop - part.start]
            wait = self._copies.copy([(buffer[part], target)], self._flat)
        except BaseException:
            if lent is not None:
                ring.give(None)
            raise
        wait() if lent is None else ring.give(lent, wait)


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor."""
    flat = tensor if tensor.dim() == 1 else tensor.reshape(-1)
    if flat.numel() < 2:  # whatever stride this has means nothing, but view() below insists on 1
        flat = flat.as_strided(flat.shape, (1,))
    return flat.view(torch.uint8)


def as_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's memory in its shape and strides as numbers that every device can move; it has no conj or neg bit."""
    plain = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
    return tensor.view(plain[tensor.element_size()])
