"""A dtype that this torch lacks, such as one of a newer torch, stops the items that have it, and no others: it is no
damage, and no older checkpoint is taken for it.
"""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf.errors import NotAllowedError, ObjectError, UnsupportedError
from streamxf.torchsave.archive import Archive
from streamxf.torchsave.calls import OtherTensor
from streamxf.torchsave.check import read_outline
from streamxf.torchsave.objects import Objects
from streamxf.torchsave.writing import archive
from tests.dcp.helpers import assert_same, load_into, refused, save

pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize_per")
LACKING = {"framed": "qint8", "elements": "float8_e5m2", "object": "qint8"}


def state() -> dict[str, Any]:
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    values = torch.arange(3, dtype=torch.uint8).view(torch.float8_e5m2)
    return {"framed": quantized, "elements": values, "object": [1, (quantized,)], "plain": torch.ones(3), "step": 7}


WRITERS: dict[str, Callable[[Any, Path], None]] = {
    "streamxf's": lambda state, path: save(state, path, [streamxf.ZStandard()]),
    "stock": lambda state, path: dcp.save(state, checkpoint_id=path),
}


@pytest.fixture(params=WRITERS)
def made(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, dict[str, Any]]:
    found = state()
    WRITERS[request.param](found, tmp_path / "saved")
    torch.save(found, tmp_path / "file.pt")
    for dtype in {*LACKING.values()}:
        monkeypatch.delattr(torch, dtype)
    return tmp_path / "saved", found


def test_other_items_load(made: tuple[Path, Any]) -> None:
    path, whole = made
    found = load_into({"plain": torch.zeros(3), "step": 0}, streamxf.FileSystemReader(path))
    assert_same(found, {"plain": torch.ones(3), "step": 7})
    for item, dtype in LACKING.items():
        kind = ObjectError if item == "object" else UnsupportedError
        with refused(kind, f"has no dtype {dtype}; a newer one may have it", f"item {item}"):
            dcp.load({item: whole[item]}, storage_reader=streamxf.FileSystemReader(path))


def test_tools_name_it_and_call_nothing_damaged(made: tuple[Path, Any], tmp_path: Path) -> None:
    path, _ = made
    report = streamxf.verify(path)
    assert report.ok
    assert any("has no dtype qint8" in text for text in report.unchecked)
    intact = streamxf.load_intact(path)
    assert (intact.damaged, {*intact.state_dict}) == ((), {"plain", "step"})
    assert {each.item: each.message for each in intact.refused}.keys() == LACKING.keys()
    assert streamxf.salvage(path, tmp_path / "salvaged")[0].damaged == ()
    with streamxf.Checkpoint(path) as checkpoint:
        for item, dtype in LACKING.items():
            with pytest.raises((ObjectError, UnsupportedError), match=f"has no dtype {dtype}"):
                checkpoint[item].read()
    assert {*streamxf.unpack(path, tmp_path / "out.pt", skip_objects=True).left_out} == {"framed", "object"}
    (note,) = streamxf.pack(tmp_path / "file.pt", tmp_path / "packed").notes
    assert "framed, object; " in note
    assert "has no dtype qint8" in note


def test_no_older_checkpoint_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = state()
    with streamxf.CheckpointManager(tmp_path, "zstd") as manager:
        manager.save(1, {**found, "step": 6})
        manager.save(2, found)
    monkeypatch.delattr(torch, "qint8")
    newest = str(tmp_path / "step-2")
    assert streamxf.latest(tmp_path, verify="whole") == newest
    with streamxf.CheckpointManager(tmp_path, "zstd") as manager, refused(Exception, "has no dtype qint8", newest):
        manager.resume(found)


def test_a_dtype_that_is_not_known_here_is_not_allowed() -> None:
    """It comes from a newer torch than this streamxf knows."""
    file = io.BytesIO()
    torch.save(torch.ones(3, dtype=torch.uint32), file)
    given = Archive(file, len(file.getvalue()))
    pickled = given.pickled.replace(b"ctorch\nuint32\n", b"ctorch\nfloat3_new\n")
    before, *after = archive(pickled, [12], None)
    data = before + bytes(12) + b"".join(after)
    assert isinstance(read_outline(pickled, {"data/0": 12}), OtherTensor)
    with pytest.raises(NotAllowedError, match=r"it needs torch.float3_new"):
        Objects().load_tensor(io.BytesIO(data), len(data), len(data))
