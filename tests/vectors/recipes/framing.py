"""Prefix, header, blocks, index and footer: each field wrong, with all CRCs right but where the CRC is the fault."""

from __future__ import annotations

import struct

from crc32c import crc32c
from forge import prefix_of, with_crc

from recipes.data import BLOCK, lines, payload
from recipes.sealing import KEY, NO_PREFIX, fragment, header_digest, parts, seal, zstd
from recipes.vector import Keys, Vector, fails, reads

HELD = Keys((("aeskw", KEY),))
ENCRYPT = ["streamxf.encrypt/1"]
ZSTD = ["streamxf.zstd/1"]

SMALL = payload(100)
PLAIN = parts([], [SMALL], len(SMALL))
LARGE = lines(2 * BLOCK + 77)
THREE = parts(ZSTD, [zstd(LARGE[at : at + BLOCK]) for at in range(0, len(LARGE), BLOCK)], len(LARGE))
FILE, FILE3 = PLAIN.pack(), THREE.pack()
BLOCKS = THREE.blocks
_INDEX3 = len(FILE3) - 32 - 24


def vectors() -> list[Vector]:
    """All of them."""
    return [*_prefix(), *_header(), *_identity(), *_blocks(), *_index(), *_footer(), *_ends()]


def patched(file: bytes, at: int, new: bytes) -> bytes:
    """`file` with other bytes `at` a place, counted from the end if it is negative; no CRC is made anew."""
    at %= len(file)
    return file[:at] + new + file[at + len(new) :]


# -- prefix ----------------------------------------------------------------------------------------------------------


def _prefix() -> list[Vector]:
    keyed = seal(parts(ENCRYPT, [SMALL], len(SMALL)))
    exact = keyed.change(prefix=prefix_of(fragment().encode(), padded=1))
    roomy = keyed.change(prefix=prefix_of(fragment().encode(), padded=4096))
    above = with_crc(PLAIN.prefix[:8] + struct.pack("<I", 65537))
    inside = prefix_of(fragment().encode() + b"\0&x")
    plain = [
        ("magic", "the first byte is another", patched(FILE, 0, b"\xd2")),
        ("magic-of-a-container", "a container where a plain file should be", PLAIN.container()),
        ("nothing", "an empty file", b""),
        ("cut-in-magic", "5 bytes", FILE[:5]),
        ("cut-in-length", "11 bytes", FILE[:11]),
        ("cut-in-fragment", "the file ends inside the fragment", keyed.pack()[:100]),
        ("length-above-limit", "len is 65537", above + PLAIN.container()),
        ("length-beyond-file", "len is 4096, and the file is shorter", patched(FILE, 8, struct.pack("<I", 4096))),
        ("crc", "a bit of the CRC is another", patched(FILE, 12, bytes([FILE[12] ^ 1]))),
        ("not-ascii", "the fragment has a byte 80", keyed.change(prefix=prefix_of(b"dek=\x80")).pack()),
        ("filled-with-nothing", "512 times NUL, and no fragment", _nothing() + PLAIN.container()),
        ("without-keyed-chain", "a fragment, and a chain that does not encrypt", exact.prefix + PLAIN.container()),
    ]
    return [
        *(fails(f"prefix-{name}", about, [], file, "prefix") for name, about, file in plain),
        fails(
            "prefix-missing-for-keyed-chain",
            "a chain that encrypts, and no fragment",
            ENCRYPT,
            keyed.change(prefix=NO_PREFIX).pack(),
            "prefix",
            keys=HELD,
        ),
        fails(
            "prefix-filled-with-nothing-for-keyed-chain",
            "a chain that encrypts, 512 times NUL, and no fragment",
            ENCRYPT,
            keyed.change(prefix=_nothing()).pack(),
            "prefix",
            keys=HELD,
        ),
        fails(
            "prefix-nul-inside",
            "something stands behind a NUL of the fragment",
            ENCRYPT,
            keyed.change(prefix=inside).pack(),
            "fragment",
            keys=HELD,
        ),
        reads("prefix-not-rounded-up", "a fragment without any NUL", ENCRYPT, exact.pack, SMALL, HELD),
        reads("prefix-with-room", "a fragment in 4096 bytes", ENCRYPT, roomy.pack, SMALL, HELD),
    ]


def _nothing() -> bytes:
    return with_crc(PLAIN.prefix[:8] + struct.pack("<I", 512) + bytes(512))


# -- header ----------------------------------------------------------------------------------------------------------


