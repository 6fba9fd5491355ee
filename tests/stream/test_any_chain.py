"""Any bytes, any legal chain, any cutting: both readers and the second decoder give back what went in."""

import io
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamxf
from streamxf import LZ4, Checksum, Encrypt, ZStandard
from tests import samples
from tests.reference_decoder import read_plain
from tests.reference_keys import Reader, aes_key


def by_reference(file: bytes) -> bytes:
    """What the reference decoder makes of a file."""
    return read_plain(file, Reader([aes_key(samples.KEY.reveal())] if samples.keys_of(file) else []))


def write(target, chain, data, sizes, block_size=samples.BLOCK):
    with streamxf.open(target, "wb", chain=chain, block_size=block_size) as file:
        for piece in samples.cut(data, sizes):
            assert file.write(piece) == len(piece)


@given(
    data=samples.blobs(),
    chain=samples.chains(),
    sizes=samples.cuts(),
    block_log2=st.sampled_from([16, 16, 16, 17, 20, 24]),
)
def test_any_cutting_of_writes(data, chain, sizes, block_log2):
    target = io.BytesIO()
    write(target, chain, data, sizes, 1 << block_log2)
    file = target.getvalue()
    assert samples.read_seekable(file) == data
    assert samples.read_pipe(file) == data
    assert by_reference(file) == data


@given(data=samples.blobs(), chain=samples.chains(), sizes=samples.cuts(), step=st.integers(1, 2 * samples.BLOCK))
def test_any_cutting_of_reads(data, chain, sizes, step):
    file = samples.encode(data, chain)
    for source in (io.BytesIO(file), samples.OneWay(file, max(step, len(file) // 500))):
        with streamxf.open(source, "rb", keys=samples.keys_for(chain)) as reader:
            got = b"".join(reader.read(size) for size in sizes)
            # RawIOBase.read may give less than was asked for, which only a pipe does here
            assert data.startswith(got)
            assert got + (reader.read() or b"") == data
            assert reader.read(1) == b""


@given(
    data=samples.blobs(),
    chain=samples.chains(),
    places=st.lists(st.tuples(st.integers(0, 4 * samples.BLOCK), st.integers(0, 2 * samples.BLOCK))),
)
def test_any_seeks(data, chain, places):
    plain = io.BytesIO(data)
    with streamxf.open(io.BytesIO(samples.encode(data, chain)), "rb", keys=samples.keys_for(chain)) as reader:
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
    "full": samples.FULL,
    "checked ciphertext": (LZ4(), Encrypt(samples.KEY), Checksum()),
}


@pytest.mark.parametrize("size", samples.EDGES)
@pytest.mark.parametrize("name", CHAINS)
def test_block_edges(name, size):
    data = samples.data_of(size, seed=size % 5)
    file = samples.encode(data, CHAINS[name])
    assert samples.read_seekable(file) == data
    assert samples.read_pipe(file) == data
    assert by_reference(file) == data


@settings(settings.get_profile("disk"))
@given(data=samples.blobs(samples.BLOCK + 1), chain=samples.chains())
def test_paths(tmp_path: Path, data, chain):
    path = tmp_path / "file.sxf"
    write(path, chain, data, [1000])
    assert by_reference(path.read_bytes()) == data
    with streamxf.open(path, keys=samples.keys_for(chain)) as reader:
        assert reader.read() == data
    with streamxf.open(str(path), keys=[samples.keys_for(chain)] if samples.keys_for(chain) else None) as reader:
        assert reader.read() == data
    assert list(tmp_path.iterdir()) == [path]


@given(data=samples.blobs(2 * samples.BLOCK + 1), chain=samples.chains(), sizes=samples.cuts())
def test_real_pipes_both_ways(data, chain, sizes):
    read_end, write_end = os.pipe()

    def produce() -> None:
        with open(write_end, "wb") as raw:
            write(raw, chain, data, sizes)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        with open(read_end, "rb") as raw, streamxf.open(raw, keys=samples.keys_for(chain)) as reader:
            assert not reader.seekable()
            assert reader.read() == data
    finally:
        thread.join()


@given(data=samples.blobs(samples.BLOCK), chain=samples.chains(), before=st.binary(max_size=40))
def test_a_file_object_is_used_from_where_it_stands(data, chain, before):
    target = io.BytesIO()
    target.write(before)
    write(target, chain, data, [10])
    assert not target.closed
    target.seek(len(before))
    with streamxf.open(target, keys=samples.keys_for(chain)) as reader:
        assert reader.read() == data
    assert not target.closed


@given(data=samples.blobs(samples.BLOCK), chain=samples.chains())
def test_encode_and_decode_of_bytes(data, chain):
    assert streamxf.decode(streamxf.encode(data, chain), keys=samples.keys_for(chain)) == data


def test_memory_of_a_write_may_change_at_once():
    original = samples.data_of(40 * samples.BLOCK)
    for chain in CHAINS.values():
        target = io.BytesIO()
        memory = bytearray(original)
        with streamxf.open(target, "wb", chain=chain, block_size=samples.BLOCK) as file:
            file.write(memory)
            memory[:] = bytes(len(memory))
            small = bytearray(b"tail")
            file.write(small)
            small[:] = b"gone"
        assert samples.read_seekable(target.getvalue()) == original + b"tail"
