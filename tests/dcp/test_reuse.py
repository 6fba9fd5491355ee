"""One writer for many saves, with every option that changes how many files there are, and rank-local metadata."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

import streamxf
from streamxf.errors import UnsupportedError
from streamxf.keys.envelope import Envelope

from .helpers import KEY, assert_same, data_files, full_chain, index_of, load, load_with, refused, save, sections_of
from .shards import save_shards


def states(count: int) -> list[dict[str, Any]]:
    return [{"w": torch.full((50, 3), float(step)), "b": torch.arange(7) + step, "step": step} for step in range(count)]


def make_writer(path: Path, **options: Any) -> streamxf.FileSystemWriter:
    return streamxf.FileSystemWriter(path, sync_files=False, _extensions=full_chain(), **options)


def make_planner(cached: bool) -> Any:
    return dcp.DefaultSavePlanner(enable_plan_caching=True) if cached else None


def assert_only_the_save_remains(path: Path) -> None:
    index = index_of(path)
    assert {file.name for file in path.iterdir()} == {".metadata", *index.files}
    for name, facts in index.files.items():
        assert (path / name).stat().st_size == facts.size


def ids_of(path: Path) -> tuple[str, set[bytes], bytes | None]:
    """The save's id, its writers' ids, and the id of its data key."""
    index = index_of(path)
    lines = sections_of(path)[1].key_lines()
    dek = Envelope.parse(lines[0]).dek_id if lines is not None else None
    return index.save_id, {file.writer for file in index.files.values()}, dek


@pytest.mark.parametrize("cached", [False, True], ids=["planned anew", "cached plans"])
def test_many_saves_into_one_folder(checkpoint: Path, cached: bool) -> None:
    writer, planner = make_writer(checkpoint), make_planner(cached)
    seen: list[tuple[str, set[bytes], bytes | None]] = []
    for state in states(4):
        dcp.save(state, storage_writer=writer, planner=planner)
        assert_same(load(state, checkpoint), state)
        assert_only_the_save_remains(checkpoint)
        seen.append(ids_of(checkpoint))
    assert len({save_id for save_id, _, _ in seen}) == 4
    assert len({writer_id for _, writers, _ in seen for writer_id in writers}) == 4
    assert len({data_key for _, _, data_key in seen}) == 4


@pytest.mark.parametrize("cached", [False, True], ids=["planned anew", "cached plans"])
def test_many_saves_into_other_folders(tmp_path: Path, cached: bool) -> None:
    writer, planner = make_writer(tmp_path / "unused"), make_planner(cached)
    kept = states(3)
    for state in kept:
        dcp.save(state, checkpoint_id=tmp_path / str(state["step"]), storage_writer=writer, planner=planner)
    for state in kept:
        assert_same(load(state, tmp_path / str(state["step"])), state)
        assert_only_the_save_remains(tmp_path / str(state["step"]))
    assert not (tmp_path / "unused").exists()


def test_a_reader_for_many_folders(tmp_path: Path) -> None:
    for state in states(3):
        save(state, tmp_path / str(state["step"]))
    reader = streamxf.FileSystemReader(tmp_path, keys=KEY)
    for state in states(3):
        found = {"w": torch.zeros(50, 3), "b": torch.zeros(7, dtype=torch.int64), "step": None}
        dcp.load(found, checkpoint_id=tmp_path / str(state["step"]), storage_reader=reader)
        assert_same(found, state)


def test_state_dicts_that_shrink_and_grow(checkpoint: Path) -> None:
    writer = make_writer(checkpoint, thread_count=3)
    for names in ("abc", "a", "abcdef", ""):
        state = {name: torch.full((9,), float(ord(name))) for name in names}
        dcp.save(state, storage_writer=writer)
        assert_same(load(state, checkpoint), state)
        assert_only_the_save_remains(checkpoint)


@pytest.mark.parametrize("previous", ["stock", "stock with codecs", "unkeyed", "other key", "rank-local files"])
def test_a_save_over_another_kind_of_checkpoint(checkpoint: Path, previous: str) -> None:
    old, new = states(2)
    if previous == "stock":
        dcp.save(old, storage_writer=dcp.FileSystemWriter(checkpoint, thread_count=2))
    elif previous == "stock with codecs":
        dcp.save(old, storage_writer=dcp.FileSystemWriter(checkpoint, thread_count=2, _extensions=full_chain()))
    elif previous == "other key":
        save(old, checkpoint, full_chain(streamxf.Key.generate()))
    else:
        save(old, checkpoint, [streamxf.ZStandard()], single_file_per_rank=previous != "rank-local files")
    dcp.save(new, storage_writer=make_writer(checkpoint))
    assert_same(load(new, checkpoint), new)
    assert_only_the_save_remains(checkpoint)


def test_overwrite_false(checkpoint: Path) -> None:
    old, new = states(2)
    writer = make_writer(checkpoint, overwrite=False)
    dcp.save(old, storage_writer=writer)
    with refused(RuntimeError, "already exists"):
        dcp.save(new, storage_writer=writer)
    assert_same(load(old, checkpoint), old)
    assert_only_the_save_remains(checkpoint)


@pytest.mark.parametrize("single_file", [True, False], ids=["file per thread", "file per item"])
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("sync", [True, False], ids=["fsync", "no fsync"])
def test_files_and_threads(
    checkpoint: Path, state: dict[str, Any], single_file: bool, threads: int, sync: bool
) -> None:
    for _ in range(2):
        save(state, checkpoint, single_file_per_rank=single_file, thread_count=threads, sync_files=sync)
        assert_same(load(state, checkpoint), state)
        assert_only_the_save_remains(checkpoint)
    found = dcp.FileSystemReader(checkpoint).read_metadata().state_dict_metadata.values()
    items = sum(isinstance(each, TensorStorageMetadata) for each in found)  # values lie beside a tensor
    assert len(data_files(checkpoint)) == (min(threads, items) if single_file else items)


def test_relative_paths_and_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: dict[str, Any]) -> None:
    monkeypatch.chdir(tmp_path)
    save(state, "here/and there")
    assert_same(load(state, "here/and there"), state)
    assert_same(load(state, tmp_path / "here" / "and there"), state)


def test_a_checkpoint_that_was_moved(tmp_path: Path, state: dict[str, Any]) -> None:
    save(state, tmp_path / "before")
    (tmp_path / "before").rename(tmp_path / "after")
    assert_same(load(state, tmp_path / "after"), state)


# -- without collectives -------------------------------------------------------------------------


def test_rank_local_metadata(checkpoint: Path) -> None:
    old, new = states(2)
    for state in (old, new):
        dcp.save(state, storage_writer=make_writer(checkpoint), use_collectives=False)
        assert not (checkpoint / ".metadata").exists()
        index = index_of(checkpoint, "__0.metadata")
        assert {file.name for file in checkpoint.iterdir()} == {"__0.metadata", *index.files}
        assert_same(load_with(state, streamxf.FileSystemReader(checkpoint, keys=KEY)), state)


def test_ranks_leave_each_others_files_alone(checkpoint: Path) -> None:
    first, second, third = states(3)
    save_shards(checkpoint, [first], full_chain, use_collectives=False, first=0)
    save_shards(checkpoint, [second], full_chain, use_collectives=False, first=1)
    save_shards(checkpoint, [third], full_chain, use_collectives=False, first=0)
    files = {"__0.metadata", "__1.metadata"}
    files |= {*index_of(checkpoint, "__0.metadata").files, *index_of(checkpoint, "__1.metadata").files}
    assert {file.name for file in checkpoint.iterdir()} == files
    assert len(files) == 4


def test_rank_local_metadata_beside_global_is_refused(checkpoint: Path) -> None:
    old, new = states(2)
    save(old, checkpoint)
    with refused(UnsupportedError, "global metadata", "another folder"):
        dcp.save(new, storage_writer=make_writer(checkpoint), use_collectives=False)
    assert_same(load(old, checkpoint), old)
    assert_only_the_save_remains(checkpoint)
