"""What it would take to unpickle something that ``torch.load(weights_only=True)`` lets pass, found out beforehand.

That mode decides which names a pickle may use, not how often or on what: a few bytes can ask for a ``bytearray`` of any
size, double a text forty times, make a set of a tensor that is one number expanded to a million, or use as a key a
tuple of tuples that share their parts, which takes for ever to hash. `vet` follows the pickle with values that know
their sizes only, and refuses what is out of proportion to what is stored, of NumPy all that is not numbers, and of
torch's own names every call but those that ``torch.save`` writes. Which other names are allowed is not decided here.
"""

from __future__ import annotations

import math
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

import torch
from torch import _weights_only_unpickler as torchs

from streamxf.dcp.objects.vet_values import MAX_DEPTH, OTHER, PLAIN, Box, Made, NeverLoads, Plain, Text, TooMuch, Tuple
from streamxf.descriptor import shorten

FREE_STEPS = 2**20  # opcodes, besides four for each byte in storage
FREE_WORK = 2**19  # elements hashed or copied, of some hundred bytes each, besides those in proportion
_WORK = 2  # elements for each opcode, which bounds them by FREE_STEPS too
_ELEMENT = 64  # bytes that count as an element
_SHORT = 64  # bytes; longer texts matter by their length only

Items: TypeAlias = tuple[Any, ...]


def vet(pickled: bytes, sizes: Mapping[str, int], stored: int, trusted: Collection[str] = ()) -> set[str]:
    """Follow a pickle of protocol 2 without making anything; gives the names that it asks for.

    Parameters
    ----------
    pickled : bytes
    sizes : mapping of str to int
        Bytes of the records that it may refer to.
    stored : int
        Bytes that the item takes in storage.
    trusted : collection of str
        Names whose calls are the caller's business.

    Raises
    ------
    TooMuch
    """
    try:
        return _Scan(pickled, sizes, stored, trusted).run()
    except (IndexError, KeyError, UnicodeDecodeError, TypeError) as error:
        raise TooMuch(f"its pickle is damaged ({type(error).__name__})") from None


class _Storage:
    __slots__ = ("itemsize", "nbytes")

    def __init__(self, nbytes: int, itemsize: int) -> None:
        self.nbytes = nbytes
        self.itemsize = itemsize


class _Tensor:
    """Also a parameter.

    Attributes
    ----------
    count : int or None
        Its elements, which all lie in its storage; None if it may have more than that.
    """

    __slots__ = ("count",)

    def __init__(self, count: int | None) -> None:
        self.count = count


