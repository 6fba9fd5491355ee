"""`verify` beside a load of the same checkpoint: what a look at every byte takes. Linux only."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed.checkpoint as dcp

import streamxf
from benchmarks.child import in_child
from benchmarks.data.gaussian import gaussian_layers
from benchmarks.dcp_sides import KEY, STOCK, State, empty_target, full_chain, raw_bytes
from benchmarks.harness import MIB, Phases, Settings, alternate, timed
from benchmarks.memory import need_proc, peak_added
from benchmarks.result import Result, Row, Table, goal_row
from benchmarks.spread import Spread, ratios, throughputs

GOAL, GOAL_MIB = 0.80, 96
FILES = 4
FULL = "FloatZip + Checksum + Encrypt"
LOAD, VERIFY, WITHOUT = "load", "verify", "verify, without keys"


@dataclass(frozen=True)
class Case:
    """A chain, and whether a key is needed to load what it saved."""

    extensions: Callable[[], list[streamxf.Codec]]
    keyed: bool = False

    @property
    def keys(self) -> streamxf.Key | None:
        return KEY if self.keyed else None


CASES = {
    "no codec": Case(list),
    "Checksum": Case(lambda: [streamxf.Checksum()]),
    "FloatZip": Case(lambda: [streamxf.FloatZip()]),
    "Encrypt": Case(lambda: [streamxf.Encrypt(KEY)], keyed=True),
    FULL: Case(full_chain, keyed=True),
}


def run(settings: Settings) -> Result:
    """Measure.

    Raises
    ------
    OSError
        If the system has no /proc to read a process's memory from.
    """
    need_proc()
    mib = settings.pick(settings.mib, 2)
    state = gaussian_layers(mib, torch.bfloat16)
    target = empty_target(state)
    folder = settings.folder / "verify"
    goals: list[Row] = []
    rows: list[Row] = []
    for name, case in CASES.items():
        path = folder / "checkpoint"
        writer = streamxf.FileSystemWriter(path, thread_count=FILES, _extensions=case.extensions())
        dcp.save(state, storage_writer=writer)
        seconds = _measure(path, case, state, target, f"verify: {name}", settings.rounds)
        goals += _goal_rows(name, seconds)
        rows += _rows(name, seconds, raw_bytes(state))
        if name == FULL:  # which needs the most memory
            added = in_child("benchmarks.verify", "child", folder=str(path))
            goals.append(goal_row(f"{VERIFY}, {name}, MiB added", "", Spread.of([added / MIB]), GOAL_MIB))
        shutil.rmtree(folder)
    STOCK.save(state, folder / "checkpoint", FILES)
    stock = _measure(folder / "checkpoint", Case(list), state, target, "verify: stock DCP", settings.rounds)
    rows += _rows("stock DCP's writer", stock, raw_bytes(state))
    shutil.rmtree(folder)
    note = (
        f"One checkpoint of {mib} MiB of bf16 Gaussian weights in 8 tensors and {FILES} files, which the page cache "
        "holds, loaded into tensors that exist, and verified. Goals are throughputs of `verify` against that load, as "
        "ratios within each round; with a key `verify` decodes all that is encrypted, and without one it reads it and "
        f"compares CRCs. GB/s are of the tensors' own bytes. To be kept: {GOAL:g}. What torch's own writer saved has "
        "the zip format's CRC-32 alone, which no load compares. *MiB added*: the peak of a process that only verifies, "
        f"over what it used after a first, small one; to be kept: {GOAL_MIB} MiB."
    )
    tables = [Table(goals, "Goals"), Table(rows, "Seconds")]
    return Result("verify", "Verify", note, tables)


def child(folder: str) -> int:
    """Bytes that `verify` of the full chain adds to a process that has used it before."""
    with TemporaryDirectory(dir=Path(folder).parent) as small:  # imports and threads
        writer = streamxf.FileSystemWriter(small, _extensions=full_chain())
        dcp.save({"small": torch.zeros(8)}, storage_writer=writer)
        streamxf.verify(small, KEY)
    return peak_added(lambda: _verify(Path(folder), KEY))


def _measure(path: Path, case: Case, state: State, target: State, label: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round: of a load, and of `verify` with the keys that the load needs, and without."""
    sides: dict[str, Callable[[], Phases]] = {
        LOAD: partial(_load, path, case.keys, state, target),
        VERIFY: partial(_verify, path, case.keys),
    }
    if case.keyed:
        sides[WITHOUT] = partial(_verify, path, None)
    return {side: phases["seconds"] for side, phases in alternate(sides, rounds, label).items()}


def _load(path: Path, keys: streamxf.Key | None, state: State, target: State) -> Phases:
    """Seconds of a load.

    Raises
    ------
    AssertionError
        If it did not give back what was saved.
    """
    for tensor in target.values():
        tensor.zero_()
    reader = streamxf.FileSystemReader(path, keys=keys)
    seconds = timed(lambda: dcp.load(target, storage_reader=reader))
    for name, tensor in state.items():
        if not torch.equal(tensor.view(torch.uint8), target[name].view(torch.uint8)):
            raise AssertionError(f"the load did not give back {name} as it was saved")
    return {"seconds": seconds}


def _verify(path: Path, keys: streamxf.Key | None) -> Phases:
    """Seconds of a look at every byte.

    Raises
    ------
    AssertionError
        If it finds damage, or did not read everything.
    """
    reports: list[streamxf.VerifyReport] = []
    seconds = timed(lambda: reports.append(streamxf.verify(path, keys)))
    (report,) = reports
    if not report.ok or report.bytes_read < sum(file.stat().st_size for file in path.glob("*.distcp")):
        raise AssertionError(f"the checkpoint should have been read and found whole: {report}")
    return {"seconds": seconds}


def _goal_rows(name: str, seconds: dict[str, list[float]]) -> list[Row]:
    # seconds the other way round are the ratio of throughputs
    return [
        goal_row(f"{side}, {name}", LOAD, ratios(seconds[LOAD], values), GOAL, at_least=True)
        for side, values in seconds.items()
        if side != LOAD
    ]


def _rows(name: str, seconds: dict[str, list[float]], size: int) -> list[Row]:
    return [
        {
            "chain": name,
            "operation": side,
            "seconds": Spread.of(values),
            "GB/s": throughputs(size, values),
            "throughput of the load": ratios(seconds[LOAD], values),
        }
        for side, values in seconds.items()
    ]
