"""A row for one subject, as something that can be sent to another process, and what it comes to there."""

import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.faults import forks
from tests.faults.crashes import lost_writes
from tests.faults.full_disk import full_disk
from tests.faults.managed import managed, managed_s3
from tests.faults.mutants import MUTANTS, SURROUNDINGS
from tests.faults.rows import failing, interrupted, interrupted_load, killed
from tests.faults.s3 import faulty_s3, killed_s3
from tests.faults.shim import Shim
from tests.faults.subjects import CHAINS, LAYOUTS, OLD, Changed, Subject
from tests.faults.trials import Bench, Tally
from tests.surroundings import in_memory

ROWS: dict[str, Callable[..., Tally]] = {
    row.__name__: row for row in (killed, failing, interrupted, interrupted_load, lost_writes, full_disk)
}
ROWS["killed_change"] = killed
RUN_ROWS: dict[str, Callable[..., Tally]] = {row.__name__: row for row in (managed, managed_s3)}
S3_ROWS: dict[str, Callable[..., Tally]] = {row.__name__: row for row in (killed_s3, faulty_s3)}
S3_ROWS["killed_change_s3"] = killed_s3


@dataclass(frozen=True)
class Job:
    """A row to be tried.

    Attributes
    ----------
    row : str
        A function's name in `ROWS`, `S3_ROWS` or `RUN_ROWS`.
    layout, chain : str
        As in `subjects`; of a managed run a name in `managed.MODES`, and a chain in words.
    first : bool
        Save where nothing is yet.
    change : str, optional
        Of `subjects.Changed`.
    mutant : str, optional
        A name in `MUTANTS` or `SURROUNDINGS`.
    options : dict
        Of the row's function.
    """

    row: str
    layout: str
    chain: str = "full"
    first: bool = False
    change: str | None = None
    mutant: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, shim: Shim) -> Tally:
        """Try it in this process, which forks."""
        # in memory, where there is some to write to: what a disk would lose, the rows themselves take care of
        scratch = Path(tempfile.mkdtemp(prefix="streamxf-faults-", dir=in_memory(2**29)))
        try:
            if self.row in RUN_ROWS:
                return RUN_ROWS[self.row](self.layout, self.chain, scratch, **self.options)
            subject = Subject(LAYOUTS[self.layout], self.chain)
            if self.change is not None:
                subject = Changed(LAYOUTS[self.layout], self.chain, change=self.change)
            if self.row in S3_ROWS:
                return S3_ROWS[self.row](subject, scratch, **self.options)
            mutant = nullcontext if self.mutant is None else {**MUTANTS, **SURROUNDINGS}[self.mutant]
            bench = Bench(shim, subject, scratch, first=self.first, mutant=mutant)
            with closing(bench):
                return ROWS[self.row](bench, **self.options)
        finally:
            shutil.rmtree(scratch)


def import_what_is_used() -> None:
    """Import what a save and a load import when they are made first, so that each child has it when it is forked."""
    with tempfile.TemporaryDirectory() as folder:
        names = ["s3fs"] if importlib.util.find_spec("s3fs") else []
        for name in names + forks.run_one(partial(_modules, Path(folder))).value:
            importlib.import_module(name)


def _modules(folder: Path) -> list[str]:
    before = set(sys.modules)
    for chain in (*CHAINS, "stock"):
        subject = Subject(LAYOUTS["2 threads"], chain)
        subject.save(folder / chain, OLD)
        subject.verified_verdict(folder / chain)
    changed = Changed(LAYOUTS["2 threads"], "full")
    changed.make(folder / "full")
    changed.verdict(folder / "full")
    return sorted(set(sys.modules) - before)
