"""A seekable file and a pipe must accept the same files: what one of them finds wrong, the other must find as well."""

from __future__ import annotations

import pytest

from streamxf import LZ4, Checksum, ZStandard
from streamxf.errors import CodecError, ContainerError
from tests.forge import prefix_of, take_apart
from tests.samples import READERS, data_of, encode

readers = pytest.mark.parametrize("read", READERS)


@readers
@pytest.mark.parametrize("chain", [[], [ZStandard()], [LZ4()], [Checksum()]], ids=["none", "zstd", "lz4", "checksum"])
def test_a_footer_cannot_declare_a_stream_empty_that_is_not(read, chain):
    file = take_apart(encode(data_of(100), chain)).change(raw_size=0).pack()
    with pytest.raises((ContainerError, CodecError)):
        read(file)


@readers
def test_the_one_block_of_an_empty_stream_is_looked_at(read):
    file = encode(b"", [Checksum()])
    parts = take_apart(file)
    assert read(file) == b""
    with pytest.raises(CodecError):
        read(parts.change(blocks=((True, b"\xff" * 4),)).pack())
    with pytest.raises(ContainerError):
        read(parts.change(blocks=((False, parts.blocks[0][1]),)).pack())


@readers
@pytest.mark.parametrize("size", [1, 16, 512])
def test_a_wrapped_key_in_front_of_what_is_not_encrypted(read, size):
    parts = take_apart(encode(data_of(100), []))
    with pytest.raises(ContainerError, match="prefix contradicts its header"):
        read(parts.change(prefix=prefix_of(bytes(size))).pack())


@readers
@pytest.mark.parametrize(
    ("payload", "data"), [(b"\x05", b""), (b"\x10a\x01\x00\x50bcdef", b"aaaaabcdef")], ids=["idle bits", "early match"]
)
def test_lz4_takes_a_block_whatever_memory_there_is_for_it(read, payload, data):
    """LZ4 itself compares its rules for the end of a block with the end of the memory, which readers choose."""
    parts = take_apart(encode(data, [LZ4()]))
    assert read(parts.change(blocks=((True, payload),)).pack()) == data


@readers
def test_what_lz4_may_use_beyond_a_block_is_not_for_data(read):
    parts = take_apart(encode(bytes(100), [LZ4()]))
    longer = take_apart(encode(bytes(101), [LZ4()])).blocks
    with pytest.raises((ContainerError, CodecError)):
        read(parts.change(blocks=longer).pack())
