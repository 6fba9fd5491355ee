"""`FileSystemReader`: torch's reader, which rebuilds chains by itself and believes nothing that it has not checked."""

from __future__ import annotations

import copy
import errno
import math
import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from time import perf_counter
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint._extension import ExtensionRegistry
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from streamxf.checkpoint import metadata as stored_metadata
from streamxf.checkpoint.access import Access, Require, SaveIds
from streamxf.checkpoint.elements import Elements
from streamxf.checkpoint.metadata import metadata_name, no_file, no_metadata, read_metadata
from streamxf.checkpoint.opening import ItemOpener, Wanted
from streamxf.checkpoint.storage import Storage, StoredFile, check_local
from streamxf.collector import collector_paused
from streamxf.dcp.border import told
from streamxf.dcp.load.advice import advise_on_metadata, items_advised
from streamxf.dcp.load.filled import check_filled
from streamxf.dcp.load.loader import Loader, noted
from streamxf.dcp.metadata import UnreadableMetadata, metadata_of
from streamxf.dcp.registry import access_with
from streamxf.dcp.showing import ProgressLike, check_progress, shown
from streamxf.errors import MetadataError, ParameterError, StreamxfError, UnsupportedError
from streamxf.format.items import ObjectItem, TensorItem
from streamxf.keys import KeyRing, KeysLike, TrustLike
from streamxf.progress import Progress, Shares
from streamxf.proportion import MAX_EXPANSION, held_bytes
from streamxf.report import LoadReport, Meter
from streamxf.stream.reader import StreamReader, read_all
from streamxf.stream.source import READ_WHOLE, Blocks, Counted, Timed

_AHEAD = 2**20  # bytes of small items that are read at once
_SAVE = "streamxf_save"  # an attribute of plans, which crosses ranks with them; all others are the planner's
_METADATA = "streamxf_metadata"  # an attribute of DCP's metadata: what was read


_Entry = tuple[ReadItem | None, Wanted]
"""What is read: an object, or a part of a chunk; without a request, a chunk that is only checked."""


