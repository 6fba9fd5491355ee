"""What `dcp.save` returns: it crosses ranks as the place of the save, and is read there when it is used."""

import copy
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

import streamxf
from streamxf.dcp.columns import complete
from streamxf.errors import IdentityError
from streamxf.storage.local import LocalStorage
from streamxf.storage.remote import RemoteStorage

from .helpers import KEY, entries_of, full_chain, needs_gloo, save, since
from .rank_scenarios import run_ranks

STATE = {"model": {"w": torch.arange(12.0).reshape(3, 4)}, "step": 3}

pytestmark = pytest.mark.usefixtures("size_of_index")


def saved(path: Any, writer: Any = None, **options: Any) -> Metadata:
    writer = writer or streamxf.FileSystemWriter(path, _extensions=full_chain(), sync_files=False)
    made: Metadata = dcp.save(STATE, storage_writer=writer, **options)
    return made


def sent(made: Metadata) -> Metadata:
    data = pickle.dumps(made)
    assert len(data) < 1024
    found = pickle.loads(data)
    assert isinstance(found, Metadata)
    return found


def assert_whole(found: Metadata, path: Path) -> None:
    stock = dcp.FileSystemReader(path).read_metadata()
    assert entries_of(found) == entries_of(stock)
    assert found.planner_data == stock.planner_data == {"model.w": ("model", "w"), "step": ("step",)}
    places = {index: (info.relative_path, info.offset, info.length) for index, info in stock.storage_data.items()}
    assert {i: (info.relative_path, info.offset, info.length) for i, info in found.storage_data.items()} == places
    assert found.storage_meta is not None
    assert found.storage_meta.save_id == stock.storage_meta.save_id  # type: ignore[union-attr]


def test_everything_of_it_can_be_used_in_another_process(checkpoint: Path) -> None:
    made = saved(checkpoint)
    assert_whole(made, checkpoint)
    assert_whole(sent(made), checkpoint)
    assert_whole(sent(sent(made)), checkpoint)
    used = sent(made)
    assert_whole(used, checkpoint)
    assert_whole(sent(used), checkpoint)


def test_copies_are_whole(checkpoint: Path) -> None:
    """Planners may keep copies."""
    made = saved(checkpoint)
    for act in (copy.copy, copy.deepcopy):
        found = act(made)
        assert vars(found).keys() == vars(made).keys()
        assert entries_of(found) == entries_of(made)
        assert_whole(found, checkpoint)
    shutil.rmtree(checkpoint)
    assert entries_of(copy.deepcopy(made)) == entries_of(made)


def test_a_part_put_in_its_place_is_kept(checkpoint: Path) -> None:
    made = replace(saved(checkpoint), planner_data="other")
    found = pickle.loads(pickle.dumps(made))
    assert found.planner_data == "other"
    assert entries_of(found) == entries_of(made)


def test_one_that_was_replaced_is_refused(checkpoint: Path) -> None:
    first = saved(checkpoint)
    crossed = sent(first)
    second = saved(checkpoint)
    for name in ("state_dict_metadata", "planner_data", "storage_data"):
        with pytest.raises(IdentityError, match=r"another checkpoint was put in its place") as caught:
            getattr(crossed, name)
        assert any("dcp.save" in note for note in caught.value.__notes__)
    with pytest.raises(IdentityError):
        _ = first.storage_data
    assert first.state_dict_metadata
    assert_whole(sent(second), checkpoint)
    shutil.rmtree(checkpoint)
    with pytest.raises(FileNotFoundError) as gone:
        _ = sent(second).state_dict_metadata
    assert str(checkpoint) in "".join(gone.value.__notes__)
    assert "metadata" in repr(sent(second))


def test_what_was_read_without_keys_is_never_loaded(checkpoint: Path) -> None:
    """A reader that is given it reads the metadata anew, with its keys and its terms."""
    crossed = sent(saved(checkpoint))
    assert crossed.state_dict_metadata
    reader: Any = streamxf.FileSystemReader(checkpoint, keys=KEY)
    with_keys = reader.read_metadata()
    assert reader.save_id is not None
    reader.set_up_storage_reader(crossed, True)
    assert reader._metadata is not with_keys
    assert reader._metadata.authenticated
    assert not crossed._found.authenticated  # type: ignore[attr-defined]


def test_a_storage_stays_behind(tmp_path: Path) -> None:
    made = saved("", streamxf.FileSystemWriter(LocalStorage(str(tmp_path / "x")), sync_files=False))
    assert_whole(sent(made), tmp_path / "x")


def test_passwords_of_urls_stay_behind(checkpoint: Path) -> None:
    save(STATE, checkpoint)
    index = streamxf.FileSystemReader(checkpoint, keys=KEY).read_metadata().streamxf_metadata.index  # type: ignore[attr-defined]
    made = Metadata({})
    complete(made, index, RemoteStorage("x", fsspec.filesystem("memory"), "memory://user:secret@x"))
    assert b"secret" not in pickle.dumps(made)


def test_memory_and_options(tmp_path: Path) -> None:
    made = saved("", streamxf.FsspecWriter("memory://published/x", chain="zstd"))
    assert "model.w" in sent(made).state_dict_metadata
    assert len(made.storage_data) == 2


class Own(Metadata):
    """A planner's own."""


