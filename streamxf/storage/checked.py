"""What a storage's methods raise: OSError, streamxf's errors, and for anything else a `ForeignError`."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import IO, Any, cast

from streamxf.errors import ForeignError, ReplacedMeanwhile, StreamxfError, hide_passwords, text_of
from streamxf.storage.reading import PositionalFile, StoredFile


def checked(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a storage whose errors are known ones, as are those of the entries and files that it gives."""
    check = _GIVEN.get(method.__name__)

    @wraps(method)
    def call(storage: Any, *given: Any, **more: Any) -> Any:
        file = storage.label(given[0] if given and isinstance(given[0], str) else "")
        with known_errors(file):
            found = method(storage, *given, **more)
            return found if check is None else check(found, file, storage)

    return call


@contextmanager
def known_errors(file: str) -> Iterator[None]:
    """What is raised within it is known by then."""
    try:
        yield
    except Exception as error:
        if (known := known_error(error, file, disk=False)) is not error:
            raise known from error
        raise


def known_error(error: Exception, file: str, *, disk: bool = True) -> Exception:
    """The error, or what stands for another package's, such as botocore's ``ClientError``; without a URL's password.
    EIO is known of a disk: s3fs makes it of what it does not know.
    """
    hide_passwords(error)
    known = isinstance(error, StreamxfError | OSError | MemoryError | ReplacedMeanwhile)
    if known and (disk or getattr(error, "errno", None) != errno.EIO):
        return error
    made = ForeignError(f"the storage failed: {type(error).__name__}: {text_of(error)}", file=file)
    made.__cause__ = error
    return made


def _entries(entries: Iterable[Any], file: str, _: Any) -> Iterator[Any]:
    with known_errors(file):
        for entry in entries:
            yield entry._replace()  # which only an entry has


class _Context:
    """What is raised within it is not the storage's."""

    def __init__(self, context: Any, file: str, storage: Any) -> None:
        self._context = context
        self._file = file
        self._storage = storage

    def __enter__(self) -> Any:
        with known_errors(self._file):
            found = self._context.__enter__()
        if not isinstance(found, StoredFile):
            return (_File if self._storage.abilities.copies else _Viewing)(found, self._file)
        raw, access = _File(found.raw, self._file), _File(found.access, self._file)
        return replace(found, raw=cast("IO[bytes]", raw), access=cast("PositionalFile", access))

    def __exit__(self, *raised: Any) -> Any:
        with known_errors(self._file):
            return self._context.__exit__(*raised)


class _File:
    def __init__(self, file: Any, name: str) -> None:
        self._file = file
        self._name = name

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._file, name)
        if not callable(found):
            return found

        def call(*given: Any, **more: Any) -> Any:
            with known_errors(self._name):
                return found(*given, **more)

        self.__dict__[name] = call
        return call


class _Viewing(_File):
    """One that is not known to copy what it is given, which writers fill again: it gets bytes of its own."""

    def write(self, data: Any) -> Any:
        with known_errors(self._name):
            return self._file.write(bytes(data))


_GIVEN: dict[str, Callable[[Any, str, Any], Any]] = {
    "info": lambda entry, *_: entry._replace(),
    "entries": _entries,
    "below": _entries,
    "read": lambda data, *_: data if isinstance(data, bytes) else bytes(memoryview(data)),
    "open": _Context,
    "create": _Context,
    "replacing": _Context,
    "remove": lambda failed, file, _: {path: known_error(error, f"{file}/{path}") for path, error in failed.items()},
}
