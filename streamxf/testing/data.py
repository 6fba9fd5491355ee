"""Block contents: what hypothesis draws, and fixed samples for properties that try every length or every place."""

from __future__ import annotations

import random
import struct

import numpy as np
from hypothesis import strategies as st

from streamxf.testing.case import BLOCK_SIZE

MAX_DRAWN = 2048
MEBIBYTE = 1 << 20


def blocks() -> st.SearchStrategy[bytes]:
    """Draw blocks: any bytes, constant and repetitive ones, floats, and a model's weights."""
    sizes = st.integers(0, MAX_DRAWN)
    repeated = st.builds(lambda unit, size: (unit * size)[:size], st.binary(min_size=1, max_size=16), sizes)
    floats = st.lists(st.floats(width=32), max_size=64)
    return st.one_of(
        st.binary(max_size=256),
        st.builds(noise, sizes, st.integers(0, 2**32 - 1)),
        st.builds(lambda byte, size: bytes([byte]) * size, st.integers(0, 255), sizes),
        repeated,
        floats.map(lambda values: struct.pack(f"<{len(values)}f", *values)),
        st.builds(weights, sizes, st.integers(0, 2**32 - 1)),
    )


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def weights(size: int, seed: int = 0) -> bytes:
    """`size` bytes of normally distributed bfloat16 numbers, cut anywhere."""
    values = np.random.default_rng(seed).normal(0, 0.02, size // 2 + 1).astype("<f4")
    return (values.view("<u4") >> 16).astype("<u2").tobytes()[:size]


def contents(size: int) -> dict[str, bytes]:
    """Blocks of exactly `size` bytes, by what they hold."""
    return {
        "random": noise(size),
        "constant": bytes(size),
        "repetitive": (b"streamxf" * (size // 8 + 1))[:size],
        "float-like": weights(size),
    }


SMALL_SIZES = (0, 1, 2, 3, 4, 7, 8, 64, 255, 256, 1000)
EDGE_SIZES = (BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1)


def samples() -> list[bytes]:
    return [block for size in SMALL_SIZES for block in contents(size).values()]
