"""What `verify` says of damage beyond the table of tests/tools/test_damage.py: it names the item and the block, and
nothing else. Where there are no codecs, CRCs in the index are compared, whatever the items say of themselves.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from crc32c import crc32c

import streamxf
from streamxf import FloatZip
from streamxf.tools.verify.report import VerifyReport
from streamxf.torchsave import writing
from tests.altered import flip
from tests.dcp.helpers import Watched, data_files, index_of, rewrite_index, save
from tests.tools.world import World

from .remote import PROTOCOL, url_of


@pytest.fixture(params=["floatzip", "checksum", "full"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World(tmp_path / "run", request.param)


def verified(world: World) -> VerifyReport:
    """The report: with a key and without, locally, where workers read, and over fsspec, where they do not."""
    paths, keys = (world.folder, url_of(world.folder)), {world.keys, None}
    reports = [streamxf.verify(path, keys=key) for path in paths for key in keys]
    texts = {repr(replace(each, seconds=0, unchecked=())).replace(f"{PROTOCOL}://", "") for each in reports}
    assert len(texts) == 1
    return reports[0]


def damaged(world: World, *positions: int) -> list[tuple[str | None, int | None, int | None]]:
    """What is, once bits were flipped there."""
    world.replace(0, 0, b"")
    for position in positions:
        flip(world.file, position, 0x10)
    return [(damage.item, damage.block, damage.last_block) for damage in verified(world).damaged]


def test_intact(saved: World) -> None:
    report = verified(saved)
    assert (bool(report), report.damaged) == (True, ())
    assert (report.items, report.files, report.blocks) == (3, 1, 9)
    assert report.bytes_read == sum(file.stat().st_size for file in saved.folder.iterdir())
    assert report.save_ids == (index_of(saved.folder).save_id,)
    assert str(report).splitlines()[0].startswith("OK: no damage found")


def test_a_damaged_table_hides_no_block(saved: World) -> None:
    _, stop = saved.places["a"]
    _, end = saved.block("a", 1)
    for position in (stop - 1, stop - 20, stop - 33):  # magic, container size, an entry of the table
        assert damaged(saved, position, end - 1) == [("a", None, None), ("a", 1, 1)]


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


def test_a_damaged_table_and_a_damaged_length(saved: World) -> None:
    """Then nothing tells where the blocks behind it are."""
    found = damaged(saved, saved.places["b"][1] - 1, saved.block("b", 1)[0] + 2)
    assert found[0] == ("b", None, None)
    assert {entry[1] for entry in found[1:]} <= {1, 2}
    assert ("b", 1, 1) in found or ("b", 1, 2) in found


def test_a_missing_file(saved: World) -> None:
    saved.file.unlink()
    (damage,) = verified(saved).damaged
    assert "the file is missing from the checkpoint, and with it 3 items: " in damage.message
    assert all(name in damage.message.partition("items: ")[2] for name in saved.places)


def test_damaged_metadata_is_named_and_data_is_checked(saved: World) -> None:
    saved.metadata.write_bytes(saved.metadata.read_bytes()[:-9])
    flip(saved.file, saved.block("a", 1)[1] - 1)
    report = streamxf.verify(saved.folder, keys=saved.keys)
    assert {(damage.file, damage.item, damage.block) for damage in report.damaged} == {
        (".metadata", None, None),
        (saved.file.name, "a", 1),
    }
    saved.replace(0, 0, b"")
    saved.metadata.unlink()
    assert streamxf.verify(saved.folder, keys=saved.keys).items == 3


def test_a_damaged_pickle_which_only_torch_reads(saved: World) -> None:
    flip(saved.metadata, 100)
    report = verified(saved)
    assert "torch's own readers" in report.damaged[0].message
    assert report.items == 3, "the index says what there is"


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


def test_without_crcs_of_its_records_the_item_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch writes them once it was told ``torch.serialization.set_crc32_options(False)``."""
    archive = writing.archive
    monkeypatch.setattr(writing, "archive", lambda pickled, sizes, crcs: archive(pickled, sizes, None))
    save({"w": torch.zeros(1000)}, tmp_path, [])
    assert streamxf.verify(tmp_path).unchecked == ()
    (file,) = data_files(tmp_path)
    flip(file)
    assert [(damage.file, damage.item) for damage in streamxf.verify(tmp_path).damaged] == [(file.name, "w")]
