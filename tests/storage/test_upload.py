"""`Upload`: the parts of an object arrive whole and in order, or nothing does."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from fsspec.asyn import AsyncFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from streamxf.storage import stores as multipart
from streamxf.storage.stores import Upload

PART = 1000


class Store:
    """An object that is uploaded in parts."""

    def __init__(self, failures: dict[str, int] | None = None) -> None:
        self.parts: dict[int, bytes] = {}
        self.done: bytes | None = None
        self.aborted = False
        self.begun = False
        self.under_way = self.most = 0
        self._failures = failures or {}

    async def _may_fail(self, what: str) -> None:
        await asyncio.sleep(0)
        if self._failures.get(what, 0):
            self._failures[what] -= 1
            raise OSError(f"{what} failed")

    async def put(self, data: bytearray) -> None:
        await self._may_fail("put")
        self.done = bytes(data)

    async def begin(self) -> None:
        await self._may_fail("begin")
        self.begun = True

    async def part(self, number: int, data: bytearray) -> Any:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(0.001 * (number % 3))  # they overtake each other
            await self._may_fail("part")
        finally:
            self.under_way -= 1
        assert not self.aborted, "a part that arrives after the upload was aborted may stay for ever"
        self.parts[number] = bytes(data)
        return number

    async def complete(self, parts: Sequence[Any]) -> None:
        await self._may_fail("complete")
        self.done = b"".join(self.parts[number] for number in parts)

    async def abort(self) -> None:
        await self._may_fail("abort")
        self.aborted = True


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multipart, "PART_BYTES", PART)
    monkeypatch.setattr("streamxf.storage.fetch._PAUSE", 0.001)


FILESYSTEM = AsyncFileSystem()


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=3000), max_size=12), st.sampled_from(["", "put", "begin", "part", "complete"]))
def test_the_object_is_what_was_written(pieces: list[bytes], fails: str) -> None:
    store = Store({fails: 2})
    with Upload(FILESYSTEM, store) as file:
        for piece in pieces:
            assert file.write(piece) == len(piece)
        assert store.done is None, "nothing is seen before the end"
    assert store.done == b"".join(pieces)
    assert store.most <= 4
    assert {len(part) for part in [*store.parts.values()][:-1]} <= {PART}


@pytest.mark.parametrize("fails", ["begin", "part", "complete"])
def test_what_fails_for_good_leaves_nothing(fails: str) -> None:
    store = Store({fails: 10**6})
    with pytest.raises(OSError, match=f"{fails} failed"), Upload(FILESYSTEM, store) as file:
        for _ in range(20):
            file.write(b"x" * PART)
    assert store.done is None
    assert store.aborted == store.begun


def test_an_error_of_the_caller_aborts_it() -> None:
    store = Store()
    with pytest.raises(ValueError, match="mine"), Upload(FILESYSTEM, store) as file:
        file.write(b"x" * 3 * PART)
        raise ValueError("mine")
    assert store.done is None
    assert store.aborted


def test_an_abort_that_fails_does_not_hide_why() -> None:
    store = Store({"abort": 10**6})
    with pytest.raises(ValueError, match="mine") as raised, Upload(FILESYSTEM, store) as file:
        file.write(b"x" * 3 * PART)
        raise ValueError("mine")
    assert "could not be aborted (OSError: abort failed)" in raised.value.__notes__[0]


def test_parts_grow_so_that_ten_thousand_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multipart, "PART_BYTES", 8 * 2**20)
    file = Upload(FILESYSTEM, Store())
    size = 0
    for number in range(10_000):
        file._number = number
        assert 5 * 2**20 <= file._part_bytes <= 5 * 2**30
        size += file._part_bytes
    assert size >= 2**40


@pytest.mark.parametrize("size", [30 * 2**30, 2**40])
def test_parts_are_of_one_length_where_the_size_is_known(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some stores take no others, such as Cloudflare's R2."""
    monkeypatch.setattr(multipart, "PART_BYTES", 8 * 2**20)
    file = Upload(FILESYSTEM, Store())
    file.expect(size)
    first = file._part_bytes
    for number in range(10_000):
        file._number = number
        if number * first < size * 1.02:  # of which containers take some
            assert file._part_bytes == first
    assert first <= 2**20 * 128
