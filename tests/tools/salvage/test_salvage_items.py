"""Whatever one item does while it is read, `streamxf.salvage` and `diff` give the others."""

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
import zstandard
from torch.distributed.checkpoint._extension import ZStandard as TorchZStandard

import streamxf
from streamxf.checkpoint import resumable
from streamxf.errors import MetadataError
from streamxf.format.items import Place
from streamxf.tools.diff.diff import diff
from streamxf.tools.salvage.fill import Filler
from streamxf.tools.salvage.salvage import salvage
from tests import archives
from tests.altered import flip, flipped
from tests.dcp.helpers import assert_same, blank, load
from tests.dcp.shards import rows, save_shards

STATE = {f"w{number}": torch.arange(200.0) + number for number in range(4)} | {"x": torch.eye(4), "step": 7}
OTHERS = {name: value for name, value in STATE.items() if name != "x"}


def saved(path: Path, extensions: list[Any]) -> Any:
    """A checkpoint of torch's own writer; where the item x lies."""
    dcp.save(dict(STATE), storage_writer=dcp.FileSystemWriter(path, _extensions=extensions))
    metadata = dcp.FileSystemReader(path).read_metadata()
    (place,) = (place for index, place in metadata.storage_data.items() if index.fqn == "x")
    return place


def check_others_are_given(path: Path) -> None:
    found = streamxf.load_intact(path)
    assert set(found.lost) == {"x"}
    assert_same(found.state_dict, OTHERS)
    assert "x" in {entry.item for entry in streamxf.load_intact(path, partial=True).damaged}
    target = blank(STATE)
    before = target["x"].clone()
    assert set(streamxf.load_intact(path, target).loaded) == set(OTHERS)
    assert_same({name: target[name] for name in OTHERS}, OTHERS)
    assert_same(target["x"], before)
    copied = path.with_name("copied")
    salvaged, written = salvage(path, copied)
    assert written is not None
    assert salvaged.lost == ("x",)
    assert_same(load(OTHERS, copied, keys=None), OTHERS)
    whole = path.with_name("whole")
    saved(whole, [])
    compared = diff(whole, path)
    assert list(compared.incomparable) == ["x"]
    assert (compared.equal, compared.changed) == (len(OTHERS), ())


def test_a_damaged_stream_of_torchs_own_zstandard(tmp_path: Path) -> None:
    place = saved(tmp_path / "stock", [TorchZStandard()])
    file = tmp_path / "stock" / place.relative_path
    data = file.read_bytes()
    lost = 0
    for at in range(place.offset, place.offset + place.length, 5):
        file.write_bytes(flipped(data, at, 16))
        found = streamxf.load_intact(tmp_path / "stock")
        assert set(found.lost) <= {"x"}
        assert_same({name: found.state_dict[name] for name in OTHERS}, OTHERS)
        lost += len(found.lost)
    assert lost > place.length // 10
    file.write_bytes(data[: place.offset] + bytes(16) + data[place.offset + 16 :])
    check_others_are_given(tmp_path / "stock")


def nested() -> torch.Tensor:
    with warnings.catch_warnings(action="ignore"):
        return torch.nested.nested_tensor([torch.ones(4), torch.ones(3)])


def csr() -> torch.Tensor:
    with warnings.catch_warnings(action="ignore"):
        return torch.eye(4).to_sparse_csr()


KINDS: dict[str, Callable[[], torch.Tensor]] = {
    "meta": lambda: torch.empty(4, 4, device="meta"),
    "sparse": lambda: torch.eye(4).to_sparse(),
    "csr": csr,
    "other shape": lambda: torch.eye(5),
}


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "zstd"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_tensor_of_another_kind(kind: Callable[[], torch.Tensor], compressed: bool, tmp_path: Path) -> None:
    path = with_another_kind(tmp_path / "stock", kind(), compressed)
    check_others_are_given(path)


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "zstd"])
def test_a_tensor_of_a_kind_that_only_another_torch_knows(compressed: bool, tmp_path: Path) -> None:
    path = with_another_kind(tmp_path / "stock", nested(), compressed)
    (refused,) = streamxf.load_intact(path).refused
    assert (refused.item, refused.error) == ("x", "NotAllowedError")
    assert "it needs torch._nested_tensor_from_" in refused.message or "torch._utils._rebuild_nested" in refused.message
    assert salvage(path, tmp_path / "copied")[0].lost == ()
    assert diff(path, tmp_path / "copied").same


