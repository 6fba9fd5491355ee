"""`Elements`: the elements of a stored shard, wherever they stand, and how a part of them comes into an array.

Of a shard, the blocks that hold a wanted element are read, and decoded once each. Where the wanted elements stand in
the stream as they do in the array, blocks are decoded straight into its memory; else into reused memory, from which the
wanted parts are copied. Elements are moved as bytes, so any dtype will do. A run is a range of an array's elements in
row-major order, as they are stored.

What ``torch.save`` wrote may stand in another order. Such elements are gathered block by block when they are asked for,
so a tensor of any size takes the memory of a few blocks.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

from streamxf.budget import most
from streamxf.buffers import scratches
from streamxf.checkpoint.sources import Array, DeviceMemory
from streamxf.errors import PolicyError
from streamxf.format.items import ITEMSIZES, Ranges, boxes_of_run, contiguous_strides, elements_size, unsigned
from streamxf.lazy import numpy as np
from streamxf.storage.reading import FileSlice
from streamxf.stream.reader import BareBlocks, Blocks, MemoryBlocks, StreamReader
from streamxf.torchsave.writing import frame_of, prefix_of

Slices = tuple[slice, ...]
Ints = tuple[int, ...]


@dataclass(slots=True)
class Selection:
    """The part of a stored array that is to be read.

    - `start`, `stop`: the shortest run, in elements, that holds the box.
    - `steps`: from one wanted element to the next, in each dimension; none where that is 1 in all of them.
    """

    shape: tuple[int, ...]
    box: Ranges
    start: int
    stop: int
    steps: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, shape: Sequence[int], offsets: Sequence[int], lengths: Sequence[int], steps: tuple[int, ...] = ()
    ) -> Selection | None:
        """The box at `offsets` with `lengths` elements in each dimension; None if it is empty, or not inside."""
        if not len(shape) == len(offsets) == len(lengths):
            return None
        if not any(offsets) and tuple(lengths) == tuple(shape):  # all of it, as nearly always
            count = math.prod(shape)
            return cls(tuple(shape), tuple([(0, size) for size in shape]), 0, count) if count else None
        reach = [(length - 1) * step + 1 for length, step in zip(lengths, steps, strict=True)] if steps else lengths
        box = tuple((offset, offset + length) for offset, length in zip(offsets, reach, strict=True))
        if any(not 0 <= begin < end <= size for (begin, end), size in zip(box, shape, strict=True)):
            return None
        strides = contiguous_strides(shape)
        start = sum(begin * stride for (begin, _), stride in zip(box, strides, strict=True))
        last = sum((end - 1) * stride for (_, end), stride in zip(box, strides, strict=True))
        return cls(tuple(shape), box, start, last + 1, steps)

    @property
    def is_run(self) -> bool:
        return self.stop - self.start == self._size(self.box)

    def near(self, gap: int) -> Iterator[tuple[int, int]]:
        """The runs, in order, from the first to the last of wanted elements that are at most `gap` apart in them."""
        strides, steps = contiguous_strides(self.shape), self.steps or (1,) * len(self.box)
        reach, inner = 1, len(self.box)  # from the first to the last of the inner dimensions
        while inner:
            (begin, end), stride = self.box[inner - 1], strides[inner - 1]
            if end - begin > 1 and steps[inner - 1] * stride - reach >= gap:
                break
            reach, inner = reach + (end - begin - 1) * stride, inner - 1
        start = self.start - sum(begin * stride for (begin, _), stride in zip(self.box[:inner], strides, strict=False))
        places = [
            range(a * size, b * size, n * size)
            for (a, b), size, n in zip(self.box[:inner], strides, steps, strict=False)
        ]
        for place in itertools.product(*places):
            yield start + sum(place), start + sum(place) + reach

    def _size(self, box: Ranges) -> int:
        """The wanted elements of a box that begins with one."""
        if not self.steps:
            return math.prod(end - begin for begin, end in box)
        return math.prod(-(-(end - begin) // step) for (begin, end), step in zip(box, self.steps, strict=True))

    def parts(self, start: int, stop: int) -> Iterator[tuple[int, Ranges, Ranges]]:
        """Split the run from `start` to `stop` into boxes, and cut each one down to what is wanted. Yields the element
        at which a box begins, that box, and the wanted part of it in the array's coordinates, which is never empty.
        """
        for first, outer in boxes_of_run(self.shape, start, stop):
            inner = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(outer, self.box, strict=True))
            if self.steps:
                places = zip(inner, self.box, self.steps, strict=True)
                inner = tuple((a + (c - a) % step, b) for (a, b), (c, _), step in places)
            if all(begin < end for begin, end in inner):
                yield first, outer, inner

    def count(self, start: int, stop: int) -> int:
        """How many wanted elements are in the run from `start` to `stop`."""
        start, stop = max(start, self.start), min(stop, self.stop)
        if self.is_run:
            return max(0, stop - start)
        return sum(self._size(inner) for _, _, inner in self.parts(start, stop))

    def moves(self, start: int, stop: int) -> Iterator[tuple[slice, tuple[int, ...], Slices, Slices]]:
        """What has to be copied to bring all that is wanted of a run to its place: the part of the run that is a box,
        the shape of this, what of it is wanted, and where that belongs in an array of the wanted box.
        """
        steps = self.steps or (1,) * len(self.box)
        for at, outer, inner in self.parts(max(start, self.start), min(stop, self.stop)):
            shape = tuple(stop - begin for begin, stop in outer)
            source = tuple(slice(a - o, b - o, n) for (a, b), (o, _), n in zip(inner, outer, steps, strict=True))
            places = zip(inner, self.box, steps, strict=True)
            target = tuple(slice((a - c) // n, -((c - b) // n)) for (a, b), (c, _), n in places)
            yield slice(at - start, at - start + math.prod(shape)), shape, source, target


INLINE_BYTES = 128 * 1024
"""Bytes; a box of no more is decoded in the calling thread, since handing it to a worker would cost more."""


@dataclass(slots=True)
class Elements:
    """The elements of a shard: a run of bytes of a stream, row-major.

    - `origin`: where the first element stands in the stream, in bytes; a multiple of `itemsize`.
    """

    blocks: Blocks
    origin: int
    itemsize: int
    shape: tuple[int, ...]

    @classmethod
    def stored(cls, source: FileSlice, itemsize: int, shape: Ints, strides: Ints | None = None) -> Self:
        """Those in `source`, row-major or with `strides`, in elements; PolicyError if these make far more of them."""
        if strides is None:
            return cls(BareBlocks(source), 0, itemsize, shape)
        size = math.prod(shape) * itemsize
        if size > most(source.length):
            raise PolicyError(
                f"the tensor's strides make {size} bytes of {source.length} stored ones, which is out of proportion; "
                "load it with torch if you trust it"
            )
        return cls(StridedBlocks(source, itemsize, shape, strides), 0, itemsize, shape)

    def is_run(self, offset: tuple[int, ...], lengths: tuple[int, ...]) -> bool:
        """Whether the elements of a box stand one after another in the stream."""
        wanted = Selection.of(self.shape, offset, lengths)
        return wanted is not None and wanted.is_run

    def jobs(
        self,
        offset: tuple[int, ...],
        lengths: tuple[int, ...],
        out: Array | DeviceMemory,
        steps: tuple[int, ...] = (),
        together: int = 1,
    ) -> Iterator[tuple[Callable[[], None], int]]:
        """The calls that fill `out` with the box at `offset`, in elements of the shard, one for each block or for so
        many neighbours `together`, and the bytes that each decodes. `out` has the shape `lengths`, a dtype of
        `itemsize` bytes, and any strides; a `DeviceMemory` takes a run only. `steps` as of a `Selection`.
        """
        wanted = Selection.of(self.shape, offset, lengths, steps)
        if wanted is None:  # it has no elements
            return
        begin = self.origin + wanted.start * self.itemsize
        end = self.origin + wanted.stop * self.itemsize
        memory = None
        if not isinstance(out, DeviceMemory) and wanted.is_run and out.flags.c_contiguous:
            memory = out.reshape(-1).view("u1").data

        def put(index: int, decode: Callable[[memoryview], None]) -> None:
            start, length = index * self.blocks.block_size, self.blocks.size_of(index)
            if isinstance(out, DeviceMemory):
                part = slice(max(begin - start, 0), min(end - start, length))
                out.fill(decode, length, part, max(start - begin, 0))
            elif memory is not None and begin <= start and start + length <= end:
                decode(memory[start - begin : start - begin + length])
            else:
                self._scatter(decode, index, wanted, out.__setitem__)

        for first, stop in _neighbours(self._expected(wanted), together):
            yield self.blocks.run(first, stop, put), sum(map(self.blocks.size_of, range(first, stop)))

    def pieces(
        self, offset: tuple[int, ...], lengths: tuple[int, ...], most: int
    ) -> Iterator[tuple[int, Array, Iterator[tuple[Callable[[], None], int]]]]:
        """Cut the box at `offset` where blocks end, so that none is decoded twice. Yields runs of the box's elements in
        row-major order: where each begins, an array for it, and the calls that fill it, as of `jobs`. A run has about
        `most` elements, or those of one block.
        """
        wanted = Selection.of(self.shape, offset, lengths)
        blocks: list[tuple[int, int]] = []  # each with the place of its first element in the run
        at = count = 0
        left = [] if wanted is None else self._expected(wanted)
        for index in left:
            assert wanted is not None
            blocks.append((index, count))
            count += wanted.count(*self._reach(index, wanted))
            if count >= most or index == left[-1]:
                piece = np.empty(count, unsigned(self.itemsize))
                yield at, piece, self._filling(blocks, wanted, piece)
                at, count, blocks = at + count, 0, []

    def _filling(
        self, blocks: list[tuple[int, int]], wanted: Selection, out: Array
    ) -> Iterator[tuple[Callable[[], None], int]]:
        for index, at in blocks:
            decode, put = self.blocks.decoder(index), _appending(out[at:])
            yield partial(self._scatter, decode, index, wanted, put), self.blocks.size_of(index)

    def _expected(self, wanted: Selection) -> list[int]:
        """The blocks that hold a wanted element; they are announced."""
        size = self.blocks.block_size
        runs: list[tuple[int, int]] = []
        for start, stop in [(wanted.start, wanted.stop)] if wanted.is_run else wanted.near(size // self.itemsize):
            first = (self.origin + start * self.itemsize) // size
            if runs and first <= runs[-1][1]:
                first = runs.pop()[0]
            runs.append((first, -(-(self.origin + stop * self.itemsize) // size)))
        self.blocks.expect(*runs)
        return [*itertools.chain.from_iterable(itertools.starmap(range, runs))]

    def _reach(self, index: int, wanted: Selection) -> tuple[int, int]:
        """The elements of a block, as far as the wanted ones reach."""
        start = index * self.blocks.block_size - self.origin
        last = (start + self.blocks.size_of(index)) // self.itemsize
        return max(wanted.start, start // self.itemsize), min(wanted.stop, last)

    def _scatter(
        self, decode: Callable[[memoryview], None], index: int, wanted: Selection, put: Callable[[Slices, Array], None]
    ) -> None:
        """Decode a block, and put what is wanted of it where it belongs in an array of the box."""
        scratch = scratches.take()
        data = scratch.take(0, self.blocks.size_of(index))
        decode(data)
        first, last = self._reach(index, wanted)
        elements = np.frombuffer(data, "u1")[self.origin + first * self.itemsize - index * self.blocks.block_size :]
        elements = elements[: (last - first) * self.itemsize].view(unsigned(self.itemsize))
        for part, shape, source, target in wanted.moves(first, last):
            put(target, elements[part].reshape(shape)[source])
        scratches.give(scratch)


def _neighbours(indexes: list[int], most: int) -> Iterator[tuple[int, int]]:
    """Runs of at most so many numbers that follow each other: the first, and the one after the last."""
    at = 0
    while at < len(indexes):
        first = indexes[at]
        stop = next((n for n in range(1, most) if indexes[at + n : at + n + 1] != [first + n]), most)
        yield first, first + stop
        at += stop


def _appending(out: Array) -> Callable[[Slices, Array], None]:
    """What puts elements one after another, wherever they belong."""
    at = 0

    def put(_: Slices, elements: Array) -> None:
        nonlocal at
        out[at : at + elements.size].reshape(elements.shape)[...] = elements
        at += elements.size

    return put


_BLOCK = 16 * 2**20  # bytes; with less, the pieces to be read become short
_SPAN = 8 * 2**20  # bytes that are read at once where the wanted elements have gaps between them
_FREE_SPAN = 4096  # bytes; so little is read at once, however few of them are wanted
_DENSITY = 4  # bytes read for one that is wanted, at most


class StridedBlocks(Blocks):
    def __init__(self, source: FileSlice, itemsize: int, shape: Ints, strides: Ints) -> None:
        super().__init__(math.prod(shape) * itemsize, _BLOCK)
        self._source = source
        self._itemsize = itemsize
        self._shape = shape
        self._steps = tuple(stride * itemsize for stride in strides)

    def decoder(self, index: int) -> Callable[[memoryview], None]:
        return partial(self._gather, index * _BLOCK // self._itemsize)

    def _gather(self, first: int, out: memoryview) -> None:
        elements = np.frombuffer(out, unsigned(self._itemsize))
        for at, box in boxes_of_run(self._shape, first, first + len(elements)):
            lengths = [stop - start for start, stop in box]
            part = elements[at - first :][: math.prod(lengths)].reshape(lengths)
            start = sum(begin * step for (begin, _), step in zip(box, self._steps, strict=True))
            self._fill(start, part)

    def _fill(self, first: int, out: Array) -> None:
        """Fill `out` with the elements that stand in the tensor's steps from `first`."""
        steps = self._steps
        dims = sorted((dim for dim, size in enumerate(out.shape) if size > 1 and steps[dim]), key=steps.__getitem__)
        # pieces are read whole, as long as they are not much more than what is wanted of them
        reach = wanted = self._itemsize
        inner = 0
        for dim in dims:
            longer = reach + (out.shape[dim] - 1) * steps[dim]
            if longer > max(_FREE_SPAN, wanted * out.shape[dim] * _DENSITY):
                break
            reach, wanted, inner = longer, wanted * out.shape[dim], inner + 1
        outer = dims[inner:]
        count = math.prod(out.shape[dim] for dim in outer)
        if count * reach > _SPAN and dims:
            half = out.shape[dims[-1]] // 2
            before: list[slice] = [slice(None)] * dims[-1]
            self._fill(first, out[*before, :half])
            self._fill(first + half * steps[dims[-1]], out[*before, half:])
            return
        data = bytearray(count * reach)
        memory = memoryview(data)
        places = itertools.product(*(range(0, out.shape[dim] * steps[dim], steps[dim]) for dim in outer))
        for number, place in enumerate(places):
            self._source.read_into(first + sum(place), memory[number * reach : (number + 1) * reach])
        packed = [steps[dim] if dim in dims[:inner] else 0 for dim in range(out.ndim)]
        for dim in reversed(outer):
            packed[dim] = reach
            reach *= out.shape[dim]
        out[...] = np.lib.stride_tricks.as_strided(np.frombuffer(data, out.dtype), out.shape, packed, writeable=False)


