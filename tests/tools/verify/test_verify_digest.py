"""CRCs in the index, where there are no codecs: they are compared, whatever the items say of themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from crc32c import crc32c

import streamxf
from streamxf.torchsave import writing
from tests.altered import flip
from tests.dcp.helpers import data_files, index_of, rewrite_index, save


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
