"""`FileSystemWriter`: torch's writer with a chain, a save path of its own, and a trailer in ``.metadata``."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Collection, Iterable, Sequence
from concurrent import futures
from dataclasses import dataclass, field, replace
from itertools import chain
from multiprocessing.resource_sharer import DupFd
from time import perf_counter
from typing import Any
from weakref import finalize, ref

from torch.distributed.checkpoint import CheckpointException, Metadata, SavePlan, SavePlanner, filesystem
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.planner import WriteItemType
from torch.futures import Future

from streamxf import torch_private
from streamxf.chain import Chain, Chains, ChainsLike
from streamxf.checkpoint.datafile import write_files
from streamxf.checkpoint.memory import SMALL, SaveMemory, check_memory
from streamxf.checkpoint.publish import Pin, check_free, publish, remove_unpublished
from streamxf.checkpoint.saving import Extensions, Save, Stock, check_stock
from streamxf.checkpoint.sources import Staging
from streamxf.codec import Codec
from streamxf.dcp import plans as planning
from streamxf.dcp.base import ProgressLike, StorageMixin, errors_reach_all_ranks, progress_on, rank_here, reset_names
from streamxf.dcp.columns import StoredResults, complete, extra_of, items_of, paths_of
from streamxf.dcp.planner import SavePlanner as OwnPlanner
from streamxf.dcp.staged import check_parent, check_sent, copied, settle_in
from streamxf.engine import finalize_apart
from streamxf.errors import AbortedError, ChainError, ParameterError, UnsupportedError, escaped, notes_of, text_of
from streamxf.format.limits import DEFAULT_BLOCK_LOG2
from streamxf.format.names import GLOBAL, metadata_name
from streamxf.format.run import RunFacts
from streamxf.format.values import Nesting
from streamxf.keys import KeyRing, KeysLike, SignerLike
from streamxf.report import SaveReport
from streamxf.storage.opening import Location, open_storage
from streamxf.stream.encoder import block_log2_of
from streamxf.torchsave.writing import Saved

_log = logging.getLogger(__name__)


@dataclass
class _RankSave(Save):
    """What one rank knows of the save that it takes part in.

    - `report`: what it wrote, once it has.
    - `begun`: taken when writing begins.
    - `alone`: whether no other rank writes to the save.
    - `nesting`, `names`: what it adds to the index's `extra`; names of items in their order.
    - `compared`: as in its report.
    - `unpublished`: where the save is to be published, removes what all ranks wrote if this object goes before.
    - `others`: ids, in hexadecimal, of the writers of files that may then be there, besides those of the ranks.
    - `agreed`: the id of the save, and that of its base or "", where ranks save without collectives.
    """

    report: SaveReport | None = None
    begun: threading.Lock = field(default_factory=threading.Lock)
    alone: bool = False
    nesting: Any = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    compared: bool | None = None
    unpublished: finalize[..., Save] | None = None
    others: set[str] = field(default_factory=set)
    agreed: tuple[str, str] = ("", "")


class ChainWriterMixin(StorageMixin):
    """What streamxf's writers put in the place of torch's save path, beside a torch ``FileSystemWriter``."""

    checkpoint_id: Any
    thread_count: int
    single_file_per_rank: bool
    sync_files: bool
    overwrite: bool
    #: What the last save did in this process; None before it is over, and if it failed. A rank that does not publish
    #: learns of another rank's failure by the error alone: its report then tells of what it wrote itself.
    report: SaveReport | None
    #: Which save was published last, on a rank that publishes; None before the first one, and after turning to another
    #: checkpoint. Text otherwise; torch's class says that it always is.
    save_id: Any
    #: What saves say of the run that they belong to; rank-local metadata does not have it.
    run_facts: RunFacts | None
    #: Signals by which the process does not end that saves in the background.
    deaf: Collection[int] = ()
    #: The folder of an earlier save, whose files the next one may share, and what this process knows of its saves.
    base: Location | None
    memory: SaveMemory | None
    #: What torch has started here to save in the background; None before the first such save.
    process_that_saves = staticmethod(torch_private.process_that_saves)
    cache_staged_state_dict: bool
    _save: _RankSave | None
    _coming: tuple[int, str] | None
    _background: ref[futures.Future[Any]] | None  # of the last save in the background that uses this writer

    def __init__(
        self,
        path: Location,
        single_file_per_rank: bool = True,
        sync_files: bool = True,
        thread_count: int = 1,
        per_thread_copy_ahead: int = 10_000_000,
        *,
        overwrite: bool = True,
        _extensions: Sequence[Any] | Chain | Chains | Extensions | None = None,
        serialization_format: Any = None,
        chain: ChainsLike | None = None,
        keys: KeysLike = None,
        signer: SignerLike | None = None,
        stock: Stock = "auto",
        group: str | None = None,
        block_size: int = 1 << DEFAULT_BLOCK_LOG2,
        base: Location | None = None,
        memory: SaveMemory | None = None,
        progress: ProgressLike = False,
        **kwargs: Any,
    ) -> None:
        own = {"single_file_per_rank": single_file_per_rank, "sync_files": sync_files, "thread_count": thread_count}
        own |= {"per_thread_copy_ahead": per_thread_copy_ahead, "overwrite": overwrite}
        super().__init__(path, progress, kwargs, **own)
        if _extensions is None:
            _extensions = Chains.chosen(chain, keys=keys)
        elif chain is not None or len(KeyRing.of(keys)):
            raise ParameterError("_extensions= is the whole chain: pass chain= in its place, and keys= with that alone")
        if getattr(serialization_format, "value", "torch_save") != "torch_save":  # torch 2.7 has no such class
            raise UnsupportedError(
                "streamxf writes torch.save's format: with SAFETENSORS torch writes the tensors past the extensions, "
                "and no FileSystemReader reads the file. Leave serialization_format out"
            )
        if type(thread_count) is not int or thread_count < 1:
            raise ParameterError(f"thread_count={thread_count!r}: it is a whole number from 1")
        self._extensions = extensions_of(_extensions).signed_by(signer)
        self._stock, self._group = check_stock(stock), group
        if group is not None and not re.fullmatch("[0-9a-f]{32}", group):
            raise ParameterError(f"group={group!r:.80}: it is 32 lower-case hexadecimal digits, alike on all ranks")
        self._for_torch = stock is True or not any(map(len, self._extensions.chains))
        self._block_log2 = block_log2_of(block_size)
        self._save = None
        self._warned = set[object]()
        self.report = None
        self.save_id = None  # torch's own is drawn on every rank, and no save has it
        self.run_facts = None
        self._coming = None
        self._background = None
        if base is not None or memory is not None:
            check_memory(memory, base)
        self.base, self.memory = base, memory
        if base is not None:
            open_storage(base, self._options or None)  # raises for what is no location
        self.pin: Pin | None = None
        self._storage.check_fresh()

    # -- what DCP calls, in this order -------------------------------------------------------------

    def stage(self, state_dict: Any) -> Any:
        """Copy what `dcp.async_save` is to save; first wait for an earlier save in the background by this writer."""
        self._join_background()
        if (3, 12) <= sys.version_info < (3, 12, 3):  # which cannot start a thread once the main thread ended, and
            with open(os.devnull, "rb") as file:  # this has one pass descriptors
                os.close(DupFd(file.fileno()).detach())
        for text in planning.texts_about(state_dict, for_torch=False):  # torch's copy may be a plain dictionary
            self._warn(text)
        return copied(state_dict, self.cache_staged_state_dict)

    def storage_meta(self) -> StorageMeta:
        """What DCP tells planners: where the save goes, and the id that it has if this rank publishes it. As with
        torch's writers each rank has an id of its own. Once it has published, `save_id` has that, and this is the next.
        """
        self._note_background()
        _make_objects(torch_private.state_of_the_save(), torch_private.planner_of_the_save())
        reset_names()  # the planner is asked next
        return StorageMeta(checkpoint_id=self.checkpoint_id, save_id=self._coming_id())

    def reset(self, checkpoint_id: Location | None = None) -> None:
        """Switch to another checkpoint, with the same storage options; ParameterError for one of another kind."""
        self._join_background()
        self._give_up()
        super().reset(checkpoint_id)
        self.save_id = self._coming = None

    @errors_reach_all_ranks
    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Begin a save: draw the writer id, and whatever the chain draws for each save."""
        self._join_background()
        self._give_up()
        if torch_private.in_the_process_that_saves():
            settle_in(self.deaf)
        super().set_up_storage_writer(is_coordinator)  # type: ignore[misc]  # before torch 2.9 it takes nothing else
        self.rank = kwargs.get("rank", rank_here())  # torch before 2.9 does not say
        self.use_collectives = kwargs.get("use_collectives", True)
        self._publishes = is_coordinator or not self.use_collectives
        self.report = None
        how = self._block_log2, self.sync_files, self.overwrite, self._stock
        self._save = save = _RankSave(self._storage, self._extensions.renew(), *how)
        if not self.use_collectives:
            drawn, save.ranks = torch_private.ranks_of_the_save(self._storage.label().rpartition("/")[2])
            save.group = self._group or drawn

    @errors_reach_all_ranks
    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Check that the folder can take this save; raises UnsupportedError for rank-local metadata beside global."""
        save, storage = self._under_way, self._storage
        storage.make_folder(durable=self.sync_files)
        # torch's own method makes a folder of the path as it was given, which may be a URL with a password
        if storage.exists(GLOBAL if self.use_collectives else metadata_name(0)):
            if not self.overwrite:
                raise RuntimeError(f"Checkpoint already exists in {storage.label()}, and {self.overwrite=}.")
            storage.check_may_replace(3)
            text = f"Detected an existing checkpoint in {storage.label()}: this save replaces it"
            warnings.warn(f"{text}. Pass overwrite=False to refuse that", stacklevel=3)
        save.enter(links=self.run_facts is None)  # in a run's folder nobody names links, and others may make some
        state = torch_private.state_of_the_save() if plan.planner_data is not None else None
        nesting = Nesting.recorded(state, planning.is_flattened)
        planning.check_keys(state)
        for text in planning.texts_about(state, self._for_torch and rank_here() == 0):
            self._warn(text)
        if self.use_collectives:
            return planning.note_room(plan, storage, save.writer_id, nesting, self._held)
        save.agreed = self._coming_id(), self._find_base(metadata_name(self.rank), [self._held])
        save.nesting = Nesting.merged([nesting]).extra
        if storage.exists(GLOBAL):
            check_free(self.path, [GLOBAL], metadata_name(self.rank), self.overwrite)
        return plan

    @errors_reach_all_ranks
    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Tell each rank how much those that share its file system write to it. Raises ChainError if other ranks save
        by torch's own writers, and MetadataError for a save that the index may not be able to hold. What ranks write
        goes with the save: DCP tells no writer that one failed.
        """
        save = self._under_way
        planning.check_all_noted(plans, save.writer_id)
        notes = [note for plan in plans if isinstance(note := plan.storage_data, planning.RoomNote)]
        save.others |= {note.save.hex() for note in notes}
        save.alone = len(plans) == 1
        if self.use_collectives:
            held = [note.held for note in notes]
            save.agreed = self._coming_id(), self._find_base(GLOBAL, held if len(held) == len(plans) else [()])
            kept = planning.all_notes(plans)
            save.nesting = Nesting.merged(note.nesting for note in kept if note is not None).extra
            if not save.alone:
                save.compared, text = planning.compare_ranks(kept)
                self._warn(text)
        save.names = planning.check_index(plans, save.extensions.chains)
        rank = None if self.use_collectives else self.rank
        given = save.storage, save.writer_id.hex(), save.others, rank, os.getpid()
        save.unpublished = finalize(save, finalize_apart, remove_unpublished, *given)
        return planning.share_room(plans, *save.agreed)

    @errors_reach_all_ranks
    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[Any]:
        """Write the plan's items. The first failure of any file is raised after all other threads have stopped;
        NoSpaceError if they cannot fit on the disk, before anything is written, and AbortedError if another save has
        started on this writer: both would write the same files.
        """
        save = self._under_way
        if not save.begun.acquire(blocking=False):
            raise AbortedError(
                "another save through this writer is under way; wait for its future, or make a writer for each save"
            )
        storage = save.enter()
        values = planning.plain_values(plan.items, planner, save.extensions)
        others = [item for item in plan.items if item.index.fqn not in values]
        buckets = [[item] for item in others]
        if self.single_file_per_rank:
            buckets = torch_private.split_by_size_and_type(self.thread_count, others)
        files = {
            save.file_name(self.rank or 0, number): sorted(items, key=self._turn)
            for number, items in enumerate(filter(None, buckets))
        }
        if values and not files:
            files[save.file_name(self.rank or 0, 0)] = []
        first, *rest = files.values() or [[]]  # which has all values, at its end
        items = [*first, *(item for item in plan.items if item.index.fqn in values), *chain.from_iterable(rest)]
        versions, begin = planning.tensor_versions({item.index.fqn for item in items}, planner), perf_counter()
        try:
            planning.check_seen(plan, storage, planner)
            self._begin_increment(save, plan)
            save.place = storage.mount()
            planning.check_room(save, plan, planner)
            with progress_on(self._progress, "Saving") as save.progress:
                if save.progress is not None:
                    save.progress.expect(planning.planned_bytes(items))
                staging = Staging()
                save.sizes = {} if storage.near else {name: planning.planned_bytes(own) for name, own in files.items()}
                entries = {name: planning.entries_of(own, planner, staging) for name, own in files.items()}
                stored = write_files(save, entries, self.thread_count, values)
            if self.sync_files:  # the process that publishes may be on another host
                storage.sync()
            needed, text = save.refused_objects()
            self._warn(text, needed, stacklevel=3)
            if text := planning.changed_text(versions, planning.tensor_versions(versions, planner)):
                warnings.warn(text, stacklevel=2)
            if save.increment is not None:
                save.increment.remember(stored)
        except BaseException as error:
            gone = save.discard(files, error)  # those that were finished, too
            if gone and save.alone and save.unpublished is not None:  # nothing is left to remove later
                save.unpublished.detach()
                save.leave()
            raise
        finally:
            if not self._publishes:
                save.leave(published=False)
        save.report = SaveReport.of(save.meter, perf_counter() - begin)
        self.report = None if self._publishes else save.report
        done: Future[Any] = Future()
        done.set_result(StoredResults.of(items, stored))
        return done

    @errors_reach_all_ranks
    def finish(self, metadata: Metadata, results: Sequence[Any]) -> None:
        """Publish the save: its metadata in one step, then remove what the previous save left."""
        save = self._under_way
        save_id, self._coming = self._coming_id(), None
        rank, records = None if self.use_collectives else self.rank, [each for own in results for each in own.records]
        waiting, save.unpublished = save.unpublished, None
        if waiting is not None and waiting.detach() is None:  # the interpreter is about to exit
            raise AbortedError("this save was given up, and its files were removed; it was not published")
        try:
            try:
                save.enter()
                paths = paths_of(metadata)
                items = items_of(metadata, paths, results, save.extensions.recorded_for)
                order = filter(items.__contains__, dict.fromkeys((*save.names, *items)))
                extra = Nesting({**extra_of(metadata, paths), **save.nesting}).with_order(order)
            except BaseException as error:
                save.discard({record.path for record in records if record.is_of(save_id)}, error)
                raise
            run = self.run_facts if rank is None else None
            if torch_private.in_the_process_that_saves():
                check_parent()
            index = publish(save, items, records, save_id, rank=rank, extra=extra, run=run)
        finally:
            save.leave()
        self.save_id, self._stock = save_id, save.stock  # so that checkpoints of a run are alike
        self.report = save.report and replace(save.report, stock=save.pickled, compared=save.compared)
        complete(metadata, index, self._storage)

    def _find_base(self, name: str, held: Sequence[Collection[str]]) -> str:
        """The id of the newest save, of which files lie in the base's folder, that all processes know; or ""."""
        if self.memory is None or self.base is None:
            return ""
        from streamxf.checkpoint.increments import saves_in  # which saves without a base do not need

        ids, writers = saves_in(open_storage(self.base, self._options or None), name)
        self._under_way.others |= {writer.hex() for writer in writers}
        return next((save_id for save_id in ids if all(save_id in each for each in held)), "")

    def _begin_increment(self, save: _RankSave, plan: SavePlan) -> None:
        """Have what is saved compared with the base that the coordinator has chosen, and noted."""
        note, (save_id, base) = plan.storage_data, save.agreed
        if isinstance(note, planning.RoomNote) and note.save == save.writer_id:  # and not that of an earlier save
            save_id, base = note.save_id, note.base
        if self.memory is not None and save_id:
            from streamxf.checkpoint.increments import Increment

            folder = None if self.base is None else open_storage(self.base, self._options or None)
            save.increment = Increment(self.memory, save, save_id, base, folder, self.pin)

    def _turn(self, item: Any) -> tuple[bool, bool, bool]:
        """In which order items are written: objects first, and bare ones before others, which wait for those. For small
        ones no file is linked, but many are in one that a large one is in.
        """
        is_small = self.base is not None and planning.planned_bytes([item]) < SMALL
        return len(self._extensions.chains.for_item(item.index.fqn)) > 0, item.type != WriteItemType.BYTE_IO, is_small

    def _warn(self, text: str, matter: object = None, stacklevel: int = 5) -> None:
        """Warn of a matter, by default of the text, once."""
        matter = matter or text
        if matter and matter not in self._warned:
            self._warned.add(matter)
            warnings.warn(text, stacklevel=stacklevel)  # an error if the process's filters say so

    def __getstate__(self) -> dict[str, Any]:
        """A copy, in any process, begins its own saves; a `Progress`, which perhaps cannot be pickled, stays here."""
        self._note_background()  # this may be on the way to a process that saves
        check_sent(torch_private.state_on_the_way())
        own = {"_save": None, "_coming": None, "_background": None, "report": None}
        return {**self.__dict__, **own, "_progress": self._progress is True}

    # -- saves in the background -------------------------------------------------------------------
    #
    # torch gives the future of such a save to the caller of `async_save` alone. A future nobody awaits hides its error,
    # and a full disk or a killed process would go unnoticed for as long as training runs. A writer finds that future on
    # the stack, of `async_save` or of the thread in which torch's executor runs the save, and logs a failure.

    @property
    def should_synchronize_after_execute(self) -> bool:
        """True: `dcp.async_save` then calls `synchronize_staging` once it has the future."""
        return True

    def synchronize_staging(self) -> None:
        """Have a failure logged, also one that comes before the writer is asked: a state that cannot be pickled."""
        self._log_failure_of(torch_private.future_of_async_save())

    def _note_background(self) -> None:
        """If this thread makes a save in the background, have its failure logged."""
        self._log_failure_of(torch_private.future_of_the_save_in_this_thread())

    def _log_failure_of(self, future: futures.Future[Any] | None) -> None:
        ours = object()
        if future is not None and vars(future).setdefault("_streamxf", ours) is ours:  # two threads may come here
            self._background = ref(future)  # the error of a save that failed leads to all that was staged
            future.add_done_callback(_log_failure)

    def _join_background(self) -> None:
        """Wait for an earlier save: two would mix the writer's state, and torch may stage both in the same memory."""
        earlier = None if self._background is None else self._background()
        if earlier is not None and earlier is not torch_private.future_of_the_save_in_this_thread():
            futures.wait([earlier])
        self._note_background()

    @property
    def _held(self) -> tuple[str, ...]:
        """The ids of the saves that this process knows, the newest last."""
        return () if self.memory is None else self.memory.held

    @property
    def _under_way(self) -> _RankSave:
        if self._save is None:
            raise AbortedError("no save is under way: DCP calls set_up_storage_writer first")
        return self._save

    def _give_up(self) -> None:
        """Remove what an earlier save left which was not published."""
        if self._save is not None:
            if self._save.unpublished is not None:
                self._save.unpublished()
            self._save.unlock()
        self._save = None

    def _coming_id(self) -> str:
        """That of the save under way, or of the next; a forked child has others than its parent."""
        if self._coming is None or self._coming[0] != os.getpid():
            self._coming = os.getpid(), os.urandom(16).hex()
        return self._coming[1]


