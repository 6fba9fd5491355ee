"""Bands of items, as they are written: each has some items, cut into parts with some chunks of each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from json.encoder import encode_basestring_ascii
from typing import Any

from streamxf.errors import MetadataError
from streamxf.format import columns as col
from streamxf.format import limits
from streamxf.format.columns import Array, Column, TooLarge, pack_part
from streamxf.format.header import Kind
from streamxf.format.items import Chunk, Item, Place, TensorItem
from streamxf.format.tiling import Boxes

_JSON = json.JSONEncoder(separators=(",", ":"))
_ROWS = 16_384  # chunks in a part, or items with one chunk each
_ITEMS = 64  # in a band, where they have many chunks
_BYTES = 2**20  # of what each part of a band has of its items


@dataclass(frozen=True, eq=False)
class ChunkColumns(Sequence[Chunk]):
    """Chunks of a tensor as columns, by their offsets; or an object, by its `kind`.

    - `places`: with a column for each chunk, and rows of file, position, bytes, number, and whether it is framed.
    - `paths`: those of all files of the save, in order. `descriptors`: as in `Place`.
    """

    boxes: Boxes
    places: Array
    paths: list[str]
    descriptors: tuple[str, ...]
    kind: Kind

    def __len__(self) -> int:
        return len(self.boxes.offsets)

    def __getitem__(self, key: Any) -> Any:
        rows = key if isinstance(key, slice) else slice(at := range(len(self))[key], at + 1)
        boxes = Boxes(self.boxes.offsets[rows], self.boxes.sizes[rows])
        some = replace(self, boxes=boxes, places=self.places[:, rows])
        return some if isinstance(key, slice) else next(iter(some))

    def __iter__(self) -> Iterator[Chunk]:
        for box, (file, at, size, number, framed) in zip(self.boxes.spans(), self.places.T.tolist(), strict=True):
            yield Chunk(*box, Place(self.paths[file], at, size, self.descriptors, None, number), bool(framed))

    def columns(self) -> dict[Column, Any]:
        """As a part has them."""
        import numpy

        kinds = numpy.where(self.places[4], Kind.FRAMED, self.kind)
        found = (*(side.ravel() for side in self.boxes), kinds, *self.places[:4])
        return dict(zip(_NUMBERS, found, strict=True))


_Coded = tuple[Item, Sequence[Chunk], bytes]  # an item, its chunks by their offsets, and what else there is to say


def packed_bands(
    items: Mapping[str, Item],
    files: Mapping[str, int],
    dtypes: list[str],
    numbered: bool,
    hashed: bool,
    parts: list[bytes],
) -> Iterator[dict[str, Any]]:
    """What the root says of bands; their parts are added to `parts`. `files` are the ordinals of files."""
    kinds = {dtype: number for number, dtype in enumerate(dtypes, 1)}
    left_out = {col.CRCS if numbered else col.NUMBER, *(() if hashed else [col.SHA256])}
    for band in _bands(map(items.__getitem__, sorted(items))):
        about = _about(band, kinds)
        step = max(1, _ROWS // len(band))
        while True:
            try:
                found = [*_parts(band, about, files, left_out, step)]
                break
            except TooLarge:
                if step == 1:
                    raise
                step //= 2
        parts += [packed for packed, _ in found]
        ends = {"first": band[0][0].name, "last": band[-1][0].name}
        yield {**ends, "items": len(band), "parts": [entry for _, entry in found]}


def _bands(items: Iterable[Item]) -> Iterator[list[_Coded]]:
    band: list[_Coded] = []
    most = size = 0
    for item in items:
        chunks = _chunks(item)
        more = _more(item)
        crcs = () if isinstance(chunks, ChunkColumns) else (len(each.place.crcs or b"") for each in chunks)
        own = max(crcs, default=0)
        own += len(item.name.encode()) + len(more) + 64
        if isinstance(item, TensorItem):
            own += 24 * len(item.shape)  # with one chunk
        widest = max(most, len(chunks))
        full = len(band) >= _ITEMS and (len(band) + 1) * widest > _ROWS
        if band and (full or size + own > _BYTES):
            yield band
            band, size, widest = [], 0, len(chunks)
        band.append((item, chunks, more))
        most, size = widest, size + own
    if band:
        yield band


def _chunks(item: Item) -> Sequence[Chunk]:
    if isinstance(item, TensorItem) and isinstance(item.chunks, ChunkColumns):
        return item.chunks
    if isinstance(item, TensorItem):
        return sorted(item.chunks)
    return [Chunk((), (), item.place, False)]


def _more(item: Item) -> bytes:
    properties = item.properties if isinstance(item, TensorItem) else None
    members = [] if item.path is None else [f'"path":[{",".join(map(_step, item.path))}]']
    members += [f'"properties":{_JSON.encode(dict(properties))}'] if properties else []
    return f"{{{','.join(members)}}}".encode("ascii") if members else b""


def _step(step: str | int) -> str:
    return encode_basestring_ascii(step) if isinstance(step, str) else str(step)


def _about(band: list[_Coded], dtypes: Mapping[str, int]) -> dict[Column, Any]:
    """The columns of a band's items."""
    names = [item.name.encode() for item, _, _ in band]
    if max(map(len, names)) > limits.MAX_IDENTITY:
        raise MetadataError(f"an item has a name of more than {limits.MAX_IDENTITY} bytes, which is the most")
    shapes = [item.shape if isinstance(item, TensorItem) else () for item, _, _ in band]
    mores = [more for _, _, more in band]
    return {
        col.NAME_ENDS: [*accumulate(map(len, names))],
        col.NAMES: b"".join(names),
        col.MORE_ENDS: [*accumulate(map(len, mores))],
        col.MORE: b"".join(mores),
        col.DTYPE: [dtypes[item.dtype] if isinstance(item, TensorItem) else 0 for item, _, _ in band],
        col.NDIM: [*map(len, shapes)],
        col.SHAPE: [*chain.from_iterable(shapes)],
        col.COUNT: [len(chunks) for _, chunks, _ in band],
    }


