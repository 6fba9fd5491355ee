"""What the benchmarks share: sides measured in turn, medians with their spread, Markdown tables, and results on disk.

Absolute times drift on any machine, so a comparison only counts when its sides ran in turn within one run. Each round
measures every side once, and each round begins with another side.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

Phases = Mapping[str, float]


@dataclass(frozen=True)
class Settings:
    """What the command line asked for.

    Attributes
    ----------
    smoke : bool
        Very small data: shows that the benchmarks work, and measures nothing.
    rounds : int
        Measured rounds; one more comes first, to warm up.
    mib : int
        Size of the state in the benchmarks of throughput, in MiB.
    folder : Path
        For checkpoints; what it lies on decides what a save costs.
    """

    smoke: bool
    rounds: int
    mib: int
    folder: Path


@dataclass(frozen=True)
class Result:
    """One benchmark's outcome.

    Attributes
    ----------
    name, title, note : str
        File name, heading, and what has to be known to read the table.
    rows : list of dict
        Column to value, in the order in which they are printed.
    """

    name: str
    title: str
    note: str
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class Spread:
    """A median of seconds, and the range around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        return cls(statistics.median(seconds), min(seconds), max(seconds))

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f}-{self.high:.3f})"


def alternate(sides: Mapping[str, Callable[[], Phases]], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Measure all sides in turn: one round to warm up, then `rounds` that count.

    Parameters
    ----------
    sides : mapping
        Each runs once when called, and returns the seconds of its phases by name.

    Returns
    -------
    dict
        By side, then by phase, the seconds of each round in order.
    """
    names = list(sides)
    seconds: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    for number in range(rounds + 1):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            gc.collect()
            for phase, taken in sides[name]().items():
                if number:
                    seconds[name].setdefault(phase, []).append(taken)
    return seconds


def ratio(seconds: Sequence[float], against: Sequence[float]) -> float:
    """The median of the ratios of each round, which drift between rounds leaves alone."""
    return statistics.median(one / other for one, other in zip(seconds, against, strict=True))


def timed(action: Callable[[], Any]) -> float:
    """Seconds that `action` takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "processor": _processor(),
        "system": platform.system(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("streamxf", "torch", "zstandard", "cryptography")},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    wide = " with AVX-512" if " avx512f" in next((text for key, text in facts.items() if "flags" in key), "") else ""
    name = next((text.strip() for key, text in facts.items() if key.startswith("model name")), platform.machine())
    return name + wide


def store(result: Result, settings: Settings) -> Path:
    """Write a result as JSON, under the benchmark's name and the time."""
    RESULTS.mkdir(exist_ok=True)
    facts = machine()
    stamp = facts["time"].replace(":", "").replace("+0000", "Z")
    path = RESULTS / f"{result.name}-{stamp}{'-smoke' if settings.smoke else ''}.json"
    asked = {"smoke": settings.smoke, "rounds": settings.rounds, "mib": settings.mib}
    content = {"name": result.name, "title": result.title, "machine": facts, "settings": asked, "rows": result.rows}
    path.write_text(json.dumps(content, indent=2, default=vars) + "\n")
    return path


def markdown(result: Result) -> str:
    """A result as a Markdown section with a table."""
    columns = list(result.rows[0])
    lines = [f"### {result.title}", "", result.note, ""]
    lines.append(_row(columns))
    lines.append(_row(["---" if _is_text(result, column) else "---:" for column in columns]))
    lines += [_row([_text(row[column]) for column in columns]) for row in result.rows]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _is_text(result: Result, column: str) -> bool:
    return isinstance(result.rows[0][column], str)


def _text(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
