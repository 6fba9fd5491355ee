"""What ranks agree on at each step: with one rank, and with several over gloo, of which some die."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from streamxf.manager.agreement import Agreement, Flags
from tests.dcp.helpers import needs_gloo
from tests.dcp.process_groups import start_ranks
from tests.dcp.rank_scenarios import run_ranks

from . import agreement_ranks


def agreed(count: int, folder: Path, *scenarios: str) -> dict[str, list[Any]]:
    """What each rank found, by scenario."""
    reports = run_ranks(count, folder, *scenarios, module="tests.manager.agreement_ranks")
    return {name: [report[name] for report in reports] for name in scenarios}


def test_one_rank_agrees_with_itself_at_once() -> None:
    agreement = Agreement()
    assert (agreement.rank, agreement.size) == (0, 1)
    assert agreement.exchange(1) == Flags()
    assert agreement.exchange(2, due=True, stop=True, finished=3) == Flags(True, True, 3)
    assert agreement.exchange(3, finished=4) == Flags(False, True, 4), "who was told to stop stays so"
    assert agreement.broadcast(lambda: "step-7") == "step-7"
    with pytest.raises(ZeroDivisionError):
        agreement.broadcast(lambda: 1 / 0)
    assert agreement.everywhere(lambda: "all of it") == ["all of it"]
    with pytest.raises(ZeroDivisionError):
        agreement.everywhere(lambda: 1 / 0)
    agreement.close()
    agreement.close()


@pytest.mark.parametrize("count", [2, 4], ids=["2 ranks", "4 ranks"])
@pytest.mark.slow
@needs_gloo
def test_ranks_agree(count: int, tmp_path: Path) -> None:
    scenarios = (
        *(
            "one_step_late",
            "due_until_saved",
            "due_when_saving_anyway",
            "stopped_by_one",
            "finished_on_all",
            "long_steps",
        ),
        *("stopped_in_a_step_that_waits", "different_steps", "different_schedules", "messages", "part_of_the_ranks"),
        *("managers_of_some_ranks", "closed_after_the_job"),
    )
    found = agreed(count, tmp_path, *scenarios)
    # every rank the same, whatever its own flags were
    assert found.pop("managers_of_some_ranks") == [[None, 1, 2]] * max(2, count - 1) + [[]] * (count == 4)
    for name in found.keys() - {"different_steps", "different_schedules", "messages", "part_of_the_ranks"}:
        assert found[name] == [found[name][0]] * count, name
    same = {name: reports[0] for name, reports in found.items()}
    assert [due for due, _, _ in same["one_step_late"]] == [False, False, True, False, False, False]
    assert same["due_until_saved"] == [4]
    assert [due for due, _, _ in same["due_when_saving_anyway"]] == [False, False, True, False, False]
    assert same["stopped_by_one"] == [False, False, False, True, True, True]
    assert same["stopped_in_a_step_that_waits"] == [False, False, True, True]
    assert same["finished_on_all"] == [0, *(step // count for step in range(1, 6))]
    assert same["long_steps"] == [[True, True, 0], [False, True, 0]]
    check_messages(found["messages"])
    check_told(found["different_steps"], [10, 11], "from 12 to 13")
    check_told(found["different_schedules"], [1], "save at step 2")
    check_parts(found["part_of_the_ranks"])


def check_messages(reports: list[Any]) -> None:
    for rank, report in enumerate(reports):
        assert report == {
            "name": "step-7",
            "from": 0,
            "error": ["no key opens it [file step-7/.metadata]", "step-7/.metadata"],
            "everywhere": list(range(len(reports))),
            "error everywhere": "no key opens it [file step-7/.metadata]",
            "interrupted": "KeyboardInterrupt",
            "calls": {0: [0, 0], 1: []}.get(rank, [rank]),
            "finished": 5,
        }


def check_told(reports: list[Any], done: list[int], error: str) -> None:
    """Rank 0, which is about to save, is told before it does; the others at their next step."""
    for rank, report in enumerate(reports):
        assert error in report["error"]
        assert report["done"] == (done if rank == 0 else [*done, done[-1] + 1])


def check_parts(reports: list[Any]) -> None:
    half = len(reports) // 2
    for rank, report in enumerate(reports):
        first = rank < half
        assert report["place"] == [rank % half, half]
        assert report["from"] == (0 if first else half), "rank 0 of its own half"
        assert report["stop"] == first
        assert "not in it" in report["error"]
        assert report["alone"] == [0, 1, [True, True, 2]]


# -- ranks that end --------------------------------------------------------------------------------


def ended(count: int, folder: Path, scenario: str) -> list[Any]:
    """What each rank found; None of one that was killed."""
    context = start_ranks(agreement_ranks.alone, (count, str(folder / "meeting"), str(folder), scenario), count)
    try:
        for process in context.processes:
            process.join(300)
            assert not process.is_alive()
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
                process.join()
    reports = [folder / f"ended {rank}.json" for rank in range(count)]
    return [json.loads(report.read_text()) if report.exists() else None for report in reports]


@pytest.mark.slow
@needs_gloo
@pytest.mark.parametrize("count", [2, 4], ids=["2 ranks", "4 ranks"])
def test_ranks_that_are_killed_are_noticed_at_once(count: int, tmp_path: Path) -> None:
    """The others get torch's error, long before the group's time-out of half an hour."""
    found = ended(count, tmp_path, "one_is_killed")
    assert found.pop(1) is None
    for report in found:
        assert "Connection" in report["error"]


@pytest.mark.slow
@needs_gloo
def test_ranks_that_hang_are_waited_for_until_the_time_out(tmp_path: Path) -> None:
    first, second = ended(2, tmp_path, "one_hangs")
    assert re.search("(?i)timed out", first["error"])
    assert second == "was there"


@pytest.mark.slow
@needs_gloo
def test_a_rank_that_fails_does_not_wait_for_the_others(tmp_path: Path) -> None:
    first, second = ended(2, tmp_path, "one_fails_early")
    assert second["logged"]
    assert "Connection" in first["error"]
