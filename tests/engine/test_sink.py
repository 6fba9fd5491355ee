"""The pipeline that ends in a sink: it takes the results in order, one at a time, from whichever thread has the next,
and an error or an interrupt in it ends the stream.
"""

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamxf import engine
from streamxf.engine import Engine, in_worker
from streamxf.errors import AbortedError
from streamxf.pipeline import SinkPipeline
from tests.failing import fails_with
from tests.polling import SECONDS, at_once, wait_until

WORKERS = 3
LIMIT = 2 * WORKERS + 2


@pytest.fixture(autouse=True)
def own_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    made = Engine(WORKERS)
    monkeypatch.setattr(engine, "_engine", made)
    yield made
    wait_until(lambda: not made.budget.jobs and not made.budget.bytes)


class Sink:
    """Takes results; `before` is called with each, and `step` sleeps between two looks at who else is in here."""

    def __init__(self, before: Any = None, waits: bool = False) -> None:
        self.taken: list[Any] = []
        self.by_workers: list[bool] = []
        self.before = before
        self.inside = 0
        self.pipeline: SinkPipeline[Any] = SinkPipeline(self.take, waits=waits)

    def take(self, result: Any) -> None:
        self.inside += 1
        assert self.inside == 1, "two threads at a time"
        if self.before is not None:
            self.before(result)
        self.taken.append(result)
        self.by_workers.append(in_worker())
        self.inside -= 1

    def submit(self, call: Any, size: int = 1) -> None:
        assert not self.pipeline.submit(call, size)

    def put(self, result: Any, size: int = 1) -> None:
        for own in self.pipeline.put(result, size):
            self.take(own)


def slow(number: int, pause: float) -> int:
    time.sleep(pause)
    return number


STEPS = st.lists(
    st.tuples(st.sampled_from(["submit", "put", "wait"]), st.sampled_from([0, 0, 0.001]), st.sampled_from([0, 0.001])),
    max_size=40,
)


@pytest.mark.parametrize("waits", [False, True, "now and then"])
@given(steps=STEPS)
def test_the_sink_takes_all_in_order(waits, steps):
    def before(number: int) -> None:
        time.sleep(steps[number][2])
        if waits == "now and then":
            sink.pipeline.waits = number % 3 > 0

    sink = Sink(before, waits is True)
    for number, (how, pause, _) in enumerate(steps):
        if how == "put":
            sink.put(number)
        else:
            sink.submit(partial(slow, number, pause))
        if how == "wait":
            assert sink.pipeline.narrow(0) == []
            assert sink.taken == [*range(number + 1)]
    assert [*sink.pipeline.results()] == []
    assert sink.taken == [*range(len(steps))]
    assert len(sink.pipeline) == 0


def test_many_at_a_time(own_engine):
    sinks = [Sink(waits=number % 2 > 0) for number in range(8)]

    def run(sink: Sink) -> None:
        for number in range(200):
            sink.submit(partial(int, number))
        sink.pipeline.narrow(0)

    at_once(run, sinks)
    assert all(sink.taken == [*range(200)] for sink in sinks)
    assert own_engine.budget.peak_jobs <= LIMIT + len(sinks)


def test_workers_fill_the_sink_while_the_stream_does_something_else():
    sink = Sink()
    for number in range(5):
        sink.submit(partial(int, number))
    wait_until(lambda: len(sink.taken) == 5)
    assert sink.by_workers == [True] * 5
    wait_until(lambda: not len(sink.pipeline))


def test_a_worker_does_not_wait_for_another_one_in_the_sink():
    inside, goes_on = threading.Event(), threading.Event()
    sink = Sink(lambda number: number or (inside.set(), goes_on.wait(SECONDS)))
    sink.submit(lambda: 0)
    assert inside.wait(SECONDS)
    for number in range(1, 6):
        sink.submit(partial(int, number))
    wait_until(lambda: all(job.finished for job in sink.pipeline._flying))
    assert not sink.taken
    goes_on.set()
    wait_until(lambda: sink.taken == [*range(6)])  # all by the one that was in it
    sink.pipeline.narrow(0)


def test_no_worker_waits_with_a_sink_that_waits():
    sink = Sink(lambda _: time.sleep(0.001), waits=True)
    for number in range(50):
        sink.submit(partial(int, number))
    sink.pipeline.narrow(0)
    assert sink.taken == [*range(50)]
    assert not any(sink.by_workers)


def test_what_the_sink_has_not_taken_is_bounded(own_engine):
    goes_on = threading.Event()
    sink = Sink(lambda _: goes_on.wait(SECONDS))
    size = engine.MAX_BYTES_IN_FLIGHT // 4
    for _ in range(4):
        sink.put(0, size) if len(sink.pipeline) else sink.submit(lambda: 0, size)
    threading.Timer(0.1, goes_on.set).start()
    sink.put(1, size)
    assert sink.taken
    sink.pipeline.narrow(0)
    assert sink.taken == [0, 0, 0, 0, 1]
    assert own_engine.budget.peak_bytes <= engine.MAX_BYTES_IN_FLIGHT


