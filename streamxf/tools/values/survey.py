"""Statistics of all tensors of a checkpoint, in one pass: workers count boxes while the next ones are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import tee
from typing import NamedTuple

from streamxf.checkpoint.reading import Box, BoxReader, boxes_of
from streamxf.engine import Pipeline
from streamxf.format.items import TensorItem
from streamxf.progress import Progress
from streamxf.tools.values.numbers import INTEGERS, Array, has_numbers
from streamxf.tools.values.statistics import Statistics, ValueCounter

BOX_BYTES = 4 * 2**20  # small compared with the engine's budget, so that every worker has work

_INLINE = 2**16  # bytes that are counted in the calling thread, because waking a worker takes longer


class _Part(NamedTuple):
    """What was counted in a box."""

    name: str
    box: Box
    counter: ValueCounter


def statistics_of(
    reader: BoxReader, tensors: Mapping[str, TensorItem], progress: Progress | None = None
) -> dict[str, Statistics | None]:
    """Read some of a reader's tensors, and count their values. By name; None where the elements are not numbers.

    Raises
    ------
    StreamxfError
        If a tensor cannot be read.
    """
    nothing = ValueCounter().result()  # what stays of tensors without elements
    found = {name: nothing if has_numbers(item.dtype) else None for name, item in tensors.items()}
    counted = {name: item for name, item in tensors.items() if found[name] is not None}
    if progress is not None:
        progress.expect(sum(item.size for item in counted.values()))
    whole: dict[str, ValueCounter] = {}
    pipeline: Pipeline[_Part] = Pipeline()

    def take_in(parts: list[_Part]) -> None:
        for name, box, counter in parts:
            known = whole.setdefault(name, counter)
            if known is not counter:
                known.merge(counter)
            if _is_last(box):  # a counter takes several KiB, and there may be a million tensors
                found[name] = whole.pop(name).result()
            if progress is not None:
                progress.advance(box.size)

    named, boxes = tee(_boxes(counted))
    try:
        for (name, box), elements in zip(named, reader.read_boxes(box for _, box in boxes), strict=True):
            if box.size >= _INLINE:
                take_in(pipeline.submit(partial(_counted, name, box, elements), box.size))
            else:
                take_in(pipeline.put(_counted(name, box, elements), 0))
        for part in pipeline.results():
            take_in([part])
    finally:
        pipeline.cancel()
    return found


def _boxes(tensors: Mapping[str, TensorItem]) -> Iterator[tuple[str, Box]]:
    for name, item in tensors.items():
        for box in boxes_of(item, BOX_BYTES):
            yield name, box


def _is_last(box: Box) -> bool:
    return all(map(lambda at, length, size: at + length == size, box.offset, box.lengths, box.item.shape))


def _counted(name: str, box: Box, elements: Array) -> _Part:
    counter = ValueCounter(box.item.dtype in INTEGERS)
    counter.add(elements, box.item.dtype)
    return _Part(name, box, counter)
