"""`CheckpointManager`: when to save, what to keep, and what to resume from, on all ranks of a job."""

from __future__ import annotations

import errno
import logging
import operator
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent import futures
from concurrent.futures import Future
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.checkpoint.state_dict_saver import async_save as dcp_async_save
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from streamxf import errors
from streamxf.chain import Chains
from streamxf.dcp.install import installed
from streamxf.dcp.reader import FileSystemReader
from streamxf.dcp.writer import FileSystemWriter
from streamxf.errors import AbortedError, MetadataError, ParameterError, UnsupportedError, escaped, is_damage
from streamxf.keys import KeyRing, SigningKey, as_signing_key
from streamxf.manager.agreement import Agreement, check_one_folder, give_back, gloo_group
from streamxf.manager.bases import Bases
from streamxf.manager.choice import ALL, Choice, Verify, advised, check_verify, choose, clear, damage_of
from streamxf.manager.holds import MAX_NAME_BYTES
from streamxf.manager.housekeeper import Housekeeper
from streamxf.manager.listing import Run
from streamxf.manager.notes import Authority
from streamxf.manager.pins import pin_base
from streamxf.manager.record import MAX_DIGITS, Record, is_numbered, numbers_in, series_of
from streamxf.manager.retention import Retention
from streamxf.manager.schedule import Interval, SaveTimer, Schedule
from streamxf.manager.signals import StopSignals, deaf_from_the_start, is_dead
from streamxf.places import AbilitiesLike, Location, Storage, is_url, open_storage
from streamxf.reading import Access, ChainsLike, KeysLike, Note
from streamxf.writing import RunFacts

T = TypeVar("T")
P = ParamSpec("P")

_ASYNC = {"thread": AsyncCheckpointerType.THREAD, "process": AsyncCheckpointerType.PROCESS}
_log = logging.getLogger(__name__)
_calls: dict[tuple[int, int], list[tuple[int, str]]] = {}  # under way, by their process and thread


@dataclass
class _Saving:
    """A save in the background."""

    name: str
    future: Future[Any]
    group: int | None = None  # the number of its process group; None if a framework saves
    metrics: dict[str, float] = field(default_factory=dict)  # those that were not known when it began
    digests: dict[str, str] = field(default_factory=dict)  # of files that a framework writes
    base: str | None = None  # which it builds on


def _alone(method: Callable[Concatenate[CheckpointManager, P], T]) -> Callable[Concatenate[CheckpointManager, P], T]:
    """Refuse a call by a handler whose thread is inside a manager's, whose locks, and Python's own, it might wait for.
    A state that is saved or loaded may call other managers, and ask this one for a path: such a call only looks, and
    changes nothing of what goes on.
    """

    @wraps(method)
    def call(manager: CheckpointManager, /, *arguments: P.args, **options: P.kwargs) -> T:
        here = os.getpid(), threading.get_ident()  # a forked child has the thread's number, too
        calls, name = _calls.setdefault(here, []), f"CheckpointManager.{method.__name__.strip('_')}"
        inside = any(each == id(manager) for each, _ in calls)
        asks = bool(calls) and _is_asked_by_a_state() and (not inside or name in _LOOKS)
        if calls and not asks:
            raise AbortedError(
                f"this thread is inside {calls[-1][1]}, and {name}, which a handler or a state calls there, might wait "
                "for ever; nothing was done. Set a flag there, and save at the next step, or name its signal in "
                "Schedule(signals=...)"
            )
        if manager._closed and method.__name__ != "_close":
            raise ParameterError("this CheckpointManager is closed; use it inside its with block")
        depth, before = len(calls), manager._only_looks
        try:
            calls.append((id(manager), name))  # here, where an interrupt cannot leave it
            manager._only_looks = inside
            return method(manager, *arguments, **options)
        finally:
            del calls[depth:]
            manager._only_looks = before
            if not depth:
                _calls.pop(here, None)

    return call


_LOOKS = ("CheckpointManager.best", "CheckpointManager.latest")


def _is_asked_by_a_state() -> bool:
    """Whether a `Stateful` is at work further up, and not a handler that interrupts something else."""
    frame = sys._getframe(1)
    while (above := frame.f_back) is not None and frame.f_code.co_name not in ("state_dict", "load_state_dict"):
        frame = above
    return above is not None


