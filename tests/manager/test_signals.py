"""Signals: who is told, who else gets them, and that everything is as before in the end."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import streamxf
from streamxf import Retention
from streamxf.errors import AbortedError
from streamxf.manager.manager import CheckpointManager
from streamxf.manager.signals import StopSignals

from .runs import blank, complete, damage, state_at

USR1, USR2 = signal.SIGUSR1, signal.SIGUSR2


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Every test leaves signals as they were; here they end the process unless someone handles them."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (USR1, USR2, signal.SIGALRM)}
    yield
    sys.setprofile(None)
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_is_noticed_and_nothing_else_happens(caplog: pytest.LogCaptureFixture) -> None:
    watch = StopSignals((USR1, USR2))
    assert not watch.requested
    signal.raise_signal(USR2)
    assert watch.requested
    assert watch.requested
    assert [record.getMessage() for record in caplog.records] == ["received SIGUSR2: the job saves, and then ends"]
    watch.close()
    assert signal.getsignal(USR1) == signal.getsignal(USR2) == signal.SIG_DFL


def test_handlers_that_were_there_are_called_and_come_back() -> None:
    called: list[int] = []

    def handler(number: int, frame: Any) -> None:
        called.append(number)

    signal.signal(USR1, handler)
    watch = StopSignals((USR1,))
    signal.raise_signal(USR1)
    assert watch.requested
    assert called == [USR1]
    watch.close()
    assert signal.getsignal(USR1) is handler
    watch.close()
    assert signal.getsignal(USR1) is handler


def test_what_was_ignored_stays_ignored() -> None:
    signal.signal(USR1, signal.SIG_IGN)
    watch = StopSignals((USR1,))
    signal.raise_signal(USR1)
    assert not watch.requested
    watch.close()
    assert signal.getsignal(USR1) == signal.SIG_IGN


def test_an_interrupt_can_be_a_request() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have their background jobs ignore it
    try:
        watch = StopSignals((signal.SIGINT,))
        signal.raise_signal(signal.SIGINT)
        assert watch.requested
        watch.close()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)], ids=str)
def test_nested_ones_are_all_told_and_close_in_any_order(order: tuple[int, ...]) -> None:
    watches = [StopSignals((USR1,)) for _ in range(3)]
    left = list(watches)
    for place in order:
        for watch in left:
            watch._name = ""
        signal.raise_signal(USR1)
        assert [watch.requested for watch in left] == [True] * len(left)
        watches[place].close()
        left.remove(watches[place])
    assert signal.getsignal(USR1) == signal.SIG_DFL


def test_a_closed_one_below_a_foreign_handler_stands_aside() -> None:
    """Someone has put a handler over it, which stays, and calls it."""
    called: list[int] = []
    signal.signal(USR1, lambda number, _: called.append(number))
    watch = StopSignals((USR1,))
    below = signal.getsignal(USR1)
    foreign = signal.signal(USR1, lambda number, frame: below(number, frame))  # type: ignore[operator]
    assert foreign == below
    watch.close()
    assert signal.getsignal(USR1) != below
    signal.raise_signal(USR1)
    assert called == [USR1]
    assert not watch.requested


@pytest.mark.parametrize("number", [signal.SIGTERM, USR1], ids=["SIGTERM", "SIGUSR1"])
def test_copies_of_the_process(number: signal.Signals) -> None:
    """A copy ends by SIGTERM, but not by a signal that a batch system sends to every process."""
    before = signal.signal(number, signal.SIG_DFL)
    watch = StopSignals((number,))
    try:
        if (child := os.fork()) == 0:
            signal.raise_signal(number)
            os._exit(3 if watch._name else 0)
        _, status = os.waitpid(child, 0)
    finally:
        watch.close()
        signal.signal(number, before)
    assert not watch.requested
    if number == signal.SIGTERM:
        assert os.WTERMSIG(status) == signal.SIGTERM
    else:
        assert os.waitstatus_to_exitcode(status) == 0


def test_other_threads_cannot_watch_signals(caplog: pytest.LogCaptureFixture) -> None:
    made: list[StopSignals] = []
    thread = threading.Thread(target=lambda: made.append(StopSignals((USR1,))))
    thread.start()
    thread.join()
    assert "SIGUSR1 will not lead to a save" in caplog.text
    assert signal.getsignal(USR1) == signal.SIG_DFL
    made[0].close()
    made[0].close()


def test_closed_by_another_thread_it_stands_aside() -> None:
    called: list[int] = []
    signal.signal(USR1, lambda number, _: called.append(number))
    watch = StopSignals((USR1,))
    thread = threading.Thread(target=watch.close)
    thread.start()
    thread.join()
    signal.raise_signal(USR1)
    assert called == [USR1]
    assert not watch.requested


def test_a_thread_can_ask_for_a_save() -> None:
    """As docs/manager.md has it for machines that announce their end otherwise than by a signal."""
    watch = StopSignals((signal.SIGUSR1,))
    thread = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGUSR1))
    thread.start()
    thread.join()
    assert watch.requested
    watch.close()


@pytest.mark.parametrize("moment", ["_begin", "_adjust_thread_count", "create_local_plan", "publish", "stage"])
def test_a_handler_calls_no_manager_while_its_thread_is_inside_one(tmp_path: Path, moment: str) -> None:
    state, calls = state_at(9), list[Any]()

    def handler(*_: Any) -> None:
        while calls:
            with pytest.raises(AbortedError, match=r"inside CheckpointManager\.save, .* Set a flag"):
                calls.pop()()

    def note(frame: Any, event: str, _: Any) -> None:
        if calls and event == "call" and frame.f_code.co_name == moment:
            signal.raise_signal(USR1)

    signal.signal(USR1, handler)
    with CheckpointManager(tmp_path, async_save=moment == "stage") as one, CheckpointManager(tmp_path / "b") as other:
        calls += [lambda: one.begin(9), lambda: one.commit(9), one.wait, one.close]
        calls += [lambda: one.resume(state), lambda: one.should_save(9), lambda: other.save(9, state), one.latest]
        sys.setprofile(note)
        one.save(1, state)
        sys.setprofile(None)
        assert not calls, "the signal came"
    assert complete(tmp_path) == ["step-1"]


class Asking:
    """What is saved asks the manager that saves it."""

    def __init__(self, manager: CheckpointManager) -> None:
        self.manager = manager

    def state_dict(self) -> dict[str, Any]:
        return {"best": str(self.manager.best()), "latest": str(self.manager.latest())}

    def load_state_dict(self, _: dict[str, Any]) -> None:
        """Nothing of it is kept."""


def test_what_is_saved_may_ask_for_the_best(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, keep=Retention(best=1, metric="loss")) as manager:
        manager.save(1, state_at(1), metrics={"loss": 1.0})
        manager.save(2, state_at(2) | {"asking": Asking(manager)}, metrics={"loss": 2.0})
        with streamxf.Checkpoint(tmp_path / "step-2") as saved:
            assert saved["asking.best"].read() == str(tmp_path / "step-1")


def test_what_a_state_asks_changes_nothing_of_what_goes_on(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        for step in (1, 2, 3):
            manager.save(step, state_at(step) | {"asking": Asking(manager)})
        assert manager.latest({"step-3": "it diverged"}) == str(tmp_path / "step-2")
        for step in (4, 5):
            manager.save(step, state_at(step) | {"asking": Asking(manager)})
    assert [each.name for each in streamxf.list_checkpoints(tmp_path) if each.abandoned] == ["step-3"]
    for step in (4, 5):
        damage(tmp_path / f"step-{step}")
    with CheckpointManager(tmp_path, verify="none") as manager:
        assert manager.resume({**blank(), "asking": Asking(manager)}) == 2
        assert manager.skipped.keys() == {"step-3", "step-4", "step-5"}


class Teaching(Asking):
    """What is saved saves, and resumes, by the manager of another run."""

    def state_dict(self) -> dict[str, Any]:
        self.manager.save(1, state_at(1))
        return {"step": self.manager.resume(blank())}


def test_what_is_saved_may_use_the_manager_of_another_run(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path / "teacher") as teacher, CheckpointManager(tmp_path / "student") as student:
        student.save(7, {"teaching": Teaching(teacher)})
        with pytest.raises(AbortedError, match="Set a flag"):
            student.save(8, {"teaching": Teaching(student)})
        student.save(9, {"teaching": Teaching(teacher)})
    assert complete(tmp_path / "student") == ["step-7", "step-9"]


def test_saves_end_whenever_a_handler_saves(tmp_path: Path) -> None:
    def handler(*_: Any) -> None:
        with suppress(AbortedError):
            manager.save(99, state_at(99))

    signal.signal(signal.SIGALRM, handler)
    with CheckpointManager(tmp_path) as manager:
        for step in range(20):
            signal.setitimer(signal.ITIMER_REAL, 0.0005 * (step + 1))
            manager.save(step, state_at(step))
            signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(USR1, lambda *_: manager.close())
        with patch.object(manager, "_begin", lambda *_: signal.raise_signal(USR1)), pytest.raises(AbortedError):
            manager.save(20, state_at(20))
        manager.save(21, state_at(21))
    assert {f"step-{step}" for step in range(22)} - {*complete(tmp_path)} == {"step-20"}
