"""A seekable file and a pipe must accept the same files: what one of them finds wrong, the other must find as well."""

import pytest

from streamxf import LZ4, Checksum, Encrypt
from streamxf.errors import AuthenticationError, CodecError, ContainerError
from tests.forge import take_apart
from tests.samples import BLOCK, KEY, READERS, data_of, encode

readers = pytest.mark.parametrize("read", READERS)


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


@readers
def test_a_checksum_after_encryption_does_not_hide_the_tag(read):
    """Each block's checksum is right, and two blocks changed places."""
    parts = take_apart(encode(data_of(3 * BLOCK), [Encrypt(KEY), Checksum()]))
    one, other, last = parts.blocks
    with pytest.raises(AuthenticationError):
        read(parts.change(blocks=(other, one, last)).pack())
