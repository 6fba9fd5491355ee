"""``streamxf unpack``."""

import os
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint import FileSystemWriter as StockWriter
from torch.distributed.checkpoint import save

import streamxf


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint"
    state = {"model": {"w": torch.arange(1000.0), "b": torch.zeros(500)}, "step": 3}
    save(state, storage_writer=streamxf.FileSystemWriter(path))
    return path


def test_what_it_says(run, tmp_path, checkpoint):
    target = tmp_path / "x.safetensors"
    done = run.exits(0, "unpack", checkpoint, target, "--prefix", "model.", err="")
    assert done.out.startswith(f"wrote 2 tensors to {target}: safetensors, 1 file, 6.0 KiB in ")
    assert set(load_file(target)) == {"w", "b"}


def test_json(run, tmp_path, checkpoint):
    target = tmp_path / "hub"
    options = ("--format", "huggingface", "--shard-size", "4KB", "--skip-objects", "--json")
    done = run("unpack", checkpoint, target, *options)
    found = done.json
    assert (done.code, found["tensors"], found["left_out"], found["files"]) == (0, 2, ["step"], 3)
    assert found["bytes"] == sum(file.stat().st_size for file in target.iterdir())


def test_stock_dcp(run, tmp_path, checkpoint):
    done = run("unpack", checkpoint, tmp_path / "stock", "--format", "dcp", "--json")
    assert (done.code, done.json["items"]) == (0, 3)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["x.safetensors"], "1 object"),
        (["x.safetensors", "--shard-size", "much"], "'much' is not a size"),
        (["x.safetensors", "--format", "zip"], "'zip'"),
        (["x.pt", "--only", "nothing"], "no item has such a name"),
        (["there.pt"], "the target exists"),
        (["folder", "--format", "torch", "--overwrite"], "not a regular file"),
        (["folder", "--format", "huggingface", "--prefix", "model.", "--overwrite"], "not a Hugging Face checkpoint"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_it_refuses_in_one_line(run, tmp_path, checkpoint, arguments, text):
    (tmp_path / "there.pt").write_bytes(b"old")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "other").write_bytes(b"old")
    before = sorted(os.listdir(tmp_path))
    done = run.exits(2, "unpack", checkpoint, tmp_path / arguments[0], *arguments[1:], out="")
    assert text in done.err
    assert done.err.count("\n") == 1
    assert sorted(os.listdir(tmp_path)) == before
    assert (tmp_path / "there.pt").read_bytes() == (tmp_path / "folder" / "other").read_bytes() == b"old"


class Own(torch.Tensor):
    """As torchao's weights are to a shell."""


@pytest.mark.parametrize("source", ["streamxf", "stock", "file"])
@pytest.mark.parametrize("value", [Namespace(), torch.ones(2).as_subclass(Own)], ids=["object", "tensor"])
def test_what_needs_an_unknown_class(run, tmp_path: Path, source: str, value: object) -> None:
    """The advice is what a shell can do, and each part of it works."""
    state, path = {"model": {"w": torch.ones(3)}, "odd": [value, torch.ones(1)]}, tmp_path / source
    if source == "file":
        torch.save(state, path)
    else:
        save(state, storage_writer=(streamxf.FileSystemWriter if source == "streamxf" else StockWriter)(path))
    refused = run.exits(2, "unpack", path, tmp_path / "x.pt")
    assert "leave such items out (--skip-objects)" in refused.err
    assert "safe_globals=" not in refused.err
    assert not (tmp_path / "x.pt").exists()
    for name in ("x.pt", "x.safetensors"):
        assert "left out: odd.0" in run.exits(0, "unpack", path, tmp_path / name, "--skip-objects").out
    assert torch.load(tmp_path / "x.pt")["odd"] == [None, torch.ones(1)]
    if source != "file":
        assert "--format 'dcp'" in refused.err
        assert run("unpack", path, tmp_path / "copy", "--format", "dcp").code == 0
    with torch.serialization.safe_globals([Namespace, Own]):
        streamxf.unpack(path, tmp_path / "y.pt")
        assert type(torch.load(tmp_path / "y.pt")["odd"][0]) is type(value)
