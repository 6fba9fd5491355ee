"""Every bit of data and metadata of small checkpoints, and of plain files: as it is, and with all CRCs mended."""

from collections.abc import Iterator
from typing import Any

import pytest
import zstandard

from streamxf import Encrypt
from streamxf.errors import AuthenticationError, IdentityError, MetadataError, PolicyError
from tests.altered import bit_flips
from tests.dcp.helpers import error_of
from tests.forge import frame_of, split_metadata
from tests.samples import FULL, KEY

from .rows import Row
from .targets import CHAINS, KINDS, TEXT, Checkpoint, Container, PlainFile, on

ROW = "bit flip"


def flips(whole: bytes, but: set[int] = frozenset()) -> Iterator[tuple[int, bytes]]:
    """Each bit's number, and `whole` with that bit flipped."""
    return ((bit, changed) for bit, changed in enumerate(bit_flips(whole)) if bit // 8 not in but)


def mended_flips(container: Container) -> Iterator[tuple[int, bytes]]:
    for number, altered in flips(container.intact, container.at.crcs):
        yield number, container.mended(altered)


@on(*KINDS)
def test_every_bit_of_the_data(row: Row, small: Checkpoint) -> None:
    named = set()
    # odd steps, so that every place within a byte has its turn
    for case, (number, data) in enumerate(row.share(flips(small.data), 3 if small.own else 11)):
        error = row.refuse(f"bit {number}", small.with_data, data)
        start, stop = small.places[error.item]
        assert start <= number // 8 < stop
        named.add(error.item)
        if case % 33 == 0:
            whole = error_of(small.load_whole)
            assert (type(whole), str(whole)) == (type(error), str(error))
    assert named == {name for name, _ in small.right}  # each item is hit, and named
    small.restore()
    assert small.load_whole() == small.right


@on("own, keyed", "own, unkeyed")
def test_every_bit_of_the_metadata(row: Row, small: Checkpoint) -> None:
    start = len(split_metadata(small.metadata).pickled)
    for case, (number, altered) in enumerate(row.share(flips(small.metadata[start:]), 3)):
        error = row.refuse(f"bit {number}", small.with_metadata, small.metadata[:start] + altered)
        assert error.file == str(small.metadata_file)
        if case % 66 == 0:
            whole = error_of(small.load_whole)
            assert (type(whole), str(whole)) == (type(error), str(error))
    small.restore()
    assert small.load_whole() == small.right


@on("own, keyed", "own, unkeyed")
def test_no_bit_of_the_pickle_matters(row: Row, small: Checkpoint) -> None:
    """It is for torch's own readers."""
    parts = split_metadata(small.metadata)
    for number, altered in row.share(flips(parts.pickled), 10):
        data = altered + small.metadata[len(parts.pickled) :]
        assert row.refuse_or_equal(f"bit {number}", small.right, small.with_metadata, data) is None


@on("own, keyed", "attached, keyed")
def test_every_bit_of_keyed_containers_with_all_crcs_mended(row: Row, small: Checkpoint) -> None:
    reached = set()
    for container in small.containers():
        for number, altered in row.share(mended_flips(container), 5):
            error = row.refuse(f"{container.name}, bit {number}", container.load, altered)
            reached.add(type(error))
    assert {AuthenticationError, IdentityError} <= reached


def test_every_bit_of_keyed_plain_files_with_all_crcs_mended(row: Row) -> None:
    for pipe in (False, True):
        for text, chain in ((TEXT, FULL), (b"", FULL), (TEXT, [Encrypt(KEY)])):
            container = PlainFile(text, chain, pipe=pipe).container()
            for number, altered in row.share(mended_flips(container)):
                row.refuse(f"{container.name}, bit {number}", container.load, altered)


def test_every_bit_of_a_prefix_with_its_crc_mended(row: Row) -> None:
    for pipe in (False, True):
        file = PlainFile(TEXT, FULL, pipe=pipe)
        assert file.load(file.with_wrapped(file.wrapped)) == TEXT
        for number, altered in row.share(flips(file.wrapped)):
            row.refuse(f"bit {number}", file.load, file.with_wrapped(altered))


@on("own, keyed")
def test_every_bit_of_keyed_metadata_under_a_digest_that_anyone_can_make(row: Row, small: Checkpoint) -> None:
    parts = split_metadata(small.metadata)
    index = parts.packed_index
    assert small.with_metadata(parts.pack()) == small.right
    kinds = AuthenticationError, PolicyError
    for number, altered in row.share(flips(index), 7):
        for keys in (parts.keys, b""):
            data = parts.change(index=altered, keys=keys).pack()
            row.refuse(f"bit {number}", small.with_metadata, data, kind=kinds)
    for number, altered in row.share(flips(parts.keys), 3):
        row.refuse(f"bit {number} of the keys", small.with_metadata, parts.change(keys=altered).pack())


@on("own, unkeyed")
def test_every_bit_of_unkeyed_metadata_under_a_digest_that_is_right(row: Row, small: Checkpoint) -> None:
    """Nothing vouches for it then, and an attacker could rewrite the data, too; but one bit is never enough."""
    parts = split_metadata(small.metadata)

    def load(data: bytes) -> Any:
        try:
            return small.with_metadata(data)
        except RuntimeError as error:
            if not str(error).startswith("Missing key in checkpoint state_dict"):
                raise
            raise MetadataError("an item has another name, so DCP misses it") from error

    text = zstandard.ZstdDecompressor().decompress(parts.packed_index)
    for number, altered in row.share(flips(text), 3):
        row.refuse_or_equal(f"bit {number}", small.right, load, parts.change(index=frame_of(altered)).pack())
    for place, raw in enumerate(parts.raw_parts()):
        for number, altered in row.share(flips(raw), 3):
            row.refuse_or_equal(f"{place}: {number}", small.right, load, parts.with_part(place, altered).pack())


@pytest.mark.parametrize("pipe", [False, True], ids=["file", "pipe"])
@pytest.mark.parametrize("chain", CHAINS)
def test_every_bit_of_plain_files(row: Row, chain: str, pipe: bool) -> None:
    for text in (TEXT, b""):
        file = PlainFile(text, CHAINS[chain], pipe=pipe)
        assert file.load(file.file) == text
        for number, altered in row.share(flips(file.file)):
            row.refuse(f"bit {number}", file.load, altered)
