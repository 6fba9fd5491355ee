"""When to save: `Schedule` is what the user asks for, and `SaveTimer` is its clock.

The interval at which saves and repeated work together take the least time, for a save that blocks training for C
seconds, and failures that come at random with M seconds between them on average, is

- sqrt(2 C M) to the first order: J. W. Young, "A first order approximation to the optimum checkpoint interval",
  Communications of the ACM 17 (9), 1974;
- the same with terms for failures within saves and within repeated work: J. T. Daly, "A higher order estimate of the
  optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22 (3), 2006.

The time for a restart is in neither: it is lost at any interval.
"""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from statistics import median

from streamxf.errors import ParameterError
from streamxf.manager.sessions import Session
from streamxf.wording import many, time_text

_MEASURED = 5
_DAY = 86_400.0


@dataclass(frozen=True)
class Schedule:
    """When a run saves. By default only at its end, on signals, and by your own calls.

    Parameters
    ----------
    steps : int, optional
        At every multiple of this number of steps.
    seconds : float, optional
        When this many seconds have passed since the last save began.
    at : collection of int
        At these steps.
    optimal : bool
        Compute the seconds instead, from the measured cost of saves and how often the job fails. The first step saves
        too, which measures the cost and shows early that saving works.
    mtbf : float, optional
        For `optimal`: mean seconds between failures of the whole job, by default estimated from the run's own sessions.
    signals : tuple of int
        Signals that announce the end of the job. Each leads to a save, and sets `CheckpointManager.stopping`.

    Raises ParameterError if a value is invalid.
    """

    steps: int | None = None
    seconds: float | None = None
    at: Collection[int] = ()
    optimal: bool = False
    mtbf: float | None = None
    signals: tuple[int, ...] = (signal.SIGTERM,)

    def __post_init__(self) -> None:
        if self.steps is not None and (type(self.steps) is not int or self.steps < 1):
            raise ParameterError(f"Schedule(steps={self.steps!r}): steps is a whole number from 1 on")
        for name in ("seconds", "mtbf"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (is_number and 0 < value <= sys.float_info.max):
                raise ParameterError(f"Schedule({name}={value!r}): {name} is a positive number")
        is_list = isinstance(self.at, Collection) and not isinstance(self.at, str | bytes)
        if not is_list or not all(type(step) is int and step >= 0 for step in self.at):
            raise ParameterError(f"Schedule(at={self.at!r:.80}): at has the numbers of steps")
        object.__setattr__(self, "at", frozenset(self.at))
        if type(self.optimal) is not bool:
            raise ParameterError(f"Schedule(optimal={self.optimal!r}): optimal is True or False")
        if self.optimal and self.seconds is not None:
            raise ParameterError(
                "Schedule(seconds=..., optimal=True): optimal computes the seconds, so give one of them"
            )
        if self.mtbf is not None and not self.optimal:
            raise ParameterError("Schedule(mtbf=...): only optimal=True uses it")
        known = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
        if not isinstance(self.signals, tuple) or not all(
            isinstance(one, int) and one in known for one in self.signals
        ):
            raise ParameterError(
                f"Schedule(signals={self.signals!r:.80}): signals is a tuple of signals of this system"
            )

    @classmethod
    def of(cls, save: Schedule | int | None) -> Schedule:
        """What ``save=`` stands for: a number is one of steps."""
        if save is None or isinstance(save, int):
            return cls(steps=save)
        if not isinstance(save, cls):
            raise ParameterError(f"save={save!r:.80}: it is a Schedule, or a number of steps")
        return save

    def asks(self, step: int) -> bool:
        """Whether a save is due at this step whatever the time is. Every rank gets the same answer by itself."""
        return step in self.at or (self.steps is not None and step > 0 and step % self.steps == 0)


@dataclass(frozen=True)
class Interval:
    """How often a run saves, and why.

    - `seconds`: from the beginning of one save to the beginning of the next.
    - `cost`: seconds for which a save blocks training.
    - `mtbf`: mean seconds between failures of the job: given, or estimated from `failures` and `observed_seconds`.
    - `failures`: how many were observed.
    - `observed_seconds`: of training, this run included.
    - `overhead`: the fraction of time, from 0 to 1, that saves and repeated work are expected to take.
    """

    seconds: float
    cost: float
    mtbf: float
    failures: int
    observed_seconds: float
    overhead: float

    def __str__(self) -> str:
        seen = f"{many(self.failures, 'failure')} seen in {time_text(self.observed_seconds)}"
        return (
            f"a save every {time_text(self.seconds)}: it blocks training for {time_text(self.cost)}, a failure "
            f"is expected every {time_text(self.mtbf)} ({seen}), and {self.overhead:.2%} of the time is lost"
        )


class SaveTimer:
    """Whether a save is due by the time that has passed. Only rank 0's decides, so that clocks need not agree. Saves in
    the background may tell from any thread that they have finished. `sessions` are earlier ones of the run.
    """

    def __init__(
        self, schedule: Schedule, sessions: Iterable[Session] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._schedule, self._clock = schedule, clock
        self._start = self._last = clock()
        self._failures, self._seconds = observed(sessions)
        # replaced, and never changed: a save in the background may finish while another one is entered
        self._costs: tuple[float, ...] = ()
        self._durations: tuple[float, ...] = ()
        self.interval: Interval | None = None  # what `optimal` has computed, from the first save on

    def due(self) -> bool:
        seconds = self._schedule.seconds
        if self._schedule.optimal:
            if self.interval is None:
                return True
            seconds = self.interval.seconds
        return seconds is not None and self._clock() - self._last >= seconds

    def began(self) -> None:
        """A save begins, for whatever reason."""
        self._last = self._clock()

    def blocked(self, seconds: float) -> None:
        """A save has let training go on again after so many seconds."""
        self._costs = (*self._costs, max(seconds, 0.0))[-_MEASURED:]
        self._compute()

    def finished(self, seconds: float) -> None:
        """A save in the background has finished, so many seconds after it began: the interval must not be shorter."""
        self._durations = (*self._durations, max(seconds, 0.0))[-_MEASURED:]
        self._compute()

    def _compute(self) -> None:
        costs, durations = self._costs, self._durations
        if not self._schedule.optimal or not costs:
            return
        cost = median(costs)  # a single save may be slow for reasons of its own
        duration = median(durations) if durations else cost
        seen = self._seconds + self._clock() - self._start
        mtbf = self._schedule.mtbf or estimated_mtbf(self._failures, seen)
        seconds = optimal(cost, mtbf, duration)
        lost = overhead(seconds, cost, mtbf, duration)
        self.interval = Interval(seconds, cost, mtbf, self._failures, seen, lost)


def optimal(cost: float, mtbf: float, duration: float = 0.0) -> float:
    """Seconds from the beginning of one save to that of the next by which the least time is lost.

    - `duration`: of a whole save in the background. The interval is never shorter, or saves would pile up.
    """
    return max(daly(cost, mtbf) + cost, duration)


def daly(cost: float, mtbf: float) -> float:
    """Seconds of training between two saves."""
    if cost >= 2 * mtbf:
        return mtbf
    part = cost / (2 * mtbf)
    return math.sqrt(2 * cost * mtbf) * (1 + math.sqrt(part) / 3 + part / 9) - cost


def overhead(seconds: float, cost: float, mtbf: float, duration: float = 0.0) -> float:
    """The fraction of time that is lost with saves `seconds` apart, for failures at random, without time for restarts.

    Daly's model, which is exact: to get a segment done takes mtbf * (exp(seconds / mtbf) - 1) on average. A save that
    goes on in the background counts only when it is complete, so that a failure costs this delay on top.
    """
    delay = max(duration - cost, 0.0) / mtbf
    if seconds / mtbf + delay > 700:  # exp would overflow
        return 1.0
    return 1 - (seconds - cost) / (mtbf * math.exp(delay) * math.expm1(seconds / mtbf))


def observed(sessions: Iterable[Session]) -> tuple[int, float]:
    """Failures and seconds of training of earlier sessions.

    Only those that came to a save are known. So a program that fails at once, however often it is started, does not
    pass for a failing machine. A clock that was set back makes a session of no length.
    """
    known = list(sessions)
    return sum(not each.ended for each in known), sum(max(each.seen - each.began, 0.0) for each in known)


def estimated_mtbf(failures: int, seconds: float) -> float:
    """Seconds between failures, as far as can be told from what was observed.

    As if, before everything else, one failure had been seen in one day: so there is an estimate before the first
    failure, and what is observed outweighs the assumption soon. The estimate need not be good, because the interval
    goes with its root, and an estimate wrong by a factor of four makes the lost time a quarter longer.
    """
    return (_DAY + seconds) / (1 + failures)
