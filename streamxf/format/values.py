"""Plain data. Values: in CBOR, each in one form alone, and a writer's stream of them; docs/format/values.md.

What planners put into DCP's metadata: in JSON. An index has no tuples, bytes, fractions, negative numbers or keys
that are not strings, so each of these is an object with one member that names its kind: {"tuple": [...]},
{"bytes": "00ff"}, {"number": "-1.5"}, {"dict": [[key, value], ...]}. One member, `NESTING`, has what names and paths
of items do not say: docs/format.md, "Nesting". It is for nesting items alone; other forms of it are passed over.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, pairwise
from typing import Any, NoReturn, Self

from streamxf.budget import Steps
from streamxf.descriptor import VALUE
from streamxf.errors import ContainerError, MetadataError
from streamxf.format import limits
from streamxf.format.items import Path, check_text, is_path

TUPLE, ORDERED = 0xD353, 0xD354  # tags of an array that is a tuple, and of one that has a dict's keys and values
_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _ARRAY, _MAP, _TAG, _OTHER = range(8)
_SIMPLE = {None: b"\xf6", False: b"\xf4", True: b"\xf5"}
_PLAIN = {packed[0]: value for value, packed in _SIMPLE.items()}
_FLOATS = {0xF9: struct.Struct(">e"), 0xFA: struct.Struct(">f"), 0xFB: struct.Struct(">d")}
_NAN = struct.pack(">d", float("nan"))


class _NotAValueError(Exception):
    pass


def descriptor_of(span: tuple[int, int] | None) -> str:
    """What torch's own readers are given of a value, which has its own bytes, or a place in a stream."""
    return f"{VALUE}/1" + (f"?begin={span[0]}&end={span[1]}" if span is not None else "")


def pack_value(value: Any) -> bytes | None:
    """Plain data as it is stored; None if it is anything else, or too large."""
    return _Packing().whole(value)


def pack_name(name: str) -> bytes:
    """What stands before a value in the stream."""
    data = name.encode()
    return _head(_TEXT, len(data)) + data


class _Packing:
    def __init__(self) -> None:
        self.count, self._size, self._seen = 0, 0, set[int]()

    def whole(self, value: Any) -> bytes | None:
        try:
            packed = self._packed(value, limits.MAX_VALUE_DEPTH)
        except (_NotAValueError, UnicodeEncodeError):
            return None
        return packed if len(packed) <= limits.MAX_VALUE else None

    def _packed(self, value: Any, depth: int) -> bytes:
        self._count(1)
        kind = type(value)
        if kind is float:
            return _packed_float(value)
        if kind is int:
            return _head(_UNSIGNED, value) if value >= 0 else _head(_NEGATIVE, -1 - value)
        if kind is str or kind is bytes:
            self._count(0, len(value))  # before it is copied
            data: bytes = value.encode() if kind is str else value
            return _head(_TEXT if kind is str else _BYTES, len(data)) + data
        if kind is bool or value is None:
            return _SIMPLE[value]
        if kind not in (list, tuple, dict) or not depth or (kind is not tuple and id(value) in self._seen):
            raise _NotAValueError  # what is met twice would be two afterwards
        if kind is dict:
            self._seen.add(id(value))
            if not all(map(_is_key, value)):
                raise _NotAValueError
            keys = [self._packed(key, 0) for key in value]
            parts = chain.from_iterable(
                zip(keys, [self._packed(own, depth - 1) for own in value.values()], strict=True)
            )
            rise = all(one < two for one, two in pairwise(keys))
            head = _head(_MAP, len(keys)) if rise else _head(_TAG, ORDERED) + _head(_ARRAY, 2 * len(keys))
            return head + b"".join(parts)
        if kind is list:
            self._seen.add(id(value))
        head = _head(_ARRAY, len(value)) if kind is list else _head(_TAG, TUPLE) + _head(_ARRAY, len(value))
        return head + b"".join([self._packed(each, depth - 1) for each in value])

    def _count(self, values: int, size: int = 1) -> None:
        self.count += values
        self._size += size
        if self.count > limits.MAX_NODES or self._size > limits.MAX_VALUE:
            raise _NotAValueError


def _is_key(key: Any) -> bool:
    return type(key) is str or (type(key) is int and abs(key) <= limits.MAX_NUMBER)


