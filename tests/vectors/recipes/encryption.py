"""Encrypted plain files: what can be done to them without the key, and what can be wrong with wrapped keys."""

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

from tests.forge import FORMAT, prefix_of, seal_of
from tests.sealing import (
    DEK,
    ENCRYPT,
    HYBRID_SIGNER,
    KEY,
    OTHER_KEY,
    SIGNER,
    Vouching,
    aes_wrap,
    container,
    encrypted,
    entry,
    key_id,
    keyed,
    mac_of,
    plain,
    plain_digest,
    secret,
    signature,
    voucher,
    wrapped,
    zstd,
)
from tests.vectors.recipes.data import BLOCK, lines, payload

CHAIN = ["streamxf.zstd/1", ENCRYPT]

DATA = lines(3 * BLOCK + 77)
OPEN = container(CHAIN, [zstd(DATA[at : at + BLOCK]) for at in range(0, len(DATA), BLOCK)], len(DATA))
BY = Vouching()
FILE = plain(encrypted(OPEN), BY)
A, B, C, D = FILE.blocks
_OTHER_DATA = lines(5 * BLOCK + 77)[BLOCK:][: len(DATA)]
OTHER = plain(
    encrypted(
        OPEN.change(
            blocks=tuple(
                (last, zstd(_OTHER_DATA[number * BLOCK :][:BLOCK])) for number, (last, _) in enumerate(OPEN.blocks)
            ),
            salt=secret("another salt")[:16],
        )
    ),
    BY,
)
SMALL = payload(100)


def flipped(block: tuple[bool, bytes], at: int) -> tuple[bool, bytes]:
    changed = bytearray(block[1])
    changed[at] ^= 1
    return block[0], bytes(changed)


def flagged(*blocks: tuple[bool, bytes]) -> tuple[tuple[bool, bytes], ...]:
    """The blocks, of which the last one says so."""
    return tuple((number == len(blocks) - 1, stored) for number, (_, stored) in enumerate(blocks))


# -- with the data key, but for none of the keys that vouch ----------------------------------------------------------


def blocks() -> dict[str, Any]:
    """Vouchers are right again: whoever has the data key, and a key that vouches, still cannot forge blocks by moving
    them. Without such keys the vouchers fail first, as `K4-table` shows.
    """
    size = len(DATA)
    b = B[1]

    def of(*blocks: tuple[bool, bytes], raw_size: int = size) -> bytes:
        return plain(FILE.change(blocks=blocks, raw_size=raw_size), BY).pack()

    def second(stored: bytes) -> bytes:
        return of(A, (False, stored), C, D)

    return locals()


# -- written with the keys, as no writer writes ----------------------------------------------------------------------


def right_tags() -> dict[str, Any]:
    both = [ENCRYPT, "streamxf.checksum/1"]
    unsummed = encrypted(container(both, [SMALL], len(SMALL)))
    last, stored = unsummed.blocks[0]
    return locals()


# -- wrapped data keys -----------------------------------------------------------------------------------------------


def small(text: str = "", *, dek: bytes = DEK, keys: Sequence[bytes] = (KEY,)) -> bytes:
    """A small file whose data key is wrapped as `text`."""
    return keyed([ENCRYPT], [SMALL], len(SMALL), Vouching(text, tuple(keys), dek=dek)).pack()


def keys() -> dict[str, Any]:
    many = [aes_wrap(secret(f"key {number}")) for number in range(15)]
    future = entry(f"future-kind:{key_id(KEY)}", b"something else")
    head, _, own = aes_wrap().rpartition(":")
    blob = base64.urlsafe_b64decode(own + "==")
    return locals()


def wrapped_keys() -> dict[str, Any]:
    dek, wrap = wrapped().split("&")
    own = wrap.rpartition(":")[2]
    stray = own[:-1] + chr(ord(own[-1]) + 1)  # 40 bytes leave 4 bits of the last letter unused, and they are 0
    long = [entry(f"other{number}:{key_id(KEY)}", bytes(6000)) for number in range(4)]
    assert len(wrapped([aes_wrap(), *long])) < 65536
    return locals()


# -- vouchers --------------------------------------------------------------------------------------------------------


def vouchers() -> dict[str, Any]:
    made = encrypted(container([ENCRYPT], [SMALL], len(SMALL)))
    digest, text = plain_digest(made), wrapped()
    mac, own, other = mac_of(digest, text), voucher(digest), voucher(digest, OTHER_KEY)
    sig, hybrid = (signature(plain_digest(made, signed=True), signer) for signer in (SIGNER, HYBRID_SIGNER))
    head, _, signed = sig.rpartition(":")

    def of(vouchers: str, digests: Sequence[bytes] = ()) -> bytes:
        return made.change(prefix=prefix_of(text), tail=seal_of(vouchers, digests=digests)).pack()

    def with_(*signatures: str, digests: Sequence[bytes] | None = None) -> bytes:
        """With these signatures."""
        found = plain_digest(made, signed=True)
        return of("&".join([mac_of(found, text), voucher(found), *signatures]), digests or made.digests)

    name, _, tag = own.rpartition(":")
    two = keyed([ENCRYPT], [SMALL], len(SMALL), Vouching(wrapped([aes_wrap(), aes_wrap(OTHER_KEY)])))
    return locals()


def policy() -> dict[str, Any]:
    open_ = plain(container(["streamxf.zstd/1"], [zstd(SMALL)], len(SMALL)))
    return locals()


def seal() -> dict[str, Any]:
    made = keyed([ENCRYPT], [SMALL], len(SMALL))
    tail, vouchers = made.tail, made.tail[:-20]
    return locals()


def digests() -> dict[str, Any]:
    """Digests and signatures that do not fit together; who has the data key vouches for them."""
    made = encrypted(container([ENCRYPT], [SMALL], len(SMALL)))
    digests, by = made.digests, Vouching(signer=SIGNER)

    def of(*digests: bytes, vouching: Vouching = by, **said: Any) -> bytes:
        digest = hashlib.sha256(b"streamxf/1 plain" + FORMAT + b"".join(digests or made.digests[:1])).digest()
        tail = seal_of(vouching.vouchers(digest), digests=digests, **said)
        return made.change(prefix=prefix_of(vouching.wrapped), tail=tail).pack()

    return locals()
