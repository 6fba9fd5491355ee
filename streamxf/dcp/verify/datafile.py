"""`DataFile`: a data file that is open, whose storage may fail in any way of its own."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from streamxf.dcp.metadata.manifest import check_path
from streamxf.errors import ForeignError, StreamxfError
from streamxf.fileio.counted import Counted
from streamxf.fileio.source import Access, access_to
from streamxf.progress import Share
from streamxf.proportion import Budget, held_bytes

_REMOTE_STEP = 8 * 2**20  # bytes that fsspec fetches at a time; by itself it would hold up to 100 MiB for each file


class GivenUp(Exception):
    """Nobody wants to know any more: another thread was interrupted, or failed."""


class DataFile:
    """An `Access` to a file, which raises no errors but Python's and streamxf's.

    Parameters
    ----------
    file : seekable binary file
    name : str
        Relative to the checkpoint.
    size : int
        Its bytes.
    stopped : callable
        Whether nobody wants to know any more.
    max_expansion : int
        As `verify` takes it.
    share : Share, optional
        Is told what was read.

    Attributes
    ----------
    name : str
    size : int
    parallel : bool
        Whether several threads read at the same time.
    """

    def __init__(
        self,
        file: Any,
        name: str,
        size: int,
        stopped: Callable[[], bool],
        max_expansion: int,
        share: Share | None = None,
    ) -> None:
        access = access_to(file)
        self._access: Access = access if share is None else Counted(access, share.advance)
        self._stopped = stopped
        self._budget = Budget(max_expansion, held_bytes(file, size))
        self.name = name
        self.size = size
        self.parallel = access.parallel

    def read_into(self, position: int, out: memoryview) -> int:
        """Fill `out`, as far as the file goes.

        Raises
        ------
        OSError, ForeignError
            If it cannot be read.
        PolicyError
            If hardly anything of it is stored, and too much of the rest was read: holes have no end.
        GivenUp
        """
        if self._stopped():
            raise GivenUp
        self._budget.spend(len(out), "reading the file")
        with storage_errors(self.name):
            return self._access.read_into(position, out)


@contextmanager
def opened(
    reader: Any,
    name: str,
    stopped: Callable[[], bool],
    max_expansion: int,
    share: Share | None = None,
) -> Iterator[DataFile]:
    """Open a data file, if it is one of the checkpoint's; the arguments are those of `DataFile`.

    Raises
    ------
    FileNotFoundError
        If there is none.
    OSError, StreamxfError
        If it cannot be opened, or leads elsewhere.
    """
    path = reader.fs.concat_path(reader.path, check_path(name))
    with ExitStack() as stack:
        with storage_errors(name):
            reader._check_local(path)
            file = stack.enter_context(_stream(reader.fs, path))
            size = file.seek(0, io.SEEK_END)
        yield DataFile(file, name, size, stopped, max_expansion, share)


def _stream(fs: Any, path: Any) -> Any:
    inner = getattr(fs, "fs", None)
    if inner is None:
        return fs.create_stream(path, "rb")
    return inner.open(os.fspath(path), "rb", block_size=_REMOTE_STEP)


@contextmanager
def storage_errors(file: str) -> Iterator[None]:
    """Replace what a storage's package raises, such as botocore's ``ClientError``, by a `ForeignError` that says where
    it was.
    """
    try:
        yield
    except (StreamxfError, OSError, MemoryError):
        raise
    except Exception as error:
        raise ForeignError(f"the storage failed: {type(error).__name__}: {error}", file=file) from error
