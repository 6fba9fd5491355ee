"""Metadata that is hostile, damaged or missing: no path leads outside, and the reason arrives."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata

import streamxf
from streamxf.errors import MetadataError, StreamxfError, UnsupportedError
from streamxf.format.index import Index
from streamxf.torchsave import stock
from tests.altered import flip

from .helpers import (
    KEY,
    assert_same,
    data_files,
    error_of,
    full_chain,
    load,
    load_with,
    refused,
    rewrite_index,
    rewrite_pickle,
    save,
    sections_of,
)

STATE = {"w": torch.ones(3)}


def test_the_pickle_of_streamxfs_own_checkpoint_is_never_read(
    checkpoint: Path, state: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(state, checkpoint)
    file = checkpoint / ".metadata"
    pickled, _ = sections_of(checkpoint)
    file.write_bytes(b"\0" * len(pickled) + file.read_bytes()[len(pickled) :])
    monkeypatch.setattr(stock, "read_stock", lambda *_: pytest.fail("it was read"))
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

OUTSIDE = ["../secret.distcp", "a/../../secret.distcp", "/etc/hostname", "..", "", "C:\\x", "x\0y", "file:///x"]


@pytest.mark.parametrize("place", OUTSIDE)
@pytest.mark.parametrize("keyed", [True, False])
def test_paths_stay_inside_the_checkpoint(checkpoint: Path, place: Any, keyed: bool) -> None:
    save(STATE, checkpoint, full_chain() if keyed else [])
    (file,) = data_files(checkpoint)
    shutil.copyfile(file, checkpoint.parent / "secret.distcp")

    def change(content: Any) -> None:
        (entry,) = content["files"]
        entry["path"] = place

    rewrite_index(checkpoint, change)
    with refused(MetadataError):
        load(STATE, checkpoint, KEY if keyed else None)


@pytest.mark.parametrize("place", [*OUTSIDE, 7])
def test_paths_of_a_stock_checkpoint_stay_inside_too(checkpoint: Path, place: Any) -> None:
    dcp.save(dict(STATE), storage_writer=dcp.FileSystemWriter(checkpoint))

    def change(content: Metadata) -> None:
        for info in content.storage_data.values():
            info.relative_path = place

    rewrite_pickle(checkpoint, change)
    with refused(MetadataError, "outside the checkpoint"):
        load(STATE, checkpoint, None)


@pytest.mark.parametrize("stock_writer", [True, False])
@pytest.mark.parametrize(
    ("at", "size"), [(-1, 10), (0, -1), (10**12, 10), (0, 10**15), (0, 0), (0.0, 10), (True, 10), (1, 100), (None, 5)]
)
def test_impossible_places(checkpoint: Path, at: Any, size: Any, stock_writer: bool) -> None:
    if not stock_writer and not (type(at) is type(size) is int and at >= 0 and size >= 0):
        return  # what columns cannot say
    if stock_writer:
        dcp.save(dict(STATE), storage_writer=dcp.FileSystemWriter(checkpoint))

        def change(content: Metadata) -> None:
            for info in content.storage_data.values():
                info.offset, info.length = at, size

        rewrite_pickle(checkpoint, change)
    else:
        save(STATE, checkpoint, [])

        def alter(content: Any) -> None:
            content["items"]["w"]["chunks"][0] |= {"at": at, "bytes": size}

        rewrite_index(checkpoint, alter)
    with refused(StreamxfError):
        load(STATE, checkpoint, None)


def test_a_missing_data_file(checkpoint: Path, state: dict[str, Any]) -> None:
    save(state, checkpoint)
    (file,) = data_files(checkpoint)
    file.unlink()
    with refused(MetadataError, "missing from the checkpoint", file.name):
        load(state, checkpoint)


@pytest.mark.parametrize("stock_writer", [True, False])
def test_a_missing_chunk_is_refused_not_skipped(checkpoint: Path, stock_writer: bool) -> None:
    """DCP copies what chunks there are, and would leave the rest of the target as it was."""
    state = {"w": torch.arange(12.0).reshape(4, 3)}
    if stock_writer:
        dcp.save(state, storage_writer=dcp.FileSystemWriter(checkpoint))

        def shorten(found: Any) -> None:
            found.state_dict_metadata["w"].chunks[0].sizes = torch.Size([3, 3])

        rewrite_pickle(checkpoint, shorten)
    else:
        save(state, checkpoint, [])
        rewrite_index(checkpoint, lambda content: content["items"]["w"]["chunks"][0].update(shape=[3, 3]))
    with refused(MetadataError, "leave out a part", "item w"):
        load(state, checkpoint, None)


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


def sorted_by_name(value: Any) -> Any:
    """As torch makes nested dicts of items, which an index has in the order of their names."""
    return {name: value[name] for name in sorted(value)} if isinstance(value, dict) else value


def test_loading_without_a_state_dict(checkpoint: Path, state: dict[str, Any]) -> None:
    """As torch's `dcp_to_torch_save` does."""
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    save(state, checkpoint)
    found: dict[str, Any] = {}
    reader = streamxf.FileSystemReader(checkpoint, keys=KEY)
    _load_state_dict(found, storage_reader=reader, planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    assert_same({name: found[name] for name in state}, {name: sorted_by_name(state[name]) for name in state})
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