class ChainReaderMixin:
    """What streamxf's readers put in the place of torch's load path.

    The class beside it is a torch ``FileSystemReader``.
    """

    fs: Any
    path: Any
    load_id: str
    storage_data: dict[MetadataIndex, _StorageInfo]
    _access: Access
    _progress: ProgressLike
    _metadata: stored_metadata.Metadata | None
    report: LoadReport | None
    """What the last load did in this process; None before, and after one that failed."""
    save_id: str | None
    """Which save the metadata that was read last belongs to, as ``writer.save_id`` gave it; None before, and for
    checkpoints of other writers, which have none."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        _extension_registry: ExtensionRegistry | None = None,
        *,
        keys: KeysLike = None,
        trust: TrustLike = None,
        allow_unsigned: bool = False,
        require: Require | None = None,
        weights_only: bool = True,
        safe_globals: Sequence[Any] = (),
        max_expansion: int = MAX_EXPANSION,
        expect_save_id: SaveIds = None,
        progress: ProgressLike = False,
        **kwargs: Any,
    ) -> None:
        if _extension_registry is not None and not isinstance(_extension_registry, ExtensionRegistry):
            raise ParameterError(
                f"_extension_registry is a torch ExtensionRegistry, not {type(_extension_registry).__name__}; "
                "keys are passed by name: keys=key"
            )
        self._check_path(path)
        super().__init__(path, **kwargs)  # type: ignore[call-arg]
        self._storage_options = kwargs
        self._access = access_with(
            _extension_registry,
            KeyRing.of(keys, trust, allow_unsigned),
            require=require,
            expect_save_id=expect_save_id,
            weights_only=weights_only,
            safe_globals=safe_globals,
            max_expansion=max_expansion,
        )
        self._progress = check_progress(progress)
        self._metadata = None
        self.report = None
        self.save_id = None

    def _check_path(self, path: object) -> None:
        """Raise ParameterError if this class cannot read from there."""

    # -- what DCP calls, in this order -------------------------------------------------------------

    @told
    @collector_paused()
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Read ``.metadata``, or a rank's own where `rank` is given.

        Raises
        ------
        FileNotFoundError
            If there is none; DCP then looks for rank-local metadata.

        Notes
        -----
        For metadata that is there but cannot be used, the result raises the reason as soon as it is used: DCP
        would take an exception here for a missing file, and its reason would be lost.
        """
        self.save_id = None
        rank = kwargs.get("rank")
        storage = self._storage()
        name = metadata_name(rank)
        path = storage.full(name)
        try:
            found = read_metadata(storage, name, self._access)
            content = metadata_of(found.items.values(), extra=found.index.extra if found.index is not None else None)
            content.storage_meta = StorageMeta(load_id=self.load_id, modules=[*found.modules])
        except FileNotFoundError:  # one more in its chain would only make DCP's warnings longer
            raise FileNotFoundError(errno.ENOENT, _why_missing(storage, rank), path) from None
        except StreamxfError as error:
            advise_on_metadata(error)
            return UnreadableMetadata(error.locate(file=path))
        except Exception as error:  # whatever a file system or a key provider raises
            made = MetadataError(f"the metadata cannot be used: {type(error).__name__}: {error}", file=path)
            made.__cause__ = error
            return UnreadableMetadata(made)
        setattr(content, _METADATA, found)
        if found.index is not None:
            self.save_id = content.storage_meta.save_id = found.index.save_id
        return content

    @told
    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Take the metadata in use; raises what is wrong with it."""
        if isinstance(metadata, UnreadableMetadata):
            metadata.raise_error()
        super().set_up_storage_reader(metadata, is_coordinator, *args, **kwargs)  # type: ignore[misc]
        self._metadata = getattr(metadata, _METADATA, None)
        if self._metadata is None:  # it was read in another way
            self._metadata = read_metadata(self._storage(), metadata_name(None), self._access)
        self._access.check_save(self._metadata.index.save_id if self._metadata.index is not None else None)

    @told
    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Add to the plan which save this rank reads; all that the planner put there stays."""
        marked = copy.copy(plan)
        index = self._used.index
        # with metadata of single ranks, or of other writers, the ranks have no id in common
        vars(marked)[_SAVE] = index.save_id if index is not None and index.rank is None else None
        return marked

    @told
    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Check that all ranks read the same save, unless the planner has made new plans.

        Raises
        ------
        MetadataError
            If storage showed them different metadata, because it is being overwritten or does not tell the truth.
        """
        if len({vars(plan)[_SAVE] for plan in plans if _SAVE in vars(plan)}) > 1:
            raise MetadataError(
                "the ranks found the metadata of different saves; is another process saving to this folder?"
            )
        return plans

    @told
    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the plan's items. After an error the targets may hold old values, new ones, or a mixture.

        Raises
        ------
        StreamxfError
            With file, item and block, if anything about an item is not as it was saved.
        """
        self.report = None
        if self._used.rank is not None:
            check_filled(plan, planner, self._used.items)
        begin = perf_counter()
        with shown(self._progress, "Loading") as progress:
            meter = _Load(self, planner, progress).run(plan.items)
        self.report = LoadReport.of(meter, perf_counter() - begin)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @property
    def _used(self) -> stored_metadata.Metadata:
        if self._metadata is None:
            raise UnsupportedError("DCP calls read_metadata and set_up_storage_reader first")
        return self._metadata

    def _storage(self) -> Storage:
        path = os.fspath(self.path)
        return Storage(path, path, getattr(self.fs, "fs", None))


