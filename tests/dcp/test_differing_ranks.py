"""Two ranks that differ, in their writers or in what they have: the checkpoint is right, or the difference is named."""

from pathlib import Path

import pytest

from tests.dcp.helpers import needs_gloo, since

from .rank_scenarios import run_ranks

pytestmark = [pytest.mark.slow, needs_gloo]

MODULE = f"{__package__}.differing_ranks"


def test_a_chain_that_reaches_some_ranks_alone_fails_the_save_by_name(tmp_path: Path) -> None:
    for report in run_ranks(2, tmp_path, "writers_of_two_kinds", module=MODULE):
        found = report["writers_of_two_kinds"]
        assert len(found) == 28
        for case, (failures, published) in found.items():
            assert not published, case
            (rank, text), *others = failures.items()
            assert not others
            assert text.startswith("ChainError: "), case
            first, second = case.split()[0].split("-")
            if "zstd" not in case:
                assert "STREAMXF_CHAIN" in text
            if first in ("torch", "attached") and second == "streamxf":
                assert rank == "1"
                assert "rank 0 saves by torch's own writer, and this rank by streamxf's" in text
            else:
                assert rank == "0"
            if first == "streamxf":
                assert "these save by torch's own writer, and rank 0 by streamxf's: rank 1. Nothing was written" in text
            if second == "torch" and first == "attached":
                assert "these wrote without the chain that rank 0 has: rank 1. Nothing was published" in text


def test_other_shapes_and_dtypes_fail_the_save_and_other_values_are_warned_of_once(tmp_path: Path) -> None:
    reports = run_ranks(2, tmp_path, "values", module=MODULE)
    for report in reports:
        for case, (failures, _, _) in report["values"].items():
            kind, _, name = case.partition(" ")
            if name not in ("shape", "dtype", "dimensions", "object"):
                assert failures is None, case
            elif kind == "own":
                assert "key:it.is is " in failures["0"], case
            elif name in ("shape", "dtype"):
                wanted = "MetadataError: it is float32 (3,) on rank 0, and "
                assert failures["0"].startswith(wanted), case
                assert "[item it.is]" in failures["0"]
            else:
                # before torch 2.8 it says no more
                assert failures in ({"0": f"AssertionError: {text}"} for text in ("item.index.fqn not in md", "")), case
    first, second = (report["values"] for report in reports)
    assert not any(warned for _, warned, _ in second.values())
    for case, (failures, warned, compared) in first.items():
        if failures is None:
            assert compared is True
            equal = case.partition(" ")[2] in ("equal", "parts", "sets")
            assert len(warned) == (0 if equal else 1), case
            assert all("it.is" in text and "other" not in text.partition(".")[0] for text in warned), case


def test_replicas_are_compared_and_shards_by_their_dtypes_alone(tmp_path: Path) -> None:
    first, _ = (each["dtensors"] for each in run_ranks(2, tmp_path, "dtensors", module=MODULE))
    for kind in ("torch", "own"):
        assert first[f"{kind} shards"] == [None, []]
        failures, warned = first[f"{kind} replicas"]
        assert failures is None
        assert len(warned) == 1
        assert "same names: replicas. " in warned[0]
        (text,) = first[f"{kind} dtypes"][0].values()
        assert "int8 (4, 3) on " in text
        assert "int16 (4, 3) on " in text


@since("2.8", "plans again what it has kept")
def test_what_a_cache_of_plans_leaves_out_is_reported_as_not_compared(tmp_path: Path) -> None:
    first, second = (each["cached_values"] for each in run_ranks(2, tmp_path, "cached_values", module=MODULE))
    for kind in ("torch", "own"):
        assert first[f"{kind} 0"] == [None, 1, True, True]
        assert first[f"{kind} 1"] == [None, 0, False, True]
        (text,) = first[f"{kind} alone"][0].values()
        assert "has kept plans of ranks (enable_plan_caching) whose number is 2, and 1 is that" in text
    assert first["own 2"] == [None, 0, True, True]  # the warning is the same
    assert all(second[case][0] == first[case][0] for case in first if "alone" not in case)
    assert first["torch 2"][0]
    assert all("enable_plan_caching" in text for text in first["torch 2"][0].values())


def test_random_differences_are_named_and_what_is_equal_loads(tmp_path: Path) -> None:
    assert [report["random_differences"] for report in run_ranks(2, tmp_path, "random_differences", module=MODULE)] == [
        [],
        [],
    ]


def test_a_state_that_is_empty_on_one_rank_is_warned_of_there(tmp_path: Path) -> None:
    first, second = run_ranks(2, tmp_path, "empty_on_one_rank", module=MODULE)
    assert first["empty_on_one_rank"] == []
    (text,) = second["empty_on_one_rank"]
    assert "empty at 'optimizer.state'" in text
