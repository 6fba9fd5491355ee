"""Plans and results as columns, for jobs of very many ranks: what each rank sends is a few arrays, and what ranks have
alike the coordinator has once. DCP's object for an item is made where somebody looks at it.
"""

from __future__ import annotations

import math
import pickle
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, Self, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import ReadItem, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from streamxf.cached import cached_property
from streamxf.checkpoint.datafile import FileRecord, SavedFile
from streamxf.checkpoint.sources import dtype_name
from streamxf.codecs import zstd
from streamxf.format.columns import Array
from streamxf.format.items import ITEMSIZES, Chunk, Place
from streamxf.format.tiling import Boxes

T = TypeVar("T")


def packed(data: bytes) -> bytes:
    return zstd.compressor(1).compress(data)


def unpacked(data: bytes) -> bytes:
    return zstd.decompress(memoryview(data), zstd.declared_size(memoryview(data)))


class LazyItems(Sequence[T]):
    """Items that are made when one is asked for."""

    @abstractmethod
    def _made(self) -> list[T]:
        """Make them."""

    @cached_property
    def _items(self) -> list[T]:
        return self._made()

    def __getitem__(self, at: Any) -> Any:
        return self._items[at]


class ReadItems(LazyItems[ReadItem]):
    """What a rank reads, which no other looks at: for others it stays as it was sent."""

    def __init__(self, items: Sequence[ReadItem] | bytes) -> None:
        self._sent = items if isinstance(items, bytes) else b""
        if not isinstance(items, bytes):
            self._items = [*items]

    def _made(self) -> list[ReadItem]:
        made: list[ReadItem] = pickle.loads(unpacked(self._sent))
        return made

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

    - `kept`: the rows that are meant; None for all.
    """

    def __init__(self, layout: SharedLayout, offsets: bytes, kept: Array | None = None) -> None:
        self.layout = layout
        self.offsets = offsets
        self.kept = kept

    @classmethod
    def of(cls, items: Sequence[WriteItem]) -> Sequence[WriteItem]:
        """The items as columns; as they are if a column has no place for something that they have."""
        if isinstance(items, cls) and (own := items.as_sent()) is not None:
            return own
        data = [None if item.type == WriteItemType.BYTE_IO else item.tensor_data for item in items]
        layout = SharedLayout(
            names=[item.index.fqn for item in items],
            kinds=[(item.type, item.bytes_io_data) for item in items],
            about=[each and (each.properties, each.size, tuple(each.chunk.sizes)) for each in data],
        )
        made = cls(layout, packed(_rows(each.chunk.offsets if each else () for each in data).tobytes()))
        return made if [*items] == made._made() else [*items]

    def as_sent(self) -> PlannedItems | None:
        """These items without the objects for them; None if such an object has been changed."""
        made = PlannedItems(self.layout, self.offsets, self.kept)
        return made if "_items" not in vars(self) or made._made() == self._items else None

    def __len__(self) -> int:
        return len(self.layout["names"] if self.kept is None else self.kept)

    def __reduce__(self) -> Any:
        own = PlannedItems.of(self)
        return (PlannedItems, (own.layout, own.offsets, own.kept)) if isinstance(own, PlannedItems) else (list, (own,))

    def boxes(self) -> tuple[Array, Array]:
        """Offsets and shapes, as the layout has these."""
        shapes = self.layout.shapes
        offsets = np.frombuffer(unpacked(self.offsets), "i8").reshape(shapes.shape)
        return (offsets, shapes) if self.kept is None else (offsets[:, self.kept], shapes[:, self.kept])

    def keeping(self, rows: Array) -> Self:
        """Those of some rows, counted among what is kept."""
        return type(self)(self.layout, self.offsets, rows if self.kept is None else self.kept[rows])

    def _made(self) -> list[WriteItem]:
        names, kinds, about = (self.layout[name] for name in ("names", "kinds", "about"))
        made = []
        for row, offset in zip(self._rows, self.boxes()[0].T.tolist(), strict=True):
            (kind, size), data = kinds[row], about[row]
            if data is None:
                made.append(WriteItem(MetadataIndex(names[row]), kind, size))
                continue
            at = torch.Size(offset[: len(data[1])])
            chunk = ChunkStorageMetadata(at, torch.Size(data[2]))
            made.append(WriteItem(MetadataIndex(names[row], at), kind, size, TensorWriteData(chunk, data[0], data[1])))
        return made

    @property
    def _rows(self) -> Iterable[int]:
        return range(len(self)) if self.kept is None else self.kept.tolist()


class StoredResults(LazyItems[WriteResult]):
    """Results of what a rank planned: of each item the file's record, position, bytes, number, whether it is framed."""

    def __init__(self, planned: PlannedItems, places: bytes, records: list[FileRecord], descriptors: Any) -> None:
        self.planned = planned
        self._places = places
        self.records = records
        self.descriptors = descriptors

    @classmethod
    def of(cls, planned: PlannedItems, rows: Iterable[int], files: Sequence[SavedFile]) -> Self:
        """What `files` have, of the items in these rows, in their order."""
        found = [(number, chunk) for number, file in enumerate(files) for _, chunk in file.written]
        places = np.empty((5, len(found)), "i8")
        for row, (file, (_, _, place, framed)) in zip(rows, found, strict=True):
            places[:, row] = file, place.at, place.size, place.number, framed
        records, descriptors = [file.record for file in files], found[0][1].place.descriptors if found else ()
        return cls(planned, packed(places.tobytes()), records, descriptors)

    def places(self, files: Sequence[int]) -> Array:
        """With a column for each item, and for their files these ordinals."""
        found = np.frombuffer(unpacked(self._places), "i8").reshape(5, -1)
        return np.vstack([np.array(files, "i8")[found[:1]], found[1:]])

    def __len__(self) -> int:
        return len(self.planned)

    def __reduce__(self) -> Any:
        return StoredResults, (self.planned, self._places, self.records, self.descriptors)

    def _made(self) -> list[WriteResult]:
        made, records = [], dict[int, Any](enumerate(self.records))
        places = self.places(range(len(self.records))).T.tolist()
        for item, (file, at, size, number, framed) in zip(self.planned._made(), places, strict=True):
            place = Place(self.records[file].path, at, size, self.descriptors, None, number)
            shape = tuple(item.tensor_data.chunk.sizes) if item.tensor_data is not None else ()
            chunk = Chunk(tuple(item.index.offset or ()), shape, place, bool(framed))
            made.append(WriteResult(item.index, size, (chunk, records.pop(file, None))))
        return made


def _rows(values: Iterable[Sequence[int]]) -> Array:
    """Numbers of items, with a column for each item."""
    each = [*values]
    rows = [*zip_longest(*each, fillvalue=0)]
    return np.array(rows, "i8").reshape(len(rows), len(each))


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
            rows, found = slice(end - len(items), end), own[id(items.layout)]
            names[rows] = found if items.kept is None else found[items.kept]
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
