"""Metadata that is hostile, damaged or missing: nothing runs, no path leads outside, and the reason arrives."""

from __future__ import annotations

import builtins
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from streamxf.dcp.metadata.file import UnreadableMetadata
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata

import streamxf
from streamxf.errors import MetadataError, StreamxfError

from .helpers import (
    KEY,
    assert_same,
    data_files,
    error_of,
    full_chain,
    load,
    load_with,
    refused,
    retagged,
    rewrite_metadata,
    save,
)

# -- hostile pickles ------------------------------------------------------------------------------


class Calls:
    """Pickles as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


HOSTILE: dict[str, tuple[Callable[[str], Any], str]] = {
    "os.system": (lambda mark: Calls(os.system, f"touch {mark}"), "system"),
    "builtins.eval": (lambda mark: Calls(eval, f"open({mark!r}, 'w')"), ".eval"),
    "builtins.exec": (lambda mark: Calls(exec, f"open({mark!r}, 'w')"), ".exec"),
    "builtins.open": (lambda mark: Calls(open, mark, "w"), "open"),
    "builtins.getattr": (lambda mark: Calls(getattr, Path(mark), "touch"), ".getattr"),
    "__import__": (lambda mark: Calls(builtins.__import__, "os"), ".__import__"),
    "torch.load": (lambda mark: Calls(torch.load, mark), "torch.serialization.load"),
    "torch function": (lambda mark: Calls(torch.save, 3, mark), "torch.serialization.save"),
    "a tensor": (lambda mark: torch.ones(2), "torch._utils"),
    "numpy": (lambda mark: torch.ones(2).numpy(), "numpy"),
    "a path's method": (lambda mark: Path(mark).touch, ".getattr"),
    "a class of the test": (lambda mark: Calls, "Calls"),
    "codec": (lambda mark: streamxf.Checksum(), "streamxf"),
}


@pytest.fixture(params=["tagged", "no trailer"])
def planted(request: pytest.FixtureRequest, checkpoint: Path) -> Callable[[bytes], Path]:
    """Puts a pickle into a checkpoint's metadata, with a tag that matches or with none."""
    save({"w": torch.ones(3)}, checkpoint, [streamxf.ZStandard()])

    def plant(pickled: bytes) -> Path:
        data = retagged(checkpoint, pickled) if request.param == "tagged" else pickled
        (checkpoint / ".metadata").write_bytes(data)
        return checkpoint

    return plant


@pytest.mark.parametrize("attack", HOSTILE)
def test_hostile_pickles_run_nothing(planted: Callable[[bytes], Path], tmp_path: Path, attack: str) -> None:
    mark = tmp_path / "it ran"
    make, named = HOSTILE[attack]
    value = make(str(mark))
    for pickled in (
        pickle.dumps(value),
        pickle.dumps(Metadata(state_dict_metadata={"w": value}, planner_data=value)),
        pickle.dumps([value], protocol=2),
    ):
        path = planted(pickled)
        with refused(MetadataError, named, "refused and nothing was run"):
            load({"w": torch.zeros(3)}, path, None)
        assert not mark.exists()


@pytest.mark.parametrize(
    "text",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"c__builtin__\neval\n(S'1'\ntR.",
        b"\x80\x04\x8c\x05torch\x8c\x0bserialization\x93.",
        b"\x80\x04\x8c\x05torch\x8c\x13serialization.os.system\x93.",
        b"\x80\x04\x8c\x0btorch.Size\x8c\x00\x93.",
        b"ctorch.distributed.checkpoint.filesystem\nos\n.",
        b"ctorch.distributed.checkpoint.metadata\nMetadata.__init__.__globals__\n.",
        b"Pnowhere\n.",
        b"\x80\x02\x82\x01.",
    ],
)
def test_names_that_only_look_harmless(planted: Callable[[bytes], Path], text: bytes) -> None:
    path = planted(text)
    with refused(MetadataError):
        load({"w": torch.zeros(3)}, path, None)


@pytest.mark.parametrize(
    "text", [b"", b"no pickle at all", b"N.", b"\x80\x04}.", b"\x80\x04K\x01", b"I1\n." * 3, b"\0" * 5000]
)
def test_metadata_that_is_none(planted: Callable[[bytes], Path], text: bytes) -> None:
    path = planted(text)
    with refused(MetadataError):
        load({"w": torch.zeros(3)}, path, None)


