"""Small files that anybody may have planted: no job hangs or fills its memory over one."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fsspec.implementations.local import LocalFileSystem

from streamxf.errors import ParameterError
from streamxf.format.names import LOCK
from streamxf.storage import small
from streamxf.storage.opening import open_storage, storage_over
from streamxf.storage.small import put_small, read_small, small_files, small_names
from streamxf.storage.storage import Storage, StorageEntry
from tests.dcp.s3_server import storage as s3_options
from tests.failing import fails_with


class Linked(LocalFileSystem):  # type: ignore[misc]
    """A local file system that streamxf takes for a server's with folders, which tells links as SFTP does."""

    protocol = ("stranger",)

    def ls(self, path: str, detail: bool = False, **options: Any) -> list[Any]:
        found = super().ls(path, detail=True, **options)
        for each in found:
            each["type"] = "link" if each["islink"] else each["type"]
        return found if detail else [each["name"] for each in found]


@pytest.fixture(autouse=True)
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "_told", set())


@pytest.fixture(params=["local", "memory", "server", pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.slow])])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    name = f"exp[12]-{uuid4().hex}"
    if request.param == "local":
        yield open_storage(tmp_path / name)
    elif request.param == "memory":
        yield open_storage(f"memory://{name}")
    elif request.param == "server":
        yield storage_over(Linked(), str(tmp_path / name), "server")
    else:
        endpoint = request.getfixturevalue("endpoint")
        yield open_storage(f"s3://checkpoints/{name}", s3_options(endpoint))


def sizes(storage: Storage, folder: str) -> dict[str, int | None]:
    return {name: each.size for name, each in small_names(storage, folder).items()}


def test_what_is_put_is_read(storage: Storage) -> None:
    assert read_small(storage, "a/b/one") is None
    assert sizes(storage, "a/b") == {}
    put_small(storage, "a/b/one*", b"1")
    put_small(storage, "a/b/one*", b"two")
    put_small(storage, "a/b/empty", b"", sync=False)
    put_small(storage, "top", b"top")
    assert read_small(storage, "a/b/one*") == b"two"
    assert read_small(storage, "a/b/empty") == b""
    assert read_small(storage, "top") == b"top"
    assert read_small(storage, "a/b") is read_small(storage, "top/more") is None
    assert sizes(storage, "a/b") == {"one*": 3, "empty": 0}
    assert sizes(storage, "") == {"top": 3}
    assert sizes(storage, "top/more") == {}
    assert small_files(storage, "a/b", lambda name: True) == {"one*": b"two", "empty": b""}
    assert small_files(storage, "a/b", lambda name: name == "empty") == {"empty": b""}
    assert small_files(storage, "", lambda name: True) == {"top": b"top"}


def test_once_is_once(storage: Storage) -> None:
    put_small(storage, "step/commit", b"first", once=True)
    with pytest.raises(FileExistsError):
        put_small(storage, "step/commit", b"second", once=True)
    assert read_small(storage, "step/commit") == b"first"
    assert sizes(storage, "step") == {"commit": 5}  # no draft


def test_where_there_are_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", fails_with(PermissionError, 1, "no links here"))
    test_once_is_once(open_storage(tmp_path))


@pytest.mark.parametrize("path", ["", ".", "../x", "/etc/passwd", "a//b", "a/..", "a\0"])
def test_paths_that_lead_elsewhere(storage: Storage, path: str) -> None:
    for act in (read_small, lambda storage, path: put_small(storage, path, b"")):
        with pytest.raises(ParameterError):
            act(storage, path)


