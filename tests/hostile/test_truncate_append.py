"""Every truncation, and 1, 16, 1000 bytes or a block more: of files as they are, of payloads with all CRCs right."""

import random
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from streamxf.errors import AuthenticationError, ContainerError, MetadataError, PolicyError
from tests.dcp.helpers import error_of
from tests.forge import Parts, split_metadata, take_container_apart
from tests.samples import FULL

from .rows import Row
from .targets import BLOCK, CHAINS, TEXT, Checkpoint, Container, PlainFile, on

ROW = "truncate, append"

EXTRA = (1, 16, BLOCK, 1000)


def truncations(whole: bytes) -> Iterator[bytes]:
    return (whole[:size] for size in range(len(whole)))


def appends(whole: bytes) -> Iterator[bytes]:
    """Zeros, ones, noise, and what the file begins or ends with."""
    noise = random.Random(11)
    for size in EXTRA:
        for tail in (bytes(size), b"\xff" * size, noise.randbytes(size), whole[-size:], whole[:size], whole):
            yield whole + tail


def altered(whole: bytes) -> Iterator[bytes]:
    yield from truncations(whole)
    yield from appends(whole)


@on("own, keyed", "own, unkeyed")
def test_data(row: Row, small: Checkpoint) -> None:
    for number, data in enumerate(row.share(altered(small.data))):
        error = row.refuse(len(data), small.with_data, data)
        assert error.file == str(small.data_file)
        if number % 200 == 0:
            whole = error_of(small.load_whole)
            assert (type(whole), str(whole)) == (type(error), str(error))
    small.restore()
    assert small.load_whole() == small.right


@on("own, keyed", "own, unkeyed")
def test_metadata(row: Row, small: Checkpoint) -> None:
    elsewhere = []
    pickled = split_metadata(small.metadata).pickled
    for number, data in enumerate(chain([pickled], row.share(altered(small.metadata)))):
        error = row.refuse(len(data), small.with_metadata, data)
        elsewhere += [error] if error.file != str(small.metadata_file) else []
        if number % 200 == 0:
            whole = error_of(small.load_whole)
            assert (type(whole), str(whole)) == (type(error), str(error))
    # an unkeyed file that is cut exactly where the pickle ends looks like torch's own; the first item, which says that
    # it was published, gives it away
    assert {"it was removed" in str(error) for error in elsewhere} == ({True} if small.keys is None else set())
    small.restore()
    assert small.load_whole() == small.right


@on("own, keyed")
def test_keyed_metadata_under_a_digest_that_anyone_can_make(row: Row, small: Checkpoint) -> None:
    parts = split_metadata(small.metadata)
    for index in row.share(altered(parts.packed_index)):
        kinds = AuthenticationError, PolicyError if index else MetadataError
        row.refuse(len(index), small.with_metadata, parts.change(index=index).pack(), kind=kinds)
        row.refuse(len(index), small.with_metadata, parts.change(index=index, keys=b"").pack(), kind=kinds)
    for keys in row.share(altered(parts.keys)):
        row.refuse(len(keys), small.with_metadata, parts.change(keys=keys).pack())


@on("stock, unkeyed", "attached, keyed")
def test_data_whose_size_nobody_knows(row: Row, small: Checkpoint) -> None:
    """Without an index nothing gives a file's size, and what follows the last item is not read."""
    for data in row.share(truncations(small.data)):
        row.refuse(len(data), small.with_data, data)
    for data in appends(small.data):
        assert row.refuse_or_equal(len(data), small.right, small.with_data, data) is None


@on("attached, keyed")
def test_containers_that_the_metadata_follows(row: Row, small: Checkpoint) -> None:
    for container in small.containers():
        for made in row.share(altered(container.intact)):
            row.refuse(len(made), container.load, made)


@pytest.mark.parametrize("pipe", [False, True], ids=["file", "pipe"])
@pytest.mark.parametrize("codecs", CHAINS)
def test_plain_files(row: Row, codecs: str, pipe: bool) -> None:
    for text in (TEXT, b""):
        file = PlainFile(text, CHAINS[codecs], pipe=pipe)
        for made in row.share(altered(file.file)):
            row.refuse(len(made), file.load, made)


# -- with all CRCs, lengths, table and footer computed again ---------------------------------------------------------


def keyed(folder: Path) -> Iterator[Container]:
    yield from Checkpoint(folder / "attached", writer="attached").containers()
    for pipe in (False, True):
        yield PlainFile(TEXT, FULL, pipe=pipe).container()


def test_payloads_of_every_length(row: Row, tmp_path: Path) -> None:
    """The tag is all that is left to say that a payload is whole."""
    for container in keyed(tmp_path):
        parts = take_container_apart(container.intact)
        ((last, payload),) = parts.blocks
        for made in row.share(altered(payload)):
            file = parts.change(blocks=((last, made),)).container()
            error = row.refuse(f"{container.name}, {len(made)}", container.load, file)
            if 16 <= len(made) <= 1000:
                assert isinstance(error, AuthenticationError)


def test_blocks_appended_without_the_key(row: Row, tmp_path: Path) -> None:
    for container in keyed(tmp_path):
        parts = take_container_apart(container.intact)
        ((_, payload),) = parts.blocks
        for size in (0, 15, 16, *EXTRA, len(payload)):
            for more in (bytes(size), payload[:size]):
                for raw_size in (parts.raw_size, parts.raw_size + max(0, size - 16), BLOCK + 1, (1 << 20) + 1):
                    file = continued(parts, more, raw_size)
                    row.refuse(f"{container.name}, {size}", container.load, file)


def continued(parts: Parts, more: bytes, raw_size: int) -> bytes:
    ((_, payload),) = parts.blocks
    return parts.change(blocks=((False, payload), (True, more)), raw_size=raw_size).container()


def test_footers_that_account_for_what_was_appended(row: Row, tmp_path: Path) -> None:
    for container in keyed(tmp_path):
        parts = take_container_apart(container.intact)
        end = container.at.table
        ((_, payload),) = parts.blocks
        for size in EXTRA:
            grown = parts.change(lengths=(len(payload) + size,)).container()
            for file in (grown, grown + bytes(size), grown[: container.at.table] + bytes(size) + grown[end:]):
                error = row.refuse(f"{container.name}, {size}", container.load, file)
                assert isinstance(error, ContainerError | AuthenticationError)
