"""Reads by position: from any thread, across forks, from files of every kind, and never beyond what is there."""

import io
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

import streamxf
from streamxf.buffers import Scratch
from streamxf.engine import ForkLock
from streamxf.errors import ContainerError, ReplacedError
from streamxf.storage import reading
from streamxf.stream.container import BlockReader, read_header
from tests.forge import prefix_of
from tests.polling import SECONDS, WatchedLock, at_once
from tests.samples import BLOCK, FULL, KEY, data_of, encode

DATA = data_of(9 * BLOCK + 77)
FILE = encode(DATA, FULL)


class Bare:
    """A file that can seek, tell and read, and reads less than it is asked for."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)
        self.seek, self.tell = self._file.seek, self._file.tell

    def read(self, size: int) -> bytes:
        return self._file.read(min(size, 1000))


class Short(io.BytesIO):
    """Fills less of a buffer than there is room."""

    def readinto(self, buffer: Any) -> int:
        return super().readinto(memoryview(buffer)[:999])


class Derived(io.FileIO):
    """Somebody's own class, which may do anything between here and the descriptor."""


@pytest.fixture(params=["unbuffered", "buffered", "derived", "BytesIO", "short", "bare"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A file that holds `FILE` behind ten other bytes."""
    path = tmp_path / "file"
    path.write_bytes(b"0123456789" + FILE)
    kinds: dict[str, Callable[[], Any]] = {
        "unbuffered": lambda: path.open("rb", buffering=0),
        "buffered": lambda: path.open("rb"),
        "derived": lambda: Derived(path),
        "BytesIO": lambda: io.BytesIO(path.read_bytes()),
        "short": lambda: Short(path.read_bytes()),
        "bare": lambda: Bare(path.read_bytes()),
    }
    file = kinds[request.param]()
    yield file
    getattr(file, "close", lambda: None)()


def test_only_pythons_own_files_are_read_past_their_position(opened: Any) -> None:
    assert reading.access_to(opened).parallel == (type(opened) in (io.FileIO, io.BufferedReader))


@pytest.mark.parametrize("length", [len(FILE), reading.READ_WHOLE // 2], ids=["large", "read whole"])
def test_slices(opened: Any, length: int) -> None:
    source = reading.FileSlice(opened, 10, length)
    for position, size in [(0, 5), (7, 0), (length - 3, 3), (100, length - 100), (length, 0)]:
        assert source.read_at(position, size) == FILE[:length][position : position + size]
        out = bytearray(size)
        source.read_into(position, memoryview(out))
        assert out == FILE[position : position + size]
        assert source.view(position, size, Scratch()) == out
    assert source.slice(50, length).read_at(0, 9) == FILE[50:59]
    with pytest.raises(ContainerError, match="truncated"):
        source.slice(50, 60).read_at(0, 11)
    for position, size in [(0, length + 1), (length, 1), (-1, 1)]:
        with pytest.raises(ContainerError, match="truncated"):
            source.read_at(position, size)
        with pytest.raises(ContainerError, match="truncated"):
            source.read_into(position, memoryview(bytearray(size)))


def test_a_file_that_ends_before_its_slice_does(opened: Any) -> None:
    source = reading.FileSlice(opened, 10, len(FILE) + 1000)
    with pytest.raises(ContainerError, match="ends 1000 bytes before"):
        source.read_at(len(FILE) - 10, 1010)


def test_the_seconds_of_reads_are_told(opened: Any) -> None:
    seconds: list[float] = []
    source = reading.FileSlice(reading.Timed(reading.access_to(opened), seconds.append), 10, len(FILE))
    source.read_at(0, 100)
    source.read_at(100, 100)
    assert len(seconds) == 2
    assert all(second > 0 for second in seconds)


def in_threads(*actions: Callable[[], None]) -> None:
    errors: list[BaseException] = []

    def run(action: Callable[[], None]) -> None:
        try:
            action()
        except BaseException as error:
            errors.append(error)

    at_once(run, actions)
    if errors:
        raise errors[0]


def test_no_thread_comes_between_a_seek_and_its_read(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, others, found = WatchedLock(threading.Lock()), [], [bytearray(10), bytearray(10)]
    monkeypatch.setattr(ForkLock, "here", lambda _: lock)

    def read_elsewhere() -> None:
        access.read_into(500, memoryview(found[1]))
        lock.asked.set()

    class Interrupted(io.BytesIO):
        def readinto(self, buffer: Any) -> int:
            if not others:
                others.append(threading.Thread(target=read_elsewhere, daemon=True))
                others[0].start()
                assert lock.asked.wait(SECONDS)
            return super().readinto(buffer)

    access = reading.access_to(Interrupted(FILE))
    access.read_into(0, memoryview(found[0]))
    others[0].join(SECONDS)
    assert found == [FILE[:10], FILE[500:510]]


def test_threads_share_a_reader(opened: Any) -> None:
    opened.seek(10)
    reader = streamxf_reader(opened)

    def read(seed: int) -> None:
        for number in range(25):
            start = (seed * 7919 + number * 104729) % len(DATA)
            out = bytearray((number * 31337) % (3 * BLOCK) + 1)
            count = reader.readinto_at(start, out)
            assert count == min(len(out), len(DATA) - start)
            assert out[:count] == DATA[start : start + count]

    in_threads(*[lambda seed=seed: read(seed) for seed in range(4)])
    assert reader.tell() == 0


def streamxf_reader(file: Any) -> Any:
    if isinstance(file, Bare):
        file.seekable = lambda: True  # type: ignore[attr-defined]
    return streamxf.open(file, keys=KEY)


def test_threads_that_read_on_get_each_byte_once(opened: Any) -> None:
    opened.seek(10)
    reader = streamxf_reader(opened)
    pieces: list[bytes] = []

    def read() -> None:
        while piece := reader.read(10_007):
            pieces.append(piece)

    in_threads(read, read, read)
    assert sum(map(len, pieces)) == len(DATA)
    assert all(piece in DATA for piece in pieces)


def test_a_read_ends_when_another_thread_has_read_the_rest() -> None:
    """It must neither go on for ever nor fill up with zeros."""
    reader = streamxf.open(io.BytesIO(FILE), keys=KEY)
    readinto = type(reader).readinto

    class Late(type(reader)):  # type: ignore[misc]
        def readinto(self, buffer: Any) -> int:
            self.seek(0, io.SEEK_END)  # another thread was faster
            return readinto(self, buffer)

    reader.__class__ = Late
    assert reader.read() == b""
    reader.seek(5)
    assert reader.read(100) == b""


FORK = """
import os, sys, threading, streamxf
path, key = sys.argv[1], bytes(range(32))
with open(path, "rb") as file:
    reader = streamxf.open(file, keys=key)
    whole = reader.read()
    stop = threading.Event()
    def read_on():
        while not stop.is_set():
            reader.readinto_at(0, bytearray(len(whole)))
    thread = threading.Thread(target=read_on)
    thread.start()
    for _ in range(10):
        pid = os.fork()
        if not pid:
            reader.seek(0)
            os._exit(0 if reader.read() == whole else 1)
        assert os.waitpid(pid, 0)[1] == 0
    stop.set()
    thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_reads_while_its_parent_does(tmp_path: Path) -> None:
    path = tmp_path / "file.sxf"
    path.write_bytes(FILE)
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORK, str(path)], check=True, timeout=60)


