"""Statistics of all tensors of a checkpoint, in one pass: workers count boxes while the next ones are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import tee

from streamxf.checkpoint.reading import Box, BoxReader, boxes_of
from streamxf.engine import Pipeline
from streamxf.format.items import TensorItem
from streamxf.progress import Progress
from streamxf.storage.storage import storage_errors
from streamxf.tools.values.numbers import INTEGERS, Array, has_numbers
from streamxf.tools.values.statistics import Statistics, ValueCounter

BOX_BYTES = 4 * 2**20  # small compared with the engine's budget, so that every worker has work
_INLINE = 2**16  # bytes that are counted in the calling thread, because waking a worker takes longer

_Part = tuple[str, Box, ValueCounter]  # what was counted in a box of the tensor of that name


def statistics_of(reader: BoxReader, progress: Progress | None = None) -> dict[str, Statistics | None]:
    """Read a checkpoint's tensors, and count their values. By name; None where the elements are not numbers. Raises
    StreamxfError if a tensor cannot be read.
    """
    tensors = {name: item for name, item in reader.stored.items() if isinstance(item, TensorItem)}
    nothing = ValueCounter().result()  # what stays of tensors without elements
    found = {name: nothing if has_numbers(item.dtype) else None for name, item in tensors.items()}
    counted = {name: item for name, item in tensors.items() if found[name] is not None}
    if progress is not None:
        progress.expect(sum(item.size for item in counted.values()))
    whole: dict[str, ValueCounter] = {}
    pipeline: Pipeline[_Part] = Pipeline()

    def take_in(parts: Iterable[_Part]) -> None:
        for name, box, counter in parts:
            known = whole.setdefault(name, counter)
            if known is not counter:
                known.merge(counter)
            if tuple(map(int.__add__, box.offset, box.lengths)) == box.item.shape:
                # the last box; a counter takes several KiB, and there may be a million tensors
                found[name] = whole.pop(name).result()
            if progress is not None:
                progress.advance(box.size)

    named, wanted = tee((name, box) for name, item in counted.items() for box in boxes_of(item, BOX_BYTES))
    try:
        for (name, box), elements in zip(named, _read(reader, (box for _, box in wanted)), strict=True):
            count = partial(_counted, name, box, elements)
            take_in(pipeline.submit(count, box.size) if box.size >= _INLINE else pipeline.put(count(), 0))
        take_in(pipeline.results())
    finally:
        pipeline.cancel()
    return found


def _read(reader: BoxReader, boxes: Iterable[Box]) -> Iterator[Array]:
    with storage_errors(reader.full("")):
        yield from reader.read_boxes(boxes)


def _counted(name: str, box: Box, elements: Array) -> _Part:
    counter = ValueCounter(box.item.dtype in INTEGERS)
    counter.add(elements, box.item.dtype)
    return name, box, counter
