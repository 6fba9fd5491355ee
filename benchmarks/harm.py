"""What a flipped bit does to a load, and what a kill in the middle of a save leaves, beside everything else that stores
tensors.

A save writes over the one before it, at the same path, as a script does that keeps the newest state only. What happens
is seen in processes of its own, since a reader may also crash or hang.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from benchmarks.dcp_sides import FLOATZIP, FULL, STOCK, STOCK_ZSTD, Side, State, empty_target
from benchmarks.harness import MIB, Settings, progress
from benchmarks.peers import BLOSC2, SAFETENSORS, TENSORIZER, TENSORIZER_VERIFIED, TORCH_SAVE, ZIPNN
from benchmarks.result import Result, Row, Table

FLIPPED: tuple[Side, ...] = (
    STOCK,
    STOCK_ZSTD,
    TORCH_SAVE,
    SAFETENSORS,
    TENSORIZER,
    TENSORIZER_VERIFIED,
    ZIPNN,
    BLOSC2,
    FLOATZIP,
    FULL,
)
KILLED: tuple[Side, ...] = (STOCK, TORCH_SAVE, SAFETENSORS, TENSORIZER, FLOATZIP, FULL)
PATIENCE = 60  # seconds, after which a load counts as one that hangs
OLD, NEW = 1, 2  # seeds of the states of two saves

# a server whose children have torch and no threads
_CONTEXT = mp.get_context("forkserver")


def run(settings: Settings) -> Result:
    """See it all."""
    _CONTEXT.set_forkserver_preload(["benchmarks.harm"])
    flips, kills = settings.pick((400, 100), (2, 1))
    mib = settings.pick(1, 0.05), settings.pick(64, 1)
    folder = settings.folder / "harmed"
    tables = [
        Table([_flip_row(side, mib[0], flips, folder / str(number)) for number, side in enumerate(FLIPPED)], "Flips"),
        Table([_kill_row(side, mib[1], kills, folder / str(number)) for number, side in enumerate(KILLED)], "Kills"),
    ]
    shutil.rmtree(folder)
    note = (
        f"*Flips*: {mib[0]:g} MiB of bf16 and fp32 weights are saved, one random bit of all that was stored, metadata "
        f"included, is flipped, and they are loaded: {flips} times for each side. *Kills*: {mib[1]:g} MiB are saved "
        f"over an older state at the same path, the process is killed (SIGKILL) at a random moment of the save, and "
        f"what is there is loaded: {kills} times. ZipNN and blosc2 compress bytes and have no files of their own. "
        "tensorizer has digests, which it compares where `verify_hash=True` asks for it."
    )
    return Result("harm", "Flipped bits and kills, and the peers", note, tables)


def state_of(seed: int, mib: float) -> State:
    """Matrices in two dtypes, of which two seeds have no element in common."""
    generator = torch.Generator().manual_seed(seed)
    rows = max(1, int(mib * MIB / 6 / 1024))
    weights = [torch.randn(rows, 1024, generator=generator) + 10 * seed for _ in range(2)]
    return {"bf16": weights[0].bfloat16(), "fp32": weights[1]}


def _flip_row(side: Side, mib: float, flips: int, folder: Path) -> Row:
    seen: Counter[str] = Counter()
    while (number := seen.total()) < flips:
        process, ours = _start(_flip, side.name, mib, number, flips, folder)
        seen.update(_outcomes(ours))
        process.kill()
        process.join()
        if seen.total() < flips:
            seen["crashes or hangs"] += 1
    progress(f"harm: flips, {side.name}: {dict(seen)}")
    names = ("an error", "wrong values, silently", "right values", "crashes or hangs")
    return {"side": side.name} | {name: seen[name] for name in names}


def _start(function: Callable[..., None], *arguments: Any) -> tuple[BaseProcess, Connection]:
    """A process that calls a function, with a connection to tell by, and the other end of that."""
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=function, args=(theirs, *arguments))
    process.start()
    theirs.close()
    return process, ours


def _outcomes(connection: Connection) -> list[str]:
    """What a process told before it ended, crashed, or took too long."""
    outcomes = []
    try:
        while connection.poll(PATIENCE):
            outcomes.append(connection.recv())
    except EOFError:
        pass
    return outcomes


def _flip(connection: Connection, name: str, mib: float, begin: int, end: int, folder: Path) -> None:
    _quiet()
    side = {each.name: each for each in FLIPPED}[name]
    state = state_of(OLD, mib)
    shutil.rmtree(folder, ignore_errors=True)
    side.save(state, folder, 1)
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    for number in range(begin, end):
        draw = random.Random(number)
        file = draw.choices(files, [each.stat().st_size for each in files])[0]
        place, bit = draw.randrange(file.stat().st_size), 1 << draw.randrange(8)
        _turn(file, place, bit)
        connection.send(_load(side, folder, [state], ["right values"]))
        _turn(file, place, bit)


def _turn(file: Path, place: int, bit: int) -> None:
    with file.open("r+b") as stream:
        stream.seek(place)
        (byte,) = stream.read(1)
        stream.seek(place)
        stream.write(bytes([byte ^ bit]))


def _load(side: Side, folder: Path, states: Sequence[State], names: Sequence[str]) -> str:
    """Which of the states comes of a load into zeros."""
    target = empty_target(states[0])
    try:
        side.load(target, folder, 1)
    except BaseException:  # which DCP's CheckpointException is; whatever a reader raises is its answer
        return "an error"
    for state, name in zip(states, names, strict=True):
        if all(torch.equal(target[each].view(torch.uint8), state[each].view(torch.uint8)) for each in state):
            return name
    return "wrong values, silently"


def _kill_row(side: Side, mib: float, kills: int, folder: Path) -> Row:
    seen: Counter[str] = Counter()
    draw = random.Random(side.name)
    longest = 0.0
    while seen.total() < kills:
        process, ours = _start(_save_over, side.name, mib, folder)
        ours.recv()  # the old state is there, and the save begins
        begun = time.monotonic()
        if longest and ours.poll(draw.uniform(0, longest)):
            longest = max(longest * 0.9, time.monotonic() - begun)  # it was over before
            process.join()
            continue
        if not longest:
            ours.recv()
            longest = time.monotonic() - begun
        else:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            seen[_looked_at(side, mib, folder)] += 1
        process.join()
    progress(f"harm: kills, {side.name}: {dict(seen)}")
    names = ("the old state", "the new state", "an error", "wrong values, silently")
    titles = ("the old state loads", "the new one does", "nothing loads", "a mixture, silently")
    return {"side": side.name} | {title: seen[name] for title, name in zip(titles, names, strict=True)}


def _save_over(connection: Connection, name: str, mib: float, folder: Path) -> None:
    _quiet()
    side = {each.name: each for each in KILLED}[name]
    old, new = state_of(OLD, mib), state_of(NEW, mib)
    shutil.rmtree(folder, ignore_errors=True)
    side.save(old, folder, 1)
    connection.send("begins")
    side.save(new, folder, 1)
    connection.send("done")


def _looked_at(side: Side, mib: float, folder: Path) -> str:
    process, ours = _start(_look, side.name, mib, folder)
    (outcome,) = _outcomes(ours) or ["an error"]
    process.kill()
    process.join()
    return outcome


def _look(connection: Connection, name: str, mib: float, folder: Path) -> None:
    _quiet()
    side = {each.name: each for each in KILLED}[name]
    states = [state_of(OLD, mib), state_of(NEW, mib)]
    connection.send(_load(side, folder, states, ["the old state", "the new state"]))


def _quiet() -> None:
    """What sides print is not part of the tables; one thread, since trials are small."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    torch.set_num_threads(1)
