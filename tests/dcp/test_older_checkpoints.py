"""Checkpoints that were made by torch 1.13 to 2.15 themselves, by older/make.py; and metadata as torch wrote it before
2.3, which named tensors' properties by the module of sharded tensors.
"""

import pickle
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed._shard.sharded_tensor import metadata as older
from torch.distributed.checkpoint._extension import ZStandard as StockZStandard
from torch.distributed.checkpoint.metadata import StorageMeta

import streamxf
from streamxf import FileSystemReader, FileSystemWriter
from tests.cli.command import Run

from .helpers import assert_same, by_name, load_with

FILES = sorted((Path(__file__).parent / "older").glob("*.tar.xz"))
STATE = {
    "weight": torch.arange(8.0).reshape(4, 2),
    "model": {"bias": torch.tensor([1.0, -2.0, 0.5], dtype=torch.bfloat16)},
    "step": 7,
}


def folders_of(file: Path) -> list[str]:
    with tarfile.open(file) as archive:
        return sorted({name.partition("/")[0] for name in archive.getnames()})


FLAT = {"weight": STATE["weight"], "model.bias": STATE["model"]["bias"], "step": 7}  # torch 1.13 knew no nested ones
CASES = [
    pytest.param((file, folder), id=f"{file.name.removesuffix('.tar.xz')}-{folder}")
    for file in FILES
    for folder in folders_of(file)
]


@pytest.fixture(params=CASES)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    file, folder = request.param
    with tarfile.open(file) as archive:
        archive.extractall(tmp_path, filter="data")
    path: Path = tmp_path / folder
    return path


def test_it_loads(checkpoint: Path) -> None:
    assert_same(load_with(STATE, streamxf.FileSystemReader(checkpoint)), STATE)
    assert_same(load_with(STATE, streamxf.FsspecReader(str(checkpoint))), STATE)


def test_it_is_read_item_by_item(checkpoint: Path) -> None:
    with streamxf.Checkpoint(checkpoint) as opened:
        assert {*opened.stored} == {"weight", "model.bias", "step"}
        assert torch.equal(opened["weight"].read(), STATE["weight"])
        assert torch.equal(opened["model.bias"].read(), STATE["model"]["bias"])
        assert len(opened.stored["weight"].chunks) == (2 if checkpoint.name == "two" else 1)


def test_it_verifies_and_is_salvaged(checkpoint: Path) -> None:
    assert streamxf.verify(checkpoint).ok
    salvaged = streamxf.load_intact(checkpoint).state_dict
    assert_same(salvaged, STATE if "model" in salvaged else FLAT)


def test_it_is_transcoded_and_unpacked(checkpoint: Path, tmp_path: Path) -> None:
    streamxf.transcode(checkpoint, tmp_path / "copy", "zstd+checksum")
    assert_same(load_with(STATE, streamxf.FileSystemReader(tmp_path / "copy")), STATE)
    for path in (checkpoint, tmp_path / "copy"):
        streamxf.unpack(path, tmp_path / f"{path.name}.pt")
        unpacked = torch.load(tmp_path / f"{path.name}.pt")
        assert_same(*map(by_name, (unpacked, STATE if "model" in unpacked else FLAT)))


def test_all_are_there() -> None:
    versions = [tuple(map(int, file.name.split("-")[1].split(".")[:2])) for file in FILES]
    assert min(versions) == (1, 13)
    assert max(versions) >= (2, 15)
    assert sum(file.stat().st_size for file in FILES) < 100_000


BEFORE_2_3 = {
    "weight": torch.arange(12.0).reshape(3, 4),
    "nested": {"bias": torch.ones(3, dtype=torch.bfloat16), "step": 7},
}
WRITERS: dict[str, Callable[[Path], Any]] = {
    "stock": lambda path: dcp.FileSystemWriter(path, sync_files=False),
    "stock ZStandard": lambda path: dcp.FileSystemWriter(path, _extensions=[StockZStandard()], sync_files=False),
    "own": lambda path: FileSystemWriter(path, sync_files=False),
}
FORMATS = [torch.contiguous_format, torch.channels_last, torch.preserve_format]


