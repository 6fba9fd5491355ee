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
from tests.vectors.recipes.vector import HELD, NOTHING, OTHERS, SIGNERS, Reader, Vector, breaks, holds

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


def vectors() -> list[Vector]:
    """All of them."""
    return [*_blocks(), *_right_tags(), *_headers(), *_keys(), *_wrapped(), *_vouchers(), *_policy(), *_seal()]


def _flipped(block: tuple[bool, bytes], at: int) -> tuple[bool, bytes]:
    changed = bytearray(block[1])
    changed[at] ^= 1
    return block[0], bytes(changed)


def _flagged(*blocks: tuple[bool, bytes]) -> tuple[tuple[bool, bytes], ...]:
    """The blocks, of which the last one says so."""
    return tuple((number == len(blocks) - 1, stored) for number, (_, stored) in enumerate(blocks))


# -- with the data key, but for none of the keys that vouch ----------------------------------------------------------


def _blocks() -> list[Vector]:
    """Vouchers are right again: whoever has the data key, and a key that vouches, still cannot forge blocks by moving
    them. Without such keys the vouchers fail first, as `K4-table` shows.
    """
    size = len(DATA)
    b = _B[1]

    def of(*blocks: tuple[bool, bytes], raw_size: int = size) -> bytes:
        return plain(FILE.change(blocks=blocks, raw_size=raw_size), BY).pack()

    def second(stored: bytes) -> bytes:
        return of(_A, (False, stored), _C, _D)

    tags = [
        ("tag-of-first", "a bit of the first tag", of(_flipped(_A, -1), _B, _C, _D)),
        ("tag-of-last", "a bit of the last tag", of(_A, _B, _C, _flipped(_D, -1))),
        ("ciphertext", "a bit of the second ciphertext", second(_flipped(_B, 0)[1])),
        ("swapped", "two blocks changed places", of(_A, _C, _B, _D)),
        ("last-moved-to-front", "the last block moved", of(*_flagged(_D, _A, _B, _C))),
        ("duplicated", "the second block twice", of(_A, _B, _B, _C, _D, raw_size=size + BLOCK)),
        ("dropped", "the second block is missing", of(_A, _C, _D, raw_size=size - BLOCK)),
        (
            "truncated",
            "two blocks, of which the second says that it is the last",
            of(*_flagged(_A, _B), raw_size=2 * BLOCK),
        ),
        ("of-another-stream", "a block of another stream", of(_A, _OTHER.blocks[1], _C, _D)),
        ("all-of-another-stream", "all blocks of another stream", of(*_OTHER.blocks)),
        ("15-bytes", "a block of 15 bytes, less than a tag", second(b[:15])),
        ("tag-alone", "a tag without a ciphertext", second(b[-16:])),
        ("zeros", "a block of zeros", second(bytes(len(b)))),
    ]
    whole = plain(FILE.change(raw_size=4 * BLOCK), BY).pack()
    return [
        *(breaks("encrypt", name, about, file, HELD) for name, about, file in tags),
        breaks("C9", "raw-size-whole-blocks", "raw_size is the most that it can be", whole, HELD),
        holds("encrypt-four-blocks", "four blocks, none of the faults", FILE.pack, DATA, HELD),
    ]


def _headers() -> list[Vector]:
    cases = [
        ("bit", "a bit of the seal", {"seal": bytes([FILE.seal[0] ^ 1]) + FILE.seal[1:]}),
        ("zeros", "a seal of zeros", {"seal": bytes(32)}),
        ("of-another-stream", "the seal of another stream", {"seal": _OTHER.seal}),
        ("salt", "another salt", {"salt": secret("a third salt")[:16]}),
        ("informative", "an informative flag", {"informative": 1}),
        ("block-log2", "another block_log2", {"block_log2": 17, "raw_size": 7 * BLOCK}),
        ("chain", "another chain", {"chain": b"streamxf.lz4/1\nstreamxf.encrypt/1"}),
        ("chain-unknown", "a codec that must not be looked for", {"chain": b"acme.unknown/1\nstreamxf.encrypt/1"}),
    ]
    other = Vouching(dek=OTHER_DEK)
    return [
        *(breaks("C3", name, about, plain(FILE.change(**changes), BY).pack(), HELD) for name, about, changes in cases),
        breaks("C3", "data-key", "another data key, wrapped and vouched for", plain(FILE, other).pack(), HELD),
    ]


