"""The interpreter's lock: how long a block of a save or load holds it, how often it is taken, and how many workers that
allows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import crc32c
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from benchmarks.child import in_child
from benchmarks.dcp_sides import BLOCK_SIZE, KEY, empty_target, full_chain
from benchmarks.harness import MIB, Phases, Rounds, Settings, alternate
from benchmarks.result import Result, Row, Table, goal_row
from benchmarks.spread import Spread
from streamxf.codecs import encrypt
from streamxf.codecs.floatzip import kernel
from streamxf.storage.storage import Storage

GOAL = 50.0  # microseconds
WORKERS = (8, 16, 64)
PHASES = ("save", "load")
_RELEASING = 32 * 1024  # bytes from which crc32c releases the lock


@dataclass
class _Free:
    """What threads do without the lock: calls, by the seconds of CPU that each took."""

    ended: list[float] = field(default_factory=list)

    def counting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            begin = time.thread_time()
            try:
                return call(*arguments, **options)
            finally:
                self.ended.append(time.thread_time() - begin)  # one call into C, so that none is lost

        return counted


def run(settings: Settings) -> Result:
    """Measure."""
    if kernel.compiled is None:
        raise RuntimeError("FloatZip's kernel was not built, or STREAMXF_KERNEL=numpy is set")
    few, many = settings.pick((64, 256), (1, 3))
    folder = str(settings.folder / "lock")
    found = in_child("benchmarks.lock", "child", cpus=1, sizes=[few, many], folder=folder, rounds=settings.rounds)
    blocks = (many - few) * MIB // BLOCK_SIZE

    def each(what: str, phase: str) -> Spread:
        key = f"{phase} {what}"
        pairs = zip(found[str(few)][key], found[str(many)][key], strict=True)
        return Spread.of([(large - small) / blocks for small, large in pairs])

    rows: list[Row] = []
    goals = []
    for phase in PHASES:
        held, total = each("held", phase), each("cpu", phase)
        rows.append(
            {
                "phase": phase,
                "CPU, µs": total,
                "lock held, µs": held,
                "lock taken, times": each("calls", phase).median,
                "workers that fill the lock": total.median / held.median,
            }
            | {f"lock busy, {n} workers, %": min(100.0, 100 * n * held.median / total.median) for n in WORKERS}
        )
        goals.append(goal_row(f"lock held, {phase}, µs", "a block of 1 MiB", held, GOAL))
    note = (
        f"Saves and loads of one bf16 tensor of {few} and of {many} MiB under FloatZip + Checksum + Encrypt, of which "
        f"the difference is taken, for each block of {BLOCK_SIZE // MIB} MiB; {settings.rounds} rounds, files in the "
        "page cache, one worker. The lock is held for all of the CPU time that the process takes outside of the calls "
        "that release it: FloatZip's kernel, CRC-32C, AES-GCM, `write` and `preadv`. That is an upper bound, since it "
        "includes the system's work for taking the lock. Workers fill the lock when each moment one of them holds it."
    )
    return Result("lock", "The interpreter's lock", note, [Table(goals, "Goals"), Table(rows, "A block", digits=1)])


def child(sizes: list[int], folder: str, rounds: int) -> Rounds:
    """Microseconds and calls of saves and loads, in a process of one CPU, and so of one worker."""
    torch.set_num_threads(1)
    return alternate({str(mib): partial(_measure, _State(mib), Path(folder)) for mib in sizes}, rounds, "lock")


class _State:
    def __init__(self, mib: int) -> None:
        self.saved = {"weight": torch.randn(mib * MIB // 2048, 1024).mul_(0.02).to(torch.bfloat16)}
        self.target = empty_target(self.saved)


def _measure(state: _State, folder: Path) -> Phases:
    # without a sync, which takes long, and for which the lock is released, too
    writer = streamxf.FileSystemWriter(folder, chain=full_chain(), sync_files=False)
    reader = streamxf.FileSystemReader(folder, keys=KEY)
    found: dict[str, float] = {}
    overhead = _overhead()
    for phase, action in (
        ("save", partial(dcp.save, state.saved, storage_writer=writer)),
        ("load", partial(dcp.load, state.target, storage_reader=reader)),
    ):
        with _counted() as free:
            begin = time.process_time()
            action()
            cpu = time.process_time() - begin
        found |= {
            f"{phase} cpu": 1e6 * cpu,
            f"{phase} held": 1e6 * (cpu - sum(free.ended) - len(free.ended) * overhead),
            f"{phase} calls": len(free.ended),
        }
    if not torch.equal(state.target["weight"], state.saved["weight"]):
        raise AssertionError("the load did not give back what was saved")
    return found


def _overhead() -> float:
    """Seconds that counting a call takes outside of the call."""
    free, count = _Free(), 1000
    counted = free.counting(int)
    begin = time.process_time()
    for _ in range(count):
        counted()
    return (time.process_time() - begin - sum(free.ended)) / count


@contextmanager
def _counted() -> Iterator[_Free]:
    """Count all calls that release the lock while they work on a block."""
    free = _Free()
    built: Any = kernel.compiled
    plain = crc32c.crc32c
    counted_crc = free.counting(plain)
    aes, invalid = encrypt._cryptography()
    create = Storage.create

    def crc(data: Any, *rest: Any) -> int:
        return int((counted_crc if memoryview(data).nbytes >= _RELEASING else plain)(data, *rest))

    class Counting:
        def __init__(self, key: bytes) -> None:
            cipher = aes(key)
            self.encrypt_into = free.counting(cipher.encrypt_into)
            self.decrypt_into = free.counting(cipher.decrypt_into)

    class Kernel:
        encode, decode = staticmethod(free.counting(built.encode)), staticmethod(free.counting(built.decode))
        encode_bound, work_size = built.encode_bound, built.work_size

    class Stream:
        def __init__(self, raw: Any) -> None:
            self.write, self.flush, self.fileno = free.counting(raw.write), raw.flush, raw.fileno

    @contextmanager
    def creating(storage: Storage, name: str) -> Iterator[Any]:
        with create(storage, name) as raw:
            yield Stream(raw)

    with ExitStack() as stack:
        stack.enter_context(patch.object(kernel, "compiled", Kernel))
        stack.enter_context(patch.object(crc32c, "crc32c", crc))
        stack.enter_context(patch.object(encrypt, "_cryptography", lambda: (Counting, invalid)))
        stack.enter_context(patch.object(Storage, "create", creating))
        stack.enter_context(patch.object(os, "preadv", free.counting(os.preadv)))
        yield free
