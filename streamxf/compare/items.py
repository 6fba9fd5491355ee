"""Two opened checkpoints, compared item by item: tensors box by box, both sides in step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import torch

from streamxf.compare.difference import Change, Difference
from streamxf.compare.names import prefix_notes
from streamxf.compare.objects import Incomparable, difference_of
from streamxf.compare.values import Distance, Tally, is_number
from streamxf.convert.origin import ITEM
from streamxf.errors import ParameterError, PolicyError, StreamxfError, UnsupportedError
from streamxf.formats.choosing import chosen
from streamxf.formats.contents import Entry
from streamxf.formats.source import Box, Source, boxes_of
from streamxf.progress import Progress

_Pair = tuple[str, Entry, Entry]


def compare(
    first: Source,
    second: Source,
    *,
    only: Sequence[str] = (),
    prefixes: tuple[str, str] = ("", ""),
    progress: Progress | None = None,
) -> Difference:
    """Compare two opened checkpoints, as `diff` does.

    What `pack` keeps of the packed files themselves is left out: a checkpoint is the same as the file that it was
    packed from.
    """
    one, other = _chosen(first, only, prefixes[0]), _chosen(second, only, prefixes[1])
    if not one and not other and (only or any(prefixes)):
        raise ParameterError("no item of either has such a name, so there is nothing to compare")
    found = _Found()
    streamed: list[_Pair] = []
    for name, entry in one.items():
        if (beside := other.get(name)) is None:
            found.removed.append(name)
        elif entry.is_tensor != beside.is_tensor or entry.shape != beside.shape:
            found.change(Change(name, (entry.dtype, beside.dtype), (entry.shape, beside.shape)))
        elif not entry.is_tensor:
            found.objects(name, partial(first.load_object, entry), partial(second.load_object, beside))
        elif entry.dtype != beside.dtype and not (is_number(_dtype(entry)) and is_number(_dtype(beside))):
            found.change(Change(name, (entry.dtype, beside.dtype), (entry.shape, beside.shape)))
        else:
            streamed.append((name, entry, beside))
    found.added += [name for name in other if name not in one]
    _compare_tensors(first, second, streamed, found, progress)
    return found.difference(first.contents.path, second.contents.path, list(one))


class _Found:
    """Collects what is found."""

    def __init__(self) -> None:
        self.removed: list[str] = []
        self.added: list[str] = []
        self._changed: dict[str, Change] = {}
        self._incomparable: dict[str, str] = {}
        self._equal = self._elements = self._differing = 0

    def change(self, change: Change) -> None:
        self._changed[change.name] = change

    def tensors(self, name: str, first: Entry, second: Entry, distance: Distance) -> None:
        self._elements += distance.elements
        self._differing += distance.differing
        if distance.differing or first.dtype != second.dtype:
            self.change(Change(name, (first.dtype, second.dtype), (first.shape, second.shape), distance))
        else:
            self._equal += 1

    def objects(self, name: str, load_first: Callable[[], Any], load_second: Callable[[], Any]) -> None:
        try:
            text = difference_of(load_first(), load_second())
        except (Incomparable, PolicyError, UnsupportedError) as error:
            self._incomparable[name] = error.message if isinstance(error, StreamxfError) else str(error)
            return
        if text is None:
            self._equal += 1
        else:
            self.change(Change(name, (None, None), ((), ()), text=text))

    def difference(self, first: str, second: str, order: list[str]) -> Difference:
        changed = tuple(self._changed[name] for name in order if name in self._changed)
        return Difference(
            first,
            second,
            tuple(self.removed),
            tuple(self.added),
            changed,
            self._incomparable,
            self._equal,
            self._elements,
            self._differing,
            tuple(prefix_notes(self.removed, self.added)),
        )


def _compare_tensors(
    first: Source, second: Source, pairs: list[_Pair], found: _Found, progress: Progress | None
) -> None:
    """Read both sides in step."""
    if progress is not None:
        progress.expect(sum((one.raw_bytes or 0) + (other.raw_bytes or 0) for _, one, other in pairs))
    read_first, read_second = first.read(_boxes(pairs, 1)), second.read(_boxes(pairs, 2))
    for name, one, other in pairs:
        tally = Tally(_dtype(one), _dtype(other))
        for _ in _boxes([(name, one, other)], 1):
            parts = next(read_first), next(read_second)
            tally.add(*parts)
            if progress is not None:
                progress.advance(sum(part.nbytes for part in parts))
        found.tensors(name, one, other, tally.result())


def _boxes(pairs: list[_Pair], side: Literal[1, 2]) -> Iterator[Box]:
    """The boxes of one side, cut as those of the other."""
    for pair in pairs:
        size = max(_dtype(pair[1]).itemsize, _dtype(pair[2]).itemsize)
        yield from boxes_of(pair[side], size)


def _chosen(source: Source, only: Sequence[str], prefix: str) -> dict[str, Entry]:
    found = chosen(source.contents.entries, only, prefix)
    return {name: entry for name, entry in found.items() if entry.name != ITEM}


def _dtype(entry: Entry) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, str(entry.dtype))
    return dtype
