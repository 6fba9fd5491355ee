"""Tensors in what ``torch.save`` wrote: where their elements are, and what torch would be called with to make them.

Each function here gets the check and the arguments of a call, and gives None if torch.save never calls it so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from streamxf.format.items import ITEMSIZES, WITHOUT_ELEMENTS
from streamxf.format.limits import MAX_INT, MAX_NDIM
from streamxf.torchsave.archive import NotSavedByTorch
from streamxf.torchsave.unpickler import Foreign, Name, Size, StandIn, may_have

_OF_OTHERS = {name: {"bits16": 2, "qint32": 4, "bcomplex32": 4}.get(name, 1) for name in WITHOUT_ELEMENTS}
_DTYPES = {f"torch.{name}": size for name, size in (ITEMSIZES | _OF_OTHERS).items()}
STORAGES = {
    "torch.DoubleStorage": "float64",
    "torch.FloatStorage": "float32",
    "torch.HalfStorage": "float16",
    "torch.BFloat16Storage": "bfloat16",
    "torch.LongStorage": "int64",
    "torch.IntStorage": "int32",
    "torch.ShortStorage": "int16",
    "torch.CharStorage": "int8",
    "torch.ByteStorage": "uint8",
    "torch.BoolStorage": "bool",
    "torch.ComplexDoubleStorage": "complex128",
    "torch.ComplexFloatStorage": "complex64",
    "torch.UntypedStorage": "uint8",
    "torch.storage.UntypedStorage": "uint8",
    **{f"torch.{kind}Storage": kind.lower() for kind in ("QInt8", "QUInt8", "QUInt4x2", "QUInt2x4", "QInt32")},
}
"""The dtype of each kind of storage."""
_TENSORS = ("torch.Tensor", "torch.nn.parameter.Parameter")
_CHANNELS = ("torch.per_channel_affine", "torch.per_channel_affine_float_qparams")
VALUES = {*STORAGES, *_DTYPES, *_TENSORS, "torch.per_tensor_affine", *_CHANNELS}
"""Names that stand for themselves, and are never called."""


class StorageRef(StandIn):
    """Where tensors lie: a record of the archive, of `nbytes`."""

    __slots__ = ("dtype", "nbytes", "record")

    def __init__(self, dtype: str, record: str, nbytes: int) -> None:
        self.dtype = dtype
        self.record = record
        self.nbytes = nbytes


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor(StandIn):
    """A plain tensor whose elements are in a record of the archive; its first one at `start`, in bytes."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    record: str
    start: int

    @property
    def itemsize(self) -> int:
        return ITEMSIZES[self.dtype]

    @property
    def extent(self) -> int:
        """Bytes of the record that it spans, from its first element to its last."""
        return _extent(self.shape, self.strides, self.itemsize)

    @property
    def is_row_major(self) -> bool:
        """Whether its elements stand one after the other, the last dimension's first; so do those of an empty one."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size > 1 and stride != expected:
                return False
            expected *= size
        return True


class OtherTensor(Foreign):
    """A tensor, or parameter, that only torch can make. `count` is the number of its elements; None if they may be more
    than its storage has.
    """

    __slots__ = ("count",)

    def __init__(self, count: int | None = None) -> None:
        super().__init__("torch.Tensor")
        self.count = count

    fill = StandIn.fill


KINDS = (StoredTensor, OtherTensor)


def find_storage(sizes: dict[str, int], kinds: dict[str, str], reference: Any) -> StorageRef:
    """What a pickle refers to outside itself, in an archive whose records have these `sizes`; `kinds` are those of the
    storages that it referred to before.
    """
    fields: tuple[Any, ...] = reference if type(reference) is tuple else ()
    if [*map(type, fields)] != [str, Name, str, str, int] or fields[0] != "storage" or fields[1].name not in STORAGES:
        raise NotSavedByTorch("its pickle refers to something that is not a storage")
    _, kind, key, _, count = fields
    if kinds.setdefault(key, kind.name) != kind.name:  # torch makes it once, of the kind that comes first
        raise NotSavedByTorch("its pickle refers to one storage as two of different kinds")
    record, dtype = f"data/{key}", STORAGES[kind.name]
    nbytes = sizes.get(record)
    if nbytes is None:
        raise NotSavedByTorch(f"its record {record!r:.80} is missing")
    if nbytes != count * _DTYPES[f"torch.{dtype}"]:
        raise NotSavedByTorch(
            f"its pickle says that a storage has {count} elements, and its file has {nbytes} bytes of it"
        )
    return StorageRef(dtype, record, nbytes)


def _view(
    _: Any, storage: Any, offset: Any, sizes: Any, strides: Any, grad: Any, hooks: Any, *rest: Any, typed: bool = False
) -> Any:
    """A tensor inside its storage, which torch would enlarge for it."""
    if type(storage) is not StorageRef or hooks or not _are_numbers((offset,)):  # hooks, which autograd would call
        return None
    dtype = storage.dtype
    if typed:
        first, *rest = rest or [None]  # type: ignore[assignment]
        dtype = first.name.removeprefix("torch.") if type(first) is Name and first.name in _DTYPES else ""
    itemsize = _DTYPES.get(f"torch.{dtype}")
    if itemsize is None or not _are_numbers(sizes) or not _are_numbers(strides) or len(sizes) != len(strides):
        return None
    start = offset * itemsize
    extent = _extent(sizes, strides, itemsize)
    if extent and start + extent > storage.nbytes:
        raise NotSavedByTorch("its pickle makes a tensor larger than its storage")
    if dtype in ITEMSIZES and not any(rest):  # which would be a conj or neg bit, or say that it is something else
        return StoredTensor(dtype, tuple(sizes), tuple(strides), storage.record, start)
    return OtherTensor(_within(math.prod(sizes), itemsize, storage.nbytes))


def _extent(sizes: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> int:
    if not math.prod(sizes):
        return 0
    return (sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) + 1) * itemsize


def _within(count: int, itemsize: int, nbytes: int) -> int | None:
    return count if count * itemsize <= nbytes else None


def _count(check: Any, tensor: Any) -> int | None:
    if type(tensor) is StoredTensor:
        return _within(math.prod(tensor.shape), tensor.itemsize, check.sizes[tensor.record])
    count: int | None = tensor.count
    return count


def _quantized(check: Any, storage: Any, offset: Any, sizes: Any, strides: Any, quantizer: Any, *rest: Any) -> Any:
    """Torch takes memory for all elements, and iterates over scales that are no tensors: one for each channel."""
    made = _view(check, storage, offset, sizes, strides, *rest)
    if made is None or _count(check, made) is None or type(quantizer) is not tuple:
        return None
    made = OtherTensor(_count(check, made))
    numbers = quantizer[1:]
    if [type(number) for number in numbers] == [float, int]:
        return made
    if len(numbers) != 3 or type(numbers[2]) is not int or not 0 <= numbers[2] < len(sizes):
        return None
    fits = all(isinstance(each, KINDS) and _count(check, each) == sizes[numbers[2]] for each in numbers[:2])
    return made if fits else None


def _copied(check: Any, *arguments: Any) -> Any:
    """What torch copies the elements of stored tensors for, one by one: a tensor of another device, a sparse one."""
    parts = [part for each in arguments for part in (each if type(each) is tuple else (each,))]
    counts = [_count(check, part) for part in parts if isinstance(part, KINDS)]
    if not counts or None in counts:
        return None
    check.steps.spend(sum(counts) // 16)  # type: ignore[arg-type]
    return OtherTensor()


def _parameter(_: Any, data: Any, grad: Any, hooks: Any, state: Any = None) -> Any:
    return data if isinstance(data, KINDS) and not hooks and _suits_tensors(state) else None


def _subclass(check: Any, function: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """A tensor with attributes, or of a class of the caller's. The function is called as any other is."""
    made = check.call(function, arguments)
    if type(kind) is not Name:
        return None
    if kind.make is None:
        return Foreign(kind.name) if isinstance(made, StoredTensor | Foreign) else None
    return OtherTensor(_count(check, made)) if _suits(made, kind, state) else None


