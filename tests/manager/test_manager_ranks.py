"""`CheckpointManager` on two ranks: they agree on what is saved, on what failed, and on what is resumed from."""

import re
from pathlib import Path
from socket import gethostname

import pytest

from tests.dcp.helpers import needs_gloo
from tests.dcp.rank_scenarios import run_ranks

pytestmark = [pytest.mark.slow, needs_gloo]

MODULE = f"{__package__}.manager_ranks"


def test_both_ranks_agree(tmp_path: Path) -> None:
    scenarios = ("saves_and_resumes", "failing_saves", "busy", "damaged", "error_in_the_block", "announced", "digested")
    reports = run_ranks(2, tmp_path, *scenarios, module=MODULE)
    for rank, report in enumerate(reports):
        saves = report["saves_and_resumes"]
        for mode in ("False", "thread", "process"):
            assert saves[f"{mode} fresh"] is None
            assert saves[f"{mode} resumed"] == 3
            assert saves[f"{mode} equal"]
            assert saves[f"{mode} left"] == ["step-2", "step-3"]

        fails = report["failing_saves"]
        for mode, late in (("False", 0), ("thread", 1)):
            assert fails[f"{mode} raised"] == [
                f"{2 + late}: CheckpointException of [1]",
                f"{4 + late}: CheckpointException of [0]",
            ]
            assert fails[f"{mode} resumed"] == [6, True]
            assert "step-2" not in fails[f"{mode} left"]

        assert report["busy"] == reports[0]["busy"]
        assert report["busy"]["saved"] == report["busy"]["there"]
        assert 2 < len(report["busy"]["saved"]) < 39

        assert report["damaged"] == {
            "fell back": [2, True],
            "one rank fails": [1, True],
            "all damaged": True,
            "holds": [],
        }
        assert report["error_in_the_block"] == {"error": "ZeroDivisionError" if rank else "", "left": ["step-1"]}
        assert report["announced"] == {"before": None, "after": "step-1", "refused": "PermissionError"}
        assert report["digested"] == {"part 0": True, "part 1": True}


def test_what_did_not_change_is_shared_by_all_ranks_in_each_mode(tmp_path: Path) -> None:
    for report in run_ranks(2, tmp_path, "increments", module=MODULE):
        for mode in ("False", "thread", "process"):
            assert report["increments"][mode] == [[2, 2, 2, 0], [True] * 4], mode


def test_a_folder_that_is_not_the_same_on_all_ranks_is_refused_at_the_first_save(tmp_path: Path) -> None:
    first, second = (
        report["folders_of_their_own"] for report in run_ranks(2, tmp_path, "folders_of_their_own", module=MODULE)
    )
    for case, host in (("two folders", gethostname()), ("two hosts", "node")):
        assert first[case] == second[case]
        for rank, folder in enumerate(("disk", "host")[case == "two hosts"] for _ in range(2)):
            assert re.search(
                rf"rank {rank} on {host}\S* has \S+.*/{folder} {rank}.* \(\S+ of \S+, folder [0-9]+\)", first[case]
            )
        assert first[f"{case} left"] in ([".streamxf"], [".streamxf", "holds"])
        assert second[f"{case} left"] == []
    assert first["two names"] == second["two names"] == "saved"
