"""Payloads of differences over a base that is always the same: the kernel and the reference decode the same ones, to
the same block.
"""

import random
from collections.abc import Iterable

import crc32c

from streamxf.codecs.floatzip import differences, kernel
from streamxf.errors import ChecksumError, CodecError
from tests.differences_forge import LAYOUTS, forge
from tests.fuzz.target import Havoc, Target
from tests.samples import floats

_BASE = floats(500, "f")
_HEAD = 6  # layout, CRC, levels


def run(data: bytes) -> None:
    """The first byte says how many fours of bytes the block has."""
    base, payload = memoryview(_BASE[: 4 * data[0]] if data else b""), data[1:]
    out = bytearray(len(base))
    compiled = kernel.compiled
    good = compiled is not None and compiled.decode_difference(
        base, payload, out, bytearray(compiled.difference_work_size(len(base)))
    )
    if good:
        payload = payload[:1] + crc32c.crc32c(out).to_bytes(4, "little") + payload[5:]
    decoded = bytearray(len(base))
    kernel.compiled = None  # type: ignore[assignment]
    try:
        differences.decode(base, memoryview(payload), memoryview(decoded))
    except (ChecksumError, CodecError):
        assert not good
    else:
        assert compiled is None or (good and decoded == out)
    finally:
        kernel.compiled = compiled


def seeds() -> Iterable[bytes]:
    choose = random.Random(3)
    for width, banded in LAYOUTS:
        yield _forged(choose, width, banded, choose.randrange(60))


def _forged(choose: random.Random, width: int, banded: int, row: int) -> bytes:
    fours = choose.randrange(256)
    base = _BASE[: 4 * fours]
    new = bytearray(base)
    for _ in range(choose.choice((0, 1, 5, 60)) if base else 0):
        new[choose.randrange(len(new))] ^= 1 << choose.randrange(8)
    return bytes([fours]) + forge(base, bytes(new), width, banded, choose, row)


def mutate(data: bytes, choose: random.Random, havoc: Havoc) -> bytes:
    """Forge another payload, or change bits of one behind its head, or anything."""
    kind = choose.random()
    if kind < 0.25:
        return _forged(choose, *choose.choice(LAYOUTS), choose.randrange(60))
    if kind < 0.75 and len(data) > _HEAD + 1:
        return data[: _HEAD + 1] + havoc(data[_HEAD + 1 :])
    return havoc(data)


TARGET = Target(run, seeds, mutate, max_len=3000)
