"""Two opened checkpoints, compared item by item: tensors box by box, both sides in step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice
from typing import Any, Literal

import torch

from streamxf.convert.origin import is_kept
from streamxf.descriptor import shorten
from streamxf.errors import (
    KeyMissingError,
    KeyServiceError,
    ParameterError,
    PolicyError,
    StreamxfError,
    WrongKeyError,
)
from streamxf.formats.choosing import chosen
from streamxf.formats.contents import Entry
from streamxf.formats.source import Box, Source, boxes_of
from streamxf.progress import Progress, Share
from streamxf.registry import NOT_AT_HAND
from streamxf.tools.diff.difference import Change, Difference
from streamxf.tools.diff.names import prefix_notes
from streamxf.tools.diff.objects import Incomparable, difference_of
from streamxf.tools.diff.values import Distance, Tally
from streamxf.tools.values.numbers import is_number

_Pair = tuple[str, Entry, Entry]

# Reasons that have nothing to do with the item: the caller can mend them, and then all items can be read.
_CALLERS = (*NOT_AT_HAND, KeyMissingError, KeyServiceError, PolicyError, WrongKeyError)


def compare(
    first: Source,
    second: Source,
    *,
    only: Sequence[str] = (),
    prefixes: tuple[str, str] = ("", ""),
    values: bool = False,
    files: bool = False,
    progress: Progress | None = None,
) -> Difference:
    """Compare two opened checkpoints, as `diff` does.

    Parameters
    ----------
    files : bool
        Whether what `pack` keeps of files is compared, too. Otherwise a checkpoint is the same as the file that it was
        packed from, whatever else is in that file.

    Raises
    ------
    StreamxfError, OSError
        If no item can be read that both have. One that cannot be read beside others that can is not comparable.
    """
    one, other = _chosen(first, only, prefixes[0], files), _chosen(second, only, prefixes[1], files)
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
    _compare_tensors(first, second, streamed, found, values, progress)
    found.check()
    return found.difference(first.contents.path, second.contents.path, list(one))


class _Found:
    """Collects what is found."""

    def __init__(self) -> None:
        self.removed: list[str] = []
        self.added: list[str] = []
        self._changed: dict[str, Change] = {}
        self._incomparable: dict[str, str] = {}
        self._equal = self._elements = self._differing = 0
        self._read = 0
        self._unread: list[Exception] = []

    def change(self, change: Change) -> None:
        self._changed[change.name] = change

    def tensors(self, name: str, first: Entry, second: Entry, distance: Distance) -> None:
        self._read += 1
        self._elements += distance.elements
        self._differing += distance.differing
        if distance.differing or first.dtype != second.dtype:
            self.change(Change(name, (first.dtype, second.dtype), (first.shape, second.shape), distance))
        else:
            self._equal += 1

    def objects(self, name: str, load_first: Callable[[], Any], load_second: Callable[[], Any]) -> None:
        try:
            with _of_the("first"):
                one = load_first()
            with _of_the("second"):
                other = load_second()
            text = difference_of(one, other)
        except Incomparable as error:
            self._read += 1
            self._incomparable[name] = str(error)
        except Exception as error:  # an object's own code can raise anything
            self.unreadable(name, error)
        else:
            self._read += 1
            if text is None:
                self._equal += 1
            else:
                self.change(Change(name, (None, None), ((), ()), text=text))

    def unreadable(self, name: str, error: Exception) -> None:
        """Record that an item cannot be read, or compared, and why; the others can all the same."""
        self._incomparable[name] = _reason(error)
        self._unread.append(error.cause if isinstance(error, _Unreadable) else error)

    def check(self) -> None:
        """Raise the first reason if nothing could be read, and the caller can mend that or there is nothing else to
        tell.
        """
        reason = next((error for error in self._unread if isinstance(error, StreamxfError | OSError)), None)
        if reason is None or self._read:
            return
        if isinstance(reason, _CALLERS) or not (self.removed or self.added or self._changed):
            raise reason

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
    first: Source, second: Source, pairs: list[_Pair], found: _Found, values: bool, progress: Progress | None
) -> None:
    """Compare tensors in their order. Where one cannot be read, which ends the reading of those behind it, too, they
    are read one by one up to that one.
    """
    if progress is not None:
        progress.expect(sum(_raw_bytes(pair) for pair in pairs))
    left = deque(pairs)
    share: Share | None = None

    def compare_next(count: int) -> None:
        """The next ones, read in step; those that are done are taken out."""
        nonlocal share
        some = list(islice(left, count))
        read: tuple[Any, Any] = first.read(_boxes(some, 1)), second.read(_boxes(some, 2))
        with closing(read[0]) as one, closing(read[1]) as other:
            for pair in some:
                if share is None and progress is not None:
                    share = Share(progress, _raw_bytes(pair))
                _compare_tensor(pair, one, other, found, values, share)
                left.popleft()
                share = None

    while left:
        try:
            compare_next(len(left))
        except Exception:
            failed = False
            while left and not failed:
                try:
                    compare_next(1)
                except Exception as error:  # a foreign extension raises anything, and torch for what it cannot compare
                    failed = True
                    found.unreadable(left.popleft()[0], error)
                    if share is not None:
                        share.finish()
                    share = None


def _compare_tensor(
    pair: _Pair,
    first: Iterator[torch.Tensor],
    second: Iterator[torch.Tensor],
    found: _Found,
    values: bool,
    share: Share | None,
) -> None:
    name, one, other = pair
    tally = Tally(_dtype(one), _dtype(other), values)
    for _ in _boxes([pair], 1):
        with _of_the("first"):
            part = next(first)
        with _of_the("second"):
            beside = next(second)
        tally.add(part, beside)
        if share is not None:
            share.advance(part.nbytes + beside.nbytes)
    found.tensors(name, one, other, tally.result())


class _Unreadable(Exception):
    """An item of one of the two cannot be read.

    Attributes
    ----------
    cause : Exception
    """

    def __init__(self, which: str, cause: Exception) -> None:
        super().__init__(f"that of the {which} cannot be read: {_reason(cause)}")
        self.cause = cause


@contextmanager
def _of_the(which: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _Unreadable(which, error) from error


def _reason(error: Exception) -> str:
    if isinstance(error, _Unreadable):
        return str(error)
    return f"{type(error).__name__}: {shorten(error.message if isinstance(error, StreamxfError) else str(error), 600)}"


def _raw_bytes(pair: _Pair) -> int:
    return (pair[1].raw_bytes or 0) + (pair[2].raw_bytes or 0)


def _boxes(pairs: list[_Pair], side: Literal[1, 2]) -> Iterator[Box]:
    """The boxes of one side, cut as those of the other."""
    for pair in pairs:
        size = max(_dtype(pair[1]).itemsize, _dtype(pair[2]).itemsize)
        yield from boxes_of(pair[side], size)


def _chosen(source: Source, only: Sequence[str], prefix: str, files: bool) -> dict[str, Entry]:
    found = chosen(source.contents.entries, only, prefix)
    return {name: entry for name, entry in found.items() if files or not is_kept(entry.name)}


def _dtype(entry: Entry) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, str(entry.dtype))
    return dtype
