"""Metadata that is hostile, damaged or missing: no path leads outside, and the reason arrives."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata

import streamxf
from streamxf.checkpoint import metadata
from streamxf.errors import MetadataError, ParameterError, StreamxfError, UnsupportedError
from streamxf.format.index import Index
from tests.altered import flip

from .helpers import KEY, assert_same, by_name, data_files, error_of, load, load_with, refused, save, sections_of

STATE = {"w": torch.ones(3)}


def test_the_pickle_of_streamxfs_own_checkpoint_is_never_read(
    checkpoint: Path, state: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(state, checkpoint)
    file = checkpoint / ".metadata"
    pickled, _ = sections_of(checkpoint)
    file.write_bytes(b"\0" * len(pickled) + file.read_bytes()[len(pickled) :])
    monkeypatch.setattr(metadata, "read_stock", lambda *_: pytest.fail("it was read"))
    assert_same(load(state, checkpoint), state)


def test_a_keyed_reader_parses_nothing_before_the_voucher_is_right(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(STATE, checkpoint)
    file = checkpoint / ".metadata"
    _, sections = sections_of(checkpoint)
    flip(file, sections.head_size + sections.parts_size + 20)
    monkeypatch.setattr(Index, "parse", lambda *_, **__: pytest.fail("it was parsed"))
    with refused(StreamxfError):
        load(STATE, checkpoint)


# -- places --------------------------------------------------------------------------------------


def test_a_missing_data_file(checkpoint: Path, state: dict[str, Any]) -> None:
    save(state, checkpoint)
    (file,) = data_files(checkpoint)
    file.unlink()
    with refused(MetadataError, "missing from the checkpoint", file.name):
        load(state, checkpoint)


def test_a_save_that_nobody_could_load_is_not_published(checkpoint: Path) -> None:
    """By a planner of somebody's own, which does not check what DCP's own planner does."""

    class Careless(dcp.DefaultSavePlanner):
        def create_global_plan(self, all_plans: Any) -> Any:
            plans, found = super().create_global_plan(all_plans)
            found.state_dict_metadata["w"].size = torch.Size([5])
            return plans, found

    writer = streamxf.FileSystemWriter(checkpoint, sync_files=False)
    with refused(UnsupportedError, "leave out a part"):
        dcp.save({"w": torch.ones(4)}, storage_writer=writer, planner=Careless())
    assert not (checkpoint / ".metadata").exists()


# -- errors that DCP would swallow ---------------------------------------------------------------


def test_unreadable_metadata_raises_on_any_look(checkpoint: Path, state: dict[str, Any]) -> None:
    save(state, checkpoint)
    (checkpoint / ".metadata").write_bytes(b"junk")
    found = streamxf.FileSystemReader(checkpoint, keys=KEY).read_metadata()
    assert isinstance(found, Metadata)
    assert "metadata" in repr(found)
    for name in Metadata.__dataclass_fields__:
        with pytest.raises(StreamxfError, match=r"\.metadata"):
            getattr(found, name)
    with refused(StreamxfError):
        load(state, checkpoint)


def test_an_empty_folder_is_dcps_own_error(tmp_path: Path, state: dict[str, Any]) -> None:
    with pytest.raises(FileNotFoundError):
        streamxf.FileSystemReader(tmp_path, keys=KEY).read_metadata()
    own = error_of(lambda: load(state, tmp_path))
    of_torch = error_of(lambda: load_with(state, dcp.FileSystemReader(tmp_path)))
    assert type(own) is type(of_torch)


def test_errors_survive_the_pickle_that_carries_them_between_ranks(checkpoint: Path, state: dict[str, Any]) -> None:
    save(state, checkpoint)
    (file,) = data_files(checkpoint)
    flip(file)
    error = error_of(lambda: load(state, checkpoint))
    assert isinstance(error, StreamxfError)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.file, copy.item) == (type(error), str(error), error.file, error.item)
    assert copy.file == str(file)
    assert copy.item is not None


# -- readers of others' that take a whole checkpoint ---------------------------------------------


def test_loading_without_a_state_dict(checkpoint: Path, state: dict[str, Any]) -> None:
    """As torch's `dcp_to_torch_save` does."""
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    save(state, checkpoint)
    found: dict[str, Any] = {}
    reader = streamxf.FileSystemReader(checkpoint, keys=KEY)
    _load_state_dict(found, storage_reader=reader, planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    assert_same({name: found[name] for name in state}, {name: by_name(state[name]) for name in state})
    found.clear()
    planner = _EmptyStateDictLoadPlanner(keys={"weight"})
    _load_state_dict(found, storage_reader=reader, planner=planner, no_dist=True)
    assert_same(found, {"weight": state["weight"]})


def test_torchs_own_converter_reads_the_stock_layout(checkpoint: Path, tmp_path: Path, state: dict[str, Any]) -> None:
    """Without any chain, what streamxf's writer makes is an ordinary checkpoint."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    save(state, checkpoint, [])
    dcp_to_torch_save(checkpoint, tmp_path / "whole.pt")
    found = torch.load(tmp_path / "whole.pt", weights_only=False)
    assert_same({name: found[name] for name in state}, state)


def test_the_empty_name_is_refused_and_is_no_damage(tmp_path: Path) -> None:
    """Stock DCP saves a tensor under the key ''."""
    state = {"": torch.ones(2)}
    with refused(UnsupportedError, "the empty name"):
        save(state, tmp_path / "streamxf")
    with pytest.raises(ParameterError, match="the empty name"), streamxf.CheckpointWriter(tmp_path / "alone") as writer:
        writer[""] = state[""]
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path / "stock"))
    with refused(UnsupportedError, "the empty name"):
        load(state, tmp_path / "stock", keys=None)
