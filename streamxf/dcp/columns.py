"""Plans and results as columns, for jobs of very many ranks, and the items of the index, which are made of them: what
each rank sends is a few arrays, and what ranks have alike the coordinator has once. DCP's object for an item is made
where somebody looks at it.
"""

from __future__ import annotations

import math
import pickle
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat, zip_longest
from typing import Any, NamedTuple, Self, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch.distributed.checkpoint import BytesStorageMetadata, ChunkStorageMetadata, Metadata
from torch.distributed.checkpoint.metadata import MetadataIndex, StorageMeta, TensorProperties
from torch.distributed.checkpoint.planner import ReadItem, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from streamxf.buffers import collector_paused
from streamxf.cached import cached_property
from streamxf.checkpoint.datafile import FileRecord, SavedFile
from streamxf.checkpoint.pickled import OWN, PLANNER_DATA, plain_members
from streamxf.checkpoint.sources import dtype_name
from streamxf.codecs import zstd
from streamxf.dcp.metadata import FEW, FLAGS, FORMATS, FOUND, PUBLISHED, LazyTensor, StoredMetadata, storage_data_of
from streamxf.errors import UnsupportedError, redacted
from streamxf.format.columns import Array
from streamxf.format.header import Kind
from streamxf.format.index import ChunkColumns, Index
from streamxf.format.items import ITEMSIZES, Chunk, Item, ObjectItem, Path, Place, TensorItem, is_path
from streamxf.format.names import metadata_name
from streamxf.format.tiling import Boxes
from streamxf.storage.storage import Storage

T = TypeVar("T")
Recorded = Callable[[str], tuple[str, ...]]  # from an item's name to the descriptors of its places
_NEXT_TO_TYPE = ["bytes_io_data"] * hasattr(WriteItem, "bytes_io_data")  # which torch 2.7 does not have


def packed(data: bytes) -> bytes:
    return zstd.compressor(1).compress(data)


def unpacked(data: bytes) -> bytes:
    return zstd.decompress(memoryview(data), zstd.declared_size(memoryview(data)))


class LazyItems(Sequence[T]):
    """Items that are made when one is asked for."""

    @abstractmethod
    def objects(self) -> list[T]:
        """Make them anew."""

    @cached_property
    def _items(self) -> list[T]:
        return self.objects()

    def __getitem__(self, at: Any) -> Any:
        return self._items[at]


class ReadItems(LazyItems[ReadItem]):
    """What a rank reads, which no other looks at: for others it stays as it was sent."""

    def __init__(self, items: Sequence[ReadItem] | bytes) -> None:
        self._sent = items if isinstance(items, bytes) else b""
        if not isinstance(items, bytes):
            self._items = [*items]

    def objects(self) -> list[ReadItem]:
        return pickle.loads(unpacked(self._sent))  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self._items)

    def __reduce__(self) -> Any:
        changed = "_items" in vars(self)  # perhaps: whoever looked at them may have changed one
        return ReadItems, (packed(pickle.dumps(self._items)) if changed else self._sent,)


class Shared(dict[str, Any]):
    """What many ranks have alike, and nobody changes: those that arrive alike are one object."""

    @cached_property
    def packed(self) -> bytes:
        return packed(pickle.dumps(dict(self)))

    def __reduce__(self) -> Any:
        return _shared, (type(self), self.packed)


_known: WeakValueDictionary[tuple[type, bytes], Shared] = WeakValueDictionary()


def _shared(kind: type[Shared], packed: bytes) -> Shared:
    if (made := _known.get((kind, packed))) is None:
        made = kind(pickle.loads(unpacked(packed)))
        made.packed = packed
        _known[kind, packed] = made
    return made


class SharedLayout(Shared):
    """By row ``names``, ``kinds`` and ``about``: of a tensor properties, whole size and the shard's shape."""

    @cached_property
    def shapes(self) -> Array:
        """Those of shards, with a column for each item, and zeros behind their dimensions."""
        return _rows(data[2] if data else () for data in self["about"])

    @cached_property
    def sizes(self) -> Array:
        """The bytes of each item's elements; 0 for an object, and where an element has no size."""
        each = ((math.prod(data[2]), dtype_name(data[0].dtype)) if data else (0, "") for data in self["about"])
        return np.array([count * ITEMSIZES.get(dtype, 0) for count, dtype in each], "i8")


