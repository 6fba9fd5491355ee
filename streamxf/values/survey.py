"""Statistics of all tensors of a checkpoint, in one pass: workers count boxes while the next ones are read."""

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

BOX_BYTES = 4 * 2**20  # small compared with the engine's budget, so that every worker has work

_INLINE = 2**16  # bytes that are counted in the calling thread, because waking a worker takes longer

T = TypeVar("T")


def statistics_of(
    source: Source, entries: Iterable[Entry], progress: Progress | None = None
) -> dict[str, Statistics | None]:
    """Read tensors, and count their values. By name; None where the elements are not numbers.

    Parameters
    ----------
    source : Source
    entries : iterable of Entry
        Some of the source's. Non-tensor objects are skipped.
    progress : Progress, optional
        Is told the size of the tensors in memory.

    Raises
    ------
    StreamxfError
        If a tensor cannot be read.
    """
    tensors = [entry for entry in entries if entry.is_tensor]
    nothing = ValueCounter().result()  # what stays of tensors without elements
    found: dict[str, Statistics | None] = {
        entry.name: nothing if has_numbers(_dtype(entry)) else None for entry in tensors
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
    """Calls that workers make. The thread that submits them handles their results, in the order of the calls.

    A context manager: leaving it waits for all calls, or cancels them after an exception.
    """

    def __init__(self) -> None:
        self._pipeline: Pipeline[Callable[[], None]] = Pipeline(_do)

    def submit(self, call: Callable[[], T], then: Callable[[T], None], size: int) -> None:
        """Make a call that holds `size` bytes in a worker, or, if it is small, in this thread."""
        if size >= _INLINE:
            self._pipeline.submit(partial(_call, call, then), size)
            return
        result = partial(then, call())
        if self._pipeline.collect():
            result()
        else:  # after those that are still running
            self._pipeline.submit(lambda: result, 0)

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._pipeline.settle()
        else:
            self._pipeline.cancel()


def with_last(items: Iterable[T]) -> Iterator[tuple[T, bool]]:
    """Each item, and whether it is the last one."""
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
