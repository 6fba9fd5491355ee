"""What a codec may give at most, and what hostile bytes may cost."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hypothesis import strategies as st

from streamxf.testing.case import Case
from streamxf.testing.data import EDGE_SIZES, SMALL_SIZES, blocks, contents
from streamxf.testing.failure import require
from streamxf.testing.roundtrip import MEBIBYTE
from streamxf.testing.stream import Stream

# Far above what any codec needs beside a few buffers of a block's size, far below what a forged size asks for.
SPARE_MEMORY = 16 << 20
FORGED_PLACES = 32


def encoded_size(case: Case) -> None:
    """encode never returns more than info.limit bytes, incompressible blocks included."""
    stream = Stream(case.codec)

    def check(block: bytes, stream: Stream = stream) -> None:
        size = len(stream.encode(block))
        require(size <= stream.limit, f"a block of {len(block)} bytes became {size}; the limit is {stream.limit}")

    case.for_all(lambda block: check(block), blocks())
    for size in EDGE_SIZES[:2]:
        for block in contents(size).values():
            check(block)
    check(contents(MEBIBYTE)["random"], Stream(case.codec, block_size=MEBIBYTE))


def decoded_size(case: Case) -> None:
    """decode takes an info.limit of exactly the block's size, and raises where the limit is one byte less."""
    stream = Stream(case.codec)
    for size in (*SMALL_SIZES, *EDGE_SIZES):
        for kind, block in contents(size).items():
            stored = bytes(stream.encode(block))
            found = bytes(stream.decode(stored, limit=size))
            require(found == block, f"{kind} block of {size} bytes does not come back with limit={size}")
            if size:
                _must_raise(stream, stored, size)


def _must_raise(stream: Stream, stored: bytes, size: int) -> None:
    try:
        found = stream.decode(stored, limit=size - 1)
    except Exception:  # any exception will do
        return
    require(False, f"decode returned {len(found)} bytes of a block of {size}, and the limit was {size - 1}")


def hostile_bytes(case: Case) -> None:
    """Whatever bytes decode is given, it raises or returns at most info.limit bytes, takes bounded memory, and ends."""
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
            for data in _forged(stored):
                _survive(case, stream, data)


def _forged(stored: bytes) -> Iterator[bytes]:
    for place in range(min(len(stored), FORGED_PLACES)):
        for width in (1, 2, 4, 8):
            for size in (b"\xff" * width, b"\xff" * (width - 1) + b"\x7f", b"\x7f" + b"\xff" * (width - 1)):
                yield _overwrite(stored, place, size)


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
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    # a daemon, because nothing can stop a decoder that does not end
    worker = threading.Thread(target=run, daemon=True, name="streamxf hostile decode")
    worker.start()
    worker.join(seconds)
    require(not worker.is_alive(), f"decode did not end within {seconds:g} seconds, for {data[:32]!r}")
    for error in failures:
        raise error


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