class FileSystemWriter(ChainWriterMixin, filesystem.FileSystemWriter):
    """Saves a checkpoint to a local or mounted file system through a chain.

    Use it wherever torch's ``FileSystemWriter`` is used.

    Parameters
    ----------
    path : path or Storage
        The checkpoint's folder. `FsspecWriter` takes URLs.
    single_file_per_rank, sync_files, thread_count, per_thread_copy_ahead, cache_staged_state_dict, overwrite
        As in torch, the last two by name. All threads share the process's workers.
    _extensions : sequence of Codec and StreamTransformExtension, or Chain
        torch's argument: as `chain`, with other packages' stream extensions before the first codec.
    serialization_format : SerializationFormat, optional
        Only ``TORCH_SAVE``.
    chain : Chain, codecs or str, or a mapping
        The codecs, in the order in which data passes them, as in `streamxf.open`: ``[FloatZip(), Encrypt(key)]`` or
        ``"floatzip+encrypt"``. The default is ``[FloatZip()]``; an empty list means no chain, and ``"raw"`` that of
        tensors only their bare bytes are stored, which `Checkpoint` maps into memory. A mapping has a chain for each
        pattern of items' names: ``{"*": "floatzip+checksum", "embedding.*": "raw", "*.ids": "zstd:level=9"}``. The last
        pattern that fits counts, and ``*`` stands for any text. If one chain encrypts, all do.
    keys : Key, location, several of them or a KeyRing
        The key for ``encrypt`` in a chain's text form.
    signer : SigningKey or location, optional
        Signs what is saved, encrypted or not.
    stock : bool or "auto"
        Whether torch's own readers can read the checkpoint, with `Registry` for the codecs: they need a pickle of all
        chunks, which takes much time and memory to write and read where there are many. ``"auto"`` writes it up to
        65,536 chunks and objects; the first save that is published decides for all by this writer. It is always written
        where torch's readers need no codec. ``streamxf stock`` adds it later.
    block_size : int
        Bytes, a power of two from 64 KiB to 16 MiB: the unit of parallel work, of random access and of authentication.
    group : str, optional
        Without collectives, 32 hexadecimal digits that all ranks have alike and no other save has: by these readers
        know the metadata of single ranks that are of one save. By default ranks of a process group have some.
    base : path, URL or Storage, optional
        The folder of an earlier save. Tensors that have not changed since are not stored again, where `memory` knows
        that save: the files that have them are linked into this checkpoint's folder.
    memory : SaveMemory, optional
        What this process knows of its saves: give the same one to each writer, also to that of the base.
    progress : bool or Progress
        True shows a bar while data is written, on rank 0 and where stderr is a terminal; it needs the extra ``cli``. A
        `Progress` receives the bytes of this process's tensors and objects, from any thread; its exceptions fail the
        save. Copies of the writer, such as that of a save in another process, show the bar too, but have no `Progress`.

    Raises ChainError, ParameterError, UnsupportedError if the arguments cannot work together; the message says why.
    """

    for_urls = "FsspecWriter"


