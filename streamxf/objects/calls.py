"""What a pickle of ``torch.save`` may call without anyone's leave, and on what.

Plain data is made at once. What needs torch, or a class of the caller's, leaves a record that does nothing. Each
function here gets the check and the arguments of a call, and gives None if torch.save never calls it so.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from streamxf.format.items import ITEMSIZES, WITHOUT_ELEMENTS
from streamxf.format.limits import MAX_INT, MAX_NDIM
from streamxf.objects.stand_ins import STAND_INS
from streamxf.proportion import TooMuch
from streamxf.torchsave.outline import STORAGES

_LATIN = ("latin1", "latin-1")
_OTHERS = {name: {"bits16": 2, "qint32": 4, "bcomplex32": 4}.get(name, 1) for name in WITHOUT_ELEMENTS}
_DTYPES = {f"torch.{name}": size for name, size in (ITEMSIZES | _OTHERS).items()}
STORAGE_SIZES = {
    **{f"torch.{kind}": ITEMSIZES[dtype] for kind, dtype in STORAGES.items()},
    **{f"torch.{kind}Storage": 1 for kind in ("QInt8", "QUInt8", "QUInt4x2", "QUInt2x4")},
    **{"torch.QInt32Storage": 4, "torch.storage.UntypedStorage": 1},
}
"""Bytes of an element in storages of each kind."""
_TENSORS = ("torch.Tensor", "torch.nn.parameter.Parameter")
_CHANNELS = ("torch.per_channel_affine", "torch.per_channel_affine_float_qparams")
VALUES = {*STORAGE_SIZES, *_DTYPES, *_TENSORS, "torch.per_tensor_affine", *_CHANNELS}
"""Names that stand for themselves, and are never called."""


class Unfinished(Exception):
    """A record cannot be pickled: what it stands for has not been made."""


class Name:
    def __init__(self, name: str = "") -> None:
        self.name = name

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise Unfinished


class Own(Name):
    """One that everybody may use in the way in which torch.save does, and what a call of one gives."""


class Made(Name):
    """What a call of something that the caller has to allow gives."""


class StorageRecord(Own):
    """Where tensors lie: `nbytes`, of elements of `itemsize`."""

    def __init__(self, nbytes: int, itemsize: int) -> None:
        super().__init__()
        self.nbytes = nbytes
        self.itemsize = itemsize


class TensorRecord(Own):
    """Also a parameter. `count` is the number of its elements; None if they may be more than its storage has."""

    def __init__(self, count: int | None = None) -> None:
        super().__init__()
        self.count = count


# -- plain data --------------------------------------------------------------------------------------


def _encode(_: Any, text: Any, encoding: Any) -> bytes | None:
    """Bytes. By another encoding they could grow with each call."""
    return text.encode("latin-1") if type(text) is str and encoding in _LATIN else None


def _bytearray(_: Any, data: Any = b"", encoding: Any = None) -> bytearray | None:
    """Of bytes, and not of a size."""
    if type(data) is str and encoding in _LATIN:
        return bytearray(data, "latin-1")
    return bytearray(data) if type(data) is bytes and encoding is None else None


def _set(check: Any, items: Any) -> set[Any] | None:
    """Of a list, and not of an expanded tensor."""
    return check.steps.set_of(items) if type(items) is list else None


def _numbers(name: str, _: Any, *arguments: Any) -> Any:
    return STAND_INS[name](*(STAND_INS.get(each.name) if type(each) is Own else each for each in arguments))


# -- torch's -----------------------------------------------------------------------------------------


def _view(_: Any, storage: Any, offset: Any, sizes: Any, strides: Any, *rest: Any, dtype_at: int | None = None) -> Any:
    """A tensor inside its storage, which torch would enlarge for it."""
    if type(storage) is not StorageRecord or (len(rest) > 1 and rest[1]):  # hooks, which autograd would call
        return None
    dtype = rest[dtype_at] if dtype_at is not None and len(rest) > dtype_at else None
    itemsize = storage.itemsize if dtype_at is None else _DTYPES.get(getattr(dtype, "name", ""))
    if itemsize is None or not _are_numbers((offset,)) or not _are_numbers(sizes) or not _are_numbers(strides):
        return None
    if len(sizes) != len(strides):
        return None
    count, last = math.prod(sizes), sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if count and (offset + last + 1) * itemsize > storage.nbytes:
        raise TooMuch("its pickle makes a tensor that is larger than what is stored")
    return TensorRecord(count if count * itemsize <= storage.nbytes else None)


def _quantized(check: Any, storage: Any, offset: Any, sizes: Any, strides: Any, quantizer: Any, *rest: Any) -> Any:
    """Torch takes memory for all elements, and iterates over scales that are no tensors: one for each channel."""
    made = _view(check, storage, offset, sizes, strides, *rest)
    if made is None or made.count is None or type(quantizer) is not tuple:
        return None
    numbers = quantizer[1:]
    if [type(number) for number in numbers] == [float, int]:
        return made
    if len(numbers) != 3 or type(numbers[2]) is not int or not 0 <= numbers[2] < len(sizes):
        return None
    fits = all(type(each) is TensorRecord and each.count == sizes[numbers[2]] for each in numbers[:2])
    return made if fits else None


def _copied(check: Any, *arguments: Any) -> Any:
    """What torch copies the elements of stored tensors for, one by one: a tensor of another device, a sparse one."""
    parts = [part for each in arguments for part in (each if type(each) is tuple else (each,))]
    tensors = [part for part in parts if isinstance(part, TensorRecord)]
    counts = [tensor.count for tensor in tensors if tensor.count is not None]
    if not counts or len(counts) < len(tensors):
        return None
    check.steps.spend(sum(counts) // 16)
    return TensorRecord()


def _parameter(_: Any, data: Any, grad: Any, hooks: Any, state: Any = None) -> Any:
    return data if type(data) is TensorRecord and not hooks and _suits_tensors(state) else None


def _subclass(check: Any, function: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """A tensor with attributes, or of a class of the caller's. The function is called as any other is."""
    made = check.call(function, arguments)
    if type(kind) is Name:
        return Made(kind.name) if isinstance(made, TensorRecord | Made) else None
    return made if type(made) is TensorRecord and kind.name in _TENSORS and _suits_tensors(state) else None


