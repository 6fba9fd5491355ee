"""In an object store, metadata is read by one rank of each host, and small items in few requests."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.dcp.helpers import needs_gloo
from tests.dcp.rank_scenarios import run_ranks

each_alone = pytest.mark.skipif(sys.platform != "linux", reason="each rank reads by itself")
pytestmark = [pytest.mark.slow, needs_gloo, each_alone]
MODULE = f"{__package__}.host_ranks"


TAIL = 4096  # bytes, which each rank reads


def test_one_rank_of_each_host_reads_what_its_host_needs(tmp_path: Path) -> None:
    reports = [report["counted"] for report in run_ranks(4, tmp_path, "counted", module=MODULE)]
    for report in reports:
        for how, found in report.items():
            assert (found["wrong"], found["left"]) == ([], 0), how
            assert found["read"] == ("each" if how == "each" else "once")
    each, one, two, four = ([report[how] for report in reports] for how in ("each", "1 hosts", "2 hosts", "4 hosts"))
    readers = {}
    for name, ranks in {"one": one, "two: first": two[:2], "two: second": two[2:]}.items():
        *others, readers[name] = sorted(ranks, key=lambda found: int(found["requests"]))
        assert {(found["requests"], found["bytes"]) for found in others} == {(1, TAIL)}, name

    def cost(found: dict[str, Any]) -> tuple[int, int]:
        return found["requests"], found["bytes"]

    # of each part, the chunks are those of two ranks; and the first rank, which plans for all, needs all parts
    assert cost(readers["two: second"]) == cost(each[2]) == cost(each[3])
    assert cost(readers["two: first"]) == cost(four[0])
    assert list(map(cost, four[1:])) == list(map(cost, each[1:]))
    for column in ("requests", "bytes"):
        assert (
            max(each[0][column], each[2][column]) < readers["one"][column] < sum(found[column] for found in each) / 1.5
        )


def test_nobody_waits_long_for_the_rank_that_reads(tmp_path: Path) -> None:
    reports = [report["deserted"] for report in run_ranks(3, tmp_path, "deserted", module=MODULE)]
    alone = reports[0].pop("alone")
    assert (alone["wrong"], alone["read"]) == ([], "each")
    for report in reports:
        lies = report.pop("lies")
        assert lies
        assert all(re.search("the digest of (a part|the metadata) does not match", error) for error in lies.values())
        for name, found in report.items():
            assert (found["wrong"], found["read"]) == ([], "once"), name
            assert found["requests"] > 1, name  # each has read by itself
            assert found["seconds"] < (12 if name == "falls silent" else 6), name


def test_objects_and_small_tensors_are_read_once_and_unpickled_by_each_ranks_own_rules(tmp_path: Path) -> None:
    for report in run_ranks(3, tmp_path, "small_items", module=MODULE):
        found = report["small_items"]
        wrong, how, requests, ratio = found["each"]
        assert (wrong, how) == ([], "each")
        assert ratio > 2.9
        wrong, how, at_most, ratio = found["once"]
        assert (wrong, how) == ([], "once")
        assert at_most <= requests
        assert ratio < 1.05
        assert "1" in found["refused"]  # a rank that was done before need not hear of it
        assert all(error.startswith("NotAllowedError: ") for error in found["refused"].values())
