"""Values: plain data in CBOR, each in one form alone, and a writer's stream of them; docs/format/values.md."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Any, NoReturn

from streamxf.descriptor import VALUE
from streamxf.errors import ContainerError
from streamxf.format import limits

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
