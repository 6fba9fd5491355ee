"""Containers as they stand in data files: their identity, and how it fits what they hold."""

from __future__ import annotations

import struct
from collections.abc import Callable

from tests.forge import BOUND, HASHED, KEYED, PUBLISHED, Parts, identity_of
from tests.sealing import DEK, ENCRYPT, container, encrypted, zstd
from tests.vectors.recipes.data import BLOCK, lines, payload
from tests.vectors.recipes.vector import Vector, digest_of

ZSTD = "streamxf.zstd/1"
ITEM = BOUND | PUBLISHED
OBJECT, TENSOR, FRAMED = 1, 2, 3
DATA = payload(48)
NAME = "layers.0.weight"
SHARD = (NAME, TENSOR, "float32", (2, 0), (4, 3), (6, 3))


def vectors() -> list[Vector]:
    """All of them."""
    return [*_right(), *_identities(), *_places(), *_tensors(), *_hashed(), *_keyed()]


def _made(identity: bytes, flags: int = ITEM, data: bytes = DATA, chain: tuple[str, ...] = (ZSTD,)) -> Parts:
    return container(chain, [zstd(data)], len(data), flags=flags, identity=identity)


def _holds(name: str, about: str, make: Callable[[], Parts], data: bytes = DATA, **facts: str) -> Vector:
    return Vector(name, about, lambda: {name: make().container()}, {"holds": digest_of(data)}, facts=facts)


def _breaks(rule: str, name: str, about: str, file: bytes | Parts, **facts: str) -> Vector:
    full = f"{rule}-{name}"
    data = file if isinstance(file, bytes) else file.container()
    return Vector(full, about, lambda: {full: data}, {"breaks": rule}, facts=facts)


def _right() -> list[Vector]:
    most = (1,) * 63 + (12,)
    cases = [
        ("object", "an object", identity_of("optimizer.step")),
        ("tensor", "a shard of a tensor", identity_of(*SHARD)),
        ("tensor-of-bytes", "elements of one byte", identity_of(NAME, TENSOR, "float8_e4m3fn", (0,), (48,), (48,))),
        (
            "tensor-64-dimensions",
            "as many dimensions as there may be",
            identity_of(NAME, TENSOR, "float32", (0,) * 64, most, most),
        ),
        ("framed", "a framed tensor", identity_of(NAME, FRAMED, "float32", (2, 0), (4, 3), (6, 3))),
        (
            "framed-unknown-dtype",
            "a dtype that version 1 has no elements of",
            identity_of(NAME, FRAMED, "quint4x2", (0,), (3,), (3,)),
        ),
        ("name-in-unicode", "a name that is not ASCII", identity_of("größe.重み")),
        ("name-of-4068-bytes", "the longest name", identity_of("n" * 4068)),
        ("number", "the largest number", identity_of("o", number=2**53 - 1)),
        *(
            (
                f"width-{width}",
                f"integers of {width} bytes",
                identity_of("o", FRAMED, "int8", *[(size,)] * 2, (2 * size,)),
            )
            for width, size in ((1, 127), (2, 128), (4, 2**31 - 1), (8, 2**31))
        ),
    ]
    nothing = identity_of(NAME, TENSOR, "float64", (0, 2**52), (0, 1), (0, 2**53 - 1))
    scalar = identity_of(NAME, TENSOR, "complex128")
    transformed = _made(identity_of("o"), chain=("!acme.scramble/1?seed=7", ZSTD))
    return [
        *(_holds(name, about, lambda identity=identity: _made(identity)) for name, about, identity in cases),
        _holds(
            "bound-not-published", "an object as an attached writer stores it", lambda: _made(identity_of("o"), BOUND)
        ),
        _holds("transform", "a stream transform, which is not undone here", lambda: transformed),
        _holds(
            "tensor-without-elements", "a dimension of 2^53 - 1 beside one of 0", lambda: _made(nothing, data=b""), b""
        ),
        _holds("scalar", "a tensor without dimensions", lambda: _made(scalar, data=DATA[:16]), DATA[:16]),
        _holds("hashed", "a SHA-256 for each block", _three, _LARGE),
    ]


