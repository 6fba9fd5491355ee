"""What is in all tensors of a checkpoint: one pass over its boxes, which workers count while the next ones are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

import torch

from streamxf.engine import Pipeline
from streamxf.formats.contents import Entry
from streamxf.formats.source import Box, Source, boxes_of
from streamxf.progress import Progress
from streamxf.values.numbers import has_numbers
from streamxf.values.statistics import Statistics, ValueCounter

BOX_BYTES = 4 * 2**20  # small beside the budget of the engine, so that there is work for every worker

_INLINE = 2**16  # bytes that are counted on the spot: to wake a worker takes longer

T = TypeVar("T")


def statistics_of(
    source: Source, entries: Iterable[Entry], progress: Progress | None = None
) -> dict[str, Statistics | None]:
    """Read tensors, and count their values; by name, and None where the elements are no numbers.

    Parameters
    ----------
    source : Source
    entries : iterable of Entry
        Some of the source's; objects are left out.
    progress : Progress, optional
        Is told the bytes of the tensors, as they are in memory.

    Raises
    ------
    StreamxfError
        If something cannot be read.
    """
    tensors = [entry for entry in entries if entry.is_tensor]
    found: dict[str, Statistics | None] = {
        entry.name: ValueCounter.of(_dtype(entry)).result() if has_numbers(_dtype(entry)) else None for entry in tensors
    }
    counted = [entry for entry in tensors if found[entry.name] is not None]
    if progress is not None:
        progress.expect(sum(entry.raw_bytes or 0 for entry in counted))
    whole: dict[str, ValueCounter] = {}

    def take_in(entry: Entry, last: bool, size: int, part: ValueCounter) -> None:
        counter = whole.setdefault(entry.name, part)
        if counter is not part:
            counter.merge(part)
        if last:  # a counter takes several KiB, and there may be a million tensors
            found[entry.name] = whole.pop(entry.name).result()
        if progress is not None:
            progress.advance(size)

    jobs = Jobs()
    boxes = source.read(box for entry in counted for box in _boxes(entry))
    with jobs:
        for entry in counted:
            for _, last in with_last(_boxes(entry)):
                tensor = next(boxes)
                jobs.submit(partial(_counted, tensor), partial(take_in, entry, last, tensor.nbytes), tensor.nbytes)
    return found


class Jobs:
    """Calls that workers make, each with what is to be done with its result, in the order of the calls, by the thread
    that submits them. A context manager, which waits for all of them.
    """

    def __init__(self) -> None:
        self._pipeline: Pipeline[Callable[[], None]] = Pipeline(_do)

    def submit(self, call: Callable[[], T], then: Callable[[T], None], size: int) -> None:
        """Make a call that holds so many bytes; a small one at once, in this thread."""
        if size >= _INLINE:
            self._pipeline.submit(partial(_call, call, then), size)
            return
        result = partial(then, call())
        if self._pipeline.collect():
            result()
        else:  # behind those that are under way
            self._pipeline.submit(lambda: result, 0)

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._pipeline.settle()
        else:
            self._pipeline.cancel()


def with_last(items: Iterable[T]) -> Iterator[tuple[T, bool]]:
    """Each of `items`, and whether it is the last one."""
    nothing: Any = object()
    before = nothing
    for item in items:
        if before is not nothing:
            yield before, False
        before = item
    if before is not nothing:
        yield before, True


def _call(call: Callable[[], T], then: Callable[[T], None]) -> Callable[[], None]:
    return partial(then, call())


def _do(then: Callable[[], None]) -> None:
    then()


def _counted(tensor: torch.Tensor) -> ValueCounter:
    counter = ValueCounter.of(tensor.dtype)
    counter.add(tensor)
    return counter


def _boxes(entry: Entry) -> Iterator[Box]:
    return boxes_of(entry, _dtype(entry).itemsize, BOX_BYTES)


def _dtype(entry: Entry) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, str(entry.dtype))
    return dtype
