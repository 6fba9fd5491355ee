"""A bounded, ordered, parallel map over blocks: jobs run in any worker (`engine.py`), results come out in the order of
submission, and the first error cancels the rest. What is said there of interrupts holds here, too.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Generic, Self, TypeVar
from weakref import ref

from streamxf.engine import Job, in_worker, shared
from streamxf.errors import AbortedError

T = TypeVar("T")

_IN_A_ROW = 64  # results that a worker gives a sink before it looks for other jobs


class Pipeline(Generic[T]):
    """One stream's jobs: run in parallel, with results in the order of submission; as a context, it cancels the rest.

    - `peak_jobs`: the most jobs that this stream had in flight: submitted and not handed out.
    """

    def __init__(self) -> None:
        self._engine = shared()
        self._flying: deque[Job[T]] = deque()
        self.peak_jobs = 0

    def submit(self, call: Callable[[], T], size: int) -> list[T]:
        """Make `call`, which holds about `size` bytes, in a worker. Returns the results of earlier jobs: those that are
        there, and those that had to be waited for until there was room.

        Raises what an earlier job raised, when no other is running any more, and AbortedError after a fork.
        """
        if self._engine.pid != os.getpid():
            raise AbortedError("this stream was opened before a fork and cannot be used in the child process")
        return self._enter(self._job(call, size), self._engine.submit)

    def put(self, result: T, size: int) -> list[T]:
        """Queue a finished result of about `size` bytes, as `submit`: for blocks quicker than waking a worker."""
        if not self._flying:
            return [result]
        return self._enter(self._job(lambda: result, size), lambda job: job.run(self._engine.budget.finished))

    def _job(self, call: Callable[[], T], size: int) -> Job[T]:
        return Job(call, size, ref(self))

    def _enter(self, job: Job[T], start: Callable[[Job[T]], object]) -> list[T]:
        try:
            results = self.collect()
            self._flying.append(job)  # from here on whoever cancels returns its room
            while not self._engine.budget.take(job, always=self._flying[0] is job):
                results += self._take_out()
            self.peak_jobs = max(self.peak_jobs, len(self._flying))
            start(job)
        except BaseException:
            self.cancel()
            raise
        return results

    def narrow(self, most: int) -> list[T]:
        """Wait until at most `most` jobs are not handed out, and give the results of the others; raises as `submit`.

        The budget lets finished ones wait by their bytes. Where little memory matters more than that a job which takes
        long blocks nothing, this keeps them few.
        """
        return self._taken_while(lambda: len(self._flying) > most)

    def collect(self) -> list[T]:
        """The results that are there, as far as no earlier one is missing; raises as `submit`."""
        return self._taken_while(lambda: bool(self._flying) and self._flying[0].finished)

    def results(self) -> Iterator[T]:
        """Wait for all jobs, and give their results one by one; raises as `submit`."""
        while self._flying:
            yield from self.narrow(max(0, len(self._flying) - 1))  # a sink's workers take out, too

    def __len__(self) -> int:
        return len(self._flying)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def cancel(self) -> None:
        """Drop all jobs. Returns, also after an interrupt, once none is running and the memory they work on may go."""
        interrupt: BaseException | None = None
        while self._flying:
            try:
                if self._engine.pid != os.getpid():
                    self._flying.clear()
                elif in_worker():  # the garbage collector, in the middle of one of these jobs
                    self.abandon()
                else:
                    self._stop()
            except BaseException as error:  # a block is soon done; then the interrupt goes its way
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def abandon(self) -> None:
        """Drop all jobs without waiting; for the garbage collector, which may call from within one of them."""
        for job in list(self._flying):
            job.cancel()
        self._flying.clear()  # their room is returned as each one goes

    def _stop(self) -> None:
        for job in list(self._flying):
            job.cancel()
        while self._flying:
            job = self._flying[0]
            job.wait()
            self._engine.budget.give(job)
            if self._flying and self._flying[0] is job:
                self._flying.popleft()

    def _taken_while(self, condition: Callable[[], bool]) -> list[T]:
        results = list[T]()
        try:
            while condition():
                results += self._take_out()
        except BaseException:
            self.cancel()
            raise
        return results

    def _take_out(self) -> list[T]:
        """Wait for the oldest job."""
        job = self._flying[0]
        result = job.result()
        self._flying.popleft()
        self._engine.budget.give(job)
        return [result]


class _Watched(Job[T]):
    """A job after which its pipeline looks whether it is next. One that a worker did counts as unfinished until the
    sink has had the result: that may hold all the memory that codecs took for it.
    """

    def run(self, finished: Callable[[Job[Any]], None]) -> None:
        super().run((lambda job: None) if in_worker() else finished)
        if self._owner is not None and (pipeline := self._owner()) is not None:
            pipeline.look()


class SinkPipeline(Pipeline[T]):
    """A pipeline that ends in a sink, which takes the results: in order, one at a time, from the worker that has just
    finished the next one. The thread that submits need not wake up for each, and is no bottleneck.

    Whatever the sink raises comes from the next call here, and the sink gets nothing more. `submit` and `put` return no
    results but those that found nothing before them, for the caller to pass on; `results` waits until the sink had all.

    - `sink`: a method. What is in flight does not keep its object alive.
    - `waits`: whether the sink waits for something rather than computes, such as a network. Then the thread that
      submits calls it, and no worker. It may change at any time.
    """

    def __init__(self, sink: Callable[[T], object], *, waits: bool = False) -> None:
        super().__init__()
        self.waits = waits
        self._owner, self._sink = ref(sink.__self__), sink.__func__  # type: ignore[attr-defined]
        self._turn = threading.Lock()  # held by the thread that calls the sink
        self._news = threading.Lock()  # released when the thread that submits has reason to look again
        self._entered = False  # the sink has begun on a result; it stays so if that fails
        self._over = False  # the sink gets nothing more
        self.failure: BaseException | None = None  # of a worker in the sink, until it is raised

    def put(self, result: T, size: int) -> list[T]:
        self._check()
        return super().put(result, size)

    def collect(self) -> list[T]:
        """Nothing; raises as `submit`."""
        self.look()
        if (failure := self.failure) is not None:
            try:
                self.cancel()
                raise failure
            finally:
                del failure  # whose traceback refers back to here
        return []

    def look(self) -> None:
        """Give the sink what is there; called by whoever has finished a job."""
        if in_worker():
            self._look_in_worker()
            return
        while self._next_is_there() and not self._turn.locked():  # or whoever holds it looks again
            with self._turn:
                self._pass_on()

    def cancel(self) -> None:
        self._over = True
        super().cancel()
        self.failure = None  # whose traceback refers back to here

    def abandon(self) -> None:
        self._over = True
        super().abandon()

    def _look_in_worker(self) -> None:
        """A worker waits neither for the turn, which a thread may hold that was interrupted by a signal's handler that
        saves, nor with a sink that waits; and another stream gets its turn some time.
        """
        for _ in range(_IN_A_ROW):
            if not self._next_is_there():
                return
            if self.waits or not self._engine.enter_sink():
                break
            mine = self._turn.acquire(blocking=False)
            try:
                if mine:
                    self._pass_on()
            except BaseException as error:
                self.failure = error
            finally:
                self._engine.leave_sink()
                self._tell()
                if mine:
                    self._turn.release()
            if not mine:
                return
        self._tell()

    def _pass_on(self) -> None:
        """Give the sink one result, if it is there; called by the thread whose turn it is."""
        if not self._next_is_there():
            return
        owner = self._owner()
        if owner is None:
            self._over = True
            return
        self._entered = True
        job = self._flying[0]
        self._sink(owner, job.result())
        self._flying.popleft()
        self._engine.budget.give(job)
        self._entered = False

    def _next_is_there(self) -> bool:
        try:
            return self._flying[0].finished and not self._entered and not self._over
        except IndexError:
            return False

    def _tell(self) -> None:
        with suppress(RuntimeError):  # it has been released already
            self._news.release()

    def _check(self) -> None:
        if self._over:
            raise AbortedError("this stream failed or was given up")

    def _job(self, call: Callable[[], T], size: int) -> Job[T]:
        self._check()
        return _Watched(call, size, ref(self))

    def _take_out(self) -> list[T]:
        if self._next_is_there() and not self._turn.locked():
            with self._turn:
                self._pass_on()
        else:  # whoever finishes the next one, or holds the turn, tells
            self._news.acquire()
        return self.collect()

    def _stop(self) -> None:
        with self._turn:
            """No thread is in the sink any more, and none will be."""
        super()._stop()


def run_jobs(jobs: Iterable[tuple[Callable[[], None], int]]) -> None:
    """Make calls in workers, each of which takes so many bytes of memory, and wait for them."""
    with Pipeline[None]() as pipeline:
        for job, size in jobs:
            pipeline.submit(job, size)
        for _ in pipeline.results():
            """Each leaves its result where it belongs."""
