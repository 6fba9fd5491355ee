"""Checkpoints that were made by torch 1.13 to 2.15 themselves; older/make.py made them."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch

import streamxf

from .helpers import assert_same, load_with

FILES = sorted((Path(__file__).parent / "older").glob("*.tar.xz"))
STATE = {
    "weight": torch.arange(8.0).reshape(4, 2),
    "model": {"bias": torch.tensor([1.0, -2.0, 0.5], dtype=torch.bfloat16)},
    "step": 7,
}


def folders_of(file: Path) -> list[str]:
    with tarfile.open(file) as archive:
        return sorted({name.partition("/")[0] for name in archive.getnames()})


FLAT = {"weight": STATE["weight"], "model.bias": STATE["model"]["bias"], "step": 7}  # torch 1.13 knew no nested ones
CASES = [
    pytest.param((file, folder), id=f"{file.name.removesuffix('.tar.xz')}-{folder}")
    for file in FILES
    for folder in folders_of(file)
]


@pytest.fixture(params=CASES)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    file, folder = request.param
    with tarfile.open(file) as archive:
        archive.extractall(tmp_path, filter="data")
    path: Path = tmp_path / folder
    return path


def test_it_loads(checkpoint: Path) -> None:
    assert_same(load_with(STATE, streamxf.FileSystemReader(checkpoint)), STATE)
    assert_same(load_with(STATE, streamxf.FsspecReader(str(checkpoint))), STATE)


def test_it_is_read_item_by_item(checkpoint: Path) -> None:
    with streamxf.Checkpoint(checkpoint) as opened:
        assert {*opened.stored} == {"weight", "model.bias", "step"}
        assert torch.equal(opened["weight"].read(), STATE["weight"])
        assert torch.equal(opened["model.bias"].read(), STATE["model"]["bias"])
        assert len(opened.stored["weight"].chunks) == (2 if checkpoint.name == "two" else 1)


def test_it_verifies_and_is_salvaged(checkpoint: Path) -> None:
    assert streamxf.verify(checkpoint).ok
    salvaged = streamxf.load_intact(checkpoint).state_dict
    assert_same(salvaged, STATE if "model" in salvaged else FLAT)


def test_it_is_transcoded_and_unpacked(checkpoint: Path, tmp_path: Path) -> None:
    streamxf.transcode(checkpoint, tmp_path / "copy", "zstd+checksum")
    assert_same(load_with(STATE, streamxf.FileSystemReader(tmp_path / "copy")), STATE)
    for path in (checkpoint, tmp_path / "copy"):
        streamxf.unpack(path, tmp_path / f"{path.name}.pt")
        unpacked = torch.load(tmp_path / f"{path.name}.pt")
        assert_same(*map(by_name, (unpacked, STATE if "model" in unpacked else FLAT)))


def by_name(value: Any) -> Any:
    """Dicts in the order of their keys: an index has items in the order of their names, and a pickle any."""
    return {name: by_name(value[name]) for name in sorted(value)} if isinstance(value, dict) else value


def test_all_are_there() -> None:
    versions = [tuple(map(int, file.name.split("-")[1].split(".")[:2])) for file in FILES]
    assert min(versions) == (1, 13)
    assert max(versions) >= (2, 15)
    assert sum(file.stat().st_size for file in FILES) < 100_000
