"""A table is refused at its first wrong entry, however long it says it is, and before it where the size shows."""

import io
import os
import struct
from pathlib import Path

import pytest
from crc32c import crc32c

import streamxf
from streamxf.errors import ContainerError
from streamxf.format.container import NEED_DATA, Block, ContainerParser
from streamxf.format.header import Header
from streamxf.storage.reading import READ_WHOLE, FileSlice
from streamxf.stream import container
from streamxf.stream.container import BlockReader, CheckSize, read_header
from tests.forge import prefix_of
from tests.samples import data_of, encode

BLOCK = 2**16
HEADER = Header(16, (), bytes(16))
COUNT = 2**24  # entries, a table of 64 MiB


class Counting(FileSlice):
    """A slice that counts the bytes that were read."""

    done = 0

    def read_into(self, position: int, out: memoryview) -> None:
        self.done += len(out)
        super().read_into(position, out)


def sparse(path: Path, count: int, entries: bytes = b"") -> int:
    """A file that is a hole, between a header and a footer of `count` blocks; its table begins with `entries`."""
    header = HEADER.pack()
    table_at = len(header) + 8 * count + COUNT
    size = table_at + 4 * count + 20
    with path.open("wb") as file:
        file.write(header)
        file.seek(table_at)
        file.write(entries)
        sizes = struct.pack("<Q", count * BLOCK)
        os.truncate(path, size)
        file.seek(size - 20)
        file.write(sizes + struct.pack("<I", 0) + b"\n\x1a\r\nFXS\xd3")
    return size


def refusal_of(path: Path, check_size: CheckSize | None = None) -> tuple[str, int]:
    """Why the container is refused, and after how many bytes."""
    with path.open("rb") as file:
        source = Counting(file)
        with pytest.raises(ContainerError) as caught:
            BlockReader(source, read_header(source), None, check_size=check_size)
    return caught.value.message, source.done


@pytest.mark.parametrize("good", [0, 1, 100_000])
def test_a_table_of_zeros_ends_at_the_first(tmp_path: Path, good: int) -> None:
    path = tmp_path / "hole"
    entries = struct.pack(f"<{good}I", *[1] * good)
    assert sparse(path, COUNT, entries) > 8 * COUNT
    message, read = refusal_of(path)
    assert "table is malformed" in message
    assert read <= 4 * good + 3 * 2**16


def test_a_stream_larger_than_its_item_is_refused_before_its_table(tmp_path: Path) -> None:
    path = tmp_path / "hole"
    sparse(path, COUNT)

    def refuse(size: int) -> None:
        raise ContainerError(f"not {size} bytes")

    message, read = refusal_of(path, refuse)
    assert message == f"not {COUNT * BLOCK} bytes"
    assert read < 2**16


def test_a_table_without_room_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "short"
    sizes = struct.pack("<Q", 2**48)
    path.write_bytes(HEADER.pack() + bytes(1000) + sizes + struct.pack("<I", 0) + b"\n\x1a\r\nFXS\xd3")
    message, read = refusal_of(path)
    assert "no room" in message
    assert read < 2**16


@pytest.mark.parametrize("count", [1, 2, 4090, 4091, 4092, 8000, 8100])
def test_a_table_of_any_length_is_read(tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one piece, in several, and where the pieces meet."""
    monkeypatch.setattr(container, "_TABLE_STEP", 4 * 1000)
    path = tmp_path / "file"
    with streamxf.open(path, "wb", chain=[streamxf.ZStandard()], block_size=BLOCK) as file:
        for _ in range(count - 1):
            file.write(bytes(BLOCK))
        file.write(b"end")
    with streamxf.open(path, "rb") as file:
        file.seek(-3, os.SEEK_END)
        assert file.tell() == BLOCK * (count - 1)
        assert file.read() == b"end"


def test_a_table_that_the_first_read_has_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tail = 8 * 10 + 32
    monkeypatch.setattr(container, "_TAIL_GUESS", tail)
    source = Counting(io.BytesIO(encode(data_of(9 * BLOCK + 77), [streamxf.ZStandard()])), len(prefix_of()))
    assert source.length > READ_WHOLE
    header = read_header(source)
    before = source.done
    assert BlockReader(source, header, None).count == 10
    assert source.done - before == tail


def test_a_pipe_ends_at_the_first_wrong_entry() -> None:
    """A reader of a pipe does not wait for the rest of a table that is wrong already."""
    header, payload = HEADER.pack(), b"x" * 10
    stream = header
    for index in range(3):
        word = struct.pack("<I", (index == 2) << 31 | len(payload))
        crc = crc32c(HEADER.digest[:16] + struct.pack("<I", index) + word + payload)
        stream += word + struct.pack("<I", crc) + payload
    parser = ContainerParser()
    parser.feed(stream)
    parser.next_event()
    assert [type(parser.next_event()) for _ in range(3)] == [Block] * 3
    parser.feed(struct.pack("<I", 10) + b"\1")
    assert parser.next_event() is NEED_DATA
    parser.feed(bytes(3))
    with pytest.raises(ContainerError, match="table"):
        parser.next_event()
