"""What goes in comes out: single blocks, blocks at the edges of their size, and whole containers."""

from __future__ import annotations

import io

from hypothesis import strategies as st

import streamxf
from streamxf.codec import Codec
from streamxf.testing.case import BLOCK_SIZE, Case, Stream, difference, require
from streamxf.testing.data import EDGE_SIZES, MEBIBYTE, blocks, contents


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
