"""Plain files that are framed wrongly; all CRCs are right, but where one of them is the fault."""

from __future__ import annotations

import struct

from tests.forge import HASHED, Places, crc_of, identity_of, prefix_of, seal_of, with_crc
from tests.sealing import ENCRYPT, Vouching, container, encrypted, keyed, plain, plain_digest, wrapped, zstd
from tests.vectors.recipes.data import BLOCK, lines, payload
from tests.vectors.recipes.vector import HELD, Vector, breaks, holds

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


def vectors() -> list[Vector]:
    """All of them."""
    return [*_prefix(), *_header(), *_blocks(), *_table(), *_footer(), *_ends(), *_plain()]


def patched(file: bytes, at: int, new: bytes) -> bytes:
    """`file` with other bytes `at` a place, counted from the end if it is negative; no CRC is made again."""
    at %= len(file)
    return file[:at] + new + file[at + len(new) :]


def _flip(file: bytes, at: int) -> bytes:
    at %= len(file)
    return patched(file, at, bytes([file[at] ^ 1]))


def _prefix() -> list[Vector]:
    above = with_crc(PLAIN.prefix[:12] + struct.pack("<I", 32769) + bytes(32769))
    cases = [
        ("magic", "the first byte is another", _flip(FILE, 0)),
        ("container-alone", "a container where a plain file should be", PLAIN.container()),
        ("nothing", "an empty file", b""),
        ("cut-in-magic", "5 bytes", FILE[:5]),
        ("cut-in-length", "15 bytes", FILE[:15]),
        ("cut-in-key", "the file ends inside the wrapped key", KEYED.pack()[:100]),
        ("length-above-limit", "key_len is 32769", above + PLAIN.container()),
        ("length-beyond-file", "key_len is 4096, and the file is shorter", patched(FILE, 12, struct.pack("<I", 4096))),
        ("crc", "a bit of the CRC is another", _flip(FILE, 16)),
        *((name, about, _formatted(*each)) for name, about, each in _FORMATS),
        ("key-without-encryption", "a wrapped key, and a chain that does not encrypt", _with_prefix(wrapped())),
        (
            "encryption-without-key",
            "a chain that encrypts, and no wrapped key",
            KEYED.change(prefix=prefix_of()).pack(),
        ),
    ]
    return [
        *(breaks("prefix", name, about, file, HELD if "encryption-" in name else _NONE) for name, about, file in cases),
        holds("prefix-informative", "informative flags that no reader knows", lambda: _formatted(1, 1, 0, 255), SMALL),
        holds("prefix-informative-keyed", "the same, vouched for", lambda: _vouched(1, 1, 0, 255), SMALL, HELD),
        breaks("K4", "prefix-informative", "a flag that came after the vouchers", _vouched(1, 1, 0, 1, after=4), HELD),
    ]


_FORMATS = [
    ("version-0", "version 0", (0, 1, 0, 0)),
    ("version-2", "version 2", (2, 1, 0, 0)),
    ("suite-0", "suite 0", (1, 0, 0, 0)),
    ("suite-2", "suite 2", (1, 2, 0, 0)),
    ("critical-1", "a critical flag", (1, 1, 1, 0)),
    ("critical-128", "a critical flag", (1, 1, 128, 0)),
]


def _formatted(*format_bytes: int) -> bytes:
    return PLAIN.change(prefix=prefix_of(b"", bytes(format_bytes))).pack()


def _vouched(*format_bytes: int, after: int = 0) -> bytes:
    """An encrypted file with these format bytes; `after` is another for the informative flags, put there later."""
    made = encrypted(container([ENCRYPT], [SMALL], len(SMALL)))
    made = made.change(prefix=prefix_of(wrapped(), bytes(format_bytes)))
    made = made.change(tail=seal_of(Vouching().vouchers(plain_digest(made))))
    changed = bytes([*format_bytes[:3], after]) if after else bytes(format_bytes)
    return made.change(prefix=prefix_of(wrapped(), changed)).pack()


def _with_prefix(text: str) -> bytes:
    return PLAIN.change(prefix=prefix_of(text)).pack()


_NONE = holds("", "", bytes, b"").reader