def test_what_is_too_long_is_ignored(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(small, "MOST_BYTES", 100)
    monkeypatch.setattr(small, "MOST_IN_ALL", 250)
    put_small(storage, "d/a", bytes(100))
    put_small(storage, "d/b", bytes(101))
    put_small(storage, "d/c", bytes(150))
    assert read_small(storage, "d/b", 100) is None
    assert read_small(storage, "d/b", 100) is None
    assert caplog.text.count("d/b is ignored") == 1
    assert set(small_files(storage, "d", lambda name: True)) == {"a"}
    monkeypatch.setattr(small, "MOST_BYTES", 200)
    assert set(small_files(storage, "d", lambda name: True)) == {"a", "b"}
    assert "more than 250 bytes" in caplog.text
    small._told.clear()
    monkeypatch.setattr(small, "MOST_NAMES", 2)
    assert len(small_names(storage, "d")) == 2
    assert "more than 2 names" in caplog.text


def test_files_that_grow(storage: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """After their size was asked for."""
    monkeypatch.setattr(small, "MOST_BYTES", 100)
    monkeypatch.setattr(small, "MOST_IN_ALL", 150)
    for name in "abc":
        put_small(storage, f"d/{name}", bytes(200 if name == "a" else 90))
    monkeypatch.setattr(small, "small_names", lambda *_: {name: StorageEntry(name, "file", 5) for name in "abcd"})
    assert set(small_files(storage, "d", lambda name: True)) == {"b"}
    assert caplog.text.count("d/a is ignored") == 1


def test_what_cannot_be_read_is_ignored(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put_small(storage, "d/a", b"a")
    put_small(storage, "d/b", b"b")

    def failing(*given: Any, **options: Any) -> Any:
        if "d/a" in str(given):
            raise PermissionError(13, "no")
        return real(*given, **options)

    real = small._received
    monkeypatch.setattr(small, "_received", failing)
    assert small_files(storage, "d", lambda name: True) == {"b": b"b"}
    assert "PermissionError" in caplog.text


def test_links_are_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_bytes(b"v")
    run = tmp_path / "run"
    run.mkdir()
    (run / "folder").symlink_to(tmp_path / "victim")
    (run / "file").symlink_to(tmp_path / "victim" / "file")
    (run / "loop").symlink_to("loop")
    (run / "link").symlink_to(run)
    for storage in (open_storage(run), storage_over(Linked(), str(run), "server")):
        assert small_names(storage, "") == small_names(storage, "folder") == {}
        for path in ("folder/file", "file", "loop", "loop/x", "link/file"):
            assert read_small(storage, path) is None
        with pytest.raises(NotADirectoryError):
            put_small(storage, "folder/new", b"new")
    with pytest.raises(NotADirectoryError):
        put_small(storage, "file", b"mine")
    put_small(open_storage(run), "file", b"mine")  # replaces the link
    assert read_small(storage, "file") == b"mine"
    assert {path.name: path.read_bytes() for path in (tmp_path / "victim").iterdir()} == {"file": b"v"}
    assert "it is behind a link" in caplog.text
    assert read_small(open_storage(tmp_path / "run" / "link"), "folder") is None  # the run's own path may have links
    (run / "own").write_bytes(b"own")
    assert read_small(open_storage(run / "link"), "own") == b"own"


def test_what_is_no_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Under a limit of time and of memory, in a process of its own."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / LOCK).touch()
    (tmp_path / "good").write_bytes(b"good")
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(2**40)
    os.symlink("/dev/zero", tmp_path / "device")
    code = f"""
import resource
from streamxf.storage.small import read_small, small_files, small_names
from streamxf.storage.opening import open_storage
resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
storage = open_storage({os.fspath(tmp_path)!r})
for name in ("pipe", "folder", "hole", "device", "pipe/more"):
    assert read_small(storage, name) is None, name
assert small_files(storage, "", lambda name: True) == {{"good": b"good"}}
assert {{name: each.size for name, each in small_names(storage, "").items()}} == {{"good": 4, "hole": 2**40}}
assert small_names(storage, "pipe") == {{}}
assert read_small(open_storage("/dev"), "zero") is None
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_pipe_put_in_place_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the opening."""
    put_small(open_storage(tmp_path), "file", b"data")
    real = os.stat

    def swapping(name: Any, *given: Any, **options: Any) -> Any:
        facts = real(name, *given, **options)
        if name == "file":
            (tmp_path / "file").unlink()
            os.mkfifo(tmp_path / "file")
        return facts

    monkeypatch.setattr(os, "stat", swapping)
    assert read_small(open_storage(tmp_path), "file") is None


def test_a_failed_put_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError):
        put_small(open_storage(tmp_path), "taken", b"data")
    assert os.listdir(tmp_path) == ["taken"]
