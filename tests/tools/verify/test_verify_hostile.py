"""What is made to keep `verify` busy: metadata without a key's MAC, and data files that no metadata describes.

Work is counted, in bytes that are read and places that are looked at; times would say nothing.
"""

import io
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import MetadataIndex

import streamxf
from streamxf import Checksum
from streamxf.errors import MetadataError
from streamxf.tools.verify.reading import GuardedAccess
from streamxf.torchsave.objects import Objects
from tests.altered import flipped
from tests.dcp.helpers import data_files, index_of, rewrite_index, rewrite_pickle, save, sections_of
from tests.dcp.shards import save_as_ranks
from tests.forge import CONTAINER_MAGIC, LAST, Parts, with_crc
from tests.tools.verify.read_files import name_of

FILE = "__0_0_" + "ab" * 16 + ".distcp"
SIZE = 2**18


class Reads:
    """How often files are read, and how many bytes of each."""

    def __init__(self) -> None:
        self.count = 0
        self.bytes: Counter[str] = Counter()

    def __call__(self, file: GuardedAccess, position: int, out: memoryview) -> int:
        self.count += 1
        self.bytes[Path(name_of(file)).name] += len(out)
        return self.real(file, position, out)

    real = staticmethod(GuardedAccess.read_into)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reads]:
    counted = Reads()
    monkeypatch.setattr(GuardedAccess, "read_into", lambda *arguments: counted(*arguments))
    yield counted
    assert counted.count, "nothing was read, so this shows nothing"


# -- files that no metadata describes --------------------------------------------------------------

HEADER = with_crc(Parts().body)
HEAD = struct.Struct("<II")
UNITS = {
    "magics": CONTAINER_MAGIC,
    "magics with a version": CONTAINER_MAGIC + b"\1",
    "headers with a wrong CRC": Parts(flags=2, chain=bytes(1024), identity=bytes(4096)).body[:33],
    "headers": HEADER,
    "headers whose block leads to the next ones": HEADER + HEAD.pack(len(HEADER), 0),
    "blocks that end one byte after the next header": HEADER + HEAD.pack(len(HEADER) + 1, 0) + b"\0",
    "empty containers": HEADER + HEAD.pack(LAST, 0) + bytes(24),
    "zeros": bytes(64),
}