class _Load:
    """One `read_data`: the items of a plan, file by file."""

    def __init__(self, reader: ChainReaderMixin, planner: LoadPlanner, progress: Progress | None) -> None:
        self._storage = reader._storage()
        self._metadata = reader._used
        self._opener = ItemOpener(self._metadata, reader._access)
        self._meter = Meter()
        self._planner = planner
        self._budget = reader._access.objects.budget()
        self._loader = Loader(planner, self._meter, reader._access.objects, self._budget)
        self._progress = progress

    def run(self, requests: Sequence[ReadItem]) -> Meter:
        """Read all of them."""
        found = [(request, self._find(request)) for request in requests]
        shares = None if self._progress is None else Shares(self._progress, _sizes(found))
        by_file: dict[str, list[_Entry]] = {}
        for request, wanted in (*found, *self._empty(requests)):
            by_file.setdefault(wanted.place.file, []).append((request, wanted))
        for name, entries in by_file.items():
            entries.sort(key=lambda entry: entry[1].place.at)
            with items_advised(), self._opened(name) as file:
                self._read_file(file, entries, shares)
        if shares is not None:
            shares.finish()
        return self._meter

    def _empty(self, requests: Sequence[ReadItem]) -> Iterator[tuple[None, Wanted]]:
        """The chunks without elements of each tensor that is read whole: DCP never asks for them, and they may be
        damaged.
        """
        items, state = self._metadata.items, getattr(self._planner, "state_dict", None)
        read: dict[str, int] = dict.fromkeys(state, 0) if isinstance(state, Mapping) else {}
        for request in requests:
            name = request.storage_index.fqn
            read[name] = read.get(name, 0) + request.lengths.numel()
        for name, count in read.items():
            item = items.get(name)
            if isinstance(item, TensorItem) and count >= math.prod(item.shape):
                yield from ((None, Wanted(item, chunk)) for chunk in item.chunks if 0 in chunk.shape)

    def _read_file(self, file: StoredFile, entries: list[_Entry], shares: Shares | None) -> None:
        last: Wanted | None = None
        access = file.access
        try:
            ahead = 0
            for number, (request, wanted) in enumerate(entries):
                with noted(file.name, wanted.item.name):
                    if request is None:
                        self._open(file, wanted)
                        continue
                    if last is None or last != wanted:  # parts of one tensor follow each other
                        if shares is None and wanted.place.at >= ahead:
                            ahead = _read_ahead(file, entries, number)
                        if shares is not None:
                            file.access = Counted(access, shares.begin(request.storage_index).advance)
                        blocks, elements = self._open(file, wanted)
                        last = wanted
                    self._read_item(file.name, request, wanted, blocks, elements)
            self._loader.settle()
        except BaseException:
            self._loader.cancel()
            raise

    def _open(self, file: StoredFile, wanted: Wanted) -> tuple[Blocks, Elements | None]:
        """An item's stream and, of a tensor, its elements; None where only torch can make it."""
        blocks = self._opener.open(file, wanted, self._meter)
        if wanted.chunk is not None:
            with suppress(UnsupportedError):
                return blocks, wanted.elements(blocks)
        return blocks, None

    def _read_item(
        self, file: str, request: ReadItem, wanted: Wanted, blocks: Blocks, elements: Elements | None
    ) -> None:
        item, size = wanted.item, wanted.place.size
        if isinstance(item, ObjectItem):
            self._loader.load_object(request, read_all(blocks, self._meter), size)
            return
        dtype = getattr(torch, item.dtype)
        if elements is not None:
            self._loader.load_tensor(request, elements, dtype, file, _stored_bytes(request, wanted))
        else:
            self._loader.load_whole(request, StreamReader(blocks, meter=self._meter), blocks.size, size, dtype)

    def _find(self, request: ReadItem) -> Wanted:
        """What a request wants: an object, or a chunk of a tensor."""
        index = request.storage_index
        item = self._metadata.items.get(index.fqn)
        if item is None:
            raise MetadataError("the metadata does not have the item", item=index.fqn)
        if isinstance(item, TensorItem) == (request.type == LoadItemType.BYTE_IO):
            wanted = "an object" if request.type == LoadItemType.BYTE_IO else "a tensor"
            raise MetadataError(f"the item is wanted as {wanted}, and the metadata says it is not one", item=index.fqn)
        if not isinstance(item, TensorItem):
            return Wanted(item)
        chunks, offset = item.chunks, tuple(index.offset or ())
        if index.index is not None and index.index < len(chunks) and chunks[index.index].offset == offset:
            return Wanted(item, chunks[index.index])  # as nearly always: the list may be long
        chunk = next((chunk for chunk in chunks if chunk.offset == offset), None)
        if chunk is None:
            raise MetadataError("the metadata does not describe this part of the tensor", item=index.fqn)
        return Wanted(item, chunk)

    @contextmanager
    def _opened(self, name: str) -> Iterator[StoredFile]:
        with ExitStack() as stack:
            try:
                file = stack.enter_context(self._storage.open(name))
            except FileNotFoundError as error:
                raise no_file(self._storage.full(name)) from error
            if self._budget is not None:
                self._budget.add(held_bytes(file.raw, file.size))
            file.access = Timed(file.access, self._meter.io)
            yield file


