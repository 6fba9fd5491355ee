"""What a place is seen to do, by one view of it and by two; and ``streamxf check``."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from streamxf.errors import ParameterError
from streamxf.storage.abilities import MOUNTS, Abilities, Mount
from streamxf.storage.local import LocalStorage
from streamxf.storage.opening import open_storage
from streamxf.storage.storage import Storage
from streamxf.storage.stores import ABSENT
from streamxf.testing import ConformanceError, check_storage
from streamxf.tools.check import PlaceReport, check_place, observe_abilities, weaker_than
from tests.cli.command import Run
from tests.failing import fails_with
from tests.storage.stores import MemoryStorage

LATER = 0.4  # seconds


class Mounted(MemoryStorage):
    """A view of what is `below`, which gets what is written here some time `after` it: a call sees to that."""

    after = 0.0

    def __init__(self, below: MemoryStorage) -> None:
        super().__init__()
        self.below_it, self.waiting = below, list[tuple[float, str, Any]]()

    def _sent(self) -> None:
        for due, path, held in [each for each in self.waiting if each[0] <= time.monotonic()]:
            self.waiting.remove((due, path, held))
            self.below_it.files[path] = held

    def write(self, path: str, data: bytes, *, over: str | None = None) -> None:
        super().write(path, data, over=over)
        key = self.path_of(path)
        self.waiting.append((time.monotonic() + self.after, key, self.files[key]))
        self._sent()

    def remove(self, paths: Iterable[str]) -> dict[str, Exception]:
        for path in (paths := [*paths]):
            self.below_it.files.pop(self.path_of(path), None)
        return super().remove(paths)


class Server(MemoryStorage):
    """What is below: whoever looks there finds what has been sent by then."""

    def __init__(self) -> None:
        super().__init__()
        self.mounts: list[Mounted] = []

    def mount(self, cls: type[Mounted]) -> Mounted:
        self.mounts.append(cls(self))
        return self.mounts[-1]

    def info(self, path: str = "") -> Any:
        for each in self.mounts:
            each._sent()
        return super().info(path)

    def entries(self, path: str = "") -> Any:
        for each in self.mounts:
            each._sent()
        return super().entries(path)

    def read(self, path: str, start: int, stop: int) -> bytes:
        self.info(path)
        return super().read(path, start, stop)


class Through(Mounted):
    """What is asked comes from below, too."""

    def info(self, path: str = "") -> Any:
        return self.below_it.info(self.path_of(path))

    def entries(self, path: str = "") -> Any:
        return self.below_it.entries(self.path_of(path))

    def read(self, path: str, start: int, stop: int) -> bytes:
        return self.below_it.read(path, start, stop)


class Stale(Through):
    """But for one file, or for its listing, once somebody else has changed some."""

    stale = ""

    def entries(self, path: str = "") -> Any:
        found = [*super().entries(path)]
        self.last = self.last if self._is_stale("listing") else found
        return self.last

    def read(self, path: str, start: int, stop: int) -> bytes:
        if not self._is_stale(path):
            return super().read(path, start, stop)
        if path in ("same", "gone"):
            return b"before"
        raise FileNotFoundError(path) if path == "new" else OSError(errno.EIO, "of another size", path)

    def _is_stale(self, what: str) -> bool:
        return what == self.stale and "new" in self.below_it.files


class Late(Through):
    """It shows what it remembers, for a while, and stores at once."""

    own_abilities, until = replace(MemoryStorage.own_abilities, fresh=None), 0.0

    def __init__(self, below: MemoryStorage) -> None:
        super().__init__(below)
        self.real, self.below_it = below, MemoryStorage()
        self.write, self.remove = below.write, below.remove  # type: ignore[method-assign]

    def forget_listings(self) -> None:
        """Before each look."""
        if self.until and time.monotonic() > self.until:
            self.below_it.files, self.until = dict(self.real.files), 0.0
        self.until = self.until or time.monotonic() + 1


class OnlyRead(Through):
    def write(self, path: str, data: bytes, *, over: str | None = None) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)


class Later(Through):
    """Nobody knows that it stores later."""

    own_abilities, after = replace(MemoryStorage.own_abilities, stored=None), LATER


class Behind(Mounted):
    """With a cache of what is written, which is sent later, while removals go at once."""

    after = LATER


class Large(Mounted):
    """A cache that sends what is small before anybody can look."""

    def write(self, path: str, data: bytes, *, over: str | None = None) -> None:
        self.after = LATER * (len(data) > 2**20)
        super().write(path, data, over=over)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Through, {"stored": True, "in_order": True, "fresh": True}),
        (Mounted, {"stored": True, "in_order": True, "fresh": False}),
        (Behind, {"stored": False, "in_order": False, "fresh": False}),
        (Large, {"stored": False, "in_order": False, "fresh": False}),
    ],
)
def test_two_views_of_one_place(kind: type[Mounted], expected: dict[str, bool]) -> None:
    server = Server()
    seen = observe_abilities(server.mount(kind), server, 5)
    assert {name: seen[name] for name in expected} == expected
    assert (seen["creates"], seen["replaces"], seen["in_one_step"], seen["copies"]) == (True,) * 4
    assert seen["locks"] == "none"
    time.sleep(LATER)
    server.exists()
    assert not [*server.mounts[0].files]


@pytest.mark.parametrize("stale", ["listing", "same", "longer", "new", "gone"])
def test_any_read_may_be_stale(stale: str) -> None:
    server = Server()
    seen = observe_abilities(server.mount(type("", (Stale,), {"stale": stale})), server, 5)
    assert (seen["stored"], seen["in_order"], seen["fresh"]) == (True, True, False)
    assert not server.files


@pytest.mark.parametrize(
    ("kind", "unknown"), [(Late, {"stored", "in_order"}), (OnlyRead, {"fresh"}), (Later, {"fresh"})]
)
def test_what_a_second_view_cannot_tell_is_no_fault_of_the_first(kind: type[Mounted], unknown: set[str]) -> None:
    """Nor does what the second would store later stay behind."""
    server = Server()
    first = server.mount(Through)
    seen = observe_abilities(first, server.mount(kind), 5)
    assert {name for name, value in seen.items() if value is None} in (unknown, unknown - {"in_order"})
    assert (seen["fresh"], seen["stored"]) == ("fresh" not in unknown or None, "stored" not in unknown or None)
    assert weaker_than(seen, first.abilities) == []
    time.sleep(LATER)
    server.exists()
    assert not server.files


def test_what_a_cache_sends_after_the_removal_is_removed() -> None:
    server = Server()
    server.write("there", b"1")
    first = server.mount(Behind)
    assert check_place(first, server).seen["stored"] is False
    time.sleep(LATER)
    server.exists()
    assert [*server.files] == ["there"]


def test_nothing_is_written_behind_the_removal_after_an_interrupt() -> None:
    class Slow(MemoryStorage):
        def write(self, path: str, data: bytes, *, over: str | None = None) -> None:
            time.sleep(0.05 * (path == "steps"))
            super().write(path, data, over=over)

        def read(self, path: str, start: int, stop: int) -> bytes:
            if path == "steps":
                raise KeyboardInterrupt
            return super().read(path, start, stop)

    place = Slow()
    with pytest.raises(KeyboardInterrupt):
        observe_abilities(place)
    time.sleep(0.5)
    assert not place.files


def test_a_stream_is_written_to_no_more_once_it_is_left() -> None:
    happened = []

    class Stream(MemoryStorage):
        @contextmanager
        def create(self, path: str = "") -> Iterator[IO[bytes]]:
            class File:
                def write(self, data: Any) -> int:
                    time.sleep(0.2)  # until it is waited for
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                    time.sleep(0.5)
                    happened.append("written")
                    return len(data)

            try:
                yield File()  # type: ignore[misc]
            finally:
                happened.append("left")

    with pytest.raises(KeyboardInterrupt):
        check_storage(Stream())
    assert happened == ["written", "left"]


def test_another_place_is_not_taken_for_a_second_view() -> None:
    with pytest.raises(ParameterError, match="it is another place"):
        observe_abilities(MemoryStorage(), MemoryStorage(), 0.1)


class Keeps(MemoryStorage):
    """Its streams keep views, and are joined in the end."""

    @contextmanager
    def create(self, path: str = "") -> Iterator[IO[bytes]]:
        pieces: list[Any] = []

        class File:
            def write(self, data: Any) -> int:
                pieces.append(data)
                return len(data)

        yield File()  # type: ignore[misc]
        self.write(path, b"".join(pieces))


class HalfWay(MemoryStorage):
    """A file is not there for a moment while it is replaced."""

    def write(self, path: str, data: bytes, *, over: str | None = None) -> None:
        if over is None:
            self.files.pop(self.path_of(path), None)
            time.sleep(0.005)
        super().write(path, data, over=over)


class Heedless(MemoryStorage):
    def write(self, path: str, data: bytes, *, over: str | None = None) -> None:
        super().write(path, data, over=over if over == ABSENT else None)


@pytest.mark.parametrize(("kind", "name"), [(Keeps, "copies"), (HalfWay, "in_one_step"), (Heedless, "replaces")])
def test_a_storage_that_says_more_than_it_does(
    kind: type[MemoryStorage], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConformanceError, match=f"by its abilities {name} is True, and it was seen to be False"):
        check_storage(kind().told({"in_one_step": True}))
    honest = kind().told({"in_one_step": True, name: False})
    if name != "replaces":
        check_storage(honest)
        return
    with pytest.raises(ConformanceError, match="there is a stamp, and by its abilities nothing is put over one"):
        check_storage(honest)
    monkeypatch.setattr(Heedless, "stamp", lambda *_: None)
    check_storage(honest)


def test_locks_and_links_of_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = open_storage(tmp_path)
    seen = observe_abilities(place.child("one"))
    assert (seen["locks"], seen["links"], seen["link_facts"], seen["replaces"]) == ("hosts", True, True, False)
    assert not [*tmp_path.iterdir()]
    of_one = observe_abilities(open_storage(tmp_path, abilities={"locks": "machine"}).child("two"))
    assert of_one["locks"] == "machine"
    monkeypatch.setattr("streamxf.tools.check._is_one_view", lambda storage, second: False)
    found = check_place(place, open_storage(tmp_path))
    assert found.ok
    assert found.seen["locks"] == "hosts"
    assert found.seen["fresh"]
    monkeypatch.setattr("streamxf.tools.check._is_busy", lambda storage: storage is not place and False)
    found = check_place(place)
    assert found.weaker == ["locks"]
    assert not found.ok
    assert found.consequences["locks"].startswith("a job's signs of life alone")


def test_one_mount_is_no_second_view(tmp_path: Path) -> None:
    """It shows what waits in its cache: whoever took that for stored has lost a checkpoint with rclone."""
    (tmp_path / "place").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "place")
    for other in ("place", "link", "other"):
        with pytest.raises(ParameterError, match=r"are one mount.*: give the URL of what is mounted, or another mount"):
            check_place(open_storage(tmp_path / "place"), open_storage(tmp_path / other))
    assert not [*(tmp_path / "place").iterdir()]
    MemoryFileSystem().pipe("/checked/there", b"1")
    with pytest.raises(ParameterError, match="are one mount"):
        check_place(open_storage("memory://checked"), open_storage("memory://checked/"))


def test_a_link_stays_and_nothing_in_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    check_storage(open_storage(tmp_path / "link"))
    assert (tmp_path / "link").is_symlink()
    assert not [*(tmp_path / "target").iterdir()]


def test_a_place_that_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse = fails_with(PermissionError, errno.EACCES, os.strerror(errno.EACCES))
    entries = LocalStorage.entries
    monkeypatch.setattr(LocalStorage, "entries", lambda self: (refuse if self.path == str(tmp_path) else entries)(self))
    with pytest.raises(PermissionError):
        check_place(open_storage(tmp_path))
    assert not [*tmp_path.iterdir()]


def test_no_bucket_is_made() -> None:
    with pytest.raises(ParameterError, match="has buckets alone: give one of them"):
        check_place(open_storage("memory://"))


def test_a_place_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    place = open_storage(tmp_path)
    for missing in (open_storage(tmp_path / "missing"), open_storage("memory://missing"), MemoryStorage("bucket")):
        for given in ((missing,), (place, missing)):
            with pytest.raises(ParameterError, match="is not there: make it first, or correct its name"):
                check_place(*given)
        assert not missing.exists()
    bucket = MemoryStorage()
    bucket.write("bucket/any", b"1")
    assert check_place(bucket.child("bucket/a/new/prefix")).ok
    assert [*bucket.files] == ["bucket/any"]


def test_what_is_not_known_counts_as_the_weakest() -> None:
    class Unknown(MemoryStorage):
        own_abilities = Abilities()

    found = check_place(Unknown(), look=True)
    assert found.ok
    assert not found.seen
    assert found.consequences.keys() == {"locks", "stored", "in_order", "copies", "threads", "replaces", "in_one_step"}
    tried = check_place(Unknown())
    assert tried.stronger == ["in_one_step", "copies", "locks"]


def test_a_place_that_lacks_what_is_needed() -> None:
    class Half(MemoryStorage):
        def read(self, path: str, start: int, stop: int) -> bytes:
            return super().read(path, start, min(stop, 1000))

    found = check_place(Half())
    assert found.problem is not None
    assert "gave 1000 bytes" in found.problem
    assert not found.ok


@pytest.mark.parametrize(("name", "room"), [("created", 50), ("copies", 9 * 2**20), ("lock", 6), ("lock", 0), ("", 0)])
def test_a_full_disk_is_called_full(name: str, room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel tells of it: the last piece is written in part, and the next one not at all."""
    create, make = LocalStorage.create, os.link

    @contextmanager
    def with_room(self: LocalStorage, path: str = "") -> Iterator[Any]:
        left = [room if path == name else sys.maxsize]

        def write(data: Any) -> int:
            size = min(left[0], len(data)) or refuse()
            left[0] -= size
            return file.write(memoryview(data)[:size])

        with create(self, path) as file:
            yield SimpleNamespace(write=write)

    def refuse() -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(LocalStorage, "create", with_room)
    if not name:
        monkeypatch.setattr(os, "link", lambda *names, **how: make(*names, **how) if how else refuse())
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        check_place(open_storage(tmp_path))
    assert not [*tmp_path.iterdir()]


