"""``torchrun -m streamxf verify``: the ranks of a job as an executor."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from streamxf.errors import ParameterError

Task = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]

together = False  # whether all ranks of a job run this command
silent = False  # whether another rank shows how it goes, and what comes of it


def join() -> bool:
    """Find out whether this is a rank of a job, as torchrun says; false if that is nonsense."""
    global together, silent
    size, rank = os.environ.get("WORLD_SIZE", "1"), os.environ.get("RANK", "0")
    if not (re.fullmatch("[0-9]{1,9}", size) and re.fullmatch("[0-9]{1,9}", rank) and int(rank) < int(size)):
        return False
    together, silent = int(size) > 1, int(rank) > 0
    return not together or "RANK" in os.environ


def first_to_say(text: str) -> bool:
    """Whether no other rank has said this; also if their store cannot be asked."""
    if not together:
        return True
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    with suppress(KeyError, ValueError, RuntimeError):
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        said: int = TCPStore(*place, timeout=timedelta(seconds=5)).add(f"streamxf said {text}", 1)
        return said == 1
    return True


@contextmanager
def executor() -> Iterator[Ranks | None]:
    """That of the ranks that run this command together; None where there is one."""
    if not together:
        yield None
        return
    import torch.distributed as dist

    dist.init_process_group("gloo")
    try:
        yield Ranks()
    finally:
        dist.destroy_process_group()


class Ranks(Executor):
    """All ranks make the same calls. Each does its share of the tasks, and all get the results."""

    sends_nothing = True  # calls are made in this process, as those of threads are

    def __init__(self) -> None:
        self._tasks: list[Task] = []
        self._apart = False

    def submit(self, call: Callable[..., Any], /, *args: Any, **_: Any) -> Future[Any]:
        future = _Shared(self)
        self._tasks.append((future, call, args))
        return future

    def share(self) -> None:
        """Do what has been submitted. If ranks have other tasks than this one, each result is a ParameterError."""
        import torch.distributed as dist

        tasks, self._tasks = self._tasks, []
        try:
            self._do(tasks, dist)
        except Exception as error:  # none of them is waited for: this process does them itself
            for future, *_ in tasks:
                if not future.done():
                    future.set_exception(error)

    def _do(self, tasks: list[Task], dist: Any) -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        found: list[Any] = [None] * ranks
        if not self._apart:
            files = [[each for each in args[-1] if isinstance(each, str)] for *_, args in tasks]
            own = [_done(call, args) for _, call, args in tasks[rank::ranks]]
            dist.all_gather_object(found, (files, own))
            self._apart = any(other != files for other, _ in found)
        for number, (future, *_) in enumerate(tasks):
            if self._apart:  # an exception would have this process do the task
                text = "the ranks do not see the same files: each of them needs the same storage at this path"
                future.set_result(ParameterError(text))
                continue
            result, error = found[number % ranks][1][number // ranks]
            future.set_exception(RuntimeError(error)) if error else future.set_result(result)


class _Shared(Future[Any]):
    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self._ranks = ranks

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self._ranks.share()
        return super().result(timeout)


def _done(call: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, str]:
    try:
        return call(*args), ""
    except Exception as error:  # then all ranks do the task themselves
        return None, f"{type(error).__name__}: {error}"
