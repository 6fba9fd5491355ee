"""Any bytes, any legal chain, any cutting: both readers and the second decoder give back what went in."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamxf
from streamxf import LZ4, Checksum, Encrypt, ZStandard
from tests.reference_decoder import read_plain
from tests.reference_keys import Reader, aes_key
from tests.samples import (
    BLOCK,
    EDGES,
    FULL,
    KEY,
    OneWay,
    blobs,
    chains,
    cut,
    cuts,
    data_of,
    encode,
    keys_for,
    keys_of,
    read_pipe,
    read_seekable,
)


def by_reference(file: bytes) -> bytes:
    """What the reference decoder makes of a file."""
    return read_plain(file, Reader([aes_key(KEY.reveal())] if keys_of(file) else []))


def write(target, chain, data, sizes, block_size=BLOCK):
    with streamxf.open(target, "wb", chain=chain, block_size=block_size) as file:
        for piece in cut(data, sizes):
            assert file.write(piece) == len(piece)


@given(data=blobs(), chain=chains(), sizes=cuts(), block_log2=st.sampled_from([16, 16, 16, 17, 20, 24]))
def test_any_cutting_of_writes(data, chain, sizes, block_log2):
    target = io.BytesIO()
    write(target, chain, data, sizes, 1 << block_log2)
    file = target.getvalue()
    assert read_seekable(file) == data
    assert read_pipe(file) == data
    assert by_reference(file) == data


@given(data=blobs(), chain=chains(), sizes=cuts(), step=st.integers(1, 2 * BLOCK))
def test_any_cutting_of_reads(data, chain, sizes, step):
    file = encode(data, chain)
    for source in (io.BytesIO(file), OneWay(file, max(step, len(file) // 500))):
        with streamxf.open(source, "rb", keys=keys_for(chain)) as reader:
            got = b"".join(reader.read(size) for size in sizes)
            # RawIOBase.read may give less than was asked for, which only a pipe does here
            assert data.startswith(got)
            assert got + (reader.read() or b"") == data
            assert reader.read(1) == b""


@given(data=blobs(), chain=chains(), places=st.lists(st.tuples(st.integers(0, 4 * BLOCK), st.integers(0, 2 * BLOCK))))
def test_any_seeks(data, chain, places):
    plain = io.BytesIO(data)
    with streamxf.open(io.BytesIO(encode(data, chain)), "rb", keys=keys_for(chain)) as reader:
        for position, size in places:
            assert reader.seek(position) == plain.seek(position) == reader.tell()
            assert reader.read(size) == plain.read(size)
            assert reader.tell() == plain.tell()
        end = reader.seek(0, io.SEEK_END)
        assert end == len(data)
        back = min(7, end)
        assert reader.seek(-back, io.SEEK_CUR) == end - back
        assert reader.read() == data[end - back :]


CHAINS = {
    "none": (),
    "zstd": (ZStandard(),),
    "lz4": (LZ4(),),
    "checksum": (Checksum("sha256"),),
    "full": FULL,
    "checked ciphertext": (LZ4(), Encrypt(KEY), Checksum()),
}


@pytest.mark.parametrize("size", EDGES)
@pytest.mark.parametrize("name", CHAINS)
def test_block_edges(name, size):
    data = data_of(size, seed=size % 5)
    file = encode(data, CHAINS[name])
    assert read_seekable(file) == data
    assert read_pipe(file) == data
    assert by_reference(file) == data


@given(data=blobs(BLOCK + 1), chain=chains())
def test_paths(tmp_path: Path, data, chain):
    path = tmp_path / "file.sxf"
    write(path, chain, data, [1000])
    assert by_reference(path.read_bytes()) == data
    with streamxf.open(path, keys=keys_for(chain)) as reader:
        assert reader.read() == data
    with streamxf.open(str(path), keys=[keys_for(chain)] if keys_for(chain) else None) as reader:
        assert reader.read() == data
    assert list(tmp_path.iterdir()) == [path]


@given(data=blobs(2 * BLOCK + 1), chain=chains(), sizes=cuts())
def test_real_pipes_both_ways(data, chain, sizes):
    read_end, write_end = os.pipe()

    def produce() -> None:
        with open(write_end, "wb") as raw:
            write(raw, chain, data, sizes)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        with open(read_end, "rb") as raw, streamxf.open(raw, keys=keys_for(chain)) as reader:
            assert not reader.seekable()
            assert reader.read() == data
    finally:
        thread.join()


@given(data=blobs(BLOCK), chain=chains(), before=st.binary(max_size=40))
def test_a_file_object_is_used_from_where_it_stands(data, chain, before):
    target = io.BytesIO()
    target.write(before)
    write(target, chain, data, [10])
    assert not target.closed
    target.seek(len(before))
    with streamxf.open(target, keys=keys_for(chain)) as reader:
        assert reader.read() == data
    assert not target.closed


@given(data=blobs(BLOCK), chain=chains())
def test_encode_and_decode_of_bytes(data, chain):
    assert streamxf.decode(streamxf.encode(data, chain), keys=keys_for(chain)) == data


def test_memory_of_a_write_may_change_at_once():
    original = data_of(40 * BLOCK)
    for chain in CHAINS.values():
        target = io.BytesIO()
        memory = bytearray(original)
        with streamxf.open(target, "wb", chain=chain, block_size=BLOCK) as file:
            file.write(memory)
            memory[:] = bytes(len(memory))
            small = bytearray(b"tail")
            file.write(small)
            small[:] = b"gone"
        assert read_seekable(target.getvalue()) == original + b"tail"
