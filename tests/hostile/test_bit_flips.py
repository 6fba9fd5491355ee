"""Every bit of data and metadata of small checkpoints, and of plain files: as it is, and with all CRCs mended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from dcp.helpers import error_of
from forge import join_metadata, split_metadata
from reference_decoder import FormatError, decode_plain_file
from samples import FULL, KEY

from streamxf import Encrypt
from streamxf.errors import AuthenticationError, IdentityError, MetadataError, PolicyError

from .rows import Row, share
from .targets import CHAINS, KINDS, TEXT, Checkpoint, Container, PlainFile, on

ROW = "bit flip"
MEBIBYTES = 16


def flips(whole: bytes, but: set[int] = frozenset()) -> Iterator[tuple[int, bytes]]:
    """Each bit's number, and `whole` with that bit flipped."""
    changed = bytearray(whole)
    for position in range(len(whole)):
        for bit in range(8) if position not in but else ():
            changed[position] ^= 1 << bit
            yield 8 * position + bit, bytes(changed)
            changed[position] ^= 1 << bit


def mended_flips(container: Container) -> Iterator[tuple[int, bytes]]:
    for number, altered in flips(container.intact, container.at.crcs):
        yield number, container.mended(altered)


@on(*KINDS)
def test_every_bit_of_the_data(row: Row, small: Checkpoint) -> None:
    named = set()
    # odd steps, so that every place within a byte has its turn
    for case, (number, data) in enumerate(share(flips(small.data), 3 if small.own else 11)):
        error = row.refuse(f"bit {number}", small.with_data, data)
        named.add(error.item)
        if case % 333 == 0:
            whole = error_of(small.load_whole)
            assert (type(whole), str(whole)) == (type(error), str(error))
    assert named == {name for name, _ in small.right}  # each item is hit, and named
    small.restore()
    assert small.load_whole() == small.right


@on("own, keyed", "own, unkeyed")
def test_every_bit_of_the_metadata(row: Row, small: Checkpoint) -> None:
    for case, (number, data) in enumerate(share(flips(small.metadata), 3)):
        error = row.refuse(f"bit {number}", small.with_metadata, data)
        assert error.file == str(small.metadata_file)
        if case % 666 == 0:
            whole = error_of(small.load_whole)
            assert (type(whole), str(whole)) == (type(error), str(error))
    small.restore()
    assert small.load_whole() == small.right


@on("own, keyed", "attached, keyed")
def test_every_bit_of_keyed_containers_with_all_crcs_mended(row: Row, small: Checkpoint) -> None:
    reached = set()
    for container in small.containers():
        for number, altered in share(mended_flips(container), 5):
            error = row.refuse(f"{container.name}, bit {number}", container.load, altered)
            reached.add(type(error))
    assert {AuthenticationError, IdentityError} <= reached


def test_every_bit_of_keyed_plain_files_with_all_crcs_mended(row: Row) -> None:
    for pipe in (False, True):
        for text, chain in ((TEXT, FULL), (b"", FULL), (TEXT, [Encrypt(KEY)])):
            container = PlainFile(text, chain, pipe=pipe).container()
            for number, altered in mended_flips(container):
                row.refuse(f"{container.name}, bit {number}", container.load, altered)


def test_every_bit_of_a_prefix_with_its_crc_mended(row: Row) -> None:
    for pipe in (False, True):
        file = PlainFile(TEXT, FULL, pipe=pipe)
        assert file.load(file.with_fragment(file.fragment)) == TEXT
        for number, altered in flips(file.fragment):
            row.refuse(f"bit {number}", file.load, file.with_fragment(altered))


@on("own, keyed")
def test_every_bit_of_keyed_metadata_under_a_digest_that_anybody_can_make(row: Row, small: Checkpoint) -> None:
    pickled, manifest = split_metadata(small.metadata)
    for key in (None, manifest["key"]):
        for number, altered in share(flips(pickled), 7):
            data = join_metadata(altered, manifest | {"key": key})
            row.refuse(f"bit {number}", small.with_metadata, data, kind=(AuthenticationError, PolicyError))


@on("own, unkeyed")
def test_every_bit_of_unkeyed_metadata_under_a_digest_that_is_right(row: Row, small: Checkpoint) -> None:
    """Nobody vouches for it then, and whoever meant harm could rewrite the data, too; but one bit is never enough."""
    pickled, manifest = split_metadata(small.metadata)

    def load(data: bytes) -> Any:
        try:
            return small.with_metadata(data)
        except RuntimeError as error:
            if not str(error).startswith("Missing key in checkpoint state_dict"):
                raise
            raise MetadataError("an item has another name, so DCP misses it") from error

    for number, altered in share(flips(pickled), 3):
        row.refuse_or_equal(f"bit {number}", small.right, load, join_metadata(altered, manifest))


@pytest.mark.parametrize("pipe", [False, True], ids=["file", "pipe"])
@pytest.mark.parametrize("chain", CHAINS)
def test_every_bit_of_plain_files(row: Row, chain: str, pipe: bool) -> None:
    for text in (TEXT, b""):
        file = PlainFile(text, CHAINS[chain], pipe=pipe)
        assert file.load(file.file) == text
        for number, altered in flips(file.file):
            error = row.refuse_or_equal(f"bit {number}", text, file.load, altered)
            # who seeks in an empty file without a key never asks for its one block, which has nothing in it
            assert error is not None or (not text and not pipe and file.keys is None)


@pytest.mark.parametrize("chain", CHAINS)
def test_the_second_decoder_refuses_them_too(chain: str) -> None:
    file = PlainFile(TEXT, CHAINS[chain], pipe=False).file
    for _, altered in share(flips(file), 3):
        with pytest.raises(FormatError):
            decode_plain_file(altered, key=KEY.reveal())


@on("own, keyed")
def test_errors_name_the_item_that_was_hit(row: Row, small: Checkpoint) -> None:
    for name, (start, stop) in small.places.items():
        for position in range(start, stop, 7):
            data = bytearray(small.data)
            data[position] ^= 16
            assert row.refuse(position, small.with_data, bytes(data)).item == name
