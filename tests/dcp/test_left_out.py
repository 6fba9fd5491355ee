"""What a load leaves out: the report names it, and an empty dictionary in its place is warned of."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from streamxf import FileSystemReader, FileSystemWriter
from streamxf.dcp.targets import empty_targets

NAMES = ["model.weight", "optimizer.state.0.exp_avg", "optimizer.param_groups", "step"]


def state() -> dict[str, Any]:
    moments = {"0": {"exp_avg": torch.ones(9)}}
    return {"model": {"weight": torch.ones(9), "none": torch.ones(0)}, "optimizer": {"state": moments, "lr": 1}, "a": 1}


def load(path: Path, target: dict[str, Any]) -> Any:
    reader = FileSystemReader(path)
    dcp.load(target, storage_reader=reader, no_dist=True)
    return reader.report


@pytest.fixture
def path(tmp_path: Path) -> Path:
    dcp.save(state(), storage_writer=FileSystemWriter(tmp_path, chain=[]), no_dist=True)
    return tmp_path


@pytest.fixture
def strict() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the state to load")
        yield


@pytest.mark.usefixtures("strict")
def test_the_report_names_what_was_not_asked_for(path: Path):
    report = load(path, state())
    assert report.left == ()
    assert "left out" not in str(report)
    report = load(path, {"model": state()["model"]})
    assert set(report.left) == {"optimizer.state.0.exp_avg", "optimizer.lr", "a"}
    line = next(line for line in str(report).splitlines() if "left out" in line)
    assert line.split()[:4] == ["items", "left", "out", "3"]
    assert "optimizer.state.0.exp_avg" in line


def test_only_a_few_names_are_shown(tmp_path: Path):
    many = {f"item{number}\n": number for number in range(1000)}
    dcp.save(many, storage_writer=FileSystemWriter(tmp_path, chain=[]), no_dist=True)
    report = load(tmp_path, {"item7\n": 0})
    assert len(report.left) == 999
    assert "999  item0\\n, item1\\n, item10\\n, ..." in str(report)


@pytest.mark.parametrize(("optimizer", "where"), [({}, "'optimizer'"), ({"state": {}, "lr": 1}, "'optimizer.state'")])
def test_an_optimizer_without_state_is_warned_of(optimizer: dict[str, Any], where: str, path: Path):
    target = {**state(), "optimizer": optimizer}
    with pytest.warns(UserWarning, match=f"the state to load is empty at {where}, "):
        load(path, target)
    assert target["optimizer"] == optimizer


@pytest.mark.usefixtures("strict")
def test_what_the_checkpoint_does_not_have_may_be_empty(path: Path):
    load(path, {**state(), "scheduler": {}, "optimizer": state()["optimizer"] | {"extra": {}}})


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"optimizer": {}}, ["optimizer"]),
        ({"optimizer": {"state": {}, "param_groups": []}, "model": {}}, ["optimizer.state", "model"]),
        ({"optimizer": {"state": {0: {}}}}, ["optimizer.state.0"]),
        ({"optimizer.state": {}}, ["optimizer.state"]),
        ({"opt": {}, "step": {}, "optimizer": None, "model": {"weight": 1}}, []),
        ({}, []),
    ],
    ids=repr,
)
def test_which_keys_are_empty(given: dict[str, Any], found: list[str]):
    assert empty_targets(given, NAMES) == found
