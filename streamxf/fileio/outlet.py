"""`Outlet`: blocks of many streams are encoded in parallel, and leave in order through one door."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from streamxf import engine
from streamxf.engine import Pipeline
from streamxf.errors import AbortedError
from streamxf.meter import Meter

T = TypeVar("T")

# What was encoded on the spot and waits behind blocks that are still with the workers. Little, because it stands in no
# budget; enough that a small item between two large ones does not stop the workers.
MAX_WAITING = 256 * 1024


class _Turn(NamedTuple):
    leave: Callable[[Any], None]
    is_encoded: bool
    encoded: Any
    size: int


class Outlet:
    """The one way out for all streams of a file.

    Whatever was announced first leaves first, in the thread that calls `submit`, `put` and `settle`. So blocks of the
    next stream are encoded while those of the one before are still written, and small streams keep all workers busy,
    too.

    After the first error, or `cancel`, nothing leaves any more: what has left is no whole file.

    Parameters
    ----------
    meter : Meter, optional
        Is told how many blocks were in flight.
    """

    def __init__(self, meter: Meter | None = None) -> None:
        self._meter = meter
        self._pipeline: Pipeline[Any] | None = None
        self._turns: deque[_Turn] = deque()  # the first one is with a worker
        self._waiting = 0
        self._open = 0
        self._spoiled = False

    def opened(self) -> None:
        """Say that a stream has begun which leaves by this outlet."""
        self._open += 1

    def closed(self) -> None:
        """Say that all of a stream was handed over, its end, too."""
        self._open -= 1

    def submit(self, encode: Callable[[], T], size: int, leave: Callable[[T], None]) -> None:
        """Run `encode`, which holds about `size` bytes, in a worker; `leave` gets its result when its turn comes.

        Raises
        ------
        Exception
            Whatever an earlier block, or letting it leave, raised. The outlet is then spoiled, and no block is being
            encoded any more.
        AbortedError
            If it is spoiled already, or after a fork.
        """
        self._check()
        if self._pipeline is None:
            self._pipeline = Pipeline(self._leave)
        self._turns.append(_Turn(leave, False, None, 0))
        try:
            self._pipeline.submit(encode, size)
        except BaseException:
            self.cancel()
            raise

    def put(self, encoded: T, size: int, leave: Callable[[T], None]) -> None:
        """Let something leave in its turn that is encoded already, and holds about `size` bytes; raises as `submit`."""
        self._check()
        try:
            if not self._turns:
                leave(encoded)
                return
            self._turns.append(_Turn(leave, True, encoded, size))
            self._waiting += size
            if self._waiting > MAX_WAITING:
                self.settle()
        except BaseException:
            self.cancel()
            raise

    def narrow(self) -> None:
        """Wait until there is room for a block among as few as keep the workers busy; raises as `submit`."""
        self._check()
        if self._pipeline is None:
            return
        try:
            self._pipeline.narrow(engine.shared().workers)
        except BaseException:
            self.cancel()
            raise

    def settle(self) -> None:
        """Wait until everything has left; raises as `submit`."""
        self._check()
        if self._pipeline is None:
            return
        try:
            self._pipeline.settle()
        except BaseException:
            self.cancel()
            raise
        if self._meter is not None:
            self._meter.blocks(self._pipeline.peak_jobs)

    def finish(self) -> None:
        """Wait until everything has left, and be sure that it is whole; raises as `submit`.

        Raises
        ------
        AbortedError
            If a stream was begun and never closed.
        """
        self.settle()
        if self._open:
            self.cancel()
            self._check()

    def cancel(self) -> None:
        """Let nothing leave any more. Returns when no block is being encoded, so that the memory they lie in may go."""
        self._spoiled = True
        self._turns.clear()
        if self._pipeline is not None:
            self._pipeline.cancel()

    def abandon(self) -> None:
        """As `cancel`, without waiting for what runs: for the garbage collector."""
        self._spoiled = True
        self._turns.clear()
        if self._pipeline is not None:
            self._pipeline.abandon()

    def _check(self) -> None:
        if self._spoiled:
            raise AbortedError("a stream of this file failed or was never closed, so the file cannot be continued")

    def _leave(self, encoded: Any) -> None:
        self._turns.popleft().leave(encoded)
        while self._turns and self._turns[0].is_encoded:
            turn = self._turns.popleft()
            turn.leave(turn.encoded)
            self._waiting -= turn.size
