"""Values: types, order and bits come back, what has another form is no value, and hostile bytes cost little."""

import math
import random
import struct
import sys
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest

from streamxf.errors import ContainerError
from streamxf.format.limits import MAX_NODES, MAX_VALUE
from streamxf.format.values import pack_name, pack_value, parse_value, values_in
from tests.reference_codecs import Refused
from tests.reference_values import parse_value as parse_by_reference
from tests.vectors.described import bytes_of, notation, vectors

CYCLE: list[Any] = []
CYCLE.append(CYCLE)
SHARED: list[Any] = [1]


class Text(str):
    """Of a subclass."""

    __slots__ = ()


def nested(kind: Callable[[list[Any]], Any], depth: int) -> Any:
    made: Any = 0
    for _ in range(depth):
        made = kind([made])
    return made


def drawn(draw: random.Random, depth: int = 0) -> Any:
    """Plain data of any kind."""
    scalars: list[Callable[[], Any]] = [
        lambda: None,
        lambda: draw.random() < 0.5,
        lambda: draw.choice([-1, 1]) * draw.getrandbits(draw.randrange(1, 65)),
        lambda: struct.unpack(">d", draw.randbytes(8))[0],
        lambda: draw.choice([0.0, -0.0, 0.5, math.inf, -math.inf, math.nan, 1e-3]),
        lambda: "".join(chr(draw.choice([65, 0xE4, 0xFFFF, 0x1F600, 0])) for _ in range(draw.randrange(30))),
        lambda: draw.randbytes(draw.randrange(30)),
    ]
    if depth == 4 or draw.random() < 0.4:
        return draw.choice(scalars)()
    inner = [drawn(draw, depth + 1) for _ in range(draw.randrange(5))]
    keys = [draw.choice([draw.randrange(-99, 99), f"k{draw.randrange(99)}"]) for _ in inner]
    return draw.choice([list, tuple, lambda each: dict(zip(keys, each, strict=True))])(inner)


def refused(data: bytes) -> bool:
    """By both decoders, or by none."""
    try:
        one: Any = notation(parse_value(data)[0])
    except ContainerError:
        one = None
    try:
        other: Any = notation(parse_by_reference(data))
    except Refused:
        other = None
    assert one == other, data.hex()
    return one is None


def test_drawn_values_come_back() -> None:
    draw, count = random.Random(48), 0
    for _ in range(2000):
        value = drawn(draw)
        packed = pack_value(value)
        if packed is None:  # a NaN with other bits
            assert "nan" in repr(value)
            continue
        count += 1
        found, size = parse_value(packed)
        assert repr(found) == repr(value)  # types, order and signs, too
        assert 1 <= size <= len(packed)
        assert not refused(packed)
    assert count > 1500


