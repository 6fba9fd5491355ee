"""Properties of a codec: what goes in comes out, whether in single blocks, blocks at the edges of their size, or whole
containers; a call depends on its arguments alone, and changes nothing; a codec is a value, which its descriptor makes.
"""

from __future__ import annotations

import dataclasses
import io
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

from hypothesis import strategies as st

import streamxf
from streamxf.chain import Chain
from streamxf.codec import Codec, Role
from streamxf.descriptor import Descriptor, check_name
from streamxf.errors import KeyMissingError
from streamxf.format.limits import MAX_CHAIN
from streamxf.keys.key import Secret
from streamxf.registry import BUILTINS
from streamxf.testing.case import (
    BLOCK_SIZE,
    EDGE_SIZES,
    MEBIBYTE,
    Case,
    Stream,
    blocks,
    contents,
    difference,
    noise,
    require,
    samples,
    weights,
)


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
    check_name(cls.name)
    require(
        cls.name in BUILTINS or not cls.name.startswith("streamxf."),
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
            secrets = [key.reveal() for key in case.keys if isinstance(key, Secret)]
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
    require(len(described.bound) <= MAX_CHAIN, f"{len(described.bound)} characters do not fit into a header")
    rebuilt = case.rebuild(codec.get_descriptor())
    require(type(rebuilt) is type(codec), f"{described} makes a {type(rebuilt).__name__}")
    _check_reads(rebuilt, codec, f"the codec made from {described}")
    if case.keyed:  # its key is in the fragment, and has no other place here
        return
    require(rebuilt == codec, f"{described} makes {rebuilt!r}, not {codec!r}")
    bare = case.rebuild(described.bound)
    _check_reads(bare, codec, f"a reader's codec, made from {described.bound} alone,")
    text = str(Chain([codec]))
    parsed = Chain.parse(text, keys=case.keys, codecs=case.registry)
    require(parsed.codecs == (codec,), f"the chain text {text!r} makes {parsed.codecs!r}, not {codec!r}")


def _check_reads(reader: Codec, writer: Codec, what: str) -> None:
    stream = Stream(writer).read_with(reader)
    for block in samples():
        found = bytes(stream.decode(bytes(stream.encode(block))))
        require(found == block, f"{what} does not decode a block of {len(block)} bytes")