def extensions_of(extensions: Iterable[Any] | Chains | Extensions | str | Codec) -> Extensions:
    """Part a list of extensions, in the order in which data flows through them; raises ChainError if the codecs break a
    rule of order, or a foreign extension follows a codec, and UnsupportedError for what is no stream transform.
    """
    if isinstance(extensions, str):
        extensions = Chain.parse(extensions)
    if isinstance(extensions, Extensions):
        return extensions
    if isinstance(extensions, Chain | Chains):
        return Extensions((), Chains.chosen(extensions))
    if isinstance(extensions, Codec | torch_private.StreamTransformExtension):
        extensions = (extensions,)
    foreign: list[torch_private.StreamTransformExtension] = []
    codecs: list[Codec] = []
    for extension in extensions:
        if isinstance(extension, Codec):
            codecs.append(extension)
        elif not isinstance(extension, torch_private.StreamTransformExtension):
            raise UnsupportedError(f"{extension!r} is neither a streamxf codec nor a torch StreamTransformExtension")
        elif codecs:
            raise ChainError(
                f"{type(extension).__name__} comes after {type(codecs[-1]).__name__}: another package's "
                "stream extension cannot run on blocks, so it must come before the first codec"
            )
        else:
            foreign.append(extension)
    return Extensions(tuple(foreign), Chains.chosen(codecs))


def _make_objects(state: Any, planner: Any) -> None:
    """Put objects themselves into a state that was staged, before this planner sees it; raises the errors in it."""
    kept = type(planner) in (DefaultSavePlanner, OwnPlanner) and planner.flatten_state_dict
    kept = kept and planning.gives_data_again(planner)
    for key, value in [*planning.flattened_entries(state)]:
        if not isinstance(value, Saved):
            _make_objects(value, planner)
        elif value.saved is None or not kept:
            state[key] = value.made()


def _log_failure(future: futures.Future[Any]) -> None:
    if future.cancelled() or (error := future.exception()) is None:
        return
    failures = {"": error}
    if isinstance(error, CheckpointException):
        failures = {f"rank {rank}: ": failure for rank, (failure, _) in error.failures.items()}
    told = [f"{at}{type(one).__name__}: {'; '.join([text_of(one), *notes_of(one)])}" for at, one in failures.items()]
    _log.error("a save in the background failed: %s", escaped("; ".join(told)))
