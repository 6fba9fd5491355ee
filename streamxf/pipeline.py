"""A bounded, ordered, parallel map over blocks: jobs run in any worker (`engine.py`), results come out in the order of
submission, and the first error cancels the rest. What is said there of interrupts holds here, too.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from streamxf.engine import Job, in_worker, shared
from streamxf.errors import AbortedError

T = TypeVar("T")


class Pipeline(Generic[T]):
    """One stream's jobs: run in parallel, their results handed out in the order of submission.

    - `peak_jobs`: the most jobs that this stream had in flight: submitted and not handed out.
    """

    def __init__(self) -> None:
        self._engine = shared()
        self._flying: deque[Job[T]] = deque()
        self.peak_jobs = 0

    def submit(self, call: Callable[[], T], size: int) -> list[T]:
        """Make `call`, which holds about `size` bytes, in a worker. Returns the results of earlier jobs: those that are
        there, and those that had to be waited for until there was room.

        Raises whatever an earlier job raised, when all others are cancelled and none is running any more, and
        AbortedError after a fork.
        """
        if self._engine.pid != os.getpid():
            raise AbortedError("this stream was opened before a fork and cannot be used in the child process")
        results = self._enter(Job(call, size), self._engine.submit)
        self.peak_jobs = max(self.peak_jobs, len(self._flying))
        return results

    def put(self, result: T, size: int) -> list[T]:
        """Queue a finished result, which holds about `size` bytes; as `submit`. For blocks so small that waking a
        worker would take longer.
        """
        if not self._flying:
            return [result]
        return self._enter(Job(lambda: result, size), lambda job: job.run(self._engine.budget.finished))

    def _enter(self, job: Job[T], start: Callable[[Job[T]], object]) -> list[T]:
        try:
            results = self.collect()
            self._flying.append(job)  # from here on whoever cancels returns its room
            while not self._engine.budget.take(job, always=self._flying[0] is job):
                results.append(self._take_out())
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
            try:
                result = self._take_out()
            except BaseException:
                self.cancel()
                raise
            yield result

    def __len__(self) -> int:
        return len(self._flying)

    def cancel(self) -> None:
        """Drop all jobs. Returns when none is running, so that the memory they work on may go; so does an interrupt
        that comes meanwhile.
        """
        if self._engine.pid != os.getpid():
            self._flying.clear()
            return
        if in_worker():  # the garbage collector, in the middle of one of these jobs
            self.abandon()
            return
        interrupt: BaseException | None = None
        while self._flying:
            try:
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

    def __del__(self) -> None:
        if "_flying" in self.__dict__:  # an interrupt may come while this is made
            self.abandon()

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
        results = []
        try:
            while condition():
                results.append(self._take_out())
        except BaseException:
            self.cancel()
            raise
        return results

    def _take_out(self) -> T:
        job = self._flying[0]
        result = job.result()
        self._flying.popleft()
        self._engine.budget.give(job)
        return result
