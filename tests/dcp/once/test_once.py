"""Loads that read once, on several ranks over gloo: they are right, and what is stored is read once."""

from pathlib import Path
from typing import Any

import pytest

from tests.dcp.helpers import needs_gloo
from tests.dcp.rank_scenarios import run_ranks

pytestmark = [pytest.mark.slow, needs_gloo]
MODULE = f"{__package__}.once_ranks"


def test_replicas_are_read_once_and_arrive_everywhere(tmp_path: Path) -> None:
    for report in run_ranks(4, tmp_path, "replicated", module=MODULE):
        found = report["replicated"]
        for number in range(2):
            assert found[f"wrong {number}"] == []
            assert found[f"read {number}"] == ["once", ""]
            assert found[f"ratio {number}"] < 1.05
        assert 2.99 < found["received"] < 3.01


@pytest.mark.parametrize(("count", "how", "most"), [(2, "unaligned", 1.05), (4, "many_rounds", 2.1)])  # of two groups
def test_blocks_are_read_by_one_rank_each(tmp_path: Path, count: int, how: str, most: float) -> None:
    for report in run_ranks(count, tmp_path, how, module=MODULE):
        assert (report[how]["wrong"], report[how]["read"]) == ([], "once")
        assert report[how]["ratio"] < most


def test_differences_are_read_by_one_rank_each(tmp_path: Path) -> None:
    for report in run_ranks(2, tmp_path, "based", module=MODULE):
        assert report["based"] == {"wrong": [], "read": "once", "beneath": 2}


def test_targets_of_any_kind_are_filled(tmp_path: Path) -> None:
    for report in run_ranks(3, tmp_path, "targets", module=MODULE):
        assert report["targets"]["read"] == "once"
        assert report["targets"]["wrong"] in (["half.a"], ["half.b"])  # they overlap, and one comes later


def test_shards_are_read_once_by_ranks_of_another_layout(tmp_path: Path) -> None:
    for report in run_ranks(4, tmp_path, "resharded", module=MODULE):
        for change, (wrong, ratio, read, reason) in report["resharded"].items():
            assert not wrong, change
            assert read == "once" or "less than 5%" in reason, change
            assert ratio < 1.03, change


def test_ranks_that_cannot_read_once_read_by_themselves(tmp_path: Path) -> None:
    reports = run_ranks(4, tmp_path, "reasons", module=MODULE)
    for rank, report in enumerate(reports):
        found: dict[str, Any] = report["reasons"]
        assert {name: wrong for name, (wrong, _, _) in found.items() if wrong} == {}
        for number in range(2):  # of half of the ranks each
            assert found.pop(f"group {number}")[1:] == ["once", ""]
        assert {read for _, read, _ in found.values()} == {"each"}
        reasons = {name: reason for name, (_, _, reason) in found.items()}
        if rank == 0:
            assert reasons["alone"] == "one rank loads alone"
        if rank != 1:
            assert "ranks without read='once'" in reasons["1 has each"]
        assert reasons["0 has each"] == ("rank 0 has read='each'" if rank else "")
        assert reasons["changed plan"] == "finish_plan has changed a plan"
        assert reasons["new plan"] == "finish_plan has replaced a plan"
        assert "less than 5%" in reasons["little"]


@pytest.mark.parametrize(("before", "after"), [(4, 9), (9, 4)])
def test_reshards_to_other_numbers_of_ranks(tmp_path: Path, before: int, after: int) -> None:
    run_ranks(before, tmp_path, "rows_saved", module=MODULE)
    for report in run_ranks(after, tmp_path, "rows_loaded", module=MODULE):
        found = report["rows_loaded"]
        assert found["wrong"] == []
        assert found["once"] <= 1.05
        assert found["once"] <= found["each"]


def test_install_and_the_manager_are_asked_for_it(tmp_path: Path) -> None:
    for report in run_ranks(3, tmp_path, "asked_of_install", "asked_of_manager", module=MODULE):
        found = report["asked_of_install"]
        assert found.pop("read") == "once"
        for wrong, ratio in found.values():
            assert wrong == []
            assert ratio < 1.05
        step, wrong, ratio = report["asked_of_manager"]
        assert (step, wrong) == (3, [])
        assert ratio < 1.05


@pytest.mark.s3
def test_urls(tmp_path: Path, endpoint: str) -> None:
    (tmp_path / "endpoint").write_text(endpoint)
    for report in run_ranks(3, tmp_path, "asked_of_urls", module=MODULE):
        for name, how in {"reader": "once", "manager": 3}.items():
            wrong, found, ratio = report["asked_of_urls"][name]
            assert (wrong, found) == ([], how)
            assert ratio < 1.05, name