class PlannedItems(LazyItems[WriteItem]):
    """What a rank writes: a layout, which other ranks are likely to have, too, and offsets.

    - `kept`: the rows that are meant.
    """

    def __init__(self, layout: SharedLayout, offsets: bytes, kept: Any = slice(None)) -> None:
        self.layout = layout
        self.offsets = offsets
        self.kept = kept

    @classmethod
    def of(cls, items: Sequence[WriteItem]) -> Self:
        """The items as columns, as they are by now: objects that were made may have been changed."""
        if isinstance(items, cls) and "_items" not in vars(items):
            return items
        data = [None if item.type == WriteItemType.BYTE_IO else item.tensor_data for item in items]
        layout = SharedLayout(
            names=[item.index.fqn for item in items],
            kinds=[(item.type, *(getattr(item, name) for name in _NEXT_TO_TYPE)) for item in items],
            about=[each and (each.properties, each.size, tuple(each.chunk.sizes)) for each in data],
        )
        return cls(layout, packed(_rows(each.chunk.offsets if each else () for each in data).tobytes()))

    @classmethod
    def exactly(cls, items: Sequence[WriteItem]) -> Sequence[WriteItem]:
        """As `of`; the items as they are if a column has no place for something that they have."""
        made = cls.of(items)
        return made if made is items or made.objects() == [*items] else items

    def __len__(self) -> int:
        return len(self._rows)

    def __reduce__(self) -> Any:
        own = PlannedItems.of(self)
        return PlannedItems, (own.layout, own.offsets, own.kept)

    @property
    def sizes(self) -> Array:
        """As `SharedLayout.sizes`."""
        return self.layout.sizes[self.kept]

    def boxes(self) -> tuple[Array, Array]:
        """Offsets and shapes, as the layout has these."""
        shapes = self.layout.shapes
        offsets = np.frombuffer(unpacked(self.offsets), "i8").reshape(shapes.shape)
        return offsets[:, self.kept], shapes[:, self.kept]

    def keeping(self, rows: Array) -> Self:
        """Those of some rows, counted among what is kept."""
        return type(self)(self.layout, self.offsets, self._rows[rows])

    def rows(self) -> Iterator[tuple[str, tuple[Any, ...], Any, list[int]]]:
        """What the layout has of each item, and its offset."""
        names, kinds, about = (self.layout[name] for name in ("names", "kinds", "about"))
        for row, offset in zip(self._rows.tolist(), self.boxes()[0].T.tolist(), strict=True):
            yield names[row], kinds[row], about[row], offset[: len(about[row][2]) if about[row] else 0]

    def objects(self) -> list[WriteItem]:
        made = []
        for name, kind, data, offset in self.rows():
            if data is None:
                made.append(WriteItem(MetadataIndex(name), *kind))
                continue
            chunk = ChunkStorageMetadata(at := torch.Size(offset), torch.Size(data[2]))
            made.append(WriteItem(MetadataIndex(name, at), *kind, TensorWriteData(chunk, *data[:2])))  # type: ignore[call-arg]
        return made

    @cached_property
    def _rows(self) -> Array:
        return np.arange(len(self.layout["names"]))[self.kept]


_NOTHING = None, None, ()  # beside what columns have


