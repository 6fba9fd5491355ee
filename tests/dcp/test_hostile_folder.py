"""Somebody who writes to the checkpoint's folder, and has no key."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import metadata as dcp_metadata

from streamxf.errors import MetadataError
from streamxf.format.index import File, Index
from streamxf.format.trailer import pack
from streamxf.torchsave.stock import read_stock

from .helpers import load, refused, save, since

STATE = {"w": torch.arange(4.0)}
CLASSES = [
    "Metadata",
    "MetadataIndex",
    "TensorStorageMetadata",
    "ChunkStorageMetadata",
    "BytesStorageMetadata",
    "TensorProperties",
    "StorageMeta",
    "_MEM_FORMAT_ENCODING",
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
    monkeypatch.setattr("streamxf.torchsave.stock._StockUnpickler", lambda _: pytest.fail("unpickled"))
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
