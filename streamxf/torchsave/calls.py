"""What a pickle of ``torch.save`` may call, and on what: for tensors, plain data, NumPy's numbers and ``io.BytesIO``.

Each function here gets the check and the arguments of a call, and gives None if torch.save never calls it so. What it
gives says where the elements of a tensor are, and what torch would be called with to make it.

NumPy's own functions cannot be let loose on a stranger's pickle: its ``scalar`` unpickles what it is given for a dtype
of objects, and a dtype can be set to anything after it was made.
"""

from __future__ import annotations

import math
import re
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from streamxf.format.items import DTYPES, ITEMSIZES, is_dtype_name
from streamxf.format.limits import MAX_INT, MAX_NDIM
from streamxf.lazy import numpy as np
from streamxf.lazy import pattern, torch
from streamxf.torchsave.archive import STORAGES, NotSavedByTorch
from streamxf.torchsave.unpickler import Foreign, Name, Size, StandIn, Unpickler, may_have

_DTYPES = {f"torch.{name}": math.ceil(width) for name, width in DTYPES.items()}
_TENSORS = ("torch.Tensor", "torch.nn.parameter.Parameter")
_CHANNELS = ("torch.per_channel_affine", "torch.per_channel_affine_float_qparams")
_VALUES = {*STORAGES, *_DTYPES, *_TENSORS, "torch.per_tensor_affine", *_CHANNELS}
"""Names that stand for themselves, and are never called."""


@dataclass(slots=True, eq=False)
class StorageRef(StandIn):
    """Where tensors lie: a record of the archive, of `nbytes`."""

    dtype: str
    record: str
    nbytes: int


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
    """A tensor or parameter that only torch can make. `count` of its elements is None if its storage may hold fewer."""

    __slots__ = ("count",)

    def __init__(self, count: int | None = None, *parts: object) -> None:
        super().__init__("torch.Tensor", *parts)
        self.count = count

    fill = StandIn.fill


KINDS = (StoredTensor, OtherTensor)


def dtype_in(name: str) -> str:
    """The dtype that a name in a pickle is, or that storages of this name have; "" for other names."""
    return STORAGES.get(name) or (name.removeprefix("torch.") if name in _DTYPES else "")


def itemsize_in(kind: str) -> int:
    """Bytes of an element in a storage of that kind."""
    return _DTYPES[f"torch.{STORAGES[kind]}"]


def find_storage(sizes: dict[str, int], kinds: dict[str, str], reference: Any, *, declared: bool = False) -> StorageRef:
    """What a pickle refers to outside itself, in an archive whose records have these `sizes`; `kinds` are those of the
    storages that it referred to before. With `declared`, the pickle says which records there are, and they are added.
    """
    fields: tuple[Any, ...] = reference if type(reference) is tuple else ()
    if fields[5:] == (None,):  # before torch 1.6; else the part of a storage, which nothing has saved since torch 0.4
        fields = fields[:5]
    if [*map(type, fields)] != [str, Name, str, str, int] or fields[0] != "storage" or fields[1].name not in STORAGES:
        raise NotSavedByTorch("its pickle refers to something that is not a storage")
    _, kind, key, _, count = fields
    record, dtype = f"data/{key}", STORAGES[kind.name]
    expected = count * itemsize_in(kind.name)
    nbytes = sizes.setdefault(record, expected) if declared else sizes.get(record)
    if nbytes is None:
        raise NotSavedByTorch(f"its record {record!r:.80} is missing")
    if nbytes != expected or count < 0:
        raise NotSavedByTorch(
            f"its pickle says that a storage has {count} elements, and its file has {nbytes} bytes of it"
        )
    # torch makes it once, of the kind that comes first; one without bytes each time
    if kinds.setdefault(key, kind.name) != kind.name and nbytes:
        raise NotSavedByTorch("its pickle refers to one storage as two of different kinds")
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
        if type(first) is Name and first.name not in CALLS and is_dtype_name(first.name.removeprefix("torch.")):
            return OtherTensor(None, storage)  # of a dtype that is not known here, and so not allowed
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
    return OtherTensor(_within(math.prod(sizes), itemsize, storage.nbytes), storage)


def _extent(sizes: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> int:
    if not math.prod(sizes):
        return 0
    return (sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) + 1) * itemsize


