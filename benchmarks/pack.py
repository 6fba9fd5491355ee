"""`pack` of a ``.safetensors`` file beside a save of the same tensors from memory, `transcode`, and peak memory. Linux
only.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

import streamxf
from benchmarks.data.gaussian import gaussian_layers
from benchmarks.dcp_sides import FLOATZIP, FULL, KEY, DcpSide, State, empty_target
from benchmarks.harness import MIB, Phases, Settings, alternate, progress, timed
from benchmarks.memory import need_proc
from benchmarks.result import Result, Row, Table, goal_row
from benchmarks.spread import Spread, ratios
from streamxf.tools.convert.pack import pack
from streamxf.tools.convert.transcode import transcode

GOAL_SLOWER, GOAL_MIB = 1.2, 300
SAVE, PACK, TRANSCODE = "save", "pack", "transcode"
CHAINS = {"floatzip": FLOATZIP, "floatzip+checksum+encrypt": FULL}
OLD_CHAIN = "zstd:level=1"


def run(settings: Settings) -> Result:
    """Measure.

    Raises
    ------
    OSError
        If the system has no /proc to read a process's memory from.
    AssertionError
        If what was packed is not what was in the file.
    """
    need_proc()
    mib = settings.pick(4 * settings.mib, 4)
    folder = settings.folder / "pack"
    folder.mkdir()
    state = gaussian_layers(mib, torch.bfloat16)
    source, old = folder / "model.safetensors", folder / "old"
    save_file(state, source)
    pack(source, old, OLD_CHAIN)
    goals: list[Row] = []
    rows: list[Row] = []
    for chain, side in CHAINS.items():
        seconds = _measure(folder, state, source, old, chain, side, settings.rounds)
        for name in (PACK, TRANSCODE):
            slower = ratios(seconds[name]["seconds"], seconds[SAVE]["seconds"])
            if name == PACK:
                goals.append(goal_row(f"{name}, {chain}, seconds", "save", slower, GOAL_SLOWER))
            rows.append({"what": name, "chain": chain, "seconds": _of(seconds, name), f"/ {SAVE}": slower})
        rows.append({"what": SAVE, "chain": chain, "seconds": _of(seconds, SAVE), f"/ {SAVE}": Spread.of([1.0])})
    peaks = [_peak(PACK, source, folder), _peak(TRANSCODE, old, folder)]
    goals.append(goal_row(f"{PACK}, MiB of the process", "size of the file", Spread.of([peaks[0]["MiB"]]), GOAL_MIB))
    shutil.rmtree(folder)
    note = (
        f"A file of {mib:,} MiB of Gaussian bf16. A *save* writes the same tensors from memory, `thread_count=1`; "
        f"*transcode* reads what was packed with {OLD_CHAIN}. All sync their files. Memory is the peak of a whole "
        "process that runs the command, with Python, torch and all that is imported; *before it reads* is that of one "
        "that imports the same, and shows the command's help."
    )
    tables = [Table(goals, "Goals"), Table(rows, "All"), Table(peaks, "Peak memory of the process", digits=0)]
    return Result("pack", "Packing files", note, tables)


def _of(seconds: dict[str, dict[str, list[float]]], name: str) -> Spread:
    return Spread.of(seconds[name]["seconds"])


def _measure(
    folder: Path, state: State, source: Path, old: Path, chain: str, side: DcpSide, rounds: int
) -> dict[str, dict[str, list[float]]]:
    keys = KEY if side.keyed else None
    sides: dict[str, Callable[[Path], object]] = {
        SAVE: lambda path: side.save(state, path, 1),
        PACK: partial(_pack, source, chain, keys),
        TRANSCODE: partial(_transcode, old, chain, keys),
    }

    def timing(write: Callable[[Path], object]) -> Phases:
        path = folder / "new"
        shutil.rmtree(path, ignore_errors=True)
        return {"seconds": timed(lambda: write(path))}

    seconds = alternate({name: partial(timing, write) for name, write in sides.items()}, rounds, f"pack: {chain}")
    for name in (PACK, TRANSCODE):
        timing(sides[name])
        _check(folder / "new", state, keys)
    shutil.rmtree(folder / "new")
    return seconds


def _pack(source: Path, chain: str, keys: streamxf.Key | None, path: Path) -> None:
    pack(source, path, chain, encrypt_to=keys)


def _transcode(old: Path, chain: str, keys: streamxf.Key | None, path: Path) -> None:
    transcode(old, path, chain, encrypt_to=keys)


def _check(path: Path, state: State, keys: streamxf.Key | None) -> None:
    target = empty_target(state)
    dcp.load(target, storage_reader=streamxf.FileSystemReader(path, keys=keys))
    for name, tensor in state.items():
        if not torch.equal(target[name].view(torch.uint8), tensor.view(torch.uint8)):
            raise AssertionError(f"{name} is not what was in the file")


def _peak(command: str, source: Path, folder: Path) -> Row:
    progress(f"pack: memory of {command}")
    target = folder / "new"
    chain = next(iter(CHAINS))
    before = _process_peak([command, "--help"], f"import streamxf.tools.convert.{command}")
    peak = _process_peak([command, str(source), str(target), "--chain", chain])
    shutil.rmtree(target)
    return {"command": command, "chain": chain, "MiB": peak / MIB, "before it reads": before / MIB}


def _process_peak(arguments: list[str], first: str = "") -> int:
    """The most memory of a process that runs a command of ``streamxf``, in bytes."""
    code = f"{first}\nimport sys\nfrom streamxf.cli.run import run\nassert not run(sys.argv[1:])\n{_PRINT_PEAK}"
    done = subprocess.run([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, check=True)
    return int(done.stdout.split()[-1]) * 1024


_PRINT_PEAK = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM:')))"
