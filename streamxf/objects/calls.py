"""What a pickle of ``torch.save`` may call without permission, and with what arguments.

Plain data is made at once. What needs torch, or a class of the caller's, leaves a record that does nothing. Each
function here gets the check and the arguments of a call, and returns None if torch.save never calls it so.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, Protocol

from streamxf.format.dtypes import ITEMSIZES, WITHOUT_ELEMENTS
from streamxf.format.limits import MAX_INT, MAX_NDIM
from streamxf.objects.stand_ins import STAND_INS, TooMuch
from streamxf.torchsave.outline import STORAGES

ELEMENT = 64  # bytes that count as an element
_LATIN = ("latin1", "latin-1")
_OTHERS = {name: {"bits16": 2, "qint32": 4}.get(name, 1) for name in WITHOUT_ELEMENTS}
_DTYPES = {f"torch.{name}": size for name, size in (ITEMSIZES | _OTHERS).items()}
STORAGE_SIZES = {
    **{f"torch.{kind}": ITEMSIZES[dtype] for kind, dtype in STORAGES.items()},
    **{f"torch.{kind}Storage": 1 for kind in ("QInt8", "QUInt8", "QUInt4x2", "QUInt2x4")},
    **{"torch.QInt32Storage": 4, "torch.storage.UntypedStorage": 1},
}
"""Bytes of an element in storages of each kind."""
_TENSORS = ("torch.Tensor", "torch.nn.parameter.Parameter")
_AFFINE, _CHANNELS = "torch.per_tensor_affine", ("torch.per_channel_affine", "torch.per_channel_affine_float_qparams")
VALUES = {*STORAGE_SIZES, *_DTYPES, *_TENSORS, _AFFINE, *_CHANNELS}
"""Names that stand for themselves, and are never called."""


class Unfinished(Exception):
    """A record cannot be pickled: what it stands for has not been made."""


class Name:
    """A class or function that the caller has to allow."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise Unfinished


class Own(Name):
    """One that is always allowed, used as torch.save uses it."""


class Made(Name):
    """The result of calling something that the caller has to allow."""


class Value(Name):
    """The result of calling torch's own functions."""


class Storage(Value):
    """Where tensors lie: a record of `nbytes`, of elements of `itemsize`."""

    def __init__(self, nbytes: int, itemsize: int) -> None:
        super().__init__()
        self.nbytes = nbytes
        self.itemsize = itemsize


class Tensor(Value):
    """Also a parameter. `count` is the number of its elements; None if they may be more than its storage has."""

    def __init__(self, count: int | None = None) -> None:
        super().__init__()
        self.count = count


class Checking(Protocol):
    """The check that meets a call."""

    def charge(self, value: Any) -> None:
        """Count what hashing or copying a value takes."""

    def spend(self, elements: int) -> None:
        """Count elements that are copied."""

    def call(self, function: Any, arguments: Any) -> Any:
        """The result of another call."""


# -- plain data --------------------------------------------------------------------------------------


def _encode(_: Checking, text: Any, encoding: Any) -> bytes | None:
    """Bytes. By another encoding they could grow with each call."""
    return text.encode("latin-1") if type(text) is str and encoding in _LATIN else None


def _bytearray(_: Checking, data: Any = b"", encoding: Any = None) -> bytearray | None:
    """Of bytes, and not of a size."""
    if type(data) is str and encoding in _LATIN:
        return bytearray(data, "latin-1")
    return bytearray(data) if type(data) is bytes and encoding is None else None


def _set(check: Checking, items: Any) -> set[Any] | None:
    """Of a list, and not of an expanded tensor."""
    if type(items) is not list:
        return None
    for item in items:
        check.charge(item)
    return set(items)


def _counter(_: Checking, counts: Any) -> Counter[Any] | None:
    return Counter(counts) if type(counts) is dict else None


def _complex(_: Checking, real: Any, imaginary: Any) -> complex | None:
    return complex(real, imaginary) if type(real) is type(imaginary) is float else None


def _numbers(name: str, _: Checking, *arguments: Any) -> Any:
    return STAND_INS[name](*(STAND_INS.get(each.name) if type(each) is Own else each for each in arguments))


# -- torch's -----------------------------------------------------------------------------------------


def _size(_: Checking, sizes: Any) -> Any:
    return sizes if _are_sizes(sizes) else None


def _named(_: Checking, name: Any, index: Any = 0) -> Value | None:
    """A device or a layout."""
    return Value() if (type(name), type(index)) == (str, int) else None


def _view(storage: Any, itemsize: Any, offset: Any, sizes: Any, strides: Any) -> Tensor | None:
    """A tensor inside its storage, which torch would enlarge for it."""
    if type(storage) is not Storage or itemsize is None or not _are_sizes((offset,), sizes, strides):
        return None
    count, last = math.prod(sizes), sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if count and (offset + last + 1) * itemsize > storage.nbytes:
        raise TooMuch("its pickle makes a tensor that is larger than what is stored")
    return Tensor(count if count * itemsize <= storage.nbytes else None)


def _tensor(_: Checking, storage: Any, offset: Any, sizes: Any, strides: Any, *rest: Any) -> Tensor | None:
    return _view(storage, getattr(storage, "itemsize", None), offset, sizes, strides) if _is_usual(*rest) else None


