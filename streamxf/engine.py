"""The workers of the process, and bounds on what they have in hand. It knows nothing of codecs, containers or files.

All streams of a process share one pool of threads, one for each usable CPU: compression, CRC and AES release the GIL,
so threads suffice (AES from cryptography 50 on). A `Pipeline` (`pipeline.py`) is one stream's view of it.

Jobs in flight are bounded for the whole process, however many streams there are: at most ``2 x workers + 2``
unfinished jobs, and `MAX_BYTES_IN_FLIGHT` of memory that jobs, their results and the workers hold. A stream that finds
no room takes out its own oldest result first, and one job of each stream is always admitted, so streams cannot block
each other. A thread is started when there is a job for it, so the memory of threads is bounded by that, too.

An exception may come at any instant in the thread that submits (Ctrl-C, a signal's handler), and the garbage collector
may run this code inside of itself. So no state here takes two steps to change: a change is one call into C, a lock is
held only by code that a later call can repeat, and a job's share is returned when the job is collected, awaited or not.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast
from weakref import ref

from streamxf.errors import AbortedError, ParameterError

T = TypeVar("T")

MAX_BYTES_IN_FLIGHT = 64 * 2**20

VARIABLE = "STREAMXF_WORKERS"

_LOCAL_RANKS = ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE")
_WORKSPACE = 2  # times the bytes of a job, while it is unfinished: the results and workspaces of codecs
_MOST = 4096  # workers
_BUSY = 4  # jobs that may be unfinished at the same time, however much their codecs take


class ForkLock:
    """A lock for each process: the threads that may hold the parent's do not exist in a forked child. Use it as ``with
    lock.here():``. What is entered is a bare lock, so that an interrupt comes before it is taken or when it is sure
    to be released, and never between.
    """

    def __init__(self, make: Callable[[], Any] = threading.Lock) -> None:
        self._make = make
        self._locks = {os.getpid(): make()}

    def here(self) -> Any:
        pid = os.getpid()
        # the dictionary decides which of two threads of a child made it
        return self._locks.get(pid) or self._locks.setdefault(pid, self._make())


def usable_cpus() -> int:
    """The CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_count() -> int:
    """How many workers the process has: ``STREAMXF_WORKERS``, or the CPUs that it may use, at most its share of the
    machine among the ranks that a launcher has started there. Raises ParameterError.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted:
        if not wanted.isdecimal() or not 0 < int(wanted) <= _MOST:
            raise ParameterError(f"{VARIABLE}={wanted:.80} in the environment must be a whole number from 1 to {_MOST}")
        return int(wanted)
    ranks = next((int(text) for name in _LOCAL_RANKS if (text := os.environ.get(name, "")).isdecimal()), 1)
    return max(1, min(usable_cpus(), (os.cpu_count() or 1) // max(1, ranks)))


class Job(Generic[T]):
    """One call, made at most once, by a worker; one thread waits for it.

    The lock is a bare one and is taken from its birth until the call is over. ``concurrent.futures.Future`` waits on a
    condition, whose Python code an interrupt can leave with its lock taken, on which the worker would then hang.

    - `size`: bytes that the job or its result hold.
    - `owner`: the call is not made once this is gone. Cancelling in its `__del__` would drop an interrupt there.
    - `finished`: whether it will not run any more, nor is running.
    """

    def __init__(self, call: Callable[[], T], size: int = 0, owner: ref[Any] | None = None) -> None:
        self.size = size
        self._owner = owner
        self.finished = False
        self._call: Callable[[], T] | None = call
        self._begun = False
        self._cancelled = False
        self._result: T | None = None
        self._error: BaseException | None = None
        self._over = threading.Lock()
        self._over.acquire()

    def run(self, finished: Callable[[Job[Any]], None]) -> None:
        """Make the call, unless it was cancelled, and say that it is over; called once."""
        # First this, then the look at the flag: `wait` goes the other way round. An interrupt comes in calls only, so a
        # job that has begun always gets to its end.
        self._begun = True
        try:
            if not self._cancelled and (self._owner is None or self._owner() is not None):
                self._result = cast("Callable[[], T]", self._call)()
        except BaseException as error:
            if error.__traceback__ is not None:
                error.__traceback__ = error.__traceback__.tb_next  # this frame, which would keep the job alive
            self._error = error
        self._call = None
        self.finished = True
        self._over.release()
        finished(self)

    def cancel(self) -> None:
        """Let the call not be made if it has not begun."""
        self._cancelled = True

    def wait(self) -> None:
        """Wait until a cancelled job neither runs nor will; it then holds none of its caller's memory."""
        if self._begun and not self.finished:
            self._over.acquire()
        self._call = self._error = None

    def result(self, timeout: float = -1) -> T:
        """Wait for the call at most `timeout` seconds, and return its result or raise its error; or TimeoutError."""
        if not self.finished and not self._over.acquire(timeout=timeout):
            raise TimeoutError(f"the job did not end within {timeout} s")
        error, self._error = self._error, None  # its traceback is about to refer back to here
        if error is not None:
            try:
                raise error
            finally:
                del error
        result, self._result = self._result, None
        return cast("T", result)


