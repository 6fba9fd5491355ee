"""One trial: a save over an older checkpoint while something goes wrong, and what loads after it."""

import itertools
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from tests.faults import forks
from tests.faults.forks import Outcome
from tests.faults.shim import ALL, Fault, Kind, Shim
from tests.faults.subjects import NEW, NEXT, OLD, Subject, whole_state
from tests.forge import split_metadata

T = TypeVar("T")
Mutant = Callable[[], AbstractContextManager[None]]


@dataclass
class Tally:
    """The counts of a row of trials."""

    row: str
    subject: str
    points: int = 0
    old: int = 0
    new: int = 0
    nothing: int = 0
    refused: int = 0
    unloadable: int = 0
    mixed: int = 0
    corrupt: int = 0
    false_success: int = 0
    hung: int = 0
    disagree: int = 0  # `streamxf.verify` says something else than the load
    unclean: int = 0  # the next save failed, or left files behind that no metadata names
    examples: list[str] = field(default_factory=list)

    @property
    def bad(self) -> int:
        return (
            self.unloadable + self.mixed + self.corrupt + self.false_success + self.hung + self.disagree + self.unclean
        )

    def count(self, verdict: str, where: object, detail: str = "") -> None:
        """Count what loaded: one of the names of the counts."""
        setattr(self, verdict, getattr(self, verdict) + 1)
        if verdict not in ("old", "new", "nothing", "refused") and len(self.examples) < 12:
            self.examples.append(f"{where}: {verdict} {detail:.300}".strip())

    def __str__(self) -> str:
        names = ("points", "old", "new", "nothing", "refused")
        bad = ("unloadable", "mixed", "corrupt", "false_success", "hung", "disagree", "unclean")
        parts = [f"{name} {getattr(self, name)}" for name in (*names, *bad) if getattr(self, name)]
        return f"{self.row} | {self.subject} | {', '.join(parts)}"


@dataclass
class Trial:
    """What came of one save: how each rank's process ended, and what loads: a verdict, and why if nothing does."""

    outcomes: list[Outcome]
    verdicts: list[str]
    details: list[str]
    hits: int
    hit: Kind


