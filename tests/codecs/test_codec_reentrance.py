"""A block that is encoded or decoded in the middle of another one, in the same thread, as a signal's handler or a
finalizer does that saves or loads. Each must come out as if it had been alone.
"""

import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import streamxf
from streamxf import LZ4, Checksum, Encrypt, FloatZip, ZStandard
from streamxf.buffers import Scratch
from streamxf.codec import BlockInfo, Codec, StreamInfo
from streamxf.format.container import stage_limit

BLOCK = 1 << 20
PACKAGE = str(Path(streamxf.__file__).parent)


def bf16(count: int, seed: int) -> bytes:
    """Numbers with few exponents, in 2 bytes each."""
    rng = random.Random(seed)
    return b"".join((rng.randrange(120, 126) << 7 | rng.randrange(128)).to_bytes(2, "little") for _ in range(count))


def words(count: int, seed: int) -> bytes:
    rng = random.Random(seed)
    return b" ".join(b"word%d" % rng.randrange(500) for _ in range(count))


CASES: list[tuple[Codec, str | None, Callable[[int, int], bytes]]] = [
    *[(FloatZip(), "bfloat16", bf16), (FloatZip(), None, bf16), (FloatZip(), None, words), (ZStandard(), None, words)],
    *[(LZ4(), None, words), (Checksum(), None, words), (Encrypt(bytes(range(32))), None, words)],
]


class Lane:
    """A stream with memory of its own, as every block on its way has."""

    def __init__(self, codec: Codec, dtype: str | None) -> None:
        stream = StreamInfo(BLOCK, bytes(32), bytes(32), None, dtype)
        take = partial(Scratch().take, 0)
        self.codec = codec
        self.info = BlockInfo(0, True, stage_limit(BLOCK), codec.start(stream), stream, take)

    def encode(self, block: bytes) -> bytes:
        return bytes(self.codec.encode(memoryview(block), self.info))

    def decode(self, stored: bytes) -> bytes:
        return bytes(self.codec.decode(memoryview(stored), self.info))


def at_every_line(act: Callable[[], None], run: Callable[[], bytes]) -> tuple[bytes, int]:
    """The result of `run`, with `act` called before each line of the package; and how often it was called."""
    calls = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal calls
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            calls += 1
            act()  # tracing is off while a trace function runs
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return run(), calls
    finally:
        sys.settrace(before)


@pytest.mark.parametrize(("codec", "dtype", "data"), CASES, ids=lambda value: getattr(value, "__name__", str(value)))
@pytest.mark.parametrize("count", [30_000, 100_000])  # blocks that zstd compresses in one call, and in several
def test_a_block_in_the_middle_of_another(codec: Codec, dtype: str | None, data: Any, count: int) -> None:
    block, other = data(count, 1), data(count // 3, 2)
    outer, inner = Lane(codec, dtype), Lane(codec, dtype)
    alone, other_alone = outer.encode(block), inner.encode(other)

    def interrupt() -> None:
        assert inner.encode(other) == other_alone
        assert inner.decode(other_alone) == other

    stored, calls = at_every_line(interrupt, lambda: outer.encode(block))
    assert calls
    assert stored == alone
    restored, calls = at_every_line(interrupt, lambda: outer.decode(stored))
    assert calls
    assert restored == block
