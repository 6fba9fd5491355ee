"""`FetchedFile`: whatever is announced and read, in whatever order, the bytes are those of the file."""

import asyncio
import errno
import random
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
from fsspec.asyn import AsyncFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from streamxf.engine import ForkLock
from streamxf.errors import AbortedError, ForeignError
from streamxf.storage import fetch
from streamxf.storage.fetch import FetchedFile, requests_in_threads, requests_to
from tests.failing import fails_with
from tests.forked import status_of_child
from tests.polling import SECONDS, WatchedLock

DATA = random.Random(5).randbytes(40_000)


class Store(AsyncFileSystem):  # type: ignore[misc]
    """One file, and a record of what was asked for."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[int, int]] = []
        self.failures: list[Exception | int] = []
        self.under_way = self.most = 0

    async def _cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        self.asked.append((start, end))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, Exception):
                raise failure
            return DATA[start:end][:failure]
        return DATA[start:end]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr("streamxf.storage.fetch._PAUSE", 0.001)
    return Store()


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "RANGE_BYTES", 1000)
    monkeypatch.setattr(fetch, "AHEAD_BYTES", 3000)
    monkeypatch.setattr(fetch, "_GAP", 50)


def read(file: FetchedFile, start: int, stop: int) -> bytes:
    out = bytearray(stop - start)
    count = file.read_into(start, memoryview(out))
    return bytes(out[:count])


def file_in(store: Store) -> FetchedFile:
    return FetchedFile(requests_to(store, "file", "file", len(DATA)), len(DATA))


places = st.integers(0, len(DATA) + 100)
spans = st.tuples(places, st.integers(0, 5000)).map(lambda each: (each[0], each[0] + each[1]))
steps = st.lists(st.tuples(st.sampled_from(["soon", "later", "read"]), spans), max_size=40)


@settings(max_examples=60)
@given(steps)
def test_bytes_are_those_of_the_file(steps: list[tuple[str, tuple[int, int]]]) -> None:
    file = file_in(Store())
    for what, (start, stop) in steps:
        if what == "read":
            assert read(file, start, stop) == DATA[start:stop]
        else:
            file.expect((start, stop), soon=what == "soon")
    file.close()


def test_what_was_announced_is_fetched_once(store: Store) -> None:
    file = file_in(store)
    for start in range(0, 20_000, 700):
        file.expect((start, start + 700), soon=False)
    file.expect((0, 700))
    file.expect((5000, 7000))
    for start in range(0, 20_000, 500):
        assert read(file, start, start + 500) == DATA[start : start + 500]
    asked = sorted(store.asked)
    assert all(before[1] <= after[0] for before, after in pairwise(asked))
    assert len(asked) <= 22, "neighbours are fetched by one request"


def test_threads(store: Store) -> None:
    file = file_in(store)
    file.expect((0, len(DATA)), soon=False)
    places = list(range(0, len(DATA), 300))
    with ThreadPoolExecutor(8) as pool:
        for start, data in zip(places, pool.map(lambda at: read(file, at, at + 300), places), strict=True):
            assert data == DATA[start : start + 300]


class Watched(FetchedFile):
    """Whether the lock is held where it has to be; races that show it are rare."""

    def _begin_next(self) -> None:
        assert self._lock.here().locked()
        super()._begin_next()

    def _covering(self, at: int) -> Any:
        assert self._lock.here().locked()
        return super()._covering(at)

    def _next_range(self, at: int, end: int) -> int:
        assert self._lock.here().locked()
        return super()._next_range(at, end)


def test_the_lock_is_held(store: Store) -> None:
    file = Watched(requests_to(store, "file", "file", len(DATA)), len(DATA))
    file.expect((0, 3000))
    file.expect((5000, 6000), soon=False)
    assert read(file, 0, 7000) == DATA[:7000]


class Answer(Exception):
    """Of a client: where it keeps the status differs."""

    def __init__(self, name: str, status: int) -> None:
        super().__init__(f"{name} {status}")
        setattr(self, name, status)
        if name == "response":  # as botocore has it, below the error that s3fs makes of a code that it does not know
            self.errno, self.__cause__ = errno.EIO, Exception()
            self.__cause__.response = {"ResponseMetadata": {"HTTPStatusCode": status}}  # type: ignore[attr-defined]


# of Azure's client, aiohttp, gcsfs and asyncssh, s3fs
@pytest.mark.parametrize("name", ["status_code", "status", "code", "response"])
@pytest.mark.parametrize(("status", "asked"), [(400, 1), (401, 1), (403, 1), (3, 1), (408, 4), (429, 4), (503, 4)])
def test_what_a_server_refuses_is_asked_once(store: Store, name: str, status: int, asked: int) -> None:
    store.failures = [Answer(name, status) for _ in range(4)]
    with pytest.raises(Answer):
        read(file_in(store), 0, 10)
    assert len(store.asked) == asked


def test_what_is_given_up_is_not_fetched_for_reads_that_come_later(store: Store) -> None:
    file = file_in(store)
    file.expect((0, len(DATA)))
    file.close()
    store.asked.clear()
    for at in (0, 20_000):
        assert read(file, at, at + 10) == DATA[at : at + 10]
    assert [each for each in store.asked if each[1] - each[0] == 10] == [(0, 10), (20_000, 20_010)]


def test_nothing_is_begun_while_all_is_given_up(store: Store) -> None:
    """It would be fetched for nobody."""
    file, lock = file_in(store), WatchedLock(threading.Lock())
    file._lock = ForkLock(lambda: lock)
    other = threading.Thread(target=lambda: (file.expect((5000, 6000)), lock.asked.set()), daemon=True)

    class Cancelled:
        def cancel(self) -> None:
            other.start()
            assert lock.asked.wait(SECONDS)

    file._ranges = [fetch._Range(0, 10, Cancelled(), [(0, 10)], 0)]  # type: ignore[arg-type]
    file.close()
    other.join(SECONDS)
    assert [(each.start, each.stop) for each in file._ranges] == [(5000, 6000)]


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded")
def test_a_fork_says_that_it_cannot_read_what_a_loop_of_its_parent_would_fetch(store: Store) -> None:
    file = file_in(store)
    file.expect((0, 3000))

    def refused() -> None:
        with pytest.raises(AbortedError, match="opened before a fork"):
            read(file, 0, 10)

    with file._here():  # by another thread, say
        assert status_of_child(refused) == 0
    assert read(file, 0, 3000) == DATA[:3000]


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded")
def test_a_fork_reads_what_threads_fetch_and_waits_for_none_of_its_parent() -> None:
    never = Future[bytes]()
    requests = requests_in_threads(lambda start, stop: DATA[start:stop], "file")
    file = FetchedFile(lambda start, stop: never if start == 0 else requests(start, stop), len(DATA))
    file.expect((0, 1000), (5000, 6000))
    file._request = requests
    assert status_of_child(lambda: [] if read(file, 0, 7000) == DATA[:7000] else 1 / 0) == 0  # type: ignore[arg-type, return-value]


def test_requests_whose_answers_nobody_wants_any_more_are_cancelled() -> None:
    begun: list[Future[int]] = []

    def begin(key: int) -> Future[int]:
        begun.append(Future())
        if not key:
            begun[0].set_result(7)
        return begun[-1]

    found = fetch.answers(range(100), begin)
    assert next(found) == (0, 7)
    found.close()
    assert 1 < len(begun) < 100
    assert all(future.cancelled() for future in begun[1:])


def test_what_is_held_is_bounded(store: Store) -> None:
    file = file_in(store)
    file.expect((0, len(DATA)), soon=False)
    assert read(file, 0, 10) == DATA[:10]
    assert sum(stop - start for start, stop in store.asked) <= 4000


def test_parts_that_nobody_reads_do_not_stop_what_is_fetched_ahead(store: Store) -> None:
    file = file_in(store)
    for start in range(0, 4000, 1000):
        file.expect((start, start + 1000), soon=False)
    file.expect((10_000, len(DATA)), soon=False)
    for _ in range(2):
        for start in range(10_000, len(DATA), 100):
            read(file, start, start + 100)
    store.asked.clear()
    file.expect((4000, 5000))
    assert store.asked or read(file, 4000, 4010) == DATA[4000:4010]
    assert store.asked[0] == (4000, 5000)


@pytest.mark.parametrize("failure", [OSError(errno.EIO, "reset"), TimeoutError(), ValueError("odd"), 10])
def test_what_may_pass_is_tried_again(store: Store, failure: Exception | int) -> None:
    store.failures = [failure] * 3
    assert read(file_in(store), 100, 200) == DATA[100:200]
    assert len(store.asked) == 4


@pytest.mark.parametrize("failure", [FileNotFoundError(), PermissionError(), OSError(errno.EINVAL, "refused")])
def test_what_the_server_has_decided_is_not(store: Store, failure: Exception) -> None:
    store.failures = [failure]
    with pytest.raises(type(failure)):
        read(file_in(store), 100, 200)
    assert len(store.asked) == 1


def test_answers_that_stay_short_are_an_error(store: Store) -> None:
    store.failures = [10] * 8
    with pytest.raises(ForeignError, match="100 bytes were requested, 10 arrived"):
        read(file_in(store), 100, 200)


# -- storages that wait for their answers ------------------------------------------------------------------


def waiting_file(asked: list[tuple[int, int]], data: bytes = DATA) -> FetchedFile:
    def ask(start: int, stop: int) -> bytes:
        asked.append((start, stop))
        return data[start:stop]

    return FetchedFile(requests_in_threads(ask, "file"), len(DATA))


@pytest.mark.parametrize("threads", [True, False])
def test_neighbours_are_one_request_of_a_user_s_storage(monkeypatch: pytest.MonkeyPatch, threads: bool) -> None:
    if not threads:
        monkeypatch.setattr(threading.Thread, "start", fails_with(RuntimeError, "can't start new thread"))
    asked: list[tuple[int, int]] = []
    file = waiting_file(asked)
    file.expect((0, 400), (400, 700), (740, 900), (2000, 2100))
    assert [read(file, *span) for span in [(0, 400), (740, 900), (400, 700), (2000, 2100), (5000, 5100)]] == [
        DATA[0:400],
        DATA[740:900],
        DATA[400:700],
        DATA[2000:2100],
        DATA[5000:5100],
    ]
    assert sorted(asked) == [(0, 900), (2000, 2100), (5000, 5100)]


def test_requests_of_a_user_s_storage_are_under_way_at_once() -> None:
    both = threading.Barrier(2)

    def ask(start: int, stop: int) -> bytes:
        both.wait(SECONDS)
        return DATA[start:stop]

    file = FetchedFile(requests_in_threads(ask, "file"), len(DATA))
    file.expect((0, 100), (5000, 5100))
    assert read(file, 0, 100) == DATA[:100]
    assert read(file, 5000, 5100) == DATA[5000:5100]


@pytest.mark.parametrize("size", [100, 0])
def test_a_user_s_storage_that_answers_with_less_is_an_error(size: int) -> None:
    with pytest.raises(ForeignError, match="bytes were requested"):
        read(waiting_file([], DATA[:size]), 0, 200)


def test_what_a_user_s_storage_raises_reaches_whoever_reads() -> None:
    file = FetchedFile(requests_in_threads(fails_with(ConnectionError, "gone"), "file"), len(DATA))
    file.expect((0, 100))
    with pytest.raises(ConnectionError, match="gone"):
        read(file, 0, 100)
