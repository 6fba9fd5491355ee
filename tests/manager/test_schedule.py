"""When a save is due: by steps, by the time since the last one, and at the interval that `optimal` computes."""

import math
import signal
from typing import Any

import pytest

from streamxf.errors import ParameterError
from streamxf.manager.schedule import SaveTimer, Schedule, optimal
from streamxf.manager.sessions import Session


class Clock:
    """A clock that only moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_steps() -> None:
    assert [step for step in range(13) if Schedule(steps=4).asks(step)] == [4, 8, 12]
    assert [step for step in range(13) if Schedule(at=[0, 7]).asks(step)] == [0, 7]
    assert [step for step in range(13) if Schedule(steps=5, at={3}).asks(step)] == [3, 5, 10]
    assert not any(Schedule(seconds=1).asks(step) for step in range(13))


def test_what_save_stands_for() -> None:
    assert Schedule.of(500) == Schedule(steps=500)
    assert Schedule.of(None) == Schedule()
    assert Schedule.of(Schedule(seconds=3)) == Schedule(seconds=3)
    assert Schedule().signals == (signal.SIGTERM,)
    for wrong in ("500", 0.5, True, 0):
        with pytest.raises(ParameterError):
            Schedule.of(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"steps": 0}, {"steps": 2.0}, {"steps": True}, {"seconds": 0}, {"seconds": math.inf}, {"seconds": math.nan}),
        *({"seconds": "60"}, {"at": 5}, {"at": "5"}, {"at": [1.5]}, {"at": [-1]}, {"optimal": 1}),
        *({"optimal": True, "seconds": 60}, {"mtbf": 3600}, {"mtbf": -1, "optimal": True}, {"signals": signal.SIGTERM}),
        *({"signals": (signal.SIGKILL,)}, {"signals": (999,)}, {"signals": ("SIGTERM",)}),
    ],
    ids=str,
)
def test_wrong_schedules_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(
        ParameterError, match=rf"^Schedule\({next(iter(wrong))}=" if len(wrong) == 1 else "optimal|mtbf"
    ):
        Schedule(**wrong)


def test_seconds_count_from_the_beginning_of_the_last_save(clock: Clock) -> None:
    timer = SaveTimer(Schedule(seconds=60), clock=clock)
    clock.now += 59
    assert not timer.due()
    clock.now += 1
    assert timer.due()
    clock.now += 100
    assert timer.due(), "until there is one"
    timer.began()
    clock.now += 30
    timer.blocked(30)
    assert not timer.due()
    clock.now += 30
    assert timer.due()
    assert timer.interval is None


def test_steps_alone_have_no_clock(clock: Clock) -> None:
    timer = SaveTimer(Schedule(steps=3), clock=clock)
    clock.now += 1e9
    assert not timer.due()


def test_the_first_save_measures_its_cost(clock: Clock) -> None:
    timer = SaveTimer(Schedule(optimal=True, mtbf=10_000), clock=clock)
    assert timer.interval is None
    assert timer.due()
    timer.began()
    assert timer.due(), "a save that failed has measured nothing"
    timer.began()
    timer.blocked(2)
    assert timer.interval is not None
    assert timer.interval.seconds == optimal(2, 10_000)
    clock.now += timer.interval.seconds - 0.1
    assert not timer.due()
    clock.now += 0.2
    assert timer.due()


def test_the_cost_is_the_median_of_the_last_five(clock: Clock) -> None:
    timer = SaveTimer(Schedule(optimal=True, mtbf=10_000), clock=clock)
    costs = []
    for cost in (5, 1, 900, 1, 3, 3, 4, 4, -1):
        timer.blocked(cost)
        costs.append(timer.interval and timer.interval.cost)
    assert costs == [5, 3, 5, 3, 3, 3, 3, 3, 3]


def test_the_interval_is_no_shorter_than_a_save(clock: Clock) -> None:
    timer = SaveTimer(Schedule(optimal=True, mtbf=10_000), clock=clock)
    timer.blocked(0.01)
    assert timer.interval is not None
    assert timer.interval.seconds < 60
    timer.finished(60)
    assert timer.interval.seconds == 60
    timer.finished(1)
    timer.finished(1)
    assert timer.interval.seconds == optimal(0.01, 10_000)


def test_failures_are_counted_over_all_sessions(clock: Clock) -> None:
    """This session's time counts, too: the longer it goes well, the less often it saves."""
    sessions = [Session(0, 7200), Session(8000, 11_600, True), Session(12_000, 19_200)]
    timer = SaveTimer(Schedule(optimal=True), sessions, clock)
    timer.blocked(3)
    first = timer.interval
    assert first is not None
    assert (first.failures, first.observed_seconds) == (2, 18_000)
    assert first.mtbf == (86_400 + 18_000) / 3
    clock.now += 100_000
    timer.blocked(3)
    assert timer.interval is not None
    assert timer.interval.observed_seconds == 118_000
    assert timer.interval.seconds > first.seconds


def test_what_the_user_says_of_failures_counts(clock: Clock) -> None:
    timer = SaveTimer(Schedule(optimal=True, mtbf=50), [Session(0, 1e6)], clock)
    timer.blocked(1)
    assert timer.interval is not None
    assert (timer.interval.mtbf, timer.interval.failures) == (50, 1)
