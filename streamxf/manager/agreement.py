"""What the ranks of a job agree on at each step, without a step that waits; and whether all have the run in one folder:
with a disk for each host, nothing saved could be loaded.

At each step every rank posts what it knows by an all-reduce in the background, and reads the result at the next step,
when it has long been there. A decision that must not come a step late waits for the answer: a save does, which brings
all ranks together anyway, and so does everything where steps are long, because a job that was told to end may not have
the time for another one.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from streamxf.errors import ParameterError, UnsupportedError, escaped, sendable
from streamxf.manager.notes import FOLDER
from streamxf.manager.removal import remove_entry
from streamxf.places import Mount, Storage, put_small, small_names
from streamxf.torch_private import gloo_group_of
from streamxf.wording import some

T = TypeVar("T")

LONG_STEP = 1.0  # seconds from which a step counts as long: there, the millisecond for an answer is nothing
PATIENCE = timedelta(seconds=10)
_MOMENT = 0.1
_HEARTBEAT = 20.0  # seconds between two signs of life of a rank that works

_log = logging.getLogger(__name__)
_BELIEF = 60.0  # seconds for which a client of NFS may believe that a folder has no new names
_PAUSE = 0.25


class Flags(NamedTuple):
    """What all ranks know: whether rank 0 has found that a save is due, which is said once; whether any rank was told
    to end, which stays; and how many saves have finished on all of them.
    """

    due: bool = False
    stop: bool = False
    finished: int = 0


class Agreement:
    """The ranks of a process group, or of the whole job, with a gloo group of their own for small messages. Without
    torch.distributed, or with one rank, everything is agreed at once.

    All methods are called on every rank, in the same order, and in one thread. A rank waits for others that are alive
    for at most `timeout`, by default as long as torch's gloo groups do; of ranks that have died, torch tells at once.
    """

    def __init__(self, process_group: dist.ProcessGroup | None = None, timeout: timedelta | None = None) -> None:
        self.rank, self.size = 0, 1
        self._group: dist.ProcessGroup | None = None
        # one tensor, which lives as long as the group: a thread of gloo must not be the last to let go of it
        self._flags = torch.zeros(8, dtype=torch.int64, device="cpu")
        self._posted: dist.Work | None = None
        self._agreed = Flags()
        self._steps_are_long = False
        self._called = time.monotonic()
        self._knows_ranks = dist.is_available() and dist.is_initialized()
        if self._knows_ranks:
            self.rank, self.size = dist.get_rank(process_group), dist.get_world_size(process_group)
            self._group = gloo_group(process_group, timeout)

    def exchange(
        self, step: int, *, due: bool = False, stop: bool = False, finished: int = 0, wait: bool = False
    ) -> Flags:
        """Post this rank's flags, and return what was agreed last. Raises ParameterError if ranks are at different
        steps, or only some of them are about to save.

        - `due`: by rank 0's clock; other ranks are not asked. A save follows when all have been told, so it is posted
          once until then, even if it is still due meanwhile.
        - `wait`: a save follows on every rank, whatever they say: wait until all are here, and count what they know.
        """
        group = self._others()
        if group is None:
            self._agreed = Flags(False, stop or self._agreed.stop, finished)
            return self._agreed._replace(due=due)
        before = self._read()
        now = time.monotonic()
        is_long, self._called = now - self._called > LONG_STEP, now
        if self.rank != 0 or wait or before.due:
            due = False
        self._flags.numpy()[:] = due, stop, is_long and self.rank == 0, -finished, step, -step, wait, -wait
        self._posted = dist.all_reduce(self._flags, op=dist.ReduceOp.MAX, group=group, async_op=True)
        if not (wait or self._steps_are_long):
            return before
        after = self._read()
        return after._replace(due=before.due or after.due)

    def broadcast(self, make: Callable[[], T]) -> T:
        """What `make` returns on rank 0, which alone calls it. What it raises is raised on every rank."""
        return self.everywhere(make if self.rank == 0 else lambda: None)[0]  # type: ignore[return-value]

    def everywhere(self, make: Callable[[], T]) -> list[T]:
        """What `make` returns on each rank, in their order, however long it takes: ranks that are done hear of the
        others every few seconds, so that no time limit of the group ends the wait. What it raises on one rank, the
        first, is raised on all.
        """
        group = self._others()
        if group is None:
            return [make()]
        made: Future[T] = Future()
        # in this thread, where an interrupt arrives: it is raised on all, like any other error
        with ThreadPoolExecutor(1, "streamxf-agreement") as pool:
            told = pool.submit(self._tell, made, group)
            try:
                made.set_result(make())
            except BaseException as error:
                made.set_exception(error)
            found = told.result()
        made.result()
        for _, failure in found:
            if failure is not None:
                raise failure
        return [result for result, _ in found]

    def _tell(self, made: Future[T], group: dist.ProcessGroup) -> list[Any]:
        """What each rank made, and its error."""
        waiting = torch.ones(1, dtype=torch.int64, device="cpu")
        while waiting.item():
            wait([made], _HEARTBEAT)
            waiting.fill_(not made.done())
            dist.all_reduce(waiting, op=dist.ReduceOp.MAX, group=group)
        error = made.exception()
        found: list[Any] = [None] * self.size
        own = (None, sendable(error)) if error is not None else (made.result(), None)
        dist.all_gather_object(found, own, group=group)
        return found

    def close(self, failed: bool = False) -> None:
        """Wait for what is posted, and give the group back. If an error has ended training on this rank, it `failed`:
        others may wait for it elsewhere, so it waits for them a few seconds at most, and logs errors of the group.
        """
        group, self._group = self._group, None
        posted, self._posted = self._posted, None
        if group is None:
            return
        try:
            if posted is not None:
                posted.wait(*([PATIENCE] if failed else []))
        except RuntimeError as error:
            if not failed:
                raise
            _log.warning("the ranks have not agreed on the last step: %s", error)
            return  # giving the group back would wait for them, too
        give_back(group)

    def _others(self) -> dist.ProcessGroup | None:
        """The group, if there are other ranks."""
        if not self._knows_ranks and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            raise ParameterError(
                "torch.distributed was initialized after the CheckpointManager was made, so each rank takes itself for "
                "the only one: make it afterwards"
            )
        return self._group

    def _read(self) -> Flags:
        """What was agreed: with `due` only the first time."""
        due = False
        if self._posted is not None:
            work, self._posted = self._posted, None
            work.wait()
            found, stop, is_long, unfinished, highest, lowest, some_save, all_save = self._flags.tolist()
            if highest != -lowest:
                raise ParameterError(
                    f"ranks are at different steps, from {-lowest} to {highest}: call should_save on every rank, once "
                    "in each step and with the same number"
                )
            if some_save != -all_save:
                raise ParameterError(
                    f"some ranks are about to save at step {highest}, and others are not: give all of them the same "
                    "schedule, and should_save the same `last`"
                )
            due, self._steps_are_long = bool(found), bool(is_long)
            self._agreed = Flags(False, bool(stop) or self._agreed.stop, -unfinished)
        return self._agreed._replace(due=due)


def gloo_group(
    process_group: dist.ProcessGroup | None = None, timeout: timedelta | None = None
) -> dist.ProcessGroup | None:
    """A new gloo group over the ranks of a group, or over all, which all of them call; None where there is one rank."""
    if dist.get_rank(process_group) < 0:
        raise ParameterError("process_group: this rank is not in it")
    if dist.get_world_size(process_group) == 1:
        return None
    if not dist.is_gloo_available():
        raise UnsupportedError("ranks agree through gloo, without which this torch was built")
    ranks = dist.get_process_group_ranks(process_group or dist.group.WORLD)
    name = f"streamxf {sha256('_'.join(map(str, ranks)).encode()).hexdigest()}"
    group: dist.ProcessGroup | None = gloo_group_of(ranks, dist.get_rank(), name, timeout or default_pg_timeout)
    return dist.new_group(backend="gloo", timeout=timeout) if group is None else group


def give_back(group: dist.ProcessGroup) -> None:
    """Destroy a group in which nothing goes on; nothing happens if it was destroyed with the group of all ranks.

    A thread of gloo lets go of a message's tensors shortly after it was delivered, for which it needs the interpreter's
    lock. Before 2.8, torch holds the lock while it waits for the thread; at the end of Python, it aborts the process.
    """
    time.sleep(_MOMENT)
    with suppress(ValueError):
        dist.destroy_process_group(group)


@dataclass(frozen=True)
class Whereabouts:
    """The run's folder as one rank finds it; without a `mount` it is in an object store, or not there. `device` numbers
    the file system on its `machine`.
    """

    host: str
    machine: str
    path: str
    device: int = 0
    mount: Mount | None = None

    @classmethod
    def of(cls, storage: Storage) -> Whereabouts:
        mount, label = storage.mount(), storage.label()
        device = os.stat(label).st_dev if mount is not None else 0
        return cls(socket.gethostname(), Mount.machine(), label, device, mount)

    def is_one_with(self, other: Whereabouts) -> bool | None:
        """Whether these are surely one folder, or surely two."""
        if self.mount is None or other.mount is None:
            own_disk = any(each.mount is not None and each.mount.of_one_machine for each in (self, other))
            return True if self.path == other.path and self.mount is other.mount else False if own_disk else None
        if self.machine == other.machine:
            if (self.device, self.mount.inode) == (other.device, other.mount.inode):
                return True
            return False if self.mount.of_one_machine or other.mount.of_one_machine else None
        return False if self.mount.is_other_than(other.mount) else None

    def __str__(self) -> str:
        where = (
            "not there"
            if self.mount is None
            else f"{self.mount.kind} of {self.mount.source}, folder {self.mount.inode}"
        )
        return escaped(f"{self.host} has {self.path}" + (f" ({where})" if "://" not in self.path else ""))


def check_one_folder(storage: Storage, agreement: Agreement) -> None:
    """Raise ParameterError on every rank unless all see what rank 0, which publishes, puts into the run's folder."""
    if agreement.size == 1:
        return
    file = f"{FOLDER}/host-{secrets.token_hex(8)}"

    def put() -> tuple[Whereabouts, str]:
        with suppress(OSError):  # the save has an error for that
            storage.make_folder(durable=False)
            put_small(storage, file, b"", sync=False)
        return Whereabouts.of(storage), file

    first, file = agreement.broadcast(put)
    try:
        found = agreement.everywhere(lambda: _look(storage, first, file))
    finally:
        if agreement.rank == 0:
            remove_entry(storage, file)
    if not all(is_there for _, is_there in found):
        raise ParameterError(
            f"the run's folder is not the same on all ranks: {'; '.join(_in_words([place for place, _ in found]))}. "
            "Each would keep its part of a checkpoint, and no start could load that. Give one folder that all of them "
            "share, on a network file system or in an object store"
        )


def _look(storage: Storage, first: Whereabouts, file: str) -> tuple[Whereabouts, bool]:
    """Where this rank finds the run, and whether rank 0's file is there."""
    end = time.monotonic() + _BELIEF
    while True:
        own = Whereabouts.of(storage)
        is_one = own.is_one_with(first)
        is_there = is_one or file.rpartition("/")[2] in small_names(storage, FOLDER)
        if is_there or is_one is False or time.monotonic() > end:
            return own, is_there
        time.sleep(_PAUSE)


def _in_words(places: Sequence[Whereabouts]) -> list[str]:
    ranks: dict[str, list[str]] = {}
    for rank, place in enumerate(places):
        ranks.setdefault(str(place), []).append(str(rank))
    return [f"rank {some(those)} on {place}" for place, those in ranks.items()][:10]
