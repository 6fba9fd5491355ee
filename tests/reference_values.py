"""A decoder of values, written from docs/format/values.md alone; each refusal names the rule that was broken."""

import math
import struct
from typing import Any

from tests.reference_codecs import Fields, check, refusing

TUPLE, ORDERED = 54099, 54100
SIMPLE = {20: False, 21: True, 22: None}
FLOATS = {25: ">e", 26: ">f", 27: ">d"}


class Reading:
    def __init__(self, data: bytes) -> None:
        self.f = Fields(data, "V1")
        self.values = 0

    def head(self) -> tuple[int, int, int]:
        """The major type, what is behind it in the first byte, and the argument."""
        [first] = self.f.take(1)
        major, low = first >> 5, first & 31
        check(low < 28, "V1: a head")
        if low < 24:
            return major, low, low
        data = self.f.take(1 << low - 24)
        number = int.from_bytes(data, "big")
        check(major == 7 or number >= (24 if low == 24 else 1 << 4 * len(data)), "V1: a shorter form")
        return major, low, number

    def value(self, depth: int = 0, key: bool = False) -> Any:
        self.values += 1
        check(self.values <= 1 << 16, "V3: too many values")
        major, low, number = self.head()
        if major == 0:
            value: Any = number
        elif major == 1:
            value = -1 - number
        elif major == 2:
            value = self.f.take(number)
        elif major == 3:
            with refusing("V1: UTF-8", UnicodeDecodeError):
                value = self.f.take(number).decode("utf-8")
        elif major == 7 and low in FLOATS:
            value = parse_float(low, number)
        elif major == 7:
            check(low in SIMPLE, "V1: a simple value")
            value = SIMPLE[low]
        else:
            check(not key, "V2: a key")
            check(depth < 64, "V3: depth")
            value = self.container(major, low, number, depth + 1)
        if key:
            check(type(value) is str or (type(value) is int and abs(value) < 1 << 53), "V2: a key")
        return value

    def container(self, major: int, low: int, number: int, depth: int) -> Any:
        tag = None
        if major == 6:
            check(low == 25 and number in (TUPLE, ORDERED), "V1: a tag")
            tag = number
            major, low, number = self.head()
            check(major == 4, "V1: what has a tag is an array")
        if major == 4 and tag != ORDERED:
            values = [self.value(depth) for _ in range(self.count(number))]
            return tuple(values) if tag else values
        check(major == 5 or number % 2 == 0, "V1: a key without a value")
        made, encoded = {}, []
        for _ in range(self.count(number if major == 5 else number // 2)):
            begin = self.f.at
            key = self.value(key=True)
            encoded.append(self.f.data[begin : self.f.at])
            made[key] = self.value(depth)
        check(len(set(encoded)) == len(encoded), "V2: a key twice")
        check((encoded == sorted(encoded)) == (major == 5), "V2: the order of keys")
        return made

    def count(self, number: int) -> int:
        check(number <= 1 << 16, "V3: too many values")
        return number


def parse_float(low: int, number: int) -> float:
    size = 1 << low - 24
    [value] = struct.unpack(FLOATS[low], number.to_bytes(size, "big"))
    if math.isnan(value):
        check((low, number) == (25, 0x7E00), "V1: a NaN")
        return float("nan")
    for shorter in range(25, low):
        try:
            [same] = struct.unpack(FLOATS[shorter], struct.pack(FLOATS[shorter], value))
        except OverflowError:
            continue
        check(same != value, "V1: a shorter float")
    return value


def parse_value(data: bytes) -> Any:
    check(len(data) <= 1 << 20, "V3: too many bytes")
    reading = Reading(data)
    value = reading.value()
    check(not reading.f.rest(), "V6: more than one value")
    return value
