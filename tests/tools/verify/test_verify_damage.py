"""Every kind of damage, through several chains: `verify` names the item and the block, and nothing else. Where there
are no codecs, CRCs in the index are compared, whatever the items say of themselves.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from crc32c import crc32c

import streamxf
from streamxf import Checksum, Encrypt, FloatZip
from streamxf.tools.verify.report import VerifyReport
from streamxf.torchsave import writing
from tests.altered import flip
from tests.dcp.helpers import KEY, Watched, data_files, full_chain, index_of, rewrite_index, save
from tests.forge import Places

from .remote import url_of

BLOCK = 1 << 16

CHAINS = {"floatzip": lambda: [FloatZip()], "checksum": lambda: [Checksum()], "full": full_chain}


class Saved:
    """A checkpoint of three items in one file, and where the bytes of each stand."""

    def __init__(self, folder: Path, chain: list[Any], keys: Any, places: Any, remote: bool) -> None:
        self.folder = folder
        self.remote = remote
        self.keys = keys
        self.chain = chain
        (self.file,) = data_files(folder)
        self.data = self.file.read_bytes()
        self.places: dict[str, tuple[int, int]] = places

    def verify(self, data: bytes | None = None) -> VerifyReport:
        if data is not None:
            self.file.write_bytes(data)
        return streamxf.verify(url_of(self.folder) if self.remote else self.folder, keys=self.keys)

    def blocks(self, item: str) -> list[tuple[int, int]]:
        """Where the blocks of an item stand in the file."""
        start, stop = self.places[item]
        return [(start + head, start + end) for head, end in Places.of(self.data[start:stop]).blocks]

    def flipped(self, *positions: int) -> bytes:
        out = bytearray(self.data)
        for position in positions:
            out[position] ^= 0x10
        return bytes(out)


def state() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(60, 1000, generator=generator) for name in ("a", "b")} | {"o": ["an object"] * 9}


@pytest.fixture(params=["floatzip", "checksum", "full", "full, with the key", "full, with the key, over fsspec"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Saved:
    """Workers read what is local; of what is not, they get blocks that were read."""
    name, *how = request.param.split(", ")
    folder = tmp_path / "checkpoint"
    save(state(), folder, CHAINS[name](), block_size=BLOCK)
    places = places_in(folder)
    return Saved(folder, CHAINS[name](), KEY if "with the key" in how else None, places, "over fsspec" in how)


def places_in(folder: Path) -> dict[str, tuple[int, int]]:
    places = ((name, item.places[0]) for name, item in index_of(folder).items.items())
    return {name: (place.at, place.at + place.size) for name, place in places}


def damaged(report: VerifyReport) -> list[tuple[str | None, int | None, int | None]]:
    return [(damage.item, damage.block, damage.last_block) for damage in report.damaged]


def test_intact(saved: Saved) -> None:
    report = saved.verify()
    assert report.ok
    assert bool(report)
    assert report.damaged == ()
    assert report.items == 3
    assert report.files == 1
    assert report.blocks == sum(len(saved.blocks(name)) for name in saved.places)
    assert report.bytes_read == sum(file.stat().st_size for file in saved.folder.iterdir())
    assert report.save_ids == (index_of(saved.folder).save_id,)
    assert str(report).splitlines()[0].startswith("OK: no damage found")


def test_a_flipped_bit_in_any_block(saved: Saved) -> None:
    """Its head, its CRC, and its payload."""
    for item in saved.places:
        for number, (head, end) in enumerate(saved.blocks(item)):
            for position in (head, head + 4, end - 1):
                assert damaged(saved.verify(saved.flipped(position))) == [(item, number, number)]


def test_several_blocks_of_several_items(saved: Saved) -> None:
    one, other = saved.blocks("a"), saved.blocks("b")
    places = (one[0][1], one[2][1], one[3][1], other[1][1])
    report = saved.verify(saved.flipped(*(end - 1 for end in places)))
    assert sorted(damaged(report)) == [("a", 0, 0), ("a", 2, 3), ("b", 1, 1)]


def test_a_damaged_table_hides_no_block(saved: Saved) -> None:
    _, stop = saved.places["a"]
    (_, end) = saved.blocks("a")[1]
    for position in (stop - 1, stop - 20, stop - 33):  # magic, container size, an entry of the table
        assert damaged(saved.verify(saved.flipped(position))) == [("a", None, None)]
        report = saved.verify(saved.flipped(position, end - 1))
        assert damaged(report) == [("a", None, None), ("a", 1, 1)]


@pytest.mark.parametrize("described", [True, False], ids=["described", "scanned"])
def test_no_codec_is_looked_up_before_a_table_has_passed(tmp_path: Path, described: bool) -> None:
    """R5 of the format: code of third parties is imported only then."""
    save({"w": torch.arange(9.0)}, tmp_path, [FloatZip()])
    (file,) = data_files(tmp_path)
    file.write_bytes(file.read_bytes()[:-10] + b"damaged table"[:10])
    if not described:
        (tmp_path / ".metadata").write_bytes(b"")
    codecs = Watched()
    report = streamxf.verify(tmp_path, codecs=codecs)
    assert "ContainerError" in {damage.error for damage in report.damaged}
    assert codecs.built == []


def test_a_damaged_table_and_a_damaged_length(saved: Saved) -> None:
    """Then nothing tells where the blocks behind it are."""
    _, stop = saved.places["b"]
    head, _ = saved.blocks("b")[1]
    found = damaged(saved.verify(saved.flipped(stop - 1, head + 2)))
    assert found[0] == ("b", None, None)
    assert {entry[1] for entry in found[1:]} <= {1, 2}
    assert ("b", 1, 1) in found or ("b", 1, 2) in found


def test_a_damaged_header(saved: Saved) -> None:
    for item, (start, _) in saved.places.items():
        for position in (start, start + 9, start + 20, start + 60):
            assert damaged(saved.verify(saved.flipped(position))) == [(item, None, None)]


def test_every_bit_counts(saved: Saved) -> None:
    """Bytes all over the file: each belongs to an item, and that one is named."""
    for name, (start, stop) in saved.places.items():
        for position in range(start, stop, max(1, (stop - start) // 15)):
            report = saved.verify(saved.flipped(position))
            assert {damage.item for damage in report.damaged} == {name}, position


def test_a_zeroed_range(saved: Saved) -> None:
    blocks = saved.blocks("a")
    start, stop = blocks[1][0], blocks[2][1]
    report = saved.verify(saved.data[:start] + bytes(stop - start) + saved.data[stop:])
    assert damaged(report) == [("a", 1, 2)]


def test_a_file_of_zeros_makes_a_short_report(saved: Saved) -> None:
    report = saved.verify(bytes(len(saved.data)))
    assert sorted(damage.item or "" for damage in report.damaged) == sorted(saved.places)


def test_a_truncated_file(saved: Saved) -> None:
    order = sorted(saved.places, key=lambda name: saved.places[name])
    for cut in (1, 33, 5000):
        report = saved.verify(saved.data[:-cut])
        assert not report.ok
        assert {damage.item for damage in report.damaged} == {None, order[-1]}
    start, _ = saved.places[order[1]]
    report = saved.verify(saved.data[:start])
    assert {damage.item for damage in report.damaged} == {None, order[1], order[2]}


def test_an_empty_file(saved: Saved) -> None:
    assert {damage.item for damage in saved.verify(b"").damaged} == {None, *saved.places}


def test_something_appended(saved: Saved) -> None:
    report = saved.verify(saved.data + b"\0")
    assert not report.ok
    assert {damage.item for damage in report.damaged} == {None}


def test_a_missing_file(saved: Saved) -> None:
    saved.file.unlink()
    report = saved.verify()
    (damage,) = report.damaged
    assert (damage.item, report.items) == (None, len(saved.places))
    assert f"the file is missing from the checkpoint, and with it {len(saved.places)} items: " in damage.message
    assert all(name in damage.message.partition("items: ")[2] for name in saved.places)


def test_missing_blocks(saved: Saved) -> None:
    """Cut out, so that what stands behind them moved up."""
    start, stop = saved.blocks("a")[1]
    report = saved.verify(saved.data[:start] + saved.data[stop:])
    assert not report.ok
    assert "a" in {damage.item for damage in report.damaged}


@pytest.mark.parametrize("keyed", [True, False])
def test_exchanged_items(tmp_path: Path, keyed: bool) -> None:
    """Two items of one size, through a chain that does not change sizes."""
    chain: list[Any] = [Checksum(), Encrypt(KEY)] if keyed else [Checksum()]
    save(state(), tmp_path, chain, block_size=BLOCK)
    places = places_in(tmp_path)
    (low, middle), (high, end) = sorted([places["a"], places["b"]])
    assert middle - low == end - high
    (file,) = data_files(tmp_path)
    data = file.read_bytes()
    file.write_bytes(data[:low] + data[high:end] + data[middle:high] + data[low:middle] + data[end:])
    for keys in {KEY if keyed else None, None}:
        report = streamxf.verify(tmp_path, keys=keys)
        assert sorted(damaged(report)) == [("a", None, None), ("b", None, None)]
        assert {damage.error for damage in report.damaged} == {"IdentityError"}


def test_an_older_file_in_its_place(saved: Saved, tmp_path: Path) -> None:
    save(state(), tmp_path / "older", saved.chain, block_size=BLOCK)
    (older,) = data_files(tmp_path / "older")
    report = saved.verify(older.read_bytes())
    assert not report.ok
    assert {*saved.places} <= {damage.item for damage in report.damaged}


def test_damaged_metadata_is_named_and_data_is_checked(saved: Saved) -> None:
    file = saved.folder / ".metadata"
    whole = file.read_bytes()
    end = saved.blocks("a")[1][1]
    file.write_bytes(whole[: len(whole) // 2])
    report = saved.verify(saved.flipped(end - 1))
    assert {(damage.file, damage.item, damage.block) for damage in report.damaged} == {
        (".metadata", None, None),
        (saved.file.name, "a", 1),
    }


def test_a_damaged_pickle_which_only_torch_reads(saved: Saved) -> None:
    file = saved.folder / ".metadata"
    flip(file, 100)
    report = saved.verify()
    assert [(damage.file, damage.item, damage.error) for damage in report.damaged] == [
        (".metadata", None, "MetadataError")
    ]
    assert "torch's own readers" in report.damaged[0].message
    assert report.items == 3, "the index says what there is"


def test_no_metadata_at_all(saved: Saved) -> None:
    (saved.folder / ".metadata").unlink()
    report = saved.verify()
    assert [(damage.file, damage.item) for damage in report.damaged] == [(".metadata", None)]
    assert report.items == 3


def test_leftovers_are_no_damage(saved: Saved) -> None:
    name = "__0_0_" + "ab" * 16 + ".distcp"
    (saved.folder / name).write_bytes(b"of another save")
    report = saved.verify()
    assert report.ok
    assert report.leftovers == (name,)
    assert name in str(report)


# -- without codecs: CRCs in the index --------------------------------------------------------------------------


@pytest.mark.parametrize("elements", [100, 300_000])
def test_a_crc_that_is_not_the_one_in_the_index(tmp_path: Path, elements: int) -> None:
    """Although all that items say of themselves is right; in items that are read at once, and in those that are not."""
    save({"w": torch.randn(elements), "o": "text"}, tmp_path, [])
    assert streamxf.verify(tmp_path).ok
    (file,) = data_files(tmp_path)
    place = index_of(tmp_path).items["w"].places[0]
    last = file.read_bytes()[place.at : place.at + place.size][place.size // 2**20 * 2**20 :]
    assert place.crcs is not None
    assert place.crcs[-4:] == crc32c(last).to_bytes(4, "little")

    def change(index: Any) -> None:
        [chunk] = index["items"]["w"]["chunks"]
        digits = chunk["crc32c"]
        chunk["crc32c"] = digits[:-1] + ("0" if digits[-1] != "0" else "1")

    rewrite_index(tmp_path, change)
    report = streamxf.verify(tmp_path)
    assert [(damage.file, damage.item) for damage in report.damaged] == [(file.name, "w")]
    assert "CRC" in report.damaged[0].message


def test_a_flipped_bit_is_named_by_its_item(tmp_path: Path) -> None:
    save({"w": torch.zeros(1000), "v": torch.ones(1000)}, tmp_path, [])
    (file,) = data_files(tmp_path)
    data = bytearray(file.read_bytes())
    data[data.index(torch.ones(1000).numpy().tobytes()) + 100] ^= 1
    file.write_bytes(data)
    assert [damage.item for damage in streamxf.verify(tmp_path).damaged] == ["v"]


def test_without_crcs_of_its_records_the_item_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch writes them once it was told ``torch.serialization.set_crc32_options(False)``."""
    archive = writing.archive
    monkeypatch.setattr(writing, "archive", lambda pickled, sizes, crcs: archive(pickled, sizes, None))
    save({"w": torch.zeros(1000)}, tmp_path, [])
    assert streamxf.verify(tmp_path).unchecked == ()
    (file,) = data_files(tmp_path)
    flip(file)
    assert [(damage.file, damage.item) for damage in streamxf.verify(tmp_path).damaged] == [(file.name, "w")]
