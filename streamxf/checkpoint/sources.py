"""What is saved as sources of bytes: elements, row-major, block by block, and never a whole item at once.

Torch is imported only by whoever has one of its tensors. Those on an accelerator are copied to the host block by block,
through pinned memory, while blocks before them are being encoded; so are those of a load on their way back. The copies
have a stream of their own, which first waits for whatever the caller has put into its streams. Which buffer may be
filled again, and when, is the business of `Ring`; only `CudaCopies` calls the device.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from queue import Empty, SimpleQueue
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from weakref import WeakValueDictionary, finalize

from streamxf import engine
from streamxf.buffers import flat_view, scratches
from streamxf.errors import ParameterError, UnsupportedError
from streamxf.format.header import Kind
from streamxf.format.items import DTYPES, ITEMSIZES, boxes_of_run, elements_size, unsigned
from streamxf.lazy import numpy as np
from streamxf.lazy import torch
from streamxf.stream.encoder import ByteSource, Load, MemorySource

if TYPE_CHECKING:
    import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[Any]"


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
        dtype = array.dtype.newbyteorder("<")
        return cls(array, array.nbytes, lambda memory: np.frombuffer(memory, dtype))

    def load(self, start: int, stop: int) -> Load:
        return Load(partial(self._gather, start, stop))

    def _gather(self, start: int, stop: int, scratch: Callable[[int], memoryview]) -> memoryview:
        array = self.array
        first, last = start // array.itemsize, stop // array.itemsize
        memory = scratch(stop - start)
        out: Any = self.view(memory) if first < last else None
        for at, box in boxes_of_run(tuple(array.shape), first, last):
            shape = [stop - begin for begin, stop in box]
            part = out[at - first : at - first + math.prod(shape)].reshape(shape)
            part[...] = array[tuple(slice(begin, stop) for begin, stop in box)]
        return memory


class Chunks:
    """Bytes that come in pieces, each of which may be changed as soon as the next one is asked for."""

    def __init__(self, pieces: Iterable[Any], size: int) -> None:
        self.size = size
        self._pieces = map(flat_view, pieces)
        self._rest = memoryview(b"")

    def load(self, start: int, stop: int) -> Load:
        scratch = scratches.take()  # of its own, which is used again for another block
        out = memory = scratch.take(0, stop - start)
        while len(out):
            part = self._next()[: len(out)]
            out[: len(part)] = part
            out, self._rest = out[len(part) :], self._rest[len(part) :]
        if stop == self.size and (len(self._rest) or any(map(len, self._pieces))):
            raise ParameterError(f"the source has more bytes than the {self.size:,} of dtype and shape")
        return Load(lambda _: memory, partial(scratches.give, scratch))

    def _next(self) -> memoryview:
        while not len(self._rest):
            try:
                self._rest = next(self._pieces)
            except StopIteration:
                raise ParameterError(f"the source has fewer bytes than the {self.size:,} of dtype and shape") from None
        return self._rest


def pieces_of(file: Any, step: int) -> Iterator[memoryview]:
    """What a file has from where it stands to its end."""
    while data := file.read(step):
        yield memoryview(data)


SMALL = 16 * 1024  # bytes; below, a copy that is waited for is cheaper than a buffer of the ring


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype in the format."""
    name = str(dtype).removeprefix("torch.")
    return name if name in DTYPES else f"{name}:{8 * dtype.itemsize}"