# -- errors ------------------------------------------------------------------------------------------------------

ERRORS = [ValueError("a"), MemoryError(), KeyboardInterrupt(), SystemExit(3)]


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("step", ["submit", "put", "narrow", "results"])
@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_error_of_the_sink_ends_it(error, step, waits):
    def before(number: int) -> None:
        if number == 3:
            raise error

    sink = Sink(before, waits)
    with pytest.raises(type(error)) as caught:
        for number in range(4):
            sink.submit(partial(int, number))
        while step == "submit":
            sink.submit(lambda: 4)
        while step == "put":
            sink.put(4)
        sink.pipeline.narrow(0) if step == "narrow" else [*sink.pipeline.results()]
    assert caught.value is error
    assert sink.taken == [0, 1, 2]
    assert len(sink.pipeline) == 0
    with pytest.raises(AbortedError):
        sink.submit(lambda: 5)
    sink.pipeline.cancel()
    assert sink.taken == [0, 1, 2]


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_error_of_a_job_ends_it(error, waits):
    sink = Sink(waits=waits)
    with pytest.raises(type(error)) as caught:
        sink.submit(lambda: 0)
        sink.submit(fails_with(lambda: error))
        while True:
            sink.submit(lambda: 1)
    assert caught.value is error
    assert sink.taken in ([], [0])