class _Tally:
    """Jobs' shares of one resource. Each change is one call into C; an entry goes when its job is collected."""

    def __init__(self) -> None:
        self._held: dict[ref[Job[Any]], int] = {}

    def add(self, job: Job[Any], amount: int) -> None:
        self._held[ref(job, self._held.pop)] = amount

    def remove(self, job: Job[Any]) -> None:
        """Return the share of `job`; doing so twice is fine."""
        self._held.pop(ref(job), None)

    def total(self) -> int:
        return sum(list(self._held.values()))  # the list is made in one go; other threads add and remove meanwhile

    def __len__(self) -> int:
        return len(self._held)


class JobBudget:
    """Counts the unfinished jobs of the whole process, and the bytes that jobs and results hold.

    Results that wait to be taken out count as bytes only: a stream that is written to now and then, and holds finished
    blocks meanwhile, takes no other stream's turn.
    """

    def __init__(self, jobs: int, size: int) -> None:
        self.limit_jobs = jobs
        self.limit_bytes = size
        # reentrant: the garbage collector, or a signal's handler, may use a stream in the middle of `take`
        self._lock = threading.RLock()
        self._unfinished = _Tally()
        self._held = _Tally()
        self.peak_jobs = 0
        self.peak_bytes = 0

    @property
    def jobs(self) -> int:
        """How many wait or run."""
        return len(self._unfinished)

    @property
    def bytes(self) -> int:
        """Memory that jobs and their results hold."""
        return self._held.total()

    def take(self, job: Job[Any], *, always: bool) -> bool:
        """Take room for `job` if there is some, or if `always`."""
        with self._lock:
            held = self.bytes + job.size
            if not always and (self.jobs >= self.limit_jobs or held > self.limit_bytes):
                return False
            workspaces = _WORKSPACE * (self._unfinished.total() + job.size)
            if not always and self.jobs >= _BUSY and held + workspaces > self.limit_bytes:
                return False
            self._unfinished.add(job, job.size)
            self._held.add(job, job.size)
            self.peak_jobs = max(self.peak_jobs, self.jobs)
            self.peak_bytes = max(self.peak_bytes, held)
            return True

    def finished(self, job: Job[Any]) -> None:
        self._unfinished.remove(job)

    def give(self, job: Job[Any]) -> None:
        """Return all room that `job` has; doing so twice is fine."""
        self._unfinished.remove(job)
        self._held.remove(job)


class Engine:
    """The process's worker threads and the budget that all streams share.

    The threads are plain daemons over a queue, not a `ThreadPoolExecutor`: that takes no work while the interpreter
    exits, though saves in the background may still be under way; it holds a lock while it takes work, on which a signal
    handler that saves would wait forever; and it queues a job even when it fails because no thread can be started.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.budget = JobBudget(2 * workers + 2, MAX_BYTES_IN_FLIGHT)
        self.pid = os.getpid()
        self._in_sinks = deque[None]()  # one for each worker that is in a stream's sink, and so has no job
        self._jobs: SimpleQueue[Job[Any]] = SimpleQueue()
        self._started = 0
        self._starting = threading.RLock()

    def submit(self, job: Job[T]) -> Job[T]:
        """Run `job` in a worker; here where no thread can start, and inside of one, which could wait for itself."""
        if in_worker() or not self._start_workers():
            job.run(self.budget.finished)
        else:
            self._jobs.put(job)
        return job

    def enter_sink(self) -> bool:
        """Whether the worker that asks may call a stream's sink: one is left for jobs, whatever sinks wait for."""
        self._in_sinks.append(None)
        if len(self._in_sinks) < self.workers:
            return True
        self._in_sinks.pop()
        return False

    def leave_sink(self) -> None:
        self._in_sinks.pop()

    def _start_workers(self) -> bool:
        wanted = min(self.workers, max(1, self.budget.jobs + len(self._in_sinks)))
        if self._started >= wanted:
            return True
        with self._starting:
            while self._started < wanted:
                name = f"streamxf_{self._started}"
                arguments = (self._jobs, self.budget.finished)
                if not _start(threading.Thread(target=_work, args=arguments, name=name, daemon=True)):
                    return self._started > 0  # those that run are enough
                self._started += 1
        return True


