"""`Fleet`: a tool's tasks on any executor of `concurrent.futures`, and their results in the order of the tasks.

A task is a function of a module with arguments that can be pickled, and may be repeated: what an executor loses, such
as the tasks of a worker that was killed, is done in this process, and so is what a worker cannot do, whose machine may
lack a mount, a package or a key.

Keys are sent to threads of this process, and to children that multiprocessing starts, as `Uncopied` says. Any other
executor may have workers anywhere: these get the locations of keys, and open them there.
"""

from __future__ import annotations

import os
import pickle
import socket
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import ContextVar
from copy import copy
from dataclasses import replace
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any, Self

from streamxf import errors
from streamxf.keys import KeyRing
from streamxf.places import Storage
from streamxf.reading import Access, BoxReader, Progress, Share, TensorItem
from streamxf.tools.damage import CALLERS
from streamxf.wording import many, printable

Items = Mapping[str, tuple[Any, ...]]  # items by their names, as each of some checkpoints has them
Take = Callable[[Any], object]
Terms = Callable[[], Access]  # how workers read; raises as `KeyRing`
TASK_BYTES = 256 * 2**20  # stored bytes of items that are a task together

_TASK_ITEMS = 4096
_MOST = 1024  # tasks that are handed out at a time; some describe a hundred thousand items
_PATIENCE = 60.0  # seconds without any result after which it is said that nothing comes
_WORKER = "on "  # begins the note that names a worker's machine
_away: ContextVar[bool] = ContextVar("away", default=False)


class Fleet:
    """Hands tasks to `executor`; a context manager, which waits for all results. Left by an exception, it cancels what
    has not begun. `missed` says of each task that this process does why.

    Workers read `storages` with `access`. Those that write are to save as `to` does, and call `extensions` for what
    `Save.extensions_of` made of `given`. Raises ParameterError if something cannot be sent to workers, or a key must
    not be.
    """

    def __init__(
        self, executor: Executor, storages: list[Storage], access: Access, to: Any = None, *given: Any
    ) -> None:
        if not isinstance(executor, Executor):
            raise errors.ParameterError(
                f"executor= takes an executor of concurrent.futures, not {type(executor).__name__}"
            )
        self._executor = executor
        self._flying: deque[tuple[Future[Any], Take, Callable[..., Any], Any]] = deque()
        self.missed: list[str] = []
        self._quiet = True  # as long as there was no result
        self._access, self._terms = access, partial[Access](replace, access)
        here = isinstance(executor, ThreadPoolExecutor) or getattr(executor, "sends_nothing", False)
        near = self._near = here or isinstance(executor, ProcessPoolExecutor)
        if not near and not all(key.portable for key in access.keys):
            trust, unsigned = access.keys.trust or None, access.keys.allow_unsigned
            named = _sendable(access.keys.locations, "keys")
            self._terms = partial(_with, replace(access, keys=KeyRing()), named, trust, unsigned)
        storages = storages if to is None else [*storages, to.storage]
        self.extensions: Callable[[], Any] = partial(copy, None if to is None else to.extensions)
        secrets = () if to is None else (*getattr(to.extensions.encryption, "recipients", ()), to.extensions.signer)
        if not near and not all(key is None or getattr(key, "portable", False) for key in secrets):
            text, recipients, signer = given
            named = _sendable(KeyRing.of(recipients).locations, "recipients")
            there = [KeyRing.anchored(signer)] if isinstance(signer, str | os.PathLike) else ()
            by = None if signer is None else _sendable(there, "signer")[0]
            self.extensions = partial(to.extensions_of, text, named, by, len(access.keys) > 0)
        sent: list[tuple[str, Any]] = [("path", each) for each in storages]
        sent += [("keys", access.keys if near else None), ("codecs", self._terms), ("chain", self.extensions)]
        for name, value in sent if not here else ():
            try:
                (ForkingPickler if near else pickle).dumps(value)
            except Exception as error:  # of any class
                text = f"{name}= cannot be sent to the workers of executor=, since it cannot be pickled"
                raise errors.ParameterError(f"{text}: {type(error).__name__}: {errors.text_of(error)}") from None

    def terms(self, access: Access) -> Terms:
        """What workers get of `access`: that of this fleet, or one without keys."""
        return self._terms if access is self._access else partial(replace, access)

    def submit(self, take: Take, call: Callable[..., Any], *args: Any) -> None:
        """Have ``call(*args)`` made. `take` gets the result, or the StreamxfError that was raised, in the order in
        which calls were submitted, now or later.
        """
        try:
            future = self._executor.submit(_made, not self._near, call, args)
        except Exception as error:  # it was shut down, or is broken
            future = Future()
            future.set_exception(error)
        self._flying.append((future, take, call, args))
        while len(self._flying) > _MOST or (self._flying and self._flying[0][0].done()):
            self._take()

    def read(self, readers: Sequence[BoxReader], part: Items, share: Share, take: Take, *task: Any) -> None:
        """Have a `task`, ``call, *args``, done as ``call(readers, part, None, *args)``; raises as that, and `Terms`."""
        call, *args = task

        def done(result: tuple[Any, ...] | errors.StreamxfError) -> None:
            try:
                if isinstance(result, errors.StreamxfError):
                    raise result
                for reader, asked in zip(readers, result[1:], strict=True):
                    reader.budget.spend(asked, "the items")
            except errors.PolicyError:  # what is too much for the whole is refused here, where its item is known
                take(call(readers, part, None, *args))
            else:
                take(result[0])
            share.finish()

        opens = [reader.part({name: items[at] for name, items in part.items()}) for at, reader in enumerate(readers)]
        self.submit(done, _in_worker, opens, [self.terms(reader.access) for reader in readers], call, args)

    def check_here(self, call: Callable[..., Any], *args: Any, doubt: str, agrees: Callable[[Any], bool]) -> Any:
        """Make a call again that leaves a `doubt`, which is `missed` unless that `agrees`; returns what it gives."""
        made = _made(False, call, args)
        if isinstance(made, errors.StreamxfError) or not agrees(made):
            self.missed.append(doubt)
        return made

    def then(self, call: Callable[[], object]) -> None:
        """Make a call once all results so far were taken."""
        future: Future[Any] = Future()
        future.set_result(None)
        self._flying.append((future, lambda _: call(), call, ()))

    def _take(self) -> None:
        future, take, call, args = self._flying[0]  # where an interrupt of the wait finds it, too
        try:
            result = self._wait(future)
            if (
                isinstance(result, errors.StreamxfError)
                and not self._near
                and not isinstance(result, errors.PolicyError)
            ):
                raise result  # which may be that of its machine, and else is raised here again
        except Exception as error:  # the executor's own: an error of the task's is its result
            where = next((note for note in errors.notes_of(error) if note.startswith(_WORKER)), "")
            self.missed.append(f"{where}{type(error).__name__}: {errors.text_of(error)}".removesuffix(": "))
            result = _made(False, call, args)
        self._flying.popleft()
        take(result)

    def _wait(self, future: Future[Any]) -> Any:
        try:
            return future.result(_PATIENCE if self._quiet else None)
        except TimeoutError:
            if future.done():  # it is the task's
                raise
        finally:
            self._quiet = False
        warnings.warn(
            f"{type(self._executor).__name__} has returned nothing for {_PATIENCE:.0f} s, of "
            f"{many(len(self._flying), 'task')}: check that it has workers, which it waits for without a word",
            stacklevel=2,
        )
        return future.result()

    @property
    def lost(self) -> str:
        """Says how many tasks this process did, and why; empty if there were none."""
        return f"{many(len(self.missed), 'task')}: {errors.shorten(self.missed[0], 300)}" if self.missed else ""

    @property
    def notes(self) -> list[str]:
        """The same as remarks of a report."""
        return [f"finished in this process: {printable(self.lost)}"] if self.missed else []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        try:
            while kind is None and self._flying:
                self._take()
        finally:
            for future, *_ in self._flying:
                future.cancel()
            self._flying.clear()


