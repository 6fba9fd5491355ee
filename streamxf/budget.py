"""Limits on what a checkpoint may expand to: one rule for memory, work and output.

A few bytes can ask for any amount. A stride of 0 makes one number a tensor of 2^60 elements, a list can hold another
list a million times, a name of 64 KiB can belong to a million shards, a file can be one hole. So what a checkpoint says
of its sizes decides nothing. What counts is what its storage holds, and of that

    at most MAX_EXPANSION times as much, or FREE bytes where that is more,

is made in one call: bytes of tensors and objects that are decoded or compared, and characters that are printed. A
`Budget` counts them, and refuses too much before it is made. The caller may raise the factor (``max_expansion=``).

Where something else sets a bound, the rule is not needed: a load fills memory that the caller has made, and a block of
a container decodes to no more than its block size.

Time has the same rule: what is parsed, checked and compared draws from `Steps`, in proportion to what was read.
"""

from __future__ import annotations

import errno
import os
import sys
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable
from types import FunctionType
from typing import Any

from streamxf.errors import ForeignError, ParameterError, PolicyError
from streamxf.wording import size_text

MAX_EXPANSION = 64
"""Factor over the stored bytes. Weights hardly take twice their stored bytes. Checkpoints of mostly zeros may take
more, if the caller allows it."""

FREE = 256 * 2**20  # bytes that are allowed however little is stored
FREE_WHOLE = 16 * 2**20  # the same for files that are read into memory, and parsed, before anything is known of them


def most(stored: int, times: int = MAX_EXPANSION) -> int:
    """The limit for `stored` bytes."""
    return max(FREE, times * stored)


def check_expansion(times: object) -> int:
    """Return the caller's `max_expansion`; raises ParameterError unless it is a whole number from 1."""
    if type(times) is not int or times < 1:
        raise ParameterError(f"max_expansion={times!r:.40}: it must be a whole number from 1")
    return times


class Budget:
    """The rest of one call's limit for a checkpoint whose storage holds `stored` bytes, as far as is known yet. `times`
    is the caller's `max_expansion`; raises ParameterError unless it is a whole number from 1. `asked` are the bytes
    that were taken, and those that were refused.
    """

    def __init__(self, times: int, stored: int) -> None:
        self.times = check_expansion(times)
        self._stored = stored
        self._spent = self.asked = 0
        self._known: set[Hashable] = set()

    def add(self, stored: int) -> None:
        self._stored += stored

    def renewed(self) -> Budget:
        """Another one of the same size, of which nothing was spent."""
        return Budget(self.times, self._stored)

    def spend(self, size: int, what: str, *, file: str | None = None, item: str | None = None) -> None:
        """Take `size` bytes for `what`, which begins a sentence; PolicyError if that is too much, and none is taken."""
        self.asked += size
        if self._spent + size > most(self._stored, self.times):
            besides = f" besides the {size_text(self._spent)} before it" if self._spent else ""
            raise PolicyError(
                f"{what} would take {size_text(size)}{besides}, which is out of proportion to the "
                f"{size_text(self._stored)} stored: at most {self.times} times as much is allowed, or "
                f"{size_text(FREE)}. If you trust the checkpoint, allow more (max_expansion)",
                file=file,
                item=item,
            )
        self._spent += size

    def spend_once(
        self, key: Hashable, size: int, what: str, *, file: str | None = None, item: str | None = None
    ) -> None:
        """The same, but only the first time that `key` is given."""
        if key not in self._known:
            self.spend(size, what, file=file, item=item)
            self._known.add(key)


FREE_STEPS = 2**19  # steps that are allowed however little was read: a quarter of a second, or less
ELEMENT = 32  # bytes that count as an element
_MAX_DEPTH = 64  # of tuples, which are hashed on the processor's stack
_FEW = 64  # keys of a dict or set, whose hashes may be equal
_CONTAINERS = (list, dict, set, frozenset, OrderedDict, Counter)
_MODULUS = sys.hash_info.modulus  # integers that are nearer to 0 have hashes of their own, -1 aside


