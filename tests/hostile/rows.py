"""A row of the fault matrix: runs its cases, judges what comes out, and remembers the worst of time and memory."""

import os
import resource
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from torch.distributed.checkpoint.api import CheckpointException

from streamxf.errors import StreamxfError
from tests.dcp.helpers import unwrapped
from tests.failing import fails_with

T = TypeVar("T")

SPARED = 10  # how many times fewer cases are a sample
CPU_SECONDS = 1.0  # of one case, in all threads
HANGS = 60.0  # seconds of the clock, far above what a busy machine makes of CPU_SECONDS
MEBIBYTE = 2**20


class Hung(BaseException):
    """A case did not end. No Exception, so that nothing takes it for a refusal."""


class Row:
    """What one test tries of a row.

    Attributes
    ----------
    cases, silent, untyped : int
        Tried; loaded though they must not, or with wrong data; ended in something else than a `StreamxfError`.
    seconds : float
        CPU time of the slowest case.
    mebibytes : float
        By which resident memory grew during any case, at its peak.

    Parameters
    ----------
    most : float
        What `mebibytes` may be.
    every : bool
        Whether every case is tried, and not a sample.
    """

    def __init__(self, name: str, most: float, every: bool) -> None:
        self.name = name
        self.most = most
        self.every = every
        self.cases = self.silent = self.untyped = 0
        self.seconds = 0.0
        self.mebibytes = 0.0

    def share(self, cases: Iterable[T], one_in: int = 1) -> Iterator[T]:
        """All cases, or one in `one_in` times `SPARED` and one, so that every bit of a byte has its turn."""
        return islice(cases, 0, None, 1 if self.every else SPARED * one_in + 1)

    def refuse(
        self,
        what: object,
        action: Callable[..., Any],
        *arguments: Any,
        kind: type[StreamxfError] | tuple[type[StreamxfError], ...] = StreamxfError,
        **options: Any,
    ) -> StreamxfError:
        """Try a case that must end in a typed error, one of `kind`; return it."""
        error = self._try(what, partial(action, *arguments, **options))[1]
        if error is None:
            self.silent += 1
            raise AssertionError(f"{self.name}, {what!r:.200}: it loaded")
        assert isinstance(error, kind), f"{self.name}, {what!r:.200}: {error!r}"
        return error

    def refuse_or_equal(
        self, what: object, right: T, action: Callable[..., T], *arguments: Any, **options: Any
    ) -> StreamxfError | None:
        """Try a case that may also give exactly `right`, because the fault may not matter; return the error if any."""
        found, error = self._try(what, partial(action, *arguments, **options))
        if error is None and found != right:
            self.silent += 1
            raise AssertionError(f"{self.name}, {what!r:.200}: it loaded wrong data")
        return error

    def _try(self, what: object, action: Callable[[], T]) -> tuple[T | None, StreamxfError | None]:
        self.cases += 1
        before = MEMORY.forget_peak()
        found, error, seconds = _attempt(action)
        grown = (MEMORY.peak() - before) / MEBIBYTE
        if seconds >= CPU_SECONDS:  # on a busy machine anything may take long, once
            found, error, seconds = _attempt(action)
        self.seconds = max(self.seconds, seconds)
        self.mebibytes = max(self.mebibytes, grown)
        assert seconds < CPU_SECONDS, f"{self.name}, {what!r:.200}: {seconds:.1f} seconds of CPU time"
        assert grown <= self.most, f"{self.name}, {what!r:.200}: took {grown:.0f} MiB, {self.most} are allowed"
        if error is not None and not isinstance(error, StreamxfError):
            self.untyped += 1
            raise AssertionError(f"{self.name}, {what!r:.200}: not a typed error: {error!r}") from error
        return found, error


def _attempt(action: Callable[[], T]) -> tuple[T | None, BaseException | None, float]:
    """What `action` returns or raises, and its CPU time in seconds."""
    found, error = None, None
    begin = time.process_time()
    try:
        with _alarm():
            found = action()
    except CheckpointException as wrapper:
        error = unwrapped(wrapper)
    except Exception as raised:
        error = raised
    return found, error, time.process_time() - begin


def six(value: int, bits: int, *, limit: int | None = None) -> Sequence[int]:
    """Six hostile values for a field of `bits` that rightly holds `value`: edges of the field, of its limit, of it."""
    top = 2**bits - 1
    wanted = [top, top // 2 + 1, value + 1, value - 1, 0, (limit or top // 2) + 1, top - 1, 1, top // 3, 2, 3]
    found = dict.fromkeys(number for number in wanted if 0 <= number <= top and number != value)
    return list(found)[:6]


@contextmanager
def _alarm() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, fails_with(Hung, f"not over after {HANGS:g} seconds"))
    signal.setitimer(signal.ITIMER_REAL, HANGS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class _ResidentMemory:
    """The peak of this process's resident memory, which Linux forgets on demand. The files stay open: opening them for
    each of many thousand cases would take longer than most cases.
    """

    def __init__(self) -> None:
        process = Path("/proc/self")
        self.known = os.access(process / "clear_refs", os.W_OK)
        if self.known:
            self._clear = os.open(process / "clear_refs", os.O_WRONLY)
            self._pages = os.open(process / "statm", os.O_RDONLY)
            self._status = os.open(process / "status", os.O_RDONLY)

    def forget_peak(self) -> int:
        """Bytes in use, which are the peak from now on."""
        if not self.known:
            return 0
        os.pwrite(self._clear, b"5", 0)
        return int(os.pread(self._pages, 4096, 0).split()[1]) * resource.getpagesize()

    def peak(self) -> int:
        """Bytes."""
        if not self.known:
            return 0
        return int(os.pread(self._status, 4096, 0).partition(b"VmHWM:")[2].split(maxsplit=1)[0]) * 1024


MEMORY = _ResidentMemory()