def _typed(
    _: Checking, storage: Any, offset: Any, sizes: Any, strides: Any, grad: Any, hooks: Any, dtype: Any, *bits: Any
) -> Tensor | None:
    return _view(storage, _itemsize(dtype), offset, sizes, strides) if _is_usual(grad, hooks, *bits) else None


def _quantized(
    check: Checking, storage: Any, offset: Any, sizes: Any, strides: Any, quantizer: Any, *rest: Any
) -> Tensor | None:
    """None that is expanded: torch takes memory for all elements. Its scales are stored, one for each channel."""
    made = _tensor(check, storage, offset, sizes, strides, *rest)
    scheme, *numbers = quantizer if type(quantizer) is tuple else (None,)
    if made is None or made.count is None or type(scheme) is not Own:
        return None
    if scheme.name == _AFFINE:
        return made if [type(number) for number in numbers] == [float, int] else None
    *scales, axis = numbers
    if scheme.name not in _CHANNELS or len(scales) != 2 or type(axis) is not int or not 0 <= axis < len(sizes):
        return None
    return made if all(type(each) is Tensor and each.count == sizes[axis] for each in scales) else None


def _parameter(_: Checking, data: Any, grad: Any, hooks: Any, state: Any = None) -> Tensor | None:
    return data if type(data) is Tensor and _is_usual(grad, hooks) and _suits_tensors(state) else None


def _subclass(check: Checking, function: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """A tensor with attributes, or of a class of the caller's. The function is called as any other is."""
    made = check.call(function, arguments)
    if type(kind) is Name:
        return Made(kind.name) if isinstance(made, Tensor | Made) else None
    return made if type(made) is Tensor and kind.name in _TENSORS and _suits_tensors(state) else None


def _sparse(_: Checking, layout: Any, data: Any) -> Tensor | None:
    """Of tensors that are stored: expanded indices would be copied, one by one."""
    parts = [part for part in data if type(part) is Tensor] if type(data) is tuple else []
    return Tensor() if len(parts) >= 2 and all(part.count is not None for part in parts) else None


def _copied(check: Checking, data: Any, dtype: Any, device: Any, grad: Any) -> Tensor | None:
    """A copy, for a device whose storages cannot be saved."""
    itemsize = _itemsize(dtype)
    if type(data) is not Tensor or data.count is None or itemsize is None:
        return None
    check.spend(data.count * itemsize // ELEMENT)
    return data


def _empty(_: Checking, dtype: Any, sizes: Any, strides: Any, grad: Any) -> Tensor | None:
    """A tensor on the device "meta"."""
    return Tensor() if _itemsize(dtype) and _are_sizes((), sizes, strides) else None


def _wrapper(_: Checking, kind: Any, *rest: Any) -> Made | None:
    """A tensor of a class of the caller's, without elements of its own."""
    return Made(kind.name) if type(kind) is Name else None


def _are_sizes(more: tuple[Any, ...], *tuples: Any) -> bool:
    """Whether these are places, and as many strides as sizes."""
    if any(type(each) is not tuple or len(each) > MAX_NDIM or len(each) != len(tuples[0]) for each in tuples):
        return False
    return all(type(number) is int and 0 <= number <= MAX_INT for each in (more, *tuples) for number in each)


def _itemsize(dtype: Any) -> int | None:
    return _DTYPES.get(dtype.name) if type(dtype) is Own else None


def _is_usual(grad: Any, hooks: Any, bits: Any = None) -> bool:
    """Whether it says whether gradients are needed, has no hooks, and may say which bits are set, such as conj."""
    return type(grad) is bool and type(hooks) in (OrderedDict, type(None)) and type(bits) in (dict, type(None))


def _suits_tensors(state: Any) -> bool:
    import torch

    return state is None or may_have(torch.nn.Parameter, state)


def may_have(kind: type, state: Any) -> bool:
    """Whether an instance of `kind` can be given these attributes without changing what it does."""
    return type(state) is dict and not any(
        type(key) is not str or key.startswith("__") or hasattr(kind, key) for key in state
    )


PLAIN: dict[str, Callable[..., Any]] = {
    "_codecs.encode": _encode,
    "builtins.bytes": lambda _: b"",  # of nothing; others are encoded
    "builtins.bytearray": _bytearray,
    "builtins.set": _set,
    "builtins.complex": _complex,
    "collections.OrderedDict": lambda _: OrderedDict(),
    "collections.Counter": _counter,
    **{name: partial(_numbers, name) for name in STAND_INS},
}
CALLS: dict[str, Callable[..., Any]] = {
    **PLAIN,
    "torch.Size": _size,
    "torch.device": _named,
    "torch.serialization._get_layout": _named,
    "torch._tensor._rebuild_from_type_v2": _subclass,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _typed,
    "torch._utils._rebuild_qtensor": _quantized,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._utils._rebuild_sparse_tensor": _sparse,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _copied,
    "torch._utils._rebuild_meta_tensor_no_storage": _empty,
    "torch._utils._rebuild_wrapper_subclass": _wrapper,
}