# -- written with the keys, as no writer writes ----------------------------------------------------------------------


def _right_tags() -> list[Vector]:
    both = [ENCRYPT, "streamxf.checksum/1"]
    two = DATA[BLOCK : 2 * BLOCK]
    short = OPEN.change(blocks=(OPEN.blocks[0], (False, zstd(two[:-1])), *OPEN.blocks[2:]))
    not_zstd = OPEN.change(blocks=(OPEN.blocks[0], (False, b"no frame"), *OPEN.blocks[2:]))
    unsummed = encrypted(container(both, [SMALL], len(SMALL)))
    last, stored = unsummed.blocks[0]
    wrong = unsummed.change(blocks=((last, stored + bytes(4)),))
    return [
        breaks("C9", "sealed-short", "a block in the middle lacks a byte", plain(encrypted(short), BY).pack(), HELD),
        breaks("zstd", "sealed-no-frame", "no frame under a right tag", plain(encrypted(not_zstd), BY).pack(), HELD),
        breaks("checksum", "sealed", "a checksum after encryption is wrong", plain(wrong, BY).pack(), HELD),
        holds("encrypt-empty-stream", "an empty stream", keyed([ENCRYPT], [b""], 0).pack, b"", HELD),
    ]


# -- wrapped data keys -----------------------------------------------------------------------------------------------


def small(text: str = "", *, dek: bytes = DEK, keys: Sequence[bytes] = (KEY,)) -> bytes:
    """A small file whose data key is wrapped as `text`."""
    return keyed([ENCRYPT], [SMALL], len(SMALL), Vouching(text, tuple(keys), dek=dek)).pack()


def _keys() -> list[Vector]:
    many = [aes_wrap(secret(f"key {number}")) for number in range(15)]
    future = entry(f"future-kind:{key_id(KEY)}", b"something else")
    head, _, own = aes_wrap().rpartition(":")
    blob = base64.urlsafe_b64decode(own + "==")
    altered = entry(head, blob[:-1] + bytes([blob[-1] ^ 1]))
    both = (KEY, OTHER_KEY)
    right: list[tuple[str, str, bytes, Reader]] = [
        ("one", "one recipient", small(), HELD),
        (
            "second-of-two",
            "the second of two recipients",
            small(wrapped([aes_wrap(), aes_wrap(OTHER_KEY)]), keys=both),
            OTHERS,
        ),
        ("sixteen", "16 recipients, of whom the last reads", small(wrapped([*many, aes_wrap()])), HELD),
        ("unknown-kind-beside", "an unknown kind before a known one", small(wrapped([future, aes_wrap()])), HELD),
        ("wrong-size-beside", "another's wrapped key, of a size that its kind does not have", small(_beside()), HELD),
        (
            "keys-of-a-reader",
            "a reader with three keys",
            small(),
            Reader((*OTHERS.held, ("aeskw", secret("1")), *HELD.held)),
        ),
    ]
    other_dek = f"dek={dek_id().hex()}&w={aes_wrap(dek=OTHER_DEK)}"
    misnamed = aes_wrap(OTHER_KEY).replace(key_id(OTHER_KEY), key_id(KEY))
    wrong: list[tuple[str, str, bytes, Reader]] = [
        ("altered", "a bit of the wrapped key", small(wrapped([altered])), HELD),
        ("of-another-dek", "a wrapped key that is another data key", small(other_dek), HELD),
        ("dek", "another dek", small(wrapped().replace(dek_id().hex(), secret("another id").hex())), HELD),
        ("of-another-key", "another's wrapped key under this key's id", small(wrapped([misnamed])), HELD),
        ("wrong-size", "a wrapped key of 39 bytes", small(wrapped([entry(head, blob[:-1])])), HELD),
        ("none", "no key", small(), NOTHING),
        ("another", "a key that it is not wrapped for", small(), OTHERS),
        ("unknown-kind", "the id of the key, under an unknown kind", small(wrapped([future])), HELD),
        ("fifteen-others", "15 recipients, none of whom reads", small(wrapped(many)), HELD),
    ]
    return [
        *(
            holds(f"wrapped-{name}", about, lambda file=file: file, SMALL, reader)
            for name, about, file, reader in right
        ),
        *(breaks("K3", name, about, file, reader) for name, about, file, reader in wrong),
    ]


