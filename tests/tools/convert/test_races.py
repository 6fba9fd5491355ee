"""Conversions to one folder at the same time: what one of them has published stays, whatever becomes of the others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint import FileSystemWriter as StockWriter
from torch.distributed.checkpoint import save as dcp_save

import streamxf
from streamxf.errors import AbortedError, ContainerError, ReplacedError
from streamxf.tools.convert.pack import pack, transcode
from streamxf.wording import many
from tests.progress.recorder import Meanwhile
from tests.tools.convert.states import assert_same, assert_whole, data_files, loaded, trained

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is unavailable")

FILE_SIZE = 400_000


def stop() -> None:
    raise InterruptedError


def begun(*arguments: Any, **options: Any) -> None:
    """A conversion that stops in the middle, and leaves what it has finished."""
    with pytest.raises(InterruptedError):
        transcode(*arguments, **options, file_size=FILE_SIZE, progress=Meanwhile(stop, 2_000_000))


def only_whole(path: Path) -> None:
    """The folder holds one checkpoint, all of it, and nothing else that cannot be cleaned up."""
    streamxf.clean(path)
    assert_same(loaded(path), trained())
    only_named(path)


def only_named(path: Path) -> None:
    assert_whole(path)
    assert sorted(file.name for file in path.iterdir()) == sorted([".metadata", *data_files(path)])


@pytest.mark.parametrize("in_place", [False, True])
def test_two_that_go_on_from_the_same_files(tmp_path, source, in_place):
    """The first to publish has them; the second must not remove them when it fails."""
    places = (source,) if in_place else (source, tmp_path / "target")
    options: dict[str, Any] = {"chain": "zstd", "in_place": in_place}
    begun(*places, **options)

    def other() -> None:
        assert transcode(*places, **options, file_size=FILE_SIZE).kept_files

    with pytest.raises((AbortedError, ReplacedError) if in_place else AbortedError):
        transcode(*places, **options, file_size=FILE_SIZE, progress=Meanwhile(other))
    only_whole(places[-1])


@pytest.mark.parametrize("in_place", [False, True])
def test_the_second_goes_on_from_files_of_the_first_which_is_at_work(tmp_path, source, in_place):
    places = (source,) if in_place else (source, tmp_path / "target")
    options: dict[str, Any] = {"chain": "zstd", "in_place": in_place}

    def other() -> None:
        assert transcode(*places, **options, file_size=FILE_SIZE).kept_files

    with pytest.raises((AbortedError, ReplacedError) if in_place else AbortedError):
        transcode(*places, **options, file_size=FILE_SIZE, progress=Meanwhile(other, 2_000_000))
    only_whole(places[-1])


@pytest.mark.parametrize("at", [2_000_000, None])
def test_who_loses_is_told_of_the_files_that_are_left(tmp_path, source, at):
    """The first to publish removes those that were finished then."""
    target = tmp_path / "target"

    def other() -> None:
        transcode(source, target, "lz4", overwrite=True, file_size=FILE_SIZE)

    with pytest.raises((AbortedError, FileExistsError)) as caught:
        transcode(source, target, "zstd", file_size=FILE_SIZE, progress=Meanwhile(other, *([at] if at else [])))
    left = sum(name.endswith(".distcp") for name in streamxf.clean(target, dry_run=True).removed)
    said = [note for note in getattr(caught.value, "__notes__", []) if "repeat it to resume" in note]
    assert [note.partition(" left")[0] for note in said] == ([many(left, "finished data file")] if left else [])
    only_whole(target)


def test_one_that_cannot_be_published_goes_on_later(tmp_path, source, monkeypatch):
    target = tmp_path / "target"

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("streamxf.tools.convert.conversion.publish", full)
        with pytest.raises(OSError, match="No space left") as raised:
            transcode(source, target, "zstd", file_size=FILE_SIZE)
    assert "repeat it to resume" in raised.value.__notes__[-1]
    done = transcode(source, target, "zstd", file_size=FILE_SIZE)
    assert done.kept_files == done.files
    only_whole(target)


def test_one_that_began_before_the_target_was_there_does_not_replace_it(tmp_path, source):
    """Without `overwrite`, whatever was published first."""
    weights = tmp_path / "a.safetensors"
    save_file({"w": torch.ones(300, 300)}, weights)

    def other() -> None:
        transcode(source, tmp_path / "target", "lz4")

    with pytest.raises(AbortedError, match="not published"):
        pack(weights, tmp_path / "target", progress=Meanwhile(other))
    only_whole(tmp_path / "target")


# -- sources that do not stay as they are ------------------------------------------------------------


def test_a_file_that_is_replaced_while_it_is_packed_is_not_published(tmp_path):
    """By one of the same size, with the time of the old one, as programs that copy files do."""
    weights = tmp_path / "a.safetensors"

    def written(value: float) -> None:
        before = weights.stat() if weights.exists() else None
        save_file({f"w{number}": torch.full((300, 300), value) for number in range(20)}, weights)
        if before is not None:
            os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))

    written(1.0)
    change = Meanwhile(lambda: written(2.0), 2_000_000)
    with pytest.raises(ContainerError, match="changed while it was read"):
        pack(weights, tmp_path / "target", "zstd", file_size=FILE_SIZE, progress=change)
    assert not (tmp_path / "target" / ".metadata").exists()
    assert not pack(weights, tmp_path / "target", "zstd", file_size=FILE_SIZE).kept_files
    found = loaded(tmp_path / "target")
    assert all(torch.equal(found[f"w{number}"], torch.full((300, 300), 2.0)) for number in range(20))
    only_named(tmp_path / "target")


def test_a_stock_checkpoint_that_is_saved_again_while_it_is_copied_is_not_published(tmp_path):
    def saved(value: float) -> None:
        state = {f"w{number}": torch.full((300, 300), value) for number in range(20)}
        dcp_save(state, storage_writer=StockWriter(tmp_path / "stock", sync_files=False))

    saved(1.0)
    change = Meanwhile(lambda: saved(2.0), 2_000_000)
    with pytest.raises(ContainerError, match="changed while it was read"):
        transcode(tmp_path / "stock", tmp_path / "target", "lz4", file_size=FILE_SIZE, progress=change)
    assert not (tmp_path / "target" / ".metadata").exists()