def _wrapper(_: Any, kind: Any, *rest: Any) -> Made | None:
    return Made(kind.name) if type(kind) is Name else None


def _are_numbers(value: Any) -> bool:
    if type(value) is not tuple or len(value) > MAX_NDIM:
        return False
    return all(type(number) is int and 0 <= number <= MAX_INT for number in value)


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
    "builtins.complex": lambda _, *parts: complex(*parts) if [*map(type, parts)] == [float, float] else None,
    "collections.OrderedDict": lambda _: OrderedDict(),
    "collections.Counter": lambda _, counts: Counter(counts) if type(counts) is dict else None,
    **{name: partial(_numbers, name) for name in STAND_INS},
}
CALLS: dict[str, Callable[..., Any]] = {
    **PLAIN,
    "torch.Size": lambda _, sizes: sizes if _are_numbers(sizes) else None,
    "torch.device": lambda _, kind, index=0: Own() if (type(kind), type(index)) == (str, int) else None,
    "torch.serialization._get_layout": lambda _, layout: Own() if type(layout) is str else None,
    "torch._tensor._rebuild_from_type_v2": _subclass,
    "torch._utils._rebuild_tensor_v2": _view,
    "torch._utils._rebuild_tensor_v3": partial(_view, dtype_at=2),
    "torch._utils._rebuild_qtensor": _quantized,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._utils._rebuild_sparse_tensor": _copied,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _copied,
    "torch._utils._rebuild_meta_tensor_no_storage": lambda _, *facts: TensorRecord(),  # without elements
    "torch._utils._rebuild_wrapper_subclass": _wrapper,
}
