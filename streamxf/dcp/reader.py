"""`FileSystemReader`: torch's reader, which trusts only what it has verified, and notes damage in a run's folder."""

from __future__ import annotations

import copy
import errno
import inspect
import re
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, Literal, Self
from weakref import finalize

from torch.distributed.checkpoint import LoadPlan, LoadPlanner, Metadata, filesystem
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.futures import Future

from streamxf import errors
from streamxf.budget import MAX_EXPANSION
from streamxf.buffers import collector_paused
from streamxf.cached import cached_property
from streamxf.chain import Chain
from streamxf.checkpoint import metadata as stored_metadata
from streamxf.checkpoint.access import Access, Names, Require, SaveIds
from streamxf.checkpoint.metadata import OR_CHOOSE, read_metadata
from streamxf.checkpoint.opening import ItemOpener
from streamxf.dcp.base import ProgressLike, StorageMixin, errors_reach_all_ranks, progress_on, reset_names
from streamxf.dcp.extensions import Registry
from streamxf.dcp.loader import Loader
from streamxf.dcp.metadata import FOUND, StoredMetadata
from streamxf.dcp.once import reading as once
from streamxf.dcp.once.transfer import Transfer
from streamxf.dcp.targets import check_filled, check_placed, empty_text, left_out
from streamxf.format.names import GLOBAL, metadata_name, rank_metadata_among
from streamxf.format.table import ItemTable
from streamxf.keys import KeysLike, TrustLike
from streamxf.report import LoadReport
from streamxf.storage.checked import known_error
from streamxf.storage.opening import Location
from streamxf.storage.small import put_small, small_names
from streamxf.storage.storage import Storage
from streamxf.torch_private import ExtensionRegistry
from streamxf.wording import RESTORE_METADATA, SALVAGE_DATA, some

Read = Literal["each", "once"]

_SAVE = "streamxf_save"  # an attribute of plans, which crosses ranks with them; all others are the planner's


