"""`Outlet`: blocks of many streams are encoded in parallel, and leave in order through one door."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from streamxf.engine import Pipeline
from streamxf.errors import AbortedError
from streamxf.meter import Meter

Departure = Callable[[], None]

# What was encoded on the spot and waits behind blocks that are still with the workers. Little, because it stands in no
# budget; enough that a small item between two large ones does not stop the workers.
MAX_WAITING = 256 * 1024


class Outlet:
    """The one way out for all streams of a file.

    Each departure writes something; they run one after the other, in the order in which they were announced, in the
    thread that calls `submit`, `put` and `settle`. So blocks of the next stream are encoded while those of the one
    before are still written, and small streams keep all workers busy, too.

    After the first error, or `cancel`, nothing leaves any more: what has left is no whole file.

    Parameters
    ----------
    meter : Meter, optional
        Is told how many blocks were in flight.
    """

    def __init__(self, meter: Meter | None = None) -> None:
        self._meter = meter
        self._pipeline: Pipeline[Departure] | None = None
        self._submitted = 0
        self._left = 0
        self._waiting: deque[tuple[int, Departure]] = deque()  # behind how many blocks, and what
        self._waiting_size = 0
        self._spoiled = False

    def submit(self, encode: Callable[[], Departure], size: int) -> None:
        """Run `encode`, which holds about `size` bytes, in a worker; what it returns leaves in its turn.

        Raises
        ------
        Exception
            Whatever an earlier block or departure raised. The outlet is then spoiled, and no block is being encoded any
            more.
        AbortedError
            If it is spoiled already, or after a fork.
        """
        self._check()
        if self._pipeline is None:
            self._pipeline = Pipeline(self._leave)
        self._submitted += 1
        try:
            self._pipeline.submit(encode, size)
        except BaseException:
            self.cancel()
            raise

    def put(self, departure: Departure, size: int) -> None:
        """Let something leave that is encoded already, and holds about `size` bytes; raises as `submit`."""
        self._check()
        try:
            if self._left == self._submitted:
                departure()
                return
            self._waiting.append((self._submitted, departure))
            self._waiting_size += size
            if self._waiting_size > MAX_WAITING:
                self.settle()
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

    def cancel(self) -> None:
        """Let nothing leave any more. Returns when no block is being encoded, so that the memory they lie in may go."""
        self._spoiled = True
        self._waiting.clear()
        if self._pipeline is not None:
            self._pipeline.cancel()

    def abandon(self) -> None:
        """As `cancel`, without waiting for what runs: for the garbage collector."""
        self._spoiled = True
        self._waiting.clear()
        if self._pipeline is not None:
            self._pipeline.abandon()

    def _check(self) -> None:
        if self._spoiled:
            raise AbortedError("a stream of this file failed or was given up, so the file cannot be continued")

    def _leave(self, departure: Departure) -> None:
        departure()
        self._left += 1
        while self._waiting and self._waiting[0][0] == self._left:
            follower = self._waiting.popleft()[1]
            follower()
        if not self._waiting:
            self._waiting_size = 0
