"""A Git LFS pointer in place of a file, as a clone without `git lfs` has it: readers say so, and it is no damage."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

import streamxf
from streamxf.errors import UnsupportedError, is_damage

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d7a" * 16 + b"\nsize 2336927755\n"
EXTENSION = b"ext-0-x sha256:" + b"0" * 64 + b"\n"
OLDER = POINTER.replace(b"git-lfs.github.com", b"hawser.github.com").replace(b"oid", EXTENSION + b"oid")
STATE = {"weight": torch.ones(1000)}

READERS: dict[str, Callable[[Path, Path], Any]] = {
    "inspect": lambda path, _: streamxf.inspect(path),
    "verify": lambda path, _: streamxf.verify(path),
    "diff": lambda path, _: streamxf.diff(path, path),
    "pack": lambda path, new: streamxf.pack(path, new, chain="zstd"),
    "unpack": lambda path, new: streamxf.unpack(path, new / "new.safetensors"),
}


def refuse(call: Callable[[], Any]) -> None:
    with pytest.raises(UnsupportedError, match="run `git lfs pull`") as failure:
        call()
    assert not is_damage(failure.value)


@pytest.mark.parametrize("reader", ["inspect", "verify", "diff", "pack"])
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "weights.pt"])
def test_single_files(tmp_path: Path, name: str, reader: str) -> None:
    save_file(STATE, tmp_path / name)
    (tmp_path / name).write_bytes(POINTER)
    refuse(lambda: READERS[reader](tmp_path / name, tmp_path / "new"))


@pytest.mark.parametrize("reader", ["inspect", "unpack"])
def test_metadata(tmp_path: Path, reader: str) -> None:
    dcp.save(STATE, storage_writer=streamxf.FileSystemWriter(tmp_path / "saved"))
    (tmp_path / "saved" / ".metadata").write_bytes(POINTER)
    refuse(lambda: READERS[reader](tmp_path / "saved", tmp_path))
    refuse(lambda: streamxf.verify(tmp_path / "saved"))


def test_data(tmp_path: Path) -> None:
    dcp.save(STATE, storage_writer=streamxf.FileSystemWriter(tmp_path / "saved"))
    (data,) = (tmp_path / "saved").glob("*.distcp")
    data.write_bytes(POINTER)
    with streamxf.Checkpoint(tmp_path / "saved") as checkpoint:
        refuse(checkpoint["weight"].read)
    refuse(lambda: READERS["unpack"](tmp_path / "saved", tmp_path))
    refuse(lambda: streamxf.verify(tmp_path / "saved"))


@pytest.mark.parametrize("name", [".metadata", "*.distcp"])
def test_no_job_falls_back_for_it(tmp_path: Path, name: str) -> None:
    """Whatever streamxf does not support, a job is told of it."""
    with streamxf.CheckpointManager(tmp_path) as manager:
        for step in (1, 2):
            manager.save(step, STATE)
    (file,) = (tmp_path / "step-2").glob(name)
    file.write_bytes(OLDER)
    refuse(lambda: streamxf.latest(tmp_path, verify="whole"))
    with streamxf.CheckpointManager(tmp_path) as manager:
        refuse(lambda: manager.resume({"weight": torch.zeros(1000)}))
    assert not [*tmp_path.rglob("damage-*")]


@pytest.mark.parametrize("pointers", [["model.safetensors"], ["m.pt", "model-00001.safetensors"]])
def test_files_beside_others_are_not_read(tmp_path: Path, pointers: list[str]) -> None:
    """Whoever takes "no damage found" for leave to remove the source would lose the weights."""
    torch.save({"lr": 0.1}, tmp_path / "training_args.bin")
    (tmp_path / "config.json").write_text("{}")
    for name in pointers:
        (tmp_path / name).write_bytes(POINTER)
    report = streamxf.verify(tmp_path)
    assert not report.ok
    assert not report.damaged
    assert sorted(str(each.file) for each in report.unread) == pointers
