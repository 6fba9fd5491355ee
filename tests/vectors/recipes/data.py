"""What the vectors hold: bytes that anybody can make again, by SHA-256 in counter mode."""

from __future__ import annotations

import hashlib

BLOCK = 1 << 16


def payload(size: int) -> bytes:
    """SHA-256 in counter mode and text, by turns of 1 KiB."""
    out = bytearray()
    number = 0
    while len(out) < size:
        noise = b"".join(hashlib.sha256(b"%d %d" % (number, part)).digest() for part in range(32))
        out += noise if number % 2 else (b"line %d of a text. " % number * 64)[:1024]
        number += 1
    return bytes(out[:size])
