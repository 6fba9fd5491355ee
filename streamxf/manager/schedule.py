"""When to save: `Schedule` is what the user asks for, and `SaveTimer` is its clock."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from statistics import median

from streamxf.errors import ParameterError
from streamxf.manager.interval import Interval, estimated_mtbf, observed, optimal, overhead
from streamxf.manager.sessions import Session

_MEASURED = 5


@dataclass(frozen=True)
class Schedule:
    """When a run saves. Without any of these, it saves at its end, on signals, and when it is told to.

    Parameters
    ----------
    steps : int, optional
        At every multiple of so many steps, from the first on.
    seconds : float, optional
        When so many seconds have passed since the last save began.
    at : collection of int
        At these steps.
    optimal : bool
        Compute the seconds instead: from what saves cost, which is measured, and how often the job fails. The first
        step that asks saves, too, which measures the cost and shows early that saving works.
    mtbf : float, optional
        For `optimal`: seconds between two failures of the whole job on average. By default they are estimated from the
        run's own sessions.
    signals : tuple of int
        Signals by which the job is told that it will end soon. Each of them leads to a save, after which
        `CheckpointManager.stopping` is true.

    Raises
    ------
    ParameterError
        If one of these has a value that it does not take.
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
            if value is not None and not _is_positive(value):
                raise ParameterError(f"Schedule({name}={value!r}): {name} is a positive number")
        if not _are_whole(self.at):
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
        if not isinstance(self.signals, tuple) or not all(_can_be_handled(number) for number in self.signals):
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
        """A save has finished, so many seconds after it began. Only of those in the background, of which the interval
        must not be shorter.
        """
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


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _are_whole(steps: object) -> bool:
    return (
        isinstance(steps, Collection)
        and not isinstance(steps, str | bytes)
        and all(type(step) is int and step >= 0 for step in steps)
    )


def _can_be_handled(number: object) -> bool:
    return isinstance(number, int) and number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
