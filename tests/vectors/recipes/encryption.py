"""Encrypted plain files: what can be done to them without the key, and what can be wrong with wrapped keys."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from tests.forge import HASHED, Parts, prefix_of, seal_of
from tests.sealing import (
    DEK,
    ENCRYPT,
    KEY,
    OTHER_DEK,
    OTHER_KEY,
    Vouching,
    aes_wrap,
    b64url,
    container,
    dek_id,
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
from tests.vectors.recipes.vector import Made, under

CHAIN = ["streamxf.zstd/1", ENCRYPT]

DATA = lines(3 * BLOCK + 77)
OPEN = container(CHAIN, [zstd(DATA[at : at + BLOCK]) for at in range(0, len(DATA), BLOCK)], len(DATA))
BY = Vouching()
FILE = plain(encrypted(OPEN), BY)
_A, _B, _C, _D = FILE.blocks
_OTHER_DATA = lines(5 * BLOCK + 77)[BLOCK:][: len(DATA)]
_OTHER = plain(
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


def vectors() -> Made:
    """All of them."""
    return {**_blocks(), **_right_tags(), **_headers(), **_keys(), **_wrapped(), **_vouchers(), **_policy(), **_seal()}


def _flipped(block: tuple[bool, bytes], at: int) -> tuple[bool, bytes]:
    changed = bytearray(block[1])
    changed[at] ^= 1
    return block[0], bytes(changed)


def _flagged(*blocks: tuple[bool, bytes]) -> tuple[tuple[bool, bytes], ...]:
    """The blocks, of which the last one says so."""
    return tuple((number == len(blocks) - 1, stored) for number, (_, stored) in enumerate(blocks))


# -- with the data key, but for none of the keys that vouch ----------------------------------------------------------


def _blocks() -> Made:
    """Vouchers are right again: whoever has the data key, and a key that vouches, still cannot forge blocks by moving
    them. Without such keys the vouchers fail first, as `K4-table` shows.
    """
    size = len(DATA)
    b = _B[1]

    def of(*blocks: tuple[bool, bytes], raw_size: int = size) -> bytes:
        return plain(FILE.change(blocks=blocks, raw_size=raw_size), BY).pack()

    def second(stored: bytes) -> bytes:
        return of(_A, (False, stored), _C, _D)

    tags = {
        "tag-of-first": of(_flipped(_A, -1), _B, _C, _D),
        "tag-of-last": of(_A, _B, _C, _flipped(_D, -1)),
        "ciphertext": second(_flipped(_B, 0)[1]),
        "swapped": of(_A, _C, _B, _D),
        "last-moved-to-front": of(*_flagged(_D, _A, _B, _C)),
        "duplicated": of(_A, _B, _B, _C, _D, raw_size=size + BLOCK),
        "dropped": of(_A, _C, _D, raw_size=size - BLOCK),
        "truncated": of(*_flagged(_A, _B), raw_size=2 * BLOCK),
        "of-another-stream": of(_A, _OTHER.blocks[1], _C, _D),
        "all-of-another-stream": of(*_OTHER.blocks),
        "15-bytes": second(b[:15]),
        "tag-alone": second(b[-16:]),
        "zeros": second(bytes(len(b))),
    }
    whole = plain(FILE.change(raw_size=4 * BLOCK), BY).pack()
    return {**under("encrypt", tags), "C9-raw-size-whole-blocks": whole, "encrypt-four-blocks": FILE.pack()}


def _headers() -> Made:
    cases = {
        "bit": {"seal": bytes([FILE.seal[0] ^ 1]) + FILE.seal[1:]},
        "zeros": {"seal": bytes(32)},
        "of-another-stream": {"seal": _OTHER.seal},
        "salt": {"salt": secret("a third salt")[:16]},
        "informative": {"informative": 1},
        "block-log2": {"block_log2": 17, "raw_size": 7 * BLOCK},
        "chain": {"chain": b"streamxf.lz4/1\nstreamxf.encrypt/1"},
        "chain-unknown": {"chain": b"acme.unknown/1\nstreamxf.encrypt/1"},
    }
    other = Vouching(dek=OTHER_DEK)
    return {
        **under("C3", {name: plain(FILE.change(**changes), BY).pack() for name, changes in cases.items()}),
        "C3-data-key": plain(FILE, other).pack(),
    }


# -- written with the keys, as no writer writes ----------------------------------------------------------------------


def _right_tags() -> Made:
    both = [ENCRYPT, "streamxf.checksum/1"]
    two = DATA[BLOCK : 2 * BLOCK]
    short = OPEN.change(blocks=(OPEN.blocks[0], (False, zstd(two[:-1])), *OPEN.blocks[2:]))
    not_zstd = OPEN.change(blocks=(OPEN.blocks[0], (False, b"no frame"), *OPEN.blocks[2:]))
    unsummed = encrypted(container(both, [SMALL], len(SMALL)))
    last, stored = unsummed.blocks[0]
    wrong = unsummed.change(blocks=((last, stored + bytes(4)),))
    return {
        "C9-sealed-short": plain(encrypted(short), BY).pack(),
        "zstd-sealed-no-frame": plain(encrypted(not_zstd), BY).pack(),
        "checksum-sealed": plain(wrong, BY).pack(),
        "encrypt-empty-stream": keyed([ENCRYPT], [b""], 0).pack(),
    }


# -- wrapped data keys -----------------------------------------------------------------------------------------------


def small(text: str = "", *, dek: bytes = DEK, keys: Sequence[bytes] = (KEY,)) -> bytes:
    """A small file whose data key is wrapped as `text`."""
    return keyed([ENCRYPT], [SMALL], len(SMALL), Vouching(text, tuple(keys), dek=dek)).pack()


def _keys() -> Made:
    many = [aes_wrap(secret(f"key {number}")) for number in range(15)]
    future = entry(f"future-kind:{key_id(KEY)}", b"something else")
    head, _, own = aes_wrap().rpartition(":")
    blob = base64.urlsafe_b64decode(own + "==")
    altered = entry(head, blob[:-1] + bytes([blob[-1] ^ 1]))
    both = (KEY, OTHER_KEY)
    right = {
        "one": small(),
        "second-of-two": small(wrapped([aes_wrap(), aes_wrap(OTHER_KEY)]), keys=both),
        "sixteen": small(wrapped([*many, aes_wrap()])),
        "unknown-kind-beside": small(wrapped([future, aes_wrap()])),
        "wrong-size-beside": small(_beside()),
        "keys-of-a-reader": small(),
    }
    other_dek = f"dek={dek_id().hex()}&w={aes_wrap(dek=OTHER_DEK)}"
    misnamed = aes_wrap(OTHER_KEY).replace(key_id(OTHER_KEY), key_id(KEY))
    wrong = {
        "altered": small(wrapped([altered])),
        "of-another-dek": small(other_dek),
        "dek": small(wrapped().replace(dek_id().hex(), secret("another id").hex())),
        "of-another-key": small(wrapped([misnamed])),
        "wrong-size": small(wrapped([entry(head, blob[:-1])])),
        "none": small(),
        "another": small(),
        "unknown-kind": small(wrapped([future])),
        "fifteen-others": small(wrapped(many)),
    }
    return {**under("wrapped", right), **under("K3", wrong)}


def _beside() -> str:
    return wrapped([entry(f"aeskw:{key_id(OTHER_KEY)}", b"x"), aes_wrap()])


def _wrapped() -> Made:
    dek, wrap = wrapped().split("&")
    own = wrap.rpartition(":")[2]
    stray = own[:-1] + chr(ord(own[-1]) + 1)  # 40 bytes leave 4 bits of the last letter unused, and they are 0
    seventeen = [aes_wrap(secret(f"key {number}")) for number in range(17)]
    long = [entry(f"other{number}:{key_id(KEY)}", bytes(6000)) for number in range(4)]
    cases = {
        "no-wrapped-key": dek,
        "seventeen": wrapped(seventeen),
        "twice": f"{dek}&{wrap}&{wrap}",
        "no-dek": wrap,
        "dek-twice": f"{dek}&{dek}&{wrap}",
        "dek-second": f"{wrap}&{dek}",
        "dek-31-bytes": f"{dek[:-2]}&{wrap}",
        "dek-33-bytes": f"{dek}00&{wrap}",
        "dek-capitals": f"dek={dek[4:].upper()}&{wrap}",
        "unknown-member": f"{dek}&{wrap}&x=1",
        "stray-bits": f"{dek}&{wrap[: -len(own)]}{stray}",
        "padding": f"{dek}&{wrap}==",
        "newline": f"{dek}&{wrap}\n",
        "ampersand": f"{dek}&{wrap}&",
        "two-parts": f"{dek}&w={key_id(KEY)}:{own}",
        "four-parts": f"{dek}&{wrap}:AAAA",
        "kind-empty": f"{dek}&{wrap.replace('aeskw', '')}",
        "kind-of-33": f"{dek}&{wrap.replace('aeskw', 'a' * 33)}",
        "kind-capitals": f"{dek}&{wrap.replace('aeskw', 'AESKW')}",
        "key-id-of-15": f"{dek}&{wrap.replace(key_id(KEY), key_id(KEY)[:15])}",
        "nothing-wrapped": f"{dek}&w=other:{key_id(KEY)}:&{wrap}",
        "6145-bytes": f"{dek}&{wrap}&w=other:{key_id(KEY)}:{b64url(bytes(6145))}",
    }
    made = keyed([ENCRYPT], [SMALL], len(SMALL))
    not_ascii = made.change(prefix=prefix_of(wrapped().encode() + b"\x80")).pack()
    assert len(wrapped([aes_wrap(), *long])) < 32768
    return {
        **under("K1", {name: small(text) for name, text in cases.items()}),
        "K1-not-ascii": not_ascii,
        "wrapped-long": small(wrapped([aes_wrap(), *long])),
    }


# -- vouchers --------------------------------------------------------------------------------------------------------


def _vouchers() -> Made:
    made = encrypted(container([ENCRYPT], [SMALL], len(SMALL)))
    signed = encrypted(container([ENCRYPT], [SMALL], len(SMALL)).change(flags=1 | HASHED))
    digest, text = plain_digest(made), wrapped()
    mac, own, other = mac_of(digest, text), voucher(digest), voucher(digest, OTHER_KEY)
    sig = signature(plain_digest(signed))
    strange = plain_digest(_OTHER)

    def of(vouchers: str, parts: Parts = made) -> bytes:
        return parts.change(prefix=prefix_of(text), tail=seal_of(vouchers)).pack()

    name, _, tag = own.rpartition(":")
    forms = {
        "no-mac": own,
        "mac-twice": f"{mac}&{mac}&{own}",
        "mac-second": f"{own}&{mac}",
        "mac-31-bytes": f"{mac[:-2]}&{own}",
        "mac-capitals": f"mac={mac[4:].upper()}&{own}",
        "hpke": f"{mac}&{own}&{name.replace('aeskw', 'hpke-x25519')}:{tag}",
        "unknown-member": f"{mac}&{own}&x=1",
        "newline": f"{mac}&{own}\n",
        "padding": f"{mac}&{own}=",
    }
    signatures = {
        "signature-twice": f"{mac_of(plain_digest(signed), text)}&{voucher(plain_digest(signed))}&{sig}&{sig}",
        "signature-63-bytes": _signed(signed, f"{sig[:21]}{b64url(bytes(63))}"),
        "signature-no-id": _signed(signed, f"sig={sig[21:]}"),
        "signature-stray-bits": _signed(signed, f"{sig[:21]}{b64url(bytes(64))[:-1]}B"),
    }
    macs = {
        "bit": f"{mac[:-1]}{'0' if mac[-1] != '0' else '1'}&{own}",
        "of-other-contents": f"{mac_of(strange, text)}&{own}",
        "of-another-data-key": f"{mac_of(digest, text, OTHER_DEK)}&{own}",
    }
    own_ones = {
        "none": mac,
        "of-another": f"{mac}&{other}",
        "of-other-contents": f"{mac}&{voucher(strange)}",
        "by-another-key": f"{mac}&{name}:{other.rpartition(':')[2]}",
        "31-bytes": f"{mac}&{entry(name, bytes(31))}",
    }
    two = keyed([ENCRYPT], [SMALL], len(SMALL), Vouching(wrapped([aes_wrap(), aes_wrap(OTHER_KEY)])))
    added = keyed([ENCRYPT], [SMALL], len(SMALL))
    stranger = entry(f"aeskw:{key_id(OTHER_KEY)}", b"not a voucher")
    return {
        **under("K4-form", {name: of(vouchers) for name, vouchers in forms.items()}),
        **under("K4", {name: of(vouchers, signed) for name, vouchers in signatures.items()}),
        "K1-voucher-twice": of(f"{mac}&{own}&{own}"),
        **under("K4-mac", {name: of(vouchers) for name, vouchers in macs.items()}),
        "K4-recipient-removed": two.change(prefix=prefix_of(text)).pack(),
        "K4-recipient-added": added.change(prefix=two.prefix).pack(),
        "K4-table": _cut(),
        **under("K5", {name: of(vouchers) for name, vouchers in own_ones.items()}),
        "K4-ignored-first": of(f"_a=1&{mac}&{own}"),
        "K5-ignored": of(f"{mac}&_&{own}"),
        "vouchers-ignored": of(f"{mac}&{own}&_a=:.~-_&_b=&_a=1"),
        "vouchers-of-others": of(f"{mac}&{own}&v={stranger}"),
        "vouchers-in-another-order": of(f"{mac}&{other}&{own}"),
    }


def _signed(made: Parts, sig: str) -> str:
    digest = plain_digest(made)
    return f"{mac_of(digest, wrapped())}&{voucher(digest)}&{sig}"


def _cut() -> bytes:
    return FILE.change(blocks=_flagged(_A, _B), raw_size=2 * BLOCK).pack()


def _policy() -> Made:
    open_ = plain(container(["streamxf.zstd/1"], [zstd(SMALL)], len(SMALL)))
    return {"K7-signers-alone": open_.pack(), "K7-not-encrypted": open_.pack(), "not-encrypted-no-key": open_.pack()}


def _seal() -> Made:
    made = keyed([ENCRYPT], [SMALL], len(SMALL))
    tail, vouchers = made.tail, made.tail[:-16]
    signed = Vouching(signer=None)
    hashed = plain(encrypted(container([ENCRYPT], [SMALL], len(SMALL)).change(flags=1 | HASHED)), signed)
    cases = {
        "missing": made.change(tail=b"").pack(),
        "magic": made.change(tail=tail[:-1] + b"\xd2").pack(),
        "crc": made.change(tail=tail[:-9] + bytes([tail[-9] ^ 1]) + tail[-8:]).pack(),
        "length-0": made.change(tail=seal_of(b"")).pack(),
        "length-beyond-file": made.change(tail=seal_of(vouchers, 20000)).pack(),
        "length-above-limit": made.change(tail=seal_of(vouchers.ljust(32769, b"x"))).pack(),
        "continued": made.pack() + b"\0",
        "cut": made.pack()[:-1],
    }
    return {
        **under("seal", cases),
        "footer-before-seal": made.change(tail=b"\0" + tail).pack(),
        "P1-hashed-unsigned": hashed.pack(),
        "P1-signed-unhashed": _unhashed(),
    }


def _unhashed() -> bytes:
    made = encrypted(container([ENCRYPT], [SMALL], len(SMALL)))
    text = _signed(made, signature(plain_digest(made)))
    return made.change(prefix=prefix_of(wrapped()), tail=seal_of(text)).pack()
