"""Plain files that are framed wrongly; all CRCs are right, but where one of them is the fault."""

import struct
from typing import Any

from tests.forge import Places, crc_of, prefix_of, seal_of, with_crc
from tests.sealing import ENCRYPT, Vouching, container, encrypted, keyed, plain, plain_digest, wrapped, zstd
from tests.vectors.recipes.data import BLOCK, lines, payload

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


def patched(file: bytes, at: int, new: bytes) -> bytes:
    """`file` with other bytes `at` a place, counted from the end if it is negative; no CRC is made again."""
    at %= len(file)
    return file[:at] + new + file[at + len(new) :]


def flip(file: bytes, at: int) -> bytes:
    at %= len(file)
    return patched(file, at, bytes([file[at] ^ 1]))


def formatted(*format_bytes: int) -> bytes:
    return PLAIN.change(prefix=prefix_of(b"", bytes(format_bytes))).pack()


def vouched(*format_bytes: int, after: int = 0) -> bytes:
    """An encrypted file with these format bytes; `after` is another for the informative flags, put there later."""
    made = encrypted(container([ENCRYPT], [SMALL], len(SMALL)))
    made = made.change(prefix=prefix_of(wrapped(), bytes(format_bytes)))
    made = made.change(tail=seal_of(Vouching().vouchers(plain_digest(made))))
    changed = bytes([*format_bytes[:3], after]) if after else bytes(format_bytes)
    return made.change(prefix=prefix_of(wrapped(), changed)).pack()


def other_magic() -> bytes:
    made = PLAIN.container()
    return PLAIN.prefix + with_crc(b"\xd3SXG" + made[4:33]) + made[37:]


def blocks() -> dict[str, Any]:
    blocks = THREE.blocks
    stored = THREE.container()

    def rehead(number: int, word: int) -> bytes:
        """Another word before a block, whose CRC is right for it."""
        head, end = AT3.blocks[number]
        packed = struct.pack("<I", word)
        bound = THREE.digest[:16] + struct.pack("<I", number) + packed
        return THREE.prefix + patched(stored, head, packed + crc_of(bound + stored[head + 8 : end]))

    (first, _), (second, _), (third, _) = AT3.blocks
    return locals()


def flip_block(made: object) -> bytes:
    file = made.pack()  # type: ignore[attr-defined]
    return flip(file, START + Places.of(made.container()).blocks[0][0] + 4)  # type: ignore[attr-defined]


def table() -> dict[str, Any]:
    a, b, c = (len(payload) for _, payload in THREE.blocks)
    return locals()


def footer() -> dict[str, Any]:
    lengths = tuple(len(payload) for _, payload in THREE.blocks)
    return locals()


def ends() -> dict[str, Any]:
    (first, _), (second, _), (third, _) = ((START + head, end) for head, end in AT3.blocks)
    return locals()
