"""Unpacking that is killed, fails or meets itself: what was there stays, and the next call goes on."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from streamxf.formats.source import boxes_of
from streamxf.tools.convert.files import layout, writing
from streamxf.tools.convert.files.journal import Journal
from tools.convert.child import Child
from torch.distributed.checkpoint import FileSystemWriter as StockWriter
from torch.distributed.checkpoint import save as dcp_save

import streamxf
from streamxf.errors import AbortedError, ContainerError, NoSpaceError
from streamxf.tools.convert.unpack import unpack

KILLS = 20
SYNC = 200_000
BOX_BYTES = 4096  # far less than a tensor has, so that kills fall into the middle of tensors
TARGETS = {"x.safetensors": None, "x.pt": None, "hub": "huggingface"}


def digests(path: Path) -> dict[str, str]:
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def start(source: Path, target: Path, name: str | None = None) -> Child:
    """A process that unpacks in small boxes; its result is the bytes that were there already."""

    def call() -> int:
        layout.boxes_of = functools.partial(boxes_of, limit=BOX_BYTES)
        writing.SYNC_BYTES = SYNC
        return unpack(source, target, format=name, skip_objects=True, shard_size=10**6).kept_bytes

    return Child(call)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kills") / "checkpoint"
    torch.manual_seed(1)
    state = {f"layer.{number}": torch.randn(300, 300) for number in range(6)}
    dcp_save({**state, "step": 3}, storage_writer=streamxf.FileSystemWriter(path))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_killed_at_any_moment_it_ends_as_if_it_had_not_been(tmp_path, checkpoint, name):
    """What is seen at the target is nothing or all of it, and calls that are killed add up to a whole one."""
    chance = random.Random(name)
    begin = time.monotonic()
    assert start(checkpoint, tmp_path / "plain" / name, TARGETS[name]).result() == 0
    seconds = time.monotonic() - begin
    whole = digests(tmp_path / "plain" / name)
    target = tmp_path / "killed" / name
    killed = 0
    while killed < KILLS:
        child = start(checkpoint, target, TARGETS[name])
        if not child.wait(chance.random() * seconds):
            child.kill()
        result = child.result()
        if target.exists():
            assert digests(target) == whole
        if result is None:
            killed += 1
            continue
        assert os.listdir(target.parent) == [name]
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    if target.exists():  # it was killed when all was done
        assert digests(target) == whole
        return
    assert start(checkpoint, target, TARGETS[name]).result() is not None
    assert digests(target) == whole
    assert os.listdir(target.parent) == [name]


def killed_in_the_middle(checkpoint: Path, target: Path) -> int:
    """Kill a process when its journal says that something is on the disk; returns the bytes that are there."""
    journal = target.with_name(f".{target.name}.part") / "journal"
    child = start(checkpoint, target)
    while not journal.exists():
        assert not child.wait(0.0002)
    child.kill()
    assert child.result() is None
    return int(json.loads(journal.read_text())["bytes"])


@pytest.fixture
def interrupted(tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A target that was begun, and what the whole of it is, in `whole`."""
    monkeypatch.setattr(writing, "SYNC_BYTES", SYNC)
    unpack(checkpoint, tmp_path / "whole" / "x.safetensors", skip_objects=True)
    target = tmp_path / "x.safetensors"
    assert killed_in_the_middle(checkpoint, target) >= SYNC
    assert not target.exists()
    return target


def same(target: Path) -> bool:
    return digests(target) == digests(target.parent / "whole" / "x.safetensors")


def test_the_next_call_goes_on(interrupted, checkpoint):
    done = unpack(checkpoint, interrupted, skip_objects=True)
    assert done.kept_bytes >= SYNC
    assert same(interrupted)
    assert "resumed" in str(done)
    assert sorted(os.listdir(interrupted.parent)) == ["whole", "x.safetensors"]


def test_what_is_not_in_the_journal_does_not_count(interrupted, checkpoint):
    """A power cut may leave anything behind what was synced."""
    draft = interrupted.with_name(".x.safetensors.part")
    said = json.loads((draft / "journal").read_text())["bytes"]
    with open(draft / "content" / "x.safetensors", "r+b") as file:
        file.seek(said)
        file.write(b"\xff" * 500_000)
    done = unpack(checkpoint, interrupted, skip_objects=True)
    assert done.kept_bytes == said
    assert same(interrupted)


