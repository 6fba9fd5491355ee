"""Executors for tests of tools: each loses, delays or alters something."""

import os
import pickle
import signal
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from streamxf.storage.storage import Storage, StorageEntry


def answered(call: Callable[[], Any]) -> Future[Any]:
    future: Future[Any] = Future()
    try:
        future.set_result(call())
    except Exception as error:
        future.set_exception(error)
    return future


class Elsewhere(Executor):
    """Stands for one with workers on other hosts: everything passes through an ordinary pickle. `sent` is that."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return answered(lambda: self.made(call, args))

    def made(self, call: Callable[..., Any], args: Any) -> Any:
        self.sent.append(pickle.dumps((call, args)))
        there, arguments = pickle.loads(self.sent[-1])
        return pickle.loads(pickle.dumps(there(*arguments)))


class Backwards(Elsewhere):
    """Makes the calls when the first result is waited for, the last one first."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        executor = self

        class Late(Future[Any]):
            def result(self, timeout: float | None = None) -> Any:
                while executor.waiting:
                    future, made = executor.waiting.pop()
                    future.set_result(made())
                return super().result(timeout)

        future = Late()
        self.waiting.append((future, lambda: self.made(call, args)))
        return future


class Losing(Elsewhere):
    """Loses what `loses`, a function of the task's number, says."""

    def __init__(self, loses: Callable[[int], bool]) -> None:
        super().__init__()
        self.loses, self.count = loses, 0

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.count += 1
        if self.loses(self.count):
            return answered(lambda: 1 // 0)
        return super().submit(call, *args)


class Altering(Elsewhere):
    """Alters each result by `change`."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        super().__init__()
        self.change = change

    def made(self, call: Callable[..., Any], args: Any) -> Any:
        return self.change(super().made(call, args))


class Interrupted(Future[Any]):
    def result(self, timeout: float | None = None) -> Any:
        raise KeyboardInterrupt


class Silent(Executor):
    """Begins nothing, and who waits for it is interrupted; `futures` are those that it gave."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.futures.append(Interrupted())
        return self.futures[-1]


class Deadly(Storage):
    """A user's own storage, whose reads of data files kill any process but that which made it."""

    def __init__(self, path: str, location: str | None = None) -> None:
        super().__init__(path, path if location is None else location)
        self.parent_id = os.getpid()

    def info(self, path: str = "") -> StorageEntry:
        found = Path(self.path_of(path))
        facts = found.stat()
        if found.is_dir():
            return StorageEntry(found.name, "folder")
        return StorageEntry(found.name, "file", facts.st_size)

    def entries(self, path: str = "") -> list[StorageEntry]:
        return [self.info(name) for name in sorted(os.listdir(self.path_of(path)))]

    def read(self, path: str, start: int, stop: int) -> bytes:
        if os.getpid() != self.parent_id:
            os.kill(os.getpid(), signal.SIGKILL)
        with open(self.path_of(path), "rb") as file:
            file.seek(start)
            return file.read(stop - start)

    def path_of(self, name: str) -> str:
        return "/" + super().path_of(name).lstrip("/")


class Unpicklable(Deadly):
    """The same, which cannot be sent."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.lock = lambda: None


class Poor(Elsewhere):
    """Stands for workers whose machines lack something: `lacking` gives a context in which each call is made."""

    def __init__(self, lacking: Callable[[], AbstractContextManager[Any]]) -> None:
        super().__init__()
        self.lacking = lacking

    def made(self, call: Callable[..., Any], args: Any) -> Any:
        with self.lacking():
            return super().made(call, args)
