"""All items of a large index, checked as columns: no object is made for a chunk, unless a tensor is cut along more
dimensions than the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy

from streamxf.format import columns as col
from streamxf.format.columns import Column, IndexPart
from streamxf.format.fields import bad
from streamxf.format.header import Kind
from streamxf.format.items import ITEMSIZES, TensorItem
from streamxf.format.table import ItemTable, more

Numbers = Any  # an array of 64-bit integers


def check_whole(table: ItemTable) -> None:
    """Check every item, and compare them with each other; raises MetadataError if readers would refuse one of them."""
    rules, sizes = table.rules, numpy.array(table.sizes, numpy.int64)
    ids = {writer: number for number, writer in enumerate(dict.fromkeys(table.writers.values()))}
    writers = numpy.array([ids[writer] for writer in table.writers.values()], numpy.uint32)
    plain = numpy.array([False, *(not rules.framed and dtype in ITEMSIZES for dtype in rules.dtypes)])
    itemsizes = numpy.array([0, *(ITEMSIZES.get(dtype, 0) for dtype in rules.dtypes)])
    known: list[tuple[Numbers, Numbers]] = []
    for number, band in enumerate(table.bands):
        slabs = _Slabs(band.rows, rules.rank is not None)
        for place in range(len(band.parts)):
            part = table.part(number, place)
            for row in range(band.rows if not place else 0):
                dtype, _, _ = table.about(part, row)
                more(part, row, dtype is None)
            _check_places(part, sizes, plain)
            slabs.add(part)
            if not rules.coded:
                _check_bare(part, itemsizes)
            else:
                known.append((writers[_array(part, col.FILE)], numpy.array(part[col.NUMBER])))
        for row in slabs.others():
            item = table[table.part(number, 0).names[row]]
            if isinstance(item, TensorItem):
                len(tuple(item.chunks))
    if known:
        _check_numbers(known, len(ids))


def _array(part: IndexPart, column: Column) -> Numbers:
    return numpy.array(part[column], numpy.int64)


def _check_places(part: IndexPart, sizes: Numbers, plain: Numbers) -> None:
    file, at, size = (_array(part, column) for column in (col.FILE, col.AT, col.BYTES))
    if file.size and file.max() >= sizes.size:
        bad("a chunk is in a file that there is not")
    if (at + size > sizes[file]).any():
        bad("a chunk reaches beyond the end of its file")
    kind, dtype = _array(part, col.KIND), numpy.repeat(_array(part, col.DTYPE), numpy.diff(part.chunks_at))
    tensors = (kind == Kind.FRAMED) | ((kind == Kind.TENSOR) & plain[dtype])
    if not numpy.where(dtype > 0, tensors, kind == Kind.OBJECT).all():
        bad("a chunk has a kind that it cannot have")


def _check_bare(part: IndexPart, itemsizes: Numbers) -> None:
    """Check that bare elements have their bytes. A product of floats is exact below 2^53, and does not wrap above."""
    here = numpy.diff(part.chunks_at)
    dims, dtype = (numpy.repeat(_array(part, column), here) for column in (col.NDIM, col.DTYPE))
    elements = numpy.ones(dims.size)
    if dims.any():
        starts = (numpy.cumsum(dims) - dims)[dims > 0]
        with numpy.errstate(over="ignore"):
            elements[dims > 0] = numpy.multiply.reduceat(numpy.array(part[col.SIZES], float), starts)
    with numpy.errstate(invalid="ignore"):  # of infinity and nothing
        wrong = elements * itemsizes[dtype] != _array(part, col.BYTES)
    if (wrong & (_array(part, col.KIND) == Kind.TENSOR)).any():
        bad("a raw tensor has other bytes than its elements")


class _Slabs:
    """Which tensors of a band are cut along the first dimension alone, and have all their chunks, or `some` of them."""

    def __init__(self, rows: int, some: bool) -> None:
        self._some = some
        self._good = numpy.ones(rows, bool)
        self._ends = numpy.zeros(rows, numpy.int64)
        self._seen = numpy.zeros(rows, numpy.int64)
        self._lengths = numpy.zeros(rows, numpy.int64)

    def add(self, part: IndexPart) -> None:
        ndim, starts = _array(part, col.NDIM), numpy.array(part.chunks_at)
        shapes, shapes_at = _array(part, col.SHAPE), numpy.array(part.shapes_at)
        offsets, sizes, numbers_at = _array(part, col.OFFSET), _array(part, col.SIZES), numpy.array(part.numbers_at)
        here = numpy.diff(starts)
        self._seen += here
        for dims in numpy.unique(ndim).tolist():
            rows = numpy.flatnonzero((ndim == dims) & (here > 0))
            if not rows.size:
                continue
            if not dims:
                self._good[rows] &= here[rows] == 1
                continue
            spans = zip(numbers_at[rows].tolist(), numbers_at[rows + 1].tolist(), strict=True)
            picked = _runs(spans, offsets.size)
            at, size = (values[picked].reshape(-1, dims) for values in (offsets, sizes))
            shape = shapes[shapes_at[rows][:, None] + numpy.arange(dims)]
            each = numpy.repeat(numpy.arange(rows.size), here[rows])
            ends = at[:, 0] + size[:, 0]
            first = numpy.cumsum(here[rows]) - here[rows]
            before = numpy.empty_like(ends)
            before[1:] = ends[:-1]
            before[first] = self._ends[rows]
            good = (at[:, 0] >= before) if self._some else (at[:, 0] == before)
            good &= (size[:, 0] > 0) & (at[:, 1:] == 0).all(axis=1)
            good &= (size[:, 1:] == shape[each, 1:]).all(axis=1) & (shape[each, 1:] > 0).all(axis=1)
            self._good[rows] &= numpy.logical_and.reduceat(good, first)
            self._ends[rows] = ends[first + here[rows] - 1]
            self._lengths[rows] = shape[:, 0]
        if part.stop is None:
            counts = _array(part, col.COUNT)
            whole = (self._ends <= self._lengths) if self._some else (self._ends == self._lengths)
            self._good &= (self._seen == counts) & (counts > 0) & whole

    def others(self) -> Sequence[int]:
        """The rows of all other items."""
        return numpy.flatnonzero(~self._good).tolist()


def _runs(spans: Any, size: int) -> Any:
    """An index of the values in spans, which do not overlap."""
    spans = list(spans)
    if spans[0][0] == 0 and spans[-1][1] == size and all(one[1] == two[0] for one, two in pairwise(spans)):
        return slice(None)
    return numpy.concatenate([numpy.arange(begin, end) for begin, end in spans])


def _check_numbers(known: list[tuple[Numbers, Numbers]], count: int) -> None:
    """Numbers of honest writers have few gaps, so that a bit for each is enough."""
    most, total = numpy.zeros(count, numpy.int64), 0
    for writers, numbers in known:
        numpy.maximum.at(most, writers, numbers.astype(numpy.int64))
        total += numbers.size
    begins = numpy.cumsum(most + 1) - most - 1
    if float(most.sum()) + count < 8 * total + 2**16:
        seen = numpy.zeros(int(most.sum()) + count, bool)
        for writers, numbers in known:
            seen[begins[writers] + numbers] = True
        distinct = int(numpy.count_nonzero(seen)) == total
    else:
        by, all_numbers = (numpy.concatenate(side) for side in zip(*known, strict=True))
        order = numpy.lexsort((all_numbers, by))
        distinct = not ((numpy.diff(by[order]) == 0) & (numpy.diff(all_numbers[order]) == 0)).any()
    if not distinct:
        bad("two items, or chunks, have one writer and number")
