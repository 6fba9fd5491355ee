"""The pipeline: results in order, a bounded number in flight, the first error ends it, and nothing blocks for ever."""

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamxf import engine
from streamxf.engine import Engine, Job, JobBudget, worker_count
from streamxf.errors import ParameterError
from streamxf.pipeline import Pipeline
from tests.failing import fails_with
from tests.polling import SECONDS, WatchedLock, at_once, wait_until

WORKERS = 2
LIMIT = 2 * WORKERS + 2


@pytest.fixture(autouse=True)
def own_engine(monkeypatch) -> Engine:
    made = Engine(WORKERS)
    monkeypatch.setattr(engine, "_engine", made)
    yield made
    assert made.budget.jobs == made.budget.bytes == 0, "room was taken and not given back"


def fail(error: BaseException) -> None:
    raise error


def taken(pipeline: Pipeline[Any], calls: Iterable[Callable[[], Any]], size: int = 1) -> list[Any]:
    """What comes of calls, in the order in which it comes."""
    results = []
    for call in calls:
        results += pipeline.submit(call, size)
    return [*results, *pipeline.results()]


@given(pauses=st.lists(st.sampled_from([0, 0, 0, 0.001]), max_size=30))
def test_results_come_in_the_order_of_submission(pauses):
    calls = [partial(lambda number, pause: time.sleep(pause) or number, *pair) for pair in enumerate(pauses)]
    assert taken(Pipeline(), calls) == list(range(len(pauses)))


@given(steps=st.lists(st.tuples(st.booleans(), st.sampled_from([0, 0, 0.001])), max_size=40))
def test_what_is_put_takes_its_turn(steps):
    pipeline: Pipeline[int] = Pipeline()
    results = []
    for number, (there, pause) in enumerate(steps):
        if there:
            results += pipeline.put(number, 1)
        else:
            results += pipeline.submit(partial(lambda number, pause: time.sleep(pause) or number, number, pause), 1)
    assert [*results, *pipeline.results()] == list(range(len(steps)))
    assert len(pipeline) == 0
    assert pipeline.put(-1, 1) == [-1]  # at once, where nothing is before it


def test_what_is_put_behind_a_job_that_takes_long_is_bounded(own_engine):
    gate = threading.Event()
    pipeline: Pipeline[int] = Pipeline()
    pipeline.submit(lambda: gate.wait(60) and 0, 1)
    size = engine.MAX_BYTES_IN_FLIGHT // 4
    for number in range(1, 4):
        assert not pipeline.put(number, size)
    threading.Timer(0.1, gate.set).start()
    results = pipeline.put(4, size)  # waits
    assert results
    assert [*results, *pipeline.results()] == [0, 1, 2, 3, 4]


def test_narrow_waits_until_few_are_left():
    pipeline: Pipeline[int] = Pipeline()
    results = []
    for number in range(6):
        results += pipeline.submit(partial(int, number), 1)
    results += pipeline.narrow(2)
    assert len(pipeline) <= 2
    assert results == list(range(6 - len(pipeline)))
    assert [*results, *pipeline.narrow(0)] == list(range(6))


def test_what_is_there_is_collected_without_waiting(own_engine):
    pipeline: Pipeline[Any] = Pipeline()
    assert pipeline.collect() == []
    go = threading.Event()
    results = pipeline.submit(lambda: 0, 1)
    results += pipeline.submit(lambda: go.wait(60) and 1, 1)
    results += pipeline.submit(lambda: 2, 1)
    while not results:
        results += pipeline.collect()
    assert results == [0]
    go.set()
    while len(pipeline):
        results += pipeline.collect()
    assert results == [0, 1, 2]
    pipeline.submit(partial(fail, ValueError("of the job")), 1)
    with pytest.raises(ValueError, match="of the job"):
        while len(pipeline):
            pipeline.collect()


def test_in_flight_is_bounded(own_engine):
    taken(Pipeline(), [partial(time.sleep, 0.001)] * 100)
    assert 1 < own_engine.budget.peak_jobs <= LIMIT


