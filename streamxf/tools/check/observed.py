"""`observe_abilities`: what a place is seen to do, of what its `Abilities` say."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

from streamxf.buffers import write_all
from streamxf.engine import in_thread
from streamxf.errors import ParameterError, UnsupportedError
from streamxf.places import Abilities, Storage
from streamxf.storage.conditions import ABSENT, ReplacedMeanwhile

_MEBIBYTE = 2**20
_LOCKS = [None, "none", "machine", "hosts"]
_PAUSE = 0.05  # seconds


def observe_abilities(storage: Storage, second: Storage | None = None, patience: float = 60.0) -> dict[str, Any]:
    """Values of `Abilities` that a place is seen to have, by name: those that can be seen, of this process's view.

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
            found |= _arrival(storage, second, patience)
            found |= _order(storage, second, patience) | _freshness(storage, second, patience)
        return found | _locks(storage, second)
    finally:
        storage.remove_all()


def weaker_than(seen: dict[str, Any], known: Abilities) -> list[str]:
    """The names of what was seen to be less than it is known for."""
    return [name for name, value in seen.items() if _rank(value) < _rank(getattr(known, name))]


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

    def replace_often() -> None:
        for turn in range(1, 21):
            storage.write("steps", contents[turn % 2])

    done, whole = in_thread(replace_often, "replacing"), True
    while not done.done():
        with suppress(FileNotFoundError):
            whole = whole and storage.read("steps", 0, 2 * _MEBIBYTE) in contents
            continue
        whole = False
    done.result()
    return {"in_one_step": whole}


def _copies(storage: Storage) -> dict[str, Any]:
    buffer = bytearray(8 * _MEBIBYTE)
    with storage.told({"copies": True}).create("copies") as file:  # or it would be given copies
        for value in (1, 2):
            buffer[:] = bytes([value]) * len(buffer)
            write_all(file, buffer)
    halves = (storage.read("copies", at, at + 1) for at in (0, 2 * len(buffer) - 1))
    return {"copies": [*halves] == [b"\1", b"\2"]}


def _arrival(storage: Storage, second: Storage, patience: float) -> dict[str, Any]:
    name = f"{_new_folder(storage)}/arrived"
    storage.write(name, b"1")
    if second.exists(name):
        return {"stored": True}
    if not _waited(lambda: second.exists(name), second, patience):
        raise ParameterError(
            f"{second.label()} has not shown in {patience:.0f} s what was written to {storage.label()}: it is another "
            "place, or remembers for longer what was there. Give the URL of what is mounted, or another mount of it"
        )
    return {"stored": False} | ({} if second.abilities.fresh else {"fresh": False})


def _order(storage: Storage, second: Storage, patience: float) -> dict[str, Any]:
    folder = _new_folder(storage)
    storage.write(f"{folder}/older", b"1")
    place = second.child(folder)
    _waited(lambda: "older" in place.names(), place, patience)
    storage.write(f"{folder}/newer", bytes(8 * _MEBIBYTE))
    storage.remove([f"{folder}/older"])
    names: dict[str, int | None] = {}

    def is_over() -> bool:
        names.clear()
        names.update(place.names())
        return "older" not in names

    gone = _waited(is_over, place, patience)
    return {"in_order": names.get("newer") == 8 * _MEBIBYTE} if gone else {}


def _freshness(storage: Storage, second: Storage, patience: float) -> dict[str, Any]:
    storage.write("fresh", b"before")
    if not _waited(lambda: second.read("fresh", 0, 9) == b"before", second, patience):
        return {"fresh": False}
    storage.read("fresh", 0, 9), storage.names()
    try:
        second.write("fresh", b"behind")
    except (UnsupportedError, PermissionError):  # it is only read
        return {}
    return {"fresh": storage.read("fresh", 0, 9) == b"behind"}


def _locks(storage: Storage, second: Storage | None) -> dict[str, Any]:
    """Last of all: a mount may keep nothing of a file that is opened to be locked while it is written."""
    told, known = storage.told({"locks": "hosts"}), storage.abilities.locks
    other = second.told({"locks": "hosts"}) if second is not None and _is_other(storage, second) else None
    try:
        with told.create("lock") as file:
            write_all(file, b"kept ")
            held = told.lock_file("lock", make=True)
            if held is None:
                return {"locks": "none"}
            try:
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


def _refuse_full(error: OSError) -> None:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise error


def _is_busy(storage: Storage) -> bool:
    try:
        found = storage.lock_file("lock")
    except BlockingIOError:
        return True
    if found is not None:
        found.close()
    return False


def _is_other(storage: Storage, second: Storage) -> bool:
    """Whether both are local, and not one mount: that knows its own locks."""
    both = storage.near and second.near
    return both and os.stat(storage.path).st_dev != os.stat(second.path).st_dev


def _new_folder(storage: Storage) -> str:
    """One that the second has not looked for before, and so remembers nothing of."""
    name = uuid4().hex
    storage.make_folder(name)
    return name


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
