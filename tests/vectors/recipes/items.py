"""Containers of a checkpoint's items, and what the metadata says of each: its descriptors and its place."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from forge import Parts

from recipes.data import BLOCK, lines, payload
from recipes.sealing import ENCRYPT, KEY, OTHER_KEY, fragment, parts, seal, secret, wrapped, zstd
from recipes.vector import NO_KEYS, Keys, Vector, digest_of

HELD = Keys((("aeskw", KEY),))
OTHERS = Keys((("aeskw", OTHER_KEY),))
WRITER = secret("writer id")[:16]
NAME = "layers.0.weight"
BYTES, TENSOR = 1, 2
BOUND, PUBLISHED = 2, 4

DATA = payload(100)
LONG = lines(2 * BLOCK + 77)
CHAIN = ["streamxf.zstd/1", ENCRYPT]
ZSTD = ["streamxf.zstd/1"]
KEYED = f"{ENCRYPT}#{fragment()}"
LISTED = [KEYED, "streamxf.zstd/1#level=3"]


def vectors() -> list[Vector]:
    """All of them."""
    return [*_right(), *_elsewhere(), *_descriptors(), *_altered()]


def identity(name: str = NAME, offsets: Sequence[int] = (4, 0), kind: int = TENSOR, writer: bytes = WRITER) -> bytes:
    return writer + struct.pack(f"<BB{len(offsets)}Q", kind, len(offsets), *offsets) + name.encode()


def _parts(
    chain: list[str] = CHAIN, data: bytes = DATA, *, own: bytes | None = None, flags: int = BOUND | PUBLISHED
) -> Parts:
    """A sealed container, wherever it is bound to."""
    compressed = [zstd(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)]
    made = parts(chain, compressed, len(data))
    made = made.change(flags=made.flags | flags, identity=identity() if own is None else own)
    return seal(made) if ENCRYPT in chain else made


RIGHT = _parts()


def _place(**changes: Any) -> dict[str, Any]:
    """What the metadata says; the writer is None where there is no manifest."""
    return {"name": NAME, "kind": TENSOR, "offset": [4, 0], "writer": WRITER.hex()} | changes


def _reads(
    name: str,
    about: str,
    made: Parts,
    /,
    *,
    listed: list[str] = LISTED,
    keys: Keys = HELD,
    data: bytes = DATA,
    **at: Any,
) -> Vector:
    outcome = {"descriptors": listed, "place": _place(**at), "holds": digest_of(data)}
    return Vector(name, about, made.container, keys, outcome)


def _fails(
    name: str,
    about: str,
    made: Parts | bytes,
    layer: str,
    /,
    *,
    listed: list[str] = LISTED,
    keys: Keys = HELD,
    **at: Any,
) -> Vector:
    file = made if isinstance(made, bytes) else made.container()
    outcome = {"descriptors": listed, "place": _place(**at), "fails": layer}
    return Vector(name, about, lambda: file, keys, outcome)


def _right() -> list[Vector]:
    thing = _parts(own=identity("step", (), BYTES))
    deep = list(range(64))
    return [
        _reads("tensor", "a shard of a tensor", RIGHT),
        _reads("object", "a bytes object", thing, name="step", kind=BYTES, offset=[]),
        _reads("blocks", "three blocks", _parts(data=LONG), data=LONG),
        _reads("unicode", "a name that is not ASCII", _parts(own=identity("größe/層")), name="größe/層"),
        _reads("64-dimensions", "as many dimensions as there may be", _parts(own=identity(offsets=deep)), offset=deep),
        _reads("scalar", "a tensor of no dimension", _parts(own=identity(offsets=())), offset=[]),
        _reads("offset-2-63", "an offset of 2^63 - 1", _parts(own=identity(offsets=[2**63 - 1])), offset=[2**63 - 1]),
        _reads("two-recipients", "wrapped anew for two since", RIGHT, listed=[_both(), LISTED[1]], keys=OTHERS),
        _reads("not-encrypted", "no key and no encryption", _parts(ZSTD), listed=ZSTD, keys=NO_KEYS),
        _reads("no-level", "no fragment behind zstd", RIGHT, listed=[KEYED, *ZSTD]),
        _reads("no-manifest", "bound, and in a checkpoint of torch's writer", _parts(flags=BOUND), writer=None),
    ]


def _both() -> str:
    return f"{ENCRYPT}#{fragment([wrapped(KEY), wrapped(OTHER_KEY)])}"


def _elsewhere() -> list[Vector]:
    """Containers that are right, and stand where others belong."""
    cases = [
        ("name", "another item's", RIGHT, {"name": "layers.1.weight"}),
        ("name-longer", "a name that goes on", RIGHT, {"name": NAME + "s"}),
        ("name-shorter", "a name that ends before", RIGHT, {"name": NAME[:-1]}),
        ("name-case", "a name in another case", RIGHT, {"name": NAME.upper()}),
        ("offset", "another shard's", RIGHT, {"offset": [8, 0]}),
        ("offset-swapped", "a shard at the mirrored place", RIGHT, {"offset": [0, 4]}),
        ("dimensions", "a shard with a dimension more", RIGHT, {"offset": [4, 0, 0]}),
        ("kind", "a tensor in the place of an object", RIGHT, {"kind": BYTES}),
        ("writer", "another save's, or another process's", RIGHT, {"writer": secret("another")[:16].hex()}),
        ("not-published", "bound only, beside a manifest", _parts(flags=BOUND), {}),
        ("not-bound", "neither bound nor published, beside a manifest", _parts(own=b"", flags=0), {}),
        ("manifest-gone", "published, and there is no manifest", RIGHT, {"writer": None}),
    ]
    return [_fails(f"place-{name}", about, made, "mismatch", **at) for name, about, made, at in cases]


def _descriptors() -> list[Vector]:
    summed = ["streamxf.checksum/1", *CHAIN]
    unencrypted = _parts(ZSTD)
    lists = [
        ("none", "all descriptors are gone", RIGHT, []),
        ("encrypt-gone", "the descriptor of encryption is gone", RIGHT, LISTED[1:]),
        ("zstd-gone", "the descriptor of zstd is gone", RIGHT, LISTED[:1]),
        ("reversed", "the order of saving", RIGHT, LISTED[::-1]),
        ("swapped", "two codecs changed places", _parts(summed), [KEYED, "streamxf.checksum/1", "streamxf.zstd/1"]),
        ("one-more", "a descriptor more", RIGHT, [*LISTED, "streamxf.checksum/1"]),
        ("twice", "a descriptor twice", RIGHT, [*LISTED, LISTED[1]]),
        ("another-codec", "another codec", RIGHT, [KEYED, "streamxf.lz4/1"]),
        ("another-parameter", "another algorithm", _parts(summed), [*LISTED, "streamxf.checksum/1?algorithm=sha256"]),
        ("encrypt-added", "encryption that the header knows nothing of", unencrypted, LISTED),
    ]
    texts = [
        ("level-23", "a level that does not exist", "streamxf.zstd/1#level=23", "descriptor"),
        ("unknown-behind", "an unknown parameter behind the sign", "streamxf.zstd/1#speed=1", "descriptor"),
        ("empty-behind", "nothing behind the sign", "streamxf.zstd/1#", "descriptor"),
        ("two-signs", "a second sign", "streamxf.zstd/1#level=3#level=3", "descriptor"),
    ]
    wrong = f"{ENCRYPT}#{fragment([wrapped(KEY, secret('another data key'))])}"
    behind = ["streamxf.checksum/1#algorithm=crc32c"]
    checked = _parts(["streamxf.checksum/1"])
    return [
        *(_fails(f"list-{name}", about, made, "mismatch", listed=listed) for name, about, made, listed in lists),
        *(
            _fails(f"descriptor-{name}", about, RIGHT, layer, listed=[KEYED, text])
            for name, about, text, layer in texts
        ),
        _fails(
            "descriptor-bound-behind",
            "what a decoder needs, unbound",
            checked,
            "descriptor",
            listed=behind,
            keys=NO_KEYS,
        ),
        _fails("fragment-gone", "no wrapped key", RIGHT, "fragment", listed=[ENCRYPT, LISTED[1]]),
        _fails("fragment-stray", "an unknown key", RIGHT, "fragment", listed=[KEYED + "&x=1", LISTED[1]]),
        _fails("key-none", "no key", RIGHT, "key-missing", keys=NO_KEYS),
        _fails("key-another", "a key that it is not wrapped for", RIGHT, "key-missing", keys=OTHERS),
        _fails("key-wrap-of-another-dek", "another data key", RIGHT, "key-wrong", listed=[wrong, LISTED[1]]),
        _fails("policy-stripped", "encryption stripped from both", unencrypted, "policy", listed=ZSTD),
    ]


def _altered() -> list[Vector]:
    """Containers that were altered to fit, with all CRCs right."""
    other = "layers.1.weight"
    renamed = RIGHT.change(identity=identity(other))
    tampered = RIGHT.change(blocks=((True, RIGHT.blocks[0][1][:-1] + b"\0"),))
    bare = _parts(flags=BOUND)
    under_another = seal(RIGHT.change(blocks=((True, zstd(DATA)),)), secret("another data key"))
    return [
        _fails("seal-name", "another name", renamed, "seal", name=other),
        _fails("seal-offset", "another offset", RIGHT.change(identity=identity(offsets=[8, 0])), "seal", offset=[8, 0]),
        _fails("seal-published", "the flag was added", bare.change(flags=bare.flags | PUBLISHED), "seal"),
        _fails("seal-published-taken", "the flag was taken", RIGHT.change(flags=1 | BOUND), "seal", writer=None),
        _fails("seal-chain", "zstd is gone everywhere", RIGHT.change(chain=ENCRYPT.encode()), "seal", listed=[KEYED]),
        _fails("seal-of-another-data-key", "sealed under another data key", under_another, "seal"),
        _fails("tag", "the last byte of the tag", tampered, "tag"),
        _fails("continued", "a byte follows inside the item's slice", RIGHT.container() + b"\0", "footer"),
        _fails("cut", "the slice lacks a byte", RIGHT.container()[:-1], "footer"),
        _fails("plain-file", "a plain file in the place of a container", RIGHT.pack(), "header"),
        _fails("nothing", "an empty slice", b"", "header"),
    ]
