"""Young's and Daly's intervals, and that they lose no more work than the best interval there is."""

import math

import numpy as np
import pytest

from streamxf.manager.schedule import Interval, daly, estimated_mtbf, observed, optimal, overhead
from streamxf.manager.sessions import Session

HOUR = 3600.0


def lost(seconds: float, cost: float, duration: float, gaps: np.ndarray) -> float:
    """The part of all time that is not training which a save has kept, in a job that fails after each of the gaps and
    goes on at once: of each gap the segments count whose saves were complete.
    """
    kept = np.floor(np.maximum(gaps - (duration - cost), 0) / seconds)
    return 1 - float(np.sum(kept) * (seconds - cost) / np.sum(gaps))


# cost, mtbf, duration: everyday, dear saves, frequent failures, saves in the background, saves dearer than failures
CASES = [
    *[(10, 24 * HOUR, 10), (300, 6 * HOUR, 300), (30, 600, 30)],
    *[(0.5, 4 * HOUR, 60), (20, HOUR, 200), (500, 200, 500)],
]


@pytest.mark.parametrize(("cost", "mtbf", "duration"), CASES)
def test_no_fixed_interval_loses_much_less(cost: float, mtbf: float, duration: float) -> None:
    gaps = np.random.default_rng(9).exponential(mtbf, 100_000)
    chosen = optimal(cost, mtbf, duration)
    candidates = np.geomspace(max(duration, cost * 1.001), max(20 * chosen, 5 * mtbf), 300)
    best = min(lost(seconds, cost, duration, gaps) for seconds in candidates)
    assert lost(chosen, cost, duration, gaps) <= 1.03 * best


@pytest.mark.parametrize(("cost", "mtbf", "duration"), CASES)
def test_the_overhead_is_what_is_lost(cost: float, mtbf: float, duration: float) -> None:
    gaps = np.random.default_rng(10).exponential(mtbf, 400_000)
    for seconds in (optimal(cost, mtbf, duration), max(duration, cost * 2), 5 * mtbf):
        told = overhead(seconds, cost, mtbf, duration)
        assert told == pytest.approx(lost(seconds, cost, duration, gaps), rel=0.02)


def test_young_and_daly() -> None:
    # by hand: C / 2M is 1/25
    assert daly(8, 100) == pytest.approx(40 * (1 + 0.2 / 3 + 0.04 / 9) - 8)
    # rare failures: Young says the same
    assert daly(1, 1e9) == pytest.approx(math.sqrt(2e9), rel=1e-4)


def test_saves_dearer_than_failures() -> None:
    for cost in (200, 201, 10_000):
        assert daly(cost, 100) == 100
        assert optimal(cost, 100) == 100 + cost
    assert daly(199.999, 100) == pytest.approx(100 * (2 + 2 / 3 + 2 / 9) - 200, rel=1e-3)


def test_hopeless_intervals_lose_everything() -> None:
    assert overhead(1e9, 1, 1) == 1
    assert overhead(800, 1, 1, 1e9) == 1


def test_no_interval_is_shorter_than_a_save() -> None:
    assert optimal(0.001, 100, duration=30) == 30
    assert optimal(0, 100) == 0


def test_observed_failures() -> None:
    assert observed([]) == (0, 0)
    assert observed([Session(100, 160, True), Session(200, 330)]) == (1, 190)


def test_clocks_that_jump() -> None:
    """The second session was last seen, by its machine's clock, before it began."""
    assert observed([Session(100, 160), Session(9000, 300)]) == (2, 60)


def test_the_estimate_begins_with_a_day_and_converges() -> None:
    assert estimated_mtbf(0, 0) == 86_400
    assert estimated_mtbf(0, 864_000) == 11 * 86_400
    generator = np.random.default_rng(11)
    for truth in (HOUR, 200 * HOUR):
        gaps = generator.exponential(truth, 2000)
        assert estimated_mtbf(len(gaps), gaps.sum()) == pytest.approx(truth, rel=0.1)


@pytest.mark.parametrize("factor", [1 / 4, 4])
def test_an_estimate_wrong_by_four_costs_a_quarter(factor: float) -> None:
    cost, mtbf = 5.0, 12 * HOUR
    least = overhead(optimal(cost, mtbf), cost, mtbf)
    assert overhead(optimal(cost, factor * mtbf), cost, mtbf) == pytest.approx(1.25 * least, rel=0.02)


def test_it_says_what_it_does() -> None:
    told = str(Interval(755, 4.2, 50_400, 3, 151_200, 0.0123))
    assert told == (
        "a save every 13 min: it blocks training for 4.2 s, a failure is expected every 14 h "
        "(3 failures seen in 1.8 d), and 1.23% of the time is lost"
    )