class ChainReaderMixin(StorageMixin):
    """What streamxf's readers put in the place of torch's load path, beside a torch ``FileSystemReader``."""

    load_id: str
    storage_data: Any = cached_property(lambda self: self._content.storage_data)
    _metadata: stored_metadata.Metadata | None
    _content: Metadata
    #: What the last load did in this process; None before, and after one that failed.
    report: LoadReport | None
    #: Which save the metadata that was read last belongs to, as ``writer.save_id`` gave it; None before, and for
    #: checkpoints of other writers, which have none.
    save_id: str | None

    def __init__(
        self,
        path: Location,
        _extension_registry: ExtensionRegistry | None = None,
        *,
        keys: KeysLike = None,
        trust: TrustLike = None,
        allow_unsigned: bool = False,
        require: Require | Literal["default"] | None = "default",
        weights_only: bool = True,
        safe_globals: Sequence[Any] = (),
        max_expansion: int = MAX_EXPANSION,
        expect_save_id: SaveIds = None,
        rename: Names | None = None,
        progress: ProgressLike = False,
        read: Read = "each",
        **kwargs: Any,
    ) -> None:
        if read not in ("each", "once"):
            raise errors.ParameterError(f"read={read!r:.80}: it is 'each' or 'once'")
        if _extension_registry is not None and not isinstance(_extension_registry, ExtensionRegistry):
            raise errors.ParameterError(
                f"_extension_registry is a torch ExtensionRegistry, not {type(_extension_registry).__name__}; "
                "keys are passed by name: keys=key"
            )
        super().__init__(path, progress, kwargs)
        registry = None if _extension_registry is None else Registry.of(_extension_registry)
        how = registry, weights_only, safe_globals, max_expansion, rename
        required = None if require == "default" else require
        access = Access.of(keys, trust, allow_unsigned, required, expect_save_id, *how)
        self._access = access.lenient() if require is None and len(access.keys) else access
        self._read = read
        self._facts: once.Facts | None = None
        self._sharing = ExitStack()
        if read == "once":  # an interrupt that comes in a finalizer is dropped
            finalize(self, self._sharing.close)
        self._metadata = None
        self.report = None
        self.save_id = None

    def for_chain(self, chain: Chain) -> Self:
        """Serve a job that saves through `chain`: if that encrypts, nothing else is loaded, whatever keys there are.

        Raises ParameterError if that contradicts this reader's own ``require=None``.
        """
        if chain.encryption is not None and len(self._access.keys) and self._access.require is None:
            raise errors.ParameterError(
                "require=None accepts unencrypted checkpoints, and the chain encrypts; make a FileSystemReader of your "
                "own for that"
            )
        self._access = self._access.under(chain)
        return self

    # -- what DCP calls, in this order -------------------------------------------------------------

    @errors_reach_all_ranks
    @collector_paused()
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Read ``.metadata``, or a rank's own where `rank` is given. Raises FileNotFoundError if there is none; DCP
        then looks for rank-local metadata.

        For metadata that is there but cannot be used, the result raises the reason as soon as it is used: DCP would
        take an exception here for a missing file, and its reason would be lost.
        """
        reset_names()  # the planner is asked next
        self.save_id = None
        rank, storage = kwargs.get("rank"), self._storage
        name = metadata_name(rank)
        path = storage.label(name)
        try:
            found = self._read_metadata(name)
            self.save_id = found.index.save_id if found.index is not None else None
            content = StoredMetadata.of(found)
            if found.index is not None and isinstance(found.index.items, ItemTable):  # what it has is read later
                found.index.items.parts.on_error.append(partial(_explain, storage, self.save_id, path))
            if not isinstance(found.items, ItemTable):
                _ = content.state_dict_metadata  # or it would fail somewhere else
            content.storage_meta = StorageMeta(self.path, load_id=self.load_id, modules=[*found.modules])
        except FileNotFoundError:  # one more in its chain would only make DCP's warnings longer
            raise FileNotFoundError(errno.ENOENT, _why_missing(storage, rank), path) from None
        except errors.StreamxfError as error:
            if not isinstance(error, errors.IdentityError):  # which says here that it is another save's
                note_damage(storage, self.save_id, RESTORE_METADATA, error)
            return StoredMetadata.of(error.locate(file=path))
        except Exception as error:  # which says nothing about the checkpoint
            known = known_error(error, path)
            errors.add_note(known, f"while {path!r} was read")
            return StoredMetadata.of(errors.sendable(known))
        if self.save_id is not None:
            content.storage_meta.save_id = self.save_id
        return content

    @errors_reach_all_ranks
    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Take the metadata in use; raises what is wrong with it."""
        _ = metadata.storage_meta
        # before torch 2.9 it takes nothing else; what it keeps of the metadata is made when it is asked for
        super().set_up_storage_reader(Metadata({}, storage_data={}), is_coordinator)  # type: ignore[misc]
        vars(self).pop("storage_data", None)
        self._content = metadata
        self.rank = kwargs.get("rank")
        self.use_collectives = kwargs.get("use_collectives", True)
        self._metadata = getattr(metadata, FOUND, None) or self._read_metadata(GLOBAL)
        self._access.check_save(self._metadata.index.save_id if self._metadata.index is not None else None)

    @errors_reach_all_ranks
    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Add to the plan which save this rank reads, and how; all that the planner put there stays."""
        marked = copy.copy(plan)
        index = self._used.index
        save: Any = index and (index.save_id if index.rank is None else (index.group, index.ranks))
        vars(marked)[_SAVE] = save, self._storage.label()  # ranks have nothing in common that another writer saved
        self._facts = None
        if self._read == "once":
            self._facts = once.Facts.of(self._used, self._access)
            vars(marked)[once.CARRIED] = self._facts
        return marked

    @errors_reach_all_ranks
    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Check that all ranks read the same save, unless the planner has made new plans: storage that is being
        overwritten, or lies, may show them different metadata. With ``read="once"``, give each its share.
        """
        found = {rank: vars(plan)[_SAVE] for rank, plan in enumerate(plans) if _SAVE in vars(plan)}
        saves, access = {save for save, _ in found.values()}, self._access
        if of_ranks := all(isinstance(save, tuple) for save in saves):  # each with its own metadata
            saves = {each for each in saves if access.require or access.trust or each[0]}
        if len(saves) > 1 and not (of_ranks and access.expected_saves):
            names = (f"rank {r} in {at}" + (f" (group {s[0]})" if of_ranks else "") for r, (s, at) in found.items())
            text = f"the ranks found the metadata of different saves: {some(names, most=16)}. Let all load from one "
            text += f"folder, and no other process save to it meanwhile{f'; {OR_CHOOSE}' if of_ranks else ''}"
            raise self._storage.doubted(errors.MetadataError(text))
        if self._facts is not None:
            once.with_shares(plans, ItemOpener(self._used, self._access), self._storage)
        return plans

    @errors_reach_all_ranks
    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the plan's items; raises a StreamxfError with file, item and block if anything is not as it was saved.
        The targets may then hold old values, new ones, or a mixture. If the checkpoint lies in a run, damage is noted
        there, so that nobody resumes from it unseen.
        """
        self.report = None
        self._sharing.close()  # all who load with this rank have planned
        used = self._used
        if used.rank is not None:
            check_filled(plan, planner, used.items)
        check_placed(plan, planner, used.items)
        if text := empty_text(getattr(planner, "original_state_dict", None), used.items):
            warnings.warn(text, stacklevel=2)
        begin = perf_counter()
        with progress_on(self._progress, "Loading") as progress:
            loader = Loader(self._storage, used, self._access, planner, progress)
            shared: Transfer | str = ""
            try:
                with self._storage.doubting():
                    if self._facts is not None:
                        shared = once.read_once(plan, self._facts, loader, planner, self._storage, progress)
                    loader.run(plan.items, shared.read if isinstance(shared, Transfer) else ())
            except errors.StreamxfError as error:
                note_damage(self._storage, used.index.save_id if used.index is not None else None, SALVAGE_DATA, error)
                raise
        report = LoadReport.of(loader.meter, perf_counter() - begin)
        report = replace(report, left=left_out(plan, planner, used.items))
        if isinstance(shared, Transfer):
            self.report = replace(report, read="once", received_bytes=shared.received_bytes)
        else:
            self.report = replace(report, reason=shared)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read_metadata(self, name: str) -> stored_metadata.Metadata:
        """Where others may read for this rank, it needs no keys: what is encrypted it then gets from them, or not."""
        is_once, storage = self._read == "once", self._storage
        keyless = is_once and not len(self._access.keys)
        self._sharing.close()
        # what is near is in the host's page cache
        share = partial(once.SharedFile, self._sharing) if is_once and not storage.near else None
        return read_metadata(storage, name, self._access, listing=keyless, share=share)

    @property
    def _used(self) -> stored_metadata.Metadata:
        if self._metadata is None:
            raise errors.UnsupportedError("DCP calls read_metadata and set_up_storage_reader first")
        return self._metadata


# Torch before 2.9 asks once, and for no rank's own.
_LOOKS_FOR_RANKS = filesystem.FileSystemReader.read_metadata.__code__.co_flags & inspect.CO_VARKEYWORDS


def _why_missing(storage: Storage, rank: int | None) -> str:
    try:
        if rank is None and _LOOKS_FOR_RANKS:
            return "there is no .metadata"
        names = storage.names()
        if rank is None and rank_metadata_among(names):
            return "the folder has metadata of single ranks, which torch reads from 2.9 on"
        return stored_metadata.Metadata.absent(storage, names, rank).message
    except Exception as error:  # of whatever class; that the metadata is missing stays the news
        return f"there is none, and its folder cannot be listed ({type(error).__name__}: {error})"


class FileSystemReader(ChainReaderMixin, filesystem.FileSystemReader):
    """Loads a checkpoint of streamxf or of stock DCP, with or without ``ZStandard``, from a local or mounted folder.

    Parameters
    ----------
    path : path or Storage
        The checkpoint's folder. For URLs there is `FsspecReader`.
    _extension_registry : ExtensionRegistry, optional
        A `Registry` with an allow-list, or a torch registry that knows foreign extensions.
    keys : Key, bytes, several of them or a KeyRing, optional
        To decrypt. With keys, unencrypted checkpoints are refused, since anyone could have put them there.
    trust : VerifyKey or location, or several
        Trusted signers. A checkpoint that a `PrivateKey` opens must be signed by one; if any are given, so must all.
    allow_unsigned : bool
        Whether a checkpoint that a `PrivateKey` opens may lack that signature.
    require : {"default", "published", "bound", "encrypted"} or None
        Minimum protection to accept with keys. ``"published"``, the default, is that of streamxf's writers; ``"bound"``
        also accepts checkpoints of attached writers, ``"encrypted"`` those of torch's own. An explicit None accepts
        anything, encrypted or not: with it, anyone who writes to the storage decides what is loaded.
    weights_only : bool
        Whether objects load as by ``torch.load(weights_only=True)``. False lets the writer run code in this process.
    safe_globals : sequence
        Classes and functions that such items, and tensors of subclasses, may use as well.
    max_expansion : int
        Limit on what they may expand to together, as a multiple of their stored size; 256 MiB is always allowed.
    expect_save_id : str or several, optional
        The only acceptable save, as ``writer.save_id`` gave it, or those of all ranks where each has metadata of its
        own. Without it, an older checkpoint that was put back as a whole loads.
    rename : mapping of str to str, optional
        New names of items by their stored ones, for a state dict that has other names. One ``*`` in both stands for the
        same text: ``{"module.*": "*"}`` removes a prefix, ``{"*": "module.*"}`` adds one. A whole name counts before a
        pattern, the first pattern that fits before others. What no name fits keeps its own; a checkpoint that has the
        new name already loads, too. Errors name items as they are stored.
    progress : bool or Progress
        True shows a bar while data is read, on rank 0 and where stderr is a terminal; it needs the extra ``cli``. A
        `Progress` receives the stored bytes that this process reads, from any thread; its exceptions fail the load.
    read : {"each", "once"}
        With ``"once"``, what several ranks need is read by one of them, and tensors decoded, which sends it to the
        others, also to ranks without keys. Give it on every rank. Ranks that cannot do this together, or have little in
        common, read as with ``"each"``, and `report` has the reason.

    Raises ParameterError if a key is not 32 bytes, `require` is given without keys, or another argument is invalid;
    when it loads, if `rename` gives two items one name, or names one that is not there.
    """

    for_urls = "FsspecReader"


NOTES = ".streamxf"
_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


def _explain(storage: Storage, save_id: str | None, path: str, error: Exception) -> None:
    """What is added to an error of an index that is read while a planner asks, which must reach all ranks, too."""
    if not isinstance(error, errors.StreamxfError):
        errors.add_note(error, f"while {path!r} was read")
    note_damage(storage, save_id, RESTORE_METADATA, error)
    if (made := errors.sendable(error)) is not error:
        raise made from error


def note_damage(storage: Storage, save_id: str | None, advice: str, error: BaseException) -> None:
    """`suspect` the checkpoint of an error that says it is damaged, and add what to do, even without notes."""
    if not isinstance(error, errors.DAMAGE) or any(note.startswith("next:") for note in errors.notes_of(error)):
        return
    errors.add_note(error, advice)
    if not isinstance(error, errors.IdentityError) and suspect(storage, save_id) is False:
        name = storage.parent()[1]
        text = f"next: set STREAMXF_SKIP={name} to resume from another checkpoint; the run's folder takes no note of it"
        errors.add_note(error, errors.escaped(text))


def suspect(storage: Storage, save_id: str | None) -> bool | None:
    """Leave the note, an empty file, if the checkpoint's folder lies in a run. Raises nothing, follows no link.

    Returns whether the note lies there; None if the folder is not in a run.
    """
    name = f"damage-{save_id}" if save_id is not None and _ID.fullmatch(save_id) else None
    try:
        run, _ = storage.parent()
        there = run.exists(NOTES)
        if name is None or not there:
            return False if there else None
        with suppress(FileExistsError):  # another rank's, or something else that must not be opened
            put_small(run, f"{NOTES}/{name}", b"", once=True, sync=False)
        return name in small_names(run, NOTES)
    except Exception:  # whatever a storage's package raises: the damage stays the news
        return False
