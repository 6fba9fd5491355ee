"""A tool built of public names alone, run by Python as anybody would run it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf

from . import third_party_tool

TOOL = Path(third_party_tool.__file__)


@pytest.fixture
def places(tmp_path: Path) -> list[str]:
    """A key, and two checkpoints, in each a tensor of several boxes."""
    streamxf.keys.write_key(tmp_path / "key", streamxf.Key.generate())
    for number in (1, 2):
        weight = torch.arange(90_000.0).reshape(300, 300) * number
        state = {"weight": weight, "step": number, "half": torch.ones(3).half()}
        writer = streamxf.FileSystemWriter(tmp_path / str(number), chain="zstd+encrypt", keys=tmp_path / "key")
        dcp.save(state, storage_writer=writer, no_dist=True)
    return [f"file:{tmp_path}/key", str(tmp_path / "1"), str(tmp_path / "2")]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-I", str(TOOL), *arguments], capture_output=True, text=True, check=False)


def test_it_uses_nothing_but_what_is_declared():
    tree = ast.parse(TOOL.read_text())
    used = {one.module for one in ast.walk(tree) if isinstance(one, ast.ImportFrom)} - {"collections.abc", "contextlib"}
    assert used == {"streamxf", "streamxf.errors", "streamxf.places", "streamxf.reading"}
    assert not [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr.startswith("_")]


def test_it_works(tmp_path: Path, places: list[str]) -> None:
    key, *checkpoints = places
    done = run(key, str(tmp_path / "mean"), *checkpoints)
    assert done.stdout.startswith('1 b\'{"of": ['), done.stderr
    assert '"weight": "float32 [300, 300], 360000 of 360000 bytes"' in done.stdout
    with streamxf.Checkpoint(tmp_path / "mean", keys=key) as mean:
        assert torch.equal(mean["weight"].read(), torch.arange(90_000.0).reshape(300, 300) * 1.5)
        assert (mean["step"].read(), mean["half"].read().dtype) == (1, torch.float16)


def test_an_error_names_the_file_and_nothing_is_published(tmp_path: Path, places: list[str]) -> None:
    key, *checkpoints = places
    data = max(Path(checkpoints[1]).glob("*.distcp"), key=lambda path: path.stat().st_size)
    data.write_bytes(data.read_bytes()[:-1000])
    done = run(key, str(tmp_path / "mean"), *checkpoints)
    assert (done.returncode, done.stderr[:18]) == (1, "third_party_tool: ")
    assert data.name in done.stderr
    assert not (tmp_path / "mean" / ".metadata").exists()