def test_bytes_in_flight_are_bounded(own_engine):
    taken(Pipeline(), [partial(time.sleep, 0.001)] * 40, engine.MAX_BYTES_IN_FLIGHT // 3)
    assert own_engine.budget.peak_bytes <= engine.MAX_BYTES_IN_FLIGHT
    taken(Pipeline(), [lambda: None], 2 * engine.MAX_BYTES_IN_FLIGHT)  # alone, a job of any size is let in


@pytest.mark.parametrize(("size", "most"), [(2**20, 21), (16 * 2**20, 4)], ids=["usual blocks", "the largest blocks"])
def test_what_many_workers_hold_is_bounded(monkeypatch, size, most):
    """What codecs make of a block, and their workspaces, count as well; and threads without a job are not started."""
    crowd = Engine(96)
    monkeypatch.setattr(engine, "_engine", crowd)
    ran: set[int] = set()
    count, lock, running = 0, threading.Lock(), [0]

    def run() -> None:
        nonlocal count
        with lock:
            count += 1
            running.append(count)
        ran.add(threading.get_ident())
        time.sleep(0.02)
        with lock:
            count -= 1

    taken(Pipeline(), [run] * 100, size)
    assert max(running) == len(ran) == most
    crowd = Engine(96)
    monkeypatch.setattr(engine, "_engine", crowd)
    before = threading.active_count()
    for _ in range(10):
        taken(Pipeline(), [lambda: None], size)
    assert threading.active_count() == before + 1


RANKS = ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE")


@pytest.fixture
def machine(monkeypatch) -> pytest.MonkeyPatch:
    """96 CPUs, all of which the process may use."""
    for name in ("STREAMXF_WORKERS", *RANKS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 96)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(96), raising=False)
    return monkeypatch


@pytest.mark.parametrize("launcher", RANKS)
def test_the_ranks_of_a_machine_share_its_cpus(machine, launcher):
    assert worker_count() == 96
    machine.setenv(launcher, "8")
    assert worker_count() == 12
    machine.setattr("os.sched_getaffinity", lambda pid: range(5), raising=False)
    assert worker_count() == 5
    machine.setenv(launcher, "200")
    assert worker_count() == 1
    machine.setenv(launcher, "8(x2)")  # not a number of ranks
    assert worker_count() == 5
    machine.setenv("STREAMXF_WORKERS", "7")
    assert worker_count() == 7


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "9999999"])
def test_a_number_of_workers_that_cannot_be_is_refused(machine, text):
    machine.setenv("STREAMXF_WORKERS", text)
    with pytest.raises(ParameterError, match=f"STREAMXF_WORKERS={text} in the environment must be a whole number from"):
        worker_count()


def test_the_bound_is_shared_by_many_pipelines_which_do_not_block_each_other(own_engine):
    streams = 12
    results: list[list[int]] = [[] for _ in range(streams)]
    together = threading.Barrier(streams)

    def run(stream: int) -> None:
        together.wait()
        results[stream] += taken(Pipeline(), [partial(int, number) for number in range(50)])

    at_once(run, range(streams))
    assert results == [list(range(50))] * streams
    # each stream may have one job beyond the limit, so that it can go on at all
    assert own_engine.budget.peak_jobs <= LIMIT + streams


