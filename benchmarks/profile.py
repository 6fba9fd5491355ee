"""Where the time of a save and a load with the full chain goes, by what the writer and the reader report themselves."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch
import torch.distributed.checkpoint as dcp

from benchmarks.data.gaussian import gaussian_layers
from benchmarks.dcp_sides import FULL, State, empty_target
from benchmarks.harness import Rounds, Settings, alternate, timed
from benchmarks.plots import stacks
from benchmarks.result import Result, Row, Table
from benchmarks.spread import Spread
from streamxf.engine import usable_cpus
from streamxf.report import Report

THREADS = 2
IO, WALL, REST = "I/O", "wall", "rest"


def run(settings: Settings) -> Result:
    """Measure."""
    mib = settings.pick(settings.mib, 2)
    folder = settings.folder / "profile"
    phases = _measure(gaussian_layers(mib, torch.bfloat16), folder, settings.rounds)
    shutil.rmtree(folder)
    tables = [Table(_rows(parts), phase) for phase, parts in phases.items()]
    columns = {
        f"{phase}, {usable_cpus()} CPUs": {
            name: float(np.median(values)) for name, values in parts.items() if name != WALL
        }
        for phase, parts in phases.items()
    }
    figure = stacks(f"Where the time goes: {mib} MiB of bf16, {FULL.name}", "seconds, summed over all threads", columns)
    note = (
        f"Busy seconds as `writer.report` and `reader.report` give them, summed over all threads, for {mib} MiB of "
        f"bf16 Gaussian weights with `thread_count={THREADS}`; medians of {settings.rounds} rounds (lowest-highest). "
        "*I/O* is time in calls of the file system, fsync included, in which a thread mostly waits. *Rest* is what "
        f"remains of the wall time of {usable_cpus()} CPUs: DCP's planning, torch's framing, container CRCs and "
        "threads that wait. *Share* is of the CPUs' wall time; where I/O overlaps encoding, shares may add up to more "
        "than 100%."
    )
    return Result("profile", "Where the time goes", note, tables, {"profile": figure})


def _measure(state: State, folder: Path, rounds: int) -> dict[str, dict[str, list[float]]]:
    """By phase, then by part, the seconds of each round."""
    target = empty_target(state)

    def save_and_load() -> dict[str, float]:
        shutil.rmtree(folder, ignore_errors=True)
        writer, reader = FULL.writer(folder, THREADS), FULL.reader(folder)
        saving = timed(lambda: dcp.save(state, storage_writer=writer))
        loading = timed(lambda: dcp.load(target, storage_reader=reader))
        return {**_parts("save", saving, writer.report), **_parts("load", loading, reader.report)}

    seconds: Rounds = alternate({FULL.name: save_and_load}, rounds, "profile")
    phases: dict[str, dict[str, list[float]]] = {"save": {}, "load": {}}
    for name, values in seconds[FULL.name].items():
        phase, part = name.split(" ", 1)
        phases[phase][part] = values
    return phases


def _parts(phase: str, wall: float, report: Report) -> dict[str, float]:
    parts = {**report.codec_seconds, IO: report.io_seconds}
    rest = max(0.0, usable_cpus() * wall - sum(parts.values()))
    return {f"{phase} {name}": seconds for name, seconds in {**parts, REST: rest, WALL: wall}.items()}


def _rows(parts: dict[str, list[float]]) -> list[Row]:
    wall = parts[WALL]
    rows: list[Row] = []
    for name, seconds in parts.items():
        share = np.median([one / (usable_cpus() * all_) for one, all_ in zip(seconds, wall, strict=True)])
        rows.append({"part": name, "seconds": Spread.of(seconds), "share": "" if name == WALL else f"{share:.0%}"})
    return rows