def _header() -> list[Vector]:
    other_magic = with_crc(b"\xd3SXG" + PLAIN.container()[4:48])
    name = bytes(16) + b"\x01\x00item"
    keyed = parts(ENCRYPT, [SMALL], len(SMALL))
    cases = [
        ("magic", "another fourth byte", [], NO_PREFIX + other_magic + PLAIN.container()[52:]),
        ("version-0", "version 0", [], PLAIN.change(version=0).pack()),
        ("version-2", "version 2", [], PLAIN.change(version=2).pack()),
        ("version-255", "version 255", [], PLAIN.change(version=255).pack()),
        ("block-log2-15", "block_log2 below its limit", [], PLAIN.change(block_log2=15).pack()),
        ("block-log2-25", "block_log2 above its limit", [], PLAIN.change(block_log2=25).pack()),
        ("block-log2-255", "block_log2 255", [], PLAIN.change(block_log2=255).pack()),
        ("flag-8", "an unknown flag", [], PLAIN.change(flags=8).pack()),
        ("flag-128", "an unknown flag", [], PLAIN.change(flags=128).pack()),
        ("reserved", "the reserved byte is 1", [], PLAIN.change(reserved=1).pack()),
        ("chain-len-above-limit", "chain_len is 1025", [], PLAIN.change(chain=b"x" * 1025).pack()),
        ("chain-len-beyond-file", "chain_len is 1024, and the file is shorter", [], patched(FILE, 28, b"\0\4")),
        ("ident-len-above-limit", "ident_len is 4097", [], PLAIN.change(flags=2, identity=bytes(4097)).pack()),
        (
            "ident-len-beyond-file",
            "ident_len is 4096, and the file is shorter",
            [],
            patched(FILE, 26, b"\2\0\0\0\0\x10"),
        ),
        ("identity-without-flag", "ident_len without the flag", [], PLAIN.change(identity=name).pack()),
        ("flag-without-identity", "the flag 'bound' without ident_len", [], PLAIN.change(flags=2).pack()),
        ("published-not-bound", "published, and no identity", [], PLAIN.change(flags=4).pack()),
        ("published-with-unbound-identity", "published, not bound", [], PLAIN.change(flags=4, identity=name).pack()),
        ("bound", "a bound container is no plain file", [], PLAIN.change(flags=2, identity=name).pack()),
        ("published", "a published container is no plain file", [], PLAIN.change(flags=6, identity=name).pack()),
        ("keyed-without-encryption", "keyed, but no such chain", ZSTD, THREE.change(flags=1, seal=bytes(32)).pack()),
        ("encryption-without-keyed", "the flag is missing", ENCRYPT, keyed.change(flags=0, seal=b"").pack()),
        ("crc", "a bit of the CRC is another", [], patched(FILE, 64, bytes([FILE[64] ^ 1]))),
        ("salt", "a bit of the salt is another, and the CRC is not", [], patched(FILE, 40, bytes([FILE[40] ^ 1]))),
        ("cut", "the file ends inside the salt", [], FILE[:50]),
        ("cut-before-crc", "the file ends before the header's CRC", [], FILE[:64]),
        ("missing", "a prefix, and nothing after it", [], NO_PREFIX),
    ]
    at_most = parts([], [SMALL], len(SMALL)).change(block_log2=24)
    return [
        *(fails(f"header-{name}", about, chain, file, "header") for name, about, chain, file in cases),
        reads("header-block-log2-24", "the largest blocks", [], at_most.pack, SMALL),
    ]


def _identity() -> list[Vector]:
    writer = bytes(range(16))
    cases = [
        ("too-short", "17 bytes", writer + b"\1"),
        ("kind-0", "kind 0", writer + b"\0\0item"),
        ("kind-3", "kind 3", writer + b"\3\0item"),
        ("ndim-65", "65 dimensions", writer + b"\2\x41" + bytes(8 * 65) + b"item"),
        ("offsets-of-bytes", "a bytes object with an offset", writer + b"\1\1" + bytes(8) + b"item"),
        ("offsets-cut", "the identity ends inside the offsets", writer + b"\2\2" + bytes(15)),
        ("no-name", "no name", writer + b"\2\1" + bytes(8)),
        ("name-not-utf-8", "a name that is not UTF-8", writer + b"\1\0\xc3("),
        ("name-a-surrogate", "half a pair of surrogates in the name", writer + b"\1\0\xed\xa0\x80"),
    ]
    return [
        fails(f"identity-{name}", about, [], PLAIN.change(flags=2, identity=identity).pack(), "identity")
        for name, about, identity in cases
    ]


