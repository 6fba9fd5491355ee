"""Somebody who writes to the checkpoint's folder, and has no key; or who names items: nothing that is said of these
ends a line or steers a terminal.
"""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner

import streamxf
from streamxf.errors import MetadataError
from streamxf.format.index import File, Index
from streamxf.format.sections import pack
from streamxf.torchsave.unpickler import read_stock
from tests.altered import flip

from .helpers import data_files, load, refused, save, since, unwrapped

STATE = {"w": torch.arange(4.0)}
CLASSES = [
    *("Metadata", "MetadataIndex", "TensorStorageMetadata", "ChunkStorageMetadata", "BytesStorageMetadata"),
    *("TensorProperties", "StorageMeta", "_MEM_FORMAT_ENCODING"),
]


def plant(folder: Path, names: list[str]) -> None:
    """An index that nobody vouches for, of a checkpoint that the next save will replace."""
    index = Index("0" * 32, None, (), (), dict.fromkeys(names, File(1, bytes(16))), {})
    root, parts = index.pack()
    (folder / ".metadata").write_bytes(pack(b"no pickle", parts, root, b""))


def test_a_planted_manifest_removes_nothing_but_data_files_of_the_folder(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "checkpoint", tmp_path / "elsewhere"
    (folder / "sub").mkdir(parents=True)
    elsewhere.mkdir()
    kept = [elsewhere / "precious.txt", folder / "sub" / "other", folder / "notes.txt"]
    for file in kept:
        file.write_text("kept")
    data_name = "__0_0_" + "0" * 32 + ".distcp"
    (elsewhere / data_name).write_text("kept")
    (folder / "link").symlink_to(elsewhere)
    (folder / data_name).write_text("replaced")
    plant(folder, ["link/precious.txt", f"link/{data_name}", "sub/other", "notes.txt", ".metadata", data_name])

    save(STATE, folder)

    assert all(file.read_text() == "kept" for file in [*kept, elsewhere / data_name])
    assert not (folder / data_name).exists()
    assert torch.equal(load(STATE, folder)["w"], STATE["w"])


def test_a_save_unpickles_nothing_of_what_it_replaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(STATE, tmp_path, [])
    (tmp_path / ".metadata").write_bytes(pickle.dumps(dcp_metadata.Metadata({})))
    monkeypatch.setattr(pickle, "Unpickler", lambda _: pytest.fail("unpickled"))
    monkeypatch.setattr("streamxf.torchsave.unpickler._StockUnpickler", lambda _: pytest.fail("unpickled"))
    save(STATE, tmp_path)


@pytest.mark.parametrize("name", CLASSES)
def test_a_pickle_cannot_set_anything_on_a_class(name: str) -> None:
    """BUILD with slot state sets attributes on whatever was named; classes would stay changed for the whole process."""
    attribute = b"__reduce_ex__"
    named = f"c{dcp_metadata.__name__}\n{name}\n".encode()
    state = b"N}X" + len(attribute).to_bytes(4, "little") + attribute + b"Ns\x86"
    before = dict(vars(getattr(dcp_metadata, name)))
    with pytest.raises(MetadataError):
        read_stock(b"\x80\x02" + named + state + b"b.", None)
    assert dict(vars(getattr(dcp_metadata, name))) == before


@since("2.9", "looks for no rank's own metadata")
def test_global_metadata_does_not_pass_for_a_ranks_own(tmp_path: Path) -> None:
    """Else whoever deletes `.metadata` could give each rank another save."""
    save(STATE, tmp_path)
    (tmp_path / ".metadata").rename(tmp_path / "__0.metadata")
    with refused(MetadataError, "this is the metadata of all ranks: the file was renamed or copied"):
        load(STATE, tmp_path)


NAME = "w\n\x1b[2J\u202e\u0085\r"
SHOWN = r"w\n\x1b[2J\u202e\x85\r"


class Failing(DefaultLoadPlanner):
    """Fails with an error of Python's, which knows no place."""

    def resolve_tensor(self, read_item: Any) -> torch.Tensor:
        raise ValueError("no tensor")


class FailingToSave(DefaultSavePlanner):
    def resolve_data(self, write_item: Any) -> torch.Tensor:
        raise ValueError("no tensor")


def texts_of(error: CheckpointException) -> list[str]:
    cause = unwrapped(error)
    return [str(cause), repr(cause), *getattr(cause, "__notes__", ())]


def test_no_error_and_no_report_shows_a_name_as_it_is(tmp_path: Path) -> None:
    save({NAME: torch.randn(1000), "other": torch.zeros(3)}, tmp_path / "a", [streamxf.ZStandard()])
    (file,) = data_files(tmp_path / "a")

    def load(planner: DefaultLoadPlanner | None = None) -> list[str]:
        with pytest.raises(CheckpointException) as caught:
            dcp.load(
                {NAME: torch.zeros(1000)}, storage_reader=streamxf.FileSystemReader(tmp_path / "a"), planner=planner
            )
        return texts_of(caught.value)

    texts = load(Failing())
    flip(file)
    texts += load()
    with pytest.raises(CheckpointException) as caught:
        writer = streamxf.FileSystemWriter(tmp_path / "b")
        dcp.save({NAME: torch.zeros(3)}, storage_writer=writer, planner=FailingToSave())
    texts += texts_of(caught.value)
    (damage,) = streamxf.verify(tmp_path / "a").damaged
    (lost,) = streamxf.load_intact(tmp_path / "a").damaged
    assert (damage.item, lost.item) == (NAME, NAME)
    texts += [str(damage), str(lost)]
    assert sum(SHOWN in text for text in texts) >= 5
    for text in texts:
        assert text.isprintable(), text
