"""Faults at random points of a load that reads once: one of four ranks is killed there, or an exception is raised.

    python -m tests.dcp.once.random_faults FIRST STOP

runs the seeds from FIRST to STOP, and says of each what happened, and how long the others took to end after it.
"""

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf.dcp.once import meeting, plan
from streamxf.storage.reading import _LocalFile
from tests.dcp.helpers import KEY, full_chain
from tests.dcp.process_groups import TIMEOUT, start_ranks

from .failing_once import Failing, broken
from .once_ranks import blank, same

RANKS = 4
METHODS = {"finish_plan": 1, "resolve_tensor": 9, "commit_tensor": 9, "read_into": 2}  # how often they are called
KINDS = ("killed at a line", "killed at a time", "raised at a line", *(f"raised in {name}" for name in METHODS))
STORES = ("a file", "of the launcher", "of rank 0")
_OWN = str(Path(streamxf.__file__).parent / "dcp")
_WORDS = "on purpose"


def values() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    state: dict[str, Any] = {f"w{n}": torch.randn(300 + n, 1024, generator=generator) for n in range(3)}
    state["bf16"] = torch.randn(700_001, generator=generator).to(torch.bfloat16)
    return state | {f"step{n}": torch.tensor(float(n)) for n in range(5)} | {"epoch": 5}


class Fault:
    """What happens, to whom, and where, by a seed."""

    def __init__(self, seed: int) -> None:
        drawn = random.Random(seed)
        self.seed = seed
        self.kind = drawn.choices(KINDS, (8, 4, 8, 1, 2, 2, 3))[0]
        self.store = drawn.choice(STORES)
        self.victim = drawn.randrange(RANKS)
        self.connected = drawn.random() < 0.5  # by an earlier load
        self.point = drawn.random()  # of all lines, or of the time, that a load takes
        self.small = drawn.random() < 0.5  # are units and rounds, so that there are many

    def __str__(self) -> str:
        size = "small units" if self.small else "few units"
        known = "connected before" if self.connected else "not connected"
        return f"{self.seed}: rank {self.victim} {self.kind} at {self.point:.4f}, store {self.store}, {size}, {known}"