def has_elements(tensor: torch.Tensor) -> bool:
    """Whether a tensor is its elements and nothing else: torch's own kind, strided, of a dtype that the format has."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and dtype_name(tensor.dtype) in ITEMSIZES
    )


def check_storable(tensor: torch.Tensor) -> None:
    """Raise UnsupportedError for a tensor that DCP cannot save, or that has no data; raises as `check_memory`."""
    if tensor.device.type == "meta":
        raise UnsupportedError(
            "the tensor is on the device 'meta', so it has no data to save; allocate it first (to_empty), and fill it"
        )
    if str(tensor.layout) != "torch.strided":
        raise UnsupportedError(
            f"DCP cannot save a tensor of layout {tensor.layout}: a load would leave its target as it was. Save it as "
            "dense, or its indices and values"
        )
    if type(tensor) is torch.Tensor:
        check_memory(tensor)


def check_memory(tensor: torch.Tensor) -> None:
    """Raise UnsupportedError for a tensor beyond its storage, which was freed or cut: torch would read anything."""
    count = tensor.numel()
    if count and not tensor.is_contiguous():
        count = 1 + sum([(size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)])
    held = tensor.untyped_storage().nbytes()
    if count and (tensor.storage_offset() + count) * tensor.element_size() > held:
        raise UnsupportedError(
            f"the tensor's storage was freed or cut: it has {held:,} bytes, which do not hold its elements. Save and "
            "load tensors while they have their memory (unsharded, or no longer offloaded)"
        )


def content_of(tensor: torch.Tensor, staging: Staging) -> Content:
    """A tensor, or what torch saves of one with more than elements; raises as `check_storable`."""
    check_storable(tensor)
    if has_elements(tensor):
        return Content(source_of(tensor, staging), Kind.TENSOR)
    tensor = tensor.cpu()
    if type(tensor) is torch.Tensor and tensor.untyped_storage().size() != tensor.nbytes:
        tensor = tensor.clone()  # in a storage of its own size
    sink = io.BytesIO()
    torch.save(tensor, sink)
    return Content(MemorySource(sink.getbuffer()), Kind.FRAMED)


def source_of(tensor: torch.Tensor, staging: Staging) -> ByteSource:
    """The elements of a tensor that has nothing else."""
    tensor = tensor.resolve_conj().resolve_neg()
    if tensor.nbytes >= SMALL and (staged := staging.source(tensor)) is not None:
        return staged
    if tensor.device.type == "cpu":  # torch's copy_ would wake threads of its own, beside the workers
        if tensor.is_contiguous():
            return MemorySource(flat_view(flat_bytes(tensor).numpy().data))
        return Gathered.of_array(array_of(tensor))
    return Gathered(tensor, tensor.nbytes, lambda data: torch.frombuffer(data, dtype=torch.uint8).view(tensor.dtype))


def array_of(tensor: torch.Tensor) -> Array:
    """A CPU tensor's memory as unsigned numbers (complex ones of 16 bytes), strides kept; without conj or neg bits."""
    return as_numbers(tensor).numpy().view(unsigned(tensor.element_size()))


_STEP = 2**20  # bytes that are read from a file at a time


# of ShardedTensors, DTensors, and whatever says to DCP by methods, or from torch 2.14.1 on by attributes, that it is
_OF_SHARDS = "local_shards", "device_mesh", "__create_chunk_list__", "global_offsets"


class Given(NamedTuple):
    """A tensor that is to be saved; `properties` are as in `TensorItem`."""

    dtype: str
    shape: tuple[int, ...]
    content: Content
    properties: Mapping[str, bool | str] = {}