def framed_elements(blocks: Blocks, dtype: str, shape: tuple[int, ...]) -> Elements:
    """The elements of a plain tensor's stream; row-major ones are read where they stand. Raises as `framed`."""
    if isinstance(blocks, BareBlocks) and blocks.crcs is not None and (start := _start_in_frame(blocks, dtype, shape)):
        return Elements(blocks, start, ITEMSIZES[dtype], shape)
    stream = StreamReader(blocks)
    found = stream.framed(dtype, shape)
    itemsize = found.tensor.itemsize
    if not found.tensor.extent:
        return Elements(MemoryBlocks(memoryview(b"")), 0, itemsize, shape)
    if found.tensor.is_row_major and found.start % itemsize == 0:
        return Elements(blocks, found.start, itemsize, shape)
    data = bytearray(found.tensor.extent)
    stream.readinto_at(found.start, data)
    return Elements.stored(FileSlice(io.BytesIO(), 0, len(data), data), itemsize, shape, found.tensor.strides)


def _start_in_frame(blocks: BareBlocks, dtype: str, shape: tuple[int, ...]) -> int:
    """Where the elements stand in the frame that streamxf writes; 0 if there are none, or in another frame. What says
    so is compared whole with what belongs there, so it can be believed without the block that it is in.
    """
    size = elements_size(dtype, shape) if dtype in ITEMSIZES else 0
    if not size:
        return 0
    before, after = prefix_of(dtype, shape), frame_of(dtype, shape)[1]  # which is as long without CRCs
    head = bytearray(len(before))
    if blocks.size == len(before) + size + len(after):
        blocks.range(0, len(head))(memoryview(head))
    return len(before) if head == before else 0
