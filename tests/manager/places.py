"""A run's folder on a disk or in an object store, as a test sees it: without streamxf."""

import os
import secrets
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from fsspec.implementations.memory import MemoryFileSystem

Found = dict[str, bytes | str]
"""What lies below a folder by its path there: a file's bytes, or in words what else it is."""


class Disk:
    """A folder `run`, and beside it `victim`, which nothing may touch."""

    local = True

    def __init__(self) -> None:
        self._base = Path(tempfile.mkdtemp(prefix="streamxf-history-"))
        self.run = str(self._base / "run[1]")
        for name in (self.run, self._base / "victim" / "step-1"):
            os.makedirs(name)
        self.victim = str(self._base / "victim")

    def close(self) -> None:
        shutil.rmtree(self._base)

    def path(self, name: str) -> Path:
        return Path(self.run, name)

    def put(self, path: str, data: bytes, when: float | None = None) -> None:
        """A new file takes the place of what has this name."""
        target = self.path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name("draft-of-a-test")
        draft.write_bytes(data)
        if when is not None:
            os.utime(draft, (when, when))
        draft.rename(target)

    def remove(self, path: str) -> None:
        self.path(path).unlink()

    def move(self, name: str, to: str) -> None:
        self.path(name).rename(self.path(to))

    def below(self, name: str = "") -> Found:
        return below(self.path(name))

    def outside(self) -> Found:
        return below(Path(self.victim))

    def lose(self, name: str) -> None:
        path = self.path(name)
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
        else:
            shutil.rmtree(path)

    def is_taken(self, name: str) -> bool:
        return os.path.lexists(self.path(name))

    def is_folder(self, name: str) -> bool:
        return self.path(name).is_dir()


def below(top: Path, prefix: str = "") -> Found:
    found: Found = {}
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(top) as entries:
        for entry in entries:
            name = f"{prefix}{entry.name}"
            if entry.is_symlink():
                found[name] = f"a link to {os.readlink(entry.path)}"
            elif entry.is_dir():
                found |= below(Path(entry.path), f"{name}/")
            elif entry.is_file():
                with open(entry.path, "rb") as file:
                    found[name] = file.read()
            else:
                found[name] = "no regular file"
    return found


class Objects:
    """The same in an object store without conditional writes."""

    local = False

    def __init__(self) -> None:
        self._files = MemoryFileSystem()
        self._base = f"/streamxf-history-{secrets.token_hex(8)}"
        self.run = f"memory:/{self._base}/run[1]"
        self.victim = f"memory:/{self._base}/run1"  # which the run's name would match as a pattern

    def close(self) -> None:
        for path in [path for path in self._files.store if path.startswith(f"{self._base}/")]:
            del self._files.store[path]

    def _inner(self, name: str) -> str:
        return f"{self._base}/run[1]/{name}".rstrip("/")

    def put(self, path: str, data: bytes, when: float | None = None) -> None:
        self._files.pipe_file(self._inner(path), data)

    def remove(self, path: str) -> None:
        self._files.rm_file(self._inner(path))

    def move(self, name: str, to: str) -> None:
        for path, data in self.below(name).items():
            assert isinstance(data, bytes)
            self.put(f"{to}/{path}", data)
            self.remove(f"{name}/{path}")

    def below(self, name: str = "") -> Found:
        return self._found(self._inner(name))

    def outside(self) -> Found:
        return self._found(f"{self._base}/run1")

    def _found(self, top: str) -> Found:
        store = self._files.store
        return {path[len(top) + 1 :]: store[path].getvalue() for path in store if path.startswith(f"{top}/")}

    def lose(self, name: str) -> None:
        for path in self.below(name):
            self.remove(f"{name}/{path}")

    def is_taken(self, name: str) -> bool:
        return self._inner(name) in self._files.store or bool(self.below(name))

    def is_folder(self, name: str) -> bool:
        """Unless it is an object: stores have others below one, and fsspec's memory refuses to."""
        return self._inner(name) not in self._files.store