# -- blocks ----------------------------------------------------------------------------------------------------------


def _heads(file: bytes, blocks: int) -> list[int]:
    """Where the blocks of an unkeyed file begin."""
    (chain_len,) = struct.unpack_from("<H", file, 16 + 12)
    starts = [16 + 48 + chain_len + 4]
    for _ in range(blocks - 1):
        (word,) = struct.unpack_from("<I", file, starts[-1])
        starts.append(starts[-1] + 8 + (word & 0x7FFFFFFF))
    return starts


def _blocks() -> list[Vector]:
    first, second, third = _heads(FILE3, 3)
    limit = BLOCK + BLOCK // 16 + 1024
    digest = header_digest(THREE)[:16]

    def rehead(at: int, number: int, word: int) -> bytes:
        """Another word before a block, whose CRC is right for it."""
        (size,) = struct.unpack_from("<I", FILE3, at)
        stored = FILE3[at + 8 :][: size & 0x7FFFFFFF]
        packed = struct.pack("<I", word)
        return patched(
            FILE3, at, packed + struct.pack("<I", crc32c(digest + struct.pack("<I", number) + packed + stored))
        )

    one, two = LARGE[:BLOCK], LARGE[: 2 * BLOCK]
    swapped = FILE3[:first] + FILE3[second:third] + FILE3[first:second] + FILE3[third:]
    short = THREE.change(blocks=(BLOCKS[0], (False, zstd(one[:-1])), BLOCKS[2]))
    nothing = THREE.change(blocks=(*BLOCKS[:2], (True, zstd(b""))), raw_size=2 * BLOCK)
    empty_first = THREE.change(blocks=((False, zstd(b"")), *BLOCKS[1:]))
    last_early = THREE.change(blocks=(BLOCKS[0], (True, BLOCKS[1][1]), BLOCKS[2]))
    last_missing = THREE.change(blocks=(*BLOCKS[:2], (False, BLOCKS[2][1])))
    stored_one_less = (len(BLOCKS[1][1]) - 1) | 0
    cases: list[tuple[str, str, bytes, str, str | None, bytes]] = [
        ("crc-of-first", "a CRC that is wrong", patched(FILE3, first + 4, bytes(4)), "block", None, b""),
        ("crc-of-second", "a CRC that is wrong", patched(FILE3, second + 4, bytes(4)), "block", None, one),
        ("crc-of-last", "a CRC that is wrong", patched(FILE3, third + 4, bytes(4)), "block", None, two),
        ("payload-bit", "a bit of the second payload", patched(FILE3, second + 12, b"\xff"), "block", None, one),
        ("moved-with-their-crcs", "two blocks changed places as they are", swapped, "block", None, b""),
        ("length-above-limit", "E(b) + 1 stored bytes", rehead(second, 1, limit + 1), "block", None, one),
        ("length-2-31", "2^31 - 1 stored bytes", rehead(second, 1, 0x7FFFFFFF), "block", None, one),
        ("length-beyond-file", "E(b) stored bytes in a small file", rehead(second, 1, limit), "block", None, one),
        ("length-one-less", "a block that ends early", rehead(second, 1, stored_one_less), "block", None, one),
        ("last-flag-early", "the second block of three is the last", last_early.pack(), "block", "footer", one),
        ("last-flag-missing", "no block is the last", last_missing.pack(), "block", "size", two),
        ("short-in-the-middle", "the second block has a byte less", short.pack(), "size", None, one),
        ("empty-at-first", "the first of three blocks is empty", empty_first.pack(), "size", None, b""),
        ("empty-at-last", "the last of three blocks is empty", nothing.pack(), "footer", "size", two),
    ]
    empty = parts(ZSTD, [zstd(b"")], 0)
    return [
        *(
            fails(f"block-{name}", about, ZSTD, file, layer, in_order=in_order, released=released)
            for name, about, file, layer, in_order, released in cases
        ),
        reads("block-empty-alone", "an empty stream is one empty block", ZSTD, empty.pack, b""),
        reads("block-three", "three blocks, none of the faults", ZSTD, THREE.pack, LARGE),
    ]


# -- index and footer ------------------------------------------------------------------------------------------------


