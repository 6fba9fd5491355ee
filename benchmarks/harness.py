"""Sides measured in turn within one run.

Absolute times drift on any machine, so a comparison only counts when its sides ran in turn within one run. Each round
measures every side once, in an order of its own.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

MIB = 2**20

Phases = Mapping[str, float]
Rounds = dict[str, dict[str, list[float]]]


@dataclass(frozen=True)
class Settings:
    """What the command line asked for."""

    smoke: bool  # very small data: shows that the benchmarks work, and measures nothing
    rounds: int  # measured; one more comes first, to warm up
    mib: int  # the size of the state in the headline rows; benchmarks of lesser rows take a part of it
    folder: Path  # for checkpoints; what it lies on decides what a save costs
    cache: Path  # for the trained state, which is kept from run to run

    def pick(self, full: T, small: T) -> T:
        """Choose by whether this run measures or only shows that everything works."""
        return small if self.smoke else full


def alternate(sides: Mapping[str, Callable[[], Phases]], rounds: int, label: str = "", warm: bool = True) -> Rounds:
    """Measure all sides in turn: one round to warm up, unless not `warm`, then `rounds` that count.

    Each side runs once when called, and returns the seconds of its phases by name; the result has those of all rounds,
    by side and by phase. The label stands in the messages of progress, which go to stderr.
    """
    names = list(sides)
    seconds: Rounds = {name: {} for name in names}
    gc.collect()
    gc.freeze()  # collecting between two sides then looks at what the last one left only
    for number in range(0 if warm else 1, rounds + 1):
        # in an order of its own, because a side pays for the memory that the one before has given back
        for name in random.Random(number).sample(names, len(names)):
            gc.collect()
            for phase, taken in sides[name]().items():
                if number:
                    seconds[name].setdefault(phase, []).append(taken)
        progress(f"{label}: {f'round {number} of {rounds}' if number else 'warm'}")
    return seconds


def timed(action: Callable[[], Any]) -> float:
    """Seconds that `action` takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def progress(text: str) -> None:
    """Say on stderr how far the run is; tables alone go to stdout."""
    print(f"  {text}", file=sys.stderr, flush=True)
