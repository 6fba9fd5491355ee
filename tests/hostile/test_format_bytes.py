"""Every bit of version, suite and flags flipped, of containers, plain files, metadata and notes; CRCs and digests are
right. With a key none of them is accepted, the informative flags neither: other data depends on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamxf import Encrypt
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.notes import parse_note, seal_note
from streamxf.errors import AuthenticationError, ContainerError, MetadataError
from tests.dcp.helpers import KEY, full_chain
from tests.forge import prefix_of, split_metadata
from tests.reference_codecs import Refused
from tests.reference_decoder import read_plain
from tests.reference_keys import Reader, aes_key

from .rows import Row
from .targets import TEXT, Checkpoint, Container, PlainFile

ROW = "version, suite, flags"
MEBIBYTES = 16

INFORMATIVE = 3  # of the four bytes
BOTH = pytest.mark.parametrize("pipe", [False, True], ids=["file", "pipe"])


def flips(format_bytes: bytes) -> Iterator[tuple[int, bytes]]:
    """Which of the four bytes is another, and what they are then."""
    for bit in range(32):
        changed = bytearray(format_bytes)
        changed[bit // 8] ^= 1 << bit % 8
        yield bit // 8, bytes(changed)


def judge(row: Row, place: int, keyed: bool, right: Any, refusal: type[Exception], load: Any, data: bytes) -> None:
    """Whoever has no key cannot tell an informative flag that was set later from one that always was."""
    if place == INFORMATIVE and not keyed:
        assert row.refuse_or_equal(place, right, load, data) is None
    else:
        kind = AuthenticationError if place == INFORMATIVE else refusal
        assert isinstance(row.refuse(place, load, data), (kind, AuthenticationError))


@BOTH
@pytest.mark.parametrize("chain", [(), full_chain()], ids=["unkeyed", "keyed"])
def test_plain_files(row: Row, chain: Any, pipe: bool) -> None:
    file = PlainFile(TEXT, chain, pipe=pipe)
    reader = Reader([aes_key(KEY.reveal())] if chain else [])
    assert file.file[8:12] == bytes([1, 1, 0, 0])
    for place, changed in flips(file.file[8:12]):
        data = prefix_of(file.wrapped, changed) + file.file[len(file.parts.prefix) :]
        judge(row, place, bool(chain), TEXT, ContainerError, file.load, data)
        if chain or place != INFORMATIVE:
            with pytest.raises(Refused):
                read_plain(data, reader)
        else:
            assert read_plain(data, reader) == TEXT
    check_container(row, file.container(), bool(chain), TEXT)


def check_container(row: Row, container: Container, keyed: bool, right: Any) -> None:
    intact = container.intact
    for place, changed in flips(intact[8:12]):
        data = container.mended(intact[:8] + changed + intact[12:])
        if keyed:
            row.refuse(place, container.load, data)
        else:  # an attached reader does not mind a container that says it was published
            row.refuse_or_equal(place, right, container.load, data)


@pytest.mark.parametrize("writer", ["own", "attached"])
@pytest.mark.parametrize("keyed", [False, True], ids=["unkeyed", "keyed"])
def test_containers(row: Row, checkpoint: Path, writer: str, keyed: bool) -> None:
    target = Checkpoint(checkpoint, writer=writer, keyed=keyed)
    for container in target.containers():
        check_container(row, container, keyed, target.right)


@pytest.mark.parametrize("keyed", [False, True], ids=["unkeyed", "keyed"])
def test_metadata(row: Row, checkpoint: Path, keyed: bool) -> None:
    target = Checkpoint(checkpoint, keyed=keyed)
    parts = split_metadata(target.metadata)
    for place, changed in flips(parts.format_bytes):
        data = parts.change(index=packed_index(target.metadata), format_bytes=changed).pack()
        judge(row, place, keyed, target.right, MetadataError, target.with_metadata, data)


def packed_index(metadata: bytes) -> bytes:
    """As it is stored, and vouched for."""
    root, keys = (int.from_bytes(metadata[at : at + 4], "little") for at in (len(metadata) - 88, len(metadata) - 84))
    start = len(metadata) - 104 - keys - root
    return metadata[start : start + root]


@pytest.mark.parametrize("keyed", [False, True], ids=["unkeyed", "keyed"])
def test_notes(row: Row, keyed: bool) -> None:
    note = seal_note({"a": 1}, Encrypt(KEY).renew() if keyed else None)
    access = Access.of(KEY if keyed else None)

    def load(data: bytes) -> Any:
        found = parse_note(data)
        found.check(access)
        return found.content

    parts = split_metadata(note)
    for place, changed in flips(parts.format_bytes):
        data = parts.change(index=packed_index(note), format_bytes=changed).pack()
        judge(row, place, keyed, {"a": 1}, MetadataError, load, data)
