"""Pickles from outside, followed opcode by opcode: nothing that they name runs, and what they take is counted.

It is Python's own unpickler, in Python. That of C would be up to three times as fast; but nothing that it does can be
counted: keys of equal hashes, each of which a dict compares with all before it, tuples that share their parts, which
take forever to hash, copies of a long text. So C's is let loose only on a pickle that was followed here.

So is DCP's own ``.metadata`` (`read_stock`). The names that DCP's writers use lead to records, which hold the state
that the pickle gives them and do nothing; every other name is refused. docs/format/stock.md.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NoReturn

from streamxf.budget import Steps, TooMuch
from streamxf.buffers import collector_paused
from streamxf.descriptor import Descriptor
from streamxf.errors import DescriptorError, MetadataError, UnsupportedError
from streamxf.format.items import DTYPES, Chunk, Item, ObjectItem, Place, TensorItem, check_name, is_path
from streamxf.format.limits import MAX_CODECS, MAX_INT
from streamxf.format.sections import array, bad, integer, mapping
from streamxf.format.tiling import check_apart, check_offsets, check_tiles, work_for
from streamxf.torchsave.archive import NotSavedByTorch

FREE_OPCODES = 2**20  # besides four for each byte in storage: an empty dict is one, and takes a hundred bytes
_FREE_PLACES = 2**10  # of the memo, which is an array in C
_Unpickler: Any = pickle._Unpickler  # of which little is typed

Actions = dict[int, Callable[[Any], None]]


class StandIn:
    """What stands in the place of something that a pickle names or makes. It does nothing."""

    __slots__ = ()

    def fill(self, unpickler: Unpickler, state: Any) -> None:
        """Take the state that the pickle gives it; raises NotSavedByTorch if torch.save never gives it one."""
        raise NotSavedByTorch("its pickle changes something after it was made, as torch.save never does")


@dataclass(slots=True, eq=False)
class Name(StandIn):
    """A class or function, by its name. `make` gives a record of what it would make of some arguments, and None for
    those that torch.save never calls it with; None in its place is a class of somebody else's.
    """

    name: str
    make: Callable[..., Any] | None = None


class Foreign(StandIn):
    """Something that only its class, or torch, can make: `name`, a class or function; `parts` that go into it."""

    __slots__ = ("_keys", "name", "parts")

    def __init__(self, name: str, *parts: object) -> None:
        self.name = name
        self.parts: list[object] = [*parts]
        self._keys: dict[Any, None] = {}

    def fill(self, unpickler: Unpickler, state: Any) -> None:
        unpickler.steps.charge(state)
        self.extend(unpickler, [state])

    def extend(self, unpickler: Unpickler, items: list[Any]) -> None:
        unpickler.filled.add(self.name)
        self.parts += items

    def put(self, unpickler: Unpickler, key: Any, value: Any) -> None:
        unpickler.steps.charge_key(self._keys, key)
        self._keys[key] = None
        self.extend(unpickler, [key, value])


class Size(tuple[Any, ...]):
    """A ``torch.Size``, which is not a tuple of the pickle's."""

    __slots__ = ()


