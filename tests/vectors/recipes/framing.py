"""Plain files that are framed wrongly; all CRCs are right, but where one of them is the fault."""

from __future__ import annotations

import struct

from tests.forge import HASHED, Places, crc_of, identity_of, prefix_of, seal_of, with_crc
from tests.sealing import ENCRYPT, Vouching, container, encrypted, keyed, plain, plain_digest, wrapped, zstd
from tests.vectors.recipes.data import BLOCK, lines, payload
from tests.vectors.recipes.vector import Made, under

ZSTD = "streamxf.zstd/1"
LIMIT = BLOCK + BLOCK // 16 + 1024

SMALL = payload(100)
PLAIN = plain(container([], [SMALL], len(SMALL)))
LARGE = lines(2 * BLOCK + 77)
THREE = plain(container([ZSTD], [zstd(LARGE[at : at + BLOCK]) for at in range(0, len(LARGE), BLOCK)], len(LARGE)))
KEYED = keyed([ENCRYPT], [SMALL], len(SMALL))
FILE, FILE3 = PLAIN.pack(), THREE.pack()
AT3 = Places.of(THREE.container())
START = len(PLAIN.prefix)


def vectors() -> Made:
    """All of them."""
    return {**_prefix(), **_header(), **_blocks(), **_table(), **_footer(), **_ends(), **_plain()}


def patched(file: bytes, at: int, new: bytes) -> bytes:
    """`file` with other bytes `at` a place, counted from the end if it is negative; no CRC is made again."""
    at %= len(file)
    return file[:at] + new + file[at + len(new) :]


def _flip(file: bytes, at: int) -> bytes:
    at %= len(file)
    return patched(file, at, bytes([file[at] ^ 1]))


def _prefix() -> Made:
    above = with_crc(PLAIN.prefix[:12] + struct.pack("<I", 32769) + bytes(32769))
    cases = {
        "magic": _flip(FILE, 0),
        "container-alone": PLAIN.container(),
        "nothing": b"",
        "cut-in-magic": FILE[:5],
        "cut-in-length": FILE[:15],
        "cut-in-key": KEYED.pack()[:100],
        "length-above-limit": above + PLAIN.container(),
        "length-beyond-file": patched(FILE, 12, struct.pack("<I", 4096)),
        "crc": _flip(FILE, 16),
        **_FORMATTED,
        "key-without-encryption": _with_prefix(wrapped()),
        "encryption-without-key": KEYED.change(prefix=prefix_of()).pack(),
    }
    return {
        **under("prefix", cases),
        "prefix-informative": _formatted(1, 1, 0, 255),
        "prefix-informative-keyed": _vouched(1, 1, 0, 255),
        "K4-prefix-informative": _vouched(1, 1, 0, 1, after=4),
    }


def _formatted(*format_bytes: int) -> bytes:
    return PLAIN.change(prefix=prefix_of(b"", bytes(format_bytes))).pack()


_FORMATTED = {
    "version-0": _formatted(0, 1, 0, 0),
    "version-2": _formatted(2, 1, 0, 0),
    "suite-0": _formatted(1, 0, 0, 0),
    "suite-2": _formatted(1, 2, 0, 0),
    "critical-1": _formatted(1, 1, 1, 0),
    "critical-128": _formatted(1, 1, 128, 0),
}


def _vouched(*format_bytes: int, after: int = 0) -> bytes:
    """An encrypted file with these format bytes; `after` is another for the informative flags, put there later."""
    made = encrypted(container([ENCRYPT], [SMALL], len(SMALL)))
    made = made.change(prefix=prefix_of(wrapped(), bytes(format_bytes)))
    made = made.change(tail=seal_of(Vouching().vouchers(plain_digest(made))))
    changed = bytes([*format_bytes[:3], after]) if after else bytes(format_bytes)
    return made.change(prefix=prefix_of(wrapped(), changed)).pack()


def _with_prefix(text: str) -> bytes:
    return PLAIN.change(prefix=prefix_of(text)).pack()


