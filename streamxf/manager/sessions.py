"""The processes that save to a run, each with a small file: if another is at it, and how often the job has failed."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import socket
import threading
import time
from dataclasses import dataclass
from functools import cache
from typing import IO, Any
from weakref import WeakValueDictionary, ref

from streamxf.errors import AbortedError, escaped
from streamxf.manager.notes import FOLDER, Authority, notes_in, put_note, remove_notes
from streamxf.notes import digits, natural
from streamxf.places import Mount, Storage
from streamxf.wording import time_text

_ALIVE = 600.0  # seconds since the last sign of life
_SIGN = 60.0  # seconds from one to the next, where the lock alone is none
_MOST = 200  # the latest ones: they are for the rate of failures
_PATIENCE, _PAUSE = 5.0, 0.05  # seconds

_own: WeakValueDictionary[str, IO[bytes]] = WeakValueDictionary()
"""The locks of this process, by session: without Linux's own, one is dropped when its own process looks at it."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Session:
    """A process that saved to a run, from its beginning to its last sign of life, in seconds since 1970."""

    began: float
    seen: float
    ended: bool = False
    id: str = ""
    series: str = ""
    host: str = ""
    pid: int = 0

    def to_json(self) -> dict[str, Any]:
        times = {"began": int(self.began * 1000), "seen": int(self.seen * 1000)}
        return {**times, "ended": self.ended, "id": self.id, "series": self.series, "host": self.host, "pid": self.pid}

    @classmethod
    def of_json(cls, content: Any) -> Session:
        """Times are never in the future, so that none makes a failure seem rarer than this clock allows."""
        began, seen = (min(natural(content[name]) / 1000, time.time()) for name in ("began", "seen"))
        series, host = (str(content[name])[:255] for name in ("series", "host"))
        ended, pid = content["ended"] is True, natural(content["pid"])
        return cls(began, seen, ended, digits(content["id"], 32), series, host, pid)


class Sessions:
    """Those of a run; `own` is this process's, from its first save on."""

    def __init__(self, storage: Storage, series: str, authority: Authority) -> None:
        self._storage = storage
        self._authority = authority
        self._lock: IO[bytes] | None = None
        self._all_hosts = False  # whether a lock that is free shows that its process is gone, wherever it ran
        self._end = threading.Event()
        self._noting = threading.Lock()
        now = time.time()
        self.own = Session(
            now, now, False, _machine_mark() + secrets.token_hex(10), series, socket.gethostname(), os.getpid()
        )

    def earlier(self) -> list[Session]:
        """The others, the oldest first; what does not count, or cannot be read, is left out."""
        found = notes_in(self._storage, self._authority, "session-[^.]+", Session.of_json).values()
        return sorted((each for each in found if each.id != self.own.id), key=lambda each: each.began)

    def begin(self) -> None:
        """Take the lock of this session. Raises AbortedError if another job saves to the same series."""
        self._all_hosts = self._storage.abilities.locks == "hosts"
        others = self._others()
        for other in others:
            self._check_over(other)
        remove_notes(self._storage, [f"session-{each.id}{end}" for each in others[:-_MOST] for end in ("", ".lock")])
        self._storage.make_folder(FOLDER, durable=False)
        # before its note, or it would seem to have ended
        self._lock = self._storage.lock_file(_lock_of(self.own.id), make=True)
        if self._lock is not None:
            _own[self.own.id] = self._lock
        self.seen()
        known = {each.id for each in others}
        try:
            for other in [each for each in self._others() if each.id not in known]:  # began at the same moment
                end = time.monotonic() + (_PATIENCE if self.own.id < other.id else 0)  # or both might end
                while is_held(self._storage, other.id) and time.monotonic() < end:
                    time.sleep(_PAUSE)
                self._check_over(other)
        except AbortedError:
            self.seen(ended=True)
            self.close()
            raise
        if self._lock is None or not self._all_hosts:
            # the thread holds nothing of a manager that nobody closes, and does not hold up the end of the process
            signs = (ref(self), self._end)
            threading.Thread(target=_give_signs, args=signs, name=SIGNS, daemon=True).start()

    def _others(self) -> list[Session]:
        return [each for each in self.earlier() if each.series == self.own.series]

    def _check_over(self, other: Session) -> None:
        ago = time.time() - other.seen
        late = ago > _ALIVE
        held = False if other.ended or (late and not self._all_hosts) else is_held(self._storage, other.id)
        if late and held is None:
            held = False
        who = f"process {other.pid} on {escaped(other.host)}, which was last heard of {time_text(ago)} ago,"
        if other.id in _own:
            who = "another CheckpointManager of this process, which is not closed,"
        if held:
            raise AbortedError(
                f"{who} saves to this run, too: two jobs in one folder remove and replace each other's checkpoints. "
                "End one of them, or give this one a folder, or a name=, of its own",
                file=self._storage.label(),
            )
        if held is None:
            text = "%s: %s has not said that it ended. If it still saves there, end one of the two jobs"
            _log.warning(text, self._storage.label(), who)

    def seen(self, ended: bool = False) -> None:
        """Give a sign of life, unless the last one was that of the end."""
        with self._noting:
            if self.own.ended:
                return
            now = max(time.time(), self.own.began)
            self.own = Session(**{**vars(self.own), "seen": now, "ended": ended})
            put_note(self._storage, self._authority, f"session-{self.own.id}", self.own.to_json(), Session.of_json)

    def close(self) -> None:
        self._end.set()
        lock, self._lock = self._lock, None
        if lock is not None:
            _own.pop(self.own.id, None)
            lock.close()  # its file stays, to show that nobody holds it


SIGNS = "streamxf-session"
"""The name of the thread that gives signs of life."""


def _give_signs(session: ref[Sessions], end: threading.Event) -> None:
    """Until the end, or nobody has the session any more."""
    while not end.wait(_SIGN):
        if (own := session()) is None:
            return
        try:
            own.seen()
        except Exception as error:  # the next one may succeed; until then others see how old the last one is
            _log.warning("no sign of life could be given: %s", escaped(f"{type(error).__name__}: {error}"))
        del own


os.register_at_fork(after_in_child=_own.clear)  # a child is not the job


def is_held(storage: Storage, session: str) -> bool | None:
    """Whether the process of a session runs; None if no lock tells: one that is free says something of another machine
    only where locks reach that.
    """
    if session in _own:
        return True
    try:
        lock = storage.lock_file(_lock_of(session))
    except BlockingIOError:
        return True
    if lock is None:
        return None
    lock.close()
    reaches = session.startswith(_machine_mark()) or storage.abilities.locks == "hosts"
    return False if reaches else None


@cache
def _machine_mark() -> str:
    """What the ids of the sessions of this machine, since it was started, begin with."""
    return hashlib.sha256(Mount.machine().encode()).hexdigest()[:12]


def _lock_of(session: str) -> str:
    return f"{FOLDER}/session-{session}.lock"
