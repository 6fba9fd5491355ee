"""shim.c from Python: built when it is first needed, and steered by those processes that were started under it."""

import ctypes
import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")


class Kind(IntFlag):
    """What an event is a call of."""

    OPEN_WRITE = 1
    OPEN_READ = 2
    WRITE = 4
    READ = 8
    FSYNC = 16
    FSYNC_FOLDER = 32
    CLOSE = 64
    RENAME = 128
    UNLINK = 256
    MKDIR = 512
    RMDIR = 1024
    TRUNCATE = 2048
    LINK = 4096


ALL = Kind((1 << 13) - 1)
# what takes space, sooner or later: a full disk refuses these, and goes on to rename, to remove and to read
TAKES_SPACE = Kind.OPEN_WRITE | Kind.WRITE | Kind.FSYNC | Kind.FSYNC_FOLDER | Kind.CLOSE | Kind.MKDIR | Kind.TRUNCATE


class Action(IntEnum):
    """What is done at an event."""

    COUNT = 0
    FAIL = 1
    CUT = 2
    KILL_BEFORE = 3
    KILL_AFTER = 4
    KILL_MIDWAY = 5


class When(IntEnum):
    """At one event, at it and all later ones, or at it and every second one after it."""

    ONCE = 0
    FOR_GOOD = 1
    EVERY_SECOND = 2


@dataclass(frozen=True)
class Fault:
    """What goes wrong at event `point`, counted from 0; `later` are the kinds that it also meets after that."""

    action: Action = Action.COUNT
    point: int = -1
    when: When = When.ONCE
    later: Kind = ALL
    error: int = 0
    kill_all: bool = False

    def __str__(self) -> str:
        name = f"{self.action.name.lower()} {errno.errorcode.get(self.error, '')}".strip()
        return f"{name} {self.when.name.lower()} at {self.point}{' of all ranks' if self.kill_all else ''}"


@dataclass(frozen=True)
class Record:
    """An event that changed something, as it was logged."""

    kind: Kind
    created: bool
    inode: int
    offset: int
    size: int
    data: bytes
    path: str
    other: str


class _Record(ctypes.Structure):
    _fields_ = (
        [("kind", ctypes.c_int32), ("created", ctypes.c_int32)]
        + [(name, ctypes.c_int64) for name in ("result", "inode", "offset", "size", "data")]
        + [(name, ctypes.c_char * 512) for name in ("path", "other")]
    )


def compiler() -> str | None:
    """The C compiler, if this machine can build the library and load it."""
    return shutil.which("cc") or shutil.which("gcc") if sys.platform == "linux" else None


def build() -> Path:
    """The library, built from the source as it is now."""
    text = SOURCE.read_bytes()
    above = tempfile.gettempdir()
    if {" ", ":"} & set(above):  # which LD_PRELOAD takes for the end of a name
        above = "/tmp"
    folder = Path(above) / f"streamxf-faults-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise RuntimeError(f"{folder} belongs to somebody else; remove it")
    library = folder / f"shim-{hashlib.sha256(text).hexdigest()[:16]}.so"
    if not library.exists():
        found = compiler()
        if found is None:
            raise RuntimeError("no C compiler: install gcc, or set PATH so that cc is found")
        draft = library.with_suffix(f".{os.getpid()}")
        subprocess.run([found, "-O2", "-shared", "-fPIC", "-o", str(draft), str(SOURCE), "-ldl"], check=True)
        draft.replace(library)
    return library


class Shim:
    """The library in this process, which must have been started with it in LD_PRELOAD."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        if not hasattr(library, "shim_arm"):
            raise RuntimeError("the process was not started under the library: use faults.runner")
        library.shim_arm.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_int64] + [ctypes.c_int] * 5
        library.shim_record.restype = ctypes.POINTER(_Record)
        library.shim_data.restype = ctypes.c_void_p
        self._library = library

    @contextmanager
    def armed(self, root: Path, fault: Fault | None = None, kinds: Kind = ALL, log: bool = False) -> Iterator[None]:
        """Count, and do `fault`, in this process and those that it forks meanwhile."""
        fault = fault or Fault()
        facts = fault.action, fault.point, fault.when, fault.later, fault.error, fault.kill_all
        self._library.shim_arm(os.fsencode(root), kinds, *facts, log)
        try:
            yield
        finally:
            self._library.shim_disarm()

    def join(self) -> None:
        """This process is one of those that die together."""
        self._library.shim_join()

    @property
    def kinds(self) -> list[Kind]:
        """Of all events, in order, since it was armed last."""
        return [Kind(self._library.shim_kind(number)) for number in range(self._library.shim_events())]

    @property
    def hits(self) -> int:
        """How many events went wrong since it was armed last."""
        return int(self._library.shim_hits())

    @property
    def hit(self) -> Kind:
        """The first that went wrong."""
        return Kind(self._library.shim_hit_kind())

    def log(self) -> list[Record]:
        """What was logged since it was armed last."""
        base = self._library.shim_data()
        records = []
        for number in range(self._library.shim_records()):
            found = self._library.shim_record(number).contents
            data = ctypes.string_at(base + found.data, found.size) if found.kind == Kind.WRITE else b""
            paths = os.fsdecode(found.path), os.fsdecode(found.other)
            kind, created = Kind(found.kind), bool(found.created)
            records.append(Record(kind, created, found.inode, found.offset, found.size, data, *paths))
        return records
