"""``streamxf pack`` and ``streamxf transcode``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

import streamxf
from cli.command import Run
from cli.conftest import STATE
from cli.test_interrupts import interrupted, one_line

WEIGHTS = {f"layers.{n}.weight": torch.arange(200_000, dtype=torch.float32) * n for n in range(4)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of 3 MiB."""
    save_file(WEIGHTS, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def check(path: Path, keys: object = None) -> None:
    state = {name: torch.zeros(200_000) for name in WEIGHTS}
    load(state, storage_reader=streamxf.FileSystemReader(path, keys=keys))
    assert all(torch.equal(state[name], WEIGHTS[name]) for name in WEIGHTS)


def test_pack_says_what_it_wrote(run: Run, file: Path, tmp_path: Path):
    done = run("pack", file, tmp_path / "new", "--chain", "zstd+checksum")
    assert (done.code, done.err) == (0, "")
    assert "wrote 5 items in 1 file" in done.out
    assert "chain zstd:level=3+checksum" in done.out
    check(tmp_path / "new")
    assert run("verify", tmp_path / "new").code == 0


def test_pack_for_a_key_and_back(run: Run, file: Path, tmp_path: Path, key_file: Path, key: streamxf.Key):
    done = run("pack", file, tmp_path / "new", "--encrypt-to", f"file:{key_file}", "--file-size", "1MB", "--json")
    assert done.code == 0
    assert (done.json["files"], done.json["kept_files"], len(done.json["save_ids"])) == (4, 0, 1)
    check(tmp_path / "new", key)
    back = tmp_path / "back.safetensors"
    assert run("unpack", tmp_path / "new", back, "--key", f"file:{key_file}").code == 0
    assert back.read_bytes() == file.read_bytes()


def test_transcode_in_place(run: Run, plain: Path, key_file: Path, key: streamxf.Key):
    done = run("transcode", plain, "--in-place", "--chain", "lz4+encrypt", "--encrypt-to", f"file:{key_file}", "--json")
    assert done.code == 0
    assert done.json["target"] == str(plain)
    state = {"layer.weight": torch.zeros(60, 100), "step": 0}
    load(state, storage_reader=streamxf.FileSystemReader(plain, keys=key))
    assert torch.equal(state["layer.weight"], STATE["layer.weight"])
    again = run("transcode", plain, "--in-place", "--key", f"file:{key_file}")
    assert again.code == 2
    assert "--encrypt-to" in again.err


def test_a_copy_needs_a_target_or_a_place(run: Run, plain: Path, tmp_path: Path):
    assert run("transcode", plain).code == 2
    assert run("transcode", plain, tmp_path / "new", "--in-place").code == 2
    assert run("transcode", plain, tmp_path / "new", "--file-size", "much").code == 2
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_an_interrupt_leaves_nothing_half_published_and_the_next_call_goes_on(run: Run, tmp_path: Path):
    generator = torch.Generator().manual_seed(0)
    state = {f"layers.{n}.weight": torch.randn(512, 1024, generator=generator) for n in range(8)}
    save(state, storage_writer=streamxf.FileSystemWriter(tmp_path / "old"))
    new = tmp_path / "new"
    command = ["transcode", tmp_path / "old", new, "--chain", "zstd:level=19+checksum", "--file-size", "2MiB"]
    done = interrupted(command, lambda _: any(new.glob("*.slip")))
    assert done == (130, one_line("transcode"))
    finished = {path.name.removesuffix(".slip") for path in new.glob("*.slip")}
    assert {path.name for path in new.glob("*.distcp")} == finished
    assert not (new / ".metadata").exists()
    again = run(*command, "--json")
    assert again.code == 0
    assert again.json["kept_files"] == len(finished)
    target = {name: torch.zeros(512, 1024) for name in state}
    load(target, storage_reader=streamxf.FileSystemReader(new))
    assert all(torch.equal(target[name], state[name]) for name in state)
