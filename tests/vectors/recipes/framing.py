"""Plain files that are framed wrongly; all CRCs are right, but where one of them is the fault."""

from __future__ import annotations

import struct

from forge import HASHED, Places, crc_of, identity_of, prefix_of, with_crc
from sealing import ENCRYPT, container, keyed, plain, wrapped, zstd

from recipes.data import BLOCK, lines, payload
from recipes.vector import HELD, Vector, breaks, holds

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
    above = with_crc(PLAIN.prefix[:8] + struct.pack("<I", 32769) + bytes(32769))
    cases = [
        ("magic", "the first byte is another", _flip(FILE, 0)),
        ("container-alone", "a container where a plain file should be", PLAIN.container()),
        ("nothing", "an empty file", b""),
        ("cut-in-magic", "5 bytes", FILE[:5]),
        ("cut-in-length", "11 bytes", FILE[:11]),
        ("cut-in-key", "the file ends inside the wrapped key", KEYED.pack()[:100]),
        ("length-above-limit", "key_len is 32769", above + PLAIN.container()),
        ("length-beyond-file", "key_len is 4096, and the file is shorter", patched(FILE, 8, struct.pack("<I", 4096))),
        ("crc", "a bit of the CRC is another", _flip(FILE, 12)),
        ("key-without-encryption", "a wrapped key, and a chain that does not encrypt", _with_prefix(wrapped())),
        (
            "encryption-without-key",
            "a chain that encrypts, and no wrapped key",
            KEYED.change(prefix=prefix_of()).pack(),
        ),
    ]
    return [
        breaks("prefix", name, about, file, HELD if "encryption-" in name else _NONE) for name, about, file in cases
    ]


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
        ("flag-16", "an unknown flag", PLAIN.change(flags=16).pack()),
        ("flag-128", "an unknown flag", PLAIN.change(flags=128).pack()),
        ("reserved", "the reserved byte is 1", PLAIN.change(reserved=1).pack()),
        ("chain-len-above-limit", "chain_len is 1025", PLAIN.change(chain=b"x" * 1025).pack()),
        ("chain-len-beyond-file", "chain_len is 1024, and the file is shorter", patched(FILE, START + 12, b"\0\4")),
        ("ident-len-above-limit", "ident_len is 4097", PLAIN.change(flags=2, identity=name + bytes(4093)).pack()),
        ("crc", "a bit of the CRC is another", _flip(FILE, START + 48)),
        ("salt", "a bit of the salt is another, and the CRC is not", _flip(FILE, START + 16)),
        ("cut", "the file ends inside the salt", FILE[: START + 20]),
        ("cut-before-crc", "the file ends before the header's CRC", FILE[: START + 48]),
        ("missing", "a prefix, and nothing after it", PLAIN.prefix),
    ]
    flags = [
        ("identity-without-bound", "an identity, and not bound", PLAIN.change(identity=name).pack()),
        ("bound-without-identity", "bound, and no identity", PLAIN.change(flags=2).pack()),
        ("published-not-bound", "published, and not bound", PLAIN.change(flags=4).pack()),
        ("keyed-without-encryption", "keyed, and no such chain", THREE.change(flags=1, seal=bytes(32)).pack()),
        ("encryption-without-keyed", "the flag is missing", plain(keyed_.change(flags=0, seal=b"")).pack()),
    ]
    return [
        *(breaks("header", name, about, file) for name, about, file in wrong),
        *(breaks("C2", name, about, file) for name, about, file in flags),
        holds("block-log2-24", "the largest blocks", PLAIN.change(block_log2=24).pack, SMALL),
    ]


def _other_magic() -> bytes:
    made = PLAIN.container()
    return PLAIN.prefix + with_crc(b"\xd3SXG" + made[4:48]) + made[52:]


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
    big = container(["streamxf.zstd/1"], [bytes(LIMIT + 1)], BLOCK)
    return [
        *(breaks("block", name, about, file) for name, about, file in crcs),
        *(breaks("C9", name, about, THREE.change(blocks=made).pack()) for name, about, made in sizes),
        breaks("C9", "not-empty", "a block of an empty stream that is not empty", plain(_not_empty()).pack()),
        *(breaks("C10", name, about, file) for name, about, file in table),
        breaks("C10", "stored-above-limit", "E + 1 stored bytes", plain(big).pack()),
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
    a, b, c = (end for _, end in AT3.blocks)
    cases = [
        ("first-one-more", "the first end is one more", (a + 1, b, c)),
        ("second-one-less", "the second end is one less", (a, b - 1, c)),
        ("swapped", "two ends changed places", (b, a, c)),
        ("equal", "two ends are the same", (a, a, c)),
        ("zero", "all ends are 0", (0, 0, 0)),
        ("last-one-less", "the last end is before the table", (a, b, c - 1)),
        ("last-one-more", "the last end is inside the table", (a, b, c + 1)),
        ("before-the-blocks", "the first end is inside the header", (40, b, c)),
        ("huge", "an end of 2^64 - 1", (a, 2**64 - 1, c)),
        ("too-far", "the second end is E + 9 bytes after the first", (a, a + LIMIT + 9, c)),
    ]
    return [breaks("C10", f"table-{name}", about, THREE.change(ends=ends).pack()) for name, about, ends in cases]


def _footer() -> list[Vector]:
    size, ends = len(THREE.container()), tuple(end for _, end in AT3.blocks)
    counts = [
        ("C11", "raw-size-for-four-blocks", "raw_size needs four blocks", {"raw_size": 3 * BLOCK + 1}),
        ("C11", "raw-size-for-two-blocks", "raw_size needs two blocks", {"raw_size": 2 * BLOCK}),
        ("C11", "raw-size-0", "raw_size is 0, with three blocks", {"raw_size": 0}),
        ("C11", "raw-size-2-64", "raw_size is 2^64 - 1", {"raw_size": 2**64 - 1}),
        ("C12", "size-one-less", "container_size is one less", {"container_size": size - 1}),
        ("C12", "size-one-more", "container_size is one more", {"container_size": size + 1}),
        ("C12", "size-0", "container_size is 0", {"container_size": 0}),
        ("C7", "no-block", "n is 0", {"count": 0}),
        ("C10", "count-2", "n is a block less than there are", {"count": 2, "raw_size": 2 * BLOCK, "ends": ends[1:]}),
        ("C10", "count-2-32", "n is 2^32 - 1", {"count": 2**32 - 1, "raw_size": 2**48}),
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
        ("before-footer", len(FILE3) - 32),
        ("in-table", START + AT3.table + 9),
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
        ("its-own-footer", "the footer follows once more", FILE3[-32:]),
        ("itself", "the file follows once more", FILE3),
        ("its-container", "the container follows once more", THREE.container()),
    ]
    return [
        *(breaks("footer", f"cut-{name}", f"{size} of {len(FILE3)} bytes", FILE3[:size]) for name, size in cut),
        *(breaks("footer", f"trailing-{name}", about, FILE3 + tail) for name, about, tail in more),
        *(breaks("C12", f"trailing-{name}", about, FILE3 + tail) for name, about, tail in again),
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
