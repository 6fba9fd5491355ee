"""A call in a forked child, which can be killed; torch is imported once, by its parent."""

import json
import os
import select
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

# Of the moments at which something is touched, one of so many; every one takes minutes.
STEPS = [17, pytest.param(1, marks=pytest.mark.exhaustive)]


class Child:
    """Runs while others do.

    Parameters
    ----------
    call : callable
        Returns what JSON can hold.

    Attributes
    ----------
    process : int
        Its number.
    killed : bool
        Whether a signal ended it, once it has ended.
    """

    killed = False

    def __init__(self, call: Callable[[], object]) -> None:
        self._reading, writing = os.pipe()
        self.process = os.fork()
        if self.process:
            os.close(writing)
            return
        try:
            os.write(writing, json.dumps(call()).encode() + b"\n")
        finally:
            os._exit(1)  # after its result; whatever it raised

    def wait(self, seconds: float) -> bool:
        """Wait for its result, but not longer; gives whether it is over."""
        return bool(select.select([self._reading], [], [], seconds)[0])

    def kill(self) -> None:
        """End it without any warning."""
        os.kill(self.process, signal.SIGKILL)

    def result(self) -> object:
        """What the call returned; None if it was killed or raised."""
        with os.fdopen(self._reading) as pipe:
            text = pipe.read()
        self.killed = os.WIFSIGNALED(os.waitpid(self.process, 0)[1])
        return json.loads(text) if text.endswith("\n") else None


def dies(moment: int, touches: Sequence[tuple[Any, str]], call: Callable[[], object]) -> bool:
    """Make a call in another process, which is killed before it makes one of the calls `touches` for the `moment`-th
    time; gives whether it came to that.
    """

    def counting() -> bool:
        left = moment

        def counted(real: Callable[..., Any]) -> Callable[..., Any]:
            def touch(*arguments: Any, **options: Any) -> Any:
                nonlocal left
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **options)

            return touch

        for owner, name in touches:
            setattr(owner, name, counted(getattr(owner, name)))
        call()
        return True

    child = Child(counting)
    finished = child.result() is not None
    assert finished or child.killed, "the call raised an error"
    return not finished


def kills(
    step: int, touches: Sequence[tuple[Any, str]], call: Callable[[], object], before: Callable[[], object] = bool
) -> Iterator[None]:
    """Each time when a process was killed, a little later than the one before, until one comes to its end."""
    moment = 1
    before()
    while dies(moment, touches, call):
        yield
        moment += step
        before()
    assert moment > 1
