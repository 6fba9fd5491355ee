"""`Call`: a call of `verify`, whose files are opened so that their storage may fail in any way, or hold far less than
it says.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from streamxf.checkpoint.access import Access
from streamxf.checkpoint.storage import Storage, StoredFile, storage_errors
from streamxf.engine import Pipeline
from streamxf.progress import Progress, Share
from streamxf.proportion import Budget, held_bytes
from streamxf.stream.source import Counted, FileSlice, PositionalFile
from streamxf.tools.verify.report import Findings

_STEP = 2**20
_REMOTE_STEP = 8 * 2**20  # bytes that fsspec fetches at a time; by itself it would hold up to 100 MiB for each file


class GivenUp(Exception):
    """The result is not wanted any more: another thread was interrupted, or failed."""


@dataclass
class Call:
    """One call of `verify`, and its findings in the order of the report.

    `failures` are what ends the call, in any thread. `lock` is held while a chain is rebuilt, which may ask a service
    for its key.
    """

    storage: Storage
    access: Access
    max_expansion: int
    progress: Progress | None
    found: list[Findings] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def findings(self, file: str) -> Findings:
        """A place for what is found in one more file."""
        self.found.append(Findings(file))
        return self.found[-1]

    def share(self, size: int) -> Share:
        """The progress that a file of `size` bytes makes."""
        if self.progress is not None:
            self.progress.expect(size)
        return Share(self.progress, size)

    @contextmanager
    def open(self, label: str, storage: Storage | None = None, share: Share | None = None) -> Iterator[StoredFile]:
        """Open the file `label` of the folder, or what `storage` is, which then has that name in errors; `share` is
        told what is read. Raises FileNotFoundError, and OSError or StreamxfError if it cannot be opened or leads
        elsewhere.
        """
        with ExitStack() as stack:
            with storage_errors(label):
                opened = (
                    self.storage.open(label, step=_REMOTE_STEP) if storage is None else storage.open(step=_REMOTE_STEP)
                )
                file = stack.enter_context(opened)
            access = file.access if share is None else Counted(file.access, share.advance)
            yield StoredFile(
                label, file.size, file.raw, GuardedAccess(self, access, label, held_bytes(file.raw, file.size))
            )


class GuardedAccess:
    """Reads by position that raise no errors but Python's and streamxf's, as long as the call goes on. What may be read
    is bounded by the bytes `held` in storage: holes have no end.
    """

    def __init__(self, call: Call, access: PositionalFile, name: str, held: int) -> None:
        self.name = name
        self.parallel = access.parallel
        self._call = call
        self._access = access
        self._budget = Budget(call.max_expansion, held)

    def read_into(self, position: int, out: memoryview) -> int:
        """Raises OSError, ForeignError, GivenUp, and PolicyError if too much of what is read are holes."""
        if self._call.failures:
            raise GivenUp
        self._budget.spend(len(out), "reading the file")
        with storage_errors(self.name):
            return self._access.read_into(position, out)


def pieces_of(source: FileSlice) -> Iterator[bytes]:
    """A part of a file, piece by piece and in order, which workers read where several threads can."""
    pipeline: Pipeline[bytes] = Pipeline()
    try:
        for at in range(0, source.length, _STEP):
            read = partial(source.read_at, at, min(_STEP, source.length - at))
            yield from pipeline.submit(read, _STEP) if source.parallel else [read()]
        yield from pipeline.results()
    finally:
        pipeline.cancel()