def _beside() -> str:
    return wrapped([entry(f"aeskw:{key_id(OTHER_KEY)}", b"x"), aes_wrap()])


def _wrapped() -> list[Vector]:
    dek, wrap = wrapped().split("&")
    own = wrap.rpartition(":")[2]
    stray = own[:-1] + chr(ord(own[-1]) + 1)  # 40 bytes leave 4 bits of the last letter unused, and they are 0
    seventeen = [aes_wrap(secret(f"key {number}")) for number in range(17)]
    long = [entry(f"other{number}:{key_id(KEY)}", bytes(6000)) for number in range(4)]
    cases = [
        ("no-wrapped-key", "no wrapped key", dek),
        ("seventeen", "17 wrapped keys", wrapped(seventeen)),
        ("twice", "a kind and key_id twice", f"{dek}&{wrap}&{wrap}"),
        ("no-dek", "no dek", wrap),
        ("dek-twice", "two deks", f"{dek}&{dek}&{wrap}"),
        ("dek-second", "the wrapped key before dek", f"{wrap}&{dek}"),
        ("dek-31-bytes", "a dek of 31 bytes", f"{dek[:-2]}&{wrap}"),
        ("dek-33-bytes", "a dek of 33 bytes", f"{dek}00&{wrap}"),
        ("dek-capitals", "a dek in capitals", f"dek={dek[4:].upper()}&{wrap}"),
        ("unknown-member", "a member that there is not", f"{dek}&{wrap}&x=1"),
        ("stray-bits", "bits at the end of a wrapped key that mean nothing", f"{dek}&{wrap[: -len(own)]}{stray}"),
        ("padding", "base64url with its padding", f"{dek}&{wrap}=="),
        ("newline", "a newline at the end", f"{dek}&{wrap}\n"),
        ("ampersand", "an ampersand at the end", f"{dek}&{wrap}&"),
        ("two-parts", "a wrapped key without a kind", f"{dek}&w={key_id(KEY)}:{own}"),
        ("four-parts", "a wrapped key with a part too many", f"{dek}&{wrap}:AAAA"),
        ("kind-empty", "an empty kind", f"{dek}&{wrap.replace('aeskw', '')}"),
        ("kind-of-33", "a kind of 33 characters", f"{dek}&{wrap.replace('aeskw', 'a' * 33)}"),
        ("kind-capitals", "a capital in the kind", f"{dek}&{wrap.replace('aeskw', 'AESKW')}"),
        ("key-id-of-15", "a key_id of 15 digits", f"{dek}&{wrap.replace(key_id(KEY), key_id(KEY)[:15])}"),
        ("nothing-wrapped", "an entry without bytes", f"{dek}&w=other:{key_id(KEY)}:&{wrap}"),
        ("6145-bytes", "a wrapped key of 6145 bytes", f"{dek}&{wrap}&w=other:{key_id(KEY)}:{b64url(bytes(6145))}"),
    ]
    made = keyed([ENCRYPT], [SMALL], len(SMALL))
    not_ascii = made.change(prefix=prefix_of(wrapped().encode() + b"\x80")).pack()
    assert len(wrapped([aes_wrap(), *long])) < 32768
    return [
        *(breaks("K1", name, about, small(text), HELD) for name, about, text in cases),
        breaks("K1", "not-ascii", "a byte 80", not_ascii, HELD),
        holds("wrapped-long", "entries of 6000 bytes", lambda: small(wrapped([aes_wrap(), *long])), SMALL, HELD),
    ]