def _within(count: int, itemsize: int, nbytes: int) -> int | None:
    return count if count * itemsize <= nbytes else None


def _count(check: Any, tensor: Any) -> int | None:
    if type(tensor) is StoredTensor:
        return _within(math.prod(tensor.shape), tensor.itemsize, check.sizes[tensor.record])
    return tensor.count  # type: ignore[no-any-return]


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
    suits = isinstance(made, KINDS) and kind.name in _TENSORS and _suits_tensors(state)
    return OtherTensor(_count(check, made)) if suits else None


def _attributed(check: Any, function: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """A plain tensor with attributes of Python's, of which the elements are read."""
    made = check.call(function, arguments)
    is_plain = type(made) is StoredTensor and type(kind) is Name and kind.name in _TENSORS
    return made if is_plain and _suits_tensors(state) else None


def _are_numbers(value: Any) -> bool:
    return type(value) in (tuple, Size) and all(type(number) is int and 0 <= number <= MAX_INT for number in value)


def _suits_tensors(state: Any) -> bool:
    return state is None or may_have(torch.nn.Parameter, state)


def _size(_: Any, sizes: Any) -> Size | None:
    return Size(sizes) if _are_numbers(sizes) else None


_LATIN = ("latin1", "latin-1")
# bool, integers, floats and complex numbers, by their size in bytes; no objects, strings, dates or records
_NUMERIC = pattern(r"b1|[iu][1248]|f(?:2|4|8|12|16)|c(?:8|16|24|32)", re.ASCII)


def _encode(_: Any, text: Any, encoding: Any) -> bytes | None:
    """Bytes. By another encoding they could grow with each call."""
    return text.encode("latin-1") if type(text) is str and encoding in _LATIN else None


def _bytearray(_: Any, data: Any = b"", encoding: Any = None) -> bytearray | None:
    """Of bytes, and not of a size."""
    if type(data) is str and encoding in _LATIN:
        return bytearray(data, "latin-1")
    return bytearray(data) if type(data) is bytes and encoding is None else None


def _ordered(check: Any, pairs: Any = None) -> OrderedDict[Any, Any] | None:
    """Without entries, or of a list of lists of two, as Python 2 pickled it."""
    made: OrderedDict[Any, Any] = OrderedDict()
    for pair in pairs if type(pairs) is list else ():
        if type(pair) is not list or len(pair) != 2:
            return None
        check.steps.charge_key(made, pair[0])
        made[pair[0]] = pair[1]
    return made if pairs is None or type(pairs) is list else None


@dataclass(slots=True, eq=False)
class _FilledOnce(StandIn):
    filled: bool = field(default=False, init=False)


@dataclass(slots=True, eq=False)
class _DType(_FilledOnce):
    real: Any

    def fill(self, unpickler: Unpickler, state: Any) -> None:
        version, order, *rest = state
        if self.filled or version != 3 or order not in tuple("<>|=") or rest != [None, None, None, -1, -1, 0]:
            raise NotSavedByTorch("its pickle makes a NumPy dtype that is not one of numbers")
        self.real = self.real.newbyteorder(order)
        self.filled = True


def _dtype(_: Any, code: Any, align: Any, copy: Any) -> _DType:
    if type(code) is not str or _NUMERIC.fullmatch(code) is None or (align, copy) != (False, True):
        raise NotSavedByTorch("its pickle makes a NumPy dtype that is not one of numbers")
    return _DType(np.dtype(code))


class _Array(_FilledOnce):
    """A ``numpy.ndarray`` of numbers."""

    __slots__ = ()

    def fill(self, unpickler: Unpickler, state: Any) -> None:
        unpickler.steps.charge(state)
        version, shape, dtype, fortran, data = state
        kinds = type(version), type(shape), type(dtype), type(fortran), type(data)
        if kinds != (int, tuple, _DType, bool, bytes) or version != 1 or self.filled or not dtype.filled:
            raise NotSavedByTorch("its pickle makes a NumPy array in another way than numbers are stored")
        if len(shape) > MAX_NDIM or any(type(size) is not int or size < 0 for size in shape):
            raise NotSavedByTorch("its pickle makes a NumPy array of an impossible shape")
        if math.prod(shape) * dtype.real.itemsize != len(data):
            raise NotSavedByTorch("its pickle makes a NumPy array of more or fewer bytes than are stored")
        self.filled = True


def _reconstruct(_: Any, kind: Any, shape: Any, code: Any) -> _Array | None:
    is_array = type(kind) is Name and kind.name == "numpy.ndarray"
    return _Array() if is_array and type(shape) is tuple and shape == (0,) and code == b"b" else None


def _scalar(_: Any, dtype: Any, data: Any) -> Any:
    if type(dtype) is not _DType or not dtype.filled or type(data) is not bytes or len(data) != dtype.real.itemsize:
        raise NotSavedByTorch("its pickle makes a NumPy scalar of more or fewer bytes than its dtype has")
    return scalar(dtype.real, data)


def scalar(dtype: Any, data: bytes) -> Any:
    """A NumPy scalar, as its own function of this name makes it, which unpickles those of objects."""
    return np.frombuffer(data, dtype)[0]


class _Bytes(_FilledOnce):
    """An ``io.BytesIO`` without attributes. DCP asks whether it is Stateful, by which CPython makes an empty dict."""

    __slots__ = ()

    def fill(self, unpickler: Unpickler, state: Any) -> None:
        unpickler.steps.charge(state)
        data, position, attributes = state
        if attributes or (type(data), type(position)) != (bytes, int) or not 0 <= position <= len(data):
            raise NotSavedByTorch("its pickle fills a BytesIO with something other than bytes")
        if self.filled:
            raise NotSavedByTorch("its pickle fills a BytesIO twice")
        self.filled = True


NUMPY: dict[str, Callable[..., Any]] = {
    "numpy.dtype": _dtype,
    "numpy.ndarray": lambda *_: None,
    **{
        f"numpy.{core}.multiarray.{name}": function
        for core in ("_core", "core")  # NumPy 2 and 1
        for name, function in (("scalar", _scalar), ("_reconstruct", _reconstruct))
    },
}
BYTES_IO = "_io.BytesIO"
PLAIN: dict[str, Callable[..., Any]] = {
    "_codecs.encode": _encode,
    "builtins.bytes": lambda _: b"",  # of nothing; others are encoded
    "builtins.bytearray": _bytearray,
    # of a list, and not of an expanded tensor
    "builtins.set": lambda check, items: check.steps.set_of(items) if type(items) is list else None,
    "builtins.complex": lambda _, *parts: complex(*parts) if [*map(type, parts)] == [float, float] else None,
    "collections.OrderedDict": _ordered,
    "collections.Counter": lambda _, counts: Counter(counts) if type(counts) is dict else None,
    BYTES_IO: lambda _: _Bytes(),
    **NUMPY,
}
OUTLINED: dict[str, Callable[..., Any]] = {
    "torch.Size": _size,
    "torch._utils._rebuild_tensor": lambda *facts: _view(*facts, False, ()),  # before torch 0.4
    "torch._utils._rebuild_tensor_v2": _view,
    "torch._utils._rebuild_tensor_v3": partial(_view, typed=True),
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._tensor._rebuild_from_type_v2": _attributed,
    **{name: PLAIN[name] for name in ("_codecs.encode", "collections.OrderedDict")},
}
"""What makes plain tensors, and what stands beside them."""
CALLS: dict[str, Callable[..., Any]] = {
    **PLAIN,
    **OUTLINED,
    "torch.device": lambda _, kind, index=0: StandIn() if (type(kind), type(index)) == (str, int) else None,
    "torch.serialization._get_layout": lambda _, layout: StandIn() if type(layout) is str else None,
    "torch._tensor._rebuild_from_type_v2": _subclass,
    "torch._utils._rebuild_qtensor": _quantized,
    "torch._utils._rebuild_sparse_tensor": _copied,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _copied,
    "torch._utils._rebuild_meta_tensor_no_storage": lambda _, *facts: OtherTensor(),  # without elements
    "torch._utils._rebuild_wrapper_subclass": lambda _, kind, *rest: (
        Foreign(kind.name) if type(kind) is Name and kind.make is None else None
    ),
    **dict.fromkeys(_VALUES, lambda *_: None),
}
"""All that is known here."""