@pytest.mark.parametrize("damage", ["journal is cut", "journal is gone", "journal is a list", "draft is short"])
def test_what_does_not_fit_is_begun_anew(interrupted, checkpoint, damage):
    draft = interrupted.with_name(".x.safetensors.part")
    match damage:
        case "journal is cut":
            (draft / "journal").write_text((draft / "journal").read_text()[:-5])
        case "journal is gone":
            (draft / "journal").unlink()
        case "journal is a list":
            (draft / "journal").write_text("[]")
        case "draft is short":
            os.truncate(draft / "content" / "x.safetensors", 100)
    done = unpack(checkpoint, interrupted, skip_objects=True)
    assert done.kept_bytes == 0
    assert same(interrupted)


def test_another_source_is_begun_anew(interrupted, tmp_path):
    other = {"layer.0": torch.ones(300, 300)}
    dcp_save(other, storage_writer=streamxf.FileSystemWriter(tmp_path / "other"))
    assert unpack(tmp_path / "other", interrupted).kept_bytes == 0
    unpack(tmp_path / "other", tmp_path / "y.safetensors")
    assert digests(interrupted) == digests(tmp_path / "y.safetensors")


def test_a_stock_checkpoint_that_was_replaced_is_begun_anew(tmp_path, monkeypatch):
    """Where no save has an id, times tell."""
    for value in (1.0, 2.0):
        state = {f"layer.{number}": torch.full((300, 300), value) for number in range(10)}
        if value == 2.0:
            assert killed_in_the_middle(tmp_path / "stock", tmp_path / "x.safetensors") >= SYNC
        dcp_save(state, storage_writer=StockWriter(tmp_path / "stock"))
    assert unpack(tmp_path / "stock", tmp_path / "x.safetensors").kept_bytes == 0


class Killed(SystemExit):
    """Ends a call, which leaves everything as a process does that is killed."""


