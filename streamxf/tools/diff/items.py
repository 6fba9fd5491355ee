"""Two opened checkpoints, compared item by item: tensors box by box, both sides in step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from streamxf.checkpoint.elements import itemsize_of
from streamxf.checkpoint.reading import BOX_BYTES, BoxReader, boxes_of
from streamxf.descriptor import shorten
from streamxf.errors import (
    KeyMissingError,
    KeyServiceError,
    ParameterError,
    PolicyError,
    StreamxfError,
    WrongKeyError,
)
from streamxf.format.items import Item, TensorItem
from streamxf.formats.choosing import chosen
from streamxf.progress import Progress, Share
from streamxf.registry import NOT_AT_HAND
from streamxf.tools.convert.origin import is_kept
from streamxf.tools.diff.difference import Change, Difference
from streamxf.tools.diff.distance import Distance, DistanceCounter
from streamxf.tools.diff.names import prefix_notes
from streamxf.tools.diff.objects import Incomparable, difference_of
from streamxf.tools.values.numbers import is_number

# Reasons that have nothing to do with the item: the caller can mend them, and then all items can be read.
_CALLERS = (*NOT_AT_HAND, KeyMissingError, KeyServiceError, PolicyError, WrongKeyError)


class _Pair(NamedTuple):
    """A tensor that both have."""

    name: str
    first: TensorItem
    second: TensorItem

    @property
    def size(self) -> int:
        return self.first.size + self.second.size


def compare(
    first: BoxReader,
    second: BoxReader,
    paths: tuple[str, str],
    *,
    only: Sequence[str] = (),
    prefixes: tuple[str, str] = ("", ""),
    values: bool = False,
    files: bool = False,
    progress: Progress | None = None,
) -> Difference:
    """Compare two opened checkpoints, as `diff` does; with `files`, also what `pack` keeps of files."""
    one, other = _chosen(first, only, prefixes[0], files), _chosen(second, only, prefixes[1], files)
    if not one and not other and (only or any(prefixes)):
        raise ParameterError("no item of either has such a name, so there is nothing to compare")
    found = _Found()
    pairs: list[_Pair] = []
    for name, item in one.items():
        beside = other.get(name)
        if beside is None:
            found.removed.append(name)
        elif isinstance(item, TensorItem) and isinstance(beside, TensorItem):
            comparable = item.dtype == beside.dtype or (is_number(item.dtype) and is_number(beside.dtype))
            if item.shape == beside.shape and comparable:
                pairs.append(_Pair(name, item, beside))
            else:
                found.change(_change(name, item, beside))
        elif isinstance(item, TensorItem) or isinstance(beside, TensorItem):
            found.change(_change(name, item, beside))
        else:
            found.objects(name, (first, prefixes[0] + name), (second, prefixes[1] + name))
    found.added += [name for name in other if name not in one]
    if progress is not None:
        progress.expect(sum(pair.size for pair in pairs))
    for pair in pairs:
        share = Share(progress, pair.size) if progress is not None else None
        try:
            found.tensors(pair, _distance(first, second, pair, values, share))
        except Exception as error:  # a third-party codec may raise anything
            found.unreadable(pair.name, error)
        if share is not None:
            share.finish()
    found.check()
    return found.difference(paths, list(one))


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

    def tensors(self, pair: _Pair, distance: Distance) -> None:
        self._read += 1
        self._elements += distance.elements
        self._differing += distance.differing
        if distance.differing or pair.first.dtype != pair.second.dtype:
            self.change(_change(*pair, distance))
        else:
            self._equal += 1

    def objects(self, name: str, first: tuple[BoxReader, str], second: tuple[BoxReader, str]) -> None:
        """Compare two objects, each given by its reader and its name there."""
        try:
            one = _of_the("first", first[0].load_object, first[1])
            other = _of_the("second", second[0].load_object, second[1])
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

    def difference(self, paths: tuple[str, str], order: list[str]) -> Difference:
        return Difference(
            *paths,
            tuple(self.removed),
            tuple(self.added),
            tuple(self._changed[name] for name in order if name in self._changed),
            self._incomparable,
            self._equal,
            self._elements,
            self._differing,
            tuple(prefix_notes(self.removed, self.added)),
        )


def _distance(first: BoxReader, second: BoxReader, pair: _Pair, values: bool, share: Share | None) -> Distance:
    items = pair.first, pair.second
    widest = max(map(itemsize_of, items))  # both are cut alike
    cuts = [boxes_of(item, BOX_BYTES // widest * itemsize_of(item)) for item in items]
    counter = DistanceCounter(pair.first.dtype, pair.second.dtype, values)
    with closing(first.read_boxes(cuts[0])) as one, closing(second.read_boxes(cuts[1])) as other:
        while True:
            part, beside = _of_the("first", next, one, None), _of_the("second", next, other, None)
            if part is None or beside is None:
                return counter.result()
            counter.add(part, beside)
            if share is not None:
                share.advance(part.nbytes + beside.nbytes)


class _Unreadable(Exception):
    """An item of one of the two cannot be read, because of `cause`."""

    def __init__(self, which: str, cause: Exception) -> None:
        super().__init__(f"that of the {which} cannot be read: {_reason(cause)}")
        self.cause = cause


def _of_the(which: str, read: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return read(*arguments)
    except Exception as error:
        raise _Unreadable(which, error) from error


def _reason(error: Exception) -> str:
    if isinstance(error, _Unreadable):
        return str(error)
    return f"{type(error).__name__}: {shorten(error.message if isinstance(error, StreamxfError) else str(error), 600)}"


def _chosen(reader: BoxReader, only: Sequence[str], prefix: str, files: bool) -> Mapping[str, Item]:
    found = chosen(reader.items, only, prefix)
    return {name: item for name, item in found.items() if files or not is_kept(item.name)}


def _change(name: str, first: Item, second: Item, distance: Distance | None = None) -> Change:
    about: list[Any] = [
        (item.dtype, item.shape) if isinstance(item, TensorItem) else (None, ()) for item in (first, second)
    ]
    (dtype, shape), (other_dtype, other_shape) = about
    return Change(name, (dtype, other_dtype), (shape, other_shape), distance)
