"""Tensors that torch can make, and for which streamxf's format has no place: 65 dimensions, or an empty one of a large
shape. Where others stored them they are read, or stop nothing else; and no save begins with one.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

import streamxf
from streamxf.errors import UnsupportedError
from tests.dcp.helpers import full_chain

ODD = {"many dimensions": torch.ones([1] * 65), "a large shape": torch.empty(0, 2**53), "both": torch.empty([0] * 70)}
A = torch.arange(4.0)


@pytest.fixture(params=ODD)
def odd(request: pytest.FixtureRequest) -> torch.Tensor:
    return ODD[request.param]


@pytest.fixture
def stock(tmp_path: Path, odd: torch.Tensor) -> Path:
    dcp.save({"a": A, "x": odd}, storage_writer=dcp.FileSystemWriter(tmp_path / "stock"), no_dist=True)
    return tmp_path / "stock"


def test_a_stock_checkpoint_is_intact_and_read(stock: Path, odd: torch.Tensor) -> None:
    assert streamxf.verify(stock).ok
    target: dict[str, Any] = {"a": torch.zeros(4), "x": torch.zeros_like(odd)}
    dcp.load(target, storage_reader=streamxf.FileSystemReader(stock), no_dist=True)
    assert torch.equal(target["a"], A)
    assert torch.equal(target["x"], odd)
    assert torch.equal(streamxf.Checkpoint(stock)["x"].read(), odd)
    assert streamxf.diff(stock, stock).same
    streamxf.unpack(stock, stock.with_suffix(".pt"))
    assert torch.equal(torch.load(stock.with_suffix(".pt"))["x"], odd)
    found = streamxf.load_intact(stock, {"a": torch.zeros(4), "x": torch.zeros_like(odd)})
    assert found.loaded == ("a", "x")
    assert torch.equal(found.state_dict["x"], odd)


def test_what_a_copy_cannot_hold_is_named_and_salvage_copies_the_rest(stock: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"of a streamxf checkpoint (has )?at most .*item x\]"):
        streamxf.transcode(stock, tmp_path / "copy", "zstd")
    assert not (tmp_path / "copy").exists()
    found, made = streamxf.salvage(stock, tmp_path / "salvaged")
    assert made is not None
    assert found.loaded == ("a",)
    assert not found.damaged
    assert [(each.item, each.error) for each in found.refused] == [("x", "UnsupportedError")]


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_files_are_intact_and_packed_with_it_as_bytes(tmp_path: Path, odd: torch.Tensor, suffix: str) -> None:
    file, state = tmp_path / f"model{suffix}", {"a": A, "x": odd}
    torch.save(state, file) if suffix == ".pt" else save_file(state, file)
    assert streamxf.verify(file).ok
    assert tuple(streamxf.inspect(file).contents.items["x"].shape) == odd.shape
    assert streamxf.inspect(file, values=True).values.statistics["a"].elements == 4
    made = streamxf.pack(file, tmp_path / "packed")
    assert "at most" in made.notes[0]
    assert "x" not in streamxf.Checkpoint(tmp_path / "packed")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / file.name).write_bytes(file.read_bytes())
    streamxf.pack(tmp_path / "folder", tmp_path / "packed-folder")
    for packed in "packed", "packed-folder":
        streamxf.unpack(tmp_path / packed, tmp_path / "again" / packed / (suffix if packed == "packed" else ""))
    assert (tmp_path / "again" / "packed" / suffix).read_bytes() == file.read_bytes()
    assert (tmp_path / "again" / "packed-folder" / file.name).read_bytes() == file.read_bytes()


def test_inside_an_object_it_is_loaded(tmp_path: Path, odd: torch.Tensor) -> None:
    with streamxf.CheckpointWriter(tmp_path / "c", chain="zstd") as writer:
        writer.add("x", (odd, "note"))
    found, note = streamxf.Checkpoint(tmp_path / "c")["x"].read()
    assert torch.equal(found, odd)
    assert note == "note"


@pytest.mark.parametrize("chain", ["", "raw", "zstd", "encrypted"])
def test_no_save_begins_with_one(tmp_path: Path, odd: torch.Tensor, chain: str) -> None:
    how: Any = full_chain() if chain == "encrypted" else chain
    writer = streamxf.FileSystemWriter(tmp_path / "c", chain=how)
    with pytest.raises(dcp.api.CheckpointException) as failure:
        dcp.save({"a": A, "x": odd}, storage_writer=writer, no_dist=True)
    with pytest.raises(UnsupportedError) as single, streamxf.CheckpointWriter(tmp_path / "d", chain=how) as items:
        items.add("x", odd)
    ((cause, _),) = failure.value.failures.values()
    assert "at most" in single.value.message
    assert (type(cause), cause.message, cause.item) == (UnsupportedError, single.value.message, "x")
    assert not [*(tmp_path / "c").iterdir()]
    assert not [*tmp_path.glob("d/*")]