def with_another_kind(path: Path, tensor: torch.Tensor, compressed: bool) -> Path:
    """A checkpoint in which this tensor lies in the place of x."""
    saved(path, [TorchZStandard()] if compressed else [])
    stored = archives.saved(tensor)
    stored = zstandard.compress(stored) if compressed else stored
    (path / "__0_9.distcp").write_bytes(stored)
    metadata = dcp.FileSystemReader(path).read_metadata()
    for index, place in metadata.storage_data.items():
        if index.fqn == "x":
            place.relative_path, place.offset, place.length = "__0_9.distcp", 0, len(stored)
    (path / ".metadata").write_bytes(pickle.dumps(metadata))
    return path


def test_a_quantized_tensor(tmp_path: Path) -> None:
    with warnings.catch_warnings(action="ignore"):
        state = {"x": torch.quantize_per_tensor(torch.randn(4, 5), 0.1, 0, torch.qint8), "y": torch.ones(3)}
    for writer in (dcp.FileSystemWriter(tmp_path / "a"), streamxf.FileSystemWriter(tmp_path / "b")):
        dcp.save(dict(state), storage_writer=writer)
    for path in (tmp_path / "a", tmp_path / "b"):
        found = streamxf.load_intact(path)
        assert (sorted(found.loaded), found.lost) == (["x", "y"], ())
        assert torch.equal(found.state_dict["x"], state["x"])
        with streamxf.Checkpoint(path) as checkpoint:
            assert torch.equal(checkpoint["x"].read(), state["x"])
        salvaged, _ = salvage(path, path.with_name(f"{path.name} copied"))
        assert salvaged.lost == ()
        assert diff(path, path.with_name(f"{path.name} copied")).same
    assert diff(tmp_path / "a", tmp_path / "b").same
    other = {"x": torch.quantize_per_tensor(torch.ones(4, 5), 0.2, 0, torch.qint8), "y": torch.ones(3)}
    dcp.save(other, storage_writer=streamxf.FileSystemWriter(tmp_path / "c"))
    found = diff(tmp_path / "a", tmp_path / "c")
    assert (list(found.incomparable), found.equal) == (["x"], 1)
    assert "what is stored of it differs" in found.incomparable["x"]


def in_three_parts(path: Path) -> tuple[torch.Tensor, list[Place]]:
    whole = torch.randn(9, 5)
    save_shards(path, [{"x": rows(whole, rank, 3)} for rank in range(3)], lambda: [streamxf.ZStandard()])
    with streamxf.Checkpoint(path) as checkpoint:
        return whole, [chunk.place for chunk in sorted(checkpoint.stored["x"].chunks)]


def test_a_copy_that_is_resumed_has_what_its_report_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not what an earlier call found of a tensor that was damaged elsewhere then."""
    path, copied = tmp_path / "checkpoint", tmp_path / "copied"
    whole, (first, _, last) = in_three_parts(path)
    flip(path / first.file, first.at + first.size - 50)
    with monkeypatch.context() as patched:
        patched.setattr(resumable, "publish", None)
        with pytest.raises(TypeError):
            salvage(path, copied, partial=True)
    flip(path / first.file, first.at + first.size - 50)
    flip(path / last.file, last.at + last.size - 50)
    salvaged, written = salvage(path, copied, partial=True)
    assert written is not None
    assert [entry.offset for entry in salvaged.damaged] == [(6, 0)]
    with streamxf.Checkpoint(copied) as checkpoint:
        found = checkpoint["x"].read()
    assert torch.equal(found[:6], whole[:6])
    assert not found[6:].any()


def test_a_part_that_is_lost_after_the_report_is_no_zero_in_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, copied = tmp_path / "checkpoint", tmp_path / "copied"
    _, (first, middle, _) = in_three_parts(path)
    flip(path / first.file, first.at + first.size - 50)
    check = Filler.check

    def check_and_lose(filler: Filler) -> Any:
        found = check(filler)
        flip(path / middle.file, middle.at + middle.size - 50)
        return found

    monkeypatch.setattr(Filler, "check", check_and_lose)
    with pytest.raises(MetadataError, match=r"verified a moment ago, and no longer does.*item x"):
        salvage(path, copied, partial=True)
    assert not (copied / ".metadata").exists()


def test_integer_keys_and_empty_dicts_come_along(tmp_path: Path) -> None:
    state = {"state": {0: torch.ones(3), 1: torch.zeros(400)}, "nothing": {}}
    dcp.save(dict(state), storage_writer=streamxf.FileSystemWriter(tmp_path / "saved", thread_count=1))
    (place,) = streamxf.Checkpoint(tmp_path / "saved").stored["state.1"].places
    flip(tmp_path / "saved" / place.file, place.at + place.size - 30)
    assert salvage(tmp_path / "saved", tmp_path / "copied")[0].lost == ("state.1",)
    assert_same(streamxf.load_intact(tmp_path / "copied").state_dict, {"state": {0: torch.ones(3)}, "nothing": {}})
