"""Places from which a stream may be used, in which a pool of threads that waits for itself would hang for ever."""

import subprocess
import sys
import threading

import pytest

from streamxf import engine
from streamxf.engine import Engine, Job, side_by_side
from tests.failing import fails_with

CODEC = """
import gc, io, os, signal, threading, time
from dataclasses import dataclass
from typing import ClassVar
import streamxf
from streamxf.engine import shared

@dataclass(frozen=True)
class Busy(streamxf.Codec):
    name: ClassVar[str] = "test.busy"
    def encode(self, block, info):
        work()
        return block
    def decode(self, block, info):
        return block

def save(chain, size, block_size=65536):
    with streamxf.open(io.BytesIO(), "wb", chain=chain, block_size=block_size) as file:
        file.write(bytes(size))
"""

INSIDE_A_CODEC = """
def work():
    save("lz4", 10 * 65536)
save([Busy()], 10 * 65536)
"""

COLLECTED_IN_A_WORKER = """
gc.disable()
go = threading.Event()
def work():
    go.wait()
    gc.collect()
def writes():
    with streamxf.open(io.BytesIO(), "wb", chain=[Busy()], block_size=65536) as file:
        for _ in range(7):  # in pieces that the stream puts together, so that it does not wait for them
            file.write(bytes(30_000))
        yield
class Box: pass
box = Box()
box.generator, box.itself = writes(), box
next(box.generator)
del box
go.set()
while shared().budget.jobs:
    time.sleep(0.01)
save("lz4", 10 * 65536)
"""

IN_A_SIGNAL_HANDLER = """
handled = []
save("lz4", 4 * 65536)  # whatever is imported is, before anything interrupts it
def handler(*_):
    save("lz4", 4 * 65536)
    handled.append(1)
    signal.setitimer(signal.ITIMER_REAL, 0.003)  # not before, or handlers would pile up on a slow machine
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.003)
while len(handled) < 60:
    save("lz4", 2**22)
signal.setitimer(signal.ITIMER_REAL, 0)
assert shared().budget.jobs == 0
"""


@pytest.mark.parametrize("script", [INSIDE_A_CODEC, COLLECTED_IN_A_WORKER, IN_A_SIGNAL_HANDLER])
def test_a_stream_never_waits_for_itself(script: str) -> None:
    subprocess.run([sys.executable, "-c", CODEC + script], check=True, timeout=600)


def test_the_engine_can_be_asked_for_while_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a signal's handler that saves."""
    found: list[Engine] = []

    def worker_count() -> int:
        if not found:
            found.append(Engine(1))  # so that it is asked once
            found[0] = engine.shared()
        return 1

    monkeypatch.setattr(engine, "_engine", None)
    monkeypatch.setattr(engine, "worker_count", worker_count)
    assert engine.shared() is found[0] is engine.shared()


def test_jobs_run_once_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(4)
    start = threading.Thread.start

    def at_most_one(thread: threading.Thread) -> None:
        if thread.name != "streamxf_0":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", at_most_one)
    done: list[int] = []
    futures = [engine.submit(Job(lambda number=number: done.append(number))) for number in range(20)]
    for future in futures:
        future.result(timeout=60)
    assert done == list(range(20))


def test_jobs_run_at_once_where_there_are_no_threads_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(2)
    monkeypatch.setattr(threading.Thread, "start", fails_with(RuntimeError, "can't start new thread"))
    assert engine.submit(Job(threading.current_thread)).result(timeout=60) is threading.current_thread()


def test_a_thread_that_begins_when_all_is_over_makes_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was started, and then had to wait for its turn until another thread's failure had been raised."""
    late: list[threading.Thread] = []
    monkeypatch.setattr(threading.Thread, "start", lambda thread: late.append(thread))
    made: list[str] = []
    with pytest.raises(OSError, match="the first call failed"):
        side_by_side([fails_with(OSError, "the first call failed"), lambda: made.append("after the end")], 2, [])
    (thread,) = late
    thread.run()
    assert made == []