@contextmanager
def at_line(number: int, act: Callable[[str], None], seen: list[int]) -> Iterator[None]:
    """Call `act` before the line of dcp/ that this thread comes to with this number; `seen` counts them."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_OWN):
            return None
        if event == "line":
            seen[0] += 1
            if seen[0] == number:
                act(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}")
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def rank_of(rank: int, folder: str, checkpoint: str, seed: int, port: int) -> None:
    """What a rank does: loads that are right, one with the fault, and, unless a rank was killed, one that is right."""
    torch.set_num_threads(1)
    fault, here = Fault(seed), Path(folder)
    store: Any = dist.FileStore(str(here / "meeting"), RANKS)
    if fault.store != "a file":
        port = port or _shared_port(here, rank)
        store = dist.TCPStore("127.0.0.1", port, RANKS, is_master=not fault.store.endswith("launcher") and rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=TIMEOUT)
    report: dict[str, Any] = {"began": time.monotonic()}
    try:
        _loads(rank, fault, here, Path(checkpoint), report)
    finally:
        (here / f"report {rank}.json").write_text(json.dumps(report))
        os._exit(0)  # nobody can take the group down any more


def _shared_port(folder: Path, rank: int) -> int:
    from tests.dcp.s3_server import free_ports

    file = folder / "port"
    if rank == 0:
        file.with_suffix(".new").write_text(str(free_ports(1)[0]))
        file.with_suffix(".new").rename(file)
    while not file.exists():
        time.sleep(0.01)
    return int(file.read_text())


def _loads(rank: int, fault: Fault, folder: Path, path: Path, report: dict[str, Any]) -> None:
    state, is_victim = values(), rank == fault.victim

    def happens(where: str) -> None:
        (folder / "happened").write_text(f"{time.monotonic()} {where}")
        if fault.kind.startswith("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError(_WORDS)

    def load(planner: Any = None, *faults: Any) -> list[str]:
        target = blank(state)
        reader = streamxf.FileSystemReader(path, keys=KEY, read="once")
        original = reader.read_data

        def read_data(*args: Any) -> Any:
            try:
                return original(*args)
            finally:
                report["own part"] = time.monotonic()

        with ExitStack() as stack:
            for each in (patch.object(reader, "read_data", read_data), *faults):
                stack.enter_context(each)
            dcp.load(target, storage_reader=reader, planner=planner)
        assert reader.report is not None
        return same(target, state) + [reader.report.reason] * (reader.report.read != "once")

    with ExitStack() as stack:
        if fault.small:
            stack.enter_context(patch.multiple(plan, UNIT=1 << 16, ROUND=1 << 18))
        for _ in range(2):  # the second one is measured: the first imports what it needs
            if not fault.connected:
                meeting._kept.clear()
            dist.barrier()
            begin = time.monotonic()
            lines = [0]
            report["wrong before"] = load(None, *([at_line(0, happens, lines)] if is_victim else []))
            duration, count = time.monotonic() - begin, lines[0]
        if not fault.connected:
            meeting._kept.clear()
        dist.barrier()
        report.pop("own part")
        try:
            faults = []
            if is_victim and fault.kind.endswith("line"):
                faults.append(at_line(1 + int(0.98 * fault.point * count), happens, [0]))
            elif is_victim and fault.kind == "killed at a time":
                timer = threading.Timer(fault.point * duration, happens, ["a time"])
                timer.daemon = True
                timer.start()
            method, calls = fault.kind.removeprefix("raised in ") if is_victim else "", [0]

            def called() -> None:
                calls[0] += 1
                if calls[0] > int(fault.point * METHODS[method]):
                    happens(method)

            if method == "read_into":
                faults.append(patch.object(_LocalFile, "read_into", broken(_LocalFile.read_into, called)))
            report["wrong"] = load(Failing(method, called), *faults)
        except CheckpointException as error:
            report["failures"] = {number: f"{type(e).__name__}: {e}" for number, (e, _) in error.failures.items()}
        except BaseException as error:  # what a collective of DCP's ends in
            report["error"] = f"{type(error).__name__}: {error}"
        report["ended"] = time.monotonic()
        if not fault.kind.startswith("killed"):
            dist.barrier()
            report["wrong after"] = load()


def outcome(seed: int, checkpoint: Path, folder: Path, limit: float = 60) -> tuple[str, float, list[str]]:
    """Run a seed. Returns what happened, after how many seconds the last of the others had ended its part, and what is
    wrong with that.
    """
    fault = Fault(seed)
    port, server = 0, None
    if fault.store == "of the launcher":
        server = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
        port = server.port
    context = start_ranks(rank_of, (str(folder), str(checkpoint), seed, port), RANKS)
    end = time.monotonic() + limit
    for process in context.processes:
        process.join(max(0.1, end - time.monotonic()))
    hanging = [rank for rank, process in enumerate(context.processes) if process.is_alive()]
    for rank in hanging:
        context.processes[rank].kill()
        context.processes[rank].join()
    del server
    problems = [f"ranks {hanging} hang"] if hanging else []
    if not (folder / "happened").exists():
        return f"{fault}: it never came to that", 0.0, problems
    text, where = (folder / "happened").read_text().split(" ", 1)
    happened, slowest = float(text), 0.0
    killed = fault.kind.startswith("killed")
    for rank in range(RANKS):
        file = folder / f"report {rank}.json"
        if (killed and rank == fault.victim) or rank in hanging:
            continue
        if not file.exists():
            problems.append(f"rank {rank} died: {context.processes[rank].exitcode}")
            continue
        report = json.loads(file.read_text())
        if report.get("wrong before") != [] or report.get("wrong after", []) or report.get("wrong", []):
            problems.append(f"rank {rank} has {report}")
        if not killed and "wrong after" not in report:
            problems.append(f"rank {rank} could not load again: {report}")
        if not killed and "wrong" not in report and _WORDS not in str(report):
            problems.append(f"rank {rank} was not told what happened: {report}")
        seconds = max(report.get("own part", happened), happened) - happened
        slowest = max(slowest, seconds)
        if seconds > 10:
            problems.append(f"rank {rank} ended after {seconds:.1f} s: {report}")
        if report.get("ended", happened) - happened > 30:
            problems.append(f"rank {rank} came out of DCP after {report['ended'] - happened:.1f} s")
    return f"{fault}, {where}", slowest, problems


def save(checkpoint: Path) -> None:
    writer = streamxf.FileSystemWriter(checkpoint, _extensions=full_chain(), sync_files=False)
    dcp.save(values(), storage_writer=writer, no_dist=True)


def main(first: int, stop: int) -> None:
    top = Path(tempfile.mkdtemp())
    save(top / "checkpoint")
    bad = 0
    for seed in range(first, stop):
        folder = top / str(seed)
        folder.mkdir()
        begin = time.monotonic()
        text, slowest, problems = outcome(seed, top / "checkpoint", folder)
        bad += bool(problems)
        print(f"{text}: {slowest:.1f} s of {time.monotonic() - begin:.1f}", *problems, sep="\n    ", flush=True)
        shutil.rmtree(folder)
    shutil.rmtree(top)
    print(f"{stop - first} seeds, {bad} with problems")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
