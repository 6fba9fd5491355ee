"""Properties of a codec: what goes in comes out, whether in single blocks, blocks at the edges of their size, or whole
containers; a call depends on its arguments alone, and changes nothing; a codec is a value, which its descriptor makes;
what a codec may give at most, what hostile bytes may cost, and stored blocks that were truncated or appended to.
"""

from __future__ import annotations

import dataclasses
import io
import pickle
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import product
from typing import get_args

from hypothesis import strategies as st

import streamxf
from streamxf.chain import Chain
from streamxf.codec import Codec, Role
from streamxf.descriptor import Descriptor
from streamxf.engine import in_thread
from streamxf.errors import KeyMissingError
from streamxf.testing.case import (
    BLOCK_SIZE,
    EDGE_SIZES,
    MEBIBYTE,
    SMALL_SIZES,
    Case,
    Stream,
    blocks,
    contents,
    difference,
    noise,
    samples,
    weights,
)
from streamxf.tools.check import require

# Far above what any codec needs beside a few buffers of a block's size, far below what a forged size asks for.
SPARE_MEMORY = 16 << 20
FORGED_PLACES = 32
MAX_CUTS = 64
TAILS = (b"\0", b"\xff", b"\n", b"\0\0\0\0", bytes(64), b"\x01\x02\x03\x04\x05\x06\x07\x08")


def round_trip(case: Case) -> None:
    """decode(encode(block)) is the block, for any contents and any place in its stream."""
    stream = Stream(case.codec)

    def check(block: bytes, index: int, last: bool) -> None:
        stored = bytes(stream.encode(block, index, last))
        _same(block, stream.decode(stored, index, last), f"block {index} of {len(block)} bytes")

    case.for_all(check, blocks(), st.integers(0, 2**20), st.booleans())


def block_edges(case: Case) -> None:
    """Blocks of no bytes, and of the block size -1, 0 and +1 (codecs before this one may lengthen it), come back."""
    stream = Stream(case.codec)
    for size in (0, 1, *EDGE_SIZES):
        for kind, block in contents(size).items():
            stored = bytes(stream.encode(block))
            _same(block, stream.decode(stored), f"{kind} block of {size} bytes where the block size is {BLOCK_SIZE}")


def large_block(case: Case) -> None:
    """Blocks of 1 MiB, the default block size, come back."""
    stream = Stream(case.codec, block_size=MEBIBYTE)
    for kind, block in contents(MEBIBYTE).items():
        _same(block, stream.decode(bytes(stream.encode(block))), f"{kind} block of 1 MiB")


def container(case: Case) -> None:
    """Whole containers of the codec, alone and among others, come back to a reader who has only bytes and keys."""
    for name, chain in _chains(case.codec).items():
        for size in (0, 1, *EDGE_SIZES, 2 * BLOCK_SIZE + 7):
            data, buffer = contents(size)["float-like"], io.BytesIO()
            with streamxf.open(buffer, "wb", chain=chain, block_size=BLOCK_SIZE, codecs=case.registry) as file:
                file.write(data)
            found = streamxf.decode(buffer.getvalue(), keys=case.keys, codecs=case.registry)
            _same(data, found, f"stream of {size} bytes through {name}")


def _chains(codec: Codec) -> dict[str, list[Codec]]:
    check, pack = streamxf.Checksum(), streamxf.ZStandard(level=1)
    if codec.role == "encryption":
        return {"the codec alone": [codec], "zstd+codec+checksum": [pack, codec, check]}
    return {
        "the codec alone": [codec],
        "codec+zstd+checksum": [codec, pack, check],
        "checksum+codec+codec": [check, codec, codec],
    }


def _same(block: bytes, found: memoryview | bytes, what: str) -> None:
    require(found == block, lambda: f"{what} came back as {difference(block, found)}")


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


