"""What a mount shows of a checkpoint that another host has replaced is not damage, and decides nothing."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf.errors import StaleError, StreamxfError, notes_of
from streamxf.manager.latest import is_complete
from streamxf.storage import abilities as disk
from streamxf.storage.opening import open_storage
from tests.altered import flip
from tests.cli.command import Run
from tests.failing import fails_with
from tests.manager.runs import blank, replace_by_larger, resumed, saved_run

MOUNTS = ("fuse.rclone", "fuse.seaweedfs", "fuse.of-somebody")
DISKS = ("ext4", "tmpfs", "nfs4", "fuse.sshfs", "fuse.s3fs", "zonefs", "")
MAY = "this mount may show old sizes or names of what another host replaced: wait, remount"


def show(shown: Path, stored: Path, size: int) -> None:
    """The new contents up to the old size, as the kernel's cache shows them: with zeros if they are shorter."""
    shown.write_bytes(stored.read_bytes()[:size].ljust(size, b"\0"))


def metadata_cut(step: Path, new: Path) -> None:
    size = (step / ".metadata").stat().st_size
    assert size < (new / ".metadata").stat().st_size
    show(step / ".metadata", new / ".metadata", size)


def metadata_longer(step: Path, new: Path) -> None:
    show(step / ".metadata", new / ".metadata", (new / ".metadata").stat().st_size + 1000)


def old_listing(step: Path, new: Path) -> None:
    shutil.copy(new / ".metadata", step)