def _with(access: Access, keys: Any, trust: Any, allow_unsigned: bool) -> Access:
    return replace(access, keys=KeyRing(keys, trust=trust, allow_unsigned=allow_unsigned))


def _sendable(keys: Sequence[Any], name: str) -> Sequence[Any]:
    """Locations of keys, and keys that hold nothing secret, as `KeyRing.locations`: there are some unless one does."""
    if not keys:
        raise errors.ParameterError(
            f"{name}= has a key in memory, which is not sent to workers that may be on other hosts. Name a location "
            "that each of them can open: 'file:/run/secrets/checkpoint.key', 'env:CHECKPOINT_KEY', 'aws-kms:ARN'"
        )
    return keys


def _made(away: bool, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """What a worker does: make the call, and return its result or its StreamxfError. Errors name one that may be on
    another machine.
    """
    before = _away.set(away)
    try:
        return call(*args)
    except Exception as error:
        if away:
            errors.add_note(error, worker_name())
        if isinstance(error, errors.StreamxfError):
            return error
        raise
    finally:
        _away.reset(before)


def worker_name() -> str:
    """In a worker that may be on another machine, what names this one; else empty."""
    return f"{_WORKER}{socket.gethostname()}, " if _away.get() else ""


def is_of_machine(error: BaseException | None) -> bool:
    """Whether an error may be that of a worker's machine alone: its task is then left to who handed it out."""
    both = error, getattr(error, "__cause__", None)
    return _away.get() and any(isinstance(each, (*CALLERS, OSError, errors.ForeignError)) for each in both)


def by_tensors(
    fleet: Fleet | None,
    readers: Sequence[BoxReader],
    tensors: Items,
    take: Take,
    progress: Progress | None,
    call: Callable[..., Any],
    *args: Any,
) -> None:
    """Make ``call(readers, tensors, progress, *args)``, or have a fleet make it for some tensors at a time; `take` gets
    the results, in the order of the tensors. Raises as `call`, and `Terms`.
    """
    if progress is not None:
        progress.expect(_size(tensors))
    if fleet is None:
        take(call(readers, tensors, progress, *args))
        return
    with fleet:
        for part in _cut(tensors):
            fleet.read(readers, part, Share(progress, _size(part)), take, call, *args)


def _in_worker(
    opens: Sequence[Callable[[Access], BoxReader]], terms: Sequence[Terms], call: Callable[..., Any], args: Any
) -> tuple[Any, ...]:
    """A worker's task: the call's result, and what was asked of each budget."""
    with ExitStack() as stack:
        here = [stack.enter_context(each(how())) for each, how in zip(opens, terms, strict=True)]
        tensors = {name: tuple(each.stored[name] for each in here) for name in here[0].stored}
        return call(here, tensors, None, *args), *(each.budget.asked for each in here)


def _cut(tensors: Items) -> Iterator[Items]:
    part, stored = dict[str, tuple[TensorItem, ...]](), 0
    for name, items in tensors.items():
        size = sum(item.stored_bytes for item in items)
        if part and (stored + size > TASK_BYTES or len(part) == _TASK_ITEMS):
            yield part
            part, stored = {}, 0
        part[name] = items
        stored += size
    if part:
        yield part


def _size(tensors: Items) -> int:
    return sum(item.size for items in tensors.values() for item in items)
