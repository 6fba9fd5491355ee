"""`FileSystemReader`: torch's reader, which rebuilds chains by itself and believes nothing that it has not checked."""

from __future__ import annotations

import copy
import errno
import io
import math
import os
import stat
from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import IO, Any

from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint._extension import ExtensionRegistry
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from streamxf.container.header import Kind
from streamxf.dcp.border import told
from streamxf.dcp.compat import metadata_name
from streamxf.dcp.load.advice import advise_on_metadata, items_advised, why_missing
from streamxf.dcp.load.filled import check_filled
from streamxf.dcp.load.items import RAW_SLACK, REQUIREMENTS, Expected, ItemOpener, Require
from streamxf.dcp.load.loader import Loader, noted
from streamxf.dcp.load.stored import Geometry
from streamxf.dcp.metadata import file as metadata_file
from streamxf.dcp.metadata.file import UnreadableMetadata
from streamxf.dcp.metadata.manifest import Manifest, check_path
from streamxf.dcp.metadata.save_ids import SaveIds, as_save_ids, check_save_id
from streamxf.dcp.objects.policy import Objects
from streamxf.dcp.places import check_local, local_path
from streamxf.dcp.publish.listing import list_files
from streamxf.dcp.registry import Registry
from streamxf.dcp.showing import ProgressLike, check_progress, shown
from streamxf.errors import (
    ContainerError,
    MetadataError,
    ParameterError,
    PolicyError,
    StreamxfError,
    names_no_file,
)
from streamxf.fileio.blocks import BlockReader
from streamxf.fileio.counted import Counted
from streamxf.fileio.reader import StreamReader
from streamxf.fileio.slicefile import SliceFile
from streamxf.fileio.source import Access, FileSlice, Timed, access_to
from streamxf.keys import KeyRing, KeysLike, TrustLike
from streamxf.meter import Meter
from streamxf.progress import Progress, Share, Shares
from streamxf.proportion import MAX_EXPANSION, Budget, held_bytes
from streamxf.registry import providers_in
from streamxf.report import LoadReport

_SAVE = "streamxf_save"  # an attribute of plans, which crosses ranks with them; all others are the planner's


@dataclass
class OpenedFile:
    """A data file that is being read.

    Attributes
    ----------
    name : str
        For errors.
    raw : binary file
    access : Access
        To the same file, by position.
    size : int
    shares : Shares or None
        What each item brings those who want to know how far the load is.
    last : tuple or None
        The item opened last: requests for parts of one tensor come one after the other.
    """

    name: str
    raw: IO[bytes]
    access: Access
    size: int
    shares: Shares | None = None
    last: tuple[MetadataIndex, BlockReader | IO[bytes] | None] | None = None
    _share: Share | None = None

    def begin(self, index: MetadataIndex) -> None:
        """Go on to another item."""
        if self.shares is not None:
            self._share = self.shares.begin(index)

    def slice_of(self, place: _StorageInfo) -> FileSlice:
        """The stored bytes of the item that was begun."""
        access = self.access if self._share is None else Counted(self.access, self._share.advance)
        return FileSlice(access, place.offset, place.length)


