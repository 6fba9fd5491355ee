"""How often to save: the interval at which saves and repeated work together take the least time.

Saving more often costs more time in saves, saving less often more work that is repeated after a failure. For a save
that blocks training for C seconds, and failures that come at random with M seconds between them on average:

- J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications of the ACM 17 (9), 1974:
  train for sqrt(2 C M) seconds between two saves;
- J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
  Systems 22 (3), 2006: the same with terms for failures within saves and within repeated work, and M where C is 2 M or
  more.

The time for a restart is in neither: it is lost at any interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from streamxf.manager.sessions import Session
from streamxf.wording import many, time_text

DAY = 86_400.0


@dataclass(frozen=True)
class Interval:
    """How often a run saves, and why.

    Attributes
    ----------
    seconds : float
        From the beginning of one save to the beginning of the next.
    cost : float
        Seconds for which a save blocks training.
    mtbf : float
        Seconds between two failures of the job, on average: given by the user, or estimated from `failures` and
        `observed_seconds`.
    failures : int
        How many were observed.
    observed_seconds : float
        Of training, this run included.
    overhead : float
        The fraction of time, from 0 to 1, that saves and repeated work are expected to take.
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


def optimal(cost: float, mtbf: float, duration: float = 0.0) -> float:
    """Seconds from the beginning of one save to that of the next by which the least time is lost.

    - `duration`: of a save in whole, where it goes on in the background. The interval is never shorter, or saves would
      pile up.
    """
    return max(daly(cost, mtbf) + cost, duration)


def young(cost: float, mtbf: float) -> float:
    """Seconds of training between two saves, to the first order."""
    return math.sqrt(2 * cost * mtbf)


def daly(cost: float, mtbf: float) -> float:
    """Seconds of training between two saves, to a higher order."""
    if cost >= 2 * mtbf:
        return mtbf
    part = cost / (2 * mtbf)
    return young(cost, mtbf) * (1 + math.sqrt(part) / 3 + part / 9) - cost


def overhead(seconds: float, cost: float, mtbf: float, duration: float = 0.0) -> float:
    """The fraction of time that is lost with saves `seconds` apart, for failures at random; time for restarts is not
    counted.

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
    goes with its root, and lost time is flat around the best interval: an estimate wrong by a factor of four makes the
    lost time a quarter longer.
    """
    return (DAY + seconds) / (1 + failures)
