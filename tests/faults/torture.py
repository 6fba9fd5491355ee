"""Everything that ``make torture`` tries, and the tables that come of it."""

import dataclasses
import json
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from tests.faults.runner import Runner

CHAINS = ("none", "zstd", "checksum", "encrypt", "full")
THREADS = ("1 thread", "2 threads", "4 threads")
KILLED = ("one rank, one thread", "one rank, 4 threads, a file per item", "two ranks", "two ranks, each for itself")
CHANGES = (
    ("rename", "full", "one rank, one thread"),
    ("rename", "full", "2 ranks, few tensors"),
    ("rename", "full", "two ranks, each for itself"),
    ("stock", "full", "1 thread"),
    ("stock", "zstd", "two ranks, each for itself"),
    ("sign", "full", "1 thread"),
    ("sign", "zstd", "two ranks, each for itself"),
)
PACKAGES = ("streamxf", "torch", "numpy", "zstandard", "cryptography", "crc32c")
TWO_RANKS = "2 ranks, few tensors"
KILL_POINTS = 320  # in each layout
BAD = ("unloadable", "mixed", "corrupt", "false_success", "hung", "disagree", "unclean")
COLUMNS = {
    "points": "points",
    "unloadable": "unloadable",
    "mixed": "old and new mixed",
    "corrupt": "wrong values",
    "false_success": "false successes",
    "hung": "hangs",
}
SECTIONS = {
    "killed": "SIGKILL while saving",
    "killed_change": "SIGKILL while metadata is replaced",
    "failing": "ENOSPC and EIO while saving",
    "interrupted": "Short writes and reads, and EINTR, while saving",
    "interrupted_load": "Short reads, EINTR and EIO while loading",
    "lost_writes": "Crashes that lose what was not synced",
    "full_disk": "A small file system that fills up",
    "killed_s3": "SIGKILL while saving to an S3 server",
    "killed_change_s3": "SIGKILL while metadata is replaced on an S3 server",
    "faulty_s3": "Requests to an S3 server that fail",
    "managed": "SIGKILL of a training job",
    "managed_s3": "SIGKILL of a training job that saves to an S3 server",
}


@dataclass(frozen=True)
class Result:
    """A job's arguments and what it came to."""

    job: dict[str, Any]
    found: dict[str, Any]

    @property
    def stock(self) -> bool:
        return bool(self.job["chain"] == "stock")

    @property
    def wrong(self) -> str:
        """What must not be, of streamxf's writer; "" if nothing."""
        if self.stock or "skipped" in self.found:
            return ""
        bad = [f"{name} {self.found[name]}" for name in BAD if self.found[name]]
        if self.found["points"] < self.job.get("at_least", 1):
            bad.append(f"only {self.found['points']} points")
        return ", ".join(bad)