@pytest.mark.parametrize("unit", UNITS.values(), ids=list(UNITS))
def test_the_scan_of_an_unknown_file_is_bounded_by_its_size(tmp_path: Path, reads: Reads, unit: bytes) -> None:
    (tmp_path / ".metadata").write_bytes(b"damaged")
    (tmp_path / FILE).write_bytes((unit * (SIZE // len(unit) + 1))[:SIZE])
    report = streamxf.verify(tmp_path)
    assert not report.ok
    assert len(report.damaged) <= 1 + 1000
    assert reads.count <= 30 * (SIZE // len(HEADER))
    assert reads.bytes[FILE] <= 300 * SIZE


def test_containers_between_rubbish_are_found(tmp_path: Path) -> None:
    save({"a": torch.randn(50_000), "b": torch.randn(10)}, tmp_path, [Checksum()], block_size=1 << 16)
    (file,) = data_files(tmp_path)
    whole = file.read_bytes()
    places = {name: item.places[0] for name, item in index_of(tmp_path).items.items()}
    cut = {name: whole[place.at : place.at + place.size] for name, place in places.items()}
    rubbish = {
        "nothing": b"",
        "text": b"rubbish" * 99,
        "magics": CONTAINER_MAGIC * 5000,
        "more than a window": bytes(3 * 2**20 + 11) + CONTAINER_MAGIC[:-1],
    }
    (tmp_path / ".metadata").unlink()
    for name, between in rubbish.items():
        file.write_bytes(between + cut["a"] + between + cut["b"] + between)
        report = streamxf.verify(tmp_path)
        assert report.items == 2, name
        assert [damage.file for damage in report.damaged] == [".metadata"], name
        assert ["in 3 places, which no container describes" in text for text in report.unchecked] == [True] * bool(
            between
        )
        file.write_bytes(between + flipped(cut["a"], -5000) + between + cut["b"])
        assert "a" in {damage.item for damage in streamxf.verify(tmp_path).damaged}, name


def test_a_container_without_codecs_is_checked(tmp_path: Path) -> None:
    """No writer makes one; it has a CRC for each block all the same."""
    (tmp_path / ".metadata").write_bytes(b"damaged")
    (tmp_path / FILE).write_bytes(HEADER + HEAD.pack(LAST | 5, 0) + b"wrong" + bytes(24))
    report = streamxf.verify(tmp_path)
    assert "BlockError" in {damage.error for damage in report.damaged}


# -- metadata that has the same bytes read again and again -----------------------------------------


@pytest.mark.parametrize("chain", [[], [Checksum()]], ids=["none", "checksum"])
@pytest.mark.parametrize("published", [True, False])
def test_items_that_lie_over_one_another_are_read_once(
    tmp_path: Path, reads: Reads, chain: list[Any], published: bool
) -> None:
    save({"w": torch.randn(400_000), "o": "text"}, tmp_path, chain)
    (file,) = data_files(tmp_path)
    count = 200

    def into_index(index: Any) -> None:
        item = index["items"]["w"]
        for number in range(count):
            chunk = item["chunks"][0] | ({"number": 9 + number} if chain else {})
            index["items"][f"copy{number}"] = item | {"chunks": [chunk]}

    def into_pickle(metadata: Any) -> None:
        index = next(index for index in metadata.storage_data if index.fqn == "w")
        for number in range(count):
            name = f"copy{number}"
            metadata.state_dict_metadata[name] = metadata.state_dict_metadata["w"]
            metadata.storage_data[MetadataIndex(name, index.offset)] = metadata.storage_data[index]

    if published:
        rewrite_index(tmp_path, into_index)
    else:
        without_index(tmp_path)
        rewrite_pickle(tmp_path, into_pickle)
    report = streamxf.verify(tmp_path)
    over = [damage for damage in report.damaged if "over another" in damage.message]
    assert len(over) == count
    assert report.items == count + 2
    assert report.bytes_read < 2 * file.stat().st_size + 2**20
    assert reads.bytes[file.name] < 4 * file.stat().st_size


def without_index(folder: Path, name: str = ".metadata") -> None:
    """Make the metadata one of torch's own writer."""
    (folder / name).write_bytes(sections_of(folder, name)[0])


def test_files_that_several_ranks_name_are_read_once(tmp_path: Path, reads: Reads) -> None:
    save_as_ranks(2, tmp_path, lambda: [Checksum()], use_collectives=False)
    (name,) = index_of(tmp_path, "__0.metadata").files
    without_index(tmp_path, "__0.metadata")
    first = (tmp_path / "__0.metadata").read_bytes()
    for rank in range(2, 40):
        (tmp_path / f"__{rank}.metadata").write_bytes(first)
    report = streamxf.verify(tmp_path)
    twice = [damage for damage in report.damaged if "other metadata" in damage.message]
    assert {damage.file for damage in twice} == {f"__{rank}.metadata" for rank in range(2, 40)}
    assert reads.bytes[name] < 4 * (tmp_path / name).stat().st_size
    assert report.files == 2


def test_records_that_lie_over_one_another() -> None:
    """Each record of a zip file can be said to hold all that follow it: what is read grows with their square."""
    file = io.BytesIO()
    torch.save([torch.zeros(1) for _ in range(50)], file)
    data = bytearray(file.getvalue())
    directory = data.index(b"PK\1\2")
    at = directory
    while data[at : at + 4] == b"PK\1\2":
        name, extra, note = struct.unpack_from("<3H", data, at + 28)
        (begin,) = struct.unpack_from("<I", data, at + 42)
        begin += 30 + sum(struct.unpack_from("<2H", data, begin + 26))
        size = directory - begin
        struct.pack_into("<3I", data, at + 16, zlib.crc32(data[begin:directory]), size, size)
        at += 46 + name + extra + note
    with pytest.raises(MetadataError, match="overlap"):
        Objects.check_records(io.BytesIO(data), len(data))


@pytest.mark.parametrize("with_metadata", [True, False])
def test_zeros_are_not_followed_as_blocks(tmp_path: Path, with_metadata: bool) -> None:
    """A report that is soon there, with zeros in the place of a container's blocks and table."""
    save({"w": torch.randn(100_000)}, tmp_path, [Checksum()], block_size=1 << 16)
    (file,) = data_files(tmp_path)
    data = file.read_bytes()
    start = 300  # more than a header has, less than the first block
    file.write_bytes(data[:start] + bytes(len(data) - start))
    if not with_metadata:
        (tmp_path / ".metadata").unlink()
    report = streamxf.verify(tmp_path)
    assert not report.ok
    assert any(damage.item == "w" for damage in report.damaged)
    assert report.blocks <= 10
    assert len(report.damaged) <= 6
