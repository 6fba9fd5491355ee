"""`Record`: what is known of one checkpoint of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

State = Literal["complete", "unfinished", "removing"]

_NUMBER = re.compile("[0-9]+")


@dataclass(frozen=True)
class Record:
    """One checkpoint of a run's folder.

    Attributes
    ----------
    name : str
        Its folder, such as ``step-1000``.
    time : float
        When its save began, in seconds since 1970, by the clock of the machine that saved; of a checkpoint that no
        manager saved, when its metadata was written.
    bytes : int, optional
        What its files take; None where nobody has counted them.
    metrics : mapping of str to float, optional
        What was given to the save; None where the run's catalog does not know the checkpoint.
    state : str
        ``"complete"``; ``"unfinished"``, of a save that is under way or was killed; or ``"removing"``, of one whose
        removal was begun. Only what is complete is ever resumed from.
    mark : str, optional
        Another one for each save; None where a framework keeps no metadata of DCP in the folder itself.
    """

    name: str
    time: float
    bytes: int | None = None
    metrics: Mapping[str, float] | None = None
    state: State = "complete"
    mark: str | None = None

    @property
    def step(self) -> int:
        """The last number in the name."""
        return self.order[0][-1]

    @property
    def order(self) -> tuple[list[int], str]:
        """What sorts records from the oldest to the newest: the numbers in the name, one after the other.

        Steps decide, and not clocks, which may jump, and differ between machines.
        """
        return numbers_in(self.name), self.name

    @property
    def series(self) -> str:
        """The name with ``{}`` for each number. Checkpoints of one series are saves of one job, of which some are kept;
        what has another name, such as a model that was put beside them, is none of them.
        """
        return series_of(self.name)


def is_numbered(name: str) -> bool:
    """Whether a name can be that of a checkpoint of a run: it has a number, and is not hidden."""
    return not name.startswith(".") and _NUMBER.search(name) is not None


def series_of(name: str) -> str:
    return _NUMBER.sub("{}", name)


def numbers_in(name: str) -> list[int]:
    return [int(digits) for digits in _NUMBER.findall(name)]