@pytest.fixture
def killed_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Unpack, and stop before the journal says what it is to say the n-th time, or after that."""

    def call(number: int, *arguments: Any, before: bool = False, **options: Any) -> None:
        said = []
        real = Journal.write

        def write(self: Journal, *facts: int) -> None:
            said.append(facts)
            if before and len(said) == number:
                raise Killed
            real(self, *facts)
            if len(said) == number:
                raise Killed

        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(Journal, "write", write)
            patch.setattr(writing.Writing, "_keep_or_remove", lambda *_: None)
            unpack(*arguments, **options)

    return call


def test_what_another_call_has_begun_does_not_count(tmp_path, killed_at):
    """One is killed, then another that had replaced a file of the first and not yet said so; the first goes on."""
    for name in ("one", "two"):
        torch.manual_seed(len(name) + ord(name[0]))
        state = {f"layer.{number}": torch.randn(300, 300) for number in range(4)}
        dcp_save(state, storage_writer=streamxf.FileSystemWriter(tmp_path / name))
    options = {"format": "huggingface", "shard_size": 400_000}
    killed_at(1, tmp_path / "one", tmp_path / "hub", **options)
    killed_at(1, tmp_path / "two", tmp_path / "hub", before=True, **options)
    unpack(tmp_path / "one", tmp_path / "hub", **options)
    unpack(tmp_path / "one", tmp_path / "plain", **options)
    assert digests(tmp_path / "hub") == digests(tmp_path / "plain")


def test_a_target_that_is_not_what_was_put_there_is_not_taken_for_done(tmp_path, checkpoint, monkeypatch):
    target = tmp_path / "x.safetensors"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(shutil, "rmtree", _killed)
        unpack(checkpoint, target, skip_objects=True)
    target.write_bytes(b"somebody else's")
    with pytest.raises(FileExistsError):
        unpack(checkpoint, target, skip_objects=True)
    assert target.read_bytes() == b"somebody else's"
    assert not unpack(checkpoint, target, skip_objects=True, overwrite=True).kept_bytes
    assert os.listdir(tmp_path) == ["x.safetensors"]


def _killed(*_: object) -> None:
    raise Killed


def test_a_folder_that_could_not_be_put_in_place_leaves_the_one_before(tmp_path, checkpoint, monkeypatch):
    hub = tmp_path / "hub"
    unpack(checkpoint, hub, skip_objects=True, shard_size=500_000)
    before = digests(hub)
    real = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name == "content":
            raise OSError(5, "Input/output error")
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", failing)
        with pytest.raises(OSError, match="Input/output"):
            unpack(checkpoint, hub, skip_objects=True, overwrite=True)
    assert digests(hub) == before
    assert unpack(checkpoint, hub, skip_objects=True, overwrite=True).kept_bytes
    assert os.listdir(tmp_path) == ["hub"]


def test_killed_between_the_last_steps(tmp_path, checkpoint, monkeypatch):
    """When the target is in its place, and the folder beside it is not yet gone."""
    target = tmp_path / "x.safetensors"

    def killed(*arguments: object) -> None:
        raise SystemExit  # the draft folder stays as it is

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(SystemExit):
            unpack(checkpoint, target, skip_objects=True)
    assert target.exists()
    done = unpack(checkpoint, target, skip_objects=True)
    assert done.kept_bytes == done.bytes
    assert os.listdir(tmp_path) == ["x.safetensors"]
    with pytest.raises(FileExistsError):
        unpack(checkpoint, target, skip_objects=True)


@pytest.mark.parametrize("step", ["replaced", "content"])
def test_killed_while_a_folder_is_replaced(tmp_path, checkpoint, step, monkeypatch):
    hub = tmp_path / "hub"
    unpack(checkpoint, hub, skip_objects=True, shard_size=500_000)
    (hub / "config.json").write_text("{}")
    done_before = digests(hub)
    real = Path.rename

    def killed(self: Path, target: Path) -> Path:
        if (self if step == "content" else Path(target)).name == step or self.name == "replaced":
            raise SystemExit
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(SystemExit):
            unpack(checkpoint, hub, skip_objects=True, overwrite=True)
    assert hub.exists() == (step == "replaced")
    if step == "replaced":
        assert digests(hub) == done_before
    done = unpack(checkpoint, hub, skip_objects=True, overwrite=True)
    assert done.kept_bytes == done.bytes
    assert sorted(os.listdir(hub)) == ["config.json", "model.safetensors"]
    assert os.listdir(tmp_path) == ["hub"]


def test_a_folder_that_was_moved_away_comes_back_when_something_else_is_written(tmp_path, checkpoint, monkeypatch):
    hub = tmp_path / "hub"
    unpack(checkpoint, hub, skip_objects=True, shard_size=500_000)
    (hub / "config.json").write_text("{}")
    real = Path.rename

    def killed(self: Path, target: Path) -> Path:
        if self.name in ("content", "replaced"):
            raise SystemExit
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(SystemExit):
            unpack(checkpoint, hub, skip_objects=True, overwrite=True)
    unpack(checkpoint, hub, skip_objects=True, overwrite=True, shard_size=10**6)
    assert (hub / "config.json").read_text() == "{}"
    assert os.listdir(tmp_path) == ["hub"]


def test_one_process_at_a_time(tmp_path, checkpoint):
    target = tmp_path / "x.safetensors"
    child = start(checkpoint, target)
    while not (tmp_path / ".x.safetensors.part" / "journal").exists():
        assert not child.wait(0.0002)
    os.kill(child.process, signal.SIGSTOP)
    try:
        with pytest.raises(AbortedError, match="another process"):
            unpack(checkpoint, target, skip_objects=True)
    finally:
        os.kill(child.process, signal.SIGCONT)
    assert child.result() == 0
    assert target.exists()


def test_an_error_keeps_what_is_done_and_says_so(tmp_path, monkeypatch):
    torch.manual_seed(1)
    state = {f"layer.{number}": torch.randn(300, 300) for number in range(10)}
    path = tmp_path / "checkpoint"
    dcp_save(state, storage_writer=streamxf.FileSystemWriter(path))
    (file,) = path.glob("*.distcp")
    data = file.read_bytes()
    file.write_bytes(data[:-300_000] + bytes(1000) + data[-299_000:])
    monkeypatch.setattr(writing, "SYNC_BYTES", SYNC)
    with pytest.raises(ContainerError) as caught:
        unpack(path, tmp_path / "x.safetensors")
    assert any("the same call resumes from there" in note for note in caught.value.__notes__)
    assert not (tmp_path / "x.safetensors").exists()
    file.write_bytes(data)
    assert unpack(path, tmp_path / "x.safetensors").kept_bytes >= SYNC


def test_a_full_disk_is_found_out_before_anything_is_written(tmp_path, checkpoint, monkeypatch):
    class Full:
        free = 1000
        plain = True

        @classmethod
        def of(cls, folder: object) -> Full:
            return cls()

    monkeypatch.setattr(writing, "Volume", Full)
    with pytest.raises(NoSpaceError, match="too full"):
        unpack(checkpoint, tmp_path / "x.pt")
    assert os.listdir(tmp_path) == []
