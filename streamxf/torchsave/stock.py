"""DCP's own ``.metadata``, a pickle, read without running anything that it says.

The names that DCP's writers use lead to records, which hold the state that the
pickle gives them and do nothing; every other name is refused. docs/format/stock.md.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from streamxf.budget import Steps
from streamxf.buffers import collector_paused
from streamxf.descriptor import Descriptor
from streamxf.errors import DescriptorError, MetadataError, UnsupportedError
from streamxf.format.fields import array, bad, integer, mapping
from streamxf.format.items import DTYPES, Chunk, Item, ObjectItem, Place, TensorItem, check_name, check_path, is_path
from streamxf.format.limits import MAX_CODECS, MAX_INT
from streamxf.format.tiling import check_apart, check_offsets, check_tiles, work_for
from streamxf.torchsave.archive import NotSavedByTorch
from streamxf.torchsave.unpickler import Name, Size, StandIn, Unpickler

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
            bad("it ends with a name, so it was cut")
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
            self._known.add(check_path(path))
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
    dtype, layout, requires_grad, memory_format, pin_memory = state[:5]
    properties: dict[str, bool | str] = {}
    if type(layout) is _Value:
        name = str(layout.value).removeprefix("torch.")
        if name != "strided":
            properties["layout"] = name[:32]
    if requires_grad is True:
        properties["requires_grad"] = True
    if pin_memory is True:
        properties["pin_memory"] = True
    if type(memory_format) is _Value and type(memory_format.value) is int and memory_format.value in _MEMORY_FORMATS:
        properties["memory_format"] = _MEMORY_FORMATS[memory_format.value]
    return dtype.name, properties