def _parts(
    band: list[_Coded], about: Mapping[Column, Any], files: Mapping[str, int], left_out: set[Column], step: int
) -> Iterator[tuple[bytes, dict[str, Any]]]:
    for begin in range(0, max(len(chunks) for _, chunks, _ in band) or 1, step):
        found = [(all_[begin : begin + step], isinstance(item, TensorItem)) for item, all_, _ in band]
        columns = {column: values for column, values in about.items() if not begin or column not in _FIRST}
        columns |= _of_chunks(found, files)
        count = sum(len(some) for some, _ in found)
        yield pack_part(len(band), count, {c: values for c, values in columns.items() if c not in left_out}, begin)


_FIRST = {col.MORE_ENDS, col.MORE}
_NUMBERS = (col.OFFSET, col.SIZES, col.KIND, col.FILE, col.AT, col.BYTES, col.NUMBER)


def _of_chunks(found: list[tuple[Sequence[Chunk], bool]], files: Mapping[str, int]) -> dict[Column, Any]:
    """The columns of chunks of several items, each with whether it is a tensor."""
    import numpy

    if any(isinstance(some, ChunkColumns) for some, _ in found):
        each = [
            some.columns() if isinstance(some, ChunkColumns) else _of_objects([*some], [tensor] * len(some), files)
            for some, tensor in found
        ]
        return {c: numpy.concatenate([numpy.asarray(own[c], "i8") for own in each]) for c in _NUMBERS}
    chunks, tensors = [chunk for some, _ in found for chunk in some], [tensor for some, tensor in found for _ in some]
    return _of_objects(chunks, tensors, files)


def _of_objects(chunks: list[Chunk], tensors: list[bool], files: Mapping[str, int]) -> dict[Column, Any]:
    offsets, shapes, places, framed = zip(*chunks, strict=True) if chunks else ((),) * 4
    paths, at, sizes, _, sha256, numbers, crcs = zip(*places, strict=True) if places else ((),) * 7
    of_tensors = [Kind.FRAMED if frame else Kind.TENSOR for frame in framed]
    return {
        col.OFFSET: [*chain.from_iterable(offsets)],
        col.SIZES: [*chain.from_iterable(shapes)],
        col.KIND: [kind if one else Kind.OBJECT for kind, one in zip(of_tensors, tensors, strict=True)],
        col.FILE: [files[path] for path in paths],
        col.AT: at,
        col.BYTES: sizes,
        col.NUMBER: [number or 0 for number in numbers],
        col.SHA256: b"".join(digest or b"" for digest in sha256),
        col.CRCS: b"".join(each or b"" for each in crcs),
    }
