"""`Retention.decide`: literal cases, restic's among them, and random ones against the model."""

import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamxf.errors import ParameterError
from streamxf.manager.record import Record, is_numbered
from streamxf.manager.retention import Retention, with_plausible_times
from tests.manager.model import Saved, believed, keep

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)  # a Monday


def records(*losses: float | None, every: float = 3600.0, size: int = 10) -> list[Record]:
    """Steps 100, 200, ... with these losses, an hour apart."""
    return [
        Record(f"step-{100 * n}", NOON.timestamp() + n * every, size, {} if loss is None else {"loss": loss})
        for n, loss in enumerate(losses, 1)
    ]


def at(*times: datetime) -> list[Record]:
    return [Record(f"step-{n}", time.timestamp()) for n, time in enumerate(times, 1)]


def staying(found: list[Record], **rules: Any) -> list[int]:
    """The steps that stay."""
    return [int(name.removeprefix("step-")) for name, reasons in Retention(**rules).decide(found).items() if reasons]


# -- each rule -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"last": 1}, {600: ("last 1",)}),
        ({"last": 2}, {500: ("last 2",), 600: ("last 2",)}),
        ({"last": 99}, dict.fromkeys(range(100, 700, 100), ("last 99",))),
        ({"last": -1}, dict.fromkeys(range(100, 700, 100), ("last (all)",))),
        ({"every": 300}, {300: ("every 300 steps",), 600: ("every 300 steps",)}),
        ({"every": 250}, {500: ("every 250 steps",), 600: ("newest",)}),
        ({"every": 1}, dict.fromkeys(range(100, 700, 100), ("every step",))),
        # equal: the newer; no value and NaN: never
        ({"best": 1, "metric": "loss"}, {400: ("best 1 by loss",), 600: ("newest",)}),
        ({"best": 2, "metric": "loss"}, {200: ("best 2 by loss",), 400: ("best 2 by loss",), 600: ("newest",)}),
        ({"best": 1, "metric": "loss", "mode": "max"}, {100: ("best 1 by loss",), 600: ("newest",)}),
        ({"best": -1, "metric": "loss"}, {**dict.fromkeys((100, 200, 400, 600), ("best (all) by loss",))}),
        ({"best": 3, "metric": "accuracy"}, {600: ("newest",)}),
        ({"steps": [100, 700]}, {100: ("step 100",), 600: ("newest",)}),
        ({}, dict.fromkeys(range(100, 700, 100), ("no rule removes it",))),
        ({"max_bytes": 1}, {600: ("newest",)}),
        ({"steps": []}, dict.fromkeys(range(100, 700, 100), ("no rule removes it",))),
        ({"mode": "max"}, dict.fromkeys(range(100, 700, 100), ("no rule removes it",))),
        # any one rule is enough, and all of them are named
        (
            {"last": 1, "every": 200, "steps": (200,)},
            {200: ("every 200 steps", "step 200"), 400: ("every 200 steps",), 600: ("last 1", "every 200 steps")},
        ),
    ],
    ids=str,
)
def test_a_rule(rules: dict[str, Any], expected: dict[int, tuple[str, ...]]):
    found = Retention(**rules).decide(records(0.9, 0.2, math.nan, 0.2, None, 0.5))
    assert list(found) == [f"step-{step}" for step in range(100, 700, 100)]
    assert found == {f"step-{step}": expected.get(step, ()) for step in range(100, 700, 100)}


def test_unknown_sizes_count_as_nothing():
    found = [Record(f"step-{n}", 0, size) for n, size in enumerate((None, 10, None, 10))]
    assert staying(found, max_bytes=20) == [0, 1, 2, 3]
    assert staying(found, max_bytes=19) == [2, 3]


def test_only_what_is_complete_counts():
    kinds = ["own", "removing", "unclaimed", "unfinished"]
    found = [Record(f"step-{n}", 0, 10, {"loss": -n}, kind) for n, kind in enumerate(kinds)]
    for rules in ({"last": 1}, {"best": 1, "metric": "loss"}, {"daily": 1}, {"max_bytes": 10}):
        assert {name: bool(reasons) for name, reasons in Retention(**rules).decide(found).items()} == {
            "step-0": False,
            "step-2": True,
        }
    assert Retention(last=1).decide([]) == Retention(max_age=1, daily=-1, max_bytes=1).decide([]) == {}


def test_steps_decide_what_is_newest_and_clocks_do_not():
    found = [Record(f"step-{step}", time) for step, time in ((9, 5e9), (10, 100.0), (100, 50.0))]
    assert staying(found[::-1], last=1) == [100]
    assert staying(found[::-1], last=2) == [10, 100]


# -- thinning by time, as restic's -----------------------------------------------------------------

