"""Two jobs that begin to save to one run at the same moment: one of them ends."""

import io
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streamxf.checkpoint.access import Access
from streamxf.errors import AbortedError
from streamxf.manager import sessions as module
from streamxf.manager.notes import Authority
from streamxf.manager.sessions import Sessions
from streamxf.storage import abilities as disk
from streamxf.storage.opening import open_storage
from tests.faults.forks import run_one
from tests.polling import wait_until


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Does something once, when a session has looked for others and is about to say that it is there."""
    waiting: list[Callable[[], None]] = []

    def putting(*arguments: Any, **options: Any) -> None:
        while waiting:
            waiting.pop()()
        put(*arguments, **options)

    put = module.put_note
    monkeypatch.setattr(module, "put_note", putting)
    monkeypatch.setattr(module, "_PATIENCE", 0.5)
    return waiting.append


def session(run: Path, number: str) -> Sessions:
    made = Sessions(open_storage(run), "step-{}", Authority(Access()))
    made.own = module.Session(**{**vars(made.own), "id": number * 32})
    return made


@pytest.mark.parametrize(("mine", "other"), ["12", "21"])
def test_the_second_of_two_that_begin_at_once_ends(
    tmp_path: Path, between: Callable[[Callable[[], None]], None], mine: str, other: str
) -> None:
    first, second = session(tmp_path, mine), session(tmp_path, other)
    between(second.begin)
    with pytest.raises(AbortedError, match="saves to this run, too"):
        first.begin()
    first.close()
    third = session(tmp_path, "3")
    with pytest.raises(AbortedError, match="another CheckpointManager of this process, which is not closed, saves"):
        third.begin()
    second.seen(ended=True)
    second.close()
    fourth = session(tmp_path, "4")
    fourth.begin()
    fourth.close()


def test_a_session_that_is_there_has_its_lock(tmp_path: Path, between: Callable[[Callable[[], None]], None]) -> None:
    """Or another job would take it for one that has ended."""
    first = session(tmp_path, "1")
    held: list[bool] = []
    between(lambda: held.append(first._lock is not None))
    first.begin()
    first.close()
    assert held == [True]


LOOKS = """
import sys
import threading
import time
from streamxf.storage.opening import open_storage
lock = open_storage(sys.argv[1]).lock_file(f".streamxf/session-{sys.argv[2]}.lock")
print(lock is not None, flush=True)
sys.stdin.read()
"""


def test_who_looks_whether_a_job_has_ended_is_not_taken_for_it(tmp_path: Path) -> None:
    ended = session(tmp_path, "1")
    ended.begin()
    ended.close()
    command = [sys.executable, "-c", LOOKS, str(tmp_path), ended.own.id]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert module.is_held(open_storage(tmp_path), ended.own.id) is False
        other.communicate()


@pytest.mark.parametrize("copied", [False, True])
def test_a_job_that_runs_is_seen_by_another_process(tmp_path: Path, copied: bool) -> None:
    """Though it has copied its folder meanwhile, by opening and closing every file."""
    running = session(tmp_path / "run", "1")
    running.begin()
    if copied:
        shutil.copytree(tmp_path / "run", tmp_path / "backup")
    assert is_seen(tmp_path / "run", running)
    running.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("mask", [0o002, 0o022, 0o027, 0o077])
def test_another_user_s_job_is_seen_if_its_files_may_be_read(mask: int, request: pytest.FixtureRequest) -> None:
    run = Path(tempfile.mkdtemp())  # pytest's own are closed to others
    request.addfinalizer(lambda: shutil.rmtree(run))
    for folder in (run, run / ".streamxf"):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o770)  # a group's
    request.addfinalizer(partial(os.umask, os.umask(mask)))
    running = session(run, "1")
    running.begin()

    def begin() -> str:
        os.setuid(65534)
        with redirect_stderr(io.StringIO()) as said:
            logging.basicConfig(force=True)
            session(run, "2").begin()
        return said.getvalue()

    outcome = run_one(begin)
    if mask == 0o077:
        assert "is ignored: PermissionError" in outcome.value
        running.close()
        return
    assert f"process {running.own.pid} on" in outcome.error, outcome
    running.close()
    assert run_one(begin).how == "returned"


def is_seen(run: Path, running: Sessions) -> bool:
    command = [sys.executable, "-c", LOOKS, str(run), running.own.id]
    found = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert found.stdout == "True\n" or "BlockingIOError" in found.stderr
    return "BlockingIOError" in found.stderr


# -- signs of life -------------------------------------------------------------------------------------------------


class Clock:
    """The time of day, which a test may set on."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self._time = time.time

    def __call__(self) -> float:
        return self._time() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "time", made)
    return made


def signers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if getattr(thread, "_target", None) is module._give_signs]


def test_on_a_disk_of_this_machine_a_lock_that_is_held_is_a_sign_of_life(tmp_path: Path, clock: Clock) -> None:
    """However long ago the last save was."""
    first = session(tmp_path, "1")
    first.begin()
    clock.ahead = 7200.0
    with pytest.raises(AbortedError, match="which is not closed, saves to this run"):
        session(tmp_path, "2").begin()
    assert not signers()
    first.close()
    session(tmp_path, "3").begin()


def test_elsewhere_a_thread_gives_signs_of_life_until_the_end(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(disk, "mounted", lambda _: ("nfs4", "server:/runs"))
    monkeypatch.setattr(module, "_SIGN", 0.01)
    first, second = session(tmp_path, "1"), session(tmp_path, "2")
    first.begin()
    (thread,) = signers()
    assert thread.daemon
    with monkeypatch.context() as failing:
        failing.setattr(module, "put_note", lambda *_: Path("/nowhere").stat())
        wait_until(lambda: "no sign of life could be given: FileNotFoundError" in caplog.text)
    clock.ahead = 7200.0
    wait_until(lambda: second.earlier()[0].seen > time.time() - 60)
    with pytest.raises(AbortedError, match="saves to this run"):
        second.begin()
    first.seen(ended=True)
    first.close()
    thread.join()
    wait_until(lambda: not signers())
    assert session(tmp_path, "3").earlier()[0].ended


def test_no_thread_keeps_a_session_that_nobody_closes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "mounted", lambda _: ("", ""))
    monkeypatch.setattr(module, "_SIGN", 0.01)
    lost = session(tmp_path, "1")
    lost.begin()
    assert signers()
    del lost
    wait_until(lambda: not signers())
    session(tmp_path, "2").begin()
    wait_until(lambda: not signers())
