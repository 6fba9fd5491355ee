"""`Keeper`: what one process of a job does in the run's folder beside the saves themselves, in a thread of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from streamxf.checkpoint.access import Access
from streamxf.checkpoint.storage import Storage
from streamxf.errors import NoCheckpointError, escaped
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

    What its calls ask for is done in their order, and few of them wait for it. An error is logged, unless a call says
    otherwise: a checkpoint that was saved is good without its metrics, and one that could not be removed is removed
    after the next save.
    """

    def __init__(self, storage: Storage, keep: Retention, series: str, access: Access, verify: Verify) -> None:
        self._storage = storage
        self._keep = keep
        self._series = series
        self._access = access
        self._verify = verify
        self._began = time.time()
        self._pool = ThreadPoolExecutor(1, "streamxf-keeper")
        self._saves = False

    def begin(self, name: str, metrics: Mapping[str, float]) -> None:
        """Note that a save begins; no rank may write before this returns, or a kill might leave files that nobody knows
        of, or a checkpoint without its metrics. Raises what listing the folder raises.
        """
        saving = Saving(time.time(), dict(metrics), self._cleared(name))
        self._logging(f"the save of {name} could not be noted", self._note, name, saving)

    def commit(self, name: str, metrics: Mapping[str, float]) -> None:
        """Note that a save is published, with more metrics, and then remove what the rules do not keep."""
        self._submit(f"{name} is saved, and could not be entered in the catalog", self._commit, name, dict(metrics))
        self._submit("older checkpoints could not be removed", self._forget, name)

    def announce(self, name: str) -> None:
        """Note that a save begins which is complete only once it is committed. Waits, and raises what goes wrong: it
        must be known before anything in the folder is overwritten.
        """
        saving = Saving(time.time(), {}, self._cleared(name), commits=True)
        self._pool.submit(self._note, name, saving).result()

    def complete(self, name: str, metrics: Mapping[str, float]) -> None:
        """Note that it is complete. Waits, and raises what goes wrong; then removes what the rules do not keep."""
        self._pool.submit(self._commit, name, dict(metrics)).result()
        self._submit("older checkpoints could not be removed", self._forget, name)

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
        if ended and self._saves:
            self._submit("the end of the run could not be noted", self._change, lambda _, session: _end(session))
        self._pool.shutdown()

    def _cleared(self, name: str) -> str | None:
        """The mark of what the folder of a save holds that begins; waits while something of it may be being removed.

        With its first save this process becomes the one that saves to the run, and puts in order what those left that
        were killed. One that only reads leaves the saves of others alone.
        """
        if not self._saves:
            self._saves = True
            self._submit("what killed saves left could not be removed", self._tidy)
            self.wait()
        if not self._storage.child(name).names(()):
            return None
        self.wait()
        return mark_of(self._storage, name)

    def _submit(self, failure: str, call: Callable[..., Any], *arguments: Any) -> Future[None]:
        return self._pool.submit(self._logging, failure, call, *arguments)

    @staticmethod
    def _logging(failure: str, call: Callable[..., Any], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as error:
            _log.error("%s: %s", failure, escaped(f"{type(error).__name__}: {error}"))

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

    def _note(self, name: str, saving: Saving) -> None:
        def note(catalog: RunCatalog, _: Session) -> None:
            catalog.removing.pop(name, None)
            catalog.saving[name] = saving
            if saving.commits:
                catalog.saved.pop(name, None)

        self._change(note)

    def _commit(self, name: str, more: dict[str, float]) -> None:
        def commit(catalog: RunCatalog, _: Session) -> None:
            mark = mark_of(self._storage, name)
            known, saving = catalog.saved.get(name), catalog.saving.pop(name, None)
            when: float = time.time()
            metrics: Mapping[str, float] | None = None
            if saving is not None:
                when, metrics = saving.time, saving.metrics
            elif known is not None and known.mark == mark:  # the next job of the run has entered it already
                when, metrics = known.time, known.metrics
            try:
                size = size_of(self._storage.child(name))
            except FileNotFoundError:
                if saving is not None:
                    raise NoCheckpointError("nothing was saved there", file=self._storage.full(name)) from None
                _log.warning("%s has been removed, so its metrics are not noted", name)
                return
            if more:
                metrics = {**(metrics or {}), **more}
            catalog.saved[name] = Record(name, when, size, metrics, mark=mark)

        self._change(commit)

    def _give_up(self, name: str) -> None:
        # its files are left to the writers: the same step may be saved again by now
        self._change(lambda catalog, _: _drop(catalog, name))

    def _forget(self, saved: str) -> None:
        """Whatever the rules say of the step, the job's own last save stays: it may have resumed from an older step."""
        storage, keep = self._storage, self._keep
        report = forget_in(storage, keep, self._access, self._verify, series=self._series, protected=saved)
        if report.removed:
            _log.info("removed %s", some(report.removed))
        for name, reason in report.failed.items():
            _log.warning("%s could not be removed, which is tried again later: %s", name, escaped(reason))

    def _tidy(self) -> None:
        """Finish what a process left that was killed."""
        catalog = finish_removals(self._storage)
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
