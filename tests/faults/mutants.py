"""Writers that are broken on purpose: rows that pass with one of these would show nothing."""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

_fsync, _replace = os.fsync, os.replace


@contextmanager
def _in_the_place_of(name: str, call: Callable[..., Any]) -> Iterator[None]:
    with mock.patch.object(os, name, call):
        yield


def _only(wanted: Callable[[int], bool]) -> Callable[[int], None]:
    def fsync(descriptor: int) -> None:
        if wanted(os.fstat(descriptor).st_mode):
            _fsync(descriptor)

    return fsync


def _unlink_then_rename(source: Any, target: Any, *, src_dir_fd: int | None, dst_dir_fd: int | None) -> None:
    with suppress(FileNotFoundError):
        os.unlink(target, dir_fd=dst_dir_fd)
    _replace(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)


def _no_answer(_: Any) -> Any:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


MUTANTS: dict[str, Any] = {
    "files are not synced": lambda: _in_the_place_of("fsync", _only(stat.S_ISDIR)),
    "folders are not synced": lambda: _in_the_place_of("fsync", _only(stat.S_ISREG)),
    "the old metadata goes first": lambda: _in_the_place_of("replace", _unlink_then_rename),
}

# No mutants of the writer, but what it may meet.
SURROUNDINGS: dict[str, Any] = {"nobody tells how much room there is": lambda: _in_the_place_of("statvfs", _no_answer)}