class Bench:
    """A folder in which one subject saves over an older checkpoint, again and again.

    Parameters
    ----------
    shim : Shim
    subject : Subject
    scratch : path
        An empty folder, for this alone.
    first : bool
        There is no older checkpoint, and not even the folder above it.
    mutant : context manager without arguments, optional
        Around each save, in its process: breaks the writer, to see that this is noticed.
    root : path, optional
        An empty folder on the file system that is tried. By default a folder in `scratch`.
    """

    def __init__(
        self,
        shim: Shim,
        subject: Subject,
        scratch: Path,
        *,
        first: bool = False,
        mutant: Mutant = nullcontext,
        root: Path | None = None,
    ) -> None:
        self.shim = shim
        self.subject = subject
        self.first = first
        self.mutant = mutant
        self.root = root or scratch / "armed"
        self.path = self.root / "run" / "checkpoint"
        self._template = scratch / "template"
        self._meetings = (scratch / f"meeting{number}" for number in itertools.count())
        self.root.mkdir(parents=True, exist_ok=True)
        for seed in (OLD, NEW, NEXT):  # here, so that children find them made
            whole_state(subject.layout, seed)
        if not first:
            self.path.parent.mkdir()
            made = self.save_all(OLD)
            assert all(one.how == "returned" for one in made), made
        shutil.copytree(self.root, self._template)
        self._judge = forks.Helper(subject.verified_verdict)

    def close(self) -> None:
        """End what helps."""
        self._judge.close()

    def restore(self) -> None:
        """The older checkpoint again, and nothing else."""
        empty(self.root)
        shutil.copytree(self._template, self.root, dirs_exist_ok=True)

    def kinds(self) -> list[Kind]:
        """The events of a save that nothing disturbs."""
        self.restore()
        with self.shim.armed(self.root):
            outcomes = self.save_all(NEW)
        assert all(one.how == "returned" for one in outcomes), outcomes
        verdicts, details = self.verdicts()
        assert verdicts == ["new"] * self.units, (verdicts, details)
        return self.shim.kinds

    @property
    def units(self) -> int:
        """How many things load for themselves."""
        return 1 if self.subject.layout.collectives else self.subject.layout.ranks

    def attempt(self, fault: Fault, kinds: Kind = ALL) -> Trial:
        """Save over the older checkpoint while `fault` happens, and load."""
        self.restore()
        with self.shim.armed(self.root, fault, kinds):
            outcomes = self.save_all(NEW)
        hits, hit = self.shim.hits, self.shim.hit
        return Trial(outcomes, *self.verdicts(), hits, hit)

    def verdicts(self) -> tuple[list[str], list[str]]:
        """What loads now, of each unit, and why not, if it does not."""
        subject, path, meeting = self.subject, self.path, next(self._meetings)
        if subject.layout.collectives:
            outcomes = [self._judge.ask(path)]
        else:  # these meet
            outcomes = forks.run(*(partial(subject.verdict, path, rank, meeting) for rank in range(self.units)))
        return [self.verdict_of(one, rank) for rank, one in enumerate(outcomes)], [one.error for one in outcomes]

    def judge(self, tally: Tally, trial: Trial, where: object) -> None:
        """Count one trial in which something went wrong."""
        tally.points += 1
        ended = "; ".join(f"{one.how} {one.error:.160}" for one in trial.outcomes)
        if any(one.how == "hung" for one in trial.outcomes):
            tally.count("hung", where, ended)
            return
        allowed = ("nothing", "new") if self.first else ("old", "new")
        worst = None
        for unit, verdict in enumerate(trial.verdicts):
            alone = len(trial.outcomes) == len(trial.verdicts)  # each saved for itself
            saved = [trial.outcomes[unit]] if alone else trial.outcomes
            told = all(one.how != "returned" for one in saved)
            if verdict not in allowed:
                worst = "unloadable" if verdict == "nothing" else verdict
                if verdict in ("unloadable", "nothing") and not told:
                    worst = "false_success"
            elif verdict != "new" and not told:
                worst = "false_success"
        tally.count(worst or trial.verdicts[0], where, f"({ended}) {'; '.join(trial.details)}" if worst else "")

    def judge_next(self, tally: Tally, where: object) -> None:
        """Whether the next save works, loads, and leaves only its own files; counts as "unclean" if not."""
        outcomes = self.save_all(NEXT)
        failed = [one for one in outcomes if one.how != "returned"]
        if failed:
            tally.count("unclean", where, f"the next save: {failed[0].how} {failed[0].error}")
            return
        verdicts, details = self.verdicts()
        if verdicts != [self.subject.again] * self.units:
            tally.count("unclean", where, f"after the next save: {verdicts} {details}")
        elif not self.subject.stock and (left := self.leftovers()):
            tally.count("unclean", where, f"the next save left {sorted(left)}")

    def leftovers(self) -> set[str]:
        """Files in the checkpoint's folder that none of its metadata names."""
        names = {file.name for file in self.path.iterdir()}
        metadata = {name for name in names if name.endswith(".metadata")}
        known = set(metadata)
        for name in metadata:
            known |= {file["path"] for file in split_metadata((self.path / name).read_bytes()).index["files"]}
        return names - known

    def save_all(self, seed: int) -> list[Outcome]:
        """Save on all ranks; how each of them ended."""
        meeting = next(self._meetings)
        return forks.run(*(partial(self._save, seed, rank, meeting) for rank in range(self.subject.processes(seed))))

    def _save(self, seed: int, rank: int, meeting: Path) -> None:
        self.shim.join()
        with self.mutant():
            self.subject.save(self.path, seed, rank, meeting)

    def verdict_of(self, outcome: Outcome, rank: int) -> str:
        """What a load found, or \"unloadable\", or \"nothing\" if there is no metadata either."""
        if outcome.how == "returned":
            return str(outcome.value)
        if outcome.how == "hung":
            return "hung"
        name = ".metadata" if self.subject.layout.collectives else f"__{rank}.metadata"
        return "unloadable" if (self.path / name).exists() else "nothing"


def empty(folder: Path) -> None:
    """Remove what is in a folder, which may be a mount."""
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def sample(kinds: list[Kind], points: Sequence[T], every: int, event_of: Callable[[T], int], near: int) -> list[T]:
    """One in `every` of the points, others each day, and all that are at most `near` events from a rename."""
    day = int(os.environ.get("EXHAUSTIVE_DAY", 0))
    renames = [number for number, kind in enumerate(kinds) if kind & Kind.RENAME]
    return [
        point
        for number, point in enumerate(points)
        if (number + day) % every == 0 or any(abs(event_of(point) - rename) <= near for rename in renames)
    ]