class StoredResults(LazyItems[WriteResult]):
    """Results of what a rank planned: by item the file's record, position, bytes, number, and whether it is framed.

    - `beside`: of all items what no column has, first digest, CRCs and what lies beneath, as in `Place`; or empty.
    - `spans`: those of values, by name.
    """

    def __init__(
        self,
        planned: PlannedItems,
        places: bytes,
        records: list[FileRecord],
        beside: Sequence[Any] = (),
        spans: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        self.planned = planned
        self._places = places
        self.records = records
        self.beside = beside
        self.spans = spans or {}

    @classmethod
    @collector_paused()
    def of(cls, items: Sequence[WriteItem], files: Sequence[SavedFile]) -> Self:
        """What `files` have, of which these are the items, in their order."""
        records = {record.path: record for file in files for record in (file.record, *file.kept)}
        numbers = {path: number for number, path in enumerate(records)}
        found = [(numbers[chunk.place.file], *chunk[2:]) for file in files for _, chunk in file.written]
        places = [(file, place.at, place.size, place.number or 0, framed) for file, place, framed in found]
        beside = [(place.digest, place.crcs, place.beneath) for _, place, _ in found]
        columns = np.array(places, "i8").reshape(-1, 5).T
        beside = beside if {*beside} - {_NOTHING} else []
        written = ((name, chunk.place.span) for file in files for name, chunk in file.written)
        spans = {name: span for name, span in written if span is not None}
        return cls(PlannedItems.of(items), packed(columns.tobytes()), [*records.values()], beside, spans)

    def places(self, files: Sequence[int]) -> Array:
        """With a column for each item, and for their files these ordinals."""
        found = np.frombuffer(unpacked(self._places), "i8").reshape(5, -1)
        return np.vstack([np.array(files, "i8")[found[:1]], found[1:]])

    def __len__(self) -> int:
        return len(self.planned)

    def __reduce__(self) -> Any:
        return StoredResults, (self.planned, self._places, self.records, self.beside, self.spans)

    def written(self, recorded: Recorded) -> Iterator[tuple[Any, Chunk]]:
        """Name and offset, which is None of an object, and what is stored there."""
        paths = [record.path for record in self.records]
        places = self.places(range(len(paths))).T.tolist()
        columns = zip(self.planned.rows(), places, self.beside or repeat(_NOTHING, len(places)), strict=True)
        for (name, _, data, offset), (file, at, size, number, framed), (first, crcs, beneath) in columns:
            span = None if data else self.spans.get(name)
            number = number if crcs is None else None
            place = Place(paths[file], at, size, recorded(name), first, number, crcs, beneath, span)
            chunk = Chunk(tuple(offset), data[2] if data else (), place, bool(framed))
            yield (name, chunk.offset if data else None), chunk

    def objects(self) -> list[WriteResult]:
        records: Any = {record.path: record for record in self.records}
        return [
            WriteResult(item.index, chunk.place.size, (chunk, records.pop(chunk.place.file, None)))
            for item, (_, chunk) in zip(self.planned.objects(), self.written(lambda _: ()), strict=True)
        ]


def _rows(values: Iterable[Sequence[int]]) -> Array:
    """Numbers of items, with a column for each item."""
    each = [*values]
    rows = [*zip_longest(*each, fillvalue=0)]
    return np.array(rows, "i8").reshape(len(rows), len(each))


def is_grid(boxes: Boxes, shape: Sequence[int]) -> bool:
    """As `Boxes.is_grid`; those without elements are left out, if they lie inside."""
    return bool((boxes.offsets + boxes.sizes <= [*shape]).all()) and boxes.with_elements().is_grid(shape)


class Merged(NamedTuple):
    """What all ranks write, in the order of names as they came, and for each name of offsets.

    - `about`: of each name, what a layout says about it.
    - `names`: by item, its name as an ordinal. `offsets`, `shapes`: with a column for each item.
    - `again`: whether an item is what the one before is, on another rank.
    - `order`: where each item was among those of all ranks, one after the other; `ends`: where those of each end.
    """

    about: dict[str, Any]
    names: Array
    offsets: Array
    shapes: Array
    again: Array
    order: Array
    ends: Array

    @classmethod
    def of(cls, ranks: Sequence[PlannedItems]) -> Self:
        """Raises ValueError if ranks contradict each other."""
        layouts = {id(items.layout): items.layout for items in ranks}
        about: dict[str, Any] = {}
        for layout in layouts.values():
            for name, data in zip(layout["names"], layout["about"], strict=True):
                each = known, _ = about.setdefault(name, data), data
                if (data and (data[0].dtype, data[1])) != (known and (known[0].dtype, known[1])):
                    one, two = (f"{some[0].dtype} {tuple(some[1])}" if some else "an object" for some in each)
                    raise ValueError(f"key:{name} is {one} on one rank, and {two} on another")
        ordinals = dict(zip(about, range(len(about)), strict=True))
        own = {key: np.array([*map(ordinals.__getitem__, each["names"])], "u4") for key, each in layouts.items()}
        ends = np.cumsum([*map(len, ranks)])
        width = max((len(data[1]) for data in about.values() if data), default=0)
        names, offsets, shapes = np.empty(ends[-1], "u4"), *(np.zeros((width, ends[-1]), "i8") for _ in range(2))
        for items, end in zip(ranks, ends.tolist(), strict=True):
            rows = slice(end - len(items), end)
            names[rows] = own[id(items.layout)][items.kept]
            for whole, part in zip((offsets, shapes), items.boxes(), strict=True):
                whole[: len(part), rows] = part
        order = np.argsort(names.astype("u2") if len(about) < 2**16 else names, kind="stable")
        again, falls = _compared(names[order], offsets[:, order])
        if falls:
            order = np.lexsort((*offsets[::-1], names))
            again, _ = _compared(names[order], offsets[:, order])
        return cls(about, names[order], offsets[:, order], shapes[:, order], again, order, ends)

    def spans(self) -> Iterator[tuple[str, Any, Boxes, slice]]:
        """Each name, what a layout says about it, where its items are, and which these are."""
        begins = np.searchsorted(self.names, np.arange(len(self.about) + 1)).tolist()
        for (name, data), begin, end in zip(self.about.items(), begins, begins[1:], strict=False):
            ndim, rows = len(data[1]) if data else 0, slice(begin, end)
            yield name, data, Boxes(self.offsets[:ndim, rows].T, self.shapes[:ndim, rows].T), rows

    def once(self, to_lowest_rank: bool) -> tuple[Self, list[Array]]:
        """Without copies, and what each rank writes then, as ordinals of its items. Of those that have the same, the
        lowest does, or for each tensor another one, from the largest on.
        """
        heads = np.flatnonzero(~self.again)
        counts = np.diff(heads, append=len(self.again))
        sizes = [math.prod(data[1]) * data[0].dtype.itemsize if data else 0 for data in self.about.values()]
        turn = np.argsort(np.argsort(sizes)[::-1])[self.names[heads]]
        first = np.searchsorted(self.ends, self.order[heads], "right")  # or all would begin with the same ranks
        rows = heads if to_lowest_rank else heads + (turn + first) % counts
        names, again, order = self.names[rows], self.again[heads], self.order[rows]
        keep = np.zeros(len(self.again), bool)
        keep[order] = True
        made = type(self)(self.about, names, self.offsets[:, rows], self.shapes[:, rows], again, order, self.ends)
        return made, [*map(np.flatnonzero, np.split(keep, self.ends[:-1]))]


def _compared(names: Array, offsets: Array) -> tuple[Array, bool]:
    """Which items have name and offset of the one before; and whether an offset is lower than the one before."""
    same, falls = names[1:] == names[:-1], False
    for axis in offsets:
        falls = falls or bool((same & (axis[1:] < axis[:-1])).any())
        same &= axis[1:] == axis[:-1]
    return np.concatenate([np.zeros(min(len(names), 1), bool), same]), falls


def extra_of(content: Metadata, paths: Mapping[str, Path]) -> dict[str, Any]:
    """What planners add: planner data that is not `paths`, and attributes. UnsupportedError if it is no plain data."""
    found = {name: value for name, value in vars(content).items() if name not in OWN | {FOUND, PUBLISHED, "_found"}}
    if content.planner_data is not None and not paths:
        found[PLANNER_DATA] = content.planner_data
    return plain_members(found, "the planner has")


def paths_of(content: Metadata) -> dict[str, Path]:
    """The planner data, if it says where items stand in a nested state dict, and nothing else."""
    data = content.planner_data
    known = isinstance(data, dict) and data.keys() <= content.state_dict_metadata.keys()
    return data if known and all(map(is_path, data.values())) else {}


def stored_properties(properties: TensorProperties) -> dict[str, bool | str]:
    """What is not as in a plain tensor."""
    found: dict[str, bool | str] = {name: True for name in FLAGS if getattr(properties, name)}
    if properties.layout != torch.strided:
        found["layout"] = str(properties.layout).removeprefix("torch.")
    for name, value in FORMATS.items():
        if properties.memory_format == value:
            found["memory_format"] = name
    return found


@collector_paused()
def items_of(
    content: Metadata, paths: Mapping[str, Path], results: Sequence[StoredResults], recorded: Recorded
) -> dict[str, Item]:
    """The items of a save that is about to be published, from the planner's `content`, its `paths`, and the results of
    all ranks. Raises UnsupportedError if something has no place in the index, or was not stored.
    """
    columns = _stored_columns(results, len(content.state_dict_metadata), recorded)
    stored = {key: chunk for own in (() if columns else results) for key, chunk in own.written(recorded)}
    spans = {name: span for own in results for name, span in own.spans.items()} if columns else {}
    items: dict[str, Item] = {}
    for name, entry in content.state_dict_metadata.items():
        path, chunks = paths.get(name), _chunks(name, entry, columns.get(name), stored)
        if isinstance(entry, BytesStorageMetadata):
            place = chunks[0].place
            items[name] = ObjectItem(name, place._replace(span=spans.get(name, place.span)), path)
            continue
        dtype, properties = dtype_name(entry.properties.dtype), stored_properties(entry.properties)
        items[name] = TensorItem(name, dtype, tuple(entry.size), chunks, path, properties)
    return items


def _stored_columns(results: Sequence[StoredResults], names: int, recorded: Recorded) -> dict[str, ChunkColumns]:
    """What all ranks stored, by name, where that is very much and columns have all of it; else nothing."""
    if sum(map(len, results)) < FEW * names or any(own.beside for own in results):
        return {}
    items = Merged.of([own.planned for own in results])
    if items.again.any():
        return {}
    paths = sorted({record.path for own in results for record in own.records})  # as the index counts them
    ordinals = dict(zip(paths, range(len(paths)), strict=True))
    places = [own.places([ordinals[record.path] for record in own.records]) for own in results]
    whole, made = np.concatenate(places, 1)[:, items.order], {}
    for name, data, boxes, rows in items.spans():
        made[name] = ChunkColumns(boxes, whole[:, rows], paths, recorded(name), Kind.TENSOR if data else Kind.OBJECT)
    return made


def _chunks(name: str, entry: Any, columns: ChunkColumns | None, stored: Mapping[Any, Chunk]) -> Sequence[Chunk]:
    """What was stored of an item, as it was planned."""
    boxes = entry.boxes if isinstance(entry, LazyTensor) and "chunks" not in vars(entry) else None
    if columns is not None:
        if boxes is not None and np.array_equal(columns.boxes.offsets, boxes.offsets):
            return columns
        stored = {(name, None if columns.kind is Kind.OBJECT else chunk.offset): chunk for chunk in columns}
    if boxes is not None:
        offsets: Iterable[Any] = map(tuple, boxes.offsets.tolist())
    else:
        offsets = [None] if isinstance(entry, BytesStorageMetadata) else (tuple(each.offsets) for each in entry.chunks)
    try:
        return tuple([stored[name, offset] for offset in offsets])
    except KeyError:
        raise UnsupportedError(
            "the metadata has a part of an item that was not stored, so the checkpoint would be incomplete; "
            "nothing was published. Save shards together with all other ranks (no_dist=False), or each rank for "
            "itself with use_collectives=False",
            item=name,
        ) from None


def complete(content: Metadata, index: Index, storage: Storage) -> None:
    """Put into `content` what torch's writers do, once `index` is published. Planners may keep it for the next save."""
    content.storage_meta = StorageMeta(redacted(storage.location()), index.save_id, modules=[*index.modules])
    if type(content) not in (Metadata, StoredMetadata):  # a planner's own class crosses ranks in its own way
        content.storage_data = storage_data_of(index.items)
        return
    content.__class__ = StoredMetadata
    for name in ("storage_data", "_found", FOUND):  # of the save before
        vars(content).pop(name, None)
    setattr(content, PUBLISHED, (storage, metadata_name(index.rank)))
