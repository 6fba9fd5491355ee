"""Files whose storage may fail in any way of its own, or hold far less than it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from streamxf.checkpoint.access import Access
from streamxf.checkpoint.storage import Storage, StoredFile, storage_errors
from streamxf.engine import Pipeline
from streamxf.progress import Progress, Share
from streamxf.proportion import Budget, held_bytes
from streamxf.stream.source import Counted, FileSlice, PositionalFile
from streamxf.tools.verify.findings import Findings

_STEP = 2**20
_REMOTE_STEP = 8 * 2**20  # bytes that fsspec fetches at a time; by itself it would hold up to 100 MiB for each file


@dataclass
class Call:
    """One call of `verify`, and its findings."""

    storage: Storage
    access: Access
    max_expansion: int
    progress: Progress | None
    findings: Findings = field(default_factory=Findings)

    def share(self, size: int) -> Share | None:
        """The progress that a file of `size` bytes makes."""
        if self.progress is None:
            return None
        self.progress.expect(size)
        return Share(self.progress, size)


class GivenUp(Exception):
    """The result is not wanted any more: another thread was interrupted, or failed."""


class GuardedAccess:
    """Reads by position that raise no errors but Python's and streamxf's, until `stopped` says that the result is no
    longer wanted. `budget` pays for what is read: holes have no end.
    """

    def __init__(self, access: PositionalFile, name: str, budget: Budget, stopped: Callable[[], bool]) -> None:
        self._access = access
        self.name = name
        self._budget = budget
        self._stopped = stopped
        self.parallel = access.parallel

    def read_into(self, position: int, out: memoryview) -> int:
        """Fill `out`, as far as the file goes.

        Raises OSError, ForeignError, GivenUp, and PolicyError if too much of what is read are holes.
        """
        if self._stopped():
            raise GivenUp
        self._budget.spend(len(out), "reading the file")
        with storage_errors(self.name):
            return self._access.read_into(position, out)


@contextmanager
def guarded(
    storage: Storage,
    label: str,
    max_expansion: int,
    stopped: Callable[[], bool] = bool,
    share: Share | None = None,
    *,
    name: str = "",
) -> Iterator[StoredFile]:
    """Open the file `name` of a folder, or the file itself, for errors under the name `label`; `share` is told what is
    read. Raises FileNotFoundError, and OSError or StreamxfError if it cannot be opened or leads elsewhere.
    """
    with ExitStack() as stack:
        with storage_errors(label):
            file = stack.enter_context(storage.open(name, step=_REMOTE_STEP))
        budget = Budget(max_expansion, held_bytes(file.raw, file.size))
        access = file.access if share is None else Counted(file.access, share.advance)
        yield StoredFile(label, file.size, file.raw, GuardedAccess(access, label, budget, stopped))


def pieces_of(source: FileSlice) -> Iterator[bytes]:
    """A part of a file, piece by piece and in order, which workers read where several threads can; raises as reading
    does.
    """
    places = ((at, min(_STEP, source.length - at)) for at in range(0, source.length, _STEP))
    if not source.parallel:
        yield from (source.read_at(*place) for place in places)
        return
    pipeline: Pipeline[bytes] = Pipeline()
    try:
        for at, size in places:
            yield from pipeline.submit(partial(source.read_at, at, size), size)
        yield from pipeline.results()
    finally:
        pipeline.cancel()