# -- vouchers --------------------------------------------------------------------------------------------------------


def _vouchers() -> list[Vector]:
    made = encrypted(container([ENCRYPT], [SMALL], len(SMALL)))
    signed = encrypted(container([ENCRYPT], [SMALL], len(SMALL)).change(flags=1 | HASHED))
    digest, text = plain_digest(made), wrapped()
    mac, own, other = mac_of(digest, text), voucher(digest), voucher(digest, OTHER_KEY)
    sig = signature(plain_digest(signed))
    strange = plain_digest(_OTHER)

    def of(vouchers: str, parts: Parts = made) -> bytes:
        return parts.change(prefix=prefix_of(text), tail=seal_of(vouchers)).pack()

    name, _, tag = own.rpartition(":")
    forms = [
        ("no-mac", "no mac", own),
        ("mac-twice", "two macs", f"{mac}&{mac}&{own}"),
        ("mac-second", "the voucher before the mac", f"{own}&{mac}"),
        ("mac-31-bytes", "a mac of 31 bytes", f"{mac[:-2]}&{own}"),
        ("mac-capitals", "a mac in capitals", f"mac={mac[4:].upper()}&{own}"),
        (
            "hpke",
            "a voucher of a kind that does not vouch",
            f"{mac}&{own}&{name.replace('aeskw', 'hpke-x25519')}:{tag}",
        ),
        ("unknown-member", "a member that there is not", f"{mac}&{own}&x=1"),
        ("newline", "a newline at the end", f"{mac}&{own}\n"),
        ("padding", "base64url with its padding", f"{mac}&{own}="),
    ]
    signatures = [
        (
            "signature-twice",
            "two signatures",
            f"{mac_of(plain_digest(signed), text)}&{voucher(plain_digest(signed))}&{sig}&{sig}",
        ),
        ("signature-63-bytes", "a signature of 63 bytes", _signed(signed, f"{sig[:21]}{b64url(bytes(63))}")),
        ("signature-no-id", "a signature without a key_id", _signed(signed, f"sig={sig[21:]}")),
        (
            "signature-stray-bits",
            "bits at the end of the signature",
            _signed(signed, f"{sig[:21]}{b64url(bytes(64))[:-1]}B"),
        ),
    ]
    macs = [
        ("bit", "a bit of the mac", f"{mac[:-1]}{'0' if mac[-1] != '0' else '1'}&{own}"),
        ("of-other-contents", "the mac of other contents", f"{mac_of(strange, text)}&{own}"),
        ("of-another-data-key", "the mac under another data key", f"{mac_of(digest, text, OTHER_DEK)}&{own}"),
    ]
    own_ones = [
        ("none", "no voucher: whoever once had the data key can make this", mac),
        ("of-another", "another's voucher alone", f"{mac}&{other}"),
        ("of-other-contents", "the voucher for other contents", f"{mac}&{voucher(strange)}"),
        ("by-another-key", "another's voucher under this key's id", f"{mac}&{name}:{other.rpartition(':')[2]}"),
        ("31-bytes", "a voucher of 31 bytes", f"{mac}&{entry(name, bytes(31))}"),
    ]
    two = keyed([ENCRYPT], [SMALL], len(SMALL), Vouching(wrapped([aes_wrap(), aes_wrap(OTHER_KEY)])))
    added = keyed([ENCRYPT], [SMALL], len(SMALL))
    stranger = entry(f"aeskw:{key_id(OTHER_KEY)}", b"not a voucher")
    return [
        *(breaks("K4", f"form-{name}", about, of(vouchers), HELD) for name, about, vouchers in forms),
        *(breaks("K4", name, about, of(vouchers, signed), HELD) for name, about, vouchers in signatures),
        breaks("K1", "voucher-twice", "a kind and key_id twice", of(f"{mac}&{own}&{own}"), HELD),
        *(breaks("K4", f"mac-{name}", about, of(vouchers), HELD) for name, about, vouchers in macs),
        breaks(
            "K4", "recipient-removed", "another's wrapped key is gone", two.change(prefix=prefix_of(text)).pack(), HELD
        ),
        breaks(
            "K4", "recipient-added", "another's wrapped key came later", added.change(prefix=two.prefix).pack(), HELD
        ),
        breaks("K4", "table", "contents that were changed after they were vouched for", _cut(), HELD),
        *(breaks("K5", name, about, of(vouchers), HELD) for name, about, vouchers in own_ones),
        breaks("K4", "ignored-first", "what is ignored, before the others", of(f"_a=1&{mac}&{own}"), HELD),
        breaks("K5", "ignored", "a voucher in what is ignored", of(f"{mac}&_&{own}"), HELD),
        holds(
            "vouchers-ignored", "members that are ignored", lambda: of(f"{mac}&{own}&_a=:.~-_&_b=&_a=1"), SMALL, HELD
        ),
        holds("vouchers-of-others", "another's voucher is wrong", lambda: of(f"{mac}&{own}&v={stranger}"), SMALL, HELD),
        holds(
            "vouchers-in-another-order",
            "another's voucher comes first",
            lambda: of(f"{mac}&{other}&{own}"),
            SMALL,
            HELD,
        ),
    ]