def _three() -> Parts:
    data = _LARGE
    blocks = [zstd(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)]
    return container([ZSTD], blocks, len(data), flags=ITEM | HASHED, identity=identity_of("o"))


_LARGE = lines(2 * BLOCK + 5)


def _identities() -> list[Vector]:
    cases = [
        ("too-short", "27 bytes", identity_of("o")[:27]),
        ("kind-0", "kind 0", identity_of("o", 0)),
        ("kind-4", "kind 4", identity_of("o", 4)),
        ("ndim-65", "65 dimensions", identity_of("o", FRAMED, "float32", *[(0,) * 65] * 3)),
        ("object-with-dimension", "an object with a dimension", identity_of("o", OBJECT, "", (0,), (1,), (1,))),
        ("object-with-dtype", "an object with a dtype", identity_of("o", OBJECT, "float32")),
        ("width-0", "a width of 0", identity_of("o", width=0)),
        ("width-2", "wider integers than an object needs", identity_of("o", width=2)),
        ("width-3", "a width of 3", identity_of("o", FRAMED, "int8", (0,), (1,), (1,), width=3)),
        ("width-8", "wider integers than they need", identity_of("o", FRAMED, "int8", (0,), (1,), (1,), width=8)),
        ("width-255", "a width of 255", identity_of("o", width=255)),
        ("cut-in-dtype", "the identity ends inside the dtype", identity_of("", TENSOR, "float32")[:-3]),
        (
            "cut-in-numbers",
            "the identity ends inside the shapes",
            identity_of("", TENSOR, "float32", (0,), (1,), (1,))[:-3],
        ),
        ("dtype-33", "dtype_len is 33", identity_of("o", FRAMED, "d" * 33)),
        ("dtype-not-ascii", "a dtype that is not ASCII", identity_of("o", FRAMED, b"float\xc3\xa9")),
        ("no-name", "no name", identity_of("")),
        ("name-not-utf-8", "a name that is not UTF-8", identity_of(b"\xc3(")),
        ("name-a-surrogate", "half a pair of surrogates in the name", identity_of(b"\xed\xa0\x80")),
    ]
    dtypes = [
        ("C5", "dtype-empty", "a tensor without a dtype", identity_of(*_with(dtype=""))),
        ("C5", "dtype-unknown", "a dtype that has no elements", identity_of(*_with(dtype="quint8"))),
        ("C5", "dtype-capitals", "another spelling of a dtype", identity_of(*_with(dtype="Float32"))),
        ("C6", "dtype-empty", "a framed tensor without a dtype", identity_of(*_with(kind=FRAMED, dtype=""))),
        ("C6", "dtype-capitals", "a dtype in capitals", identity_of(*_with(kind=FRAMED, dtype="QUINT8"))),
        ("C6", "dtype-digit", "a dtype that begins with a digit", identity_of(*_with(kind=FRAMED, dtype="8bit"))),
        ("C6", "dtype-nul", "a dtype with a character 00", identity_of(*_with(kind=FRAMED, dtype="float\0"))),
    ]
    return [
        *(_breaks("identity", name, about, _made(identity)) for name, about, identity in cases),
        *(_breaks(rule, name, about, _made(identity)) for rule, name, about, identity in dtypes),
    ]


def _with(kind: int = TENSOR, dtype: str = "float32") -> tuple[object, ...]:
    return (NAME, kind, dtype, *SHARD[3:])


def _places() -> list[Vector]:
    far = 2**64 - 1
    numbered = identity_of("o", number=2**53)
    cases = [
        ("beyond-the-end", "a shard that reaches beyond its tensor", (3, 0), (4, 3), (6, 3)),
        ("beyond-in-the-second", "the same in the second dimension", (0, 1), (6, 3), (6, 3)),
        ("wraps", "an offset that gets inside only by wrapping around", (far, 0), (4, 3), (6, 3)),
        ("dimension-2-53", "a dimension of 2^53", (0, 0), (0, 3), (2**53, 3)),
        ("product-2-53", "2^53 elements", (0, 0), (4, 3), (2**32, 2**21)),
        ("product-2-53-beside-0", "a 0, and 2^53 in the other dimensions", (0, 0, 0), (0, 1, 1), (0, 2**32, 2**21)),
    ]
    return [
        *(
            _breaks("C4", name, about, _made(identity_of(NAME, FRAMED, "float32", *numbers)))
            for name, about, *numbers in cases
        ),
        _breaks("C4", "number-2-53", "the number 2^53", _made(numbered)),
    ]