def test_blocks_are_announced_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    source = reading.FileSlice(io.BytesIO(encode(DATA, [streamxf.ZStandard()])), len(prefix_of()))
    blocks = BlockReader(source, read_header(source), None)
    announced: list[tuple[int, int]] = []
    monkeypatch.setattr(reading.FileSlice, "expect", lambda self, *spans: announced.extend(spans))
    blocks.expect((0, 1))
    blocks.expect((1, 3), (3, blocks.count))
    sizes = [blocks.stored_size_of(number) for number in range(blocks.count)]
    begin = blocks.header.size
    ends = [begin + sum(sizes[:number]) for number in range(blocks.count + 1)]
    assert announced == [(begin, ends[1]), (ends[1], ends[3]), (ends[3], ends[-1])]


@contextmanager
def names_open(folder: Path, opened: list[str], name: str) -> Iterator[reading.StoredFile]:
    """Open a file of a folder, and keep in `opened` which are."""
    with (folder / name).open("rb", buffering=0) as raw:
        opened.append(name)
        yield reading.StoredFile(name, os.fstat(raw.fileno()).st_size, raw, reading.access_to(raw))
    opened.remove(name)


@pytest.mark.parametrize("near", [True, False])
def test_files_that_are_kept_open_are_closed_one_by_one_or_together(tmp_path: Path, near: bool) -> None:
    opened: list[str] = []
    names = [f"{number:03}" for number in range(300)]
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    files = reading.OpenFiles(partial(names_open, tmp_path, opened), near=near)
    assert [files[name].name for name in ("000", "001", "000")] == ["000", "001", "000"]
    assert opened == ["000", "001"]
    slices = [files[name].slice(0, 3) for name in names]
    assert 0 < len(opened) <= (reading.most_open() if near else 8)
    assert [each.read_at(0, 3).decode() for each in slices] == names
    files.close()
    assert opened == []


