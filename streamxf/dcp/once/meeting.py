"""How the ranks of a load that reads once find each other, and how they hear that one of them failed or died.

All of it goes through the store of the job, in which nothing waits. Each rank announces itself under a token that only
the plans know. The first rank of the group decides when all are there, or any rank after `PATIENCE`, and the first
decision counts. From then on a thread of each rank gives signs of life, and watches for those of the next one and for
failures. A rank that fails says so in the store and closes its connections, so that nobody goes on waiting for it.
"""

from __future__ import annotations

import base64
import logging
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import distributed

from streamxf.dcp.once.plan import Assignment
from streamxf.engine import in_thread
from streamxf.errors import AbortedError, sendable
from streamxf.torch_private import default_store

PATIENCE = 6.0
"""Seconds in which all ranks have to begin to read, and to connect; and after which one without a sign of life is
dead."""
_PULSE = 1.0
_MOMENT = 0.02
_LONGEST = timedelta(minutes=10)  # that a rank may take for a message while it lives
_ONCE, _EACH, _FAILED = "once", "each", "fail"
_NEVER = range(2**30 - 16, 2**30)  # tags of which no message ever comes; gloo's interface for a tag follows from it

dist: Any = distributed  # what is used of it has no types
_log = logging.getLogger(__name__)


def announce(token: str, doubt: str = "", *, kind: str = _EACH) -> None:
    """Say under a rank's token whether it takes part; by default, why it does not."""
    _store("here").set(token, f"{kind} {doubt}")


def _store(name: str) -> Any:
    return dist.PrefixStore(f"streamxf/once/{name}", default_store())


@contextmanager
def _connected() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise ConnectionError(f"the connection to another rank was lost: {error}") from None


_kept: dict[Any, tuple[str, Any]] = {}  # the connections that the last load of the same ranks has left, and their name