class _Scan:
    """One pass. On the stack stand the values above, names of globals as `str`, numbers as `int`, bools, None,
    and `OTHER` for floats.
    """

    def __init__(self, data: bytes, sizes: Mapping[str, int], stored: int, trusted: Collection[str]) -> None:
        self._data = data
        self._sizes = sizes
        self._trusted = trusted
        self._steps = FREE_STEPS + 4 * stored
        self._work = FREE_WORK + sum(sizes.values()) * 4 // _ELEMENT
        self._kinds: dict[str, str] = {}  # of storages; torch makes each once, of the kind that comes first
        self._names: set[str] = set()
        self._at = 0
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> set[str]:
        data, actions = self._data, _ACTIONS
        for _ in range(self._steps):
            opcode = data[self._at]
            self._at += 1
            self._work += _WORK
            if opcode == 0x2E:  # STOP
                return self._names
            action = actions.get(opcode)
            if opcode == 0x8B:  # LONG4
                raise NeverLoads("it holds an integer of more than 255 bytes")
            if action is None:
                raise TooMuch(f"its pickle has the opcode 0x{opcode:02x}, which weights_only does not know")
            action(self)
        raise TooMuch(f"its pickle has more than {self._steps} opcodes")

    # -- helpers -----------------------------------------------------------------------------------

    def _take(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        if len(found) < size:
            raise TooMuch("its pickle is cut")
        self._at += size
        return found

    def _number(self, size: int, signed: bool = False) -> int:
        return int.from_bytes(self._take(size), "little", signed=signed)

    def _line(self) -> str:
        end = self._data.index(b"\n", self._at) if b"\n" in self._data[self._at : self._at + 1024] else -1
        if end < 0:
            raise TooMuch("its pickle names something with a name that is too long")
        found = self._data[self._at : end].decode("utf-8")
        self._at = end + 1
        return found

    def _charge(self, value: Any) -> None:
        """Count what hashing or copying the value takes."""
        kind = type(value)
        if kind is Tuple or kind is Made or kind is Box:
            self._spend(value.weight)
        elif kind is Text or kind is Plain:
            self._spend(1 + value.size // _ELEMENT)
        else:
            self._spend(1)

    def _spend(self, work: int) -> None:
        self._work -= work
        if self._work < 0:
            raise TooMuch("its pickle makes something out of proportion to what is stored")

    def _pop_mark(self) -> list[Any]:
        items = self._stack
        self._stack = self._marks.pop()
        return items

    # -- opcodes -----------------------------------------------------------------------------------

    def proto(self) -> None:
        if self._number(1) != 2:
            raise TooMuch("its pickle is not of protocol 2, as those of torch.save are")

    def name(self) -> None:
        module, name = self._line(), self._line()
        if (module, name) in NAME_MAPPING:
            module, name = NAME_MAPPING[module, name]
        else:
            module = IMPORT_MAPPING.get(module, module)
        self._names.add(f"{module}.{name}")
        self._stack.append(f"{module}.{name}")

    def mark(self) -> None:
        self._marks.append(self._stack)
        self._stack = []

    def put(self, size: int) -> None:
        self._memo[self._number(size)] = self._stack[-1]

    def get(self, size: int) -> None:
        self._stack.append(self._memo[self._number(size)])

    def constant(self, value: bool | None) -> None:
        self._stack.append(value)

    def number(self) -> None:
        self._take(8)
        self._stack.append(OTHER)

    def integer(self, size: int, signed: bool = False) -> None:
        self._stack.append(self._number(size, signed))

    def long(self) -> None:
        self._stack.append(self._number(self._number(1), True))

    def text(self, size: int) -> None:
        data = self._take(self._number(size))
        short = data.decode("utf-8", "surrogatepass") if len(data) <= _SHORT else None
        self._stack.append(Text(len(data), short))

    def box(self, name: str) -> None:
        self._stack.append(Box(name))

    def tuple(self, count: int | None = None) -> None:
        if count is None:
            items = self._pop_mark()
        elif len(self._stack) < count:
            raise TooMuch("its pickle is damaged")
        else:
            items = self._stack[len(self._stack) - count :]
            del self._stack[len(self._stack) - count :]
        self._stack.append(Tuple(tuple(items)))

    def append(self, marked: bool) -> None:
        items = self._pop_mark() if marked else [self._stack.pop()]
        self._check_fills(("list",))
        for item in items:
            self._grow(item)

    def set_items(self, marked: bool) -> None:
        items = self._pop_mark() if marked else [self._stack.pop(-2), self._stack.pop()]
        self._check_fills(_DICTS)
        box = self._stack[-1]
        for key in items[::2]:
            if type(key) in (Tuple, Made):
                self._charge(key)
            self._grow(key)
            if type(key) is not Text:
                box.keys = None
            elif box.keys is not None and key.text is not None:
                box.keys.add(key.text)

    def _check_fills(self, names: Collection[str]) -> None:
        box = self._stack[-1]
        if type(box) is not Box or box.name not in names:
            raise NeverLoads(f"it fills {_name_of(box)} item by item, which torch does for lists and dicts only")

    def _grow(self, item: Any) -> None:
        box = self._stack[-1]
        if type(box) is Box:
            box.weight += item.weight if type(item) in (Tuple, Made) else 1

    def storage(self) -> None:
        pid = self._stack.pop()
        items = pid.items if type(pid) is Tuple else ()
        if len(items) != 5 or type(items[1]) is not str or type(items[2]) is not Text or type(items[4]) is not int:
            raise TooMuch("its pickle refers to something that is no storage")
        _, kind, key, _, count = items
        if key.text is None:
            raise TooMuch(f"its pickle refers to a storage by a name of more than {_SHORT} bytes")
        if self._kinds.setdefault(key.text, kind) != kind:
            raise TooMuch("its pickle refers to one storage as two of different kinds")
        itemsize = _STORAGES.get(kind.rpartition(".")[2])
        nbytes = self._sizes.get(f"data/{key.text}", -1)
        if itemsize is None or nbytes != count * itemsize:
            raise TooMuch(f"its pickle says that a storage has {count} elements, and its file has {nbytes} bytes of it")
        self._stack.append(_Storage(nbytes, itemsize))

    def new(self) -> None:
        arguments = self._stack.pop()
        self._stack.append(self._call(self._stack.pop(), arguments))

    def build(self) -> None:
        state, target = self._stack.pop(), self._stack[-1]
        self._charge(state)
        if type(target) in (_Tensor, _Storage):
            raise TooMuch("its pickle changes a tensor after it was made")
        if type(target) is Plain:
            target.build(state)
            self._charge(target)
        elif type(target) is Box and target.name in _BOXES:
            if target.name != "collections.OrderedDict" or not _is_attributes(state, OrderedDict):
                raise TooMuch(f"its pickle changes a {target.name} otherwise than by attributes of its own")
        elif type(target) is Made and target.name in torchs._get_allowed_globals() and target.name not in self._trusted:
            raise TooMuch(f"its pickle changes what {shorten(target.name)} made")

    # -- calls -------------------------------------------------------------------------------------

    def _call(self, function: Any, arguments: Any) -> Any:
        if type(function) is not str or type(arguments) is not Tuple:
            raise TooMuch("its pickle calls something that has no name, or with what is not a tuple")
        for argument in arguments.items:
            self._charge(argument)
        if function in self._trusted:
            return Made(function, arguments)
        items = arguments.items
        if function in PLAIN:
            return Plain.call(function, items)
        if function in _TENSORS:
            return _tensor(items, function)
        rebuild = _REBUILDS.get(function)
        if rebuild is not None:
            return rebuild(self, items)
        if any(type(item) in (_Tensor, _Storage) for item in items):
            raise TooMuch(f"its pickle makes a {shorten(ascii(function)[1:-1])} of a tensor")
        if function in _BOXES:
            if len(items) > (0 if function == "collections.OrderedDict" else 1):
                raise TooMuch(f"its pickle makes a {function} of something else than it is saved as")
            if items and (type(items[0]) is not Box or items[0].name != _BOXES[function]):
                raise TooMuch(f"its pickle makes a {function} of something else than a {_BOXES[function]}")
            return Box(function)
        if function in ("builtins.bytes", "builtins.bytearray"):
            if any(type(item) is not Text for item in items):
                raise TooMuch("its pickle makes bytes of something else than text")
            return Made(function, arguments) if items or function == "builtins.bytearray" else Text(0)
        if function == "_codecs.encode":
            if len(items) != 2 or any(type(item) is not Text for item in items) or items[1].text not in _LATIN:
                raise TooMuch("its pickle encodes a text in another way than bytes are stored")
            return Text(items[0].size, encoded=items[0].text)
        if function in torchs._get_allowed_globals() and (
            function not in _SCALARS or not all(_is_scalar(item) for item in items)
        ):
            raise TooMuch(f"its pickle makes a {function} in another way than torch.save stores it")
        return Made(function, arguments)

    def _rebuild_parameter(self, items: Items) -> Any:
        if len(items) not in (3, 4) or type(items[0]) is not _Tensor:
            raise TooMuch("its pickle makes a parameter of something else than a tensor")
        if len(items) == 4 and not _is_attributes(items[3], torch.nn.Parameter):
            raise TooMuch("its pickle gives a parameter attributes that are not its own")
        return items[0]

    def _rebuild_typed(self, items: Items) -> Any:
        if len(items) != 4:
            raise TooMuch("its pickle makes a tensor in another way than torch.save stores it")
        function, kind, arguments, state = items
        made = self._call(function, arguments)
        if type(made) is not _Tensor and function not in self._trusted:
            raise TooMuch("its pickle makes a tensor of something else than a storage")
        if kind not in self._trusted and not _is_attributes(state, torch.nn.Parameter):
            raise TooMuch("its pickle gives a tensor attributes that are not its own")
        return made

    def _rebuild_sparse(self, items: Items) -> Any:
        data = items[1].items if len(items) == 2 and type(items[1]) is Tuple else ()
        parts = [item for item in data if type(item) is _Tensor]
        if len(parts) < 2 or any(part.count is None for part in parts):
            raise TooMuch("its pickle makes a sparse tensor of something else than tensors, or of expanded ones")
        return _Tensor(None)

    def _rebuild_copied(self, items: Items) -> Any:
        if len(items) != 4 or type(items[0]) is not _Tensor or items[0].count is None:
            raise TooMuch("its pickle expands a tensor")
        self._spend(items[0].count * (_dtype_size(items[1]) or _WIDEST) // _ELEMENT)
        return items[0]

    def _rebuild_meta(self, items: Items) -> Any:
        if any(type(item) in (_Tensor, _Storage) for item in items):
            raise TooMuch("its pickle makes an empty tensor of a tensor")
        return _Tensor(None)

    def _rebuild_wrapper(self, items: Items) -> Any:
        if not items or type(items[0]) is not str or items[0] in torchs._get_allowed_globals():
            raise TooMuch("its pickle makes a tensor of a subclass that is none")
        return _Tensor(None)


def _tensor(items: Items, function: str) -> _Tensor:
    storage, offset, size, stride = items[:4] if len(items) >= 4 else (None,) * 4
    if type(storage) is not _Storage or type(offset) is not int or type(size) is not Tuple:
        raise TooMuch("its pickle makes a tensor of something else than a storage")
    if any(type(item) in (_Tensor, _Storage) for item in items[1:]):
        raise TooMuch("its pickle makes a tensor of several")
    steps = stride.items if type(stride) is Tuple and len(stride.items) <= MAX_DEPTH else (None,)
    numbers = (offset, *size.items, *steps)
    if (
        len(size.items) != len(steps)
        or len(steps) > MAX_DEPTH
        or any(type(number) is not int or number < 0 for number in numbers)
    ):
        raise TooMuch("its pickle makes a tensor of an impossible shape")
    itemsize: int | None = storage.itemsize
    if function.endswith("_v3"):
        itemsize = _dtype_size(items[6]) if len(items) > 6 else None
    if itemsize is None:
        raise TooMuch("its pickle makes a tensor of an unknown dtype")
    count = math.prod(size.items)
    reach = offset + 1 + sum((one - 1) * step for one, step in zip(size.items, steps, strict=True)) if count else 0
    if reach * itemsize > storage.nbytes:
        raise TooMuch("its pickle makes a tensor that is larger than what is stored")
    expanded = count * itemsize > storage.nbytes
    if function.endswith("_qtensor"):
        if expanded:  # torch takes memory for all elements here
            raise TooMuch("its pickle expands a quantized tensor")
        _check_quantizer(items[4] if len(items) > 4 else None, size.items)
    return _Tensor(None if expanded else count)


def _check_quantizer(value: Any, size: tuple[int, ...]) -> None:
    parts = value.items if type(value) is Tuple else ()
    if len(parts) == 3 and parts[0] == "torch.per_tensor_affine" and all(map(_is_scalar, parts[1:])):
        return
    good = len(parts) == 4 and type(parts[3]) is int and 0 <= parts[3] < len(size)
    if not good or any(type(part) is not _Tensor or part.count != size[parts[3]] for part in parts[1:3]):
        raise TooMuch("its pickle makes a quantized tensor whose scales are not stored, one for each channel")


def _is_scalar(value: Any) -> bool:
    """Whether it is a number, a text, or a tuple of such."""
    if type(value) is Tuple:
        return all(type(item) in (int, bool) for item in value.items)
    return value is OTHER or type(value) in (int, bool, Text)


def _is_attributes(value: Any, kind: type) -> bool:
    """Whether an instance of `kind` can be given these without changing what it does."""
    if type(value) is Tuple and len(value.items) == 2:  # of the instance, and of its slots
        return all(part is None or _is_attributes(part, kind) for part in value.items)
    if value is None or (type(value) is Tuple and not value.items):
        return True
    if type(value) is not Box or value.name != "dict" or value.keys is None:
        return False
    return not any(key.startswith("__") or hasattr(kind, key) for key in value.keys)


def _name_of(value: Any) -> str:
    return f"a {shorten(ascii(value.name)[1:-1])}" if type(value) in (Made, Box, Plain) else "something else"


def _dtype_size(name: Any) -> int | None:
    dtype = getattr(torch, name.rpartition(".")[2], None) if isinstance(name, str) else None
    return dtype.itemsize if isinstance(dtype, torch.dtype) else None


_STORAGES = {
    f"{name}Storage": size
    for size, names in {
        1: "Untyped Byte Char Bool QInt8 QUInt8 QUInt4x2 QUInt2x4",
        2: "Short Half BFloat16",
        4: "Int Float QInt32",
        8: "Long Double ComplexFloat",
        16: "ComplexDouble",
    }.items()
    for name in names.split()
}
_TENSORS = {f"torch._utils._rebuild_{name}" for name in ("tensor", "tensor_v2", "tensor_v3", "qtensor")}
_REBUILDS: dict[str, Callable[[_Scan, Items], Any]] = {
    "torch._utils._rebuild_parameter": _Scan._rebuild_parameter,
    "torch._utils._rebuild_parameter_with_state": _Scan._rebuild_parameter,
    "torch._tensor._rebuild_from_type_v2": _Scan._rebuild_typed,
    "torch._utils._rebuild_sparse_tensor": _Scan._rebuild_sparse,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _Scan._rebuild_copied,
    "torch._utils._rebuild_meta_tensor_no_storage": _Scan._rebuild_meta,
    "torch._utils._rebuild_wrapper_subclass": _Scan._rebuild_wrapper,
}
_WIDEST = 16  # bytes of an element
_BOXES = {"builtins.set": "list", "collections.OrderedDict": "", "collections.Counter": "dict"}  # and of what
_SCALARS = {"builtins.complex", "torch.Size", "torch.device", "torch.serialization._get_layout"}
_DICTS = ("dict", "collections.OrderedDict", "collections.Counter")
_LATIN = ("latin1", "latin-1")
_ACTIONS: dict[int, Callable[[_Scan], None]] = {
    opcode[0]: action
    for opcode, action in {
        b"\x80": _Scan.proto,
        b"c": _Scan.name,
        b"(": _Scan.mark,
        b"q": lambda scan: scan.put(1),
        b"r": lambda scan: scan.put(4),
        b"h": lambda scan: scan.get(1),
        b"j": lambda scan: scan.get(4),
        b"N": lambda scan: scan.constant(None),
        b"\x88": lambda scan: scan.constant(True),
        b"\x89": lambda scan: scan.constant(False),
        b"G": _Scan.number,
        b"J": lambda scan: scan.integer(4, True),
        b"K": lambda scan: scan.integer(1),
        b"M": lambda scan: scan.integer(2),
        b"\x8a": _Scan.long,
        b"X": lambda scan: scan.text(4),
        b"U": lambda scan: scan.text(1),
        b"]": lambda scan: scan.box("list"),
        b"}": lambda scan: scan.box("dict"),
        b"\x8f": lambda scan: scan.box("builtins.set"),
        b")": lambda scan: scan.tuple(0),
        b"t": _Scan.tuple,
        b"\x85": lambda scan: scan.tuple(1),
        b"\x86": lambda scan: scan.tuple(2),
        b"\x87": lambda scan: scan.tuple(3),
        b"a": lambda scan: scan.append(False),
        b"e": lambda scan: scan.append(True),
        b"s": lambda scan: scan.set_items(False),
        b"u": lambda scan: scan.set_items(True),
        b"Q": _Scan.storage,
        b"R": _Scan.new,
        b"\x81": _Scan.new,
        b"b": _Scan.build,
    }.items()
}
