"""Every truncation, and 1, 16, 1000 bytes or a block more: of files as they are, of payloads with all CRCs right."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from dcp.helpers import error_of
from forge import Parts, join_metadata, split_metadata, take_container_apart
from samples import FULL

from streamxf.errors import AuthenticationError, ContainerError

from .rows import Row
from .targets import BLOCK, CHAINS, TEXT, Checkpoint, Container, PlainFile, on

ROW = "truncate, append"
MEBIBYTES = 16

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
    for number, data in enumerate(altered(small.data)):
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
    for number, data in enumerate(altered(small.metadata)):
        error = row.refuse(len(data), small.with_metadata, data)
        elsewhere += [error] if error.file != str(small.metadata_file) else []
        if number % 200 == 0:
            whole = error_of(small.load_whole)
            assert (type(whole), str(whole)) == (type(error), str(error))
    # an unkeyed file that is cut exactly where the pickle ends looks like torch's own; the first item, which says that
    # it was published, gives it away
    assert ["trailer was removed" in str(error) for error in elsewhere] == [True] * (small.keys is None)
    small.restore()
    assert small.load_whole() == small.right


@on("own, keyed")
def test_keyed_metadata_under_a_digest_that_anybody_can_make(row: Row, small: Checkpoint) -> None:
    pickled, manifest = split_metadata(small.metadata)
    for cut in altered(pickled):
        row.refuse(len(cut), small.with_metadata, join_metadata(cut, manifest), kind=AuthenticationError)
        row.refuse(len(cut), small.with_metadata, join_metadata(cut, manifest | {"key": None}))


@on("stock, unkeyed", "attached, keyed")
def test_data_whose_size_nobody_knows(row: Row, small: Checkpoint) -> None:
    """Without a manifest the metadata alone says where an item ends; what stands behind the last is not looked at."""
    for data in truncations(small.data):
        row.refuse(len(data), small.with_data, data)
    for data in appends(small.data):
        assert row.refuse_or_equal(len(data), small.right, small.with_data, data) is None


@on("attached, keyed")
def test_containers_that_the_metadata_follows(row: Row, small: Checkpoint) -> None:
    for container in small.containers():
        for made in row.share(altered(container.intact), 2):
            row.refuse(len(made), container.load, made)


@pytest.mark.parametrize("pipe", [False, True], ids=["file", "pipe"])
@pytest.mark.parametrize("chain", CHAINS)
def test_plain_files(row: Row, chain: str, pipe: bool) -> None:
    for text in (TEXT, b""):
        file = PlainFile(text, CHAINS[chain], pipe=pipe)
        for made in altered(file.file):
            row.refuse(len(made), file.load, made)


# -- with all CRCs, lengths, index and footer made anew ----------------------------------------------------------------


def keyed(folder: Path) -> Iterator[Container]:
    yield from Checkpoint(folder / "attached", writer="attached").containers()
    for pipe in (False, True):
        yield PlainFile(TEXT, FULL, pipe=pipe).container()


def test_payloads_of_every_length(row: Row, tmp_path: Path) -> None:
    """The tag is all that is left to say that a payload is whole."""
    for container in keyed(tmp_path):
        parts = take_container_apart(container.intact)
        ((last, payload),) = parts.blocks
        for made in altered(payload):
            file = parts.change(blocks=((last, made),)).container()
            error = row.refuse(f"{container.name}, {len(made)}", container.load, file)
            if 16 <= len(made) <= 1000:
                assert isinstance(error, AuthenticationError)


def test_blocks_appended_by_somebody_without_the_key(row: Row, tmp_path: Path) -> None:
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
        end = container.at.index
        for size in EXTRA:
            grown = parts.change(ends=(end + size,), container_size=len(container.intact) + size).container()
            for file in (grown, grown + bytes(size), grown[: container.at.index] + bytes(size) + grown[end:]):
                error = row.refuse(f"{container.name}, {size}", container.load, file)
                assert isinstance(error, ContainerError)
