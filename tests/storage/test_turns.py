"""Clients that are not asynchronous: one call at a time, whoever makes it; files that do not tell what they took."""

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from streamxf.buffers import write_all
from streamxf.errors import AbortedError
from streamxf.storage.fetch import is_asynchronous
from streamxf.storage.opening import storage_over
from streamxf.storage.storage import Storage
from streamxf.testing import check_storage


class Silent(MemoryFile):
    """As paramiko's."""

    def write(self, data: Any) -> None:  # type: ignore[override]
        super().write(data)

    def seek(self, *given: Any) -> None:  # type: ignore[override]
        super().seek(*given)


class Alone(MemoryFileSystem):
    """Fails if a second call comes in the middle of a first."""

    protocol = "alone"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    inside: ClassVar[Any] = threading.Lock()

    def _one_at_a_time(self, method: str, *given: Any, **more: Any) -> Any:
        assert self.inside.acquire(blocking=False), "another call is under way"
        try:
            time.sleep(0)
            return getattr(super(), method)(*given, **more)
        finally:
            self.inside.release()

    def ls(self, path: str, detail: bool = True, **more: Any) -> Any:
        return self._one_at_a_time("ls", path, detail=detail, **more)

    def open(self, path: str, mode: str = "rb", **more: Any) -> Any:
        file = self._one_at_a_time("open", path, mode, **more)
        file.__class__ = Silent
        return file


@pytest.fixture
def storage() -> Storage:
    return storage_over(Alone(), f"/{uuid4().hex}", "alone://place")


def test_a_client_that_tells_nothing(storage: Storage) -> None:
    check_storage(storage)


def test_threads_take_turns(storage: Storage) -> None:
    for name in "abc":
        storage.write(name, b"data")

    def look(_: int) -> None:
        assert sorted(each.name for each in storage.entries()) == ["a", "b", "c"]

    with ThreadPoolExecutor(4) as pool:
        [*pool.map(look, range(200))]


def test_a_finalizer_in_the_middle_of_a_call_is_refused(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for ever for its own thread."""
    refused = []

    class Finalized:
        def __init__(self) -> None:
            self.cycle = self

        def __del__(self) -> None:
            with pytest.raises(AbortedError, match="in the middle of another call"):
                storage.write("late", b"")
            refused.append(True)

    def info(*_: Any, **__: Any) -> Any:
        Finalized()
        gc.collect()
        raise FileNotFoundError

    monkeypatch.setattr(Alone, "info", info)
    assert not storage.exists("a")
    assert refused


def test_a_folder_that_poses_as_a_root_works_as_what_lies_below() -> None:
    http = pytest.importorskip("fsspec.implementations.http").HTTPFileSystem()
    assert is_asynchronous(DirFileSystem("/a", http))
    assert not is_asynchronous(DirFileSystem("/a", MemoryFileSystem()))
    check_storage(storage_over(DirFileSystem(f"/{uuid4().hex}", Alone()), "sub", "dir::alone"))


def test_what_a_file_does_not_tell_was_all() -> None:
    file = Silent(None, "")
    assert write_all(file, b"abc") == 3
    assert file.getvalue() == b"abc"
