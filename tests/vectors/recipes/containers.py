"""Containers as they stand in data files: their identity, and how it fits what they hold."""

from __future__ import annotations

import struct
from typing import Any

from tests.forge import BOUND, HASHED, KEYED, PUBLISHED, Parts, identity_of
from tests.sealing import ENCRYPT, container, encrypted, zstd
from tests.vectors.recipes.data import BLOCK, lines, payload

ZSTD = "streamxf.zstd/1"
ITEM = BOUND | PUBLISHED
OBJECT, TENSOR, FRAMED = 1, 2, 3
DATA = payload(48)
NAME = "layers.0.weight"
SHARD = (NAME, TENSOR, "float32", (2, 0), (4, 3), (6, 3))


def bound(identity: bytes, flags: int = ITEM, data: bytes = DATA, chain: tuple[str, ...] = (ZSTD,)) -> Parts:
    return container(chain, [zstd(data)], len(data), flags=flags, identity=identity)


def right() -> dict[str, Any]:
    most = (1,) * 63 + (12,)
    nothing = identity_of(NAME, TENSOR, "float64", (0, 2**52), (0, 1), (0, 2**53 - 1))
    scalar = identity_of(NAME, TENSOR, "complex128")
    transformed = bound(identity_of("o"), chain=("!acme.scramble/1?seed=7", ZSTD))
    return locals()


def three() -> Parts:
    data = _LARGE
    blocks = [zstd(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)]
    return container([ZSTD], blocks, len(data), flags=ITEM | HASHED, identity=identity_of("o"))


_LARGE = lines(2 * BLOCK + 5)


def tensor_of(kind: int = TENSOR, dtype: str = "float32") -> tuple[object, ...]:
    return (NAME, kind, dtype, *SHARD[3:])


def places() -> dict[str, Any]:
    far = 2**64 - 1
    numbered = identity_of("o", number=2**53)
    return locals()


def tensors() -> dict[str, Any]:
    tensor = identity_of(*SHARD)
    scalar = identity_of(NAME, TENSOR, "float32")
    return locals()


def hashed() -> dict[str, Any]:
    made = three()
    stored = made.container()
    table = [stored[len(stored) - 20 - 108 + 36 * number :][:36] for number in range(3)]
    hashes = [entry[4:] for entry in table]
    lengths = tuple(struct.unpack("<I", entry[:4])[0] for entry in table)
    return locals()


def keyed() -> dict[str, Any]:
    identity = identity_of(*SHARD)
    made = encrypted(container([ENCRYPT], [DATA], len(DATA), flags=KEYED | ITEM, identity=identity))
    moved = made.change(identity=identity_of(NAME, TENSOR, "float32", (0, 0), (4, 3), (6, 3)))
    renamed = made.change(identity=identity_of("layers.1.weight", *SHARD[1:]))
    half = encrypted(container([ENCRYPT], [DATA], 24, flags=KEYED | ITEM, identity=identity_of("o")))
    return locals()