def _tensors() -> list[Vector]:
    tensor = identity_of(*SHARD)
    scalar = identity_of(NAME, TENSOR, "float32")
    return [
        _breaks("C5", "a-byte-less", "a stream of 47 bytes for 12 elements of 4", _made(tensor, data=DATA[:47])),
        _breaks("C5", "a-byte-more", "a stream of 49 bytes", _made(tensor, data=DATA + b"x")),
        _breaks("C5", "an-element-more", "a stream of 13 elements", _made(tensor, data=DATA + bytes(4))),
        _breaks("C5", "nothing", "an empty stream", _made(tensor, data=b"")),
        _breaks("C5", "scalar-of-nothing", "a tensor without dimensions has one element", _made(scalar, data=b"")),
        _breaks("C5", "not-published", "a tensor in a container that is not published", _made(tensor, BOUND)),
        _breaks("C5", "transform", "a stream transform", _made(tensor, chain=("!acme.scramble/1", ZSTD))),
        _breaks(
            "descriptor",
            "transform",
            "a stream transform that is not a descriptor",
            _made(identity_of("o"), chain=("!acme.Scramble/1", ZSTD)),
        ),
        _breaks(
            "C1",
            "transform-behind",
            "a stream transform behind a codec",
            _made(identity_of("o"), chain=(ZSTD, "!acme.scramble/1")),
        ),
        _breaks("C2", "published-not-bound", "published, and no identity", _made(b"", PUBLISHED)),
        _breaks("C2", "identity-not-bound", "an identity, and not bound", _made(identity_of("o"), 0)),
    ]


def _hashed() -> list[Vector]:
    made = _three()
    stored = made.container()
    table = [stored[len(stored) - 20 - 108 + 36 * number :][:36] for number in range(3)]
    hashes = [entry[4:] for entry in table]
    lengths = tuple(struct.unpack("<I", entry[:4])[0] for entry in table)
    cases = [
        ("first", "a bit of the first hash", (bytes([hashes[0][0] ^ 1]) + hashes[0][1:], *hashes[1:])),
        ("last", "a bit of the last hash", (*hashes[:2], hashes[2][:-1] + bytes([hashes[2][-1] ^ 1]))),
        ("swapped", "two hashes changed places", (hashes[1], hashes[0], hashes[2])),
        ("zeros", "a hash of zeros", (*hashes[:2], bytes(32))),
    ]
    return [
        *(_breaks("C13", name, about, made.change(hashes=found)) for name, about, found in cases),
        _breaks("C10", "hashed", "a length that is one more", made.change(lengths=(lengths[0] + 1, *lengths[1:]))),
    ]


def _keyed() -> list[Vector]:
    identity = identity_of(*SHARD)
    made = encrypted(container([ENCRYPT], [DATA], len(DATA), flags=KEYED | ITEM, identity=identity))
    moved = made.change(identity=identity_of(NAME, TENSOR, "float32", (0, 0), (4, 3), (6, 3)))
    renamed = made.change(identity=identity_of("layers.1.weight", *SHARD[1:]))
    half = encrypted(container([ENCRYPT], [DATA], 24, flags=KEYED | ITEM, identity=identity_of("o")))
    dek = DEK.hex()
    return [
        _holds("encrypted", "a shard of a tensor, encrypted", lambda: made, dek=dek),
        _breaks("C3", "moved", "another offset", moved, dek=dek),
        _breaks("C3", "renamed", "another name", renamed, dek=dek),
        _breaks("C3", "numbered", "another number", made.change(identity=identity_of(*SHARD, number=1)), dek=dek),
        _breaks("C3", "informative", "an informative flag", made.change(informative=1), dek=dek),
        _breaks(
            "C3",
            "unpublished",
            "the flag taken away",
            made.change(flags=KEYED | BOUND, identity=identity_of("o")),
            dek=dek,
        ),
        _breaks("C9", "C14-raw-size", "C14: half of raw_size, which only the last block can contradict", half, dek=dek),
    ]
