"""The tag and the CRC over the same bytes of an encrypted block: which of them a reader compares, what it reports."""

from pathlib import Path

import pytest

import streamxf
from streamxf import Encrypt
from streamxf.errors import AuthenticationError, BlockError
from tests.altered import flipped
from tests.forge import take_apart
from tests.reference_codecs import Refused
from tests.reference_decoder import read_plain
from tests.reference_keys import Reader, aes_key
from tests.samples import BLOCK, KEY, READERS, data_of, encode, read_pipe, read_seekable

DATA = data_of(3 * BLOCK + 100)
PARTS = take_apart(encode(DATA, [Encrypt(KEY)]))
HOLDER = Reader([aes_key(KEY.reveal())])
BOTH = pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)


def refuse(read, file: bytes, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        read(file)
    with pytest.raises(Refused):
        read_plain(file, HOLDER)


def with_byte_of_block(index: int, at: int) -> bytes:
    """The file with one byte of a block's head or payload altered, and nothing mended."""
    file = PARTS.pack()
    return flipped(file, file.index(PARTS.blocks[index][1]) - 8 + at)


def test_an_authentic_tag_stands_for_the_crc_of_a_large_block_but_not_for_verify(tmp_path: Path) -> None:
    file = with_byte_of_block(1, 4)
    assert read_seekable(file) == DATA
    with pytest.raises(BlockError):
        read_pipe(file)
    path = tmp_path / "file"
    path.write_bytes(file)
    assert not streamxf.verify(path, keys=KEY).ok


@BOTH
def test_the_crc_of_a_small_block_is_compared_as_well(read) -> None:
    refuse(read, with_byte_of_block(3, 4), BlockError)


@BOTH
@pytest.mark.parametrize("at", [0, 3, 8, 8 + BLOCK + 15], ids=["size", "last", "payload", "tag"])
def test_where_the_tag_is_wrong_the_crc_tells_damage(read, at: int) -> None:
    refuse(read, with_byte_of_block(1, at), BlockError)


@BOTH
def test_where_the_tag_is_wrong_under_a_right_crc_it_is_no_damage(read) -> None:
    first, (last, payload), *rest = PARTS.blocks
    altered = (last, payload[:-1] + bytes([payload[-1] ^ 1]))
    refuse(read, PARTS.change(blocks=(first, altered, *rest)).pack(), AuthenticationError)