def save_as_before(path: Path, writer: str = "stock", protocol: int = 2) -> None:
    """What torch 2.2 wrote: also without some of what is there today."""
    dcp.save(BEFORE_2_3, storage_writer=WRITERS[writer](path))
    content = pickle.loads((path / ".metadata").read_bytes())
    for item, form in zip(content.state_dict_metadata.values(), FORMATS, strict=True):
        if hasattr(item, "properties"):
            item.properties = older.TensorProperties(item.properties.dtype, memory_format=form)
    for name in ("storage_meta", "version"):  # torch 2.7 has no version either
        vars(content).pop(name, None)
    for place in content.storage_data.values():
        if writer == "stock":
            vars(place).pop("transform_descriptors", None)
    data = pickle.dumps(content, protocol)
    assert older.__name__.encode() in data
    (path / ".metadata").write_bytes(data)


@pytest.mark.parametrize("reader", [dcp.FileSystemReader, FileSystemReader])
def test_pytorchs_own_test(tmp_path: Path, reader: Any) -> None:
    """``test_sharded_tensor_dependency`` of its ``test_compatibility.py``."""
    with mock.patch("torch.distributed.checkpoint.metadata.TensorProperties", older.TensorProperties):
        dcp.save({"a": torch.ones(4, 4)}, storage_writer=WRITERS["stock"](tmp_path))
    assert older.__name__.encode() in (tmp_path / ".metadata").read_bytes()
    assert_same(load_with({"a": torch.ones(4, 4)}, reader(tmp_path)), {"a": torch.ones(4, 4)})


@pytest.mark.parametrize("form", FORMATS)
def test_a_planner_that_plans_as_before(tmp_path: Path, form: Any) -> None:
    def create(tensor: torch.Tensor) -> Any:
        return older.TensorProperties(tensor.dtype, memory_format=form)

    with mock.patch("torch.distributed.checkpoint.metadata.TensorProperties.create_from_tensor", create):
        dcp.save({"a": torch.ones(4, 4)}, storage_writer=WRITERS["own"](tmp_path))
    for reader in (dcp.FileSystemReader(tmp_path, _extension_registry=streamxf.Registry()), FileSystemReader(tmp_path)):
        assert reader.read_metadata().state_dict_metadata["a"].properties.memory_format == form
        assert_same(load_with({"a": torch.ones(4, 4)}, reader), {"a": torch.ones(4, 4)})


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("writer", ["stock", "stock ZStandard"])
def test_whatever_reads_checkpoints_reads_them(tmp_path: Path, writer: str, protocol: int, run: Run) -> None:
    path, copy = tmp_path / "checkpoint", tmp_path / "copy"
    save_as_before(path, writer, protocol)
    assert_same(load_with(BEFORE_2_3, FileSystemReader(path)), BEFORE_2_3)
    assert_same(load_with(BEFORE_2_3, streamxf.FsspecReader(str(path))), BEFORE_2_3)
    assert streamxf.verify(path).ok
    assert_same(streamxf.load_intact(path).state_dict, BEFORE_2_3)
    streamxf.transcode(path, copy, "zstd")
    assert_same(load_with(BEFORE_2_3, FileSystemReader(copy)), BEFORE_2_3)
    assert streamxf.diff(path, copy).same
    assert run("verify", path).code == 0
    assert "weight" in run("inspect", path, "--items").out


def test_python_3_13_has_paths_in_a_module_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_as_before(tmp_path)
    members = {"__module__": "pathlib._local", "__reduce__": lambda self: (type(self), ("/",))}
    cls = type("PosixPath", (str,), members)
    monkeypatch.setitem(sys.modules, "pathlib._local", SimpleNamespace(PosixPath=cls))
    content = pickle.loads((tmp_path / ".metadata").read_bytes())
    content.storage_meta = StorageMeta(checkpoint_id=cls("/"))
    data = pickle.dumps(content)
    assert b"pathlib._local" in data
    (tmp_path / ".metadata").write_bytes(data)
    assert_same(load_with(BEFORE_2_3, FileSystemReader(tmp_path)), BEFORE_2_3)


def test_what_else_stands_in_that_module_is_refused(tmp_path: Path) -> None:
    save_as_before(tmp_path)
    data = (tmp_path / ".metadata").read_bytes()
    (tmp_path / ".metadata").write_bytes(data.replace(b"MEM_FORMAT_ENCODING\n", b"ShardedTensorMetadata\n"))
    assert "ShardedTensorMetadata" in str(streamxf.verify(tmp_path).damaged[0].message)