class ChainReaderMixin:
    """What streamxf's readers put in the place of torch's load path.

    The class beside it is a torch ``FileSystemReader``.
    """

    fs: Any
    path: Any
    load_id: str
    storage_data: dict[MetadataIndex, _StorageInfo]
    _registry: Registry
    _require: Require | None
    _objects: Objects
    _progress: ProgressLike
    _expected_saves: frozenset[str] | None
    _opener: ItemOpener
    _items: dict[str, Any]
    _rank_local: bool
    _budget: Budget | None
    report: LoadReport | None
    """What the last load did in this process; None before, and after one that failed."""
    save_id: str | None
    """Which save the metadata that was read last belongs to, as ``writer.save_id`` gave it; None before, and for
    checkpoints of other writers, which have none."""

    def _set_up_chain(
        self,
        registry: ExtensionRegistry | None,
        keys: KeysLike,
        require: Require | None,
        *,
        objects: Objects,
        expect_save_id: SaveIds,
        progress: ProgressLike,
    ) -> None:
        if registry is not None and not isinstance(registry, ExtensionRegistry):
            raise ParameterError(
                f"_extension_registry is a torch ExtensionRegistry, not {type(registry).__name__}; "
                "keys are passed by name: keys=key"
            )
        self._registry = Registry.of(registry, keys)
        self._require = check_require(require, self._registry)
        self._objects = objects
        self._expected_saves = as_save_ids(expect_save_id)
        self._progress = check_progress(progress)
        self._opener = ItemOpener(self._registry, self._require)
        self._items = {}
        self._rank_local = False
        self._budget = None
        self.report = None
        self.save_id = None

    def bound_by(self, budget: Budget) -> None:
        """Have `budget` pay for what foreign extensions make of items, for who believes what the checkpoint says of
        their sizes. In a load the caller has made the memory for them.
        """
        self._budget = budget
        self._opener = replace(self._opener, budget=budget)

    # -- what DCP calls, in this order -------------------------------------------------------------

    @told
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Read ``.metadata``, or a rank's own where `rank` is given.

        Raises
        ------
        FileNotFoundError
            If there is none; DCP then looks for rank-local metadata.

        Notes
        -----
        For metadata that is there but cannot be used, the result raises the reason as soon as it is looked at: DCP
        would take an exception here for a missing file, and its reason would be lost.
        """
        self.save_id = None
        rank = kwargs.get("rank")
        path = self.fs.concat_path(self.path, metadata_name(rank))
        try:
            data = self._read_file(path)
        except FileNotFoundError:  # one more in its chain would only make DCP's warnings longer
            raise FileNotFoundError(errno.ENOENT, self._why_missing(rank), os.fspath(path)) from None
        except StreamxfError as error:
            return UnreadableMetadata(error.locate(file=os.fspath(path)))
        try:  # from here on no exception may leave, not even FileNotFoundError: a key provider can raise anything
            content = metadata_file.load(data, self._registry.keys, rank=rank, published=self._require == "published")
            manifest = metadata_file.manifest_of(content)
            self._check_save(manifest)
            content.storage_meta = getattr(content, "storage_meta", None) or StorageMeta()
            content.storage_meta.load_id = self.load_id
        except StreamxfError as error:
            advise_on_metadata(error)
            return UnreadableMetadata(error.locate(file=os.fspath(path)))
        except Exception as error:
            return UnreadableMetadata(_unusable(error, os.fspath(path)))
        self.save_id = manifest.save_id if manifest is not None else None
        self._rank_local = rank is not None
        return content

    def _check_save(self, manifest: Manifest | None) -> None:
        wanted = self._expected_saves
        if wanted is None:
            return
        if manifest is None:
            raise PolicyError(
                f"the save {', '.join(sorted(wanted))} is expected, and this metadata has no manifest that says which "
                "save it is; leave expect_save_id= out to read it"
            )
        check_save_id(manifest.save_id, wanted)

    def _why_missing(self, rank: int | None) -> str:
        try:
            return why_missing(list_files(self.fs, self.path) if rank is not None else (), rank)
        except Exception as error:  # of whatever class; that the metadata is missing stays the news
            return f"there is none, and its folder cannot be listed ({type(error).__name__}: {error})"

    def _read_file(self, path: Any) -> bytes:
        try:
            self._check_local(path)
            with self.fs.create_stream(path, "rb") as file:
                return metadata_file.read_file(file)
        except (FileNotFoundError, StreamxfError):
            raise
        except Exception as error:  # whatever the file system raises: DCP would turn to older, rank-local metadata
            raise MetadataError(f"the metadata cannot be read: {type(error).__name__}: {error}") from error

    @told
    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Take the metadata in use; raises what is wrong with it."""
        if isinstance(metadata, UnreadableMetadata):
            metadata.raise_error()
        self._check_save(metadata_file.manifest_of(metadata))  # somebody may have read it in another way
        super().set_up_storage_reader(metadata, is_coordinator, *args, **kwargs)  # type: ignore[misc]
        providers = tuple(providers_in(getattr(metadata.storage_meta, "modules", None)))
        self._opener = ItemOpener(
            self._registry,
            self._require,
            metadata_file.manifest_of(metadata),
            providers,
            budget=self._budget,
        )
        self._items = metadata.state_dict_metadata

    @told
    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Add to the plan which save this rank reads; all that the planner put there stays."""
        manifest = self._opener.manifest
        marked = copy.copy(plan)
        # with metadata of single ranks, or of other writers, the ranks have no id in common
        vars(marked)[_SAVE] = manifest.save_id if manifest is not None and manifest.rank is None else None
        return marked

    @told
    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Check that all ranks read the same save, as far as the planner has not made their plans anew.

        Raises
        ------
        MetadataError
            If storage showed them different metadata, because it is being overwritten or does not tell the truth.
        """
        if len({vars(plan)[_SAVE] for plan in plans if _SAVE in vars(plan)}) > 1:
            raise MetadataError("the ranks found the metadata of different saves; is somebody saving to this folder?")
        return plans

    @told
    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the plan's items. After an error the targets hold anything: old values, new ones, or a mixture.

        Raises
        ------
        StreamxfError
            With file, item and block, if anything about an item is not as it was saved.
        """
        self.report = None
        manifest = self._opener.manifest
        if self._rank_local or (manifest is not None and manifest.rank is not None):
            check_filled(plan, planner, self._items)
        begin = perf_counter()
        with shown(self._progress, "Loading") as progress:
            meter = self._read_all(plan, planner, progress)
        self.report = LoadReport.of(meter, perf_counter() - begin)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read_all(self, plan: LoadPlan, planner: LoadPlanner, progress: Progress | None) -> Meter:
        meter = Meter()
        budget = self._objects.budget()
        loader = Loader(planner, meter, self._objects, budget)
        by_file: dict[str, list[ReadItem]] = {}
        for request in plan.items:
            by_file.setdefault(self._place(request).relative_path, []).append(request)
        shares = None if progress is None else Shares(progress, self._sizes(plan.items))
        for path, requests in by_file.items():
            requests.sort(key=lambda request: self._place(request).offset)
            with items_advised(), self._open_file(path) as (file, size):
                if budget is not None:
                    budget.add(held_bytes(file, size))
                access = Timed(access_to(file), meter.io)
                opened = OpenedFile(self._full(path), file, access, size, shares)
                try:
                    for request in requests:
                        with noted(opened.name, request.storage_index.fqn):
                            self._read_item(opened, request, loader)
                    loader.settle()
                except BaseException:
                    loader.cancel()
                    raise
        if shares is not None:
            shares.finish()
        return meter

    # -- one item ----------------------------------------------------------------------------------

    def _read_item(self, file: OpenedFile, request: ReadItem, loader: Loader) -> None:
        place = self._place(request)
        if file.last is None or file.last[0] != request.storage_index:
            file.begin(request.storage_index)
            file.last = (request.storage_index, self._open_item(file, place, request, loader.meter))
        opened = file.last[1]
        if isinstance(opened, BlockReader):
            if request.type == LoadItemType.BYTE_IO:
                loader.load_bytes(request, StreamReader(opened, meter=loader.meter), place.length)
            else:
                framed = self._opener.manifest is not None  # torch's own writer frames otherwise
                loader.load_tensor(request, opened, self._geometry(request), file.name, framed=framed)
            return
        file.last = None  # a stream is read once
        raw_size = place.length if opened is None else opened.seek(0, io.SEEK_END)
        if opened is None:
            self._expected(request).check_size(raw_size)
        stream: Any = SliceFile(file.slice_of(place)) if opened is None else opened
        stream.seek(0)
        if request.type == LoadItemType.BYTE_IO:
            loader.load_bytes(request, stream, place.length)
        else:
            loader.load_stream(request, stream, self._geometry(request), raw_size, place.length)

    def _open_item(
        self, file: OpenedFile, place: _StorageInfo, request: ReadItem, meter: Meter
    ) -> BlockReader | IO[bytes] | None:
        if place.offset + place.length > file.size:
            raise ContainerError("the metadata places the item beyond the end of its file: the file was cut")
        source = file.slice_of(place)
        return self._opener.open(source, place.transform_descriptors or (), self._expected(request), meter)

    def _geometry(self, request: ReadItem) -> Geometry:
        """What the metadata says of a stored tensor."""
        index = request.storage_index
        item = self._items.get(index.fqn)
        if not isinstance(item, TensorStorageMetadata):
            raise _not_described(Kind.TENSOR)
        found = chunk_at(index, item.chunks)
        if found is None:
            raise MetadataError("the metadata does not describe this part of the tensor")
        return Geometry.row_major(item.properties.dtype, tuple(found.sizes))

    def _expected(self, request: ReadItem) -> Expected:
        index = request.storage_index
        place = self._place(request)
        item = self._items.get(index.fqn)
        manifest = self._opener.manifest
        writer = manifest.files[place.relative_path].writer if manifest is not None else None
        if request.type == LoadItemType.BYTE_IO:
            if not isinstance(item, BytesStorageMetadata):
                raise _not_described(Kind.BYTES)
            return Expected(index, Kind.BYTES, self._objects.limit(place.length), writer)
        if not isinstance(item, TensorStorageMetadata):
            raise _not_described(Kind.TENSOR)
        return Expected(index, Kind.TENSOR, 2 * _tensor_bytes(item) + RAW_SLACK, writer)

    def _sizes(self, requests: Sequence[ReadItem]) -> dict[Hashable, int]:
        """Stored bytes of what is wanted, by item; of parts of a tensor in proportion."""
        sizes: dict[Hashable, int] = {}
        for request in requests:
            index = request.storage_index
            stored = self._place(request).length
            item = self._items.get(index.fqn)
            chunk = chunk_at(index, item.chunks) if isinstance(item, TensorStorageMetadata) else None
            if chunk is None or chunk.sizes == request.lengths:
                sizes[index] = stored
            else:
                part = stored * request.lengths.numel() // max(1, chunk.sizes.numel())
                sizes[index] = min(stored, part + sizes.get(index, 0))
        return sizes

    def _place(self, request: ReadItem) -> _StorageInfo:
        try:
            return self.storage_data[request.storage_index]
        except KeyError:
            raise MetadataError(
                "the metadata does not say where the item is stored", item=request.storage_index.fqn
            ) from None

    @contextmanager
    def _open_file(self, relative_path: str) -> Iterator[tuple[IO[bytes], int]]:
        path = self.fs.concat_path(self.path, check_path(relative_path))
        with ExitStack() as stack:
            try:
                self._check_local(path)
                file = stack.enter_context(self.fs.create_stream(path, "rb"))
            except OSError as error:
                if not names_no_file(error):
                    raise
                missing = "the file that holds the item is missing from the checkpoint"
                raise MetadataError(missing, file=os.fspath(path)) from error
            size = file.seek(0, io.SEEK_END)
            self._check_size(relative_path, size)
            yield file, size

    def _check_local(self, path: Any) -> None:
        """Refuse what is no file of this folder, before it is opened: a link that leads out of it, or a pipe or a
        device in place of a file, which might never end.

        Raises
        ------
        MetadataError
        """
        folder, file = local_path(self.fs, self.path), local_path(self.fs, path)
        if folder is None or file is None:
            return
        if not stat.S_ISREG(os.stat(file).st_mode):
            raise MetadataError("this is not a regular file, so no writer made it; it was not opened", file=file)
        real = os.path.realpath(file)
        if os.path.commonpath([os.path.realpath(folder), real]) != os.path.realpath(folder):
            raise MetadataError(
                f"this is a link to {real}, outside of the checkpoint's folder; it was not followed. Put the file "
                "itself there if you trust it",
                file=file,
            )

    def _full(self, relative_path: str) -> str:
        return str(self.fs.concat_path(self.path, relative_path))

    def _check_size(self, path: str, size: int) -> None:
        manifest = self._opener.manifest
        if manifest is not None and manifest.files[path].size != size:
            raise ContainerError(
                f"the file has {size} bytes, the manifest says {manifest.files[path].size}: it was cut or continued",
                file=self._full(path),
            )


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
        For what is encrypted. With keys, what is not encrypted is refused, so that nobody can slip in something plain.
    trust : VerifyKey or location, or several
        Who may have written the checkpoint. What a `PrivateKey` opens must be signed by one of them; once there is one
        here, so must everything else.
    allow_unsigned : bool
        Whether a checkpoint that a `PrivateKey` opens may lack that signature.
    require : {"published", "bound", "encrypted"}, optional
        The weakest item that is acceptable when keys are given. ``"published"``, the default, is what streamxf's writer
        makes; ``"bound"`` accepts what `attach` made of another writer, ``"encrypted"`` what torch's own writer made.
    weights_only : bool
        Whether items that are no tensors are limited to what ``torch.load(weights_only=True)`` allows. False lets
        whoever wrote the checkpoint run code in this process.
    safe_globals : sequence
        Classes and functions that such items, and tensors of subclasses, may use besides.
    expect_save_id : str or several, optional
        The only save that is acceptable, as ``writer.save_id`` gave it, or those of all ranks where each has metadata
        of its own. Without it, an older checkpoint that was put back as a whole loads.
    max_expansion : int
        How many times what is stored may be made of items that are no tensors, all together; 256 MiB may be in any
        case. Tensors fill memory that is there.
    progress : bool or Progress
        True shows a bar while data is read, on rank 0 and where stderr is a terminal; it needs the extra ``cli``. A
        `Progress` is told how many stored bytes this process has to read, and as they are read, by any thread; what it
        raises fails the load.

    Raises
    ------
    ParameterError
        If a key is not 32 bytes, `require` is given without keys, or another argument is not what it should be.
    """

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
        expect_save_id: SaveIds = None,
        max_expansion: int = MAX_EXPANSION,
        progress: ProgressLike = False,
    ) -> None:
        check_local(path, "FsspecReader")
        super().__init__(path)
        self._set_up_chain(
            _extension_registry,
            KeyRing.of(keys, trust, allow_unsigned),
            require,
            objects=Objects(weights_only, safe_globals, max_expansion),
            expect_save_id=expect_save_id,
            progress=progress,
        )

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Turn to another checkpoint; raises ParameterError for a URL."""
        check_local(checkpoint_id, "FsspecReader")
        super().reset(checkpoint_id)


def check_require(require: Require | None, registry: Registry, default: Require = "published") -> Require | None:
    """The policy in force: `default` once there are keys, unless the caller relaxes it by name.

    Raises
    ------
    ParameterError
        If the word is unknown, or there are no keys that could satisfy it.
    """
    if require is not None and require not in REQUIREMENTS:
        raise ParameterError(f"require={require!r}: it is one of {', '.join(map(repr, REQUIREMENTS))}")
    if require is not None and not len(registry.keys):
        raise ParameterError(f"require={require!r} needs keys=: only what is encrypted can be {require}")
    return require or (default if len(registry.keys) else None)


def _unusable(error: Exception, path: str) -> MetadataError:
    made = MetadataError(f"the metadata cannot be used: {type(error).__name__}: {error}", file=path)
    made.__cause__ = error
    return made


def _not_described(kind: Kind) -> MetadataError:
    return MetadataError(
        f"the item is wanted as a {kind.name.lower()} item, and the metadata does not say that it is one"
    )


def chunk_at(index: MetadataIndex, chunks: Sequence[ChunkStorageMetadata]) -> ChunkStorageMetadata | None:
    """The chunk of a tensor that begins where `index` says; None if there is none."""
    if index.index is not None and 0 <= index.index < len(chunks) and chunks[index.index].offsets == index.offset:
        return chunks[index.index]  # as nearly always: the list may be long
    return next((chunk for chunk in chunks if chunk.offsets == index.offset), None)


def _tensor_bytes(item: TensorStorageMetadata) -> int:
    return math.prod(item.size) * item.properties.dtype.itemsize
