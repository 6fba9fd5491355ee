"""A load that fails says what to do next, where somebody will look: in the error that DCP raises."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.torch_version import TorchVersion

import streamxf
from streamxf.chain import Chains
from streamxf.checkpoint.saving import Extensions, Save
from streamxf.errors import NoSpaceError
from streamxf.storage.abilities import Volume
from streamxf.storage.opening import open_storage
from tests.altered import flip
from tests.failing import fails_with

from .helpers import KEY, OTHER_KEY, data_files, full_chain, load, save


def told_by(path: Path, keys: Any = KEY, **options: Any) -> str:
    with pytest.raises(CheckpointException) as caught:
        load({"w": torch.zeros(1000)}, path, keys, **options)
    return str(caught.value)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    save({"w": torch.arange(1000.0)}, folder, full_chain())
    return folder


def test_a_damaged_block(saved: Path) -> None:
    (file,) = data_files(saved)
    flip(file, file.stat().st_size // 2)
    told = told_by(saved)
    assert f"[file {file}, item w, block 0]\nnext: `streamxf verify` lists" in told
    assert told.count("next: ") == 1


def test_a_file_that_is_missing(saved: Path) -> None:
    data_files(saved)[0].unlink()
    assert "next: `streamxf verify`" in told_by(saved)


def test_damaged_metadata(saved: Path) -> None:
    flip(saved / ".metadata", -100)
    told = told_by(saved)
    assert f"[file {saved / '.metadata'}]\nnext: restore this file from a copy" in told
    assert "`streamxf salvage --without-metadata`" in told


def test_what_is_not_damage_has_no_such_advice(saved: Path) -> None:
    assert "next: " not in told_by(saved, OTHER_KEY)
    assert "next: " not in told_by(saved, expect_save_id="0" * 32)


@pytest.mark.parametrize("remote", [False, True])
def test_why_there_is_no_metadata(saved: Path, remote: bool) -> None:
    def told(path: Path) -> str:
        if not remote:
            return told_by(path)
        with pytest.raises(CheckpointException) as caught:
            dcp.load({"w": torch.zeros(1000)}, storage_reader=streamxf.FsspecReader(f"local://{path}", keys=KEY))
        return str(caught.value)

    assert "there is no checkpoint in the folder, or no such folder: '" in told(saved / "nowhere")
    assert "has 1 checkpoint in it: checkpoint. Name one of them" in told(saved.parent)
    whole = (saved / ".metadata").read_bytes()
    (saved / ".metadata").unlink()
    assert "the folder has data files and no metadata at all" in told(saved)
    for rank in range(1, 11):
        (saved / f"__{rank}.metadata").write_bytes(whole)
    found = told(saved)
    if TorchVersion(torch.__version__) < "2.9":
        assert "the folder has metadata of single ranks, which torch reads from 2.9 on" in found
        return
    assert "metadata of single ranks (__1.metadata, __2.metadata, __3.metadata, " in found
    assert "and 2 more), and none of rank 0" in found


def test_a_folder_that_cannot_be_listed(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamxf.storage.local.LocalStorage.names", fails_with(PermissionError, "somebody forbids it"))
    (saved / ".metadata").unlink()
    assert "its folder cannot be listed (PermissionError: somebody forbids it)" in told_by(saved)


def test_where_room_is_short_by_a_few_bytes_both_numbers_are_exact() -> None:
    save = Save(open_storage("there"), Extensions((), Chains.chosen([])), 20, True, True)
    save.storage.volume = lambda: Volume(("there",), 1_000_001, plain=True)  # type: ignore[method-assign]
    with pytest.raises(NoSpaceError, match=r"at least 1,000,002 bytes .* 1,000,001 bytes are free. A checkpoint that"):
        save.check_space(1_000_002)
    save.check_space(1_000_001)