def _header() -> Made:
    name = identity_of("item")
    keyed_ = container([ENCRYPT], [SMALL], len(SMALL))
    wrong = {
        "magic": _other_magic(),
        "version-0": PLAIN.change(version=0).pack(),
        "version-2": PLAIN.change(version=2).pack(),
        "block-log2-15": PLAIN.change(block_log2=15).pack(),
        "block-log2-25": PLAIN.change(block_log2=25).pack(),
        "suite-0": PLAIN.change(suite=0).pack(),
        "suite-2": PLAIN.change(suite=2).pack(),
        "flag-16": PLAIN.change(flags=16).pack(),
        "flag-128": PLAIN.change(flags=128).pack(),
        "chain-len-above-limit": PLAIN.change(chain=b"x" * 1025).pack(),
        "chain-len-beyond-file": patched(FILE, START + 13, b"\0\4"),
        "ident-len-above-limit": PLAIN.change(flags=2, identity=name + bytes(4093)).pack(),
        "crc": _flip(FILE, START + 33),
        "salt": _flip(FILE, START + 17),
        "cut": FILE[: START + 20],
        "cut-before-crc": FILE[: START + 33],
        "missing": PLAIN.prefix,
    }
    flags = {
        "bound-without-identity": PLAIN.change(flags=2).pack(),
        "keyed-without-encryption": THREE.change(flags=1, seal=bytes(32)).pack(),
        "encryption-without-keyed": plain(keyed_.change(flags=0, seal=b"")).pack(),
    }
    return {
        **under("header", wrong),
        **under("C2", flags),
        "header-informative": PLAIN.change(informative=255).pack(),
        "block-log2-24": PLAIN.change(block_log2=24).pack(),
    }


def _other_magic() -> bytes:
    made = PLAIN.container()
    return PLAIN.prefix + with_crc(b"\xd3SXG" + made[4:33]) + made[37:]


def _blocks() -> Made:
    blocks = THREE.blocks
    stored = THREE.container()

    def rehead(number: int, word: int) -> bytes:
        """Another word before a block, whose CRC is right for it."""
        head, end = AT3.blocks[number]
        packed = struct.pack("<I", word)
        bound = THREE.digest[:16] + struct.pack("<I", number) + packed
        return THREE.prefix + patched(stored, head, packed + crc_of(bound + stored[head + 8 : end]))

    (first, _), (second, _), (third, _) = AT3.blocks
    one = LARGE[BLOCK : 2 * BLOCK]
    swapped = stored[:first] + stored[second:third] + stored[first:second] + stored[third:]
    empty = container([ZSTD], [zstd(b"")], 0)
    crcs = {
        "crc-of-first": patched(FILE3, START + first + 4, bytes(4)),
        "crc-of-last": patched(FILE3, START + third + 4, bytes(4)),
        "moved-with-their-crcs": THREE.prefix + swapped,
        "payload-bit": _flip(FILE3, START + second + 12),
        "crc-of-empty": _flip_block(plain(empty)),
    }
    sizes = {
        "short-in-the-middle": (blocks[0], (False, zstd(one[:-1])), blocks[2]),
        "empty-at-first": ((False, zstd(b"")), *blocks[1:]),
        "short-at-last": (*blocks[:2], (True, zstd(LARGE[2 * BLOCK : -1]))),
        "long-at-last": (*blocks[:2], (True, zstd(LARGE[2 * BLOCK :] + b"x"))),
    }
    table = {
        "length-one-less": rehead(1, len(blocks[1][1]) - 1),
        "length-one-more": rehead(1, len(blocks[1][1]) + 1),
        "length-2-31": rehead(1, 0x7FFFFFFF),
    }
    early = THREE.change(blocks=(blocks[0], (True, blocks[1][1]), blocks[2]))
    missing = THREE.change(blocks=(*blocks[:2], (False, blocks[2][1])))
    none = (blocks[0], (False, b""), blocks[2])
    big = container(["streamxf.zstd/1"], [bytes(LIMIT + 1)], BLOCK)
    return {
        **under("block", crcs),
        **under("C9", {name: THREE.change(blocks=made).pack() for name, made in sizes.items()}),
        "C9-not-empty": plain(_not_empty()).pack(),
        **under("C10", table),
        "C8-stored-above-limit": plain(big).pack(),
        "C8-no-bytes": THREE.change(blocks=none).pack(),
        "C7-last-early": early.pack(),
        "C7-last-missing": missing.pack(),
        "empty": plain(empty).pack(),
        "three-blocks": THREE.pack(),
    }


