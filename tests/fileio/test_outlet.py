"""Streams that share an outlet: in order, in parallel, and nothing after the first error."""

from __future__ import annotations

import gc
import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_decoder import decode_container
from samples import BLOCK, data_of

from streamxf import Checksum, Codec, ZStandard, engine
from streamxf.buffers import ScratchPool
from streamxf.chain import Chain
from streamxf.container.header import Identity, Kind
from streamxf.engine import Engine
from streamxf.errors import AbortedError, CodecError
from streamxf.fileio import writer
from streamxf.fileio.outlet import MAX_WAITING, Outlet
from streamxf.fileio.writer import ON_THE_SPOT, StreamWriter
from streamxf.meter import Meter

WORKERS = 2


@pytest.fixture(autouse=True)
def own_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    made = Engine(WORKERS)
    monkeypatch.setattr(engine, "_engine", made)
    yield made
    gc.collect()
    assert made.budget.jobs == made.budget.bytes == 0, "room was taken and not given back"


def slowly(number: int, pause: float) -> int:
    time.sleep(pause)
    return number


@given(steps=st.lists(st.tuples(st.booleans(), st.sampled_from([0, 0, 0.001])), max_size=40))
@settings(max_examples=60, deadline=None)
def test_everything_leaves_in_the_order_in_which_it_was_announced(steps: list[tuple[bool, float]]) -> None:
    left: list[int] = []
    outlet = Outlet()
    for number, (on_the_spot, pause) in enumerate(steps):
        if on_the_spot:
            outlet.put(number, 1, left.append)
        else:
            outlet.submit(partial(slowly, number, pause), 1, left.append)
    outlet.settle()
    assert left == list(range(len(steps)))


def test_what_is_encoded_leaves_at_once_when_nothing_is_before_it() -> None:
    left: list[int] = []
    outlet = Outlet()
    outlet.put(1, 1, left.append)
    assert left == [1]
    outlet.submit(lambda: 2, 1, left.append)
    outlet.settle()
    outlet.put(3, 1, left.append)
    assert left == [1, 2, 3]


def test_what_waits_is_bounded() -> None:
    """Behind a block that takes long, little may pile up; then the thread waits."""
    left: list[int] = []
    gate = threading.Event()
    outlet = Outlet()
    outlet.submit(lambda: gate.wait(30) and 0, 1, left.append)
    size = MAX_WAITING // 4
    for number in range(1, 5):
        outlet.put(number, size, left.append)
    assert not left
    threading.Timer(0.1, gate.set).start()
    outlet.put(5, size, left.append)
    assert left == [0, 1, 2, 3, 4, 5]
    outlet.submit(lambda: 6, 1, left.append)
    outlet.put(7, size, left.append)  # what waited before does not count any more
    outlet.settle()
    assert left == list(range(8))


@pytest.mark.parametrize("place", ["encode", "leave", "leave behind a block"])
def test_nothing_leaves_after_an_error(place: str) -> None:
    left: list[int] = []
    outlet = Outlet()

    def fail(*_: Any) -> Any:
        raise OSError("no space")

    outlet.submit(lambda: 0, 1, left.append)
    with pytest.raises(OSError, match="no space"):
        if place == "encode":
            outlet.submit(fail, 1, left.append)
        elif place == "leave":
            outlet.submit(lambda: 1, 1, fail)
        else:
            outlet.submit(partial(slowly, 1, 0.05), 1, left.append)
            outlet.put(2, 1, fail)
        outlet.put(3, 1, left.append)
        outlet.settle()
    before = list(left)
    assert 3 not in before
    actions: list[Callable[[], Any]] = [
        outlet.settle,
        lambda: outlet.put(4, 1, left.append),
        lambda: outlet.submit(lambda: 5, 1, left.append),
    ]
    for action in actions:
        with pytest.raises(AbortedError, match="cannot be continued"):
            action()
    assert left == before


def test_a_cancelled_outlet_runs_nothing_more() -> None:
    ran: list[int] = []
    gate = threading.Event()
    outlet = Outlet()
    for number in range(6):
        outlet.submit(lambda number=number: (gate.wait(30), ran.append(number)), 1, lambda _: None)  # type: ignore[misc]
    threading.Timer(0.05, gate.set).start()
    outlet.cancel()
    after = list(ran)
    time.sleep(0.05)
    assert ran == after
    assert len(ran) <= WORKERS


def test_the_peak_of_blocks_is_metered() -> None:
    meter = Meter()
    outlet = Outlet(meter)
    for number in range(30):
        outlet.submit(partial(slowly, number, 0.001), 1, lambda _: None)
    outlet.settle()
    assert 1 < meter.total().peak_blocks <= 2 * WORKERS + 2


# -- streams -------------------------------------------------------------------------------------------------------


SIZES = st.one_of(st.integers(0, 200), st.sampled_from([ON_THE_SPOT, ON_THE_SPOT + 1, BLOCK, BLOCK + 1, 5 * BLOCK + 7]))


