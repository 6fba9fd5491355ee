"""`BoxReader`: tensors of a checkpoint of any format, read box by box; blocks are decoded in parallel."""

from __future__ import annotations

import abc
import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, Self

from streamxf.budget import Budget
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.elements import INLINE_BYTES, Elements
from streamxf.checkpoint.sources import Array
from streamxf.errors import MetadataError, ParameterError, UnsupportedError, located
from streamxf.format.items import Chunk, Item, TensorItem, element_size, unsigned
from streamxf.lazy import numpy as np
from streamxf.lazy import torch
from streamxf.pipeline import Pipeline, run_jobs
from streamxf.storage.storage import Storage
from streamxf.torchsave.objects import dtype_of

BOX_BYTES = 16 * 2**20
_ARRAY_BYTES = 1024  # that an array counts for besides its elements: a checkpoint may have a million small tensors

Ints = tuple[int, ...]


class Box(NamedTuple):
    """A part of a tensor; offset and lengths are in elements, `steps` as of a `Selection`."""

    item: TensorItem
    offset: Ints
    lengths: Ints
    steps: Ints = ()

    @classmethod
    def of(cls, item: TensorItem, limit: int = BOX_BYTES) -> Iterator[Self]:
        """Cut a tensor into boxes of at most `limit` bytes, in row-major order."""
        yield from (cls(item, *part) for part in cut(item.shape, max(1, limit // item.itemsize)))

    @property
    def size(self) -> int:
        return math.prod(self.lengths) * self.item.itemsize

    def array(self, *, zero: bool = False) -> Array:
        """An array for its elements, which are only moved; of zeros with `zero`. UnsupportedError if numpy has none."""
        try:
            return (np.zeros if zero else np.empty)(self.lengths, unsigned(self.item.itemsize))
        except (ValueError, OverflowError):  # for some shapes without elements, too
            what = f"{self.item.dtype} and shape {self.lengths}"
            raise UnsupportedError(f"numpy has no array of {what}", item=self.item.name) from None

    def as_torch(self, array: Array) -> torch.Tensor:
        """The memory of a contiguous array that has its elements, as a tensor."""
        wanted = dtype_of(self.item.dtype, self.item.name, bare=True)
        flat = array.reshape(-1).view("u1")
        if not flat.size:
            return torch.empty(array.shape, dtype=wanted, device="cpu")
        return torch.from_numpy(flat).view(wanted).view(array.shape)

    def shared(self, chunk: Chunk) -> tuple[Ints, Ints, Ints] | None:
        """What it shares with a chunk, if anything: its offset in the chunk, its lengths, and its offset in the box."""
        steps = self.steps or (1,) * len(self.lengths)
        before = tuple(map(int.__sub__, self.offset, chunk.offset))
        starts = tuple(max(0, -(at // step)) for at, step in zip(before, steps, strict=True))
        places = zip(before, steps, self.lengths, chunk.shape, strict=True)
        lengths = tuple(min(n, (size - at - 1) // step + 1) for at, step, n, size in places)
        lengths = tuple(map(int.__sub__, lengths, starts))
        if any(length <= 0 for length in lengths):
            return None
        return tuple(at + start * step for at, start, step in zip(before, starts, steps, strict=True)), lengths, starts


class BoxReader(abc.ABC):
    """A checkpoint whose tensors can be read box by box; a context manager, which closes its files.

    - `stored`: by name, in the order of the checkpoint's own metadata.
    - `access`: how it is read.
    """

    storage: Storage
    stored: Mapping[str, Item]
    access: Access

    @property
    @abc.abstractmethod
    def budget(self) -> Budget:
        """Pays for each shard and object that is read, once."""

    @abc.abstractmethod
    def elements(self, item: TensorItem, chunk: Chunk) -> Elements: ...

    @abc.abstractmethod
    def label(self, file: str) -> str: ...

    @abc.abstractmethod
    def load_object(self, name: str) -> Any: ...

    @abc.abstractmethod
    def part(self, items: Mapping[str, Item]) -> Callable[[Access], BoxReader]:
        """What opens a reader of these items alone, under these names, in any process, with a budget as large."""

    @abc.abstractmethod
    def close(self) -> None: ...

    def is_plain(self, box: Box) -> bool:
        """Whether elements are stored; a frame's ends tell if only torch can make its tensor. Raises StreamxfError."""
        framed = [each for each in box.item.chunks if each.framed]
        for chunk in filter(box.shared, framed):
            try:
                self.elements(box.item, chunk)
            except UnsupportedError:
                return False
        return not framed or element_size(box.item.dtype) > 0

    def read_boxes(self, boxes: Iterable[Box]) -> Generator[Array, None, None]:
        """Read boxes, in their order. Raises StreamxfError, with file, item and block.

        Each comes as a contiguous array of the box's shape, whose elements are unsigned numbers (or, of 16 bytes,
        complex ones) of the item's element size: ``.view`` restores their dtype. Boxes are taken from the iterable as
        they are needed; a few of `BOX_BYTES` are in memory at a time.
        """
        waiting: deque[tuple[Array, int]] = deque()  # each with the number of the last job that fills it
        submitted = held = 0
        with self.storage.doubting(), Pipeline[None]() as pipeline:
            for box in boxes:
                check_box(box)
                array = box.array()
                for job, size in self.jobs(box, array):
                    if array.nbytes <= INLINE_BYTES:
                        job()
                    else:
                        pipeline.submit(job, size)
                        submitted += 1
                waiting.append((array, submitted))
                held += array.nbytes + _ARRAY_BYTES
                while len(waiting) > 1 and held > 2 * BOX_BYTES:
                    held -= waiting[0][0].nbytes + _ARRAY_BYTES
                    yield _first(pipeline, waiting, submitted)
            while waiting:
                yield _first(pipeline, waiting, submitted)

    def read_into(self, box: Box, out: Array) -> None:
        """Fill `out`, an array of the box's shape with elements of the item's size, in any strides."""
        with self.storage.doubting():
            run_jobs(self.jobs(box, out))

    def jobs(self, box: Box, out: Array) -> Iterator[tuple[Callable[[], None], int]]:
        """The calls that fill `out` with a box, from all shards that have a part of it; as `Elements.jobs`. Raises
        ParameterError if the box is not inside its tensor, MetadataError if no shard has some part of it.
        """
        check_box(box)
        left = math.prod(box.lengths)
        whole = box.lengths == box.item.shape
        for chunk in box.item.chunks if left or whole else ():
            shared = box.shared(chunk)
            if shared is None:
                if whole:  # it has no elements, so that nothing else would ever look at its container
                    self.elements(box.item, chunk)
                continue
            inside, lengths, target = shared
            left -= math.prod(lengths)
            # with the ellipsis, also what has no dimensions is a view
            cuts: Any = (*(slice(at, at + size) for at, size in zip(target, lengths, strict=True)), ...)
            part = out[cuts]
            place = located(file=self.label(chunk.place.file), item=box.item.name, doing="reading")
            with place:
                jobs = self.elements(box.item, chunk).jobs(inside, lengths, part, box.steps)
                yield from ((partial(place.run, job), size) for job, size in jobs)
            if not left and not whole:
                break
        if left:
            raise MetadataError(f"the part of {box.lengths} at {box.offset} is not stored here", item=box.item.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _first(pipeline: Pipeline[None], waiting: deque[tuple[Array, int]], submitted: int) -> Array:
    array, last = waiting.popleft()
    pipeline.narrow(submitted - last)  # jobs end in their order, so only those of later boxes are left
    return array


def check_box(box: Box) -> None:
    shape = box.item.shape
    inside = len(shape) == len(box.offset) == len(box.lengths)
    places = zip(box.offset, box.lengths, box.steps or repeat(1), shape, strict=False)
    if not inside or any(
        at < 0 or length < 0 or at + max(0, (length - 1) * step + 1) > size for at, length, step, size in places
    ):
        raise ParameterError(
            f"the box of {box.lengths} at {box.offset} is not inside the tensor, which has the shape {shape}",
            item=box.item.name,
        )


def cut(shape: Ints, most: int) -> Iterator[tuple[Ints, Ints]]:
    if math.prod(shape) <= most:
        if math.prod(shape) or not shape:
            yield (0,) * len(shape), shape
        return
    inner = math.prod(shape[1:])
    if inner > most:
        for row in range(shape[0]):
            for offset, lengths in cut(shape[1:], most):
                yield (row, *offset), (1, *lengths)
        return
    step = most // inner
    for start in range(0, shape[0], step):
        yield (start, *(0,) * (len(shape) - 1)), (min(step, shape[0] - start), *shape[1:])
