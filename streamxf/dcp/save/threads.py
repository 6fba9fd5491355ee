"""The files of a save, written by several threads; the first failure stops all of them, and is what is raised."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from streamxf.dcp.save.session import Save
from streamxf.dcp.threads import side_by_side

WriteFile = Callable[[str, list[WriteItem]], list[WriteResult]]


def write_all(
    write: WriteFile, files: list[tuple[str, list[WriteItem]]], threads: int, save: Save
) -> list[WriteResult]:
    """Write files in up to `threads` threads, this one among them, and return when all have stopped.

    Raises
    ------
    BaseException
        The first failure, in any thread. An interrupt of this thread is one, too.
    """
    waiting = deque(files)
    results: dict[str, list[WriteResult]] = {}

    def work() -> None:
        while not save.failed:
            try:
                name, items = waiting.popleft()
            except IndexError:  # another thread took the last one
                return
            try:
                results[name] = write(name, items)
            except BaseException as error:
                save.fail(error)

    side_by_side(work, min(threads, len(files)), save.fail)
    cause = save.take_cause()
    if cause is not None:
        try:
            raise cause
        finally:
            del cause  # or it would lead to itself, and live until the garbage is collected
    return [result for name, _ in files for result in results[name]]
