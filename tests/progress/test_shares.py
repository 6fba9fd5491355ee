"""Shares: whatever is told of an item, it brings what was expected of it, and no more."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from streamxf.progress import Share, Shares
from tests.polling import SECONDS, WatchedLock, at_once

from .recorder import Recorder

counts = st.lists(st.integers(0, 50), max_size=10)


@given(st.integers(0, 200), counts)
def test_a_share_is_never_exceeded_and_always_complete(size: int, told: list[int]) -> None:
    recorder = Recorder()
    recorder.expect(size)
    share = Share(recorder, size)
    for count in told:
        share.advance(count)
    assert recorder.done == min(size, sum(told))
    share.finish()
    share.finish()
    share.advance(1)
    assert recorder.done == size


@given(st.dictionaries(st.integers(0, 5), st.integers(0, 200)), st.lists(st.tuples(st.integers(0, 7), counts)))
def test_items_in_any_order_again_and_again(sizes: dict[int, int], begun: list[tuple[int, list[int]]]) -> None:
    recorder = Recorder()
    total = sum(sizes.values())
    shares = Shares(recorder, dict(sizes))
    assert recorder.expected == total
    known: set[int] = set()
    for item, told in begun:
        share = shares.begin(item)
        assert recorder.done == sum(sizes.get(each, 0) for each in known)
        known.add(item)
        for count in told:
            share.advance(count)
    shares.finish()
    assert recorder.done == total == recorder.expected


def test_what_threads_tell_at_once_is_not_counted_twice() -> None:
    recorder = Recorder()
    recorder.expect(10)
    share, lock = Share(recorder, 10), WatchedLock(threading.Lock())
    share._lock = lock  # type: ignore[assignment]
    other = threading.Thread(target=lambda: (share.advance(6), lock.asked.set()), daemon=True)

    class Left(int):
        def __sub__(self, count: int) -> int:
            if threading.current_thread() is not other:
                other.start()
                assert lock.asked.wait(SECONDS)  # the other waits, or has taken its part
            return super().__sub__(count)

    share._left = Left(10)
    share.advance(6)
    other.join(SECONDS)
    assert recorder.done == 10


def test_many_threads() -> None:
    recorder = Recorder()
    recorder.expect(10_000)
    share = Share(recorder, 10_000)

    def work() -> None:
        for _ in range(1500):
            share.advance(3)

    at_once(work, 4)
    assert recorder.done == 10_000
