"""`ProgressBar`: progress on the terminal.

Working threads only count. The bar's own thread reads the counts from time to time and draws, so the work never waits
for the terminal, and operations of less than a second never even import rich.
"""

from __future__ import annotations

import sys
import threading
from importlib.util import find_spec
from time import monotonic
from typing import TYPE_CHECKING, Any

from streamxf.errors import UnsupportedError
from streamxf.wording import rate_text, size_text

if TYPE_CHECKING:
    from rich.progress import Progress, Task

_PATIENCE = 1.0  # seconds; what is over by then needs no bar
_TICK = 0.1
_WIDTH = 24  # of the bar itself: with all that is beside it a line fits into 80 columns

_drawing = threading.Lock()  # two bars would write over each other; the second one appears when the first has gone


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
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

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
        progress = Progress(*columns, console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
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

    def _update(self, progress: Progress, task: Task, *, over: bool = False) -> None:
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


def is_terminal(stream: Any) -> bool:
    """Whether `stream` is a terminal; it may be None, closed, or any replacement of ``sys.stderr``."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False