@pytest.fixture
def few_files() -> Iterator[int]:
    """This process can open so many more, at most."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(each) for each in os.listdir("/proc/self/fd")}
    free = (number for number in count() if number not in used)  # and the one that showed these
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(islice(free, 7, None)), before[1]))
    yield 8
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def big_files(folder: Path, count: int) -> dict[str, bytes]:
    """Files that are not read whole when a part of them is opened."""
    contents = {f"{number}": bytes([number]) * (reading.READ_WHOLE + 1) for number in range(count)}
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return contents


def test_where_the_system_opens_no_more_one_is_closed_and_opened_again(tmp_path: Path, few_files: int) -> None:
    opened: list[str] = []
    contents = big_files(tmp_path, 3 * few_files)
    files = reading.OpenFiles(partial(names_open, tmp_path, opened), near=True)
    files._most = 10**6
    slices = {name: files[name].slice(0, reading.READ_WHOLE + 1) for name in contents}
    assert 0 < len(opened) <= few_files
    read: dict[str, bytes] = {}
    at_once(lambda name: read.update({name: slices[name].read_at(0, reading.READ_WHOLE + 1)}), [*contents])
    assert read == contents
    files.close()
    with pytest.raises(ValueError, match="closed file"):
        slices["0"].read_at(0, 1)
    kept = [files[name] for name in [*contents][:2]]  # and the same again
    assert [each.slice(0, reading.READ_WHOLE + 1).read_at(5, 1) for each in kept] == [b"\0", b"\1"]
    files.close()


@pytest.mark.parametrize("how", ["replaced", "longer", "gone"])
def test_a_file_that_became_another_one_is_not_read_again(tmp_path: Path, how: str) -> None:
    big_files(tmp_path, 2)
    files = reading.OpenFiles(partial(names_open, tmp_path, []), near=True)
    files._most = 1
    first = files["0"].slice(0, reading.READ_WHOLE + 1)
    files["1"]
    path = tmp_path / "0"
    if how == "replaced":
        (tmp_path / "new").write_bytes(path.read_bytes())
        (tmp_path / "new").rename(path)
    elif how == "longer":
        path.write_bytes(path.read_bytes() + b"x")
    else:
        path.unlink()
    with pytest.raises(ReplacedError, match="another process writes here"):
        first.read_at(0, 1)
    files.close()
