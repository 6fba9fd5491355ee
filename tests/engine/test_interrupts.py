"""An exception at any instant in the thread that submits, as Ctrl-C brings it: nothing hangs, no room is lost, and no
worker goes on writing into memory that was given back.
"""

import subprocess
import sys

import pytest

COMMON = """
import faulthandler, gc, io, os, random, signal, sys, time
import streamxf
from streamxf.engine import shared

faulthandler.dump_traceback_later(500, exit=True)

class Stop(BaseException):
    pass

came = lost = 0

def stop(*_):
    global came
    came += 1
    raise Stop

def lose(unraisable):  # in a finalizer, from which nothing can be raised
    global lost
    lost += isinstance(unraisable.exc_value, Stop)

sys.unraisablehook = lose

signal.signal(signal.SIGALRM, stop)
data = os.urandom(1 << 16) * 64
stored = io.BytesIO()

def write(target):
    with streamxf.open(target, "wb", chain="zstd", block_size=1 << 16) as file:
        file.write(data)

write(stored)
random.seed(7)
longest = 1.0

def interrupted(action):
    global longest
    begin = time.perf_counter()
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-4, longest))
        action()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Stop:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    longest = time.perf_counter() - begin  # which is another thing each time on a busy machine
    return False

def check(hits):
    assert hits == came - lost, "an interrupt was swallowed"
    assert hits > 20, f"only {hits} interrupts came in time"
    gc.collect()
    deadline = time.monotonic() + 60
    while (shared().budget.jobs or shared().budget.bytes) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (shared().budget.jobs, shared().budget.bytes) == (0, 0)
"""

WRITES = """
check(sum(interrupted(lambda: write(io.BytesIO())) for _ in range(120)))
"""

READS = """
hits = 0
for _ in range(120):
    target = bytearray(len(data))
    with streamxf.open(io.BytesIO(stored.getvalue())) as file:
        if interrupted(lambda: file.readinto(target)):
            hits += 1
            at_once = bytes(target)
            time.sleep(0.002)
            assert target == at_once, "a worker wrote after readinto had returned"
check(hits)
"""

SAVES = """
import tempfile
import numpy as np

blocks = np.frombuffer(data, np.uint8)
folder = tempfile.mkdtemp()

def save():
    with streamxf.CheckpointWriter(folder, chain="zstd", block_size=1 << 16, overwrite=True) as writer:
        for number in range(4):
            writer.add(f"{number}", blocks, copy=False)
            writer.add(f"small {number}", blocks[:100], copy=False)

def intact():
    with streamxf.Checkpoint(folder, framework="numpy") as checkpoint:
        return all((np.asarray(checkpoint[f"{number}"][...]) == blocks).all() for number in range(4))

try:
    save()
    hits = 0
    for _ in range(80):
        hits += interrupted(save)
        assert intact()
    check(hits)
    save()
    names = os.listdir(folder)
    assert len(names) == 2, names  # the metadata and one data file: nothing of those that were interrupted
finally:
    import shutil
    shutil.rmtree(folder)
"""


@pytest.mark.parametrize("script", [WRITES, READS, SAVES], ids=["writes", "reads", "saves"])
def test_interrupts(script: str) -> None:
    subprocess.run([sys.executable, "-c", COMMON + script], check=True, timeout=600)
