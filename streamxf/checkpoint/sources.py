"""What is saved as sources of bytes: elements, row-major, block by block, and never a whole item at once.

Torch is imported only by whoever has one of its tensors. Those on an accelerator are copied to the host block by block,
while blocks before them are being encoded.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, NamedTuple

from streamxf.buffers import flat_view, scratches
from streamxf.checkpoint.elements import Array, boxes_of_run, unsigned
from streamxf.checkpoint.staging import Staging, as_numbers, flat_bytes
from streamxf.errors import ParameterError, UnsupportedError
from streamxf.format.header import Kind
from streamxf.format.items import ITEMSIZES, elements_size
from streamxf.lazy import numpy as np
from streamxf.lazy import torch
from streamxf.stream.encoder import ByteSource, Load, MemorySource


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
    return str(dtype).removeprefix("torch.")


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
    return Given(name, tuple(array.shape), Content(_source_of(array), Kind.TENSOR))


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


def _source_of(array: Array) -> ByteSource:
    little = array.dtype.newbyteorder("<") == array.dtype
    if little and array.flags.c_contiguous:
        return MemorySource(flat_view(array.reshape(-1).view("u1").data))
    return Gathered.of_array(array.view(unsigned(array.itemsize)) if little else array)


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