SUNDAYS = [datetime(2019, 9, 1, 11, tzinfo=UTC) + timedelta(weeks=n) for n in range(12)]  # restic's own example
RESTIC = [
    # rules, times, which stay from 1
    ({"daily": 4}, SUNDAYS, [9, 10, 11, 12]),
    ({"weekly": 4}, SUNDAYS, [9, 10, 11, 12]),
    ({"monthly": 2}, SUNDAYS, [9, 12]),
    # days without checkpoints do not count, and the newest of a day stays
    ({"daily": 2}, [NOON, NOON + timedelta(hours=1), NOON + timedelta(days=9)], [2, 3]),
    ({"hourly": 2}, [NOON, NOON + timedelta(minutes=59, seconds=59), NOON + timedelta(hours=1)], [2, 3]),
    # natural bounds: days from midnight, weeks from Monday, ISO's weeks at the turn of the year
    ({"daily": 2}, [datetime(2026, 3, 2, 23, 59, 59, tzinfo=UTC), datetime(2026, 3, 3, tzinfo=UTC)], [1, 2]),
    ({"weekly": 1}, [datetime(2026, 3, 1, 23, 59, tzinfo=UTC), NOON, NOON + timedelta(days=6)], [3]),
    ({"weekly": 2}, [datetime(2026, 3, 1, 23, 59, tzinfo=UTC), NOON, NOON + timedelta(days=6)], [1, 3]),
    ({"weekly": 1}, [datetime(2024, 12, 30, tzinfo=UTC), datetime(2025, 1, 5, tzinfo=UTC)], [2]),
    ({"yearly": 2}, [datetime(2024, 12, 30, tzinfo=UTC), datetime(2025, 1, 5, tzinfo=UTC)], [1, 2]),
    # too few of them: the oldest stays as well; also with no limit
    ({"monthly": 4}, [NOON + timedelta(days=n) for n in range(4)], [1, 4]),
    ({"monthly": 1}, [NOON + timedelta(days=n) for n in range(4)], [4]),
    ({"yearly": 2}, SUNDAYS, [1, 12]),
    ({"monthly": -1}, SUNDAYS, [1, 5, 9, 12]),
    # one rule is enough
    ({"daily": 1, "monthly": 3}, SUNDAYS, [5, 9, 12]),
    ({"last": 2, "weekly": 1}, SUNDAYS, [11, 12]),
    ({"max_age": 15 * 86400}, SUNDAYS, [10, 11, 12]),
]


@pytest.mark.parametrize(("rules", "times", "stay"), RESTIC)
def test_as_restic_does(rules: dict[str, Any], times: list[datetime], stay: list[int]):
    assert staying(at(*times), **rules) == stay


def test_the_words_for_it():
    found = at(NOON, NOON + timedelta(hours=1), NOON + timedelta(hours=2))
    assert Retention(hourly=2, daily=2, yearly=1).decide(found) == {
        "step-1": ("oldest daily",),
        "step-2": ("hourly",),
        "step-3": ("hourly", "daily", "yearly"),
    }


def test_a_checkpoint_a_day_for_a_century():
    """The example in restic's documentation, until the 31st of December 2069, a Tuesday."""
    found = at(*(datetime(1970, 1, 1, 12, tzinfo=UTC) + timedelta(days=n) for n in range(36525)))
    stay = staying(found, daily=7, weekly=5, monthly=12, yearly=75)
    days, sundays, months, years = 7, 3, 11, 74  # those that no rule before keeps: the newest is the newest of each
    assert len(stay) == days + sundays + months + years
    assert stay[-10:] == [36502, 36509, 36516, *range(36519, 36526)]


def test_a_clock_that_jumps_back_opens_no_day_twice():
    """By the clock the days are 1, 2, 1, 2: the newest of each stays, and no more."""
    days = [NOON, NOON + timedelta(days=1), NOON + timedelta(hours=1), NOON + timedelta(days=1, hours=1)]
    assert staying(at(*days), daily=2) == [3, 4]
    assert staying(at(*days), daily=3) == [1, 3, 4]


@pytest.mark.parametrize("time", [-1e30, -1.0, 1.8e12, 1e300, math.inf, math.nan])
def test_a_time_that_cannot_be_is_as_good_as_any(time: float):
    """A checkpoint stays or goes by it; nothing else is harmed."""
    found = [Record("step-1", 0.0), Record("step-2", time), Record("step-3", NOON.timestamp())]
    assert "step-3" in Retention(hourly=1, daily=1, weekly=1, monthly=1, yearly=1, max_age=10).decide(found)
    assert staying(found, last=2, daily=1) == [2, 3]


# -- in general ------------------------------------------------------------------------------------

