"""Stored blocks of a few KiB that ask for megabytes and gigabytes, in chains without a key, where only limits stand."""

import resource
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import lz4.block
import pytest
import torch
import zstandard
from torch.distributed.checkpoint._extension import ZStandard as TorchZStandard

from streamxf import LZ4, Checksum, FloatZip, ZStandard
from streamxf.budget import FREE
from streamxf.errors import AuthenticationError
from tests.dcp.helpers import full_chain, rewrite_pickle
from tests.forge import take_container_apart

from .rows import Row
from .targets import BLOCK, Checkpoint, Container, PlainFile

ROW = "decompression bombs"
MEBIBYTES = 64  # the largest block has 16 MiB, and stands in memory as its codecs make it, and where it belongs
GIBIBYTE = 2**30

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
RUN = 128 * 1024


@pytest.fixture(autouse=True)
def _capped() -> Iterator[None]:
    """Address space for 1 GiB more than there is: a bomb that goes off is a MemoryError, and not the machine's end."""
    with capped(GIBIBYTE):
        yield


@contextmanager
def capped(more: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    status = Path("/proc/self/statm")
    if status.exists():
        now = int(status.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def runs(size: int, declared: int | None, window: int = 0x58) -> bytes:
    """A zstd frame of `size` bytes in runs of 128 KiB, of four bytes each; `window` is RFC 8878's descriptor, 2 MiB."""
    count = size // RUN
    heads = [(number == count - 1) | 1 << 1 | RUN << 3 for number in range(count)]
    head = bytes([0x80, window]) + struct.pack("<I", declared) if declared is not None else bytes([0, window])
    return ZSTD_MAGIC + head + b"".join(struct.pack("<I", word)[:3] + b"A" for word in heads)


def nested(layers: int) -> bytes:
    """1 GiB of zeros, compressed again and again."""
    compressor = zstandard.ZstdCompressor(level=3, write_content_size=True)
    data = runs(GIBIBYTE, GIBIBYTE)
    for _ in range(layers - 1):
        data = compressor.compress(data)
    return data


def planes(raw_size: int, *rows: tuple[int, int, int, bytes]) -> bytes:
    """A floatzip payload of elements of 8 bytes, from (coding, log2 of the lane, stored size, data) of its planes."""
    table = b"".join(struct.pack("<BI", coding | lane << 2, size) for coding, lane, size, _ in rows)
    head = struct.pack("<BI", 0x43, raw_size) + table
    return head + bytes(-len(head) % 8) + b"".join(data for *_, data in rows)


def packed(count: int, frame: bytes) -> bytes:
    return struct.pack("<B3xI", 0, count) + frame


LANE = runs(GIBIBYTE // 8, GIBIBYTE // 8)
LZ4_BOMB = lz4.block.compress(bytes(2**28), store_size=False)
BOMBS: dict[str, tuple[list[Any], bytes]] = {
    "zstd declares 1 GiB": ([ZStandard()], runs(GIBIBYTE, GIBIBYTE)),
    "zstd declares little": ([ZStandard()], runs(GIBIBYTE, BLOCK)),
    "zstd declares nothing": ([ZStandard()], runs(GIBIBYTE, None)),
    "zstd declares an empty frame": ([ZStandard()], runs(GIBIBYTE, 0)),
    "zstd asks for a window of 3.75 TiB": ([ZStandard()], runs(RUN, RUN, 0xFF)),
    "zstd asks for a window of 1 GiB": ([ZStandard()], runs(RUN, RUN, 0xA0)),
    "zstd in zstd, eight times": ([ZStandard()] * 8, nested(8)),
    "zstd in lz4": ([ZStandard(), LZ4()], lz4.block.compress(runs(GIBIBYTE, GIBIBYTE), store_size=False)),
    "lz4 of more than any block": ([LZ4()], lz4.block.compress(bytes(2**24 + 1), store_size=False)),
    "lz4 of literals that are not there": ([LZ4()], b"\xf0" + b"\xff" * 60_000),
    "lz4 of a match that goes on": ([LZ4()], b"\x1fA\x01\x00" + b"\xff" * 60_000),
    "lz4 in lz4": ([LZ4(), LZ4()], lz4.block.compress(LZ4_BOMB, store_size=False)),
    "floatzip of 4 GiB": ([FloatZip()], planes(2**32 - 1, (0, 3, 2**32 - 8, b""))),
    "floatzip with zstd planes": ([FloatZip()], planes(GIBIBYTE, *[(1, 0, len(LANE), LANE)] * 8)),
    "floatzip with zstd planes that lie": ([FloatZip()], planes(BLOCK, *[(1, 0, len(LANE), LANE)] * 8)),
    "floatzip with 2^32 exceptions": (
        [FloatZip()],
        planes(BLOCK, *[(2, 0, 20, packed(2**32 - 1, b"frame of 12."))] * 8),
    ),
    "floatzip with packed planes that lie": (
        [FloatZip()],
        planes(BLOCK, *[(2, 0, len(LANE) + 8, packed(0, LANE))] * 8),
    ),
    "floatzip with 2^32 columns": (
        [FloatZip()],
        planes(BLOCK, *[(3, 0, 12 + len(LANE), struct.pack("<B3xII", 6, 2**32 - 1, len(LANE)) + LANE)] * 8),
    ),
}


def put(container: Container, bomb: bytes, raw_size: int) -> bytes:
    parts = take_container_apart(container.intact)
    return parts.change(blocks=((True, bomb),), raw_size=raw_size).container()


@pytest.mark.parametrize("name", BOMBS)
def test_in_a_block(row: Row, tmp_path: Path, name: str) -> None:
    chain, bomb = BOMBS[name]
    state = {"w": torch.zeros(100, 100), "obj": "text"}
    targets = [
        PlainFile(b"text", chain, pipe=False).container(),
        PlainFile(b"text", chain, pipe=True).container(),
        *Checkpoint(tmp_path / "attached", state, writer="attached", keyed=False, chain=chain).containers(),
    ]
    for container in targets:
        for log2 in (16, 20, 24):
            for raw_size in (1, 1 << log2):
                parts = take_container_apart(put(container, bomb, raw_size))
                if len(bomb) > (1 << log2) * 17 // 16:
                    continue  # the block's own limit would stop it
                made = parts.change(block_log2=log2).container()
                row.refuse((container.name, log2, raw_size), container.load, made)


@pytest.mark.parametrize("name", BOMBS)
def test_in_place_of_a_ciphertext(row: Row, name: str) -> None:
    """With a key nothing is decompressed that the tag does not vouch for."""
    for pipe in (False, True):
        container = PlainFile(b"text", full_chain(), pipe=pipe).container()
        parts = take_container_apart(container.intact)
        made = parts.change(blocks=((True, BOMBS[name][1][:60_000].ljust(16)),)).container()
        row.refuse(name, container.load, made, kind=AuthenticationError)


@pytest.mark.parametrize("name", ["w", "obj"])
def test_in_the_stream_of_torchs_own_zstandard(row: Row, tmp_path: Path, name: str) -> None:
    """64 KiB that torch's own reader makes 2 GiB of."""
    if name == "obj":  # nothing says how large an object is, so the reader takes 256 MiB of any
        row.most = FREE / 2**20 + MEBIBYTES
    state = {"w": torch.zeros(10, 10), "obj": "text"}
    target = Checkpoint(tmp_path / "stock", state, writer="stock", keyed=False, chain=[TorchZStandard()])
    bomb = runs(2 * GIBIBYTE, None)

    def change(metadata: Any) -> None:
        metadata.storage_data = {
            index: replace(info, offset=0, length=len(bomb))
            if index.fqn == name
            else replace(info, offset=len(bomb) + info.offset)
            for index, info in metadata.storage_data.items()
        }

    rewrite_pickle(target.folder, change)
    target.data_file.write_bytes(bomb + target.data)
    assert "makes more than" in str(row.refuse(name, target.load_metadata))


def test_the_bombs_are_real() -> None:
    decompressor = zstandard.ZstdDecompressor()
    small = runs(4 * RUN, 4 * RUN)
    assert decompressor.decompress(small) == b"A" * (4 * RUN)
    reader = decompressor.stream_reader(runs(2**24, None))
    assert sum(len(part) for part in iter(lambda: reader.read(2**20), b"")) == 2**24
    data = PlainFile(bytes(range(256)) * 4, [Checksum()], pipe=False)
    assert data.load(data.file) == data.right