@pytest.mark.parametrize("error", [ValueError("a"), MemoryError(), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_the_first_error_surfaces_and_cancels_the_rest(error, monkeypatch):
    ran: list[int] = []
    results: list[int] = []
    blocker = threading.Event()

    def job(number: int) -> int:
        ran.append(number)
        if number > 1:
            blocker.wait(60)
        if number == 1:
            raise error
        return number

    # the later jobs wait until the error was taken out, all are cancelled, and those that run are waited for
    real = Job.wait
    monkeypatch.setattr(Job, "wait", lambda job: blocker.set() or real(job))
    pipeline: Pipeline[int] = Pipeline()
    with pytest.raises(type(error)) as caught:
        for number in range(LIMIT):
            results += pipeline.submit(partial(job, number), 1)
        for number in pipeline.results():
            results.append(number)
    assert caught.value is error
    assert results in ([], [0])  # what was there in the call that raised is dropped with the rest
    after = list(ran)
    meeting = threading.Barrier(WORKERS)
    taken(Pipeline(), [meeting.wait] * WORKERS)  # each worker has done what was before these
    assert ran == after, "jobs went on after the error"
    assert len(ran) < LIMIT
    assert [*pipeline.results()] == []


def test_cancel_waits_for_what_runs():
    begun, done = threading.Event(), threading.Event()

    def job() -> None:
        begun.set()
        time.sleep(0.1)
        done.set()

    pipeline = Pipeline()
    pipeline.submit(job, 1)
    begun.wait(60)
    pipeline.cancel()
    assert done.is_set()


def test_cancelled_jobs_hold_nothing_while_they_are_in_the_queue():
    """The memory that they would have worked on may be mapped, and cannot be closed while anything views it."""
    goes_on, memory = threading.Event(), bytearray(8)
    others, pipeline = Pipeline(), Pipeline()
    for _ in range(WORKERS):
        others.submit(partial(goes_on.wait, 60), 1)
    pipeline.submit(partial(bytes, memoryview(memory)), 1)
    pipeline.cancel()
    memory.clear()  # BufferError while there is a view
    goes_on.set()
    assert [*others.results()] == [True] * WORKERS


def test_an_interrupt_of_cancel_is_raised_when_nothing_runs(monkeypatch):
    done, goes_on = threading.Event(), threading.Event()
    real = Job.wait
    interrupts = [KeyboardInterrupt("first"), KeyboardInterrupt("second")]

    def wait(job: Job[Any]) -> None:
        if interrupts:
            raise interrupts.pop(0)
        goes_on.set()
        real(job)

    monkeypatch.setattr(Job, "wait", wait)
    pipeline: Pipeline[Any] = Pipeline()
    pipeline.submit(lambda: goes_on.wait(60) and done.set(), 1)
    wait_until(lambda: pipeline._flying[0]._begun)
    with pytest.raises(KeyboardInterrupt, match="second"):
        pipeline.cancel()
    assert done.is_set()
    assert len(pipeline) == 0


def test_an_interrupt_while_there_is_no_room_cancels_what_is_in_flight(own_engine, monkeypatch):
    pipeline: Pipeline[None] = Pipeline()
    pipeline.submit(lambda: None, 1)
    monkeypatch.setattr(own_engine.budget, "take", fails_with(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        pipeline.submit(lambda: None, 1)
    assert not [*pipeline.results()]
    wait_until(lambda: not own_engine.budget.jobs)


def test_a_stream_may_be_dropped_within_one_of_its_own_jobs(own_engine):
    """The garbage collector runs in whatever thread happens to allocate, so also in a worker."""
    finished = threading.Event()
    holder: list[Pipeline[None]] = []
    ready = threading.Event()

    def job() -> None:
        ready.wait(60)
        holder.pop().abandon()
        finished.set()

    pipeline: Pipeline[None] = Pipeline()
    holder.append(pipeline)
    pipeline.submit(job, 1)
    pipeline.submit(lambda: None, 1)
    ready.set()
    assert finished.wait(60)
    for _ in range(WORKERS):  # both workers are free again, so the job is over
        own_engine.submit(Job(lambda: None)).result(60)
    wait_until(lambda: not own_engine.budget.jobs)


def job_of(size: int) -> Job[None]:
    return Job(lambda: None, size)


def test_the_budget_may_be_given_back_while_it_is_taken():
    """The collector may come in the middle of `take`."""
    budget = JobBudget(2, 10)
    job = job_of(1)
    with budget._lock:
        thread_took = budget.take(job, always=False)
        budget.give(job)
    assert thread_took
    assert (budget.jobs, budget.bytes) == (0, 0)


def test_budget():
    budget = JobBudget(2, 10)
    six, five, none = job_of(6), job_of(5), job_of(0)
    assert budget.take(six, always=False)
    assert not budget.take(five, always=False)
    assert budget.take(five, always=True)
    assert not budget.take(none, always=False)
    assert (budget.peak_jobs, budget.peak_bytes) == (2, 11)
    for _ in range(2):  # whoever was interrupted does it again
        budget.give(five)
        budget.give(six)
    assert (budget.jobs, budget.bytes) == (0, 0)


class Measured(JobBudget):
    """Lets another thread come, and go as far as it can, after this one has looked how much is in use."""

    def __init__(self, jobs: int, size: int, other: Callable[[JobBudget], Any]) -> None:
        super().__init__(jobs, size)
        self._lock: Any = WatchedLock(self._lock)
        self.other: threading.Thread | None = None
        self._call = other

    @property
    def bytes(self) -> int:
        found = super().bytes
        if self.other is None:
            self.other = threading.Thread(target=self._run, daemon=True)
            self.other.start()
            assert self._lock.asked.wait(SECONDS)
        return found

    def _run(self) -> None:
        self._call(self)
        self._lock.asked.set()


def test_threads_that_take_room_at_once_do_not_take_the_same():
    jobs, took = [job_of(6), job_of(6)], []
    budget = Measured(4, 10, lambda budget: took.append(budget.take(jobs[1], always=False)))
    took.append(budget.take(jobs[0], always=False))
    budget.other.join(SECONDS)
    assert took == [True, False]
    assert budget.bytes == budget.peak_bytes == 6


def test_a_finished_job_counts_as_bytes_until_it_is_taken_out():
    budget = JobBudget(1, 10)
    done, next_one = job_of(6), job_of(4)
    assert budget.take(done, always=False)
    done.run(budget.finished)
    assert (budget.jobs, budget.bytes) == (0, 6)
    assert not budget.take(job_of(5), always=False)
    assert budget.take(next_one, always=False)
    budget.give(done)
    assert (budget.jobs, budget.bytes) == (1, 4)


def test_a_job_that_everybody_forgot_holds_nothing():
    budget = JobBudget(2, 10)
    budget.take(job_of(6), always=False)
    assert (budget.jobs, budget.bytes) == (0, 0)


def test_an_idle_stream_takes_no_other_streams_turn(own_engine):
    """Its finished results wait; they must not count as work in flight."""
    idle, submitted = Pipeline(), threading.Event()
    for _ in range(LIMIT):
        idle.submit(submitted.wait, 1)
    submitted.set()
    wait_until(lambda: not own_engine.budget.jobs)
    assert (own_engine.budget.jobs, own_engine.budget.bytes) == (0, LIMIT)
    gate = threading.Event()
    busy = Pipeline()
    for _ in range(LIMIT):
        busy.submit(gate.wait, 1)  # with the idle stream in the way, the second would wait for the first
    assert own_engine.budget.jobs == LIMIT == busy.peak_jobs
    gate.set()
    assert [*busy.results(), *idle.results()] == [True] * 2 * LIMIT


def test_a_job_that_was_cancelled_before_it_began_never_runs():
    ran: list[int] = []
    job = Job(lambda: ran.append(1))
    job.cancel()
    job.wait()  # at once
    job.run(lambda job: None)
    assert job.finished
    assert not ran


def test_an_error_does_not_keep_its_job_alive(own_engine):
    """The collector may be switched off, and what a job held must be returned all the same."""
    gc.disable()
    try:
        pipeline: Pipeline[None] = Pipeline()
        pipeline.submit(partial(fail, ValueError()), 1)
        pipeline.abandon()
        wait_until(lambda: not own_engine.budget.bytes)
        assert own_engine.budget.bytes == 0
    finally:
        gc.enable()


def test_a_result_that_does_not_come_in_time():
    with pytest.raises(TimeoutError):
        Job(lambda: None).result(0.01)


FORK = """
import os, sys
from streamxf import engine
from streamxf.pipeline import Pipeline
from streamxf.errors import AbortedError
results = []
old = Pipeline()
for number in range(20):
    results += old.submit(lambda number=number: number, 1)
pid = os.fork()
if not pid:
    try:
        old.submit(lambda: None, 1)
    except AbortedError:
        pass
    else:
        os._exit(1)
    old.cancel()
    old.abandon()
    inner = []
    new = Pipeline()
    for number in range(100):
        inner += new.submit(lambda number=number: number, 1)
    inner += new.results()
    os._exit(0 if inner == list(range(100)) and engine.shared().pid == os.getpid() else 2)
assert os.waitpid(pid, 0)[1] == 0
results += old.results()
assert results == list(range(20))
"""


def test_a_forked_child_makes_its_own():
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=60)


def test_jobs_of_a_dropped_pipeline_are_not_begun(own_engine):
    gate = threading.Event()
    busy, dropped = Pipeline(), Pipeline()
    for _ in range(WORKERS):
        busy.submit(gate.wait, 1)
    ran: list[int] = []
    dropped.submit(lambda: ran.append(1), 1)
    del dropped
    gate.set()
    wait_until(lambda: not own_engine.budget.jobs)
    assert not ran


@pytest.mark.parametrize("use", ["workers", "files"])
def test_an_interrupt_while_a_thread_starts_is_no_lack_of_threads(own_engine, monkeypatch, use):
    """In `Condition.wait` it can come between two locks; leaving its `with` then raises a RuntimeError."""

    class Interrupted(threading.Thread):
        def start(self) -> None:
            super().start()
            try:
                raise KeyboardInterrupt
            finally:
                raise RuntimeError("release unlocked lock")

    monkeypatch.setattr(threading, "Thread", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        if use == "workers":
            Pipeline().submit(lambda: None, 1)
        else:
            engine.side_by_side([lambda: None], 2, [])


def test_dropped_pipelines_leave_nothing_behind(own_engine):
    for _ in range(20):
        pipeline: Pipeline[None] = Pipeline()
        for _ in range(3):
            pipeline.submit(lambda: None, 1)
        pipeline.abandon()
        del pipeline
    gc.collect()
    wait_until(lambda: not own_engine.budget.jobs)