def data_cut(step: Path, new: Path) -> None:
    shutil.copytree(new, step, dirs_exist_ok=True)
    (data,) = new.glob("*.distcp")
    show(step / data.name, data, data.stat().st_size // 2)


SHOWN = (metadata_cut, metadata_longer, old_listing, data_cut)


@pytest.fixture(params=SHOWN)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A run whose newest checkpoint another host has replaced."""
    saved_run(tmp_path / "run", 1, 2)
    replace_by_larger(tmp_path / "new")
    request.param(tmp_path / "run/step-2", tmp_path / "new")
    return tmp_path / "run"


def mount(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(disk, "mounted", lambda _: (kind, "of:somewhere"))


def causes(error: BaseException) -> list[BaseException]:
    return [entry[0] for entry in getattr(error, "failures", {}).values()] or [error]


def read(step: Path) -> None:
    with streamxf.Checkpoint(step) as saved:
        for name in saved:
            saved[name].read()


@pytest.mark.parametrize("kind", MOUNTS)
def test_it_decides_nothing(run: Path, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mount(monkeypatch, kind)
    step, calls = run / "step-2", list[Callable[[], object]]()
    calls += [lambda: streamxf.latest(run), lambda: streamxf.latest(run, verify="whole"), lambda: resumed(run)]
    calls += [lambda: dcp.load(blank(), storage_reader=streamxf.FileSystemReader(step), no_dist=True)]
    calls += [lambda: read(step), lambda: is_complete(step)]
    for call in calls:
        with pytest.raises((StreamxfError, CheckpointException)) as caught:
            call()
        for error in causes(caught.value):
            assert isinstance(error, StaleError)
            assert MAY in str(error)
            assert str(step) in str(error), "it names the place"
    for report in (streamxf.verify(run), streamxf.verify(step)):
        assert not report.damaged
        assert {each.error for each in report.unread} == {"StaleError"}
        assert "NOT READ" in str(report)
        assert MAY in str(report)
    assert not [*run.glob(".streamxf/damage-*")], "nobody is told that it is damaged"
    shutil.rmtree(step)
    shutil.copytree(tmp_path / "new", step)  # which the mount shows in the end
    assert streamxf.verify(step).ok
    assert str(streamxf.latest(run)) == str(step)


def test_tools_write_and_remove_nothing(
    run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step, target = run / "step-2", tmp_path / "target"
    files = {file.name: file.read_bytes() for file in step.iterdir()}
    mount(monkeypatch, "fuse.rclone")
    calls: list[Callable[[], object]] = [
        lambda: streamxf.salvage(step, target),
        lambda: streamxf.salvage(step, target, without_metadata=True),
        lambda: streamxf.load_intact(step),
        lambda: streamxf.transcode(step, target, "zstd"),
        lambda: streamxf.clean(step, min_age=0),
    ]
    for call in calls:
        with pytest.raises(StaleError, match=MAY):
            call()
    looked = Run(capsys)("inspect", step)
    assert looked.code == 2
    assert MAY in " ".join((looked.out + looked.err).split())
    assert not target.exists()
    assert {file.name: file.read_bytes() for file in step.iterdir()} == files
    assert "salvage" not in str(streamxf.verify(step))


@pytest.fixture
def spoiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose newest checkpoint has a bit of a tensor flipped, on a mount that may be late."""
    saved_run(tmp_path / "spoiled", 1, 2)
    (data,) = (tmp_path / "spoiled/step-2").glob("*.distcp")
    place = streamxf.Checkpoint(data.parent).stored["weight"].places[0]
    flip(data, place.at + place.size // 2)
    mount(monkeypatch, "fuse.rclone")
    return tmp_path / "spoiled"


def test_a_block_that_may_be_old(spoiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step, target, command = spoiled / "step-2", tmp_path / "target", Run(capsys)
    with pytest.raises(StaleError, match=MAY) as caught:
        streamxf.transcode(step, target, "zstd")
    assert (caught.value.item, caught.value.block) == ("weight", 0)
    with pytest.raises(CheckpointException) as loaded:
        dcp.load(blank(), storage_reader=streamxf.attach(dcp.FileSystemReader(step)), no_dist=True)
    assert isinstance(causes(loaded.value)[0], StaleError)
    for tool in (["salvage", step, target], ["inspect", step, "--values"], ["transcode", step, target]):
        assert command(*tool).code == 2, tool
    assert command("salvage", step, target, "--fresh", "--json").json["loaded"] == ["step"]
    with pytest.raises(CheckpointException) as loaded:
        resumed(spoiled, verify="none")
    assert any("STREAMXF_SKIP=step-2 passes" in note for note in notes_of(causes(loaded.value)[0]))


def test_metadata_that_is_not_listed_yet(spoiled: Path) -> None:
    (spoiled / "step-2/.metadata").unlink()
    for call in (streamxf.clean, streamxf.load_intact, streamxf.Checkpoint):
        with pytest.raises(StaleError, match=f"no metadata.*{MAY}"):
            call(spoiled / "step-2")


def test_other_formats_and_recipients(spoiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hub/model.safetensors"
    path.parent.mkdir()
    save_file({"weight": torch.zeros(1000)}, path)
    path.write_bytes(path.read_bytes()[:2000])
    flip(spoiled / "step-2/.metadata", -200)
    shutil.copytree(spoiled / "step-1", tmp_path / "longer")
    with (tmp_path / "longer/.metadata").open("ab") as file:
        file.write(b"longer")
    (plain := tmp_path / "plain").write_bytes(streamxf.encode(os.urandom(1000), "zstd"))
    (cut := tmp_path / "cut").write_bytes(plain.read_bytes()[:500])
    flip(plain, 300)
    assert Run(capsys)("cat", plain).code == Run(capsys)("cat", cut).code == 2
    calls: list[Callable[[], object]] = [
        lambda: streamxf.open(cut),
        lambda: streamxf.open(plain).read(),
        lambda: streamxf.rename(tmp_path / "longer", {"weight": "other"}),
        lambda: streamxf.inspect(path),
        lambda: streamxf.inspect(path.parent),
        lambda: streamxf.pack(path, tmp_path / "target"),
        lambda: streamxf.rename(spoiled / "step-2", {"weight": "other"}),
    ]
    for call in calls:
        with pytest.raises(StaleError, match=MAY):
            call()


@pytest.mark.parametrize("kind", DISKS)
def test_elsewhere_it_is_damage(run: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mount(monkeypatch, kind)
    assert streamxf.verify(run / "step-2").damaged
    assert str(streamxf.latest(run)).endswith("step-1")
    assert not is_complete(run / "step-2")
    with pytest.raises(StreamxfError) as caught:
        read(run / "step-2")
    assert not isinstance(caught.value, StaleError)
    assert resumed(run) == 1


def test_who_knows_that_a_mount_is_fresh_says_so(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount(monkeypatch, "fuse.rclone")
    place = open_storage(run, abilities={"fresh": True})
    assert str(streamxf.latest(place)).endswith("step-1")
    assert streamxf.verify(place.child("step-2")).damaged


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("fuse.rclone", {"stored": True, "in_order": True}),
        ("fuse.rclone", {"fresh": False}),
        ("nfs4", {"fresh": False}),
    ],
)
def test_what_is_said_of_storing_says_nothing_of_reading(
    run: Path, kind: str, told: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    mount(monkeypatch, kind)
    for call in (streamxf.latest, resumed):
        with pytest.raises(StaleError):
            call(run, abilities=told)
    assert not streamxf.verify(open_storage(run / "step-2", abilities=told)).damaged


def test_a_mount_that_cannot_read_what_was_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved_run(tmp_path, 1, 2)
    mount(monkeypatch, "fuse.rclone")
    with monkeypatch.context() as broken:
        broken.setattr(os, "preadv", fails_with(OSError, errno.EIO, os.strerror(errno.EIO)))
        for call in (lambda: streamxf.latest(tmp_path), lambda: resumed(tmp_path)):
            with pytest.raises(StaleError, match=r"step-2/\.metadata") as caught:
                call()
            assert MAY in str(caught.value)
        report = streamxf.verify(tmp_path / "step-2")
    with monkeypatch.context() as broken:
        broken.setattr("streamxf.manager.choice.contents_of", fails_with(OSError, errno.EIO, os.strerror(errno.EIO)))
        with pytest.raises(StaleError, match=f"{tmp_path}/step-2"):
            streamxf.latest(tmp_path)
    assert {each.error for each in report.unread} == {"StaleError"}
    assert not report.damaged
    assert resumed(tmp_path) == 2