@pytest.mark.parametrize(
    "value",
    [
        *(2**64, -(2**64) - 1, {2**53: 0}, {-(2**53): 0}, {True: 0}, {None: 0}, {1.0: 0}, {(1,): 0}, {b"": 0}),
        *("\ud800", ["\ud800"], {"\udfff": 0}, -math.nan, struct.unpack(">d", b"\x7f\xf8" + bytes(5) + b"\1")[0]),
        *({1}, 1j, bytearray(b"x"), memoryview(b"x"), OrderedDict(a=1), Text("x"), [Text("x")], {Text("x"): 1}, object),
        *(CYCLE, [SHARED, SHARED], (SHARED, {"a": SHARED}), [d := {}, d], nested(list, 65), nested(tuple, 65)),
        *(bytes(MAX_VALUE - 4), "x" * MAX_VALUE, [0] * MAX_NODES, dict.fromkeys(range(MAX_NODES // 2))),
        *(["\xe4" * (MAX_VALUE // 2)], [bytes(MAX_VALUE // 2)] * 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_value(value: Any) -> None:
    assert pack_value(value) is None


@pytest.mark.parametrize(
    "value",
    [
        *(bytes(MAX_VALUE - 5), [0] * (MAX_NODES - 1), dict.fromkeys(range(MAX_NODES // 2 - 1))),
        *(
            nested(list, 64),
            nested(tuple, 64),
            nested(lambda each: {"a": each[0]}, 64),
            nested(lambda each: {2: 0, 1: each[0]}, 64),
        ),
        *([t := (1,), t], ["x" * 99] * 9, [[], []], {"b": 1, "a": 2}, {2**53 - 1: 0, -(2**53) + 1: 0}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_just_a_value(value: Any) -> None:
    packed = pack_value(value)
    assert packed is not None
    found, _ = parse_value(packed)
    assert found == value
    assert repr(found) == repr(value)
    assert not refused(packed)


def test_a_stream_of_values() -> None:
    values = {"step": 1, "größe": [2], "x" * 4093: {"b": 1, "a": 2}}
    stream = b"".join(pack_name(name) + (pack_value(value) or b"") for name, value in values.items())
    assert {name: parse_value(stream[begin:end])[0] for name, begin, end, _ in values_in(stream)} == values
    assert [count for *_, count in values_in(stream)] == [1, 2, 5]
    for other in (stream + b"\0", stream + b"\x61a", stream + b"\x61a\xff", b"\x60\0" + stream, b"\0\0" + stream):
        with pytest.raises(ContainerError):
            list(values_in(other))
    with pytest.raises(ContainerError):
        list(values_in(pack_name("x" * 4094) + b"\0"))


def mutated(data: bytes, draw: random.Random) -> bytes:
    """A byte changed, taken out, put in, or exchanged; or the beginning of it."""
    made, at = bytearray(data), draw.randrange(len(data))
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        at = draw.randrange(len(made) or 1)
        match draw.randrange(6):
            case 0:
                made[at : at + 1] = bytes([draw.randrange(256)])
            case 1:
                made[at:at] = draw.choice([b"\xd9\xd3\x53", b"\xd9\xd3\x54", b"\x80", b"\xf9\0\0", draw.randbytes(1)])
            case 2:
                del made[at : at + draw.randrange(1, 4)]
            case 3:
                made[at : at + 1] = bytes([(made[at] if made else 0) ^ 1 << draw.randrange(8)])
            case 4:
                begin = draw.randrange(len(made) or 1)
                made[at:at] = made[begin : begin + draw.randrange(8)]
            case 5:
                del made[at:]
    return bytes(made)


@pytest.mark.parametrize("count", [3000, pytest.param(200_000, marks=pytest.mark.exhaustive)])
def test_mutations_are_read_alike_or_refused(count: int) -> None:
    """No silent wrong value: what is read from other bytes is another value, whose one form these bytes are."""
    draw, read = random.Random(count), 0
    seeds = [bytes_of(entry["file"]) for entry in vectors("value").values()]
    seeds = [seed for seed in seeds if 0 < len(seed) < 200]
    seeds += [packed for _ in range(100) if (packed := pack_value(drawn(draw)))]
    for _ in range(count):
        data = mutated(draw.choice(seeds), draw)
        if not refused(data):
            read += 1
            assert pack_value(parse_value(data)[0]) == data
    assert count // 10 < read < count


HOSTILE = {
    "a list that promises much": b"\x9b" + b"\xff" * 8,
    "lists that promise much, in each other": b"\x9a\x00\x00\xff\xff" * 60,
    "a text that promises much": b"\x7b" + b"\x00" * 3 + b"\xff" * 5 + b"x" * MAX_VALUE,
    "deep": b"\x81" * MAX_VALUE,
    "deep tags": b"\xd9\xd3\x53\x81" * (MAX_VALUE // 4),
    "tags alone": b"\xd9\xd3\x53" * (MAX_VALUE // 3),
    "many lists": b"\x9a\x00\x0f\xff\xf0" + b"\x80" * MAX_VALUE,
    "many lists in lists": b"\x99\xff\x00" + b"\x99\x00\xff" * 0xFF00,
    "a dict of the same keys": b"\xb9\x7f\xff" + b"\x00\x80" * 0x7FFF,
    "an ordered dict": b"\xd9\xd3\x54\x99\xff\xfe" + b"\x01\x80\x00\x80" * 0x3FFF,
    "keys with one hash": b"\xb9\x7f\xff"
    + b"".join(b"\x1b" + (n << 38).to_bytes(8, "big") + b"\0" for n in range(0x7FFF)),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_hostile_bytes_take_little_work_and_memory(data: bytes) -> None:
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    tracemalloc.start()
    sys.setprofile(count)
    try:
        with pytest.raises(ContainerError):
            parse_value(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        sys.setprofile(None)
        tracemalloc.stop()
    assert peak < 32 * 2**20
    assert calls < 2**21
    assert refused(data)