class Meeting:
    """The ranks of a share, connected with each other; torch does not list these connections among its groups."""

    def __init__(self, share: Assignment) -> None:
        self._share = share
        self._rank, self._size = share.ranks.index(share.rank), len(share.ranks)
        self._key = os.getpid(), self._rank, share.ranks
        self._own = _store(share.nonce)
        self._name = ""
        self._group: Any = None
        self._failure: BaseException | None = None
        self._over = threading.Event()
        self._watching = threading.Thread(target=self._watch, name="streamxf-once", daemon=True)

    def decide(self, doubt: str = "", error: BaseException | None = None) -> str:
        """Decide with the others whether to read once: empty if so, else the reason why each rank reads by itself.

        - `doubt`: why this rank cannot take part. `error`: what it has failed with.

        Raises `error`, what another rank has failed with, or AbortedError if some do not come.
        """
        known, kept = _kept.pop(self._key, ("", None))
        token = self._share.tokens[self._rank]
        if error is not None:
            announce(token, self._packed(error), kind=_FAILED)
        elif doubt:
            announce(token, doubt)
        else:
            announce(token, known, kind=_ONCE)
        kind, _, self._name = self._decision().partition(" ")
        if error is not None:
            raise error
        if kind == _FAILED:
            raise self._unpacked(self._name)
        if known == self._name:
            self._group = kept
        return self._name if kind == _EACH else ""

    def _decision(self) -> str:
        begin, here, found = time.monotonic(), _store("here"), dict[int, str]()
        while not self._own.check(["decision"]):
            for number, token in enumerate(self._share.tokens if self._rank == 0 else ()):
                if number not in found and here.check([token]):
                    found[number] = _text(here, token)
            against = sorted(each for each in found.values() if not each.startswith(_ONCE))
            if against or len(found) == self._size:
                names = {*found.values()}
                known = names.pop() if len(names) == 1 else ""
                made = known if known.removeprefix(_ONCE).strip() else f"{_ONCE} {self._share.nonce}"
                return self._first("decision", against[-1] if against else made)  # failures before doubts
            if time.monotonic() - begin > PATIENCE:
                missing = [rank for number, rank in enumerate(self._share.ranks) if number not in found]
                whom = f"ranks {missing}" if self._rank == 0 else "some ranks"
                error = AbortedError(
                    f"{whom} did not begin to read within {PATIENCE:.0f} s, so nobody reads for all: they have failed, "
                    "or are very slow. With read='each' no rank waits for another"
                )
                return self._first("decision", f"{_FAILED} {self._packed(error)}")
            time.sleep(min(0.25, max(_MOMENT, (time.monotonic() - begin) / 4)))
        return _text(self._own, "decision")

    def connect(self) -> None:
        """Begin to watch, and connect with the others, unless an earlier load has left the connections."""
        self._watching.start()
        if self._group is None:
            # where a rank dies meanwhile, gloo may wait for several times as long as it was given
            own, patience = _store(f"made/{self._name}"), timedelta(seconds=PATIENCE)
            make = partial(dist.ProcessGroupGloo, own, self._rank, self._size, patience)
            made: Future[Any] = in_thread(make, "streamxf-connect")
            while not made.done():
                self.check()
                wait([made], _MOMENT)
            with _connected():
                self._group = made.result()
        self.check()

    def begin(self, data: torch.Tensor, rank: int, tag: int, *, send: bool) -> Callable[[], None]:
        """Begin to send to a rank, or to receive; returns what waits for it. ConnectionError if that rank is gone."""
        with _connected():
            post = self._group.send if send else self._group.recv
            work = post([data], self._share.ranks.index(rank), tag)

        def wait() -> None:
            with _connected():
                work.wait(_LONGEST)

        return wait

    def check(self) -> None:
        """Raise what another rank has failed with, if this is known."""
        if self._failure is not None:
            raise self._failure

    def fail(self, error: BaseException) -> BaseException:
        """Let all ranks know what this one failed with, and return what failed first."""
        try:
            begin = time.monotonic()  # whoever closed a connection says why, unless it died
            while self._failure is None and isinstance(error, ConnectionError) and time.monotonic() - begin < _PULSE:
                self._look()
                time.sleep(_MOMENT)
            if self._failure is None:
                own = self._packed(error)
                first = self._first("failed", own)
                self._failure = error if first == own else self._unpacked(first)
        except RuntimeError as lost:  # the store is gone, and with it the process that keeps it
            _log.warning("other ranks cannot be told that a load failed: %s", lost)
        self._over.set()
        self._sever()
        return self._failure or error

    def finish(self) -> None:
        """This rank's part is over; the connections stay for the next load. Raises as `check`."""
        self._over.set()
        self._watching.join()
        self._look()
        self.check()
        _kept[self._key] = self._name, self._group
        self._own.set(f"beat/{self._rank}", "over")

    def _watch(self) -> None:
        watched, last, since, count = (self._rank + 1) % self._size, "", time.monotonic(), 0
        while not self._over.is_set() and self._failure is None:
            try:
                count += 1
                self._own.set(f"beat/{self._rank}", str(count))
                self._look()
                key = f"beat/{watched}"
                sign = _text(self._own, key) if self._own.check([key]) else ""
            except RuntimeError as error:
                self._failure = AbortedError(f"the job's store cannot be reached: {error}")
                break
            if sign == "over":
                watched, last, since = (watched + 1) % self._size, "", time.monotonic()
                continue
            if sign != last:
                last, since = sign, time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                rank = self._share.ranks[watched]
                self.fail(AbortedError(f"rank {rank} has given no sign of life for {PATIENCE:.0f} s during the load"))
            self._over.wait(_PULSE)
        if self._failure is not None:
            self._sever()

    def _sever(self) -> None:
        """Close all connections: whoever waits on either end of one gets an error, and nothing is received any more."""
        nothing = torch.zeros(1, dtype=torch.uint8, device="cpu")
        others = [rank for rank in range(self._size) if rank != self._rank]
        for rank, tag in product(others, _NEVER) if self._group is not None else ():  # some may have closed their end
            # gloo closes an interface's connections when a message does not come in time, and in no other way
            with suppress(RuntimeError):
                self._group.recv([nothing], rank, tag).wait(timedelta(milliseconds=1))

    def _look(self) -> None:
        if self._failure is None and self._own.check(["failed"]):
            self._failure = self._unpacked(_text(self._own, "failed"))

    def _first(self, key: str, text: str) -> str:
        """Set a key of the store, unless another rank has; return what it has."""
        return bytes(self._own.compare_set(key, "", text)).decode()

    def _packed(self, error: BaseException) -> str:
        made = sendable(error)
        if not isinstance(made, Exception):
            made = AbortedError(f"the load was interrupted: {type(error).__name__}")
        return base64.b64encode(pickle.dumps((self._share.rank, made))).decode()

    @staticmethod
    def _unpacked(text: str) -> BaseException:
        rank, error = pickle.loads(base64.b64decode(text))
        assert isinstance(error, BaseException)
        error.add_note(f"rank {rank} met this, which reads for others, too")
        return error


def _text(store: Any, key: str) -> str:
    return bytes(store.get(key)).decode()
