"""The outline of what ``torch.save`` wrote: its structure, with tensors that say where their elements are.

Every name in the pickle leads to a record that does nothing, so nothing runs; the few that make tensors lead to records
that remember what they were given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from streamxf.collector import collector_paused
from streamxf.format.items import ITEMSIZES
from streamxf.format.limits import MAX_INT, MAX_NDIM
from streamxf.proportion import TooMuch
from streamxf.torchsave.archive import NotSavedByTorch
from streamxf.torchsave.pickles import CountingUnpickler

STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
    "UntypedStorage": "uint8",
}


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
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
        if not math.prod(self.shape):
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return (last + 1) * self.itemsize

    @property
    def is_row_major(self) -> bool:
        """Whether its elements stand one after the other, the last dimension's first; so do those of an empty one."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size > 1 and stride != expected:
                return False
            expected *= size
        return True


class Dtype(str):
    """A dtype by its name, which is not a string of the pickle's."""

    __slots__ = ()


class Size(tuple[Any, ...]):
    """A ``torch.Size``, which is not a tuple of the pickle's."""

    __slots__ = ()


class Foreign:
    """Something that only its own class, or torch, can make: `name`, a class or function with its module. `parts` is
    what it is made of and filled with.
    """

    __slots__ = ("parts",)
    name: ClassVar[str] = ""
    parts: list[object]

    def __new__(cls, *arguments: object, **named: object) -> Self:
        made = super().__new__(cls)
        made.parts = [*arguments, *named.values()]
        return made

    def __init__(self, *arguments: object, **named: object) -> None: ...

    def __setstate__(self, state: object) -> None:
        self.parts.append(state)

    def __setitem__(self, key: object, value: object) -> None:
        self.parts += key, value

    append = extend = __setstate__


def _foreign(name: str) -> type[Foreign]:
    return type(name, (Foreign,), {"__slots__": (), "name": name})


@collector_paused()
def read_outline(pickled: bytes, sizes: dict[str, int]) -> Any:
    """Read a pickle of ``torch.save``, whose archive has records of these sizes.

    Returns lists, tuples, dicts and plain values, with a `StoredTensor` in the place of each plain tensor, and what is
    not itself either (`Foreign`, `Dtype`, `Size`, a subclass of dict) in that of everything else. Parts may be shared.

    Raises NotSavedByTorch if it is not such a pickle, or has a tensor that does not fit its record.
    """
    unpickler = _Unpickler(pickled, sizes)
    try:
        root = unpickler.load()
    except TooMuch as error:
        raise NotSavedByTorch(str(error)) from None
    if not unpickler.at_end:
        raise NotSavedByTorch("something follows its pickle")
    return root


@dataclass(frozen=True, slots=True, eq=False)
class _Storage:
    dtype: str
    record: str
    size: int


class _Mapping(dict[Any, Any]):
    """An OrderedDict. It may have state, which is left out: state dicts of modules carry their version there."""

    __slots__ = ()

    def __init__(self, *arguments: object) -> None: ...

    def __setstate__(self, state: object) -> None: ...


_CLASS = 128  # elements that making a class takes


class _Unpickler(CountingUnpickler):
    records = (Foreign, _Mapping)
    on_purpose = (NotSavedByTorch,)

    def __init__(self, pickled: bytes, sizes: dict[str, int]) -> None:
        super().__init__(pickled)
        self._sizes = sizes
        self._foreign: dict[str, type[Foreign]] = {}

    def find_class(self, module: str, name: str) -> Any:
        match module, name:
            case "torch", _ if name in STORAGES:
                return Dtype(STORAGES[name])
            case "torch", _ if name in ITEMSIZES:
                return Dtype(name)
            case "torch.storage", "UntypedStorage":
                return Dtype("uint8")
            case "torch", "Size":
                return Size
            case "collections", "OrderedDict":
                return _Mapping
            case "_codecs", "encode":
                return _latin1
            case "torch._utils", "_rebuild_tensor_v2":
                return self._tensor
            case "torch._utils", "_rebuild_tensor_v3":
                return self._typed_tensor
            case "torch._utils", "_rebuild_parameter":
                return lambda data, *rest: data
        name = f"{module:.200}.{name:.200}"
        if name not in self._foreign:
            self.steps.spend(_CLASS)
            self._foreign[name] = _foreign(name)
        return self._foreign[name]

    def persistent_load(self, pid: object) -> Any:
        if not isinstance(pid, tuple) or len(pid) != 5 or pid[0] != "storage" or not isinstance(pid[2], str):
            raise NotSavedByTorch("its pickle refers to something outside itself")
        dtype, record = pid[1], f"data/{pid[2]}"
        if not isinstance(dtype, str):  # of a quantized tensor, say
            return _foreign("torch.storage")()
        if record not in self._sizes:
            raise NotSavedByTorch(f"its record {record!r:.80} is missing")
        return _Storage(dtype, record, self._sizes[record])

    def _tensor(self, storage: Any, start: Any, shape: Any, strides: Any, grad: Any, hooks: Any, *rest: Any) -> Any:
        dtype = storage.dtype if isinstance(storage, _Storage) else None
        return self._typed_tensor(storage, start, shape, strides, grad, hooks, dtype, *rest)

    def _typed_tensor(
        self, storage: Any, start: Any, shape: Any, strides: Any, grad: Any, hooks: Any, dtype: Any, *rest: Any
    ) -> Any:
        # what follows the backward hooks is a tensor's conj or neg bit, or says that it is something else
        if not isinstance(storage, _Storage) or not isinstance(dtype, str) or any(rest):
            return _foreign("torch.Tensor")()
        shape, strides = _numbers(shape), _numbers(strides)
        if len(shape) != len(strides) or not isinstance(start, int) or not 0 <= start <= MAX_INT:
            raise NotSavedByTorch("it has a tensor with an impossible shape")
        made = StoredTensor(str(dtype), shape, strides, storage.record, start * ITEMSIZES[dtype])
        if made.extent and made.start + made.extent > storage.size:
            raise NotSavedByTorch("it has a tensor that reaches beyond its record")
        return made


def _latin1(text: Any, encoding: Any) -> bytes:
    """What a pickle of protocol 2 calls to make bytes."""
    if not isinstance(text, str) or encoding != "latin1":
        raise NotSavedByTorch("its pickle encodes something other than bytes")
    return text.encode("latin1")


def _numbers(value: Any) -> tuple[int, ...]:
    fits = isinstance(value, tuple | list) and len(value) <= MAX_NDIM
    if not fits or not all(type(number) is int and 0 <= number <= MAX_INT for number in value):
        raise NotSavedByTorch("it has a tensor with an impossible shape")
    return tuple(value)
