"""Values: a single one, and a stream of them, by both decoders; what is read has these bytes for its one form."""

import random
from collections.abc import Iterable

from streamxf.format.values import pack_name, pack_value, parse_value, values_in
from tests.fuzz.oracle import agree, attempt
from tests.fuzz.second import compare
from tests.fuzz.target import Havoc, Target
from tests.reference_values import parse_value as parse_by_reference
from tests.vectors.described import bytes_of, notation, vectors

_HEADS = (
    *(b"\xd9\xd3\x53", b"\xd9\xd3\x54", b"\xd9\xd3\x53\x80", b"\xd9\xd3\x54\x80", b"\x80", b"\xa0", b"\x18", b"\x19"),
    *(b"\x1b", b"\x3b", b"\xf9\x7e\x00", b"\xfa", b"\xfb", b"\x5a\x00\x10\x00\x00", b"\x9a\x00\x01\x00\x00", b"\x61a"),
)


def run(data: bytes) -> None:
    found, error = attempt(lambda: parse_value(data)[0])
    if error is None:
        agree(pack_value(found) == data, "a value has two forms")
    shown = None if error is not None else notation(found)
    compare(shown, error, lambda: notation(parse_by_reference(data)))
    spans, _ = attempt(lambda: list(values_in(data)))
    parts = [pack_name(name) + data[begin:end] for name, begin, end, _ in spans or ()]
    agree(not spans or b"".join(parts) == data, "a stream of values has other bytes than these")


def seeds() -> Iterable[bytes]:
    values = [bytes_of(entry["file"]) for entry in vectors("value").values() if "holds" in entry]
    yield from values
    yield b"".join(pack_name(f"item {number}") + value for number, value in enumerate(values))


def mutate(data: bytes, choose: random.Random, havoc: Havoc) -> bytes:
    """Change bytes, or put a head somewhere, or a part somewhere else."""
    at, other = choose.randrange(len(data) + 1), choose.randrange(len(data) + 1)
    match choose.randrange(4):
        case 0 | 1:
            return havoc(data)
        case 2:
            return data[:at] + choose.choice(_HEADS) + data[at + choose.randrange(4) :]
        case _:
            return data[:at] + data[other : other + choose.randrange(16)] + data[at:]


TARGET = Target(run, seeds, mutate)
