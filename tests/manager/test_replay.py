"""`Retention.replay`: what rules would have removed step by step; and times as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamxf.manager.record import Record
from streamxf.manager.retention import Retention, duration
from tests.manager.test_retention import records


def test_a_replay_goes_from_save_to_save():
    found = [*records(0.5, 0.25, 0.75, 1.0), Record("step-500", kind="unfinished")]
    assert list(Retention(last=1, best=1, metric="loss").replay(found[::-1])) == [
        ("step-100", []),
        ("step-200", ["step-100"]),
        ("step-300", []),
        ("step-400", ["step-300"]),
    ]


@given(st.lists(st.floats(0, 1), max_size=12), st.integers(1, 4), st.integers(1, 4))
def test_a_replay_ends_with_what_stays(losses: list[float], last: int, best: int):
    rules = Retention(last=last, best=best, metric="loss")
    there: set[str] = set()
    for name, removed in rules.replay(records(*losses)):
        there = (there | {name}) - set(removed)
    assert there == {name for name, reasons in rules.decide(records(*losses)).items() if reasons}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        (" 1.5 h ", 5400),
        ("30m", 1800),
        ("2min", 120),
        ("7D", 604800),
        ("4w", 2419200),
        ("0", 0),
    ],
)
def test_a_time_as_people_write_it(text: str, seconds: float):
    assert duration(text) == seconds
    if seconds:
        assert Retention(within=text) == Retention(within=seconds)


@pytest.mark.parametrize("text", ["", "d", "soon", "-1d", "1e3", "1 2", "7 days", "1y"])
def test_what_is_no_time(text: str):
    assert duration(text) is None