COUNT = st.integers(1, 6) | st.just(-1)
RULES = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("last", "hourly", "daily", "weekly", "monthly", "yearly", "best"), COUNT),
        **{"every": st.integers(1, 40), "max_age": st.floats(0.5, 1e8), "max_bytes": st.integers(1, 300)},
        "steps": st.lists(st.integers(0, 60), max_size=4),
    },
).flatmap(
    lambda rules: st.fixed_dictionaries(
        {key: st.just(value) for key, value in rules.items()}
        | ({"metric": st.just("loss"), "mode": st.sampled_from(["min", "max"])} if "best" in rules else {})
    )
)
TIMES = st.integers(0, 10**8).map(float) | st.integers(0, 60).map(lambda hours: 1.7e9 + 1800 * hours)
LOSSES = st.sampled_from([None, math.nan, math.inf, -math.inf, 0.0, 0.5, 0.5, 1.0])
SAVED = st.lists(
    st.builds(
        lambda step, time, size, loss, more: Saved(step, time, size, {} if loss is None else {"loss": loss}, more),
        st.integers(0, 60),
        TIMES | st.none(),
        st.integers(0, 50),
        LOSSES,
        st.booleans(),
    ),
    max_size=30,
    unique_by=lambda one: one.step,
)


@given(SAVED, RULES, st.randoms(use_true_random=False))
def test_the_model_agrees(saved: list[Saved], rules: dict[str, Any], shuffler: random.Random):
    shuffled = [Record(f"step-{one.step}", *one[1:4], other_notes=one.muddled) for one in saved]
    shuffler.shuffle(shuffled)
    decided = Retention(**rules).decide(shuffled)
    assert list(decided) == [f"step-{one.step}" for one in sorted(saved)]
    assert {name for name, reasons in decided.items() if reasons} == {f"step-{step}" for step in keep(saved, rules)}


@given(SAVED, st.sampled_from([0.0, 1e8, 1.7e9]))
def test_the_model_agrees_on_what_times_are_believed(saved: list[Saved], now: float):
    found = [Record(f"step-{one.step}", one.time, one.size, one.metrics) for one in saved]
    assert {one.step: one.time for one in with_plausible_times(found, now)} == {
        one.step: one.time for one in believed(saved, now)
    }


@given(SAVED, RULES)
def test_deciding_again_removes_no_more(saved: list[Saved], rules: dict[str, Any]):
    """What stays does so when only that is there: a removal that is repeated, or was cut short, is the same removal."""
    found = [Record(f"step-{one.step}", one.time, one.size, one.metrics) for one in saved]
    first = Retention(**rules).decide(found)
    again = Retention(**rules).decide([record for record in found if first[record.name]])
    assert all(again.values())


# -- what makes no sense ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        *(({name: value}, f"{name}={value!r}") for name in ("last", "daily") for value in (0, -2, 1.5, "3", True)),
        ({"every": 0}, "every=0: it is a number of steps"),
        ({"every": -1}, "every=-1"),
        ({"max_bytes": 0}, "max_bytes=0"),
        ({"max_bytes": 1e12}, "max_bytes="),
        *(({"max_age": value}, "a time, more than 0") for value in (0, -1, math.nan, math.inf, "2 days", "d")),
        ({"steps": 500}, "steps=500: it is a list"),
        ({"steps": "500"}, "a list"),
        ({"steps": [-1]}, "a list"),
        ({"steps": [None]}, "a list"),
        ({"best": 2}, "metric='loss'"),
        ({"metric": "loss"}, "best=2"),
        ({"best": 2, "metric": ""}, "metric='loss'"),
        ({"best": 0, "metric": "loss"}, "leave it out"),
        ({"best": 2, "metric": "loss", "mode": "least"}, "'min' where small"),
    ],
    ids=str,
)
def test_what_makes_no_sense(rules: dict[str, Any], says: str):
    with pytest.raises(ParameterError) as caught:
        Retention(**rules)
    assert says in str(caught.value)


def test_it_can_be_compared_and_hashed():
    assert Retention(steps=[5, 6]) == Retention(steps=(5, 6))
    assert len({Retention(last=3), Retention(last=3), Retention(last=4)}) == 2
    assert Retention(mode="max").keeps_all
    assert not any(Retention(**rules).keeps_all for rules in ({"last": 1}, {"max_bytes": 1}, {"steps": [0]}))


@pytest.mark.parametrize(
    ("name", "numbered"),
    [("7", True), ("a-7-b", True), ("step", False), (".step-7", False), ("1" * 15, True), ("1" * 16, False)],
)
def test_which_names_are_those_of_steps(name: str, numbered: bool) -> None:
    assert is_numbered(name) == numbered
