"""A save to an object store that fails leaves nothing there: no half of a file, and no upload that was begun."""

import uuid
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest
import torch
import torch.distributed.checkpoint as dcp
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractBufferedFile

import streamxf
from streamxf.storage import abilities

from .foreign_errors import NeedsTwo
from .fsspec_checks import assert_only_the_save_remains, load_from
from .helpers import Acting, assert_same, error_of, full_chain, raising

PART = 1 << 16


class Store(MemoryFileSystem):
    """Files in memory that are uploaded in parts, as S3's are: they appear when they are completed."""

    protocol = "uploads"
    cachable = False
    pending: dict[str, int] = {}  # noqa: RUF012
    fails: str | None = None
    sizes: list[int] = []  # noqa: RUF012

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "rb" or "data" in options:  # the latter is how a put in one step opens it
            return super()._open(path, mode, **options)
        return Upload(self, self._strip_protocol(path), mode, block_size=PART)

    @classmethod
    def call(cls, what: str) -> None:
        if cls.fails == what:
            raise NeedsTwo(what, 503)


class Upload(AbstractBufferedFile):  # type: ignore[misc]
    def _initiate_upload(self) -> None:
        Store.call("initiate")
        self._parts: list[bytes] = []
        Store.pending[self.path] = 0

    def _upload_chunk(self, final: bool = False) -> None:
        Store.call("complete" if final else "part")
        self._parts.append(self.buffer.getvalue())
        Store.pending[self.path] += 1
        if final:
            del Store.pending[self.path]
            self.fs.pipe_file(self.path, b"".join(self._parts))

    def expect(self, size: int) -> None:
        Store.sizes.append(size)

    def discard(self) -> None:
        Store.call("abort")
        Store.pending.pop(self.path, None)


fsspec.register_implementation("uploads", Store, clobber=True)


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    known = abilities.CLIENTS["fsspec.implementations.memory.MemoryFileSystem"]
    monkeypatch.setitem(abilities.CLIENTS, f"{Store.__module__}.Store", known)
    folder = f"/{uuid.uuid4().hex}"
    Store.pending.clear()
    Store.fails = None
    yield f"uploads:/{folder}/step"
    Store.fails = None
    if fsspec.filesystem("memory").exists(folder):
        fsspec.filesystem("memory").rm(folder, recursive=True)


def state_of(value: float) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(int(value))
    return {str(number): torch.randn(70_000, generator=generator) for number in range(4)}


def failing() -> Acting:
    return Acting(raising(4, NeedsTwo("planner", 0)))


def save_to(url: str, state: dict[str, Any], threads: int, planner: Any = None) -> BaseException | None:
    writer = streamxf.FsspecWriter(url, _extensions=full_chain(), thread_count=threads, block_size=PART)
    return error_of(lambda: dcp.save(state, storage_writer=writer, planner=planner))


@pytest.mark.filterwarnings("ignore:.* is not known to replace a file")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("fails", ["planner", "initiate", "part", "complete"])
def test_nothing_is_left_of_a_save_that_fails(url: str, fails: str, threads: int) -> None:
    Store.sizes.clear()
    assert save_to(url, state_of(1), threads) is None
    assert (len(Store.sizes), sum(Store.sizes)) == (threads, 4 * 70_000 * 4), "parts go by what is expected"
    assert not Store.pending
    Store.fails = fails
    error = save_to(url, state_of(2), threads, failing() if fails == "planner" else None)
    Store.fails = None
    assert f"{fails} failed with" in str(error)
    assert not Store.pending, "an upload was begun, and neither completed nor aborted"
    assert_only_the_save_remains(url)
    assert_same(load_from(url, state_of(1)), state_of(1))


@pytest.mark.filterwarnings("ignore:.* is not known to replace a file")
def test_an_upload_that_cannot_be_aborted_does_not_hide_the_cause(url: str) -> None:
    assert save_to(url, state_of(1), 1) is None
    Store.fails = "abort"
    error = save_to(url, state_of(2), 1, failing())
    Store.fails = None
    assert "planner failed with" in str(error)
    assert "could not be aborted" in "".join(getattr(error, "__notes__", ()))
    assert_only_the_save_remains(url)
    assert_same(load_from(url, state_of(1)), state_of(1))