class CheckpointManager:
    """The checkpoints of a training job: decides when to save, saves, removes old ones, and finds what to resume from.

    Every rank makes one, with the same arguments, and calls the same methods in the same order::

        with streamxf.CheckpointManager("run", save=Schedule(seconds=1800), keep=Retention(last=3)) as manager:
            begin = manager.resume(state) or 0
            for step in range(begin + 1, STEPS + 1):
                loss = train(step)
                if manager.should_save(step, last=step == STEPS):
                    manager.save(step, state, metrics={"loss": loss})
                if manager.stopping:
                    break

    One job at a time saves to a run's folder. Any number may read it.

    Parameters
    ----------
    run : path, str or Storage
        The folder, or the URL, under which each checkpoint has a folder of its own. If it is a `Storage`, `path`,
        `latest` and `best` return storages; frameworks' plug-ins need a path or a URL.
    chain, keys
        As in `FileSystemWriter`: `FloatZip` by default, or the chain of `install`. Readers use `keys`, by default those
        of the chain that can read, and trust the chain's signer, unless ``reader={"trust": ...}`` names others. If the
        chain encrypts, only encrypted checkpoints are resumed from; if signers are trusted, only signed ones.
    save : Schedule or int
        When `should_save` is true; a number means every N steps.
    keep : Retention or int
        Which checkpoints stay after each save; a number means the last N. By default all stay.
    async_save : bool or {"thread", "process"}
        Whether to save in the background, after making a copy; True means a thread.
    in_flight : int
        How many saves may be in the background at a time.
    incremental : int, optional
        Every how many saves all is stored, as 20. The others share with the last such one the files of tensors that
        have not changed since; see the guide to incremental saves. By default each save stores all.
    when_busy : {"wait", "skip"}
        Whether a save that is due while too many are in the background waits for them, or is left out. The last one,
        and one before the job ends, are never left out.
    verify : {"sample", "whole", "none"}
        How a checkpoint is verified before it is resumed from: by its metadata and blocks spread over its tensors, by
        reading all of it, or by its metadata and the sizes of its files. Loading checks all that it reads in any case.
    name : str
        The checkpoints' folders: ``{}`` stands for the step.
    run_id : str, optional
        Which run this is, 32 hexadecimal digits, if the folder holds checkpoints of several. By default the one that
        the checkpoints there name, or a new one.
    writer, reader : dict, optional
        More arguments for writers and readers, such as ``{"thread_count": 2}``, ``{"safe_globals": [...]}``.
    storage_options : mapping, optional
        fsspec's, for a URL.
    abilities : Abilities or mapping, optional
        As in `open_storage`.
    process_group : ProcessGroup, optional
        The ranks that save together; by default all.

    Attributes
    ----------
    stopping : bool
        Whether a rank got a signal that the job will end; the same on all ranks after `should_save`, which asks for one
        more save.
    skipped : dict of str to str
        The checkpoints that the last `resume`, `latest` or `best` passed over, each with the reason.

    Raises ParameterError, ChainError, UnsupportedError if the arguments do not fit.
    """

    def __init__(
        self,
        run: Location,
        chain: ChainsLike | None = None,
        *,
        keys: KeysLike = None,
        save: Schedule | int | None = None,
        keep: Retention | int | None = None,
        async_save: bool | Literal["thread", "process"] = False,
        in_flight: int = 1,
        when_busy: Literal["wait", "skip"] = "wait",
        incremental: int | None = None,
        verify: Verify = "sample",
        name: str = "step-{}",
        run_id: str | None = None,
        writer: Mapping[str, Any] | None = None,
        reader: Mapping[str, Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        abilities: AbilitiesLike = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        mode = "thread" if async_save is True else async_save or None
        if mode is not None and mode not in _ASYNC:
            raise ParameterError(f"async_save={async_save!r:.40}: it is False, True, 'thread' or 'process'")
        if type(in_flight) is not int or in_flight < 1:
            raise ParameterError(f"in_flight={in_flight!r:.40}: it is a whole number from 1")
        if when_busy not in ("wait", "skip"):
            raise ParameterError(f"when_busy={when_busy!r:.40}: it is 'wait' or 'skip'")
        if incremental is not None and (type(incremental) is not int or incremental < 1):
            raise ParameterError(f"incremental={incremental!r:.40}: it is a whole number from 1")
        check_verify(verify)
        self._bases = Bases(incremental or 1)
        self._writer, reader = _mapping("writer", writer), _mapping("reader", reader)
        if own := {"base", "memory"} & {*self._writer}:
            raise ParameterError(f"writer= has {min(own)!r}, which this manager chooses for each save: incremental=")
        self._chain, access, self._reader = _chain_and_access(chain, keys, reader)
        signer = _signer_of(self._writer, access)
        self._schedule = Schedule.of(save)
        self._keep = Retention.of(keep)
        self._async, self._most, self._skips = mode, in_flight, when_busy == "skip"
        self._name = name
        self._gives_storages = isinstance(run, Storage)
        place = os.fspath(run) if isinstance(run, os.PathLike) else run
        if place and isinstance(place, str) and not is_url(place):
            place = str(Path(place).absolute())
        # a relative path means what it means now, wherever the job changes to, and `..` what the system takes it for
        self._storage = open_storage(place, storage_options, abilities)
        self._storage.check_fresh()
        if not self._storage.abilities.keeps_older:
            _log.warning(
                "%s is not known to store what was written by the time that a save returns: what was saved last may be "
                "lost with this machine, and rules keep more. Say abilities={'stored': True, 'in_order': True} if it "
                "does; that says nothing of what other hosts save, which may show here minutes later",
                escaped(self._storage.label()),
            )
        _check_name(name, self._storage)
        _check_recorded("keep", self._keep.to_json(), {})
        self._writers = {0: self._make_writer(_named(name, 0))}  # of each group; now, to refuse what does not fit
        self._make_reader(self._storage)
        self.stopping = False
        if mode == "process" and not (dist.is_available() and dist.is_initialized()):
            raise ParameterError("async_save='process' needs torch.distributed to be initialized; 'thread' does not")
        self._agreement = Agreement(process_group)
        self._groups: list[Any] = [
            gloo_group(process_group) if self._agreement.size > 1 else None for _ in range(in_flight if mode else 1)
        ]
        self._saving: deque[_Saving] = deque()
        self._finished = 0
        series = series_of(_named(name, 0))
        self._verify, self._series = verify, series
        self._run = Run(self._storage, Authority(access, self._chain.encryption, signer), run_id)
        self._holds = ExitStack()  # on what was resumed from
        self._housekeeper = Housekeeper(self._run, self._keep, series, verify) if self._agreement.rank == 0 else None
        self.skipped: dict[str, str] = {}
        before = self._housekeeper.sessions() if self._housekeeper is not None and self._schedule.optimal else []
        self._timer = SaveTimer(self._schedule, before)
        self._signals = StopSignals(self._schedule.signals)
        self._deaf = {*self._schedule.signals, signal.SIGINT}
        self._logged: Interval | None = None
        self._announced: float | None = None  # when a framework's save began
        self._one_folder = False  # whether it is known that all ranks have the same
        self._closed = False
        self._only_looks = False  # as a state asks
        self._continues = False  # from what was loaded

    # -- when ----------------------------------------------------------------------------------------

    @_alone
    def should_save(self, step: int, *, last: bool = False) -> bool:
        """Whether to save after this step; every rank calls it once after each step, and gets the same answer.

        Saves by the clock or after a signal are agreed while the next step is computed, so that no step waits.

        Parameters
        ----------
        step : int
        last : bool
            Whether training ends after this step, so that it must be saved.

        Raises ParameterError if ranks ask for different steps; or the error of a save in the background, once, on every
        rank, after which training may go on. torch's ``CheckpointException`` is a ``BaseException``, which ``except
        Exception`` does not catch.
        """
        _named(self._name, step)
        asked = last or self._schedule.asks(step)
        done = self._finished + sum(saving.future.done() for saving in self._saving)
        due = self._agreement.rank == 0 and not self._saving_too_many() and self._timer.due()
        flags = self._agreement.exchange(step, due=due, stop=self._signals.requested, finished=done, wait=asked)
        self._collect(flags.finished - self._finished)
        stops = flags.stop and not self.stopping
        self.stopping |= flags.stop
        if not (asked or flags.due or stops):
            return False
        if self._skips and self._saving_too_many() and not last and not stops:
            _log.warning("no save at step %d: the one of %s is still under way", step, self._saving[0].name)
            return False
        return True

    @property
    def interval(self) -> Interval | None:
        """How often ``Schedule(optimal=True)`` saves at present, and why; on rank 0, after the first save."""
        return self._timer.interval

    # -- saving --------------------------------------------------------------------------------------

    def path(self, step: int) -> str | Storage:
        """The folder of a step's checkpoint, or its URL, even if there is no checkpoint."""
        return self._place(_named(self._name, step))

    @_alone
    def save(self, step: int, state: dict[str, Any], *, metrics: Mapping[str, float] | None = None) -> None:
        """Save under the step's name, replacing an earlier checkpoint; then remove old checkpoints in the background.

        Parameters
        ----------
        step : int
        state : dict
            As for ``dcp.save``.
        metrics : mapping of str to float, optional
            For `Retention`, and for `list_checkpoints`.

        Raises CheckpointException if the save failed on any rank, or with `async_save` an earlier one: the checkpoint
        to be replaced still loads; AbortedError, ParameterError as `begin`.
        """
        began = time.monotonic()
        name, numbers = _named(self._name, step), _floats(metrics)
        _mapping("state", state, needed=True)
        facts, base = self._begin(name, numbers)
        group = min(set(range(len(self._groups))) - {saving.group for saving in self._saving})
        if group not in self._writers:
            self._writers[group] = self._make_writer(name)
        writer = self._writers[group]  # which may have memory for copies
        writer.reset(self._storage.child(name))
        writer.run_facts, writer.deaf = facts, self._deaf
        writer.memory, writer.base = self._bases.memory, None if base is None else self._storage.child(base)
        background, saver = self._async, writer.process_that_saves
        if background == "process" and any(self._agreement.everywhere(lambda: is_dead(saver()))):
            background = None
            if self._agreement.rank == 0:
                _log.error("the process that saves in the background has ended: %s is saved in the foreground", name)
        given = {"storage_writer": writer, "process_group": self._groups[group], "no_dist": self._agreement.size == 1}
        try:
            if background is None:
                self._save_now(name, state, given)
            else:
                with deaf_from_the_start(self._deaf, saver) if background == "process" else nullcontext():
                    future = dcp_async_save(state, async_checkpointer_type=_ASYNC[background], **given)
        except BaseException:
            if self._housekeeper is not None:
                self._housekeeper.give_up(name)
            raise
        if background is None:
            self._published(_Saving(name, Future(), group, base=base), writer.save_id)
        else:
            assert isinstance(future, Future)  # the writer makes the copies, and not a stager of the caller's
            self._in_background(_Saving(name, future, group, base=base), began)
        self._blocked(began)

    def _begin(
        self, name: str, metrics: Mapping[str, float], *, framework: bool = False
    ) -> tuple[RunFacts, str | None]:
        """What a save says of its run, and what it builds on, if anything."""
        while self._saving_too_many() or any(saving.name == name for saving in self._saving):
            self._collect(1)
        self._holds.close()
        if not self._one_folder:
            check_one_folder(self._storage, self._agreement)
            self._one_folder = True
        under_way = [saving.base for saving in self._saving if saving.group is not None]
        facts, base = self._on_rank_0(
            lambda housekeeper: (
                housekeeper.begin(name, metrics, framework=framework),
                None if framework else self._bases.choose(self._storage, name, under_way),
            )
        )
        self._timer.began()
        return facts, base

    def _save_now(self, name: str, state: dict[str, Any], given: Mapping[str, Any]) -> None:
        try:
            dcp_save(state, **given)
        except CheckpointException as error:
            if not _is_full(error) or not self._on_rank_0(lambda housekeeper: housekeeper.make_room(name, full=True)):
                raise
            dcp_save(state, **given)  # into the room that old checkpoints have left

    @_alone
    def begin(self, step: int) -> str | Storage:
        """Announce a save by a framework; returns the folder to save to. It is complete once `commit` is called. An
        earlier checkpoint there is removed at once.

        Raises AbortedError, ParameterError, OSError, ForeignError if another job saves to this run, its checkpoints are
        of several runs, or the run's folder cannot be written to, or is not the same on all ranks. Do not save then.
        """
        self._announced = time.monotonic()
        self._begin(_named(self._name, step), {}, framework=True)
        return self.path(step)

    @_alone
    def commit(
        self,
        step: int,
        *,
        metrics: Mapping[str, float] | None = None,
        after: Future[Any] | None = None,
        digests: Mapping[str, str] | None = None,
    ) -> None:
        """Declare this rank's part of the save that `begin` announced complete.

        Parameters
        ----------
        step : int
        metrics : mapping of str to float, optional
            As in `save`. Later ones, such as a validation's, can be added by another call.
        after : Future, optional
            The result of ``dcp.async_save``: the save is complete when it is done on all ranks. `should_save` raises
            its error, as for the manager's own saves.
        digests : mapping of str to str, optional
            SHA-256 of files that this rank wrote, in hexadecimal, by paths in the step's folder. Those of other files
            are computed in the background; in object stores the store's own checksums serve.

        Raises NoCheckpointError, OSError, ForeignError if nothing was saved, or the commit record cannot be written,
        which for a save in the background is only logged; ParameterError if an argument is invalid, or `digests` names
        files that are not there: then nothing is committed.
        """
        name, numbers = _named(self._name, step), _floats(metrics)
        if not isinstance(after, Future | None):
            raise ParameterError(f"after={after!r:.80}: it is a Future, such as that of dcp.async_save")
        known: dict[str, str] = {}
        for found in self._agreement.everywhere(lambda: _hexadecimal(digests)):
            known |= found
        began, self._announced = self._announced, None
        under_way = next((saving for saving in self._saving if saving.name == name), None)
        if under_way is not None:
            under_way.metrics.update(numbers)
            under_way.digests.update(known)
        elif after is not None:
            self._in_background(_Saving(name, after, None, numbers, known), began or time.monotonic())
        else:
            self._on_rank_0(lambda housekeeper: housekeeper.complete(name, numbers, known))
        if began is not None:
            self._blocked(began)

    @_alone
    def wait(self) -> None:
        """Wait for all saves in the background, and for removals. Raises the error of a save."""
        self._finish()

    def _finish(self) -> None:
        self._collect(len(self._saving))
        if self._housekeeper is not None:
            self._housekeeper.wait()

    # -- resuming ------------------------------------------------------------------------------------

    @_alone
    def resume(
        self,
        state: dict[str, Any],
        *,
        step: int | None = None,
        foreign: bool = False,
        plaintext: bool = False,
        rename: Mapping[str, str] | None = None,
    ) -> int | None:
        """Load the newest intact checkpoint, and return its step; None if there is none yet.

        All ranks load the same one. Damage that any of them finds makes all of them fall back to the one before; rank 0
        logs the reasons, and `skipped` has them. The checkpoint is not removed meanwhile.

        Parameters
        ----------
        state : dict
            As for ``dcp.load``, which fills it.
        step : int, optional
            The only step to load. What is saved then begins a new line: later checkpoints stay, but are abandoned.
        foreign : bool
            Whether the checkpoint of `step` may be of another run, or saved under another name.
        plaintext : bool
            Whether a job whose chain encrypts may load an unencrypted checkpoint: once, to begin encrypting a run.
        rename : mapping of str to str, optional
            As in `FileSystemReader`. It may stay when the run goes on: later checkpoints have the new names.

        Raises
        ------
        NoCheckpointError
            If there are complete checkpoints, and none of them can be resumed from, or there is none of `step`; or if
            there is data alone, without metadata. A job that took this for a fresh start would overwrite them.
        ParameterError
            If the folder has checkpoints of several runs; pass ``run_id=`` to the manager.
        CheckpointException
            If loading fails for another reason than damage, such as another shape.
        KeyMissingError, WrongKeyError, KeyServiceError, UnknownCodecError
            If the newest one needs other keys or codecs.
        UnsupportedError
            If a newer version of streamxf saved the newest one, or a framework did, and without DCP.
        OSError, ForeignError
            If the storage cannot be reached, or the newest checkpoint cannot be read, as with ``EIO``.
        """
        _mapping("state", state, needed=True)
        self._finish()
        run = self._run
        if plaintext:
            run = Run(self._storage, Authority(run.authority.access.lenient(), unverified=True), run.run_id)
        skipped: dict[str, str] = {}
        self.skipped, replaced = skipped, ""
        while (found := self._chosen(run, skipped, self._holds, step=step, foreign=foreign)) is not None:
            record = found.record
            assert record is not None
            place = self._storage.child(record.name)
            if not found.has_index:
                self._holds.close()
                text = "a framework saved this, not DCP at its top: manager.latest() gives its path to what loads it"
                raise UnsupportedError(text, file=place.label())
            # or ranks might load two saves, if one is replaced at this moment
            reader = self._make_reader(place, plaintext=plaintext, expect_save_id=found.index_id, rename=rename)
            try:
                dcp_load(state, storage_reader=reader, process_group=self._groups[0], no_dist=self._agreement.size == 1)
            except CheckpointException as error:
                failures = [failure for failure, _ in error.failures.values()]
                for failure in (each for each in failures if isinstance(each, errors.StaleError)):
                    advised(failure, record)
                if not all(map(is_damage, failures)):
                    raise
                if record.name != replaced and any(isinstance(each, errors.IdentityError) for each in failures):
                    replaced = record.name  # perhaps at this moment, by a save that is the newest now
                    continue
                self._skip(skipped, {record.name: f"{type(failures[0]).__name__}: {failures[0]}"})
                continue
            finally:
                self._holds.close()
            self._resumed(record, goes_on=True)
            self._continues = True
            _log.info("resumed from %s", place)
            return record.step
        if self._housekeeper is not None and step is None and not self._continues:
            self._housekeeper.go_on_from(None)
        return None

    @_alone
    def latest(self, skip: Mapping[str, str] | None = None) -> str | Storage | None:
        """The path of the newest checkpoint that verifies, the same on all ranks, for frameworks that load by
        themselves; None if there is none yet. It is not removed before the next save. Raises as `resume`.

        Frameworks' files are compared with their digests, unless ``verify="none"``: few can fall back to older ones.

        Parameters
        ----------
        skip : mapping of str to str, optional
            The checkpoints to pass over, by name or path, such as those that could not be loaded, with the reasons.
        """
        return self._path_of(best=None, skip=skip)

    def warn_of_starting_over(self, call: str) -> None:
        """Warn that training from 0 starts over, where this run's folder has checkpoints; `call` resumes from them."""
        newest = max((each.step for each in self._run.read(series=self._series).records if each.counts), default=0)
        if newest:
            text = f"training starts over in a run that has step {newest}: to resume from there, call {call}"
            warnings.warn(text, stacklevel=3)

    @_alone
    def best(self) -> str | Storage | None:
        """The path of the checkpoint with the best value of the metric of `Retention`, as `latest`. If that is damaged,
        the second best, with a warning. None if the rules name no metric, or no checkpoint has it.
        """
        metric = self._keep.metric
        return self._path_of(best=(metric, self._keep.mode)) if metric is not None else None

    def _path_of(self, best: tuple[str, str] | None, skip: Mapping[str, str] | None = None) -> str | Storage | None:
        skipped: dict[str, str] = {}
        passed = {_name_of(key): str(reason) for key, reason in _mapping("skip", skip).items()}
        if odd := [name for name in passed if series_of(name) != self._series]:
            name = _named(self._name, 1)
            raise ParameterError(f"skip= has {odd[0]!r:.80}, which is no name of this run's, such as {name}")
        if self._only_looks:
            with ExitStack() as holds:
                looked = self._chosen(self._run, skipped | passed, holds, best=best, passed=passed)
            return None if looked is None or looked.record is None else self._place(looked.record.name)
        self._finish()
        self.skipped = skipped
        self._skip(skipped, passed)
        if (found := self._chosen(self._run, skipped, self._holds, best=best, passed=passed)) is None:
            if self._housekeeper is not None and best is None and not self._continues:
                self._housekeeper.go_on_from(None)
            return None
        assert found.record is not None
        self._resumed(found.record, goes_on=best is None and (found.passed or not self._continues))
        self._continues |= found.passed and best is None
        return self._place(found.record.name)

    # -- the end -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Wait for everything in the background. Raises the error of a save."""
        self._close(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(error)

    @_alone
    def _close(self, error: BaseException | None) -> None:
        if self._closed:
            return
        self._closed = True
        with ExitStack() as stack:
            stack.callback(self._signals.close)
            if self._housekeeper is not None:
                ended = error is None or (isinstance(error, SystemExit) and not error.code)
                stack.callback(self._housekeeper.close, ended=ended)
            stack.callback(self._holds.close)
            if error is None:
                for group in filter(None, self._groups):
                    stack.callback(give_back, group)
            stack.callback(self._agreement.close, failed=error is not None)
            try:
                self._collect(len(self._saving))
            except (Exception, CheckpointException) as failure:  # torch's is a BaseException
                if error is None:
                    raise
                _log.error("a save in the background failed: %s", escaped(f"{type(failure).__name__}: {failure}"))

    # -- helpers -------------------------------------------------------------------------------------

    def _chosen(
        self,
        run: Run,
        skipped: dict[str, str],
        holds: ExitStack,
        *,
        step: int | None = None,
        foreign: bool = False,
        best: tuple[str, str] | None = None,
        passed: Collection[str] = (),
    ) -> Choice | None:
        """What to load; None without a record. Rank 0 chooses, and all ranks read it. What is passed over comes to
        those `skipped`; what the caller has `passed` over decides nothing.
        """
        name = None if step is None else _named(self._name, step)
        rank, size = self._agreement.rank, self._agreement.size
        while True:
            options = (run, self._series, self._verify, holds, skipped, name)
            how: dict[str, Any] = {"foreign": foreign, "best": best, "passed": passed}
            choice = self._agreement.broadcast(partial(choose, *options, **how))
            self._skip(skipped, choice.skipped)
            record, check = choice.record, choice.check
            if record is None:
                return None
            run.run_id = choice.run_id
            look = partial(damage_of, run, record, check, (rank, size) if check == "whole" else ALL)
            found = self._agreement.everywhere(look if rank == 0 or check == "whole" else lambda: None)
            if (reason := next(filter(None, found), None)) is None:
                if rank == 0 and check == "whole":
                    clear(self._storage, record)
                return choice
            holds.close()
            self._skip(skipped, {record.name: reason})

    def _skip(self, skipped: dict[str, str], reasons: Mapping[str, str]) -> None:
        """Pass these over, and say so once."""
        for name, reason in reasons.items():
            if name not in skipped and self._agreement.rank == 0:
                _log.warning("%s is passed over: %s", escaped(self._storage.label(name)), escaped(reason))
            skipped[name] = reason

    def _resumed(self, record: Record, *, goes_on: bool) -> None:
        """What saves on, or only looks at it."""
        self._run.run_id = self._run.run_id or (record.run if record.version is None else None)
        if goes_on:
            self._bases = Bases(self._bases.every)
        if self._housekeeper is not None:
            self._housekeeper.resumed = record.name
            if goes_on:
                self._housekeeper.go_on_from(record)

    def _on_rank_0(self, call: Callable[[Housekeeper], T]) -> T:
        """What rank 0 does, and all wait for; what it raises is raised on every rank."""
        housekeeper = self._housekeeper
        return self._agreement.broadcast(lambda: call(housekeeper) if housekeeper is not None else None)  # type: ignore[return-value]

    def _published(self, saving: _Saving, save_id: str | None = None) -> None:
        self._bases.published(saving.name, saving.base)
        if self._housekeeper is not None and saving.group is None:
            self._housekeeper.complete(saving.name, saving.metrics, saving.digests, wait=False)
        elif self._housekeeper is not None:
            self._housekeeper.commit(saving.name, save_id, saving.metrics)

    def _in_background(self, saving: _Saving, began: float) -> None:
        saving.future.add_done_callback(lambda _: self._timer.finished(time.monotonic() - began))
        self._saving.append(saving)

    def _saving_too_many(self) -> bool:
        return len(self._saving) >= self._most

    def _collect(self, count: int) -> None:
        """Take the first of the saves in the background, once they are done; raises what the first one failed with."""
        failure: BaseException | None = None
        for _ in range(count):
            # if this is interrupted, by Ctrl-C say, the save is still under way
            futures.wait([self._saving[0].future])
            saving = self._saving.popleft()
            self._finished += 1
            try:
                saving.future.result()
            except BaseException as error:
                if self._housekeeper is not None:
                    self._housekeeper.give_up(saving.name)
                if _is_full(error) and not self._keep.keeps_all:
                    if self._housekeeper is not None:
                        self._housekeeper.make_room(saving.name, full=True)
                    error.add_note("next: save again; the rules of keep= have been applied, to make room for that")
                failure = failure or error
            else:
                self._published(saving)
        if failure is not None:
            raise failure

    def _blocked(self, began: float) -> None:
        """A save that `began` then lets training go on."""
        self._timer.blocked(time.monotonic() - began)
        found = self._timer.interval if self._agreement.rank == 0 else None
        if found is not None and (self._logged is None or not 0.8 < found.seconds / self._logged.seconds < 1.25):
            self._logged = found
            _log.info("%s", found)

    def _place(self, name: str) -> str | Storage:
        return self._storage.child(name) if self._gives_storages else self._storage.location(name)

    def _make_writer(self, name: str) -> FileSystemWriter:
        made = FileSystemWriter(self._storage.child(name), chain=self._chain, **self._writer)
        made.pin = pin_base
        return made

    def _make_reader(self, place: Storage, *, plaintext: bool = False, **more: Any) -> FileSystemReader:
        reader = FileSystemReader(place, **{**more, **self._reader, **({"require": None} if plaintext else {})})
        return reader if plaintext else reader.for_chain(self._chain.default)


def _chain_and_access(
    chain: ChainsLike | None, keys: KeysLike, reader: dict[str, Any]
) -> tuple[Chains, Access, dict[str, Any]]:
    """What the job saves through and reads with, and what its readers are made with. Without `chain` it is that of the
    installation in force, and so are the keys, unless there are some. Raises ParameterError, ChainError.
    """
    current = installed()
    if chain is None and current is not None and current.chain is not None:
        chain = current.chain
        if keys is None:  # trust= replaces that of the installation, which a ring would keep
            keys = [*current.keys] or None if "trust" in reader else current.keys
    ring = None if keys is None else KeyRing.of(keys)
    made = Chains.chosen(chain, keys=ring)
    known = {name: reader.pop(name) for name in ("trust", "allow_unsigned") if name in reader}
    access = Access.for_chain(made.default, reader.get("keys", ring), require=reader.get("require"), **known)
    return made, access, {**reader, "keys": access.keys}


def _signer_of(writer: Mapping[str, Any], access: Access) -> SigningKey | None:
    """Who signs what the job saves, where that is not encrypted. Raises ParameterError if it does not trust that."""
    signer = as_signing_key(writer["signer"]) if writer.get("signer") is not None else None
    known = signer is not None and signer.verify_key in access.trust
    if access.trust and not (known or len(access.keys) or access.refuses_plaintext):
        raise ParameterError(
            "signers are trusted (trust), and none of them signs what this job saves: a second start could not resume "
            "from it. Pass writer={'signer': ...}, and that signer's key in reader={'trust': ...}"
        )
    return signer


def _is_full(error: BaseException) -> bool:
    """Whether a save failed since the disk, or somebody's part of it, is full."""
    failures = [each for each, _ in error.failures.values()] if isinstance(error, CheckpointException) else [error]
    return any(getattr(each, "errno", None) in (errno.ENOSPC, errno.EDQUOT) for each in failures)


def _name_of(place: Any) -> str:
    """A checkpoint's name, of what `latest` returns, too."""
    return place.name if isinstance(place, Storage) else os.path.basename(str(place).rstrip("/"))


def _mapping(argument: str, value: Any, *, needed: bool = False) -> dict[Any, Any]:
    if not isinstance(value, Mapping) and (needed or value is not None):
        raise ParameterError(f"{argument}= is a mapping, and not of type {type(value).__name__}")
    return {} if value is None else dict(value)  # a TensorDict is neither true nor false


def _floats(metrics: Mapping[str, float] | None) -> dict[str, float]:
    found = {}
    for name, value in _mapping("metrics", metrics).items():
        try:
            found[str(name)] = float(value)
        except (OverflowError, TypeError, ValueError, RuntimeError) as error:  # torch's, of several elements
            raise ParameterError(f"the metric {name!r:.80} is {value!r:.80}, which is no number of 64 bits") from error
    _check_recorded("metrics", {}, found)
    return found


def _check_recorded(argument: str, rules: dict[str, Any], metrics: dict[str, float]) -> None:
    """Raise ParameterError for what no checkpoint could say of its run."""
    try:
        Note.seal(RunFacts("0" * 32, "-", 0, 0.0, rules, metrics).to_json())  # which has room for less than an index
    except MetadataError as error:
        limits = "text is UTF-8 without control characters, whole numbers are below 2**53, and 8 MiB is the most"
        text = f"{argument}= cannot be recorded ({error.message}): {rules | metrics!r:.200}; {limits}"
        raise ParameterError(text) from None


def _hexadecimal(digests: Mapping[str, str] | None) -> dict[str, str]:
    found = _mapping("digests", digests)
    for path, text in found.items():
        if not isinstance(path, str | os.PathLike) or not re.fullmatch("[0-9A-Fa-f]{64}", str(text)):
            raise ParameterError(f"digests: {path!r:.80} has {text!r:.80}: give each path 64 hexadecimal digits")
    return {os.fspath(path): str(text).lower() for path, text in found.items()}


def _named(name: str, step: int) -> str:
    """The folder of a step."""
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if not 0 <= number < 10**MAX_DIGITS or isinstance(step, bool):
        raise ParameterError(f"step={step!r:.80}: it is an integer from 0, of at most {MAX_DIGITS} digits")
    return name.format(number)


def _check_name(name: str, storage: Storage) -> None:
    """Raise ParameterError unless ``{}`` ends folders' names as the step, and the storage can list and remove such."""
    try:
        named = {step: name.format(step) for step in (0, 12, 3_456_789)}
        fits = [*named] == [numbers_in(n)[-1] for n in named.values()] and len({*map(series_of, named.values())}) == 1
        longest = name.format(10**MAX_DIGITS - 1)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        fits, longest = False, ""
    faults = {
        "it has a `/`, and checkpoints lie in the run's own folder": "/" in str(name),
        "it begins with a dot, and so would be hidden": str(name).startswith("."),
        "`{}` stands in it once, for the step as its last number": not fits,
        "it is not printable": not str(name).isprintable(),
        f"it has a number of more than {MAX_DIGITS} digits": not is_numbered(longest),
    }
    if fault := next((text for text, found in faults.items() if found), ""):
        raise ParameterError(f"name={name!r:.80}: {fault}. Name it as in 'step-{{}}'")
    if (size := len(longest.encode())) > MAX_NAME_BYTES:
        text = f"with {MAX_DIGITS} digits in place of {{}} it has {size} bytes, {MAX_NAME_BYTES} are allowed"
        raise ParameterError(f"name={name!r:.80}: {text}, since the names of small files contain it")
    if not storage.near and "::" in name:
        raise ParameterError(f"name={name!r:.80}: in a URL `::` chains file systems, so use other characters")
    storage.check_literal(longest)
