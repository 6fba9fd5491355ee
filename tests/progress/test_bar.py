"""The bar: on a terminal, after a second; and nothing at all elsewhere."""

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from streamxf.dcp.base import progress_on
from streamxf.progress import ProgressBar
from tests.failing import fails_with
from tests.polling import at_once

from .terminal import terminal

HALF_WAY = """
import sys
from streamxf.progress import ProgressBar
with ProgressBar("Saving [all]") as bar:
    bar.expect(2**30)
    bar.advance(2**29)
    sys.stdin.readline()
    {then}
"""


def test_one_line_stays_when_it_is_done() -> None:
    with terminal(HALF_WAY.format(then="bar.advance(2**29)")) as shell:
        shell.read_until("512.0 MiB of 1.0 GiB")
        (line,) = shell.screen
        assert re.fullmatch(r"Saving \[all\] [━╸╺]+ 512\.0 MiB of 1\.0 GiB .* [GMk]?B/s .*", line)
        shell.read_until_cursor()  # it is there from the beginning: a process that is killed could not bring it back
        shell.go_on()
        assert shell.end() == 0
        (line,) = shell.screen
        assert re.fullmatch(r"Saving \[all\] ━+ 1\.0 GiB of 1\.0 GiB .* [GMk]?B/s \d:\d\d:\d\d", line)
        assert shell.has_cursor
        assert shell.written.endswith("\n\x1b[?25h")


@pytest.mark.parametrize("error", ["ValueError('no')", "KeyboardInterrupt"])
def test_nothing_stays_after_an_error(error: str) -> None:
    with terminal(HALF_WAY.format(then=f"raise {error}")) as shell:
        shell.read_until("512.0 MiB of 1.0 GiB")
        shell.go_on()
        assert shell.end() != 0
        assert shell.screen[0].startswith("Traceback")
        assert "Saving" not in "".join(shell.screen[1:]).replace('ProgressBar("Saving', "")
        assert shell.has_cursor


def test_without_a_total() -> None:
    code = HALF_WAY.replace("    bar.expect(2**30)\n", "").format(then="pass")
    with terminal(code) as shell:
        shell.read_until("512.0 MiB")
        shell.go_on()
        assert shell.end() == 0
        assert "512.0 MiB of 512.0 MiB" in shell.screen[0]


def test_two_at_a_time_do_not_mix() -> None:
    """The second one comes when the first has gone."""
    code = """
import sys, time, streamxf.progress

class Drawing:
    tries, lock = 0, streamxf.progress._drawing

    def acquire(self, blocking):
        self.tries += 1
        return self.lock.acquire(blocking=blocking)

    def release(self):
        self.lock.release()

drawing = streamxf.progress._drawing = Drawing()
first, second = streamxf.progress.ProgressBar("First"), streamxf.progress.ProgressBar("Second")
first.__enter__()
sys.stdin.readline()
second.__enter__()
while drawing.tries < 4:
    time.sleep(0.01)
first.__exit__(None)
sys.stdin.readline()
second.__exit__(None)
"""
    with terminal(code) as shell:
        shell.read_until("First")
        shell.go_on()
        shell.read_until("Second")
        shell.go_on()
        assert shell.end() == 0
        assert [line.split()[0] for line in shell.screen] == ["First", "Second"]


AT_ONCE = """
import sys
from streamxf.progress import ProgressBar
with ProgressBar("Saving") as bar:
    bar.advance(1)
assert "rich" not in sys.modules
"""
LATER = """
import sys, streamxf.progress
streamxf.progress._PATIENCE = 0
with streamxf.progress.ProgressBar("Saving") as bar:
    bar.advance(1)
    bar._thread.join()
"""


@pytest.mark.parametrize(
    ("code", "term"), [(LATER, "dumb"), (LATER, "unknown"), (AT_ONCE, "xterm")], ids=["dumb", "unknown", "over at once"]
)
def test_what_cannot_be_drawn_or_is_over_at_once_shows_nothing(code: str, term: str) -> None:
    """What is over at once loads nothing, either."""
    with terminal(code, TERM=term) as shell:
        assert shell.end() == 0
        assert not shell.written


