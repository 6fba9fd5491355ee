"""Containers as they stand in data files: their identity, and how it fits what they hold."""

from __future__ import annotations

import struct

from tests.forge import BOUND, HASHED, KEYED, PUBLISHED, Parts, identity_of
from tests.sealing import ENCRYPT, container, encrypted, zstd
from tests.vectors.recipes.data import BLOCK, lines, payload
from tests.vectors.recipes.vector import Made, under

ZSTD = "streamxf.zstd/1"
ITEM = BOUND | PUBLISHED
OBJECT, TENSOR, FRAMED = 1, 2, 3
DATA = payload(48)
NAME = "layers.0.weight"
SHARD = (NAME, TENSOR, "float32", (2, 0), (4, 3), (6, 3))


def vectors() -> Made:
    """All of them."""
    made = {**_right(), **_identities(), **_places(), **_tensors(), **_hashed(), **_keyed()}
    return {name: parts.container() for name, parts in made.items()}


def _made(identity: bytes, flags: int = ITEM, data: bytes = DATA, chain: tuple[str, ...] = (ZSTD,)) -> Parts:
    return container(chain, [zstd(data)], len(data), flags=flags, identity=identity)


def _right() -> dict[str, Parts]:
    most = (1,) * 63 + (12,)
    cases = {
        "object": identity_of("optimizer.step"),
        "tensor": identity_of(*SHARD),
        "tensor-of-bytes": identity_of(NAME, TENSOR, "float8_e4m3fn", (0,), (48,), (48,)),
        "tensor-64-dimensions": identity_of(NAME, TENSOR, "float32", (0,) * 64, most, most),
        "framed": identity_of(NAME, FRAMED, "float32", (2, 0), (4, 3), (6, 3)),
        "framed-unknown-dtype": identity_of(NAME, FRAMED, "quint4x2", (0,), (3,), (3,)),
        "name-in-unicode": identity_of("größe.重み"),
        "name-of-4068-bytes": identity_of("n" * 4068),
        "number": identity_of("o", number=2**53 - 1),
    }
    widths = ((1, 127), (2, 128), (4, 2**31 - 1), (8, 2**31))
    cases |= {
        f"width-{width}": identity_of("o", FRAMED, "int8", (size,), (size,), (2 * size,)) for width, size in widths
    }
    nothing = identity_of(NAME, TENSOR, "float64", (0, 2**52), (0, 1), (0, 2**53 - 1))
    scalar = identity_of(NAME, TENSOR, "complex128")
    transformed = _made(identity_of("o"), chain=("!acme.scramble/1?seed=7", ZSTD))
    return {
        **{name: _made(identity) for name, identity in cases.items()},
        "bound-not-published": _made(identity_of("o"), BOUND),
        "transform": transformed,
        "tensor-without-elements": _made(nothing, data=b""),
        "scalar": _made(scalar, data=DATA[:16]),
        "hashed": _three(),
    }


def _three() -> Parts:
    data = _LARGE
    blocks = [zstd(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)]
    return container([ZSTD], blocks, len(data), flags=ITEM | HASHED, identity=identity_of("o"))


_LARGE = lines(2 * BLOCK + 5)


def _identities() -> dict[str, Parts]:
    cases = {
        "too-short": identity_of("o")[:27],
        "kind-0": identity_of("o", 0),
        "kind-4": identity_of("o", 4),
        "ndim-65": identity_of("o", FRAMED, "float32", *[(0,) * 65] * 3),
        "object-with-dimension": identity_of("o", OBJECT, "", (0,), (1,), (1,)),
        "object-with-dtype": identity_of("o", OBJECT, "float32"),
        "width-0": identity_of("o", width=0),
        "width-2": identity_of("o", width=2),
        "width-3": identity_of("o", FRAMED, "int8", (0,), (1,), (1,), width=3),
        "width-8": identity_of("o", FRAMED, "int8", (0,), (1,), (1,), width=8),
        "width-255": identity_of("o", width=255),
        "cut-in-dtype": identity_of("", TENSOR, "float32")[:-3],
        "cut-in-numbers": identity_of("", TENSOR, "float32", (0,), (1,), (1,))[:-3],
        "dtype-33": identity_of("o", FRAMED, "d" * 33),
        "dtype-not-ascii": identity_of("o", FRAMED, b"float\xc3\xa9"),
        "no-name": identity_of(""),
        "name-not-utf-8": identity_of(b"\xc3("),
        "name-a-surrogate": identity_of(b"\xed\xa0\x80"),
    }
    dtypes = {
        "C5-dtype-empty": identity_of(*_with(dtype="")),
        "C5-dtype-unknown": identity_of(*_with(dtype="quint8")),
        "C5-dtype-capitals": identity_of(*_with(dtype="Float32")),
        "C6-dtype-empty": identity_of(*_with(kind=FRAMED, dtype="")),
        "C6-dtype-capitals": identity_of(*_with(kind=FRAMED, dtype="QUINT8")),
        "C6-dtype-digit": identity_of(*_with(kind=FRAMED, dtype="8bit")),
        "C6-dtype-nul": identity_of(*_with(kind=FRAMED, dtype="float\0")),
    }
    return {
        **under("identity", {name: _made(identity) for name, identity in cases.items()}),
        **{name: _made(identity) for name, identity in dtypes.items()},
    }