def _header() -> list[Vector]:
    name = identity_of("item")
    keyed_ = container([ENCRYPT], [SMALL], len(SMALL))
    wrong = [
        ("magic", "another fourth byte", _other_magic()),
        ("version-0", "version 0", PLAIN.change(version=0).pack()),
        ("version-2", "version 2", PLAIN.change(version=2).pack()),
        ("block-log2-15", "block_log2 below its limit", PLAIN.change(block_log2=15).pack()),
        ("block-log2-25", "block_log2 above its limit", PLAIN.change(block_log2=25).pack()),
        ("suite-0", "suite 0", PLAIN.change(suite=0).pack()),
        ("suite-2", "suite 2", PLAIN.change(suite=2).pack()),
        ("flag-16", "an unknown critical flag", PLAIN.change(flags=16).pack()),
        ("flag-128", "an unknown critical flag", PLAIN.change(flags=128).pack()),
        ("chain-len-above-limit", "chain_len is 1025", PLAIN.change(chain=b"x" * 1025).pack()),
        ("chain-len-beyond-file", "chain_len is 1024, and the file is shorter", patched(FILE, START + 13, b"\0\4")),
        ("ident-len-above-limit", "ident_len is 4097", PLAIN.change(flags=2, identity=name + bytes(4093)).pack()),
        ("crc", "a bit of the CRC is another", _flip(FILE, START + 33)),
        ("salt", "a bit of the salt is another, and the CRC is not", _flip(FILE, START + 17)),
        ("cut", "the file ends inside the salt", FILE[: START + 20]),
        ("cut-before-crc", "the file ends before the header's CRC", FILE[: START + 33]),
        ("missing", "a prefix, and nothing after it", PLAIN.prefix),
    ]
    flags = [
        ("bound-without-identity", "bound, and no identity", PLAIN.change(flags=2).pack()),
        ("keyed-without-encryption", "keyed, and no such chain", THREE.change(flags=1, seal=bytes(32)).pack()),
        ("encryption-without-keyed", "the flag is missing", plain(keyed_.change(flags=0, seal=b"")).pack()),
    ]
    return [
        *(breaks("header", name, about, file) for name, about, file in wrong),
        *(breaks("C2", name, about, file) for name, about, file in flags),
        holds(
            "header-informative", "informative flags that no reader knows", PLAIN.change(informative=255).pack, SMALL
        ),
        holds("block-log2-24", "the largest blocks", PLAIN.change(block_log2=24).pack, SMALL),
    ]


def _other_magic() -> bytes:
    made = PLAIN.container()
    return PLAIN.prefix + with_crc(b"\xd3SXG" + made[4:33]) + made[37:]


def _blocks() -> list[Vector]:
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
    crcs = [
        ("crc-of-first", "a CRC that is wrong", patched(FILE3, START + first + 4, bytes(4))),
        ("crc-of-last", "a CRC that is wrong", patched(FILE3, START + third + 4, bytes(4))),
        ("moved-with-their-crcs", "two blocks changed places as they are", THREE.prefix + swapped),
        ("payload-bit", "a bit of the second payload", _flip(FILE3, START + second + 12)),
        ("crc-of-empty", "the only block of an empty stream, whose CRC is wrong", _flip_block(plain(empty))),
    ]
    sizes = [
        ("short-in-the-middle", "the second block has a byte less", (blocks[0], (False, zstd(one[:-1])), blocks[2])),
        ("empty-at-first", "the first of three blocks is empty", ((False, zstd(b"")), *blocks[1:])),
        ("short-at-last", "the last block has a byte less", (*blocks[:2], (True, zstd(LARGE[2 * BLOCK : -1])))),
        ("long-at-last", "the last block has a byte more", (*blocks[:2], (True, zstd(LARGE[2 * BLOCK :] + b"x")))),
    ]
    table = [
        ("length-one-less", "a block that ends early", rehead(1, len(blocks[1][1]) - 1)),
        ("length-one-more", "a block that ends late", rehead(1, len(blocks[1][1]) + 1)),
        ("length-2-31", "2^31 - 1 stored bytes", rehead(1, 0x7FFFFFFF)),
    ]
    early = THREE.change(blocks=(blocks[0], (True, blocks[1][1]), blocks[2]))
    missing = THREE.change(blocks=(*blocks[:2], (False, blocks[2][1])))
    none = (blocks[0], (False, b""), blocks[2])
    big = container(["streamxf.zstd/1"], [bytes(LIMIT + 1)], BLOCK)
    return [
        *(breaks("block", name, about, file) for name, about, file in crcs),
        *(breaks("C9", name, about, THREE.change(blocks=made).pack()) for name, about, made in sizes),
        breaks("C9", "not-empty", "a block of an empty stream that is not empty", plain(_not_empty()).pack()),
        *(breaks("C10", name, about, file) for name, about, file in table),
        breaks("C8", "stored-above-limit", "E + 1 stored bytes", plain(big).pack()),
        breaks("C8", "no-bytes", "the second block of three has no stored bytes", THREE.change(blocks=none).pack()),
        breaks("C7", "last-early", "the second block of three says that it is the last", early.pack()),
        breaks("C7", "last-missing", "no block is the last", missing.pack()),
        holds("empty", "an empty stream is one empty block", plain(empty).pack, b""),
        holds("three-blocks", "three blocks, none of the faults", THREE.pack, LARGE),
    ]


def _flip_block(made: object) -> bytes:
    file = made.pack()  # type: ignore[attr-defined]
    return _flip(file, START + Places.of(made.container()).blocks[0][0] + 4)  # type: ignore[attr-defined]