class NoStars(LocalStorage):
    """A file system such as exFAT, which has no names with a star."""

    def write(self, path: str, data: bytes, *, over: str | None = None) -> None:
        if "*" in path:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        super().write(path, data, over=over)


def test_names_that_a_file_system_refuses_are_no_fault(tmp_path: Path) -> None:
    check_storage(NoStars(tmp_path))

    class Expands(LocalStorage):
        def write(self, path: str, data: bytes, *, over: str | None = None) -> None:
            super().write(path.replace("*", " two [3]"), data, over=over)

    with pytest.raises(FileNotFoundError):
        check_storage(Expands(tmp_path))


def test_a_mounts_source_is_printed_as_text(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_text

    def read_text(path: Path, **how: Any) -> str:
        return re.sub(r"( - \S+) \S+", "\\1 my\\\\040disk\\\\134\x1b[31m", read(path, **how))

    monkeypatch.setattr(Path, "read_text", read_text)
    assert "mounted from my disk\\\\x1b[31m" in run("check", tmp_path, "--look").out.replace("\n", " ")
    assert run("check", tmp_path, "--look", "--json").json["mount_source"] == "my disk\\\x1b[31m"


def test_the_command(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(tmp_path) in run.exits(0, "check", tmp_path).out
    assert not [*tmp_path.iterdir()]
    assert run("check", tmp_path / "missing").code == 2
    (tmp_path / "file").touch()
    assert "is a file: give the folder" in run("check", tmp_path / "file").err
    (tmp_path / "file").unlink()
    MemoryFileSystem().pipe("/checked/there", b"1")
    assert "leads through a cache" in run("check", "filecache::memory://checked").out
    assert "are one mount" in run("check", tmp_path, "--second", tmp_path).err
    assert "signs of life alone" in run.exits(0, "check", "memory://checked", "--look").out
    monkeypatch.setattr(Storage, "abilities", Abilities("hosts", replaces=True, in_one_step=True, links=None))
    done = run.exits(1, "check", tmp_path)
    assert "it does less than it is known for. Tell streamxf: abilities={'replaces': False}" in done.out
    done = run("check", tmp_path, "--json")
    assert done.json["ok"] is False
    monkeypatch.setattr("streamxf.tools.check._is_one_view", lambda storage, second: False)
    assert "--second does not tell of fresh: it may be late" in run("check", tmp_path, "--second", tmp_path).out
    assert done.json["seen"]["links"] is True


def test_the_advice_has_what_was_seen_to_be_late(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {"stored": True, "in_order": True, "fresh": False}
    report = PlaceReport(str(tmp_path), Mount("here", "fuse.rclone", "of:somewhere", 1), MOUNTS["fuse.rclone"], seen)
    monkeypatch.setattr("streamxf.tools.check.check_place", lambda *_, **__: report)
    assert f"tell streamxf: abilities={seen}" in run("check", tmp_path).out
    assert report.consequences["fresh"] == "what looks like damage is a StaleError"
    assert "fresh" not in replace(report, known=MOUNTS["fuse.sshfs"]).consequences