def _with(kind: int = TENSOR, dtype: str = "float32") -> tuple[object, ...]:
    return (NAME, kind, dtype, *SHARD[3:])


def _places() -> dict[str, Parts]:
    far = 2**64 - 1
    numbered = identity_of("o", number=2**53)
    cases = {
        "beyond-the-end": ((3, 0), (4, 3), (6, 3)),
        "beyond-in-the-second": ((0, 1), (6, 3), (6, 3)),
        "wraps": ((far, 0), (4, 3), (6, 3)),
        "dimension-2-53": ((0, 0), (0, 3), (2**53, 3)),
        "product-2-53": ((0, 0), (4, 3), (2**32, 2**21)),
        "product-2-53-beside-0": ((0, 0, 0), (0, 1, 1), (0, 2**32, 2**21)),
    }
    return {
        **under("C4", {name: _made(identity_of(NAME, FRAMED, "float32", *numbers)) for name, numbers in cases.items()}),
        "C4-number-2-53": _made(numbered),
    }


def _tensors() -> dict[str, Parts]:
    tensor = identity_of(*SHARD)
    scalar = identity_of(NAME, TENSOR, "float32")
    return {
        "C5-a-byte-less": _made(tensor, data=DATA[:47]),
        "C5-a-byte-more": _made(tensor, data=DATA + b"x"),
        "C5-an-element-more": _made(tensor, data=DATA + bytes(4)),
        "C5-nothing": _made(tensor, data=b""),
        "C5-scalar-of-nothing": _made(scalar, data=b""),
        "C5-not-published": _made(tensor, BOUND),
        "C5-transform": _made(tensor, chain=("!acme.scramble/1", ZSTD)),
        "descriptor-transform": _made(identity_of("o"), chain=("!acme.Scramble/1", ZSTD)),
        "C1-transform-behind": _made(identity_of("o"), chain=(ZSTD, "!acme.scramble/1")),
        "C2-published-not-bound": _made(b"", PUBLISHED),
        "C2-identity-not-bound": _made(identity_of("o"), 0),
    }


def _hashed() -> dict[str, Parts]:
    made = _three()
    stored = made.container()
    table = [stored[len(stored) - 20 - 108 + 36 * number :][:36] for number in range(3)]
    hashes = [entry[4:] for entry in table]
    lengths = tuple(struct.unpack("<I", entry[:4])[0] for entry in table)
    cases = {
        "first": (bytes([hashes[0][0] ^ 1]) + hashes[0][1:], *hashes[1:]),
        "last": (*hashes[:2], hashes[2][:-1] + bytes([hashes[2][-1] ^ 1])),
        "swapped": (hashes[1], hashes[0], hashes[2]),
        "zeros": (*hashes[:2], bytes(32)),
    }
    return {
        **under("C13", {name: made.change(hashes=found) for name, found in cases.items()}),
        "C10-hashed": made.change(lengths=(lengths[0] + 1, *lengths[1:])),
    }


def _keyed() -> dict[str, Parts]:
    identity = identity_of(*SHARD)
    made = encrypted(container([ENCRYPT], [DATA], len(DATA), flags=KEYED | ITEM, identity=identity))
    moved = made.change(identity=identity_of(NAME, TENSOR, "float32", (0, 0), (4, 3), (6, 3)))
    renamed = made.change(identity=identity_of("layers.1.weight", *SHARD[1:]))
    half = encrypted(container([ENCRYPT], [DATA], 24, flags=KEYED | ITEM, identity=identity_of("o")))
    return {
        "encrypted": made,
        "C3-moved": moved,
        "C3-renamed": renamed,
        "C3-numbered": made.change(identity=identity_of(*SHARD, number=1)),
        "C3-informative": made.change(informative=1),
        "C3-unpublished": made.change(flags=KEYED | BOUND, identity=identity_of("o")),
        "C9-C14-raw-size": half,
    }
