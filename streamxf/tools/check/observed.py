"""`observe_abilities`: what a place is seen to do, of what its `Abilities` say."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from streamxf.buffers import write_all
from streamxf.errors import ParameterError, UnsupportedError
from streamxf.places import Abilities, Storage
from streamxf.storage.conditions import ABSENT, ReplacedMeanwhile

_MEBIBYTE = 2**20
_LARGE = 16 * _MEBIBYTE
_LOCKS = [None, "none", "machine", "hosts"]
_PAUSE = 0.05  # seconds


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
        storage.remove_all()


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
    for name, over in (("creates", ABSENT), ("replaces", stamp)):
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
            with suppress(FileNotFoundError):
                whole = whole and storage.read("steps", 0, 2 * _MEBIBYTE) in contents
                continue
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
    halves = (storage.read("copies", at, at + 1) for at in (0, 2 * len(buffer) - 1))
    return {"copies": [*halves] == [b"\1", b"\2"]}


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
        with suppress(OSError):
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
    if other is not None:
        return {"locks": "hosts" if reaches else "machine"}
    return {"locks": "hosts" if known == "hosts" else "machine"}


def _refuse_full(error: Exception) -> None:
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        raise error


def _is_busy(storage: Storage) -> bool:
    try:
        found = storage.lock_file("lock")
    except BlockingIOError:
        return True
    if found is not None:
        found.close()
    return False


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