class Planner(dcp.DefaultSavePlanner):
    def create_global_plan(self, all_plans: list[Any]) -> tuple[list[Any], Metadata]:
        plans, made = super().create_global_plan(all_plans)
        return plans, Own(made.state_dict_metadata, made.planner_data)


class Extra(dcp.DefaultSavePlanner):
    def create_global_plan(self, all_plans: list[Any]) -> tuple[list[Any], Metadata]:
        plans, made = super().create_global_plan(all_plans)
        made.own_data = {"a": 1}  # type: ignore[attr-defined]
        return plans, made


def test_a_planners_own_class_crosses_whole(checkpoint: Path) -> None:
    made = saved(checkpoint, planner=Planner())
    assert type(made) is Own
    assert_whole(made, checkpoint)
    found = pickle.loads(pickle.dumps(made))
    shutil.rmtree(checkpoint)
    assert entries_of(found) == entries_of(made)
    assert found.storage_data == made.storage_data


def test_what_a_planner_adds_crosses_and_is_saved_again(checkpoint: Path) -> None:
    made = saved(checkpoint, planner=Extra())
    assert sent(made).own_data == {"a": 1}  # type: ignore[attr-defined]
    assert streamxf.FileSystemReader(checkpoint, keys=KEY).read_metadata().own_data == {"a": 1}  # type: ignore[attr-defined]


def test_metadata_of_one_rank(checkpoint: Path) -> None:
    made = saved(checkpoint, use_collectives=False)
    found = sent(made)
    assert entries_of(found) == entries_of(made)
    assert (checkpoint / "__0.metadata").exists()


@pytest.mark.slow
@needs_gloo
@since("2.8", "caches no metadata")
def test_cached_plans_over_several_ranks(tmp_path: Path) -> None:
    reports = run_ranks(3, tmp_path, "cached_saves", module="tests.dcp.published_ranks")
    for rank, report in enumerate(reports):
        found = report["cached_saves"]
        for each in found["saves"]:
            right = dict.fromkeys(("paths", "files", "id", "same"), True)
            assert each == right | {"items": ["model.b", "model.w", "step"], "chunks": [3, 1]}
        assert len(found["saves"]) == 3
        assert found["cached"]
        if rank == 0:
            assert len(found["sent"]) == 3
            assert max(found["sent"]) < 1024
            assert {"state_dict_metadata", "planner_data"} < set(found["parts"])


# -- what readers return -----------------------------------------------------------------------------------


def test_lists_of_chunks_are_made_when_they_are_asked_for(checkpoint: Path) -> None:
    save(STATE, checkpoint)
    reader: Any = streamxf.FileSystemReader(checkpoint, keys=KEY)
    found, stock = reader.read_metadata(), dcp.FileSystemReader(checkpoint).read_metadata()
    assert type(found.state_dict_metadata) is dict
    item, theirs = found.state_dict_metadata["model.w"], stock.state_dict_metadata["model.w"]
    assert isinstance(item, TensorStorageMetadata)
    assert item.size == theirs.size
    assert item.properties == theirs.properties
    reader.set_up_storage_reader(found, True)
    assert "chunks" not in vars(item)
    assert "storage_data" not in vars(found)
    assert item == theirs
    assert theirs == item
    assert item.chunks is item.chunks
    assert item != replace(theirs, size=torch.Size([3, 5]))
    assert item != "something else"
    assert reader.storage_data is found.storage_data
    assert found.storage_data.keys() == stock.storage_data.keys()
    reader.reset()
    assert reader.storage_data == {}


def test_they_are_pickled_copied_and_replaced_as_torchs(checkpoint: Path) -> None:
    save(STATE, checkpoint)
    stock = dcp.FileSystemReader(checkpoint).read_metadata()
    for act in (copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))):
        found = streamxf.FileSystemReader(checkpoint, keys=KEY).read_metadata()
        item = act(found.state_dict_metadata["model.w"])
        assert type(item) is TensorStorageMetadata
        assert item == stock.state_dict_metadata["model.w"]
        crossed = act(found)
        assert entries_of(crossed) == entries_of(stock)
        assert crossed.planner_data == stock.planner_data
        assert crossed.storage_data.keys() == stock.storage_data.keys()
    entry = streamxf.FileSystemReader(checkpoint, keys=KEY).read_metadata().state_dict_metadata["model.w"]
    assert replace(entry, chunks=[]).chunks == []
    assert replace(entry, size=entry.size).chunks == entry.chunks


def test_a_reader_takes_metadata_that_crossed(checkpoint: Path) -> None:
    """One rank may read it and send it to others."""
    save(STATE, checkpoint)
    crossed = pickle.loads(pickle.dumps(streamxf.FileSystemReader(checkpoint, keys=KEY).read_metadata()))
    reader: Any = streamxf.FileSystemReader(checkpoint, keys=KEY)
    planner, target = streamxf.LoadPlanner(), {"model": {"w": torch.zeros(3, 4)}, "step": 0}
    planner.set_up_planner(target, crossed, True)
    reader.set_up_storage_reader(crossed, True)
    reader.read_data(planner.create_local_plan(), planner).wait()
    assert torch.equal(target["model"]["w"], STATE["model"]["w"])  # type: ignore[index]
    assert target["step"] == 3
