"""What a disk may hold after a crash: the log of a save, replayed up to any event, with what was not synced yet lost.

What POSIX promises and no more: the bytes of a file are there after its ``fsync``, names after the ``fsync`` of their
folder. Of later writes any sectors may be there; of later changes of names, any. A rename happens or does not.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tests.faults.shim import Kind, Record

SECTOR = 512


@dataclass
class File:
    """A file's bytes: as the process sees them, and as they surely are on the disk."""

    now: bytearray
    synced: bytes

    def write(self, offset: int, data: bytes) -> None:
        if len(self.now) < offset:
            self.now.extend(bytes(offset - len(self.now)))
        self.now[offset : offset + len(data)] = data

    def resize(self, size: int) -> None:
        del self.now[size:]
        self.now.extend(bytes(size - len(self.now)))

    def after_crash(self, choose: Choice) -> bytes:
        """What may be left of it."""
        now = bytes(self.now)
        if now == self.synced or choose.data == "kept":
            return now
        if choose.data == "lost":
            return self.synced
        dice = choose.dice
        low, high = sorted((len(now), len(self.synced)))
        size = dice.choice([len(now), len(self.synced), dice.randint(low, high)])
        if dice.random() < 0.3:  # in order, cut anywhere
            cut = dice.randint(0, len(now))
            return now[:cut] + self.synced[cut:size]
        before, left = self.synced.ljust(size, b"\0"), now.ljust(size, b"\0")
        return b"".join(
            (left if dice.random() < 0.5 else before)[start : min(start + SECTOR, size)]
            for start in range(0, size, SECTOR)
        )


@dataclass
class Folder:
    """A folder's names: as the process sees them, as they surely are on the disk, and what has changed in between."""

    now: dict[str, File | Folder] = field(default_factory=dict)
    synced: dict[str, File | Folder] = field(default_factory=dict)
    changes: list[tuple[str | None, str | None, File | Folder | None]] = field(default_factory=list)

    def change(self, gone: str | None, name: str | None, what: File | Folder | None) -> None:
        """One change that happens whole or not at all: a name goes, a name comes, or both."""
        _change(self.now, gone, name, what)
        self.changes.append((gone, name, what))

    def sync(self) -> None:
        self.synced = dict(self.now)
        self.changes.clear()

    def after_crash(self, choose: Choice) -> dict[str, bytes]:
        """The files that may be left, by their paths; folders have an empty one, which ends in a slash."""
        names = dict(self.synced)
        for change in self.changes:
            if choose.names == "kept" or (choose.names == "some" and choose.dice.random() < 0.5):
                _change(names, *change)
        found: dict[str, bytes] = {}
        for name, entry in names.items():
            if isinstance(entry, File):
                found[name] = entry.after_crash(choose)
            else:
                found[f"{name}/"] = b""
                found |= {f"{name}/{path}": data for path, data in entry.after_crash(choose).items()}
        return found


@dataclass
class Choice:
    """What a crash does to what was not synced: "lost", "kept" or "some" of it, by the dice."""

    data: str
    names: str
    dice: random.Random


class Disk:
    """The folder `root` as it is now, all of it synced, and then whatever is replayed onto it."""

    def __init__(self, root: Path) -> None:
        self.root = PurePosixPath(root)
        self._inodes: dict[int, File] = {}
        self._top = self._read(root)

    def _read(self, folder: Path) -> Folder:
        found = Folder()
        for entry in folder.iterdir():
            if entry.is_dir():
                found.now[entry.name] = self._read(entry)
            else:
                data = entry.read_bytes()
                found.now[entry.name] = self._inodes[entry.stat().st_ino] = File(bytearray(data), data)
        found.sync()
        return found

    def replay(self, record: Record) -> None:
        """Do what was logged."""
        kind = record.kind
        if kind == Kind.OPEN_WRITE:
            if record.created:
                file = self._inodes[record.inode] = File(bytearray(), b"")
                folder, name = self._find(record.path)
                folder.change(None, name, file)
            elif record.size:  # O_TRUNC
                self._inodes[record.inode].resize(0)
        elif kind == Kind.WRITE:
            self._inodes[record.inode].write(record.offset, record.data)
        elif kind == Kind.TRUNCATE:
            self._inodes[record.inode].resize(record.size)
        elif kind == Kind.FSYNC:
            file = self._inodes[record.inode]
            file.synced = bytes(file.now)
        elif kind == Kind.FSYNC_FOLDER:
            self._folder(PurePosixPath(record.path)).sync()
        elif kind == Kind.MKDIR:
            folder, name = self._find(record.path)
            folder.change(None, name, Folder())
        elif kind in (Kind.UNLINK, Kind.RMDIR):
            folder, name = self._find(record.path)
            folder.change(name, None, None)
        elif kind in (Kind.RENAME, Kind.LINK):
            folder, name = self._find(record.path)
            other, new = self._find(record.other)
            if other is not folder:
                raise NotImplementedError(f"from one folder to another: {record.path} to {record.other}")
            folder.change(name if kind == Kind.RENAME else None, new, folder.now[name])

    def states(self, seeds: Iterable[int]) -> Iterator[dict[str, bytes]]:
        """What may be left if the machine stops now: the extremes, and what the dice make of each seed."""
        for data in ("lost", "kept"):
            for names in ("lost", "kept"):
                yield self._top.after_crash(Choice(data, names, random.Random(0)))
        for seed in seeds:
            dice = random.Random(seed)
            yield self._top.after_crash(Choice("some", dice.choice(["some", "some", "kept", "lost"]), dice))

    def now(self) -> dict[str, bytes]:
        """What the process sees."""
        return self._top.after_crash(Choice("kept", "kept", random.Random(0)))

    def _folder(self, path: PurePosixPath) -> Folder:
        folder = self._top
        for part in path.relative_to(self.root).parts:
            entry = folder.now[part]
            assert isinstance(entry, Folder), path
            folder = entry
        return folder

    def _find(self, path: str) -> tuple[Folder, str]:
        whole = PurePosixPath(path)
        return self._folder(whole.parent), whole.name


def put(root: Path, files: dict[str, bytes]) -> None:
    """Write what a crash left into an empty folder."""
    for name, data in files.items():
        path = root / name
        if name.endswith("/"):
            path.mkdir()
        else:
            path.write_bytes(data)


def get(root: Path) -> dict[str, bytes]:
    """What is in a folder, as `put` takes it."""
    found: dict[str, bytes] = {}
    for folder, folders, files in os.walk(root):
        here = Path(folder).relative_to(root)
        found |= {f"{(here / name).as_posix()}/": b"" for name in folders}
        found |= {(here / name).as_posix(): (root / here / name).read_bytes() for name in files}
    return found


def _change(names: dict[str, File | Folder], gone: str | None, name: str | None, what: File | Folder | None) -> None:
    if gone is not None:
        names.pop(gone, None)
    if name is not None and what is not None:
        names[name] = what