def _not_empty() -> object:
    return container([ZSTD], [zstd(b"x")], 0)


def _table() -> list[Vector]:
    a, b, c = (len(payload) for _, payload in THREE.blocks)
    cases = [
        ("C10", "first-one-more", "the first length is one more", (a + 1, b, c)),
        ("C10", "one-more-one-less", "the same, and the second is one less", (a + 1, b - 1, c)),
        ("C10", "swapped", "two lengths changed places", (a, c, b)),
        ("C10", "last-one-less", "the last block ends before the table", (a, b, c - 1)),
        ("C8", "zero", "all lengths are 0", (0, 0, 0)),
        ("C8", "first-zero", "the first length is 0", (0, a + b, c)),
        ("C8", "huge", "a length of 2^32 - 1", (a, 2**32 - 1, c)),
        ("C8", "too-long", "the second length is E + 1", (a, LIMIT + 1, c)),
    ]
    return [
        breaks(rule, f"table-{name}", about, THREE.change(lengths=lengths).pack())
        for rule, name, about, lengths in cases
    ]


def _footer() -> list[Vector]:
    lengths = tuple(len(payload) for _, payload in THREE.blocks)
    counts = [
        ("footer", "raw-size-for-four-blocks", "raw_size needs four blocks", {"raw_size": 3 * BLOCK + 1}),
        ("footer", "raw-size-for-two-blocks", "raw_size needs two blocks", {"raw_size": 2 * BLOCK}),
        ("footer", "raw-size-0", "raw_size is 0, with three blocks", {"raw_size": 0}),
        ("footer", "raw-size-2-64", "raw_size is 2^64 - 1", {"raw_size": 2**64 - 1}),
        ("footer", "raw-size-2-48", "raw_size is 2^48 + 1", {"raw_size": 2**48 + 1}),
        ("C10", "raw-size-at-limit", "raw_size is 2^48, and the table has no room", {"raw_size": 2**48}),
        ("C10", "table-a-block-less", "a table of two blocks", {"raw_size": 2 * BLOCK, "lengths": lengths[1:]}),
        ("C10", "table-a-block-more", "a table of four", {"raw_size": 3 * BLOCK + 1, "lengths": (*lengths, 9)}),
    ]
    sizes = [("one-less", -1), ("one-more", 1)]
    return [
        *(breaks(rule, name, about, THREE.change(**made).pack()) for rule, name, about, made in counts),
        breaks("footer", "crc", "a CRC that is wrong", patched(FILE3, -12, bytes(4))),
        breaks("footer", "magic", "another last byte", _flip(FILE3, -1)),
        *(
            breaks(
                "C9", f"raw-size-{name}", f"raw_size is {name.replace('-', ' ')}", THREE.change(raw_size=size).pack()
            )
            for name, size in ((name, len(LARGE) + off) for name, off in sizes)
        ),
    ]


def _ends() -> list[Vector]:
    (first, _), (second, _), (third, _) = ((START + head, end) for head, end in AT3.blocks)
    cut = [
        ("last-byte", len(FILE3) - 1),
        ("before-footer", len(FILE3) - 20),
        ("in-table", START + AT3.table + 5),
        ("before-table", START + AT3.table),
        ("in-last-block", third + 9),
        ("before-last-block", third),
        ("in-block-head", second + 5),
        ("before-first-block", first),
    ]
    more = [
        ("a-zero", "a byte 00 follows", b"\0"),
        ("a-newline", "a byte 0A follows, as an editor leaves it", b"\n"),
        ("zeros", "512 zeros follow", bytes(512)),
    ]
    again = [
        ("footer", "its-own-footer", "the footer follows once more", FILE3[-20:]),
        ("C10", "itself", "the file follows once more", FILE3),
        ("C10", "its-container", "the container follows once more", THREE.container()),
    ]
    return [
        *(breaks("footer", f"cut-{name}", f"{size} of {len(FILE3)} bytes", FILE3[:size]) for name, size in cut),
        *(breaks("footer", f"trailing-{name}", about, FILE3 + tail) for name, about, tail in more),
        *(breaks(rule, f"trailing-{name}", about, FILE3 + tail) for rule, name, about, tail in again),
    ]


def _plain() -> list[Vector]:
    """What belongs to no plain file."""
    name = identity_of("item")
    return [
        breaks("P1", "bound", "a bound container", PLAIN.change(flags=2, identity=name).pack()),
        breaks("P1", "published", "a published container", PLAIN.change(flags=6, identity=name).pack()),
        breaks("P1", "hashed", "hashes, and nobody signed", PLAIN.change(flags=HASHED).pack()),
        breaks("P1", "transform", "a stream transform", PLAIN.change(chain=b"!stream.zstd/1").pack()),
    ]