class Recorder(io.BytesIO):
    """Knows in which order containers were completed, and where each one ends."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[int, int, int, int]] = []

    def stored(self, number: int, raw_size: int, size: int) -> None:
        self.done.append((number, self.tell() - size, raw_size, size))


def write_streams(target: Recorder, parts: list[bytes], codec: Codec, outlet: Outlet) -> None:
    for number, data in enumerate(parts):
        stream = StreamWriter(
            target, Chain([codec]), block_log2=16, outlet=outlet, stored=partial(target.stored, number)
        )
        stream.write_owned(data)
        stream.close()


@given(sizes=st.lists(SIZES, max_size=8))
@settings(max_examples=40, deadline=None)
def test_containers_stand_one_behind_the_other(sizes: list[int]) -> None:
    target = Recorder()
    parts = [data_of(size) for size in sizes]
    outlet = Outlet()
    write_streams(target, parts, ZStandard(), outlet)
    outlet.settle()
    assert [number for number, *_ in target.done] == list(range(len(parts)))
    position = 0
    for (_, start, raw_size, size), data in zip(target.done, parts, strict=True):
        assert (start, raw_size) == (position, len(data))
        assert decode_container(target.getvalue()[start : start + size]).payload == data
        position += size
    assert position == len(target.getvalue())


@dataclass(frozen=True)
class Meets(Codec):
    """Each block waits until another one is being encoded at the same time."""

    name: ClassVar[str] = "toy.meets"

    def encode(self, block: memoryview, info: Any) -> memoryview:
        if len(block) > ON_THE_SPOT:
            MEETING.wait(30)
        return block

    def decode(self, block: memoryview, info: Any) -> memoryview:
        return block


MEETING = threading.Barrier(2)


def test_blocks_of_different_streams_are_encoded_at_the_same_time() -> None:
    """Each stream is a single block, and one thread writes them all."""
    target = Recorder()
    outlet = Outlet()
    write_streams(target, [bytes(ON_THE_SPOT + 1)] * 4, Meets(), outlet)
    outlet.settle()
    assert not MEETING.broken
    assert len(target.done) == 4


def test_memory_that_was_handed_over_lives_until_it_is_encoded() -> None:
    target = Recorder()
    outlet = Outlet()
    parts = [bytearray(os.urandom(3 * BLOCK)) for _ in range(20)]
    copies = [bytes(part) for part in parts]
    stream = StreamWriter(target, Chain([Checksum()]), block_log2=16, outlet=outlet)
    gc.freeze()  # or each collection would look through all that other tests have left
    try:
        while parts:
            stream.write_owned(memoryview(parts.pop(0)))
            gc.collect()
    finally:
        gc.unfreeze()
    stream.close()
    del stream
    outlet.settle()
    assert decode_container(target.getvalue()).payload == b"".join(copies)


def test_small_streams_that_wait_hold_no_scratch_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a block that takes long; each scratch memory may have grown to several blocks."""
    pool = ScratchPool(keep=16)
    monkeypatch.setattr(writer, "_scratch", pool)
    gate = threading.Event()
    target = Recorder()
    outlet = Outlet()
    outlet.submit(lambda: gate.wait(30), 1, lambda _: None)
    write_streams(target, [data_of(1000, seed) for seed in range(50)], ZStandard(), outlet)
    assert not target.done
    assert len(pool._free) == 1
    gate.set()
    outlet.finish()
    assert len(target.done) == 50


def test_a_stream_that_is_given_up_spoils_what_it_shares() -> None:
    outlet = Outlet()
    target = Recorder()
    write_streams(target, [data_of(3 * BLOCK)], ZStandard(), outlet)
    stream = StreamWriter(target, Chain([ZStandard()]), block_log2=16, outlet=outlet)
    stream.write(data_of(BLOCK))
    stream.abort()
    with pytest.raises(AbortedError):
        outlet.settle()
    with pytest.raises(AbortedError):
        write_streams(target, [b"more"], ZStandard(), outlet)


@pytest.mark.filterwarnings("ignore:a stream was dropped:ResourceWarning")
def test_so_does_one_that_is_dropped() -> None:
    outlet = Outlet()
    stream = StreamWriter(Recorder(), Chain([ZStandard()]), block_log2=16, outlet=outlet)
    stream.write_owned(data_of(3 * BLOCK))
    del stream
    gc.collect()
    with pytest.raises(AbortedError):
        outlet.finish()


def test_a_stream_that_is_still_open_is_missed_at_the_end() -> None:
    outlet = Outlet()
    stream = StreamWriter(Recorder(), Chain([ZStandard()]), block_log2=16, outlet=outlet)
    stream.write(b"not closed")
    with pytest.raises(AbortedError, match="never closed"):
        outlet.finish()
    with pytest.raises(AbortedError):
        stream.close()


@dataclass(frozen=True)
class Fails(Codec):
    """Cannot encode what begins with a zero."""

    name: ClassVar[str] = "toy.fails"

    def encode(self, block: memoryview, info: Any) -> memoryview:
        if len(block) and not block[0]:
            raise CodecError("begins with a zero")
        return block

    def decode(self, block: memoryview, info: Any) -> memoryview:
        return block


@pytest.mark.parametrize("size", [10, ON_THE_SPOT + 1, 5 * BLOCK])
def test_an_error_of_one_stream_names_it_though_another_was_being_written(size: int) -> None:
    outlet = Outlet()
    target = Recorder()

    def write(name: str, data: bytes) -> None:
        identity = Identity(bytes(16), Kind.BYTES, (), name)
        stream = StreamWriter(target, Chain([Fails()]), block_log2=16, outlet=outlet, identity=identity)
        stream.write_owned(data)
        stream.close()

    with pytest.raises(CodecError, match="begins with a zero") as caught:
        write("good", b"\x01" * size)
        write("bad", b"\x00" * size)
        for number in range(20):
            write(f"later {number}", b"\x01" * size)
        outlet.settle()
    assert caught.value.item == "bad"
    with pytest.raises(AbortedError):
        outlet.settle()


def test_what_has_left_waits_no_more() -> None:
    outlet = Outlet()
    left: list[object] = []
    for number in range(50):  # there is always a block in flight, and never much behind it
        outlet.submit(lambda number=number: number, 1000, left.append)
        outlet.put(f"after {number}", 20_000, left.append)
        assert outlet._waiting <= 256 * 1024
    outlet.settle()
    assert left == [item for number in range(50) for item in (number, f"after {number}")]
    assert outlet._waiting == 0
