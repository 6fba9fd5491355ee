"""What a place for checkpoints can do, as it is known and as it is seen, with what follows (`check_place`); and what
streamxf relies on of every storage, and so of one from elsewhere (`check_storage`).
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

from streamxf.buffers import write_all
from streamxf.errors import ForeignError, ParameterError, ReplacedMeanwhile, UnsupportedError
from streamxf.places import Mount, Storage
from streamxf.storage.abilities import Abilities

_MEBIBYTE = 2**20
_LARGE = 16 * _MEBIBYTE
_LOCKS = [None, "none", "machine", "hosts"]
_PAUSE = 0.05  # seconds

FILES = {
    "plain": bytes(range(256)) * 300,
    "empty": b"",
    "folder/inside": b"inside",
    "folder/deeper/still": b"still",
    "one*": b"a star",
    "one two [3]": b"blanks and brackets",
}
"""What the suite writes, by path. A storage that is only read has to hold the like."""

_LATER = "no save over a checkpoint; rules keep all that was saved within ten minutes, and two complete ones older"
_RACE = "of two saves to one folder at the same moment, one may be lost"


def observe_abilities(storage: Storage, second: Storage | None = None, patience: float = 60.0) -> dict[str, Any]:
    """Values of `Abilities` that a place is seen to have, by name: those that can be seen, of this process's view; None
    for what the second cannot tell.

    Parameters
    ----------
    storage : Storage
        An empty place. Nothing is left there.
    second : Storage, optional
        The same folder, reached in another way: by another mount, as another machine has it, or by the URL of what is
        mounted. Whether writes are stored, in which order, what reads show and whom locks reach is seen with it alone.
    patience : float
        Seconds to wait until the second shows what was written.

    Raises
    ------
    ParameterError
        If the second never shows what was written.
    """
    storage.make_folder()
    try:
        found = _conditions(storage) | _links(storage) | _steps(storage) | _copies(storage)
        if second is not None:
            found |= _seen_by(second, storage, patience)
        return found | _locks(storage, second)
    finally:
        _clear(storage)


def weaker_than(seen: dict[str, Any], known: Abilities) -> list[str]:
    """The names of what was seen to be less than it is known for."""
    return [name for name, value in seen.items() if value is not None and _rank(value) < _rank(getattr(known, name))]


def _rank(value: Any) -> int:
    return _LOCKS.index(value) if value in _LOCKS else int(value)


def _conditions(storage: Storage) -> dict[str, Any]:
    storage.write("conditions", b"first")
    stamp = storage.stamp("conditions")
    if stamp is None:
        return {"replaces": False}
    storage.write("conditions", b"second", over=stamp)
    found = {}
    for name, over in (("creates", ""), ("replaces", stamp)):
        try:
            storage.write("conditions", b"too late", over=over)
            found[name] = False
        except ReplacedMeanwhile:
            found[name] = storage.read("conditions", 0, 9) == b"second"
    return found


def _links(storage: Storage) -> dict[str, Any]:
    if not storage.near:
        return {}
    storage.write("links", b"1")
    one, other = (os.path.join(storage.path, name) for name in ("links", "another name"))
    try:
        os.link(one, other)
    except OSError as error:  # whatever else it says: a plain file is there
        _refuse_full(error)
        return {"links": False, "link_facts": False}
    facts, same = os.stat(one), os.stat(other)
    return {"links": True, "link_facts": facts.st_ino == same.st_ino and facts.st_nlink == same.st_nlink == 2}


def _steps(storage: Storage) -> dict[str, Any]:
    """Whether a reader sees the old or the new contents while a file is replaced."""
    contents = [bytes([each]) * _MEBIBYTE for each in (1, 2)]
    storage.write("steps", contents[0])
    pool, whole = ThreadPoolExecutor(1, "replacing"), True
    try:
        turns = [pool.submit(storage.write, "steps", contents[turn % 2]) for turn in range(1, 21)]
        while not turns[-1].done():
            try:
                whole = whole and storage.read("steps", 0, 2 * _MEBIBYTE) in contents
            except OSError as error:
                if not isinstance(error, FileNotFoundError) and error.errno != errno.ESTALE:
                    raise
                whole = False
        for turn in turns:
            turn.result()
    finally:
        pool.shutdown(cancel_futures=True)  # or it would write behind the removal
    return {"in_one_step": whole}


def _copies(storage: Storage) -> dict[str, Any]:
    buffer = bytearray(8 * _MEBIBYTE)
    with storage.told({"copies": True}).create("copies") as file:  # or it would be given copies
        for value in (1, 2):
            buffer[:] = bytes([value]) * len(buffer)
            write_all(file, buffer)
    return {"copies": [storage.read("copies", at, at + 1) for at in (0, 2 * len(buffer) - 1)] == [b"\1", b"\2"]}


def _seen_by(second: Storage, storage: Storage, patience: float) -> dict[str, Any]:
    for name in ("older", "same", "longer", "gone"):
        storage.write(name, b"before")
    storage.write("arrived", os.urandom(_LARGE))  # which takes its time, wherever a cache sends it
    stored = _waited(lambda: second.info("arrived").size == _LARGE, second, 0)
    if not stored and not _waited(lambda: second.info("arrived").size == _LARGE, second, patience):
        raise ParameterError(
            f"{second.label()} has not shown in {patience:.0f} s what was written to {storage.label()}: it is another "
            "place, remembers what was there, or that was lost. Give the URL of what is mounted, or another mount of it"
        )
    seen = {"stored": stored, "in_order": _in_order(storage, second, patience if second.abilities.fresh else 0)}
    if not second.abilities.fresh:  # it may show late what was done at once
        seen = {name: value or None for name, value in seen.items()}
    return seen | {"fresh": _is_fresh(storage, second, patience)}


def _in_order(storage: Storage, second: Storage, patience: float) -> bool | None:
    if not _waited(lambda: "older" in second.names(), second, patience):
        return None
    storage.write("newer", os.urandom(_LARGE))
    storage.remove(["older"])
    last: list[dict[str, int | None]] = []

    def is_over() -> bool:
        last[:] = [second.names()]
        return "older" not in last[0]

    return (last[0].get("newer") == _LARGE) if _waited(is_over, second, patience) else None


def _is_fresh(storage: Storage, second: Storage, patience: float) -> bool | None:
    """Whether it shows at once what the second does, if that is stored at once: else some would come after all."""
    if not (second.abilities.stored and _waited(lambda: _shown(storage) == _shown(second), second, patience)):
        return None
    try:
        second.write("new", b"new")
    except (UnsupportedError, OSError) as error:  # it is only read
        _refuse_full(error)
        return None
    try:
        second.write("same", b"behind")
        second.write("longer", b"behind it")
        failed = second.remove(["gone"])
        changed = {"new": b"new", "same": b"behind", "longer": b"behind it"}
        return None if failed else _shown(storage) == ({name: len(data) for name, data in changed.items()}, changed)
    finally:  # as the first may remember it, and so removes it
        second.write("gone", b"")
        second.remove(["new"])


def _shown(storage: Storage) -> tuple[dict[str, int | None], dict[str, bytes]]:
    """What a place has of the files that the second changes, as it lists them, and as it reads them."""
    names, read = ("new", "same", "longer", "gone"), {}
    for name in names:
        with suppress(OSError, ForeignError):
            read[name] = storage.read(name, 0, 99)
    return {name: size for name, size in storage.names().items() if name in names}, read


def _locks(storage: Storage, second: Storage | None) -> dict[str, Any]:
    """Last of all: a mount may keep nothing of a file that is opened to be locked while it is written."""
    told, known, other = storage.told({"locks": "hosts"}), storage.abilities.locks, None
    try:
        with told.create("lock") as file:
            write_all(file, b"kept ")
            held = told.lock_file("lock", make=True)
            if held is None:
                return {"locks": "none"}
            try:
                if second is not None and storage.near and second.near and second.exists("lock"):
                    other = second.told({"locks": "hosts"})
                keeps_out, reaches = _is_busy(told), other is not None and _is_busy(other)
            finally:
                held.close()
            write_all(file, b"all")
        if not keeps_out or storage.read("lock", 0, 9) != b"kept all":
            return {"locks": "none"}
    except OSError as error:  # whatever else it says: a plain file is written there
        _refuse_full(error)
        return {"locks": "none"}
    return {"locks": "hosts" if (reaches if other is not None else known == "hosts") else "machine"}


def _refuse_full(error: Exception) -> None:
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        raise error


def _is_busy(storage: Storage) -> bool:
    with suppress(BlockingIOError), storage.lock_file("lock") or nullcontext():
        return False
    return True


def _waited(seen: Callable[[], bool], place: Storage, patience: float) -> bool:
    end = time.monotonic() + patience
    while True:
        place.forget_listings()
        with suppress(FileNotFoundError):
            if seen():
                return True
        if time.monotonic() > end:
            return False
        time.sleep(_PAUSE)


class ConformanceError(AssertionError):
    """A codec or a storage lacks a required property; the message has the property and the observation."""


def require(condition: bool, message: str | Callable[[], str]) -> None:
    """Raise `ConformanceError` unless `condition` holds; a bare ``assert`` would vanish under ``python -O``. A message
    that is costly to put together is given as a callable.
    """
    if not condition:
        raise ConformanceError(message if isinstance(message, str) else message())


def check_storage(storage: Storage, files: Mapping[str, bytes] | None = None) -> None:
    """Check that a storage behaves as streamxf requires. Raises ConformanceError, which says where it does not.

    Parameters
    ----------
    storage : Storage
        An empty place. The suite leaves nothing there.
    files : mapping, optional
        For a read-only storage: all its contents by path, such as `streamxf.testing.FILES`. Then nothing is written.
    """
    check_needs(storage, files)
    if files is None:
        seen, known = observe_abilities(storage), storage.abilities
        for name in weaker_than(seen, known):
            require(False, f"by its abilities {name} is {getattr(known, name)!r}, and it was seen to be {seen[name]!r}")


def check_needs(storage: Storage, files: Mapping[str, bytes] | None = None) -> None:
    """The same of what no storage may lack, whatever its `Abilities`."""
    if files is not None:
        _check_reading(storage, files)
        return
    require(not storage.exists() or not [*storage.entries()], "the place is not empty")
    try:
        written = {}
        for path, data in FILES.items():
            storage.make_folder(path.rpartition("/")[0])
            with suppress(*[OSError] * (storage.near and "*" in path)):  # FAT and SMB have no such names
                storage.write(path, data)
                written[path] = data
        _check_reading(storage, written)
        _check_writing(storage)
    finally:
        with suppress(Exception):  # what went wrong before says more
            _clear(storage)


def _clear(storage: Storage) -> None:
    """Leave nothing at a place, but a link to it as it was, and the folder there."""
    is_link = storage.near and os.path.islink(storage.path)
    for each in map(storage.child, os.listdir(storage.path)) if is_link else [storage]:
        each.remove_all()


def _check_reading(storage: Storage, files: Mapping[str, bytes]) -> None:
    for path, data in files.items():
        found, size = storage.info(path), len(data)
        require((found.kind, found.size) == ("file", size), f"info({path!r}) is {found}, of {size} bytes")
        spans = ((0, size), (0, 1), (size // 2, size), (size // 3, size // 2), (max(0, size - 1), size + 9))
        for start, stop in (span for span in spans if span[0] < span[1]):
            got = storage.read(path, start, stop)
            require(got == data[start:stop], f"read({path!r}, {start}, {stop}) gave {len(got)} bytes, or other ones")
        with storage.open(path) as file:
            require(file.read() == data, f"open({path!r}) reads something else")
        folder, _, name = path.rpartition("/")
        place = storage.child(folder) if folder else storage
        require(place.read(name, 0, size) == data, f"child({folder!r}).read({name!r}) gave something else")
        require(place.child(name).info().size == size, f"{path!r} is not found as a separate place")
    for folder in {"", *(path.rpartition("/")[0] for path in files)}:
        _check_listing(storage, folder, files)
    for path in ("missing", "plain/missing", "one"):
        _check_raises(lambda path=path: storage.info(path), f"info({path!r})")  # type: ignore[misc]
        _check_raises(lambda path=path: storage.read(path, 0, 1), f"read({path!r})")  # type: ignore[misc]
    _check_raises(lambda: list(storage.entries("missing")), "entries('missing')")
    path = max(files, key=lambda path: len(files[path]))
    steps = [(at, at + 1000) for at in range(0, len(files[path]), 1000)]
    with ThreadPoolExecutor(8) as pool:
        pieces = list(pool.map(lambda step: storage.read(path, *step), steps))
    require(b"".join(pieces) == files[path], "threads that read at once get each other's bytes")


def _check_listing(storage: Storage, folder: str, files: Mapping[str, bytes]) -> None:
    prefix = f"{folder}/" if folder else ""
    inside = [path.removeprefix(prefix) for path in files if path.startswith(prefix)]
    expected: dict[str, tuple[str, int | None]] = {
        path.partition("/")[0]: ("folder", None) if "/" in path else ("file", len(files[prefix + path]))
        for path in inside
    }
    listed = [(each.name, (each.kind, each.size)) for each in storage.entries(folder)]
    require(sorted(listed) == sorted(expected.items()), f"entries({folder!r}) are {listed}")
    require(not folder or storage.info(folder).kind == "folder", f"info({folder!r}) is no folder")
    found = {each.name: each.size for each in storage.below(folder)}
    require(found == {path: len(files[prefix + path]) for path in inside}, f"below({folder!r}) is {found}")


def _check_writing(storage: Storage) -> None:
    storage.write("plain", b"shorter")
    require(storage.read("plain", 0, 100) == b"shorter", "a file that is replaced keeps some of its old contents")
    with storage.create("created") as file:
        for piece in (b"first", memoryview(b"second"), bytearray(3 * 2**20)):
            with ThreadPoolExecutor(1) as another:  # it has ended by the time that an interrupt goes on
                another.submit(write_all, file, piece).result()
    whole = b"firstsecond" + bytes(3 * 2**20)
    require(storage.read("created", 0, len(whole) + 1) == whole, "create() does not store what was written")
    with suppress(KeyboardInterrupt), storage.create("broken") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    if not storage.near:
        require(not storage.exists("broken"), "a file whose block was left by an error is there")
    failed = storage.remove(["one*", "missing", "folder/inside"])
    require(not failed, f"remove() failed: {failed}")
    require(not storage.exists("one*") and not storage.exists("folder/inside"), "remove() has left a file")
    require(storage.exists("one two [3]") and storage.exists("folder/deeper/still"), "remove() has removed other files")
    if storage.stamp("plain") is not None:
        require(
            storage.abilities.replaces is not False, "there is a stamp, and by its abilities nothing is put over one"
        )
        require(storage.stamp("missing") == "", 'the stamp of a file that is not there is not ""')
    _check_raises(lambda: storage.put("plain", b"once", once=True), "put(once=True)", FileExistsError)
    with suppress(KeyboardInterrupt), storage.child("plain").replacing() as file:
        file.write(b"half")
        raise KeyboardInterrupt
    require(storage.read("plain", 0, 100) == b"shorter", "replacing() does not keep the file after an error")
    with storage.child("plain").replacing() as file:
        file.write(b"anew")
    require(storage.read("plain", 0, 100) == b"anew", "replacing() does not store what was written")


def _check_raises(act: Callable[[], object], what: str, error: type[OSError] = FileNotFoundError) -> None:
    with suppress(error, *[NotADirectoryError] * (error is FileNotFoundError)):
        act()
        raise ConformanceError(f"{what} does not raise {error.__name__}")


@dataclass(frozen=True)
class PlaceReport:
    """What a place can do.

    - `path`: its path or URL; `mount`: where a local one comes from.
    - `known`, `seen`: its abilities before anything was tried, and those seen, by name: None if a second cannot tell.
    - `problem`: what streamxf needs and the place lacks; None if nothing is missing, or nothing was tried.
    """

    path: str
    mount: Mount | None
    known: Abilities
    seen: dict[str, Any]
    problem: str | None = None

    @property
    def weaker(self) -> list[str]:
        """The names of what was seen to be less than it is known for: that would do harm."""
        return weaker_than(self.seen, self.known)

    @property
    def stronger(self) -> list[str]:
        """The names of what is not known, and was seen; but for what the first save sees itself."""
        names = (name for name, value in self.seen.items() if value and name not in ("creates", "replaces"))
        return [name for name in names if getattr(self.known, name) is None]

    @property
    def ok(self) -> bool:
        return self.problem is None and not self.weaker

    @property
    def abilities(self) -> Abilities:
        """Those that count: what was seen to be less is less, and on conditions a first put shows the same."""
        counts = {*self.weaker, "creates", "replaces"} & self.seen.keys()
        return Abilities(**{**asdict(self.known), **{name: self.seen[name] for name in counts}})

    @property
    def consequences(self) -> dict[str, str]:
        """What streamxf does for want of an ability, by its name."""
        can = self.abilities
        late = can.fresh is False or (can.fresh is None and self.mount and not self.known.keeps_older)
        of_late = "what looks like damage is a StaleError" if self.mount else "writers and the manager refuse it"
        of_locks = {
            None: "no file is locked here, so a job's signs of life alone tell of it, each minute",
            "none": "a job's signs of life alone tell of it, each minute",
            "machine": "a free lock says nothing of another machine's job, whose signs of life tell of it",
        }
        found = {
            "locks": of_locks.get(can.locks, ""),
            "stored": "" if can.stored else _LATER,
            "in_order": "" if can.in_order else _LATER,
            "fresh": of_late if late else "",
            "copies": "" if can.copies else "each write gets bytes of its own",
            "threads": "" if can.threads else "one request at a time",
            "replaces": "" if can.replaces or can.locks == "hosts" else _RACE,
            "in_one_step": "" if can.in_one_step else "a reader may meet half a file; a save over a checkpoint warns",
        }
        return {name: text for name, text in found.items() if text}


def check_place(storage: Storage, second: Storage | None = None, *, look: bool = False) -> PlaceReport:
    """Try what a place can do, in a new folder there, which is removed in the end. Raises ParameterError if it is not
    there, or a file; so of the second, and if both are one mount.

    Parameters
    ----------
    storage : Storage
        The place; what is there already is not touched.
    second : Storage, optional
        The same place, reached in another way, as for `observe_abilities`.
    look : bool
        Whether nothing is tried, and nothing written.
    """
    for each in filter(None, (storage, second)):
        _check_there(each)
    if second is not None and _is_one_view(storage, second):
        raise ParameterError(
            f"{storage.label()} and {second.label()} are one mount, which shows what it has yet to store as if it were "
            "stored: give the URL of what is mounted, or another mount of it"
        )
    known, mount = storage.abilities, storage.mount()
    if look:
        return PlaceReport(storage.label(), mount, known, {})
    name = f"streamxf-check-{uuid4().hex}"
    place, problem, seen = storage.child(name), None, {}
    try:
        storage.check_fresh()
        with suppress(FileNotFoundError):
            next(iter(storage.entries()), None)  # as a run's folder is listed
        check_needs(place)
        seen = observe_abilities(place, second and second.child(name))
    except (ConformanceError, UnsupportedError) as error:
        problem = str(error)
    finally:
        place.remove_all()  # an interrupt may have come while it was removed
        for each in [] if second is None else [second.child(name)] * (1 if seen.get("stored") else 5):
            time.sleep(1)  # a cache may yet send what the first has removed
            each.remove_all()
    return PlaceReport(storage.label(), mount, known, seen, problem)


def _check_there(storage: Storage) -> None:
    """Whoever makes what is missing leaves it. Object stores have no empty folders, but their buckets are there."""
    place = storage
    if storage.abilities.flat and "://" in storage.location() and not storage.path.strip("/"):
        raise ParameterError(f"{storage.label()} has buckets alone: give one of them, or a place in it")
    with suppress(PermissionError):  # who writes is told
        while place.path.strip("/") and not place.exists():
            if not place.abilities.flat or "/" not in place.path.strip("/"):
                raise ParameterError(f"{place.label()} is not there: make it first, or correct its name")
            place, _ = place.parent()
    if storage.exists() and not storage.is_folder():
        raise ParameterError(f"{storage.label()} is a file: give the folder, or the URL, where checkpoints are kept")


def _is_one_view(storage: Storage, second: Storage) -> bool:
    if storage.near and second.near:
        return os.stat(storage.path).st_dev == os.stat(second.path).st_dev
    return storage.location().rstrip("/") == second.location().rstrip("/")