def _head(major: int, argument: int) -> bytes:
    if argument < 24:
        return bytes((major << 5 | argument,))
    for log2 in range(4):
        if argument < 1 << (8 << log2):
            return bytes((major << 5 | 24 + log2,)) + argument.to_bytes(1 << log2, "big")
    raise _NotAValueError


def _packed_float(value: float) -> bytes:
    if value != value and struct.pack(">d", value) != _NAN:
        raise _NotAValueError
    packed = b"\xfb" + struct.pack(">d", value)
    for first in (0xFA, 0xF9):
        try:
            shorter = _FLOATS[first].pack(value)
        except OverflowError:
            break
        if _FLOATS[first].unpack(shorter)[0] != value and value == value:
            break
        packed = bytes((first,)) + shorter
    return packed


def parse_value(data: bytes | memoryview) -> tuple[Any, int]:
    """The value that is all of `data`, and of how many it consists. Raises ContainerError for whatever `pack_value`
    does not give.
    """
    reading = _Reading(data)
    value, count = reading.value()
    if reading.at != len(data):
        reading.fail()
    return value, count


def values_in(stream: bytes | memoryview) -> Iterator[tuple[str, int, int, int]]:
    """The names of all values in a stream, where each begins and ends there, and of how many it consists. Raises
    ContainerError at the first that is not as it must be.
    """
    reading = _Reading(stream)
    while reading.at < len(stream):
        at = reading.at
        name, _ = reading.value()
        begin = reading.at
        if type(name) is not str or not name or begin - at > limits.MAX_IDENTITY:
            reading.fail()
        _, count = reading.value()
        yield name, begin, reading.at, count