@pytest.mark.parametrize("at", ["before", "in", "behind"])
def test_an_interrupt_of_the_thread_that_fills_the_sink_is_raised_there(at, monkeypatch):
    """Where it has all to do itself, such as where no thread can be started."""
    monkeypatch.setattr(Engine, "_start_workers", lambda made: False)

    interrupted = fails_with(KeyboardInterrupt)
    sink = Sink(interrupted if at == "in" else None)
    if at == "before":
        monkeypatch.setattr(sink.pipeline, "_next_is_there", interrupted)
    elif at == "behind":
        monkeypatch.setattr(sink.pipeline._engine.budget, "give", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sink.submit(lambda: 0)
    assert sink.taken == ([0] if at == "behind" else [])
    with pytest.raises(AbortedError):
        sink.put(2)


def test_a_worker_does_not_wait_for_its_turn():
    """Which a thread may hold that a signal's handler interrupted, in which it saves."""

    class JustTaken:
        """A lock that always seems to be free to whoever looks before taking it."""

        def __init__(self) -> None:
            lock = threading.Lock()
            self.acquire, self.release = lock.acquire, lock.release

        def locked(self) -> bool:
            return False

        def __enter__(self) -> None:
            self.acquire()

        def __exit__(self, *_: object) -> None:
            self.release()

    sink, goes_on, done = Sink(), threading.Event(), threading.Event()
    sink.pipeline._turn = JustTaken()
    for number in range(2 * WORKERS):
        sink.submit(lambda number=number: goes_on.wait(SECONDS) and number)
    with sink.pipeline._turn:
        goes_on.set()
        engine.shared().submit(engine.Job(done.set))
        assert done.wait(SECONDS)
        assert not sink.taken
    sink.pipeline.narrow(0)
    assert sink.taken == [*range(2 * WORKERS)]


@pytest.mark.parametrize("workers", [1, 2])
def test_one_worker_is_left_for_jobs(monkeypatch, workers):
    """However many sinks there are, and whatever they wait for."""
    monkeypatch.setattr(engine, "_engine", Engine(workers))
    goes_on, threads = threading.Event(), set()

    def before(number: int) -> None:
        threads.add(threading.get_ident() if in_worker() else None)
        assert goes_on.wait(SECONDS)

    sinks = [Sink(before) for _ in range(3)]
    for sink in sinks:
        sink.submit(lambda: 0)
    for number in range(20):
        assert engine.shared().submit(engine.Job(partial(int, number))).result(SECONDS) == number
    assert len(threads) < workers
    goes_on.set()
    for sink in sinks:
        sink.pipeline.narrow(0)
    assert all(sink.taken == [0] for sink in sinks)


def test_a_worker_in_a_sink_is_no_reason_to_start_no_thread():
    inside, goes_on, done = threading.Event(), threading.Event(), threading.Event()
    sink = Sink(lambda number: (inside.set(), goes_on.wait(SECONDS)))
    sink.submit(lambda: 0)
    assert inside.wait(SECONDS)
    other = Sink()
    other.submit(done.set)
    assert done.wait(SECONDS)
    goes_on.set()
    other.pipeline.narrow(0)
    sink.pipeline.narrow(0)


def test_a_worker_leaves_a_sink_in_which_there_is_always_more(monkeypatch):
    """So that another stream's job gets its turn."""
    monkeypatch.setattr(engine, "_engine", Engine(2))
    inside, submitted, done = threading.Event(), threading.Event(), list[int]()

    def before(number: int) -> None:
        inside.set()
        assert submitted.wait(SECONDS)
        if not done and number < 1000:
            first.put(number + 1)

    first, second = Sink(before), Sink()
    first.submit(lambda: 0)
    assert inside.wait(SECONDS)
    holds = Sink()
    holds.submit(lambda: wait_until(lambda: done))  # the other worker
    second.submit(partial(done.append, 1))
    submitted.set()
    wait_until(lambda: done)
    for sink in (first, second, holds):
        sink.pipeline.narrow(0)
    assert len(first.taken) < 500


@pytest.mark.parametrize("how", ["cancel", "abandon"])
def test_what_was_given_up_takes_nothing_more(how):
    sink = Sink()
    getattr(sink.pipeline, how)()
    for call in (partial(sink.submit, lambda: 0), partial(sink.put, 0)):
        with pytest.raises(AbortedError):
            call()


def test_a_stream_that_fails_within_a_worker_and_is_given_up_there():
    sink, ends = Sink(lambda number: number < 1 or 1 / 0), []

    def job() -> None:
        for _ in range(3):
            try:
                sink.submit(lambda: 1)
                sink.pipeline.narrow(0)
            except (ZeroDivisionError, AbortedError) as error:
                ends.append(type(error))

    engine.shared().submit(engine.Job(job)).result(SECONDS)
    assert ends == [ZeroDivisionError, AbortedError, AbortedError]


def test_cancel_waits_for_the_sink_and_gives_it_nothing_more():
    inside, goes_on = threading.Event(), threading.Event()
    sink = Sink(lambda number: (inside.set(), goes_on.wait(SECONDS)))
    for number in range(4):
        sink.submit(partial(int, number))
    assert inside.wait(SECONDS)
    threading.Timer(0.1, goes_on.set).start()
    sink.pipeline.cancel()
    assert goes_on.is_set()
    assert sink.taken == [0]
    assert len(sink.pipeline) == 0


def test_an_interrupt_of_cancel_is_raised_when_the_sink_is_done(monkeypatch):
    inside, goes_on = threading.Event(), threading.Event()
    sink = Sink(lambda number: (inside.set(), goes_on.wait(SECONDS)))
    sink.submit(lambda: 0)
    sink.submit(lambda: 1)
    assert inside.wait(SECONDS)
    stop, stops = sink.pipeline._stop, [1]

    def interrupted() -> None:
        if stops.pop():
            stops.append(0)
            goes_on.set()
            raise KeyboardInterrupt
        stop()

    monkeypatch.setattr(sink.pipeline, "_stop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sink.pipeline.cancel()
    assert not sink.inside
    assert len(sink.pipeline) == 0


def test_what_is_in_flight_keeps_nothing_alive(own_engine):
    """A stream that is dropped goes at once, though the collector may be switched off."""
    gc.disable()
    try:
        goes_on, taken = threading.Event(), []
        sink = Sink(taken.append)
        for _ in range(4):
            sink.submit(lambda: goes_on.wait(SECONDS))
        del sink
        goes_on.set()
        wait_until(lambda: not own_engine.budget.jobs and not own_engine.budget.bytes)
        assert not taken
    finally:
        gc.enable()


def test_a_stream_that_is_dropped_while_a_worker_is_in_its_sink(own_engine):
    inside, goes_on, after = threading.Event(), threading.Event(), threading.Event()
    sink = Sink(lambda number: (inside.set(), goes_on.wait(SECONDS)))
    for number in range(3):
        sink.submit(partial(int, number))
    assert inside.wait(SECONDS)
    del sink
    goes_on.set()
    for _ in range(WORKERS):  # all workers are free again
        own_engine.submit(engine.Job(after.set)).result(SECONDS)
    wait_until(lambda: not own_engine.budget.bytes)


@pytest.mark.parametrize("waits", [False, True])
def test_what_was_in_flight_goes_with_an_error(waits):
    """The collector may be switched off."""

    def failed(pipeline: SinkPipeline[Any]) -> bool:
        return waits or pipeline.failure is not None

    gc.disable()
    try:
        sink = Sink(lambda number: 1 / 0, waits)
        sink.submit(lambda: 0)
        wait_until(partial(failed, sink.pipeline))
        sink.pipeline.cancel()  # for another reason
        gone = weakref.ref(sink)
        del sink
        wait_until(lambda: gone() is None)
    finally:
        gc.enable()


def test_the_most_jobs_in_flight_are_known_where_all_is_done_at_once(monkeypatch):
    monkeypatch.setattr(Engine, "_start_workers", lambda made: False)
    sink = Sink()
    sink.submit(lambda: 0)
    assert sink.pipeline.peak_jobs == 1


def test_within_a_worker_all_is_done_on_the_spot(own_engine):
    sink = Sink()

    def job() -> list[int]:
        for number in range(3):
            sink.submit(partial(int, number))
        sink.pipeline.narrow(0)
        return sink.taken

    assert own_engine.submit(engine.Job(job)).result(SECONDS) == [0, 1, 2]