def _signed(made: Parts, sig: str) -> str:
    digest = plain_digest(made)
    return f"{mac_of(digest, wrapped())}&{voucher(digest)}&{sig}"


def _cut() -> bytes:
    return FILE.change(blocks=_flagged(_A, _B), raw_size=2 * BLOCK).pack()


def _policy() -> list[Vector]:
    open_ = plain(container(["streamxf.zstd/1"], [zstd(SMALL)], len(SMALL)))
    return [
        breaks("K7", "signers-alone", "signers to trust, and no keys", open_.pack(), SIGNERS),
        breaks("K7", "not-encrypted", "encryption was stripped, and the reader has a key", open_.pack(), HELD),
        holds("not-encrypted-no-key", "the same file, and the reader has no key", open_.pack, SMALL),
    ]


def _seal() -> list[Vector]:
    made = keyed([ENCRYPT], [SMALL], len(SMALL))
    tail, vouchers = made.tail, made.tail[:-16]
    signed = Vouching(signer=None)
    hashed = plain(encrypted(container([ENCRYPT], [SMALL], len(SMALL)).change(flags=1 | HASHED)), signed)
    cases = [
        ("missing", "no seal", made.change(tail=b"").pack()),
        ("magic", "another last byte", made.change(tail=tail[:-1] + b"\xd2").pack()),
        ("crc", "a bit of the CRC", made.change(tail=tail[:-9] + bytes([tail[-9] ^ 1]) + tail[-8:]).pack()),
        ("length-0", "seal_len is 0", made.change(tail=seal_of(b"")).pack()),
        ("length-beyond-file", "seal_len is larger than the file", made.change(tail=seal_of(vouchers, 20000)).pack()),
        ("length-above-limit", "seal_len is 32769", made.change(tail=seal_of(vouchers.ljust(32769, b"x"))).pack()),
        ("continued", "a byte follows", made.pack() + b"\0"),
        ("cut", "the last byte is missing", made.pack()[:-1]),
    ]
    return [
        *(breaks("seal", name, about, file, HELD) for name, about, file in cases),
        breaks(
            "footer", "before-seal", "a byte between container and seal", made.change(tail=b"\0" + tail).pack(), HELD
        ),
        breaks("P1", "hashed-unsigned", "hashes, and the vouchers have no signature", hashed.pack(), HELD),
        breaks("P1", "signed-unhashed", "a signature, and no hashes", _unhashed(), HELD),
    ]


def _unhashed() -> bytes:
    made = encrypted(container([ENCRYPT], [SMALL], len(SMALL)))
    text = _signed(made, signature(plain_digest(made)))
    return made.change(prefix=prefix_of(wrapped()), tail=seal_of(text)).pack()
