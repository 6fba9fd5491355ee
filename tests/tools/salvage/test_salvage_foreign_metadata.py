"""A folder whose ``.metadata`` is that of another save: its data files are intact, and nothing names them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import FileSystemWriter as StockWriter
from torch.distributed.checkpoint.state_dict_saver import save

import streamxf
from streamxf.errors import ParameterError, PolicyError
from streamxf.tools.salvage.fill import Salvaged
from tests.altered import flip

STATE = {f"w{n}": torch.full((5,), float(n)) for n in range(104)}


def own(path: Path) -> None:
    save(dict(STATE), storage_writer=streamxf.FileSystemWriter(path, chain="zstd+checksum"))


def stock(path: Path) -> None:
    save(dict(STATE), storage_writer=StockWriter(path))


def writer_of(path: Path) -> str:
    (file,) = path.glob("*.distcp")
    return file.stem.rpartition("_")[2]


@pytest.fixture(params=[own, stock], ids=["own", "stock"])
def strange(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    other: Callable[[Path], None] = request.param
    own(tmp_path / "here")
    other(tmp_path / "there")
    shutil.copy(tmp_path / "there" / ".metadata", tmp_path / "here" / ".metadata")
    return tmp_path / "here"


def assert_all(found: Salvaged) -> None:
    assert found.state_dict.keys() == STATE.keys()
    assert all(torch.equal(found.state_dict[name], STATE[name]) for name in STATE)


def test_verify_says_so_and_reads_the_data_files(strange: Path):
    report = streamxf.verify(strange)
    assert not report.ok
    assert "none of the data files that it names is here, but 1 other: it is of another save" in str(report)
    assert "`streamxf salvage --without-metadata`" in str(report)
    assert not report.leftovers
    (file,) = strange.glob("*.distcp")
    flip(file, 200)
    assert file.name in {damage.file for damage in streamxf.verify(strange).damaged}


def test_salvage_says_what_brings_the_items_back(strange: Path):
    found = streamxf.load_intact(strange)
    assert not found.loaded
    assert "`streamxf salvage --without-metadata` looks for the items in the data files" in str(found)


def test_without_metadata_everything_is_there(strange: Path, tmp_path: Path):
    assert_all(streamxf.load_intact(strange, without_metadata=True))
    assert_all(streamxf.load_intact(strange, without_metadata=[writer_of(strange)]))


def test_of_several_saves_the_writer_has_to_be_named(strange: Path, tmp_path: Path):
    own(tmp_path / "third")
    (file,) = (tmp_path / "third").glob("*.distcp")
    writer = writer_of(strange)
    shutil.copy(file, strange)
    with pytest.raises(PolicyError, match=r"or --writer-id\. There are"):
        streamxf.load_intact(strange, without_metadata=True)
    assert_all(streamxf.load_intact(strange, without_metadata=[writer]))
    with pytest.raises(ParameterError, match="no data file here has the writer id"):
        streamxf.load_intact(strange, without_metadata=[writer, "0" * 32])


def test_writers_that_metadata_does_not_name_are_found_beside_it(tmp_path: Path):
    """Where the metadata's own files are there, too."""
    own(tmp_path / "old")
    own(tmp_path / "new")
    (file,) = (tmp_path / "old").glob("*.distcp")
    shutil.copy(file, tmp_path / "new")
    file.unlink()
    new = streamxf.load_intact(tmp_path / "new", without_metadata=True)
    assert_all(new)
    assert new.save_ids
    old = streamxf.load_intact(tmp_path / "new", without_metadata=[file.stem.rpartition("_")[2]])
    assert_all(old)
    assert not old.save_ids