def _sizes(found: list[tuple[ReadItem, Wanted]]) -> dict[Hashable, int]:
    """Stored bytes of what is wanted, by item."""
    sizes: dict[Hashable, int] = {}
    for request, wanted in found:
        index = request.storage_index
        sizes[index] = min(wanted.place.size, _stored_bytes(request, wanted) + sizes.get(index, 0))
    return sizes


def _read_ahead(file: StoredFile, entries: list[_Entry], number: int) -> int:
    """Read small items that follow each other at once; return where what was read ends."""
    start = stop = entries[number][1].place.at
    for _, wanted in entries[number:]:
        at, size = wanted.place.at, wanted.place.size
        if at > stop or size > READ_WHOLE or at + size > min(start + _AHEAD, file.size):
            break
        stop = max(stop, at + size)
    if stop > start:
        file.read_ahead(start, stop - start)
    return stop


def _stored_bytes(request: ReadItem, wanted: Wanted) -> int:
    """What a request wants of an item, in stored bytes; of a part of a tensor in proportion."""
    size, chunk = wanted.place.size, wanted.chunk
    if chunk is None or chunk.shape == tuple(request.lengths):
        return size
    return size * request.lengths.numel() // max(1, math.prod(chunk.shape))


def _why_missing(storage: Storage, rank: int | None) -> str:
    try:
        if rank is None:
            return "there is no .metadata"
        return no_metadata(storage.names(), storage.given, rank).message
    except Exception as error:  # of whatever class; that the metadata is missing stays the news
        return f"there is none, and its folder cannot be listed ({type(error).__name__}: {error})"


class FileSystemReader(ChainReaderMixin, filesystem.FileSystemReader):
    """Loads a checkpoint from a local or mounted file system: streamxf's, stock uncompressed and stock ``ZStandard``
    ones.

    Parameters
    ----------
    path : path
        The checkpoint's folder. For URLs there is `FsspecReader`.
    _extension_registry : ExtensionRegistry, optional
        A `Registry` with an allow-list, or a torch registry that knows foreign extensions.
    keys : Key, bytes, several of them or a KeyRing, optional
        For what is encrypted. With keys, what is not encrypted is refused, so that nothing unencrypted can be slipped
        in.
    trust : VerifyKey or location, or several
        Who may have written the checkpoint. What a `PrivateKey` opens must be signed by one of them; once there is one
        here, so must everything else.
    allow_unsigned : bool
        Whether a checkpoint that a `PrivateKey` opens may lack that signature.
    require : {"published", "bound", "encrypted"}, optional
        The weakest item that is acceptable when keys are given. ``"published"``, the default, is what streamxf's writer
        makes; ``"bound"`` accepts what `attach` made of another writer, ``"encrypted"`` what torch's own writer made.
    weights_only : bool
        Whether non-tensor objects are limited to what ``torch.load(weights_only=True)`` allows. False lets
        whoever wrote the checkpoint run code in this process.
    safe_globals : sequence
        Classes and functions that such items, and tensors of subclasses, may use as well.
    max_expansion : int
        How many times what is stored such items may take, all together; 256 MiB is always allowed.
    expect_save_id : str or several, optional
        The only save that is acceptable, as ``writer.save_id`` gave it, or those of all ranks where each has metadata
        of its own. Without it, an older checkpoint that was put back as a whole loads.
    progress : bool or Progress
        True shows a bar while data is read, on rank 0 and where stderr is a terminal; it needs the extra ``cli``. A
        `Progress` is told how many stored bytes this process has to read, and as they are read, by any thread; what it
        raises fails the load.

    Raises
    ------
    ParameterError
        If a key is not 32 bytes, `require` is given without keys, or another argument is not what it should be.
    """

    def _check_path(self, path: Any) -> None:
        check_local(path, "FsspecReader")

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Switch to another checkpoint; raises ParameterError for a URL."""
        self._check_path(checkpoint_id)
        super().reset(checkpoint_id)
