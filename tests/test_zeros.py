"""Checkpoints that are nearly all zeros are out of proportion, and honest: what needs new memory needs the caller's
permission, and everything else works.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import ZStandard
from streamxf.errors import PolicyError
from streamxf.tools.salvage.salvage import salvage
from tests.dcp.helpers import assert_same, blank, load, refused, save

STATE = {"ones": torch.ones(3), "zeros": torch.zeros(1000, 1000)}
ENOUGH = 10**6

WRITERS: dict[str, Callable[[Path], None]] = {
    "own": lambda path: save(STATE, path, [ZStandard()]),
    "attached": lambda path: dcp.save(
        STATE, storage_writer=streamxf.attach(dcp.FileSystemWriter(path, sync_files=False), [ZStandard()])
    ),
    "stock": lambda path: dcp.save(
        STATE, storage_writer=dcp.FileSystemWriter(path, sync_files=False, _extensions=[ZStandard()])
    ),
}


@pytest.fixture(params=WRITERS)
def zeros(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of 4 MB in some KiB, where 100 KiB are free."""
    WRITERS[request.param](tmp_path / "zeros")
    monkeypatch.setattr("streamxf.budget.FREE", 100 * 2**10)
    return tmp_path / "zeros"


def test_a_load_fills_memory_that_is_there(zeros: Path) -> None:
    assert_same(load(STATE, zeros, None), STATE)


def test_verify_reads_them_block_by_block(zeros: Path) -> None:
    assert streamxf.verify(zeros).ok


def test_copies_go_block_by_block(zeros: Path, tmp_path: Path) -> None:
    streamxf.transcode(zeros, tmp_path / "copy", "lz4")
    assert_same(load(STATE, tmp_path / "copy", None), STATE)
    assert streamxf.diff(zeros, tmp_path / "copy").same
    streamxf.unpack(zeros, tmp_path / "out.pt")
    assert_same(torch.load(tmp_path / "out.pt"), STATE)


def test_salvage_allocates_only_with_permission(zeros: Path) -> None:
    found = streamxf.load_intact(zeros)
    assert (found.loaded, found.lost) == (("ones",), ("zeros",))
    assert "max_expansion" in str(found)
    assert_same(streamxf.load_intact(zeros, max_expansion=ENOUGH).state_dict, STATE)


def test_salvage_fills_memory_that_is_there(zeros: Path) -> None:
    target = blank(STATE)
    assert not streamxf.load_intact(zeros, target).damaged
    assert_same(target, STATE)


def test_a_salvaged_copy_holds_each_of_them(zeros: Path, tmp_path: Path) -> None:
    found, _ = salvage(zeros, tmp_path / "part")
    assert (found.loaded, found.lost) == (("ones",), ("zeros",))
    found, _ = salvage(zeros, tmp_path / "whole", max_expansion=ENOUGH)
    assert not found.damaged
    assert_same(load(STATE, tmp_path / "whole", None), STATE)


def test_salvage_without_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(STATE, tmp_path, [ZStandard()])
    (tmp_path / ".metadata").unlink()
    monkeypatch.setattr("streamxf.budget.FREE", 100 * 2**10)
    assert streamxf.load_intact(tmp_path, without_metadata=True).lost == ("zeros",)
    assert_same(streamxf.load_intact(tmp_path, without_metadata=True, max_expansion=ENOUGH).state_dict, STATE)


def test_objects_have_a_budget_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them would be allowed."""
    state: dict[str, Any] = {str(number): bytes(60_000) for number in range(4)}
    save(state, tmp_path, [ZStandard()])
    monkeypatch.setattr("streamxf.budget.FREE", 120 * 2**10)
    assert_same(load({"0": b""}, tmp_path, None), {"0": bytes(60_000)})
    with refused(PolicyError, "besides the 117.3 KiB before it", "max_expansion"):
        load(state, tmp_path, None)
    assert_same(load(state, tmp_path, None, max_expansion=ENOUGH), state)
    assert_same(load(state, tmp_path, None, weights_only=False), state)
    assert streamxf.load_intact(tmp_path).loaded == ("0", "1")
    assert_same(streamxf.load_intact(tmp_path, max_expansion=ENOUGH).state_dict, state)


def test_through_torchs_own_compression_only_with_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which has no blocks, so each tensor is decoded whole."""
    from torch.distributed.checkpoint._extension import ZStandard as TorchZStandard

    writer = dcp.FileSystemWriter(tmp_path / "zeros", sync_files=False, _extensions=[TorchZStandard()])
    dcp.save({"zeros": STATE["zeros"]}, storage_writer=writer)
    monkeypatch.setattr("streamxf.budget.FREE", 100 * 2**10)
    assert_same(load({"zeros": STATE["zeros"]}, tmp_path / "zeros", None), {"zeros": STATE["zeros"]})
    assert not streamxf.verify(tmp_path / "zeros").ok
    assert streamxf.verify(tmp_path / "zeros", max_expansion=ENOUGH).ok
    for tool in (
        lambda **options: streamxf.transcode(tmp_path / "zeros", tmp_path / "copy", "lz4", **options),
        lambda **options: streamxf.unpack(tmp_path / "zeros", tmp_path / "out.safetensors", **options),
        lambda **options: streamxf.diff(tmp_path / "zeros", tmp_path / "zeros", **options),
    ):
        with pytest.raises(PolicyError, match="max_expansion"):
            tool()
        tool(max_expansion=ENOUGH)