class _Reading:
    """Values that are read one after another. Nothing is made of what a head promises before it is there, and whatever
    is not as `pack_value` gives it is refused.
    """

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = data
        self.at = self._left = 0

    def fail(self) -> NoReturn:
        raise ContainerError(f"a value is malformed, or another one than the metadata says, at byte {self.at}")

    def value(self) -> tuple[Any, int]:
        self._left = 2 * limits.MAX_NODES  # as tags count here
        begin, packing = self.at, _Packing()
        value = self._value(limits.MAX_VALUE_DEPTH)
        if packing.whole(value) != self._data[begin : self.at]:
            self.fail()
        return value, packing.count

    def _value(self, depth: int) -> Any:
        first = self._take(1)[0]
        major, number = first >> 5, self._argument(first)
        if major in (_UNSIGNED, _NEGATIVE):
            return number if major == _UNSIGNED else -1 - number
        if major in (_BYTES, _TEXT):
            data = bytes(self._take(number))
            try:
                return data if major == _BYTES else data.decode()
            except UnicodeDecodeError:
                self.fail()
        if first in _FLOATS:
            return _FLOATS[first].unpack(number.to_bytes(_FLOATS[first].size, "big"))[0]
        if first in _PLAIN:
            return _PLAIN[first]
        self._left -= 1 + number if major in (_ARRAY, _MAP) else 1
        if not depth or self._left < 0 or major == _OTHER:
            self.fail()
        if major == _ARRAY:
            return [self._value(depth - 1) for _ in range(number)]
        if major == _MAP:
            return self._dict(number, depth - 1)
        first = self._take(1)[0]
        count = self._argument(first)
        if first >> 5 != _ARRAY or number not in (TUPLE, ORDERED) or count > self._left:
            self.fail()
        self._left -= count
        return (
            tuple([self._value(depth - 1) for _ in range(count)])
            if number == TUPLE
            else self._dict(count // 2, depth - 1)
        )

    def _dict(self, count: int, depth: int) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        for _ in range(count):
            key = self._value(0)
            if not _is_key(key):
                self.fail()
            made[key] = self._value(depth)
        return made

    def _argument(self, first: int) -> int:
        low = first & 31
        if low >= 28:
            self.fail()
        return low if low < 24 else int.from_bytes(self._take(1 << low - 24), "big")

    def _take(self, size: int) -> bytes | memoryview:
        begin, self.at = self.at, self.at + size
        if self.at > len(self._data):
            self.at = begin
            self.fail()
        return self._data[begin : self.at]


_MAX_DEPTH = 32

NESTING = "_nesting"
"""The member that says what names and paths of items do not; planners give none whose name begins with ``_``."""


def to_json(value: Any, depth: int = _MAX_DEPTH) -> Any:
    """Plain data as JSON has it. Raises MetadataError if it is not plain data, or nested too deep."""
    if depth < 0:
        raise MetadataError("it is nested too deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return check_text(value)
    if isinstance(value, int) and abs(value) < 2**63:
        return int(value) if 0 <= value <= limits.MAX_NUMBER else {"number": repr(int(value))}
    if isinstance(value, float) and math.isfinite(value):
        return {"number": repr(float(value))}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, tuple):
        return {"tuple": [to_json(each, depth - 1) for each in value]}
    if isinstance(value, list):
        return [to_json(each, depth - 1) for each in value]
    if isinstance(value, dict):
        return {"dict": [[to_json(key, depth - 1), to_json(each, depth - 1)] for key, each in value.items()]}
    raise MetadataError(f"a {type(value).__name__} is not plain data")


def from_json(value: Any) -> Any:
    try:
        return _plain(value, Steps(0))
    except (TypeError, ValueError, RecursionError):
        raise MetadataError("the metadata's extra data is malformed") from None


def _plain(value: Any, steps: Steps) -> Any:
    if isinstance(value, list):
        return [_plain(each, steps) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "number":
        return _number(content)
    if kind == "tuple":
        return tuple(_plain(each, steps) for each in content)
    if kind == "dict":
        made: dict[Any, Any] = {}
        for key, each in content:
            key = _plain(key, steps)
            steps.charge_key(made, key)
            made[key] = _plain(each, steps)
        return made
    raise ValueError(kind)


def _number(text: str) -> int | float:
    made = float(text) if len(text) > 20 or not text.removeprefix("-").isdigit() else int(text)
    if repr(made) != text or not math.isfinite(made):
        raise ValueError(text)
    return made


_MOST_NESTING = 2**20  # bytes; of a state with more exceptions than that nothing is recorded

UNRECORDED: Any = {NESTING: {"unknown": [[]]}}
"""The member of `extra` where nobody recorded anything, as stock DCP does not."""


def _visit(path: Path, value: Any, is_flattened: Callable[[list[Any]], bool]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        keys = value.keys()  # other questions a TensorDict answers in its own way
        if path and not [*keys]:
            yield "empty", [*path]
        yield from _keys(path, keys)
        pairs: Iterable[tuple[Any, Any]] = value.items()
    else:
        pairs = enumerate(value)
    for key, inner in pairs:
        if isinstance(inner, Mapping) or (isinstance(inner, list) and is_flattened(inner)):
            yield from _visit((*path, key if isinstance(value, list) else str(key)), inner, is_flattened)


def _keys(path: Path, keys: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    strange = [key for key in keys if not isinstance(key, str) or key != str(key)]
    other = [key for key in strange if type(key) is not int or not Nesting.is_decimal(str(key))]
    if len(other) < len(strange) and not any(isinstance(key, str) and Nesting.is_decimal(key) for key in keys):
        yield "integers", [*path]
        strange = other
    for key in strange:
        number = (isinstance(key, int) and abs(key) < 2**63) or (isinstance(key, float) and math.isfinite(key))
        yield ("keys", [[*path, str(key)], key]) if number or key is None else ("unknown", [*path, str(key)])


class Nesting:
    """What the `extra` of an index says of nesting, and of the order of the save; of that of another form, nothing.

    - `empty`, `integers`, `unknown`: paths of empty dicts, of dicts all of whose keys that `is_decimal` are integers,
      and of keys of which nothing is known but that they were no strings: ``()`` if that goes for all.
    - `keys`: paths of other single keys, with the keys.
    """

    def __init__(self, extra: Mapping[str, Any] = UNRECORDED) -> None:
        found = extra.get(NESTING)
        self.extra, self._record = extra, found if isinstance(found, dict) else {}
        self.empty, self.integers, self.unknown = map(self._paths, ("empty", "integers", "unknown"))
        self.keys = [(path, key) for path, key in map(_key, self._entries("keys")) if path]

    @staticmethod
    def recorded(state: Any, is_flattened: Callable[[list[Any]], bool]) -> dict[str, list[Any]]:
        """The record of what DCP flattens on one rank; empty where names and paths say all. `is_flattened` says whether
        DCP makes items of a list's elements, and not an object of the whole.
        """
        found: dict[str, list[Any]] = {}
        for kind, entry in _visit((), state, is_flattened) if isinstance(state, Mapping) else ():
            with suppress(MetadataError):  # of a key that UTF-8 does not have
                found.setdefault(kind, []).append(to_json(entry))
        return found if len(json.dumps(found)) <= _MOST_NESTING else dict(UNRECORDED[NESTING])

    @classmethod
    def merged(cls, records: Iterable[Mapping[str, list[Any]]]) -> Self:
        """That of all ranks, each of which has `recorded` its own."""
        found: dict[str, dict[str, Any]] = {}
        for record in records:
            for kind, entries in record.items():
                found.setdefault(kind, {}).update((json.dumps(entry), entry) for entry in entries)
        return cls({NESTING: {kind: [*entries.values()] for kind, entries in found.items()}} if found else {})

    @staticmethod
    def is_decimal(text: str) -> bool:
        """Whether it is an integer as Python writes it."""
        return len(text) <= 20 and text.isascii() and text.removeprefix("-").isdecimal() and str(int(text)) == text

    def with_order(self, names: Iterable[str]) -> dict[str, Any]:
        """`extra` and the order in which items are saved, unless that is the order of names, or takes too much."""
        given = [*names]
        width = len(f"{len(given):x}")
        if width * len(given) > _MOST_NESTING or (ranked := sorted(given)) == given:
            return dict(self.extra)
        places = {name: place for place, name in enumerate(given)}
        order = [_digest(ranked), "".join(f"{places[name]:0{width}x}" for name in ranked)]
        return {**self.extra, NESTING: {**self._record, "order": order}}

    def in_saved_order(self, names: Iterable[str]) -> list[str]:
        """The names of all items of an index in the order of the save, if the record says that; else as they are."""
        given = [*names]
        match self._record.get("order"):
            case [str(digest), str(text)] if given and text and digest == _digest(ranked := sorted(given)):
                width = max(1, len(text) // len(ranked))
                with suppress(ValueError):
                    places = [int(text[at : at + width], 16) for at in range(0, len(text), width)]
                    if sorted(places) == [*range(len(ranked))]:
                        return [name for _, name in sorted(zip(places, ranked, strict=True))]
        return given

    def moved(self, pairs: Iterable[tuple[Path, Path]]) -> Nesting:
        """The same once items have moved from path to path, with what is around them; the rest is dropped."""
        if not self._record:
            return self
        where: dict[Path, Path] = {}
        for old, new in sorted(pairs, key=lambda pair: pair[0] == pair[1]):  # where some stay, what they are in stays
            for depth in range(len(old) + 1):
                end = len(new) - len(old) + depth
                if end >= 0 and old[depth:] == new[end:]:
                    where[old[:depth]] = new[:end]

        def at(path: Path) -> list[Any] | None:
            known = (depth for depth in range(len(path), -1, -1) if path[:depth] in where)
            return next(([*where[path[:depth]], *path[depth:]] for depth in known), None)

        record = {
            "empty": [*filter(None, map(at, self.empty))],
            "keys": [[new, to_json(key)] for new, key in ((at(path), key) for path, key in self.keys) if new],
            "integers": [new for new in map(at, self.integers) if new is not None],
            "unknown": [new for new in (at(path) if path else [] for path in self.unknown) if new is not None],
        }
        return Nesting({**self.extra, NESTING: record})

    def _entries(self, kind: str) -> list[Any]:
        found = self._record.get(kind)
        return found if isinstance(found, list) else []

    def _paths(self, kind: str) -> list[Path]:
        made = [tuple(path) for path in self._entries(kind) if isinstance(path, list)]
        return [path for path in made if not path or is_path(path)]


def _key(entry: Any) -> tuple[Path, float | None]:
    """A key and where it is; no path for what is none."""
    with suppress(MetadataError, TypeError, ValueError):
        path, key = entry
        if isinstance(path, list) and is_path(tuple(path)) and isinstance(made := from_json(key), int | float | None):
            return tuple(path), made
    return (), None


def _digest(names: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(names).encode()).hexdigest()