def test_a_terminal_that_goes_away_ends_nothing() -> None:
    code = """
import os, sys
from streamxf.progress import ProgressBar
with ProgressBar("Saving") as bar:
    bar.advance(1)
    sys.stdin.readline()
    os.close(2)
os._exit(7)
"""
    with terminal(code) as shell:
        shell.read_until("Saving")
        shell.go_on()
        assert shell.end() == 7


@pytest.mark.parametrize("closed", [False, True], ids=["a file", "closed"])
def test_nothing_unless_stderr_is_a_terminal(tmp_path: Path, closed: bool) -> None:
    """Not even with variables that make rich believe that it is one."""
    code = f"""
import sys, threading, streamxf.progress
streamxf.progress._PATIENCE = 0
if {closed}:
    sys.stderr = None
with streamxf.progress.ProgressBar("Saving") as bar:
    bar.advance(1)
    assert threading.active_count() == 1
"""
    with open(tmp_path / "stderr", "wb") as stderr:
        environment = {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1", "PYTHONPATH": ":".join(sys.path)}
        subprocess.run([sys.executable, "-c", code], stderr=stderr, env=environment, check=True)
    assert not (tmp_path / "stderr").read_bytes()


def test_any_thread_may_tell() -> None:
    bar = ProgressBar("Saving")

    def work() -> None:
        for _ in range(10_000):
            bar.expect(2)
            bar.advance(1)

    at_once(work, 4)
    assert (bar._done, bar._expected) == (40_000, 80_000)


@pytest.mark.parametrize("rank", [None, 0, 1])
def test_the_bar_is_on_rank_0(rank: int | None) -> None:
    if rank is not None:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
    try:
        with progress_on(True, "Saving") as progress:
            assert isinstance(progress, ProgressBar) == (rank != 1)
        with progress_on(False, "Saving") as progress:
            assert progress is None
    finally:
        if rank is not None:
            dist.destroy_process_group()


SAVE_AND_LOAD = """
import io, sys, torch, streamxf
import torch.distributed.checkpoint as dcp
from tests.dcp.helpers import Xor
from torch.distributed.checkpoint._extension import ExtensionRegistry

class Waiting(Xor):
    def transform_to(self, output):
        sys.stdin.readline()
        return super().transform_to(output)

    def transform_from(self, input):
        sys.stdin.readline()
        {fail}
        return super().transform_from(input)

    @staticmethod
    def from_descriptor(version):
        return Waiting()

state = {{"w": torch.zeros(2**18)}}
writer = streamxf.FileSystemWriter({path!r}, _extensions=[Waiting()], sync_files=False, progress=True)
dcp.save(state, storage_writer=writer)
registry = ExtensionRegistry()
registry.register(Waiting)
try:
    dcp.load(state, storage_reader=streamxf.FileSystemReader({path!r}, registry, progress=True))
except BaseException as error:
    sys.exit(7)
"""


@pytest.mark.parametrize("fails", [False, True], ids=["well", "badly"])
def test_writer_and_reader_show_it(tmp_path: Path, fails: bool) -> None:
    code = SAVE_AND_LOAD.format(path=str(tmp_path), fail="raise ValueError" if fails else "")
    with terminal(code, PYTHONPATH=":".join(sys.path)) as shell:
        shell.read_until("0 bytes of 1.0 MiB")
        assert shell.screen[0].startswith("Saving")
        shell.go_on()
        shell.read_until("Loading")
        shell.go_on()
        assert shell.end() == (7 if fails else 0)
        saved, *loaded = shell.screen
        assert "1.0 MiB of 1.0 MiB" in saved
        if fails:
            assert not loaded
        else:
            assert loaded[0].startswith("Loading")
            assert len(loaded) == 1
        assert shell.has_cursor


def test_an_interrupt_while_it_begins_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamxf.progress.is_terminal", lambda stream: True)
    monkeypatch.setattr(threading.Thread, "start", fails_with(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt), ProgressBar("Saving"):
        raise AssertionError("it did not begin")
