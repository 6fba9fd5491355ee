"""A folder whose ``.metadata`` is that of another save: its data files are intact, and nothing names them."""

import shutil
from pathlib import Path

import pytest
import torch

import streamxf
from streamxf.errors import ParameterError, PolicyError
from tests.altered import flip
from tests.dcp.helpers import WRITERS, assert_same, data_files, save

STATE = {f"w{n:03}": torch.full((5,), float(n)) for n in range(104)}


def writer_of(path: Path) -> str:
    (file,) = data_files(path)
    return file.stem.rpartition("_")[2]


@pytest.mark.parametrize("other", ["own", "stock"])
def test_each_tool_says_so_and_without_metadata_everything_is_there(tmp_path: Path, other: str) -> None:
    path, writer = tmp_path / "here", WRITERS[other](tmp_path / "there")
    save(STATE, path, "zstd+checksum")
    torch.distributed.checkpoint.save(dict(STATE), storage_writer=writer, no_dist=True)
    shutil.copy(tmp_path / "there" / ".metadata", path)
    report, found = streamxf.verify(path), streamxf.load_intact(path)
    assert "none of the data files that it names is here, but 1 other: it is of another save" in str(report)
    assert "`streamxf salvage --without-metadata`" in str(report)
    assert (report.ok, report.leftovers, found.loaded) == (False, (), ())
    assert "`streamxf salvage --without-metadata` looks for the items in the data files" in str(found)
    for which in (True, [mine := writer_of(path)]):
        assert_same(streamxf.load_intact(path, without_metadata=which).state_dict, STATE)
    (file,) = data_files(path)
    save(STATE, tmp_path / "third", "zstd")
    shutil.copy(*data_files(tmp_path / "third"), path)
    with pytest.raises(PolicyError, match=r"or --writer-id\. There are"):
        streamxf.load_intact(path, without_metadata=True)
    assert_same(streamxf.load_intact(path, without_metadata=[mine]).state_dict, STATE)
    with pytest.raises(ParameterError, match="no data file here has the writer id"):
        streamxf.load_intact(path, without_metadata=[mine, "0" * 32])
    flip(file, 200)
    assert file.name in {damage.file for damage in streamxf.verify(path).damaged}


def test_writers_that_metadata_does_not_name_are_found_beside_it(tmp_path: Path) -> None:
    """Where the metadata's own files are there, too."""
    for name in ("old", "new"):
        save(STATE, tmp_path / name, "zstd+checksum")
    old = writer_of(tmp_path / "old")
    shutil.copy(*data_files(tmp_path / "old"), tmp_path / "new")
    found = streamxf.load_intact(tmp_path / "new", without_metadata=True)
    assert_same(found.state_dict, STATE)
    assert found.save_ids
    found = streamxf.load_intact(tmp_path / "new", without_metadata=[old])
    assert_same(found.state_dict, STATE)
    assert not found.save_ids
