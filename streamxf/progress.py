"""`Progress`: receives the progress of long operations; each item's share in it; and `ProgressBar`, on the terminal.

Working threads only count. The bar's own thread reads the counts from time to time and draws, so the work never waits
for the terminal, and operations of less than a second never even import rich.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Hashable
from importlib.util import find_spec
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from streamxf.errors import ParameterError, UnsupportedError
from streamxf.wording import rate_text, size_text

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import Task

_PATIENCE = 1.0  # seconds; what is over by then needs no bar
_TICK = 0.1
_WIDTH = 24  # of the bar itself: with all that is beside it a line fits into 80 columns

_drawing = threading.Lock()  # two bars would write over each other; the second one appears when the first has gone


class Progress(Protocol):
    """Receives the progress of functions with ``progress=``, in bytes. Any thread may call it."""

    def expect(self, count: int) -> None:
        """Announce `count` more bytes of work."""

    def advance(self, count: int) -> None:
        """Report `count` bytes as done."""


class Share:
    """The share of one item in a `Progress`, if there is one, which expects `size` already: in the end exactly `size`,
    however often parts of it are read, and however much is read around them. Any thread may call it.
    """

    __slots__ = ("_left", "_lock", "_progress")

    def __init__(self, progress: Progress | None, size: int) -> None:
        self._progress = progress
        self._left = size
        self._lock = threading.Lock()

    @classmethod
    def announced(cls, progress: Progress | None, size: int) -> Share:
        """The same, of which `progress` does not know yet."""
        if progress is not None:
            progress.expect(size)
        return cls(progress, size)

    def advance(self, count: int) -> None:
        with self._lock:
            count = min(count, self._left)
            self._left -= count
        if count and self._progress is not None:
            self._progress.advance(count)

    def finish(self) -> None:
        if self._left:
            self.advance(self._left)


class Shares:
    """The shares of items that are processed one after the other. `sizes`, by item, is used up."""

    def __init__(self, progress: Progress | None, sizes: dict[Hashable, int]) -> None:
        self._progress = progress
        self._left = sizes
        self._current = Share(progress, 0)
        if progress is not None:
            progress.expect(sum(sizes.values()))

    def begin(self, item: Hashable) -> Share:
        """Begin an item: the one before is done but for what is under way; one that comes again counts for nothing."""
        self._current.finish()
        self._current = Share(self._progress, self._left.pop(item, 0))
        return self._current

    def finish(self) -> None:
        """Report everything as done, items that were never begun included."""
        self._current.finish()
        Share(self._progress, sum(self._left.values())).finish()
        self._left.clear()


class ProgressBar:
    """A `Progress` on the terminal: bytes, rate and time left. Raises UnsupportedError if rich is not installed.

    It appears after a second, and only if stderr is a terminal. One line stays after success, and nothing after an
    exception. Any number of threads may report to it.

        with ProgressBar("Verifying") as bar:
            report = streamxf.verify(path, progress=bar)
    """

    def __init__(self, title: str) -> None:
        check_installed()
        self._title = title
        self._counting = threading.RLock()  # reentrant: a signal's handler may count, too
        self._done = self._expected = 0
        self._over = threading.Event()
        self._failed = False
        self._thread: threading.Thread | None = None
        self._begin = 0.0

    def expect(self, count: int) -> None:
        """Announce `count` more bytes of work."""
        with self._counting:
            self._expected += count

    def advance(self, count: int) -> None:
        """Report `count` bytes as done."""
        with self._counting:
            self._done += count

    def __enter__(self) -> ProgressBar:
        self._begin = monotonic()
        if is_terminal(sys.stderr):
            thread = threading.Thread(target=self._watch, args=(sys.stderr,), name="streamxf-bar", daemon=True)
            try:
                thread.start()
                self._thread = thread
            except RuntimeError:
                """There are no more threads to be had; the work goes on without a bar."""
            except BaseException:  # an interrupt, after which `__exit__` would not be called
                self._over.set()
                raise
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self._failed = kind is not None
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, terminal: Any) -> None:
        """What the bar's own thread does."""
        if self._over.wait(_PATIENCE):
            return
        while not _drawing.acquire(blocking=False):
            if self._over.wait(_TICK):
                return
        try:
            self._draw(terminal)
        except (OSError, ValueError):
            """The terminal is gone, or stderr was closed."""
        finally:
            _drawing.release()

    def _draw(self, terminal: Any) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        console = Console(file=terminal)
        if console.is_dumb_terminal:  # it could only print line after line
            return
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(_WIDTH),
            TextColumn("{task.fields[bytes]}"),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
        )
        # others may print meanwhile, to stdout too, and what they print belongs where they sent it
        progress = Bars(*columns, console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        progress.add_task(self._title, total=None, bytes="", rate="")
        task = progress.tasks[0]
        task.start_time = self._begin
        self._update(progress, task)
        with progress:
            console.show_cursor()  # a process that is killed could not restore it
            while not self._over.wait(_TICK):
                self._update(progress, task)
                progress.refresh()
            self._update(progress, task, over=True)
            task.finished_time = task.elapsed  # of all the work: a save ends when the disk has the bytes
            progress.live.transient = self._failed

    def _update(self, progress: Bars, task: Task, *, over: bool = False) -> None:
        done, expected = self._done, self._expected
        if over and not expected:
            expected = done
        amount = size_text(done) + (f" of {size_text(expected)}" if expected else "")
        average = done / (monotonic() - self._begin)
        rate = average if over else task.speed or average
        progress.update(task.id, completed=done, total=expected or None, bytes=amount, rate=rate_text(rate))


def check_installed() -> None:
    """Raise UnsupportedError if rich, which draws the bar, is not installed."""
    if find_spec("rich") is None:
        raise UnsupportedError("a progress bar needs rich: pip install 'streamxf[cli]', or leave progress=True out")


def check_progress(progress: Any) -> Any:
    """Return `progress`, a bool or `Progress`. ParameterError if it cannot be used, UnsupportedError without rich."""
    if progress is True:
        check_installed()
    elif progress is not False and not all(callable(getattr(progress, name, None)) for name in ("expect", "advance")):
        raise ParameterError(
            f"progress={progress!r:.80}: it is True, False, or an object with the methods expect and advance"
        )
    return progress


def is_terminal(stream: Any) -> bool:
    """Whether `stream` is a terminal; it may be None, closed, or any replacement of ``sys.stderr``."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False
