"""DCP's ``Metadata`` out of a pickle that cannot be trusted.

A pickle can name what DCP's own writers put into ``.metadata`` and nothing else; whatever is not on the list is refused
by name. Not even those names lead to the real classes: each stands for a function that makes an instance without
running anything of the class, and one that fills it in. The latter takes exactly what the class has, of exactly the
right types, so nobody who gets the result has to look again.

Attributes that this version does not know are kept where they are plain data under an ordinary name (newer versions of
torch may add some), and refused where they would hide something of the class.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from streamxf.collector import collector_paused
from streamxf.dcp.metadata.limits import (
    MAX_DEPTH,
    MAX_DESCRIPTORS,
    MAX_INT,
    MAX_LIST,
    MAX_NAME,
    MAX_NDIM,
    MAX_STEPS,
)
from streamxf.dcp.metadata.machine import Machine
from streamxf.dcp.metadata.names import OBJECT_CHARGE, Fill, Name, Pay
from streamxf.descriptor import MAX_BOUND, MAX_FRAGMENT
from streamxf.errors import MetadataError

State = Any
_EXTRA_CHARGE = 3  # an attribute takes a name and a value, and these at least two bytes and one
_ENTRY_CHARGE = 2
_KNOWN_PROPERTIES = len(TensorProperties().__getstate__())  # type: ignore[no-untyped-call]
_MAX_DESCRIPTOR_TEXT = MAX_BOUND + 1 + MAX_FRAGMENT


def load_metadata(pickled: memoryview) -> Metadata:
    """Unpickle `pickled`, which is a ``Metadata`` and nothing else.

    Raises
    ------
    MetadataError
        If it is damaged, names something that does not belong there, is no ``Metadata``, has an attribute of a wrong
        type or beyond the limits, or something follows it.
    """
    extras: list[Any] = []
    fill = {cls: partial(_fill, cls, extras) for cls in _FILLERS}
    machine = Machine(bytes(pickled), _find, fill, {MetadataIndex: _hash_of_index})
    with collector_paused():
        content, end = machine.run()
        if type(content) is not Metadata:
            raise MetadataError(f"the metadata holds a {type(content).__name__}, not DCP's Metadata")
        if end != len(pickled):
            raise MetadataError(
                "something follows the metadata that is no trailer: the file is damaged, or it was cut or continued"
            )
        _check_filled(content)
        _check_plain([content.planner_data, *extras])
        _check_paths(content.planner_data, content.state_dict_metadata)
    return content


def _find(module: str, name: str) -> Any:
    found = _ALLOWED.get((module, name))
    if found is None:
        wanted = ascii(f"{module:.200}.{name:.200}")[1:-1]
        raise MetadataError(
            f"the metadata wants {wanted}, which does not belong into a checkpoint's metadata; it was "
            "refused and nothing was run"
        )
    return found


# -- what names make when they are called ------------------------------------------------------------


def _make_size(pay: Pay, sizes: object) -> torch.Size:
    if type(sizes) is not tuple or len(sizes) > MAX_NDIM:
        raise MetadataError(f"the metadata holds a shape that is no tuple of at most {MAX_NDIM} numbers")
    pay(len(sizes))
    for size in sizes:
        if type(size) is not int or not 0 <= size <= MAX_INT:
            raise MetadataError("the metadata holds a shape or an offset with an impossible number")
    return torch.Size(sizes)


def _make_path(pay: Pay, *parts: object) -> str:
    """The folder's name, which torch's own writers store as a path: as text, which touches no file system."""
    texts = [part for part in parts if type(part) is str]
    if len(texts) < len(parts) or sum(map(len, texts)) + len(texts) > MAX_NAME:
        raise MetadataError(f"the metadata holds a path that is no text of at most {MAX_NAME} characters")
    pay(sum(map(len, texts)) + len(texts))
    return "/".join(texts).replace("//", "/", 1)


def _make_layout(_: Pay, name: object) -> torch.layout:
    if type(name) is not str or name not in _LAYOUTS:
        raise MetadataError("the metadata holds a layout that this torch does not know")
    return _LAYOUTS[name]


def _make_memory_format(_: Pay, value: object) -> metadata._MEM_FORMAT_ENCODING:
    if type(value) is not int:
        raise MetadataError("the metadata holds a memory format that is no number")
    return metadata._MEM_FORMAT_ENCODING(value)


def _make_ordered(pay: Pay, *arguments: object) -> OrderedDict[Any, Any]:
    if arguments:
        raise MetadataError("the metadata makes an OrderedDict as no pickling does")
    pay(OBJECT_CHARGE)
    return OrderedDict()


# -- how instances are filled in -----------------------------------------------------------------------


def _fill(cls: type, extras: list[Any], target: Any, state: State, pay: Pay) -> None:
    fields, required, fill = _FILLERS[cls]
    if required and hasattr(target, required):
        raise MetadataError(f"the metadata fills in a {cls.__name__} twice: it is hostile; it was refused")
    if cls is not TensorProperties and type(state) is not dict:
        raise MetadataError(f"the metadata fills in a {cls.__name__} with something that is no table; it was refused")
    try:
        fill(target, state, pay)
    except KeyError as error:
        raise MetadataError(f"the metadata is not complete: a {cls.__name__} has no {error}") from None
    if cls is TensorProperties or state.keys() <= fields:
        return
    pay(_EXTRA_CHARGE * len(state))
    for name in state.keys() - fields:
        _check_extra(cls, name)
        extras.append(state[name])
        object.__setattr__(target, name, state[name])


def _check_extra(cls: type, name: object) -> None:
    if type(name) is not str or not name.isidentifier() or name.startswith("_") or hasattr(cls, name):
        raise MetadataError(f"the metadata sets {name!r:.80} on a {cls.__name__}; it was refused")


def _fill_index(target: MetadataIndex, state: dict[str, Any], _: Pay) -> None:
    fqn, offset, index = state["fqn"], state.get("offset"), state.get("index")
    if type(offset) is not torch.Size and offset is not None:
        raise _wrong(target, "offset")
    if type(index) is not int and index is not None:
        raise _wrong(target, "index")
    object.__setattr__(target, "fqn", _name(target, "fqn", fqn))
    object.__setattr__(target, "offset", offset)
    object.__setattr__(target, "index", index)


def _fill_chunk(target: ChunkStorageMetadata, state: dict[str, Any], _: Pay) -> None:
    offsets, sizes = state["offsets"], state["sizes"]
    if type(offsets) is not torch.Size or type(sizes) is not torch.Size or len(offsets) != len(sizes):
        raise MetadataError("the metadata holds a chunk whose offsets and sizes are no shapes of the same length")
    target.offsets, target.sizes = offsets, sizes


def _fill_tensor(target: TensorStorageMetadata, state: dict[str, Any], pay: Pay) -> None:
    properties, size, chunks = state["properties"], state["size"], state["chunks"]
    if type(properties) is not TensorProperties or not hasattr(properties, "dtype"):
        raise _wrong(target, "properties")
    itemsize = properties.dtype.itemsize
    if type(size) is not torch.Size or itemsize * math.prod(max(length, 1) for length in size) > MAX_INT:
        raise _wrong(target, "size")
    if type(chunks) is not list:
        raise _wrong(target, "chunks")
    pay(len(chunks))
    for chunk in chunks:
        if type(chunk) is not ChunkStorageMetadata or not hasattr(chunk, "sizes"):
            raise _wrong(target, "chunks")
    if len(set(map(id, chunks))) != len(chunks):  # they would be looked at for the price of naming them again
        raise _wrong(target, "chunks")
    # copies of all lists and tables: what they were read from, the pickle may still change
    target.properties, target.size, target.chunks = properties, size, list(chunks)


def _fill_properties(target: TensorProperties, state: State, _: Pay) -> None:
    # newer versions of torch append to these (2.15: strides), which this one would not take
    if type(state) is not tuple or len(state) < _KNOWN_PROPERTIES:
        raise MetadataError("the metadata holds a tensor's properties that are not complete")
    dtype, layout, requires_grad, memory_format, pin_memory = state[:_KNOWN_PROPERTIES]
    if (
        type(dtype) is not torch.dtype
        or type(layout) is not torch.layout
        or type(memory_format) is not metadata._MEM_FORMAT_ENCODING
        or type(requires_grad) is not bool
        or type(pin_memory) is not bool
    ):
        raise MetadataError("the metadata holds a tensor's properties of the wrong types")
    target.__setstate__(state[:_KNOWN_PROPERTIES])  # type: ignore[no-untyped-call]


def _fill_place(target: _StorageInfo, state: dict[str, Any], _: Pay) -> None:
    path, offset, length = state["relative_path"], state["offset"], state["length"]
    descriptors = state.get("transform_descriptors")
    if type(path) is not str:
        raise MetadataError("the metadata names a file outside of the checkpoint: its path is no text")
    if type(offset) is not int or type(length) is not int or not (0 <= offset <= MAX_INT and 0 <= length <= MAX_INT):
        raise MetadataError("the metadata gives an item an impossible place")
    target.relative_path, target.offset, target.length = _name(target, "relative_path", path), offset, length
    if descriptors is not None:
        target.transform_descriptors = _descriptors(target, descriptors)


def _descriptors(target: object, descriptors: object) -> list[str]:
    if (type(descriptors) is not list and type(descriptors) is not tuple) or len(descriptors) > MAX_DESCRIPTORS:
        raise _wrong(target, "transform_descriptors")
    for text in descriptors:
        if type(text) is not str or len(text) > _MAX_DESCRIPTOR_TEXT:
            raise _wrong(target, "transform_descriptors")
    return list(descriptors)


def _fill_storage_meta(target: StorageMeta, state: dict[str, Any], pay: Pay) -> None:
    for field in ("checkpoint_id", "save_id", "load_id"):
        text = state.get(field)
        setattr(target, field, None if text is None else _name(target, field, text))
    modules = state.get("modules", [])
    if type(modules) is not list:
        raise _wrong(target, "modules")
    pay(len(modules))
    target.modules = [_name(target, "modules", text) for text in modules]


def _fill_metadata(target: Metadata, state: dict[str, Any], pay: Pay) -> None:
    items, places, meta = state["state_dict_metadata"], state.get("storage_data"), state.get("storage_meta")
    version = state.get("version")
    if type(items) is not dict:
        raise _wrong(target, "state_dict_metadata")
    pay(_ENTRY_CHARGE * len(items))
    for name, item in items.items():
        _name(target, "state_dict_metadata", name)
        if type(item) is not BytesStorageMetadata and not (
            type(item) is TensorStorageMetadata and hasattr(item, "chunks")
        ):
            raise _wrong(target, "state_dict_metadata")
        if type(item) is TensorStorageMetadata:
            pay(len(item.chunks))  # for each name: one tensor may be used under many, and is looked at for each
    if places is not None:
        if type(places) is not dict:
            raise _wrong(target, "storage_data")
        pay(_ENTRY_CHARGE * len(places))
        for index, place in places.items():
            if type(index) is not MetadataIndex or type(place) is not _StorageInfo or not hasattr(place, "length"):
                raise _wrong(target, "storage_data")
    if meta is not None and not (type(meta) is StorageMeta and "modules" in vars(meta)):
        raise _wrong(target, "storage_meta")
    target.state_dict_metadata = dict(items)
    target.storage_data = None if places is None else dict(places)
    target.storage_meta = meta
    target.version = None if version is None else _name(target, "version", version)
    target.planner_data = state.get("planner_data")


def _fill_nothing(target: BytesStorageMetadata, state: dict[str, Any], _: Pay) -> None:
    """It has no attributes."""


def _name(target: object, field: str, text: Any) -> Any:
    if type(text) is not str or len(text) > MAX_NAME:
        raise _wrong(target, field)
    return text


def _wrong(target: object, field: str) -> MetadataError:
    return MetadataError(f"the metadata holds a {type(target).__name__} with an impossible {field!r}; it was refused")


def _hash_of_index(index: MetadataIndex) -> int:
    if not hasattr(index, "fqn"):
        raise MetadataError("the metadata is not complete: an item has no name")
    return hash((index.fqn, index.offset))  # which is its own hash, computed faster


def _check_filled(content: Metadata) -> None:
    if not hasattr(content, "state_dict_metadata"):
        raise MetadataError("the metadata is not complete: it has no items")


# -- what may be anything ------------------------------------------------------------------------------


def _check_plain(values: list[Any]) -> None:
    """Refuse what is no plain data, or is nested too deep; that includes what holds itself.

    Every list, tuple and table is looked at once for each depth at which it occurs.
    """
    seen: set[int] = set()
    level = values
    for _ in range(MAX_DEPTH):
        deeper: list[Any] = []
        for value in level:
            kind = type(value)
            if kind is tuple or kind is list:
                parts = value
            elif kind is dict or kind is OrderedDict:
                parts = value.values()
            elif kind in _PLAIN:
                continue
            else:
                raise MetadataError(f"the metadata holds a {kind.__name__} where plain data belongs; it was refused")
            if id(value) not in seen:
                seen.add(id(value))
                deeper.extend(part for part in parts if type(part) not in _PLAIN)
        if not deeper:
            return
        level, seen = deeper, set()
    raise MetadataError(f"the metadata is nested deeper than {MAX_DEPTH} levels; it was refused")


def _check_paths(planner_data: Any, items: dict[str, Any]) -> None:
    """Refuse paths into lists that nobody saved: loading without a state dict makes each list as long as its largest
    index says. For an item DCP takes whatever stands here as its path.
    """
    if not isinstance(planner_data, dict):
        return
    known: dict[int, bool] = {}  # each is looked at once: one may be used a million times
    paths: list[tuple[Any, ...]] = []
    for name, path in planner_data.items():
        new = id(path) not in known
        if new:
            known[id(path)] = type(path) is tuple and all(type(step) is str or type(step) is int for step in path)
        if not known[id(path)] and name in items:
            raise _impossible_path()
        if not known[id(path)] or not new:
            continue
        texts = sum(len(step) for step in path if type(step) is str)
        numbers = [step for step in path if type(step) is int]
        if not 0 < len(path) <= MAX_STEPS or texts > MAX_NAME or not all(0 <= step < MAX_LIST for step in numbers):
            raise _impossible_path()
        paths.append(path)
    if list_lengths(paths) > MAX_LIST + 16 * len(planner_data):
        raise MetadataError("the metadata speaks of longer lists than its items explain; it was refused")


def list_lengths(paths: Iterable[tuple[Any, ...]]) -> int:
    """How long all lists are together into which `paths` lead, by their largest indexes.

    It goes from level to level, and forgets those above: beginnings of paths take a hundred times what paths take.
    """
    total = 0
    inside = [(path, 0) for path in paths]  # each with the number of the list or table in which its next step is
    depth = 0
    while inside:
        longest: dict[int, int] = {}
        numbers: dict[tuple[int, Any], int] = {}
        deeper = []
        for path, container in inside:
            step = path[depth]
            if type(step) is int:
                longest[container] = max(longest.get(container, 0), step)
            if depth + 1 < len(path):
                deeper.append((path, numbers.setdefault((container, step), len(numbers))))
        total += sum(longest.values())
        inside = deeper
        depth += 1
    return total


def _impossible_path() -> MetadataError:
    return MetadataError("the metadata holds an impossible path of an item in its state dict; it was refused")


_PLAIN = frozenset({type(None), bool, int, float, str, bytes, torch.Size, torch.dtype, torch.layout})
_LAYOUTS = {str(value): value for value in vars(torch).values() if isinstance(value, torch.layout)}
_PATHS = [
    (module, name)
    for module in ("pathlib", "pathlib._local")
    for name in ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath")
]
# the attributes, one that only an instance has which was filled in, and how to fill it in
_FILLERS: dict[type, tuple[frozenset[str], str, Fill]] = {
    BytesStorageMetadata: (frozenset(), "", _fill_nothing),
    ChunkStorageMetadata: (frozenset({"offsets", "sizes"}), "sizes", _fill_chunk),
    Metadata: (
        frozenset({"state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version"}),
        "state_dict_metadata",
        _fill_metadata,
    ),
    MetadataIndex: (frozenset({"fqn", "offset", "index"}), "fqn", _fill_index),
    StorageMeta: (frozenset({"checkpoint_id", "save_id", "load_id", "modules"}), "modules", _fill_storage_meta),
    TensorProperties: (frozenset(), "dtype", _fill_properties),
    TensorStorageMetadata: (frozenset({"properties", "size", "chunks"}), "chunks", _fill_tensor),
    _StorageInfo: (frozenset({"relative_path", "offset", "length", "transform_descriptors"}), "length", _fill_place),
}
_CLASSES: dict[tuple[str, str], Any] = {
    (cls.__module__, cls.__qualname__): Name(
        cls.__qualname__, make=partial(object.__new__, cls), fields=fields, fill=fill
    )
    for cls, (fields, _, fill) in _FILLERS.items()
}
_MEMORY_FORMAT = Name("_MEM_FORMAT_ENCODING", call=_make_memory_format)
_BEFORE_2_3 = "torch.distributed._shard.sharded_tensor.metadata"  # where these two stood, with the same content
_ALLOWED: dict[tuple[str, str], Any] = {
    **_CLASSES,
    (_BEFORE_2_3, "TensorProperties"): _CLASSES[metadata.__name__, "TensorProperties"],
    (_BEFORE_2_3, "MEM_FORMAT_ENCODING"): _MEMORY_FORMAT,
    **{("torch", name): value for name, value in vars(torch).items() if isinstance(value, torch.dtype)},
    **dict.fromkeys(_PATHS, Name("a path", call=_make_path)),
    (metadata.__name__, "_MEM_FORMAT_ENCODING"): _MEMORY_FORMAT,
    ("torch.serialization", "_get_layout"): Name("_get_layout", call=_make_layout),
    ("collections", "OrderedDict"): Name("OrderedDict", call=_make_ordered),
    ("torch", "Size"): Name("torch.Size", call=_make_size, pure=True),
}