def _suits(made: Any, kind: Name, state: Any) -> bool:
    return isinstance(made, KINDS) and kind.name in _TENSORS and _suits_tensors(state)


def _wrapper(_: Any, kind: Any, *rest: Any) -> Foreign | None:
    return Foreign(kind.name) if type(kind) is Name and kind.make is None else None


def _are_numbers(value: Any) -> bool:
    if type(value) not in (tuple, Size) or len(value) > MAX_NDIM:
        return False
    return all(type(number) is int and 0 <= number <= MAX_INT for number in value)


def _suits_tensors(state: Any) -> bool:
    if state is None:
        return True
    import torch

    return may_have(torch.nn.Parameter, state)


def _size(_: Any, sizes: Any) -> Size | None:
    return Size(sizes) if _are_numbers(sizes) else None


OUTLINED: dict[str, Callable[..., Any]] = {
    "torch.Size": _size,
    "torch._utils._rebuild_tensor_v2": _view,
    "torch._utils._rebuild_tensor_v3": partial(_view, typed=True),
    "torch._utils._rebuild_parameter": _parameter,
}
"""What makes plain tensors."""
TENSORS: dict[str, Callable[..., Any]] = {
    **OUTLINED,
    "torch.device": lambda _, kind, index=0: StandIn() if (type(kind), type(index)) == (str, int) else None,
    "torch.serialization._get_layout": lambda _, layout: StandIn() if type(layout) is str else None,
    "torch._tensor._rebuild_from_type_v2": _subclass,
    "torch._utils._rebuild_qtensor": _quantized,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._utils._rebuild_sparse_tensor": _copied,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _copied,
    "torch._utils._rebuild_meta_tensor_no_storage": lambda _, *facts: OtherTensor(),  # without elements
    "torch._utils._rebuild_wrapper_subclass": _wrapper,
}