_here = threading.local()


def in_worker() -> bool:
    return getattr(_here, "worker", False)


def _work(jobs: SimpleQueue[Job[Any]], finished: Callable[[Job[Any]], None]) -> None:
    _here.worker = True
    while True:
        job = jobs.get()
        job.run(finished)
        del job  # and its result, however long the next one takes to come


_engine: Engine | None = None
_making = threading.RLock()  # a signal's handler may need the engine, too


def shared() -> Engine:
    """The process's engine, made when it is first needed."""
    global _engine
    if _engine is None:
        with _making:
            made = Engine(worker_count())
            if _engine is None:
                _engine = made
    return _engine


def _forget_after_fork() -> None:
    # the child has none of the parent's threads, and a copy of its locks in whatever state they were
    global _engine, _making
    _engine = None
    _making = threading.RLock()


os.register_at_fork(after_in_child=_forget_after_fork)


def side_by_side(calls: Iterable[Callable[[], object]], threads: int, failures: list[BaseException]) -> None:
    """Make calls in up to `threads` threads, this one among them. Returns when all have stopped, or raises the first
    failure; an interrupt of this thread is one, too.

    For files: each thread waits for storage, and has workers do the blocks. A worker would do them on the spot.

    - `failures`: in the order of time. Once there is one no call begins, and those that were begun should end soon.
    """
    waiting = deque(calls)
    begun, over = list[None](), list[None]()
    news: SimpleQueue[None] = SimpleQueue()

    def work() -> None:
        while not failures:
            try:
                call = waiting.popleft()
            except IndexError:  # another thread took the last one
                return
            try:
                call()
            except BaseException as error:
                failures.append(error)

    def help_out() -> None:
        begun.append(None)
        try:
            work()
        finally:
            over.append(None)
            news.put(None)

    helpers = (threading.Thread(target=help_out, name=f"streamxf-file_{n}") for n in range(1, threads))
    first = True
    while True:  # an interrupt may come at any place, and even then the threads have to stop first
        try:
            if first:
                first = False
                all(map(_start, helpers))  # until one cannot be started
                work()
            # No join: an interrupt of it makes Python 3.11 and 3.12 believe that a thread has ended which has not. One
            # that begins only now finds nothing to do.
            while len(over) < len(begun):
                news.get()
            break
        except BaseException as error:
            failures.append(error)
    if failures:
        # what only stopped because something else failed says so; the cause is what people need
        cause = next((error for error in failures if not isinstance(error, AbortedError)), failures[0])
        waiting.clear()  # for a thread that begins only now
        failures.clear()
        try:
            raise cause
        finally:
            del cause  # or it would lead to itself and to all memory that was in use, until the garbage is collected


def in_thread(call: Callable[[], T], name: str) -> Future[T]:
    """Make a call in a daemon of its own; here, where no thread can be started."""
    made = Future[T]()

    def work() -> None:
        try:
            made.set_result(call())
        except BaseException as error:  # which is raised where it is waited for
            made.set_exception(error)

    if not _start(threading.Thread(target=work, name=name, daemon=True)):
        work()
    return made


def finalize_apart(call: Callable[..., object], *given: Any) -> None:
    """Make a finalizer's call: in another thread if the collector runs in that of fsspec's loop, which it waits for."""
    if threading.current_thread() in getattr(sys.modules.get("fsspec.asyn"), "iothread", ()):
        in_thread(partial(call, *given), "streamxf_finalizer")
    else:
        call(*given)


def _start(thread: threading.Thread) -> bool:
    """Start it, or return False where no more threads are to be had, and others do its work."""
    try:
        thread.start()
    except RuntimeError as error:
        if "new thread" in str(error):
            return False
        # else an interrupt, while `start` waited to see it run, left a condition that could not release its lock
        raise error.__context__ or error from None
    return True
