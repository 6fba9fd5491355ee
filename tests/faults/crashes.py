"""The row of lost writes: a save's log, cut at each event, and every way in which a crash may leave the disk then."""

import hashlib
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from tests.faults import forks
from tests.faults.disk import Disk, get, put
from tests.faults.shim import Kind
from tests.faults.subjects import NEW
from tests.faults.trials import Bench, Tally, empty

BATCH = 40


def lost_writes(bench: Bench, every: int = 1, seeds: int = 6) -> Tally:
    """Load from each state that a crash may leave; once the save has returned, it must be the new one.

    The same state at several events is loaded once, and counted as one point for each.
    """
    bench.restore()
    disk = Disk(bench.root)
    with bench.shim.armed(bench.root, log=True):
        bench.save_all(NEW)
    log = bench.shim.log()
    end = get(bench.root)
    tally = Tally("lost writes" + (", first save" if bench.first else ""), str(bench.subject))
    known: dict[bytes, tuple[str, str]] = {}
    states = _states(disk, log, every, seeds)
    while batch := list(islice(states, BATCH)):
        fresh = {digest: files for _, digest, files in batch if digest not in known}
        outcome = forks.run_one(partial(_verdicts, bench, list(fresh.values())), seconds=10 * forks.SECONDS)
        assert outcome.how == "returned", outcome
        known |= dict(zip(fresh, outcome.value, strict=True))
        for number, digest, _ in batch:
            verdict, detail = known[digest]
            tally.points += 1
            where = f"after {number} of {len(log)} events" + (f", {log[number - 1].kind.name}" if number else "")
            allowed = {"new"} if number == len(log) else {"new", "nothing"} if bench.first else {"old", "new"}
            if verdict in allowed:
                tally.count(verdict, where)
            elif number == len(log) and verdict in ("old", "nothing", "unloadable"):
                tally.count("false_success", where, f"the save had returned; {verdict} {detail}")
            else:
                tally.count("unloadable" if verdict == "nothing" else verdict, where, detail)
    assert disk.now() == end, "the log does not tell everything that the save did"
    return tally


def _states(disk: Disk, log: list[Any], every: int, seeds: int) -> Iterator[tuple[int, bytes, dict[str, bytes]]]:
    """Numbers of events that had happened, and what may be on the disk then, with a digest of it."""
    for number in range(len(log) + 1):
        if number:
            disk.replay(log[number - 1])
        near = any(record.kind == Kind.RENAME for record in log[max(0, number - 3) : number + 3])
        if number % every == 0 or near or number == len(log):
            for files in disk.states(range(number * seeds, (number + 1) * seeds)):
                yield number, _digest(files), files


def _digest(files: dict[str, bytes]) -> bytes:
    whole = hashlib.sha256()
    for name in sorted(files):
        whole.update(f"{name}\0{len(files[name])}\0".encode(errors="surrogateescape") + files[name])
    return whole.digest()


def _verdicts(bench: Bench, states: list[dict[str, bytes]]) -> list[tuple[str, str]]:
    """What loads from each state; in a process of its own."""
    return [_verdict(bench, bench.root, files) for files in states]


def _verdict(bench: Bench, root: Path, files: dict[str, bytes]) -> tuple[str, str]:
    empty(root)
    put(root, files)
    outcome = forks.attempt(partial(bench.subject.verified_verdict, bench.path))
    return bench.verdict_of(outcome, 0), outcome.error