class Unpickler(_Unpickler):  # type: ignore[misc]
    """One pass over a pickle of protocol 2 or later; `stored` is what it takes in storage, and `more` are the steps
    that it may take besides those for its own length, both in bytes.

    `limit` is how many opcodes it may have. Subclasses define `find_class`, which gives a `Name`, and
    `persistent_load`. `actions`, by opcode, are all that a pickle may do; `filled` names what was filled later.
    """

    actions: ClassVar[Actions]
    on_purpose: type[Exception] = NotSavedByTorch

    def __init__(self, pickled: bytes, stored: int | None = None, more: int = 0) -> None:
        self._file = io.BytesIO(pickled)
        super().__init__(self._file, encoding="utf-8")
        self.read, self.readline = self._file.read, self._file.readline  # as if there were no frames
        self.metastack: list[list[Any]] = []
        self.stack: list[Any] = []
        self.append = self.stack.append
        self.filled: set[str] = set()
        self.limit = FREE_OPCODES + 4 * (len(pickled) if stored is None else stored)
        self.steps = Steps(len(pickled) * 3 // 4 + more)

    def load(self, begin: int = 0) -> Any:
        """What is pickled from `begin`; raises NotSavedByTorch if damaged or excessive, and errors `on_purpose`."""
        read, actions = self.read, self.actions
        self._file.seek(begin)
        try:
            for _ in range(self.limit):
                actions[read(1)[0]](self)
        except pickle._Stop as stop:  # type: ignore[attr-defined]
            return stop.value
        except (self.on_purpose, NotSavedByTorch, MemoryError):
            raise
        except TooMuch as error:
            raise NotSavedByTorch(str(error)) from None
        except Exception as error:  # whatever a damaged pickle makes the unpickler raise
            raise NotSavedByTorch(f"its pickle is damaged ({type(error).__name__})") from None
        raise NotSavedByTorch(f"its pickle has more than {self.limit} opcodes")

    @property
    def position(self) -> int:
        return self._file.tell()

    @property
    def at_end(self) -> bool:
        return self.position == len(self._file.getbuffer())

    def call(self, function: Any, arguments: Any) -> Any:
        if type(function) is not Name or type(arguments) is not tuple:
            raise NotSavedByTorch("its pickle calls something without a name, or without a tuple of arguments")
        self.steps.charge(arguments)
        made = Foreign(function.name, *arguments) if function.make is None else function.make(*arguments)
        return self.refuse(function.name, arguments) if made is None else made

    def refuse(self, name: str, arguments: tuple[Any, ...]) -> Any:
        raise NotSavedByTorch(f"its pickle calls {name} in another way than torch.save does")

    def new(self, function: Any, arguments: Any) -> Any:
        """As `call`, of a class whose `__new__` alone is called."""
        return self.call(function, arguments)

    def _weigh(self, opcode: int, steps: int) -> None:
        """Do what makes much memory of one byte, and count that."""
        self.steps.spend(steps)
        _Unpickler.dispatch[opcode](self)

    def _frame(self) -> None:
        """As C's unpickler, which has the whole frame there, and lets opcodes cross its end."""
        if int.from_bytes(self.read(8), "little") > len(self._file.getbuffer()) - self.position:
            raise NotSavedByTorch("its pickle has a frame that ends behind it")

    def _put(self) -> None:
        place = int.from_bytes(self.read(4), "little")
        if place > len(self.memo) + _FREE_PLACES:
            raise NotSavedByTorch("its pickle has a memo with places that are far away")
        self.memo[place] = self.stack[-1]

    def _memoize(self) -> None:
        memo, top = self.memo, self.stack[-1]
        if memo.get(len(memo) - 1) is top:
            raise NotSavedByTorch("its pickle gives one thing two places in a row")  # each takes 70 bytes
        memo[len(memo)] = top

    def _reduce(self) -> None:
        arguments = self.stack.pop()
        self.stack[-1] = self.call(self.stack[-1], arguments)

    def _new(self) -> None:
        arguments = self.stack.pop()
        self.stack[-1] = self.new(self.stack[-1], arguments)

    def _build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if type(target) is OrderedDict and may_have(OrderedDict, state):
            self.steps.charge(state)
            target.__dict__.update(state)
        elif isinstance(target, StandIn):
            target.fill(self, state)
        else:
            StandIn().fill(self, state)

    def _fill_list(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is list:
            target.extend(items)
        elif type(target) is Foreign:
            target.extend(self, items)
        else:
            raise NotSavedByTorch("its pickle fills something item by item that is not a list")

    def _fill_dict(self, items: list[Any]) -> None:
        target = self.stack[-1]
        fills, foreign = isinstance(target, dict), type(target) is Foreign
        if not fills and not foreign:
            raise NotSavedByTorch("its pickle fills something item by item that is not a dict")
        for at in range(0, len(items), 2):
            if foreign:
                target.put(self, items[at], items[at + 1])
            else:
                self.steps.charge_key(target, items[at])
                target[items[at]] = items[at + 1]

    def _fill_set(self) -> None:
        items, target = self.pop_mark(), self.stack[-1]
        if type(target) is not set:
            raise NotSavedByTorch("its pickle fills something item by item that is not a set")
        for item in items:
            self.steps.charge_key(target, item)
            target.add(item)

    def _freeze(self) -> None:
        self.steps.spend(_WEIGHTS[pickle.EMPTY_SET[0]])
        items = self.steps.set_of(self.pop_mark())  # which replaces `append`
        self.append(frozenset(items))


def may_have(kind: type, state: Any) -> bool:
    """Whether an instance of `kind` can be given these attributes without changing what it does."""
    return type(state) is dict and not any(
        type(key) is not str or key.startswith("__") or hasattr(kind, key) for key in state
    )


# Those of protocols 2 to 5, without extension codes and buffers outside of the pickle, and without bytearrays, of which
# the unpickler would make one as large as the pickle says.
_OPCODES = b"\x80.012NKMGJXUTBCqhj)tcQ\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x93"
# Those of a single byte that take 50 bytes of memory or more, in steps.
_WEIGHTS = {
    pickle.MARK[0]: 2,
    pickle.TUPLE1[0]: 2,
    pickle.EMPTY_LIST[0]: 4,
    pickle.EMPTY_DICT[0]: 4,
    pickle.EMPTY_SET[0]: 6,
}
ACTIONS: Actions = {
    **{opcode: _Unpickler.dispatch[opcode] for opcode in _OPCODES},
    **{opcode: partial(Unpickler._weigh, opcode=opcode, steps=steps) for opcode, steps in _WEIGHTS.items()},
    pickle.FRAME[0]: Unpickler._frame,
    pickle.LONG_BINPUT[0]: Unpickler._put,
    pickle.MEMOIZE[0]: Unpickler._memoize,
    pickle.REDUCE[0]: Unpickler._reduce,
    pickle.NEWOBJ[0]: Unpickler._new,
    pickle.BUILD[0]: Unpickler._build,
    pickle.APPEND[0]: lambda unpickler: unpickler._fill_list([unpickler.stack.pop()]),
    pickle.APPENDS[0]: lambda unpickler: unpickler._fill_list(unpickler.pop_mark()),
    pickle.SETITEM[0]: lambda unpickler: unpickler._fill_dict([unpickler.stack.pop(-2), unpickler.stack.pop()]),
    pickle.SETITEMS[0]: lambda unpickler: unpickler._fill_dict(unpickler.pop_mark()),
    pickle.ADDITEMS[0]: Unpickler._fill_set,
    pickle.FROZENSET[0]: Unpickler._freeze,
}
Unpickler.actions = ACTIONS


_SHOWN = 200
_MAX_NDIM = 256  # torch has no limit, but each place of each chunk is as long
_DCP = "torch.distributed.checkpoint.metadata"
_PLANNER = "torch.distributed.checkpoint.planner"
_SHARDED = "torch.distributed._shard.sharded_tensor.metadata"  # where torch before 2.3 had TensorProperties
_FIRST = "torch.distributed._shard.checkpoint."  # where torch 1.13 had DCP
_MEMORY_FORMATS = {1: "channels_last", 2: "preserve"}


@dataclass(frozen=True)
class StockMetadata:
    items: Mapping[str, Item]
    modules: tuple[str, ...]


def read_stock(pickled: bytes, rank: int | None) -> StockMetadata:
    """Read DCP's pickle, the whole file. `rank` says whose rank-local metadata it is; None for that of all ranks, whose
    chunks have to tile their tensors. Raises MetadataError if it is damaged, names something that does not belong
    there, or is inconsistent.
    """
    if pickled[:1] != pickle.PROTO or not b"\2" <= pickled[1:2] <= b"\5":
        raise MetadataError("the metadata is neither an index nor a pickle of protocol 2 to 5: the file is damaged")
    unpickler = _StockUnpickler(pickled)
    with collector_paused():
        try:
            content = unpickler.load()
        except NotSavedByTorch as error:
            raise MetadataError(f"the metadata is not a pickle of DCP: {error}") from None
        if not unpickler.at_end:
            raise MetadataError(
                "something follows the metadata that is not a trailer: the file is damaged, truncated or appended to"
            )
        return _Items(_state(content, "Metadata"), rank, work_for(len(pickled) // 8)).convert()


class _Stated(StandIn):
    __slots__ = ("state",)
    state: Any

    def fill(self, unpickler: Unpickler, state: Any) -> None:
        self.state = state


@dataclass(slots=True, eq=False)
class _Value(StandIn):
    """A layout, or a memory format."""

    value: object


_CLASSES = {
    name: type(name, (_Stated,), {"__slots__": ()})
    for name in (
        *("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata"),
        *("MetadataIndex", "StorageMeta", "TensorProperties", "_StorageInfo"),
        *("SavePlan", "WriteItem", "TensorWriteData"),  # what Megatron adds, and nobody else reads
    )
}


def _size(numbers: object = ()) -> Size:
    return Size(numbers) if type(numbers) in (tuple, list) else bad("a Size")  # type: ignore[arg-type]


def _valued(kind: type) -> Callable[[object], _Value]:
    return lambda value: _Value(value) if type(value) is kind else bad(f"something is not called with {kind.__name__}")


_CALLS: dict[tuple[str, str], Callable[..., Any]] = {
    **{("torch", dtype): lambda: None for dtype in DTYPES},
    ("torch", "Size"): _size,
    ("torch.serialization", "_get_layout"): _valued(str),
    (_DCP, "_MEM_FORMAT_ENCODING"): _valued(int),
    (_SHARDED, "MEM_FORMAT_ENCODING"): _valued(int),
    ("collections", "OrderedDict"): lambda: {},
    (_PLANNER, "WriteItemType"): _valued(int),
    **{  # the folder's name, which torch's writers store as a path; Python 3.13 has a module of their own for these
        (module, name): lambda *parts: StandIn()
        for module in ("pathlib", "pathlib._local")
        for name in ("Path", "PurePath", "PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath")
    },
}
_MODULES = dict.fromkeys(_CLASSES, _DCP) | {
    "_StorageInfo": "torch.distributed.checkpoint.filesystem",
    **dict.fromkeys(("SavePlan", "WriteItem", "TensorWriteData"), _PLANNER),
}


class _StockUnpickler(Unpickler):
    on_purpose = MetadataError

    def find_class(self, module: str, name: str) -> Name:
        if module.startswith(_FIRST):
            module = f"torch.distributed.checkpoint.{module.removeprefix(_FIRST)}"
        if (call := _CALLS.get((module, name))) is not None:
            return Name(name, call)
        if _MODULES.get(name) == module or (module, name) == (_SHARDED, "TensorProperties"):
            return Name(name, _CLASSES[name])
        if not self.read(1):  # a name is never the last thing in a pickle, and what is left of it means nothing
            bad("it ends with a name, so it was truncated")
        wanted = ascii(f"{module:.200}.{name:.200}")[1:-1]
        raise MetadataError(f"the metadata wants {wanted}, which does not belong there: refused, and nothing was run")

    def persistent_load(self, pid: object) -> NoReturn:
        raise MetadataError("the metadata refers to something outside itself")


def _state(record: object, name: str) -> Any:
    if type(record) is not _CLASSES[name]:
        bad(f"there is no {name} where one belongs")
    return getattr(record, "state", None)


def _members(record: object, name: str) -> dict[str, Any]:
    state = _state(record, name)
    return state if type(state) is dict else bad(f"a {name} has no attributes")


def _numbers(value: object, what: str) -> tuple[int, ...]:
    if type(value) is not Size:
        bad(what)
    if len(value) > _MAX_NDIM:
        text = f"a tensor has {len(value):,} dimensions, and checkpoints with tensors of at most {_MAX_NDIM} are read"
        raise UnsupportedError(f"{text}: load it with torch's own reader")
    return tuple(integer(each, what, MAX_INT) for each in value)


class _Items:
    def __init__(self, content: Any, rank: int | None, steps: Steps) -> None:
        self._content = mapping(content, "Metadata has no attributes")
        self._check, self._steps = check_tiles if rank is None else check_apart, steps
        self._checked: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._known: set[str] = set()

    def convert(self) -> StockMetadata:
        entries = mapping(self._content.get("state_dict_metadata"), "state_dict_metadata")
        if "" in entries:  # said before its place is found to have no name
            check_name("")
        self._places = self._read_places()
        paths = self._content.get("planner_data")
        self._paths = paths if type(paths) is dict else {}
        items: dict[str, Item] = {}
        for name, entry in entries.items():
            try:
                items[check_name(name)] = self._item(name, entry)
            except MetadataError as error:
                raise error.locate(item=name[:_SHOWN] if type(name) is str else None) from None
        return StockMetadata(items, self._modules())

    def _modules(self) -> tuple[str, ...]:
        meta = self._content.get("storage_meta")
        modules = _members(meta, "StorageMeta").get("modules") if type(meta) is _CLASSES["StorageMeta"] else None
        return tuple(each for each in modules if type(each) is str) if isinstance(modules, list) else ()

    def _read_places(self) -> dict[tuple[str, str], Place]:
        stored = mapping(self._content.get("storage_data"), "storage_data")
        places: dict[tuple[str, str], Place] = {}
        for record, info in stored.items():
            index = _members(record, "MetadataIndex")
            offset = index.get("offset")
            name = check_name(index.get("fqn") or bad("a chunk's place is of no item"))
            where = name, str(None if offset is None else _numbers(offset, "an offset"))
            if where in places:
                bad("a chunk has two places")
            places[where] = self._place(_members(info, "_StorageInfo"))
        return places

    def _place(self, info: dict[str, Any]) -> Place:
        path = info.get("relative_path")
        if type(path) is not str or path not in self._known:
            self._known.add(Place.check_path(path))
        at = integer(info.get("offset"), "an item's offset", MAX_INT)
        size = integer(info.get("length"), "an item's length", MAX_INT)
        texts = info.get("transform_descriptors")
        texts = [] if texts is None else texts
        if type(texts) is not list or len(texts) > MAX_CODECS or not all(type(text) is str for text in texts):
            bad("transform_descriptors")
        return Place(str(path), at, size, self._descriptors(tuple(texts)))

    def _descriptors(self, texts: tuple[str, ...]) -> tuple[str, ...]:
        """The descriptors in save order; nearly all items have the same."""
        known = self._checked.get(texts)
        if known is None:
            for text in texts:
                try:
                    Descriptor.parse(text)
                except DescriptorError as error:
                    bad(f"a descriptor: {error.message}")
            known = self._checked[texts] = texts[::-1]
        return known

    def _item(self, name: str, entry: object) -> Item:
        path = known if is_path(known := self._paths.get(name)) else None
        if type(entry) is _CLASSES["BytesStorageMetadata"]:
            return ObjectItem(name, self._place_of(name, None), path)
        tensor = _members(entry, "TensorStorageMetadata")
        dtype, properties = _properties(tensor.get("properties"))
        shape = _numbers(tensor.get("size"), "a tensor's size")
        chunks = []
        for record in array(tensor.get("chunks"), "chunks"):
            chunk = _members(record, "ChunkStorageMetadata")
            offset = _numbers(chunk.get("offsets"), "a chunk's offsets")
            sizes = _numbers(chunk.get("sizes"), "a chunk's sizes")
            chunks.append(Chunk(offset, sizes, self._place_of(name, offset), framed=True))
        check_offsets([chunk[:2] for chunk in chunks])
        self._check(shape, [(chunk.offset, chunk.shape) for chunk in chunks], self._steps)
        return TensorItem(name, dtype, shape, tuple(chunks), path, properties)

    def _place_of(self, name: str, offset: tuple[int, ...] | None) -> Place:
        place = self._places.get((name, str(offset)))  # a string: numbers can be chosen so that all have one hash
        return place if place is not None else bad("it does not say where the item is stored")


def _properties(record: object) -> tuple[str, dict[str, bool | str]]:
    state = _state(record, "TensorProperties")
    if type(state) is not tuple or len(state) < 5 or type(state[0]) is not Name or state[0].name not in DTYPES:
        bad("a tensor's properties")
    dtype, layout, grad, memory_format, pinned = state[:5]
    properties: dict[str, bool | str] = {}
    if type(layout) is _Value:
        name = str(layout.value).removeprefix("torch.")
        if name != "strided":
            properties["layout"] = name[:32]
    properties |= {name: True for name, fact in (("requires_grad", grad), ("pin_memory", pinned)) if fact is True}
    if type(memory_format) is _Value and type(memory_format.value) is int and memory_format.value in _MEMORY_FORMATS:
        properties["memory_format"] = _MEMORY_FORMATS[memory_format.value]
    return dtype.name, properties