def _flip_block(made: object) -> bytes:
    file = made.pack()  # type: ignore[attr-defined]
    return _flip(file, START + Places.of(made.container()).blocks[0][0] + 4)  # type: ignore[attr-defined]


def _not_empty() -> object:
    return container([ZSTD], [zstd(b"x")], 0)


def _table() -> Made:
    a, b, c = (len(payload) for _, payload in THREE.blocks)
    cases = {
        "C10-table-first-one-more": (a + 1, b, c),
        "C10-table-one-more-one-less": (a + 1, b - 1, c),
        "C10-table-swapped": (a, c, b),
        "C10-table-last-one-less": (a, b, c - 1),
        "C8-table-zero": (0, 0, 0),
        "C8-table-first-zero": (0, a + b, c),
        "C8-table-huge": (a, 2**32 - 1, c),
        "C8-table-too-long": (a, LIMIT + 1, c),
    }
    return {name: THREE.change(lengths=lengths).pack() for name, lengths in cases.items()}


def _footer() -> Made:
    lengths = tuple(len(payload) for _, payload in THREE.blocks)
    counts = {
        "footer-raw-size-for-four-blocks": {"raw_size": 3 * BLOCK + 1},
        "footer-raw-size-for-two-blocks": {"raw_size": 2 * BLOCK},
        "footer-raw-size-0": {"raw_size": 0},
        "footer-raw-size-2-64": {"raw_size": 2**64 - 1},
        "footer-raw-size-2-48": {"raw_size": 2**48 + 1},
        "C10-raw-size-at-limit": {"raw_size": 2**48},
        "C10-table-a-block-less": {"raw_size": 2 * BLOCK, "lengths": lengths[1:]},
        "C10-table-a-block-more": {"raw_size": 3 * BLOCK + 1, "lengths": (*lengths, 9)},
    }
    return {
        **{name: THREE.change(**made).pack() for name, made in counts.items()},
        "footer-crc": patched(FILE3, -12, bytes(4)),
        "footer-magic": _flip(FILE3, -1),
        "C9-raw-size-one-less": THREE.change(raw_size=len(LARGE) - 1).pack(),
        "C9-raw-size-one-more": THREE.change(raw_size=len(LARGE) + 1).pack(),
    }


def _ends() -> Made:
    (first, _), (second, _), (third, _) = ((START + head, end) for head, end in AT3.blocks)
    cut = {
        "last-byte": len(FILE3) - 1,
        "before-footer": len(FILE3) - 20,
        "in-table": START + AT3.table + 5,
        "before-table": START + AT3.table,
        "in-last-block": third + 9,
        "before-last-block": third,
        "in-block-head": second + 5,
        "before-first-block": first,
    }
    more = {"a-zero": b"\0", "a-newline": b"\n", "zeros": bytes(512)}
    again = {
        "footer-trailing-its-own-footer": FILE3[-20:],
        "C10-trailing-itself": FILE3,
        "C10-trailing-its-container": THREE.container(),
    }
    return {
        **under("footer-cut", {name: FILE3[:size] for name, size in cut.items()}),
        **under("footer-trailing", {name: FILE3 + tail for name, tail in more.items()}),
        **{name: FILE3 + tail for name, tail in again.items()},
    }


def _plain() -> Made:
    """What belongs to no plain file."""
    name = identity_of("item")
    return {
        "P1-bound": PLAIN.change(flags=2, identity=name).pack(),
        "P1-published": PLAIN.change(flags=6, identity=name).pack(),
        "P1-hashed": PLAIN.change(flags=HASHED).pack(),
        "P1-transform": PLAIN.change(chain=b"!stream.zstd/1").pack(),
    }