def test_a_keyed_reader_unpickles_nothing_before_the_tag_is_right(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamxf.dcp.metadata import file as metadata

    save({"w": torch.ones(3)}, checkpoint)
    file = checkpoint / ".metadata"
    altered = bytearray(file.read_bytes())
    altered[100] ^= 1
    file.write_bytes(altered)
    asked: list[bytes] = []
    monkeypatch.setattr(metadata, "load_metadata", lambda data: asked.append(bytes(data)))
    with refused(StreamxfError):
        load({"w": torch.zeros(3)}, checkpoint)
    assert asked == []


# -- places --------------------------------------------------------------------------------------

OUTSIDE = [
    "../secret.distcp",
    "a/../../secret.distcp",
    "/etc/hostname",
    "..",
    ".",
    "",
    "a//b",
    "./x",
    "C:\\x",
    "C:x",
    "a\\..\\b",
    "x\0y",
    "file:///etc/hostname",
    7,
]


@pytest.mark.parametrize("place", OUTSIDE)
@pytest.mark.parametrize("keyed", [True, False])
def test_paths_stay_inside_the_checkpoint(checkpoint: Path, place: Any, keyed: bool) -> None:
    state = {"w": torch.ones(3)}
    save(state, checkpoint, full_chain() if keyed else [])
    (file,) = data_files(checkpoint)
    shutil.copyfile(file, checkpoint.parent / "secret.distcp")

    def change(metadata: Any) -> None:
        for info in metadata.storage_data.values():
            info.relative_path = place

    rewrite_metadata(checkpoint, change)
    with refused(MetadataError, "outside of the checkpoint"):
        load(state, checkpoint, KEY if keyed else None)


@pytest.mark.parametrize("place", ["../secret.distcp", "/etc/hostname"])
def test_paths_of_a_stock_checkpoint_stay_inside_too(checkpoint: Path, place: str) -> None:
    state = {"w": torch.ones(3)}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(checkpoint))
    file = checkpoint / ".metadata"
    metadata = pickle.loads(file.read_bytes())
    for info in metadata.storage_data.values():
        info.relative_path = place
    file.write_bytes(pickle.dumps(metadata))
    with refused(MetadataError, "outside of the checkpoint"):
        load(state, checkpoint, None)


def test_a_place_that_the_manifest_does_not_list(checkpoint: Path) -> None:
    state = {"w": torch.ones(3)}
    save(state, checkpoint)
    (file,) = data_files(checkpoint)
    shutil.copyfile(file, checkpoint / "other.distcp")

    def change(metadata: Any) -> None:
        for info in metadata.storage_data.values():
            info.relative_path = "other.distcp"

    rewrite_metadata(checkpoint, change)
    with refused(MetadataError, "manifest does not list", "item w"):
        load(state, checkpoint)


@pytest.mark.parametrize(
    ("offset", "length"),
    [(-1, 10), (0, -1), (10**12, 10), (0, 10**15), (0, 0), (0.0, 10), (True, 10), (1, 100), (None, 5)],
)
def test_impossible_places(checkpoint: Path, offset: Any, length: Any) -> None:
    state = {"w": torch.ones(3)}
    save(state, checkpoint)

    def change(metadata: Any) -> None:
        for info in metadata.storage_data.values():
            info.offset, info.length = offset, length

    rewrite_metadata(checkpoint, change)
    with refused(StreamxfError):
        load(state, checkpoint)


def test_a_missing_data_file(checkpoint: Path, state: dict[str, Any]) -> None:
    save(state, checkpoint)
    (file,) = data_files(checkpoint)
    file.unlink()
    with refused(MetadataError, "missing from the checkpoint", file.name):
        load(state, checkpoint)


def test_an_item_without_a_place(checkpoint: Path, state: dict[str, Any]) -> None:
    save(state, checkpoint)
    rewrite_metadata(checkpoint, lambda metadata: metadata.storage_data.clear())
    with refused(MetadataError, "does not say where"):
        load(state, checkpoint)


# -- errors that DCP would swallow ---------------------------------------------------------------


def test_unreadable_metadata_raises_on_any_look(checkpoint: Path, state: dict[str, Any]) -> None:
    save(state, checkpoint)
    (checkpoint / ".metadata").write_bytes(b"junk")
    found = streamxf.FileSystemReader(checkpoint, keys=KEY).read_metadata()
    assert isinstance(found, UnreadableMetadata)
    assert isinstance(found, Metadata)
    for name in Metadata.__dataclass_fields__:
        with pytest.raises(StreamxfError, match=r"\.metadata"):
            getattr(found, name)
    with refused(StreamxfError):
        load(state, checkpoint)


def test_an_empty_folder_is_dcps_own_error(tmp_path: Path, state: dict[str, Any]) -> None:
    with pytest.raises(FileNotFoundError):
        streamxf.FileSystemReader(tmp_path, keys=KEY).read_metadata()
    own = error_of(lambda: load(state, tmp_path))
    stock = error_of(lambda: load_with(state, dcp.FileSystemReader(tmp_path)))
    assert type(own) is type(stock)


def test_errors_survive_the_pickle_that_carries_them_between_ranks(checkpoint: Path, state: dict[str, Any]) -> None:
    save(state, checkpoint)
    (file,) = data_files(checkpoint)
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
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
    assert_same({name: found[name] for name in state}, state)
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
