"""A bounded, ordered, parallel map over blocks. It knows nothing of codecs, containers or files.

All streams of a process share one pool of threads, one for each usable CPU: compression, CRC and AES release the GIL,
so threads suffice. A `Pipeline` is one stream's view of it: jobs run in any order, results come out in the order of
submission, and the first error cancels the rest.

What is in flight is bounded for the whole process, however many streams there are: at most ``2 x workers + 2`` jobs,
and `MAX_BYTES_IN_FLIGHT`. A stream that finds no room takes out its own oldest result first, and one job of each stream
is always let in, so streams cannot block each other.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from streamxf.errors import AbortedError

T = TypeVar("T")

MAX_BYTES_IN_FLIGHT = 64 * 2**20


def usable_cpus() -> int:
    """The CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Budget:
    """Counts the jobs and bytes in flight in the whole process."""

    def __init__(self, jobs: int, size: int) -> None:
        self.limit_jobs = jobs
        self.limit_bytes = size
        # reentrant: the garbage collector may abandon a stream in the middle of `take`
        self._lock = threading.RLock()
        self.jobs = 0
        self.bytes = 0
        self.peak_jobs = 0
        self.peak_bytes = 0

    def take(self, size: int, *, always: bool) -> bool:
        """Take room for one more job of `size` bytes if there is some, or if `always`."""
        with self._lock:
            if not always and (self.jobs >= self.limit_jobs or self.bytes + size > self.limit_bytes):
                return False
            self.jobs += 1
            self.bytes += size
            self.peak_jobs = max(self.peak_jobs, self.jobs)
            self.peak_bytes = max(self.peak_bytes, self.bytes)
            return True

    def give(self, size: int) -> None:
        """Return the room of one job."""
        with self._lock:
            self.jobs -= 1
            self.bytes -= size

    def reset_peak(self) -> None:
        """Start to count the peaks anew."""
        with self._lock:
            self.peak_jobs, self.peak_bytes = self.jobs, self.bytes


class Engine:
    """The process's worker threads and the budget that all streams share.

    The threads are plain daemons over a queue, not a `ThreadPoolExecutor`: that takes no work while the interpreter
    exits, though saves in the background may still be under way; it holds a lock while it takes work, on which a signal
    handler that saves would wait for ever; and it queues a job even when it fails because no thread can be started.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.budget = Budget(2 * workers + 2, MAX_BYTES_IN_FLIGHT)
        self.pid = os.getpid()
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._started = 0
        self._starting = threading.RLock()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Run `job` in a worker.

        Or run it here: where no thread can be started, and inside of a worker, which could otherwise wait for itself (a
        codec may use a stream of its own).
        """
        future: Future[T] = Future()
        if in_worker() or not self._start_workers():
            _run(future, job)
        else:
            self._jobs.put((future, job))
        return future

    def _start_workers(self) -> bool:
        if self._started == self.workers:
            return True
        with self._starting:
            try:
                while self._started < self.workers:
                    name = f"streamxf_{self._started}"
                    threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True).start()
                    self._started += 1
            except RuntimeError:  # the system's limit on threads; those that run are enough
                return self._started > 0
        return True


_here = threading.local()


def in_worker() -> bool:
    """Whether this thread is a worker."""
    return getattr(_here, "worker", False)


def _work(jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]]]) -> None:
    _here.worker = True
    while True:
        _run(*jobs.get())


def _run(future: Future[T], job: Callable[[], T]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(job())
        except BaseException as error:
            future.set_exception(error)


_engine: Engine | None = None
_making = threading.Lock()


def shared() -> Engine:
    """The process's engine, made when it is first needed."""
    global _engine
    if _engine is None:
        with _making:
            if _engine is None:
                _engine = Engine(usable_cpus())
    return _engine


def _forget_after_fork() -> None:
    # the child has none of the parent's threads, and a copy of its locks in whatever state they were
    global _engine, _making
    _engine = None
    _making = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


class Pipeline(Generic[T]):
    """One stream's jobs: run in parallel, taken out in order.

    Parameters
    ----------
    sink : callable
        Gets each result, in the order of submission, in the thread that calls `submit` and `settle`.
    """

    def __init__(self, sink: Callable[[T], None]) -> None:
        self._sink = sink
        self._engine = shared()
        self._flying: deque[tuple[Future[T], int]] = deque()

    def submit(self, job: Callable[[], T], size: int) -> None:
        """Run `job`, which holds about `size` bytes, in a worker; may first wait for earlier ones and hand out their
        results.

        Raises
        ------
        Exception
            Whatever an earlier job or the sink raised. All other jobs are then cancelled and none is running any more.
        AbortedError
            After a fork.
        """
        if self._engine.pid != os.getpid():
            raise AbortedError("this stream was opened before a fork and cannot be used in the child process")
        try:
            while self._flying and self._flying[0][0].done():
                self._take_out()
            while not self._engine.budget.take(size, always=not self._flying):
                self._take_out()
            try:
                self._flying.append((self._engine.submit(job), size))
            except BaseException:
                self._engine.budget.give(size)
                raise
        except BaseException:
            self.cancel()
            raise

    def settle(self) -> None:
        """Wait for all jobs and hand out their results; raises as `submit`."""
        try:
            while self._flying:
                self._take_out()
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Drop all jobs. Returns when none is running, so that the memory they work on may go."""
        if self._engine.pid != os.getpid():
            self._flying.clear()
            return
        if in_worker():  # the garbage collector, in the middle of one of these jobs
            self.abandon()
            return
        for future, _ in self._flying:
            future.cancel()
        wait([future for future, _ in self._flying])
        while self._flying:
            self._engine.budget.give(self._flying.popleft()[1])

    def abandon(self) -> None:
        """Drop all jobs without waiting for those that run.

        For the garbage collector, which may call from within one of them.
        """
        flying, self._flying = self._flying, deque()
        if self._engine.pid != os.getpid():
            return  # the futures' locks are copies, in whatever state they were at the fork
        for future, size in flying:
            future.cancel()
            future.add_done_callback(partial(_give_back, self._engine.budget, size))

    def __del__(self) -> None:
        self.abandon()

    def _take_out(self) -> None:
        future, size = self._flying[0]
        result = future.result()
        self._flying.popleft()
        try:
            self._sink(result)
        finally:
            self._engine.budget.give(size)


def _give_back(budget: Budget, size: int, _: object) -> None:
    budget.give(size)