def name_and_version(case: Case) -> None:
    """The class has a well-formed name that is its own, a version from 1 to 65535, and a known role."""
    cls = type(case.codec)
    Descriptor.parse(f"{cls.name}/1")  # raises if it is not
    require(
        cls.__module__.startswith("streamxf.codecs.") or not cls.name.startswith("streamxf."),
        f"{cls.name!r}: names that begin with 'streamxf.' are streamxf's; take your project's name",
    )
    require(
        type(cls.version) is int and 1 <= cls.version <= 65535,
        f"version {cls.version!r} is not a number from 1 to 65535",
    )
    require(cls.role in get_args(Role), f"role {cls.role!r} is not one of {', '.join(get_args(Role))}")
    require(case.registry.find(cls.name) is cls, f"the name {cls.name!r} does not find the class")


def frozen(case: Case) -> None:
    """The codec does not change: assigning to any attribute raises, and equal codecs have equal hashes."""
    for name in (*(field.name for field in dataclasses.fields(case.codec)), "a_new_attribute"):  # type: ignore[arg-type]
        before = getattr(case.codec, name, None)
        try:
            setattr(case.codec, name, before)
        except AttributeError:  # FrozenInstanceError is one
            continue
        require(False, f"the attribute {name!r} can be assigned to; declare the class with @dataclass(frozen=True)")
    hash(case.codec)


def pickling(case: Case) -> None:
    """A pickle of the codec makes an equal codec that works; a key is left out of it, and the copy says so."""
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(case.codec, protocol)
        copy = pickle.loads(data)
        require(type(copy) is type(case.codec), f"the copy is a {type(copy).__name__}")
        require(copy == case.codec and hash(copy) == hash(case.codec), f"the copy {copy!r} differs from {case.codec!r}")
        if case.keyed:
            secrets = [key.reveal() for key in case.keys if isinstance(key, streamxf.Key | streamxf.PrivateKey)]
            require(not any(secret in data for secret in secrets), "the pickle holds the key")
            try:
                Stream(copy)
            except KeyMissingError:
                continue
            require(False, "the copy from a pickle has no key, and yet it starts a stream")
        else:
            _check_reads(copy, case.codec, "the copy from a pickle")
            _check_reads(case.codec, copy, "the codec, reading what its copy wrote,")


def descriptor(case: Case) -> None:
    """The descriptor's text makes the codec again; without its fragment it makes one that reads the same data."""
    codec = case.codec
    described = codec.descriptor()
    require(Descriptor.parse(str(described)) == described, f"{str(described)!r} is read as another descriptor")
    require(
        (described.name, described.version) == (codec.name, codec.version),
        f"{described} is not {codec.name}'s own name and version",
    )
    rebuilt = case.rebuild(codec.get_descriptor())
    require(type(rebuilt) is type(codec), f"{described} makes a {type(rebuilt).__name__}")
    _check_reads(rebuilt, codec, f"the codec made from {described}")
    if case.keyed:  # its key is in the fragment, and has no other place here
        return
    require(rebuilt == codec, f"{described} makes {rebuilt!r}, not {codec!r}")
    _check_reads(case.rebuild(described.bound), codec, f"a reader's codec, made from {described.bound} alone,")
    text = str(Chain([codec]))
    parsed = Chain.parse(text, keys=case.keys, codecs=case.registry)
    require(parsed.codecs == (codec,), f"the chain text {text!r} makes {parsed.codecs!r}, not {codec!r}")


def _check_reads(reader: Codec, writer: Codec, what: str) -> None:
    stream = Stream(writer).read_with(reader)
    for block in samples():
        found = bytes(stream.decode(bytes(stream.encode(block))))
        require(found == block, f"{what} does not decode a block of {len(block)} bytes")


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


# A codec whose output has the length of its input cannot see that its input was cut: its honest answer is data of
# another length, and the container, which knows the length, refuses that. So a decoder may raise, or return data of any
# length but the right one. What it may never do is return as many bytes as the block had: then nothing else notices,
# whether the bytes are the original ones or wrong ones.
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
