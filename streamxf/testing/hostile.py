"""What a codec may give at most, what hostile bytes may cost, and stored blocks that were truncated or appended to.

A codec whose output has the length of its input cannot see that its input was cut: its honest answer is data of
another length, and the container, which knows the length, refuses that. So a decoder may raise, or return data of any
length but the right one. What it may never do is return as many bytes as the block had: then nothing else notices,
whether the bytes are the original ones or wrong ones.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product

from hypothesis import strategies as st

from streamxf.engine import in_thread
from streamxf.testing.case import EDGE_SIZES, MEBIBYTE, SMALL_SIZES, Case, Stream, blocks, contents, require, samples

# Far above what any codec needs beside a few buffers of a block's size, far below what a forged size asks for.
SPARE_MEMORY = 16 << 20
FORGED_PLACES = 32
MAX_CUTS = 64
TAILS = (b"\0", b"\xff", b"\n", b"\0\0\0\0", bytes(64), b"\x01\x02\x03\x04\x05\x06\x07\x08")


def encoded_size(case: Case) -> None:
    """encode never returns more than info.limit bytes, incompressible blocks included."""
    stream = Stream(case.codec)

    def check(block: bytes) -> None:
        size = len(stream.encode(block))
        require(size <= stream.limit, f"a block of {len(block)} bytes became {size}; the limit is {stream.limit}")

    case.for_all(check, blocks())
    for size in EDGE_SIZES[:2]:
        for block in contents(size).values():
            check(block)
    stream = Stream(case.codec, block_size=MEBIBYTE)
    check(contents(MEBIBYTE)["random"])


def decoded_size(case: Case) -> None:
    """decode takes an info.limit of exactly the block's size, and raises where the limit is one byte less."""
    stream = Stream(case.codec)
    for size in (*SMALL_SIZES, *EDGE_SIZES):
        for kind, block in contents(size).items():
            stored = bytes(stream.encode(block))
            found = bytes(stream.decode(stored, limit=size))
            require(found == block, f"{kind} block of {size} bytes does not come back with limit={size}")
            more = _try(stream, stored, size - 1) if size else None
            require(
                more is None,
                f"decode returned {len(more or b'')} bytes of a block of {size}, and the limit was {size - 1}",
            )


def hostile_bytes(case: Case) -> None:
    """For any bytes, decode raises or returns at most info.limit bytes, takes bounded memory, and ends."""
    stream = Stream(case.codec)
    stored = [bytes(stream.encode(block)) for block in contents(200).values()]
    altered = st.builds(_overwrite, st.sampled_from(stored), st.integers(0, 300), st.binary(min_size=1, max_size=8))
    with _measuring():
        case.for_all(lambda data: _survive(case, stream, data), st.one_of(blocks(), altered))


def hostile_sizes(case: Case) -> None:
    """A stored block in which a size was replaced by a giant one is refused before memory is taken for it."""
    stream = Stream(case.codec)
    with _measuring():
        for block in contents(200).values():
            stored = bytes(stream.encode(block))
            stream.decode(stored)  # what a codec allocates once and keeps is not the size's doing
            for place, width in product(range(min(len(stored), FORGED_PLACES)), (1, 2, 4, 8)):
                for size in (b"\xff" * width, b"\xff" * (width - 1) + b"\x7f", b"\x7f" + b"\xff" * (width - 1)):
                    _survive(case, stream, _overwrite(stored, place, size))


def _overwrite(data: bytes, place: int, what: bytes) -> bytes:
    return data[:place] + what + data[place + len(what) :]


def _survive(case: Case, stream: Stream, data: bytes) -> None:
    def decode() -> None:
        try:
            size = len(stream.decode(data))
        except MemoryError:
            require(False, f"decode tried to take more memory than there is, for {data[:32]!r}")
        except Exception:  # refusing is what it should do
            return
        require(size <= stream.limit, f"decode made {size} bytes of {data[:32]!r}; the limit is {stream.limit}")

    allowed = SPARE_MEMORY + 8 * stream.limit + len(data)
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    _in_time(decode, case.patience, data)
    taken = tracemalloc.get_traced_memory()[1] - before
    require(
        taken <= allowed, f"decode took {taken} bytes of memory for {data[:32]!r}; a limit of {stream.limit} was set"
    )


def _in_time(work: Callable[[], None], seconds: float, data: bytes) -> None:
    result = in_thread(work, "streamxf hostile decode")  # a daemon: nothing can stop a decoder that does not end
    try:
        result.result(seconds)
    except TimeoutError:
        require(result.done(), f"decode did not end within {seconds:g} seconds, for {data[:32]!r}")
        raise


@contextmanager
def _measuring() -> Iterator[None]:
    was_on = tracemalloc.is_tracing()
    if not was_on:
        tracemalloc.start()
    try:
        yield
    finally:
        if not was_on:
            tracemalloc.stop()


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
    verdict = "the original data, as if nothing had happened" if found == block else "wrong data of the right length"
    right = found is not None and len(found) == len(block)
    require(not right, f"a block {what}, gives {verdict} ({len(block)} bytes)")


def _try(stream: Stream, stored: bytes, limit: int) -> bytes | None:
    try:
        return bytes(stream.decode(stored, limit=limit))
    except Exception:  # the contract allows any exception; a chain turns it into CodecError
        return None