def _index() -> list[Vector]:
    a, b, c = struct.unpack_from("<3Q", FILE3, _INDEX3)
    cases = [
        ("first-one-more", "the first end is one more", (a + 1, b, c)),
        ("second-one-less", "the second end is one less", (a, b - 1, c)),
        ("swapped", "two ends changed places", (b, a, c)),
        ("equal", "two ends are the same", (a, a, c)),
        ("zero", "all ends are 0", (0, 0, 0)),
        ("last-one-less", "the last end is before the index", (a, b, c - 1)),
        ("last-one-more", "the last end is inside the index", (a, b, c + 1)),
        ("before-the-blocks", "the first end is inside the header", (40, b, c)),
        ("huge", "an end of 2^64 - 1", (a, 2**64 - 1, c)),
        ("too-far", "the second end is E(b) + 9 bytes after the first", (a, a + BLOCK + BLOCK // 16 + 1024 + 9, c)),
    ]
    return [
        fails(f"index-{name}", about, ZSTD, THREE.change(ends=ends).pack(), "index", released=LARGE[: 2 * BLOCK])
        for name, about, ends in cases
    ]


def _footer() -> list[Vector]:
    size = len(THREE.container())
    cases = [
        ("raw-size-for-four-blocks", "raw_size needs four blocks", THREE.change(raw_size=3 * BLOCK + 1)),
        ("raw-size-for-two-blocks", "raw_size needs two blocks", THREE.change(raw_size=2 * BLOCK)),
        ("raw-size-0", "raw_size is 0, with three blocks", THREE.change(raw_size=0)),
        ("raw-size-above-limit", "raw_size is 2^48 + 1", THREE.change(raw_size=2**48 + 1)),
        ("raw-size-2-64", "raw_size is 2^64 - 1", THREE.change(raw_size=2**64 - 1)),
        ("container-size-one-less", "container_size is one less", THREE.change(container_size=size - 1)),
        ("container-size-one-more", "container_size is one more", THREE.change(container_size=size + 1)),
        ("container-size-0", "container_size is 0", THREE.change(container_size=0)),
        ("count-0", "no block", THREE.change(count=0)),
        ("count-2", "a block less than there are", THREE.change(count=2)),
        ("count-4", "a block more than there are", THREE.change(count=4)),
        ("count-2-32", "2^32 - 1 blocks", THREE.change(count=2**32 - 1, raw_size=2**48)),
    ]
    two = LARGE[: 2 * BLOCK]
    sizes = [("one-less", -1), ("one-more", 1)]
    return [
        *(fails(f"footer-{name}", about, ZSTD, made.pack(), "footer", released=two) for name, about, made in cases),
        fails("footer-crc", "a CRC that is wrong", ZSTD, patched(FILE3, -12, bytes(4)), "footer", released=two),
        fails("footer-magic", "another last byte", ZSTD, patched(FILE3, -1, b"\xd4"), "footer", released=two),
        *(
            fails(
                f"footer-raw-size-{name}",
                f"raw_size is {name.replace('-', ' ')}",
                ZSTD,
                THREE.change(raw_size=len(LARGE) + off).pack(),
                "size",
                released=two,
            )
            for name, off in sizes
        ),
    ]


# -- truncated and continued -----------------------------------------------------------------------------------------


def _ends() -> list[Vector]:
    first, second, third = _heads(FILE3, 3)
    two = LARGE[: 2 * BLOCK]
    cut = [
        ("last-byte", len(FILE3) - 1, "footer", two),
        ("before-footer", len(FILE3) - 32, "footer", two),
        ("in-index", _INDEX3 + 9, "index", two),
        ("before-index", _INDEX3, "index", two),
        ("in-last-block", third + 9, "block", two),
        ("before-last-block", third, "block", two),
        ("in-block-head", second + 5, "block", LARGE[:BLOCK]),
        ("before-second-block", second, "block", LARGE[:BLOCK]),
        ("in-first-block", first + 9, "block", b""),
        ("before-first-block", first, "block", b""),
    ]
    more = [
        ("a-zero", "a byte 00 follows", b"\0"),
        ("a-newline", "a byte 0A follows, as an editor leaves it", b"\n"),
        ("zeros", "512 zeros follow", bytes(512)),
        ("its-own-footer", "the footer follows once more", FILE3[-32:]),
        ("itself", "the file follows once more", FILE3),
        ("its-container", "the container follows once more", THREE.container()),
    ]
    return [
        *(
            fails(
                f"cut-{name}",
                f"{size} of {len(FILE3)} bytes",
                ZSTD,
                FILE3[:size],
                "footer",
                in_order=layer,
                released=out,
            )
            for name, size, layer, out in cut
        ),
        *(
            fails(f"trailing-{name}", about, ZSTD, FILE3 + tail, "footer", in_order="trailing", released=two)
            for name, about, tail in more
        ),
    ]
