"""Unpacking that is killed, fails or meets itself: what was there stays, and the next call starts over."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import save as dcp_save

import streamxf
from streamxf.errors import AbortedError, ContainerError, NoSpaceError
from streamxf.storage.local import LocalStorage
from streamxf.tools.convert import unpack as unpacking
from streamxf.tools.convert.unpack import unpack
from tests.progress.recorder import Meanwhile
from tests.tools.convert.child import STEPS, Child, kills
from tests.tools.convert.states import digests

TOUCHES = [(LocalStorage, "create"), (unpacking, "write_all"), (LocalStorage, "sync"), (shutil, "rmtree")]
TOUCHES += [(Path, name) for name in ("mkdir", "rename", "replace")]
TARGETS = {"x.safetensors": None, "x.pt": None, "hub": "huggingface"}


def remove(target: Path) -> None:
    if target.exists():
        shutil.rmtree(target) if target.is_dir() else target.unlink()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kills") / "checkpoint"
    torch.manual_seed(1)
    state = {f"layer.{number}": torch.randn(300, 300) for number in range(6)}
    dcp_save({**state, "step": 3}, storage_writer=streamxf.FileSystemWriter(path))
    return path


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", TARGETS)
def test_killed_at_any_moment_it_ends_as_if_it_had_not_been(tmp_path, checkpoint, name, step):
    """What is seen at the target is nothing or all of it, and the next call leaves nothing else."""
    options = {"format": TARGETS[name], "skip_objects": True}
    if "." not in name:  # a folder
        options["shard_size"] = 10**6
    unpack(checkpoint, tmp_path / "plain" / name, **options)
    whole = digests(tmp_path / "plain" / name)
    target = tmp_path / "killed" / name
    for _ in kills(step, TOUCHES, lambda: unpack(checkpoint, target, **options), lambda: remove(target)):
        if target.exists():
            assert digests(target) == whole
            remove(target)
        unpack(checkpoint, target, **options)
        assert digests(target) == whole
        assert os.listdir(target.parent) == [name]


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_moment_while_it_replaces_a_folder(tmp_path, checkpoint, step):
    """The user's file is there after the next call; before that, there is the old folder, the new one, or none."""
    hub = tmp_path / "hub"

    def call(shard_size: int = 500_000) -> Any:
        return unpack(checkpoint, hub, skip_objects=True, shard_size=shard_size, overwrite=hub.exists())

    def old() -> None:
        remove(hub)
        call(10**7)
        (hub / "config.json").write_text("{}")

    def again() -> Any:
        return unpack(checkpoint, hub, skip_objects=True, shard_size=500_000, overwrite=True)

    for _ in kills(step, TOUCHES, again, old):
        shards = len(list(hub.glob("*.safetensors"))) if hub.exists() else 0
        assert shards in (0, 1, 6)
        again()
        assert (hub / "config.json").read_text() == "{}"
        assert len(list(hub.glob("*.safetensors"))) == 6
        assert os.listdir(tmp_path) == ["hub"]


def test_one_process_at_a_time(tmp_path, checkpoint):
    target = tmp_path / "x.safetensors"
    children: list[Child] = []
    options = {"skip_objects": True}

    def second() -> str:
        with pytest.raises(AbortedError) as raised:
            unpack(checkpoint, target, **options)
        return raised.value.message

    def begin() -> None:
        children.append(Child(second))
        assert children[0].wait(60)

    unpack(checkpoint, target, **options, progress=Meanwhile(begin))
    assert "another process" in str(children[0].result())
    assert os.listdir(tmp_path) == ["x.safetensors"]


@pytest.fixture
def hub(tmp_path: Path, checkpoint: Path) -> Path:
    """A model in a folder, with a file of the user's."""
    unpack(checkpoint, tmp_path / "hub", skip_objects=True, shard_size=500_000)
    (tmp_path / "hub" / "config.json").write_text("{}")
    return tmp_path / "hub"


def test_a_folder_that_could_not_be_put_in_place_leaves_the_one_before(tmp_path, checkpoint, hub, monkeypatch):
    before = digests(hub)
    real = Path.replace

    def failing(self: Path, target: Path) -> Path:
        if self.name == "content":
            raise OSError(5, "Input/output error")
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", failing)
        with pytest.raises(OSError, match="Input/output"):
            unpack(checkpoint, hub, skip_objects=True, overwrite=True)
    assert digests(hub) == before
    assert os.listdir(tmp_path) == ["hub"]


def test_an_error_leaves_nothing(tmp_path, checkpoint):
    shutil.copytree(checkpoint, tmp_path / "damaged")
    (file,) = (tmp_path / "damaged").glob("*.distcp")
    data = file.read_bytes()
    file.write_bytes(data[:-300_000] + bytes(1000) + data[-299_000:])
    with pytest.raises(ContainerError):
        unpack(tmp_path / "damaged", tmp_path / "x.safetensors", skip_objects=True)
    assert os.listdir(tmp_path) == ["damaged"]


def test_a_full_disk_is_found_out_before_anything_is_written(tmp_path, checkpoint, monkeypatch):
    class Full:
        free = 1000
        plain = True

    monkeypatch.setattr("streamxf.storage.abilities.Volume.of", lambda _: Full())
    with pytest.raises(NoSpaceError, match="too full"):
        unpack(checkpoint, tmp_path / "x.pt")
    assert os.listdir(tmp_path) == []