def jobs(share: int = 1) -> Iterator[dict[str, Any]]:
    """What is tried: every point, or one in `share`."""

    def job(row: str, layout: str, chain: str, **rest: Any) -> dict[str, Any]:
        own = {name: rest.pop(name) for name in ("first", "mutant", "change", "at_least") if name in rest}
        return {"row": row, "layout": layout, "chain": chain, "options": rest, **own}

    least = KILL_POINTS // share
    for chain in ("full", "stock"):
        for layout in KILLED:
            every = share * 2 if chain == "stock" else share  # it writes an item in more pieces
            yield job("killed", layout, chain, every=every, at_least=least)
            if layout == "two ranks":
                yield job("killed", layout, chain, every=every, together=True, at_least=least)
        yield job("killed", "4 threads", chain, first=True, every=share)
    for change, chain, layout in CHANGES:
        yield job("killed_change", layout, chain, change=change, every=share, next_every=1)
    for row in ("failing", "interrupted", "interrupted_load"):
        for chain in (*CHAINS, "stock"):
            # torch reads a bare tensor in many small pieces, which are all alike
            every = share * (4 if row == "interrupted_load" and chain in ("none", "stock") else 1)
            for layout in THREADS:
                yield job(row, layout, chain, every=every)
            if row != "interrupted_load" and chain in ("full", "stock"):
                yield job(row, TWO_RANKS, chain, every=every)
    for chain in (*CHAINS, "stock"):
        for layout in (*THREADS, "4 threads, a file per item", TWO_RANKS):
            yield job("lost_writes", layout, chain, every=share, seeds=30)
            yield job("lost_writes", layout, chain, every=share, seeds=30, first=True)
    for chain in (*CHAINS, "stock"):
        for layout in ("1 thread, 4 MiB", "4 threads, 4 MiB"):
            for first in (False, True):
                yield job("full_disk", layout, chain, first=first, levels=max(24 // share, 4))
    for layout in ("1 thread, 4 MiB", "4 threads, 4 MiB"):
        for chain in ("full", "stock"):
            for first in (False, True):
                yield job("full_disk", layout, chain, first=first, kind="ext4", levels=max(24 // share, 4))
        for chain in CHAINS:
            for first in (False, True):
                mutant = "nobody tells how much room there is"
                yield job("full_disk", layout, chain, first=first, mutant=mutant, levels=max(24 // share, 4))
    for layout, count in (("2 threads", 30), ("2 threads, 40 MiB", 70)):
        for chain, part in (("full", share), ("stock", 3 * share)):
            yield job("killed_s3", layout, chain, every=part)
            points = {"saves": max(2 * count // part, 4), "loads": max(count // part, 4)}
            yield job("faulty_s3", layout, chain, **points)
    for change in ("rename", "stock"):
        yield job("killed_change_s3", "2 threads", "full", change=change, every=share)
    for mode, kills in (("in the foreground", 100), ("in a thread", 100), ("in two threads", 80)):
        yield job("managed", mode, "floatzip+checksum", kills=max(kills // share, 3))
    yield job("managed_s3", "in a thread", "floatzip+checksum", kills=max(20 // share, 3))


def try_all(wanted: list[dict[str, Any]], workers: int, told: Callable[[Result], None]) -> list[Result]:
    """Run jobs in `workers` runners; `told` hears of each that is done. In the order of `wanted`."""
    waiting: queue.SimpleQueue[tuple[int, dict[str, Any]]] = queue.SimpleQueue()
    # the long ones first
    for pair in sorted(enumerate(wanted), key=lambda pair: list(SECTIONS).index(pair[1]["row"])):
        waiting.put(pair)
    results: dict[int, Result] = {}
    errors: list[BaseException] = []
    lock = threading.Lock()

    def work() -> None:
        try:
            with Runner() as runner:
                while not errors:
                    number, job = waiting.get_nowait()
                    asked = {name: value for name, value in job.items() if name != "at_least"}
                    result = Result(job, runner.run(**asked))
                    with lock:
                        results[number] = result
                        told(result)
        except queue.Empty:
            pass
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(wanted))]


# -- tables ------------------------------------------------------------------------------------------


def publish(results: list[Result], machine: dict[str, Any], took: int, folder: Path) -> None:
    """Write the tables, with the rows that were tried now in the place of what was found of them before."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "results.json"
    rows: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for name in dict.fromkeys(result.job["row"] for result in results):
        found = [dataclasses.asdict(result) for result in results if result.job["row"] == name]
        rows[name] = {"machine": machine, "took_seconds": took, "results": found}
    rows = {name: rows[name] for name in SECTIONS if name in rows}
    file.write_text(json.dumps(rows, indent=1) + "\n")
    known = {name: [Result(**one) for one in row["results"]] for name, row in rows.items()}
    for name, title in SECTIONS.items():
        table = _runs if name in ("managed", "managed_s3") else _table
        lines = [f"### {title}", "", *table(known.get(name, []))]
        (folder / f"{name}.md").write_text("\n".join(lines) + "\n")
    (folder / "summary.md").write_text("\n".join(_summary(known)) + "\n")
    (folder / "machine.md").write_text("\n".join(_machines(rows)) + "\n")


def _machines(rows: dict[str, Any]) -> list[str]:
    """On what it was tried, when, and how many points there were."""
    lines = [f"{line}." for line in sorted({describe(row["machine"]) for row in rows.values()})]
    for packages in dict.fromkeys(_versions(row["machine"]) for row in rows.values()):
        lines += ["", f"Versions: {packages}."]
    lines += ["", "| row | tried | commit | points |", "| --- | --- | --- | ---: |"]
    for name, row in rows.items():
        points = sum(one["found"].get("points", 0) for one in row["results"])
        facts = row["machine"]
        lines.append(f"| {SECTIONS[name]} | {facts['time'][:16]} | {facts['commit'] or 'unknown'} | {points:,} |")
    return lines


def _versions(facts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {number}" for name, number in facts["packages"].items() if name in PACKAGES)


def _summary(known: dict[str, list[Result]]) -> list[str]:
    lines = _head("fault")
    for name, results in known.items():
        for stock in (False, True):
            found = [one for one in results if one.stock == stock]
            lines.append(_line(SECTIONS[name], "stock DCP" if stock else "streamxf", found))
    return lines


def _table(results: list[Result]) -> list[str]:
    """A line for each kind of save of streamxf's, all chains together, and one for stock DCP below it."""
    kinds: dict[tuple[str, str], None] = {}
    for result in results:
        kinds[_what(result), "stock DCP" if result.stock else f"streamxf, {_chains(results, result)}"] = None
    lines = _head("save")
    for what in dict.fromkeys(what for what, _ in kinds):
        for writer in (writer for name, writer in kinds if name == what):
            stock = writer == "stock DCP"
            found = [one for one in results if _what(one) == what and one.stock == stock]
            lines.append(_line(what, writer, found))
    skipped = sorted({one.found["skipped"] for one in results if "skipped" in one.found})
    return [*lines, *(f"\nSkipped: {reason}." for reason in skipped)]


def _runs(results: list[Result]) -> list[str]:
    """A line for each way to save of managed runs."""
    columns = {
        "kills": ("points",),
        "of them while saving": ("while_saving",),
        "trainings": ("runs",),
        "starts from a checkpoint": ("new", "false_success"),
        "steps repeated": ("again",),
        "most after one kill": ("most_again",),
        "wrong states": ("corrupt", "mixed", "disagree"),
        "saved work lost": ("false_success",),
        "failed starts": ("unloadable", "hung"),
        "leftovers": ("unclean",),
    }
    lines = [f"| saves | {' | '.join(columns)} |", f"| --- |{' ---: |' * len(columns)}"]
    for result in results:
        found = {} if "skipped" in result.found else result.found
        counts = [f"{sum(found[name] for name in names):,}" if found else "" for names in columns.values()]
        lines.append(f"| {result.job['layout']} | {' | '.join(counts)} |")
    skipped = sorted({one.found["skipped"] for one in results if "skipped" in one.found})
    return [*lines, *(f"\nSkipped: {reason}." for reason in skipped)]


def _chains(results: list[Result], like: Result) -> str:
    chains = [one.job["chain"] for one in results if _what(one) == _what(like) and not one.stock]
    return f"{len(set(chains))} chains" if len(set(chains)) > 1 else f"chain {chains[0]}"


def _what(result: Result) -> str:
    job = result.job
    parts = [f"{job['change']}, {job['layout']}" if job.get("change") else job["layout"]]
    if job["options"].get("together"):
        parts.append("all ranks killed")
    elif job["row"] == "killed" and "two ranks" in job["layout"]:
        parts.append("one rank killed")
    if job.get("first"):
        parts.append("first save")
    if job["row"] == "full_disk":
        parts.append(job["options"].get("kind", "tmpfs"))
    if "mutant" in job:
        parts.append(job["mutant"])
    return ", ".join(parts)


def _head(first: str) -> list[str]:
    return [f"| {first} | writer | {' | '.join(COLUMNS.values())} |", f"| --- | --- |{' ---: |' * len(COLUMNS)}"]


def _line(what: str, writer: str, results: list[Result]) -> str:
    done = [one.found for one in results if "skipped" not in one.found]
    counts = [f"{sum(one[name] for one in done):,}" if done else "" for name in COLUMNS]
    return f"| {what} | {writer} | {' | '.join(counts)} |"
