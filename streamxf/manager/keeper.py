"""`Keeper`: what one process of a job does in the run's folder beside the saves themselves, in a thread of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from streamxf.checkpoint.access import Access
from streamxf.checkpoint.storage import Storage
from streamxf.errors import escaped
from streamxf.manager.catalog import RunCatalog, Saving, Session, change_catalog, read_catalog
from streamxf.manager.choice import Verify, size_of
from streamxf.manager.forget import forget_in
from streamxf.manager.listing import look, mark_of
from streamxf.manager.record import Record
from streamxf.manager.removal import finish_removals, remove_leftover
from streamxf.manager.retention import Retention
from streamxf.wording import some

_log = logging.getLogger(__name__)


class Keeper:
    """Keeps the catalog and the rules of retention; on rank 0 alone.

    Its calls return at once, and what they ask for is done in their order. An error is logged: a checkpoint that was
    saved is good without its metrics, and one that could not be removed is removed after the next save.
    """

    def __init__(self, storage: Storage, keep: Retention, access: Access, verify: Verify) -> None:
        self._storage = storage
        self._keep = keep
        self._access = access
        self._verify = verify
        self._began = time.time()
        self._pool = ThreadPoolExecutor(1, "streamxf-keeper")
        self._submit("the run's folder could not be tidied up", self._tidy)

    def begin(self, name: str, metrics: Mapping[str, float], *, commits: bool) -> None:
        """Note that a save begins. Waits, since this must be known before anything of the folder is overwritten, if
        the checkpoint will be complete only once it is committed.
        """
        noted = self._submit(f"the save of {name} could not be noted", self._note, name, dict(metrics), commits)
        if commits:
            noted.result()

    def commit(self, name: str, metrics: Mapping[str, float]) -> None:
        """Note that a save is complete, with more metrics, and then remove what the rules do not keep."""
        self._submit(f"{name} is saved, and could not be entered in the catalog", self._commit, name, dict(metrics))
        self._submit("older checkpoints could not be removed", self._forget)

    def give_up(self, name: str) -> None:
        """Note that a save failed."""
        self._submit(f"the failed save of {name} could not be taken out of the catalog", self._give_up, name)

    def sessions(self) -> list[Session]:
        """The processes that saved here before; empty if the catalog cannot be read."""
        found: list[Session] = []
        self._submit("the catalog could not be read", lambda: found.extend(read_catalog(self._storage).runs)).result()
        return [session for session in found if session.began != self._began]

    def wait(self) -> None:
        """Until all that was asked for is done."""
        self._submit("", lambda: None).result()

    def close(self, *, ended: bool) -> None:
        """Finish what was asked for. `ended` says that the job came to an end of its own."""
        if ended:
            self._submit("the end of the run could not be noted", self._change, lambda _, session: _end(session))
        self._pool.shutdown()

    def _submit(self, failure: str, call: Callable[..., Any], *arguments: Any) -> Future[None]:
        def work() -> None:
            try:
                call(*arguments)
            except Exception as error:
                _log.error("%s: %s", failure, escaped(f"{type(error).__name__}: {error}"))

        return self._pool.submit(work)

    # -- in the keeper's thread --------------------------------------------------------------------

    def _change(self, change: Callable[[RunCatalog, Session], None]) -> None:
        def both(catalog: RunCatalog) -> None:
            own = next((session for session in catalog.runs if session.began == self._began), None)
            if own is None:
                own = Session(self._began, self._began)
                catalog.runs.append(own)
            own.seen = max(time.time(), own.began)
            change(catalog, own)

        change_catalog(self._storage, both)

    def _note(self, name: str, metrics: dict[str, float], commits: bool) -> None:
        now = time.time()

        def note(catalog: RunCatalog, _: Session) -> None:
            catalog.removing.pop(name, None)
            catalog.saving[name] = Saving(now, metrics, mark_of(self._storage, name), commits)
            if commits:
                catalog.saved.pop(name, None)

        self._change(note)

    def _commit(self, name: str, more: dict[str, float]) -> None:
        def commit(catalog: RunCatalog, _: Session) -> None:
            known = catalog.saving.pop(name, None) or catalog.saved.get(name)
            when, metrics = (known.time, known.metrics) if known is not None else (time.time(), {})
            child = self._storage.child(name)
            mark = mark_of(self._storage, name)
            catalog.saved[name] = Record(name, when, size_of(child), {**metrics, **more}, mark=mark)

        self._change(commit)

    def _give_up(self, name: str) -> None:
        self._change(lambda catalog, _: _drop(catalog, name))

    def _forget(self) -> None:
        report = forget_in(self._storage, self._keep, self._access, self._verify)
        if report.removed:
            _log.info("removed %s", some(report.removed))
        for name, reason in report.failed.items():
            _log.warning("%s could not be removed, which is tried again later: %s", name, escaped(reason))

    def _tidy(self) -> None:
        """Finish what a process left that was killed."""
        finish_removals(self._storage)
        catalog = read_catalog(self._storage)
        found = {name: look(self._storage, name, catalog) for name in catalog.saving}
        over = [
            name
            for name, saving in catalog.saving.items()
            if (record := found[name]) is None
            or record.state == "complete"
            or remove_leftover(self._storage, name, saving)
        ]

        def settle(catalog: RunCatalog, _: Session) -> None:
            for name in over:
                catalog.saving.pop(name, None)
                if (record := found[name]) is not None and record.state == "complete":
                    catalog.saved[name] = record

        self._change(settle)


def _drop(catalog: RunCatalog, name: str) -> None:
    catalog.saving.pop(name, None)


def _end(session: Session) -> None:
    session.ended = True
