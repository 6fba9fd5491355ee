"""A call depends on its arguments alone and changes nothing: not its input, nor a later call, nor another thread's."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from streamxf.testing.case import Case, Stream, difference, require
from streamxf.testing.data import blocks, contents, noise, samples, weights

FILLS = (0x00, 0xA5, 0xFF)
THREADS = 8


def input_unchanged(case: Case) -> None:
    """Neither encode nor decode writes to the block that it is given."""
    stream = Stream(case.codec)

    def check(block: bytes) -> None:
        data = block
        for step in (stream.encode, stream.decode):
            buffer = bytearray(data)
            result = bytes(step(buffer))
            where = difference(data, buffer) if buffer != data else ""
            require(not where, f"{step.__name__} changed its input: {where}")
            data = result

    case.for_all(check, blocks())


def scratch_contents(case: Case) -> None:
    """Results do not depend on what scratch memory holds: other blocks left their data there, which must stay out."""
    stream = Stream(case.codec)
    for block in samples():
        stored = [bytes(stream.encode(block, fill=fill)) for fill in FILLS]
        # an encoder that draws at random may differ between calls; one that does not has no reason to differ
        if bytes(stream.encode(block, fill=FILLS[0])) == stored[0]:
            require(len(set(stored)) == 1, f"encode gives other bytes where scratch memory does, of {len(block)} bytes")
        for data in stored:
            for fill in FILLS:
                found = bytes(stream.decode(data, fill=fill))
                where = difference(block, found) if found != block else ""
                require(not where, f"decode depends on what scratch memory holds: {where}")


def stateless(case: Case) -> None:
    """Calls do not influence each other: blocks decode in any order, and later calls leave earlier results alone."""
    stream = Stream(case.codec)
    plain = [block for size in (100, 1000) for block in contents(size).values()]
    live = [stream.encode(block, index) for index, block in enumerate(plain)]
    stored = [bytes(stream.encode(block, index)) for index, block in enumerate(plain)]
    for index, block in enumerate(plain):
        found = bytes(stream.decode(bytes(live[index]), index))
        require(found == block, f"the encoded block {index} changed while later blocks were encoded")
    order = (*reversed(range(len(plain))), *range(len(plain)))
    views = [(index, stream.decode(stored[index], index)) for index in order]
    for index, view in views:
        require(bytes(view) == plain[index], f"block {index} of {len(plain)}, decoded out of order, is not itself")


def threads(case: Case) -> None:
    """Many threads use one codec object at the same time, on the same streams and on different ones."""
    streams = [Stream(case.codec, number) for number in range(THREADS // 2)]
    together = threading.Barrier(THREADS)

    def work(number: int) -> str | None:
        stream = streams[number % len(streams)]
        together.wait(timeout=60)
        for index in range(6):
            block = (noise if index % 2 else weights)(1000 * (index + 1), seed=100 * number + index)
            found = bytes(stream.decode(bytes(stream.encode(block, index, False)), index, False))
            if found != block:
                return f"block {index} of thread {number}: {difference(block, found)}"
        return None

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            for wrong in pool.map(work, range(THREADS)):
                require(wrong is None, f"with {THREADS} threads at work, {wrong}")
    finally:
        sys.setswitchinterval(interval)
