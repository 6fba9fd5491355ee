"""Forked children: what one of them returned, raised, or how it died. Torch is imported once, by their parent."""

import os
import pickle
import select
import signal
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from torch.distributed.checkpoint.api import CheckpointException

SECONDS = 60.0  # far above what any child takes: one that needs more hangs


@dataclass
class Outcome:
    """How a child ended: "returned", "raised", "killed" or "hung"."""

    how: str
    value: Any = None
    error: str = ""
    warnings: list[str] = field(default_factory=list)


def run(*calls: Callable[[], Any], seconds: float = SECONDS) -> list[Outcome]:
    """Make each call in a child of its own, all at the same time."""
    children = [_start(call) for call in calls]
    deadline = time.monotonic() + seconds
    return [_collect(process, pipe, deadline) for process, pipe in children]


def run_one(call: Callable[[], Any], seconds: float = SECONDS) -> Outcome:
    """Make one call in a child."""
    return run(call, seconds=seconds)[0]


class Helper:
    """A child that makes one call again and again, with other arguments each time; a fork for each would be slower."""

    def __init__(self, call: Callable[..., Any]) -> None:
        asking, self._asks = os.pipe()
        self._answers, answering = os.pipe()
        self._process = os.fork()
        if self._process:
            os.close(asking)
            os.close(answering)
            return
        try:
            os.close(self._asks)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            with os.fdopen(asking, "rb") as questions, os.fdopen(answering, "wb") as answers:
                while True:
                    pickle.dump(attempt(partial(call, *pickle.load(questions))), answers)
                    answers.flush()
        except EOFError:  # nobody asks any more
            pass
        finally:
            os._exit(0)

    def ask(self, *arguments: Any, seconds: float = SECONDS) -> Outcome:
        """Make the call. A child that hangs or dies does so for all later calls."""
        try:
            os.write(self._asks, pickle.dumps(arguments))
        except BrokenPipeError:
            return Outcome("killed")
        if not select.select([self._answers], [], [], seconds)[0]:
            os.kill(self._process, signal.SIGKILL)
            return Outcome("hung")
        with os.fdopen(os.dup(self._answers), "rb") as answers:
            try:
                return cast(Outcome, pickle.load(answers))
            except EOFError:
                return Outcome("killed")

    def close(self) -> None:
        """Have the child end."""
        os.close(self._asks)
        os.close(self._answers)
        os.waitpid(self._process, 0)


def _start(call: Callable[[], Any]) -> tuple[int, int]:
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return process, reading
    try:
        os.close(reading)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # torch logs there what it raises as well
        data = pickle.dumps(attempt(call))
        while data:
            data = data[os.write(writing, data) :]
    finally:
        os._exit(0)


def attempt(call: Callable[[], Any]) -> Outcome:
    """Make a call here."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            outcome = Outcome("returned", call())
        except CheckpointException as error:
            outcome = Outcome("raised", error="; ".join(repr(cause) for cause, _ in error.failures.values()))
        except BaseException as error:
            outcome = Outcome("raised", error=repr(error))
    outcome.warnings = [str(warning.message) for warning in caught]
    return outcome


def _collect(process: int, pipe: int, deadline: float) -> Outcome:
    data = b""
    hung = False
    while True:
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            hung = True
            os.kill(process, signal.SIGKILL)
            break
        more = os.read(pipe, 1 << 16)
        if not more:
            break
        data += more
    os.close(pipe)
    os.waitpid(process, 0)
    if hung:
        return Outcome("hung")
    return pickle.loads(data) if data else Outcome("killed")