class TooMuch(ValueError):
    """Something from outside is damaged, or takes memory or time out of proportion; says in which way."""


class Steps:
    """What may be done with foreign data of `size` bytes. A step hashes, compares or copies some hundred bytes."""

    def __init__(self, size: int) -> None:
        self._left = FREE_STEPS + size
        self._hashes: dict[int, tuple[Any, Counter[int]]] = {}  # of the keys of large dicts and sets, by their ids

    def spend(self, count: int) -> None:
        """Raises TooMuch."""
        self._left -= count
        if self._left < 0:
            raise TooMuch("its pickle makes something out of proportion to its stored size")

    def charge(self, value: Any, depth: int = 0) -> None:
        """Count what hashing or copying a value takes; each part of a tuple or frozenset as often as it is there."""
        kind = type(value)
        if isinstance(value, tuple | frozenset):
            if depth == _MAX_DEPTH:
                raise TooMuch(f"its tuples are nested deeper than {_MAX_DEPTH}")
            for item in value:
                self.charge(item, depth + 1)
        if kind is str or kind is bytes or kind is bytearray:
            self.spend(1 + len(value) // ELEMENT)
        elif kind is int:
            self.spend(1 + value.bit_length() // (8 * ELEMENT))
        elif isinstance(kind.__hash__, FunctionType):  # which may hash anything that it holds
            raise TooMuch(f"its pickle has a {kind.__name__} where it may be hashed")
        else:
            self.spend(1 + len(value) if kind in _CONTAINERS else 1)

    def charge_key(self, target: Any, key: Any) -> None:
        """Count what it takes to put a key into a dict or set: that, and the keys there with its hash, with each of
        which it is compared. Those of strings cannot be known in advance; those of numbers and tuples may all be equal.
        """
        kind = type(key)
        if kind is str or kind is bytes:
            if len(key) > ELEMENT:
                self.charge(key)
            return
        if getattr(kind, "__hash__", None) is object.__hash__:
            return
        self.charge(key)
        known = self._hashes.get(id(target))
        if known is None:
            if len(target) < _FEW or (kind is int and -_MODULUS < key < _MODULUS):
                return
            known = self._hashes[id(target)] = target, Counter(map(hash, target))  # which keeps it, and its id
        found = hash(key)
        known[1][found] += 1
        self.spend(known[1][found])

    def set_of(self, items: Iterable[Any]) -> set[Any]:
        made: set[Any] = set()
        for item in items:
            self.charge_key(made, item)
            made.add(item)
        return made


def held_bytes(file: Any, size: int) -> int:
    """How many of a file's `size` bytes are stored: all but its holes, which read as zeros; all where nothing tells."""
    try:
        descriptor: int = file.fileno()
    except (AttributeError, OSError, ValueError, ForeignError):
        return size
    allocated = allocated_bytes(os.fstat(descriptor))
    return size if allocated is None or allocated >= size else max(allocated, _data_in(descriptor, size))


def allocated_bytes(facts: os.stat_result) -> int | None:
    """What a file takes on its disk; None where the system does not say."""
    blocks: int | None = getattr(facts, "st_blocks", None)
    return None if blocks is None else 512 * blocks


def _data_in(descriptor: int, size: int) -> int:
    """Bytes that are in no hole. A file system that compresses, or has not written yet what it was given, allocates
    fewer than these. Each step goes past data, so their number is bounded by what is stored.
    """
    if not hasattr(os, "SEEK_DATA"):
        return size
    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    found = at = 0
    try:
        while at < size:
            start = os.lseek(descriptor, at, os.SEEK_DATA)
            at = os.lseek(descriptor, start, os.SEEK_HOLE)
            found += at - start
    except OSError as error:
        return found if error.errno == errno.ENXIO else size  # there is nothing but a hole from here on
    finally:
        os.lseek(descriptor, position, os.SEEK_SET)
    return found
