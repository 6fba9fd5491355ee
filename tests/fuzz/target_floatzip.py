"""FloatZip's payloads, which have a grammar of their own: tables, planes, exceptions, levels."""

import random
from collections.abc import Iterable

from streamxf import FloatZip
from streamxf.chain import Chain
from tests.floatzip_forge import FIXED, LEVELLED, PACKED, RAW, ZSTD, Shape, forge, kinds
from tests.fuzz.target import Havoc, Target
from tests.fuzz.target_codecs import decode
from tests.samples import data_of, floats

_CHAIN = Chain([FloatZip()])
_HEAD = 5  # layout and raw_size; then 5 bytes for each plane


def run(data: bytes) -> None:
    decode(_CHAIN, data)


def seeds() -> Iterable[bytes]:
    yield b"\0" + data_of(40)
    yield forge(floats(100, "e"), Shape(2, True, 0, ((RAW, 1), (PACKED, 1)), 200))
    yield forge(b"a" + floats(90, "f") + b"bc", Shape(4, True, 1, ((RAW, 2), (ZSTD, 1), (LEVELLED, 1)), 3, b"\1\2", 7))
    yield forge(floats(70, "d"), Shape(8, False, 0, ((RAW, 4), (RAW, 2), (ZSTD, 1), (PACKED, 1)), 60))
    yield forge(data_of(101), Shape(1, False, 0, ((PACKED, 1),), 9))
    yield forge(floats(100, "e"), Shape(2, True, 0, ((RAW, 1), (FIXED, 1)), 200, bits=2))
    yield forge(floats(1300, "f"), Shape(2, True, 0, ((FIXED, 1), (FIXED, 1)), 60, bits=5))
    yield forge(data_of(202), Shape(2, False, 0, ((RAW, 1), (LEVELLED, 1)), 9, b"\5\0\7", 64))


def mutate(data: bytes, choose: random.Random, havoc: Havoc) -> bytes:
    """Forge another payload, or change a payload's table, a plane, or anything."""
    kind = choose.random()
    if kind < 0.25:
        return _forged_again(choose, havoc)
    rows = _rows(data)
    if kind < 0.4 or not rows:
        return havoc(data)
    if kind < 0.5:
        end = _HEAD + 5 * len(rows)
        return havoc(data[:end])[:end].ljust(end, b"\0") + data[end:]
    return _change_plane(data, rows, choose, havoc)


def _forged_again(choose: random.Random, havoc: Havoc) -> bytes:
    width = choose.choice((1, 2, 4, 8))
    planes: list[tuple[int, int]] = []
    while (left := width - sum(lane for _, lane in planes)) > 0:
        planes.append(choose.choice([kind for kind in kinds(width) if kind[1] <= left]))
    phase = choose.randrange(width)
    levels = choose.randbytes(choose.randint(1, 40))
    rotated, base, period = width > 1 and choose.random() < 0.5, choose.randrange(256), choose.randint(1, 200)
    shape = Shape(width, rotated, phase, planes, base, levels, period, choose.randint(1, 7))
    data = havoc(choose.choice((floats(60, "f"), floats(60, "e"), bytes(200))))[:1000]
    return forge(data.ljust(phase + width, b"\1"), shape, choose.randrange(16))


def _rows(data: bytes) -> list[tuple[int, int]]:
    """Coding and stored size of each plane, where the table can be read."""
    if len(data) < _HEAD or not data[0] & 0x40:
        return []
    rows: list[tuple[int, int]] = []
    lanes = 0
    while lanes < 1 << (data[0] & 3):
        row = data[_HEAD + 5 * len(rows) :][:5]
        if len(row) < 5:
            return []
        rows.append((row[0] if row[0] == FIXED else row[0] & 3, int.from_bytes(row[1:], "little")))
        lanes += 1 if row[0] == FIXED else 1 << (row[0] >> 2)
    return rows


def _change_plane(data: bytes, rows: list[tuple[int, int]], choose: random.Random, havoc: Havoc) -> bytes:
    """Change one plane's data, and its size in the table."""
    chosen = choose.randrange(len(rows))
    order = sorted(range(len(rows)), key=lambda number: rows[number][0] != RAW)
    end = _HEAD + 5 * len(rows)
    at = end + -end % 8 + sum(rows[number][1] for number in order[: order.index(chosen)])
    size = rows[chosen][1]
    plane = havoc(data[at : at + size])[:4000]
    row = _HEAD + 5 * chosen + 1
    table = data[:row] + len(plane).to_bytes(4, "little") + data[row + 4 : end]
    return table + data[end:at] + plane + data[at + size :]


TARGET = Target(run, seeds, mutate, max_len=6000)
