"""Several ranks over gloo: a sharded model, resharding, errors that reach every rank, and saves in the background."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import streamxf
from streamxf.errors import KeyMissingError

from .helpers import KEY, OTHER_KEY, assert_same, data_files, index_of, load, refused
from .rank_scenarios import run_ranks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"),
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that two ranks saved, and loaded again themselves."""
    folder = tmp_path_factory.mktemp("ranks")
    reports = run_ranks(2, folder, "save_model", "load_model")
    for report in reports:
        check_loaded(report["load_model"])
    index = index_of(folder / "model")
    assert reports[0]["save_model"]["files"] == sorted([".metadata", *index.files])
    assert len({file.writer for file in index.files.values()}) == 2
    assert len({file.key for file in index.files.values()}) == 2
    return folder


def check_loaded(report: dict[str, object]) -> None:
    assert report == {"tensors": report["tensors"], "same": report["tensors"], "names": True, "step": 3}
    assert isinstance(report["tensors"], int)
    assert report["tensors"] >= 15  # five parameters, and two moments and a step for each


@pytest.mark.parametrize("count", [1, 3])
def test_a_model_that_two_ranks_saved_loads_on_others(saved: Path, count: int) -> None:
    reports = run_ranks(count, saved, "load_model")
    assert len(reports) == count
    for report in reports:
        check_loaded(report["load_model"])


def test_raw_shards_of_two_ranks_are_loaded_and_mapped(tmp_path: Path) -> None:
    for report in run_ranks(2, tmp_path, "raw_shards"):
        found = report["raw_shards"]
        assert found["loaded"] == found["mapped"] == found["tensors"] >= 15
        assert found["several"] >= 10


def test_a_model_that_two_ranks_saved_gets_another_key(saved: Path, tmp_path: Path) -> None:
    """Each rank has a data key of its own."""
    path = shutil.copytree(saved / "model", tmp_path / "model")
    before = [(file.name, file.read_bytes()) for file in data_files(path)]
    assert streamxf.rekey(path, keys=KEY, recipients=OTHER_KEY) == (".metadata",)
    whole = torch.load(saved / "whole.pt")
    assert_same(load(whole, path, OTHER_KEY), whole)
    with refused(KeyMissingError, OTHER_KEY.id):
        load(whole, path, KEY)
    assert [(file.name, file.read_bytes()) for file in data_files(path)] == before


def test_errors_reach_every_rank(tmp_path: Path) -> None:
    reports = run_ranks(
        2,
        tmp_path,
        "wrong_key_on_one_rank",
        "wrong_key_on_the_coordinator",
        "damaged_item_on_one_rank",
        "failing_write_on_one_rank",
        "without_collectives",
    )
    for report in reports:
        one = report["wrong_key_on_one_rank"]
        assert one["kinds"] == {"1": "KeyMissingError"}
        assert one["typed"]
        assert report["wrong_key_on_the_coordinator"]["kinds"] == {"0": "KeyMissingError"}
        damaged = report["damaged_item_on_one_rank"]
        assert damaged["kinds"] == {"1": "BlockError"}
        assert damaged["items"] == {"1": "of rank 1"}
        full = report["failing_write_on_one_rank"]
        assert full["kinds"] == {"1": "OSError"}
        assert full["old loads"]
        assert report["without_collectives"] == {"same": True}


def test_saves_in_the_background(tmp_path: Path) -> None:
    reports = run_ranks(2, tmp_path, "async_by_thread", "async_by_process")
    for report in reports:
        for how in ("async_by_thread", "async_by_process"):
            assert report[how] == {"same": True, "tensors": 6, "files": 4, "priorities": True}, how
