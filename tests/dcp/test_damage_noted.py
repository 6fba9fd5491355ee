"""A reader that meets damage in a run leaves a note there; tools that look for damage do not."""

import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter as WriterOfTorch

import streamxf
from streamxf import Checksum, Encrypt, FileSystemReader, FileSystemWriter
from streamxf.errors import BlockError, KeyMissingError, MetadataError
from tests.altered import flip

from .helpers import KEY, OTHER_KEY, data_files, refused, unwrapped

STATE = {"weight": torch.arange(3000.0), "step": 7}


def saved(run: Path, chain: object = (Checksum(),)) -> tuple[Path, str]:
    (run / ".streamxf").mkdir(parents=True)
    writer = FileSystemWriter(run / "step-3", chain=chain)
    dcp.save(STATE, storage_writer=writer, no_dist=True)
    return run / "step-3", writer.save_id


def load(path: Path, **options: object) -> None:
    dcp.load({"weight": torch.zeros(3000), "step": 0}, storage_reader=FileSystemReader(path, **options), no_dist=True)


def noted(path: Path) -> list[str]:
    return sorted(file.name for file in (path.parent / ".streamxf").iterdir())


def test_damage_in_data(tmp_path: Path):
    path, save_id = saved(tmp_path)
    load(path)
    assert noted(path) == []
    flip(data_files(path)[0], 2000)
    with refused(BlockError):
        load(path)
    assert noted(path) == [f"damage-{save_id}"]


def test_a_lost_file(tmp_path: Path):
    path, save_id = saved(tmp_path)
    data_files(path)[0].unlink()
    with refused(MetadataError, "missing"):
        load(path)
    assert noted(path) == [f"damage-{save_id}"]


def test_what_says_nothing_about_the_data(tmp_path: Path):
    path, _ = saved(tmp_path, [Encrypt(KEY)])
    with refused(KeyMissingError):
        load(path, keys=OTHER_KEY)
    assert noted(path) == []


def test_tools_leave_no_note(tmp_path: Path):
    path, _ = saved(tmp_path)
    flip(data_files(path)[0], 2000)
    assert not streamxf.verify(path).ok
    with streamxf.Checkpoint(path) as checkpoint, pytest.raises(BlockError):
        checkpoint["weight"].read()
    assert noted(path) == []


def test_a_checkpoint_without_a_save_id_is_named_in_the_error(tmp_path: Path):
    (tmp_path / ".streamxf").mkdir()
    path = tmp_path / "step-3"
    dcp.save(STATE, storage_writer=WriterOfTorch(path), no_dist=True)
    data_files(path)[0].unlink()
    with pytest.raises(CheckpointException) as caught:
        load(path)
    assert any("STREAMXF_SKIP=step-3" in note for note in unwrapped(caught.value).__notes__)


def test_out_of_a_run_nothing_is_said(tmp_path: Path):
    path, _ = saved(tmp_path)
    shutil.rmtree(tmp_path / ".streamxf")
    flip(data_files(path)[0], 2000)
    with pytest.raises(CheckpointException) as caught:
        load(path)
    assert not any("STREAMXF_SKIP" in note for note in unwrapped(caught.value).__notes__)
    assert not (tmp_path / ".streamxf").exists()
