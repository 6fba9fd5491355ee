"""Stored blocks that were cut or continued.

A codec whose output has the length of its input cannot see that its input was cut: its honest answer is data of
another length, and the container, which knows the length, refuses that. So a decoder may raise, or return data of any
length but the right one. What it may never do is return as many bytes as the block had: then nothing else notices,
whether the bytes are the original ones or wrong ones.
"""

from __future__ import annotations

from streamxf.testing.case import Case
from streamxf.testing.data import samples
from streamxf.testing.failure import require
from streamxf.testing.stream import Stream

MAX_CUTS = 64
TAILS = (b"\0", b"\xff", b"\n", b"\0\0\0\0", bytes(64), b"\x01\x02\x03\x04\x05\x06\x07\x08")


def truncation(case: Case) -> None:
    """A stored block that was cut is refused, or decodes to another length; never to the right length."""
    stream = Stream(case.codec)
    for block in samples():
        stored = bytes(stream.encode(block))
        step = max(1, len(stored) // MAX_CUTS)
        for size in sorted({*range(0, len(stored), step), *range(max(0, len(stored) - 16), len(stored))}):
            _refused(stream, block, stored[:size], f"cut from {len(stored)} to {size} bytes")


def trailing_bytes(case: Case) -> None:
    """A stored block with bytes after its end is refused, or decodes to another length; they are never ignored."""
    stream = Stream(case.codec)
    for block in samples():
        stored = bytes(stream.encode(block))
        for tail in (*TAILS, stored):
            if tail:
                _refused(stream, block, stored + tail, f"of {len(stored)} bytes, followed by {tail[:8]!r}")


def _refused(stream: Stream, block: bytes, stored: bytes, what: str) -> None:
    found = _try(stream, stored, len(block))
    if found is not None and len(found) == len(block):
        verdict = (
            "the original data, as if nothing had happened" if found == block else "wrong data of the right length"
        )
        require(False, f"a block {what}, gives {verdict} ({len(block)} bytes)")


def _try(stream: Stream, stored: bytes, limit: int) -> bytes | None:
    try:
        return bytes(stream.decode(stored, limit=limit))
    except Exception:  # the contract allows any exception; a chain turns it into CodecError
        return None