def tensor_of(value: Any, dtype: Any, staging: Staging) -> Given | None:
    """The tensor that `value` is, its elements taken as those of `dtype` if there is one; None if it is not one. Raises
    UnsupportedError for elements that the format has not, and sharded tensors; ParameterError for a wrong `dtype`.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_torch(value, dtype, staging)
    array = _array_of(value)
    if array is None:
        return _of_torch(torch.from_dlpack(value), dtype, staging) if hasattr(value, "__dlpack__") else None
    name = array.dtype.name if dtype is None else _name(dtype, array.itemsize)
    if name not in ITEMSIZES:
        raise UnsupportedError(f"there are no tensors of dtype {name}; convert the array, or save it as a list")
    if (little := array.dtype.newbyteorder("<") == array.dtype) and array.flags.c_contiguous:
        source: ByteSource = MemorySource(flat_view(array.reshape(-1).view("u1").data))
    else:
        source = Gathered.of_array(array.view(unsigned(array.itemsize)) if little else array)
    return Given(name, tuple(array.shape), Content(source, Kind.TENSOR))


def tensor_in(pieces: Any, dtype: Any, shape: Sequence[int]) -> Given:
    """A tensor of pieces: a file, or bytes-like objects, one or many. ParameterError if dtype or shape cannot be."""
    name = _name(dtype)
    sizes = tuple(shape)
    if not all(type(size) is int and size >= 0 for size in sizes):
        raise ParameterError(f"shape={shape!r:.80}: it is a sequence of whole numbers from 0")
    with suppress(TypeError):
        pieces = [memoryview(pieces)]
    if hasattr(pieces, "read"):
        pieces = pieces_of(pieces, _STEP)
    if not isinstance(pieces, Iterable) or hasattr(pieces, "__dlpack__"):
        raise ParameterError("shape= goes with bytes, an iterable of them, or a file; an array has a shape already")
    return Given(name, sizes, Content(Chunks(pieces, elements_size(name, sizes)), Kind.TENSOR))


def _of_torch(value: Any, dtype: Any, staging: Staging) -> Given:
    if any(hasattr(value, name) for name in _OF_SHARDS):
        raise UnsupportedError(
            "the tensor is sharded over several processes, or a part of another one: save it with dcp.save, or give "
            "the whole of it (full_tensor)"
        )
    tensor = value.detach()
    name = dtype_name(tensor.dtype) if dtype is None else _name(dtype, tensor.itemsize)
    content = content_of(tensor, staging)
    flags = {"requires_grad": value.requires_grad, "pin_memory": tensor.is_pinned()}
    return Given(name, tuple(tensor.shape), content, {flag: True for flag, is_set in flags.items() if is_set})


def _array_of(value: Any) -> Array | None:
    """Anything that NumPy takes for an array without a copy; bytes are objects, as they are to DCP."""
    if isinstance(value, bytes | bytearray | str | int | float):
        return None
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        return value if isinstance(value, numpy.ndarray) else None
    if hasattr(value, "__dlpack__") or hasattr(value, "__array_interface__"):
        with suppress(BufferError, RuntimeError, TypeError, ValueError):  # of a device, or a dtype that dlpack has not
            return np.from_dlpack(value) if hasattr(value, "__dlpack__") else np.asarray(value)
        return np.asarray(value) if hasattr(value, "__array__") else None
    try:
        view = memoryview(value)
    except TypeError:
        return None
    return np.asarray(view)


def _name(dtype: Any, itemsize: int | None = None) -> str:
    """The name of a dtype that was given, for elements of `itemsize` bytes."""
    name = str(dtype).removeprefix("torch.")
    if name not in ITEMSIZES:
        raise ParameterError(f"dtype={dtype!r:.80}: it is the name of a dtype, such as 'bfloat16'")
    if itemsize not in (None, ITEMSIZES[name]):
        raise ParameterError(
            f"dtype={name!r}: the array's elements have {itemsize} bytes, and its own {ITEMSIZES[name]}"
        )
    return name


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


class DeviceMemory:
    """The memory of a tensor without gaps, which is filled block by block from the buffers of a ring."""

    def __init__(self, tensor: torch.Tensor, copies: CudaCopies, ring: Callable[[int], Ring]) -> None:
        self.shape = tuple(tensor.shape)
        self.nbytes = tensor.nbytes
        self._flat = flat_bytes(tensor)
        self._copies = copies
        self._ring = ring

    def fill(self, decode: Callable[[memoryview], None], length: int, part: slice, at: int) -> None:
        """Decode a block of `length` bytes, and bring a part of it to `at`; in any thread. The copy is begun, and
        `Staging.end` or `wait` comes after all of them.
        """
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
