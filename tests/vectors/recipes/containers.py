"""Containers as they stand in data files: their identity, and how it fits what they hold."""

from typing import Any

from tests.forge import BOUND, KEYED, PUBLISHED, Parts, identity_of
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


def three() -> Parts:
    data = _LARGE
    blocks = [zstd(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)]
    return container([ZSTD], blocks, len(data), flags=ITEM, identity=identity_of("o"))


_LARGE = lines(2 * BLOCK + 5)


def tensor_of(kind: int = TENSOR, dtype: str = "float32") -> tuple[object, ...]:
    return (NAME, kind, dtype, *SHARD[3:])


def tensors() -> dict[str, Any]:
    tensor = identity_of(*SHARD)
    return locals()


def lengths() -> dict[str, Any]:
    made = three()
    lengths = tuple(len(payload) for _, payload in made.blocks)
    return locals()


def keyed() -> dict[str, Any]:
    identity = identity_of(*SHARD)
    made = encrypted(container([ENCRYPT], [DATA], len(DATA), flags=KEYED | ITEM, identity=identity))
    return locals()
