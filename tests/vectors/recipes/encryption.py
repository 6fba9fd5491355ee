"""Encrypted files: what somebody without the key does to blocks and header, and what can be wrong with wrapped keys."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import partial

from forge import Parts, prefix_of

from recipes.data import BLOCK, lines, payload
from recipes.sealing import (
    DEK,
    ENCRYPT,
    KEY,
    OTHER_KEY,
    b64url,
    dek_id,
    fragment,
    key_id,
    parts,
    seal,
    secret,
    wrapped,
    zstd,
)
from recipes.vector import NO_KEYS, Keys, Vector, fails, reads

HELD = Keys((("aeskw", KEY),))
OTHERS = Keys((("aeskw", OTHER_KEY),))
CHAIN = ["streamxf.zstd/1", ENCRYPT]

DATA = lines(3 * BLOCK + 77)
_OTHER_DATA = lines(5 * BLOCK + 77)[BLOCK:][: len(DATA)]
OPEN = parts(CHAIN, [zstd(DATA[at : at + BLOCK]) for at in range(0, len(DATA), BLOCK)], len(DATA))
FILE = seal(OPEN)
_A, _B, _C, _D = FILE.blocks
_OTHER = seal(
    parts(CHAIN, [zstd(_OTHER_DATA[at : at + BLOCK]) for at in range(0, len(DATA), BLOCK)], len(DATA)).change(
        salt=secret("another salt")
    )
)
SMALL = payload(100)


def vectors() -> list[Vector]:
    """All of them."""
    return [*_blocks(), *_under_right_tags(), *_headers(), *_keys(), *_fragments(), *_policy()]


def _flipped(block: tuple[bool, bytes], at: int) -> tuple[bool, bytes]:
    changed = bytearray(block[1])
    changed[at] ^= 1
    return block[0], bytes(changed)


def _flagged(blocks: Sequence[tuple[bool, bytes]]) -> tuple[tuple[bool, bytes], ...]:
    """The blocks, of which the last one says so."""
    return tuple((number == len(blocks) - 1, stored) for number, (_, stored) in enumerate(blocks))


# -- without the key -------------------------------------------------------------------------------------------------


def _blocks() -> list[Vector]:
    size = len(DATA)
    short = size % BLOCK

    def of(*blocks: tuple[bool, bytes], raw_size: int = size) -> Parts:
        return FILE.change(blocks=blocks, raw_size=raw_size)

    def second(stored: bytes) -> Parts:
        return of(_A, (False, stored), _C, _D)

    b = _B[1]
    two, one = _flagged((_A, _B)), _flagged((_A,))
    cases: list[tuple[str, str, Parts, str, str | None, int]] = [
        ("tag-of-first", "a bit of the first tag", of(_flipped(_A, -1), _B, _C, _D), "tag", None, 0),
        ("tag-of-third", "a bit of the third tag", of(_A, _B, _flipped(_C, -1), _D), "tag", None, 2),
        ("tag-of-last", "a bit of the last tag", of(_A, _B, _C, _flipped(_D, -1)), "tag", None, 3),
        ("ciphertext", "a bit of the second ciphertext", of(_A, _flipped(_B, 0), _C, _D), "tag", None, 1),
        ("swapped", "two blocks changed places", of(_A, _C, _B, _D), "tag", None, 1),
        ("reversed", "the blocks before the last, reversed", of(_C, _B, _A, _D), "tag", None, 0),
        ("last-moved-to-front", "the last block moved", of(*_flagged((_D, _A, _B, _C))), "tag", None, 0),
        ("duplicated", "the second block twice", of(_A, _B, _B, _C, _D, raw_size=size + BLOCK), "tag", None, 2),
        (
            "last-twice",
            "the last block twice",
            of(*_flagged((_A, _B, _C, _D, _D)), raw_size=4 * BLOCK + short),
            "tag",
            None,
            3,
        ),
        ("second-dropped", "the second block is missing", of(_A, _C, _D, raw_size=size - BLOCK), "tag", None, 1),
        ("first-dropped", "the first block is missing", of(_B, _C, _D, raw_size=size - BLOCK), "tag", None, 0),
        ("truncated-at-block", "two blocks, and the second is flagged", of(*two, raw_size=2 * BLOCK), "tag", None, 1),
        ("truncated-to-one", "one block, and it is flagged", of(*one, raw_size=BLOCK), "tag", None, 0),
        ("last-dropped", "the last is missing, none is flagged", of(_A, _B, _C, raw_size=3 * BLOCK), "block", None, 3),
        ("last-flag-taken", "the last block says that it is none", of(_A, _B, _C, (False, _D[1])), "block", "tag", 3),
        ("last-flag-given", "the third block is flagged", of(_A, _B, (True, _C[1]), _D), "block", "tag", 2),
        ("of-another-stream", "a block of another stream", of(_A, _OTHER.blocks[1], _C, _D), "tag", None, 1),
        ("all-of-another-stream", "all blocks of another stream", of(*_OTHER.blocks), "tag", None, 0),
        ("empty-payload", "a block of 0 bytes", second(b""), "codec:encrypt", None, 1),
        ("15-bytes", "a block of 15 bytes, less than a tag", second(b[:15]), "codec:encrypt", None, 1),
        ("tag-alone", "a tag and no ciphertext", second(b[-16:]), "tag", None, 1),
        ("ciphertext-cut", "the first byte of a ciphertext is missing", second(b[1:]), "tag", None, 1),
        ("zeros", "a block of zeros", second(bytes(len(b))), "tag", None, 1),
        ("raw-size", "raw_size is one less", FILE.change(raw_size=size - 1), "size", None, 3),
        ("raw-size-whole-blocks", "raw_size is the most it can be", FILE.change(raw_size=4 * BLOCK), "size", None, 3),
    ]
    return [
        *(
            fails(
                f"encrypt-{name}",
                about,
                CHAIN,
                made.pack(),
                layer,
                keys=HELD,
                in_order=in_order,
                released=DATA[: whole * BLOCK],
            )
            for name, about, made, layer, in_order, whole in cases
        ),
        reads("encrypt-four-blocks", "four blocks, none of the faults", CHAIN, FILE.pack, DATA, HELD),
    ]


def _headers() -> list[Vector]:
    cases = [
        ("seal-bit", "a bit of the seal", FILE.change(seal=bytes([FILE.seal[0] ^ 1]) + FILE.seal[1:])),
        ("seal-last-bit", "the last bit of the seal", FILE.change(seal=FILE.seal[:-1] + bytes([FILE.seal[-1] ^ 1]))),
        ("seal-zeros", "a seal of zeros", FILE.change(seal=bytes(32))),
        ("seal-of-another-stream", "the seal of another stream", FILE.change(seal=_OTHER.seal)),
        ("salt", "another salt", FILE.change(salt=secret("a third salt"))),
        ("block-log2", "another block_log2", FILE.change(block_log2=17)),
        ("chain", "another chain", FILE.change(chain=b"streamxf.lz4/1\nstreamxf.encrypt/1")),
        ("chain-longer", "a checksum more", FILE.change(chain=FILE.chain + b"\nstreamxf.checksum/1")),
        ("chain-shorter", "a codec less", FILE.change(chain=ENCRYPT.encode())),
        ("chain-unknown", "a codec that must not be looked for", FILE.change(chain=b"acme.unknown/1\n" + FILE.chain)),
        ("data-key", "the wrapped data key of another save", FILE.change(prefix=_prefix(_other_save()))),
    ]
    return [
        fails(f"seal-{name.removeprefix('seal-')}", about, CHAIN, made.pack(), "seal", keys=HELD)
        for name, about, made in cases
    ]


def _other_save() -> str:
    dek = secret("another data key")
    return fragment([wrapped(KEY, dek)], dek)


def _prefix(text: str) -> bytes:
    return prefix_of(text.encode("latin-1"))


# -- by somebody who has the key, and writes what no writer writes ---------------------------------------------------


def _under_right_tags() -> list[Vector]:
    chain, both = [ENCRYPT], [ENCRYPT, "streamxf.checksum/1"]
    one, two = DATA[:BLOCK], DATA[BLOCK : 2 * BLOCK]
    compressed = [zstd(one), zstd(two), zstd(DATA[2 * BLOCK :][:77])]
    size = 2 * BLOCK + 77
    short = seal(parts(CHAIN, [compressed[0], zstd(two[:-1]), compressed[2]], size))
    not_zstd = seal(parts(CHAIN, [compressed[0], b"no frame", compressed[2]], size))
    unsummed = seal(parts(both, [SMALL], len(SMALL)))
    last, stored = unsummed.blocks[0]
    return [
        fails(
            "sealed-short-block",
            "a block in the middle lacks a byte",
            CHAIN,
            short.pack(),
            "size",
            keys=HELD,
            released=one,
        ),
        fails(
            "sealed-bad-frame",
            "no frame under a right tag",
            CHAIN,
            not_zstd.pack(),
            "codec:zstd",
            keys=HELD,
            released=one,
        ),
        fails(
            "sealed-no-checksum",
            "a checksum after encryption is wrong",
            both,
            unsummed.change(blocks=((last, stored + bytes(4)),)).pack(),
            "codec:checksum",
            keys=HELD,
        ),
        reads("sealed-empty", "an empty stream", chain, seal(parts(chain, [b""], 0)).pack, b"", HELD),
    ]


# -- keys ------------------------------------------------------------------------------------------------------------


def _small(text: str | None = None, dek: bytes = DEK) -> bytes:
    return seal(parts([ENCRYPT], [SMALL], len(SMALL), text=text), dek).pack()


def _keys() -> list[Vector]:
    chain = [ENCRYPT]
    many = [wrapped(secret(f"key {number}")) for number in range(15)]
    future = f"future-kind:{key_id(KEY)}:{b64url(b'something else')}"
    own_id, _, own_blob = wrapped(KEY).partition(":")[2].partition(":")
    blob = base64.urlsafe_b64decode(own_blob + "==")
    stale = f"aeskw:{own_id}:{b64url(blob[:-1] + bytes([blob[-1] ^ 1]))}"
    right = [
        ("one", "one recipient", [wrapped(KEY)], HELD),
        ("second-of-two", "two recipients, and the second reads", [wrapped(KEY), wrapped(OTHER_KEY)], OTHERS),
        ("sixteen", "16 recipients, of whom the last reads", [*many, wrapped(KEY)], HELD),
        ("unknown-kind-beside", "a kind that nobody knows before a known one", [future, wrapped(KEY)], HELD),
        (
            "ring",
            "a reader with three keys",
            [wrapped(KEY)],
            Keys((*OTHERS.held, ("aeskw", secret("key 1")), *HELD.held)),
        ),
    ]
    other_dek = fragment([wrapped(KEY, secret("another data key"))])
    misnamed = fragment([wrapped(OTHER_KEY).replace(key_id(OTHER_KEY), key_id(KEY))])
    wrong = [
        ("wrap-altered", "a bit of the wrapped key", fragment([stale])),
        ("wrap-of-another-dek", "a wrapped key that is another data key", other_dek),
        ("dek-id", "another dek_id", fragment().replace(b64url(dek_id()), b64url(secret("another id")))),
        ("wrap-of-another-key", "the wrap of another key under this key's id", misnamed),
    ]
    missing = [
        ("none", "no key", None, NO_KEYS),
        ("another", "a key that it is not wrapped for", None, OTHERS),
        ("only-unknown-kind", "the id of the key, under a kind that nobody knows", fragment([future]), HELD),
        ("fifteen-others", "15 recipients, none of whom reads", fragment(many), HELD),
    ]
    return [
        *(
            reads(f"key-{name}", about, chain, partial(_small, fragment(to)), SMALL, keys)
            for name, about, to, keys in right
        ),
        *(fails(f"key-{name}", about, chain, _small(text), "key-wrong", keys=HELD) for name, about, text in wrong),
        *(
            fails(f"key-{name}", about, chain, _small(text), "key-missing", keys=keys)
            for name, about, text, keys in missing
        ),
    ]


def _fragments() -> list[Vector]:
    dek, wrap = fragment().split("&")
    blob = wrap.rpartition(":")[2]
    sixteen = [wrapped(secret(f"key {number}")) for number in range(16)]
    stray = blob[:-1] + chr(ord(blob[-1]) + 1)  # 40 bytes leave 4 bits of the last letter unused, and they are 0
    cases = [
        ("no-wrapped-key", "no wrapped key", dek),
        ("seventeen", "17 wrapped keys", fragment([*sixteen, wrapped(KEY)])),
        ("key-twice", "two wraps for one key", fragment([wrapped(KEY), wrapped(KEY)])),
        ("no-dek", "no dek_id", wrap),
        ("dek-twice", "the dek_id twice", f"{dek}&{dek}&{wrap}"),
        ("dek-31-bytes", "a dek_id of 31 bytes", f"dek={b64url(dek_id()[:31])}&{wrap}"),
        ("dek-33-bytes", "a dek_id of 33 bytes", f"dek={b64url(dek_id() + b'x')}&{wrap}"),
        ("dek-empty", "an empty dek_id", f"dek=&{wrap}"),
        ("dek-stray-bits", "bits at the end of the dek_id", f"{dek[:-1]}{chr(ord(dek[-1]) + 1)}&{wrap}"),
        ("unknown-key", "a key that the fragment does not have", f"{dek}&{wrap}&x=1"),
        ("level", "a parameter of another codec", f"{dek}&{wrap}&level=3"),
        ("stray-bits", "bits at the end of a wrapped key that mean nothing", f"{dek}&{wrap[: -len(blob)]}{stray}"),
        ("padding", "base64url with its padding", f"{dek}&{wrap}=="),
        ("newline", "a newline at the end", f"{dek}&{wrap}\n"),
        ("space", "a space after the ampersand", f"{dek}& {wrap}"),
        ("empty-parameter", "an ampersand at the end", f"{dek}&{wrap}&"),
        ("two-parts", "a wrapped key without a kind", f"{dek}&w={key_id(KEY)}:{blob}"),
        ("four-parts", "a wrapped key with a part too many", f"{dek}&{wrap}:AAAA"),
        ("kind-empty", "an empty kind", f"{dek}&{wrap.replace('aeskw', '')}"),
        ("kind-upper-case", "a capital in the kind", f"{dek}&{wrap.replace('aeskw', 'AESKW')}"),
        ("key-id-upper-case", "capitals in the key_id", f"{dek}&{wrap.replace(key_id(KEY), key_id(KEY).upper())}"),
        ("key-id-of-15", "a key_id of 15 digits", f"{dek}&{wrap.replace(key_id(KEY), key_id(KEY)[:15])}"),
    ]
    return [
        fails(f"fragment-{name}", about, [ENCRYPT], _small(text), "fragment", keys=HELD) for name, about, text in cases
    ]


# -- policy ----------------------------------------------------------------------------------------------------------


def _policy() -> list[Vector]:
    plain = parts(["streamxf.zstd/1"], [zstd(SMALL)], len(SMALL))
    return [
        fails(
            "policy-not-encrypted",
            "encryption was stripped from a file, and the reader has a key",
            ["streamxf.zstd/1"],
            plain.pack(),
            "policy",
            keys=HELD,
        ),
        reads(
            "policy-not-encrypted-no-key",
            "the same file, and the reader has no key",
            ["streamxf.zstd/1"],
            plain.pack,
            SMALL,
        ),
    ]
