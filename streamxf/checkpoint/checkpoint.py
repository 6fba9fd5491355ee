"""`Checkpoint`: a checkpoint of DCP, streamxf's or another writer's, opened to be read without DCP."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, Self

from streamxf.budget import MAX_EXPANSION, Budget
from streamxf.cached import cached_property
from streamxf.checkpoint.access import Access, Codecs, Names, Require, SaveIds
from streamxf.checkpoint.elements import Elements
from streamxf.checkpoint.metadata import Metadata, merge_ranks, metadata_files, read_metadata
from streamxf.checkpoint.opening import ItemOpener, ItemPart
from streamxf.checkpoint.pickled import is_extra
from streamxf.checkpoint.reading import Box, BoxReader, cut
from streamxf.checkpoint.sources import Array
from streamxf.errors import ContainerError, ParameterError, UnsupportedError, located
from streamxf.format.items import Chunk, Item, ObjectItem, TensorItem, unsigned
from streamxf.format.names import metadata_name
from streamxf.format.values import from_json
from streamxf.keys import KeysLike, TrustLike
from streamxf.lazy import numpy as np
from streamxf.lazy import torch
from streamxf.storage.opening import Location, open_storage
from streamxf.storage.reading import StoredFile
from streamxf.storage.storage import Storage
from streamxf.stream.reader import Blocks, read_all

Framework = Literal["torch", "numpy"]


class Checkpoint(BoxReader, Mapping[str, "TensorHandle | ObjectHandle"]):
    """A DCP checkpoint, opened for reading: a mapping from the names of its items to handles.

    Only metadata is read at first. ``checkpoint[name]`` returns a handle, and slicing it reads the blocks needed::

        with streamxf.Checkpoint("checkpoint", keys=key) as checkpoint:
            for name, handle in checkpoint.items():
                print(name, handle)
            rows = checkpoint["layers.0.weight"][10:20]

    Parameters
    ----------
    path : path, str or Storage
        The checkpoint's folder, or its URL.
    keys : Key, bytes, location, several of them or a KeyRing, optional
        To decrypt. With keys, unencrypted checkpoints are refused.
    trust, allow_unsigned, require, expect_save_id, weights_only, safe_globals, rename
        As in `FileSystemReader`; a `require` of None is the default here.
    framework : {"torch", "numpy"}
        The type of tensors. With ``"numpy"`` torch is not imported, unless an object is loaded.
    rank : int, optional
        Whose metadata to use where each rank has its own; None takes those of all ranks together.
    max_expansion : int
        Limit, as a multiple of the stored size, on data that blocks do not bound: objects, tensors whose strides repeat
        elements, and stream transforms. 256 MiB is always allowed.
    codecs : CodecRegistry or Registry, optional
        Where codecs are looked up, and in a `Registry` stream extensions of other packages.
    storage_options : mapping, optional
        fsspec's, for a URL.

    Attributes
    ----------
    stored : mapping of str to TensorItem or ObjectItem
        By name, in the order of the metadata: dtypes, shapes, and where each chunk is stored.
    metadata : tuple of Metadata
        The contents of each metadata file; one, or one for each rank.

    Raises
    ------
    NoCheckpointError, MetadataError
        If there is none, or its metadata is damaged, hostile or inconsistent.
    AuthenticationError, IdentityError
        If it was altered, or is not the expected save.
    KeyMissingError, WrongKeyError, KeyServiceError
        If it is encrypted and none of the keys opens it.
    PolicyError
        If its protection is weaker than required.
    ParameterError
        If items cannot be renamed as `rename` says.
    """

    def __init__(
        self,
        path: Location,
        *,
        keys: KeysLike = None,
        trust: TrustLike = None,
        allow_unsigned: bool = False,
        require: Require | None = None,
        expect_save_id: SaveIds = None,
        rename: Names | None = None,
        framework: Framework = "torch",
        rank: int | None = None,
        weights_only: bool = True,
        safe_globals: Sequence[Any] = (),
        max_expansion: int = MAX_EXPANSION,
        codecs: Codecs = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        how = codecs, weights_only, safe_globals, max_expansion, rename
        access = Access.of(keys, trust, allow_unsigned, require, expect_save_id, *how)
        if framework not in ("torch", "numpy"):
            raise ParameterError(f"framework={framework!r:.80}: it is 'torch' or 'numpy'")
        storage = open_storage(path, storage_options)
        self._open(storage, access, _read(storage, access, rank), framework)

    @classmethod
    def at(cls, storage: Storage, access: Access, *, listing: bool = False) -> Checkpoint:
        """Open one for streamxf's tools. With `listing` an encrypted one needs no keys; nothing is authenticated."""
        made = cls.__new__(cls)
        made._open(storage, access, _read(storage, access, listing=listing), "numpy")
        return made

    def _open(self, storage: Storage, access: Access, metadata: Iterable[Metadata], framework: Framework) -> None:
        self.storage = storage
        self.access = access
        self.framework = framework
        self.metadata = tuple(metadata)
        self._of_file = {file: each for each in self.metadata for file in each.named()}
        self.stored: Mapping[str, Item] = MappingProxyType(merge_ranks(self.metadata))
        self._openers: dict[str, ItemOpener] = {}
        self._files = storage.open_files()
        self._last: tuple[ItemPart, Elements] | None = None
        self.known: Any = None  # as of `ItemOpener`

    @property
    def save_ids(self) -> tuple[str, ...]:
        """Which save it is, as ``writer.save_id`` gave it; one for each metadata file, and none for other writers'."""
        return tuple(each.index.save_id for each in self.metadata if each.index is not None)

    @property
    def extra(self) -> dict[str, Any]:
        """What `CheckpointWriter` was given as `extra`, or a planner put into DCP's metadata. Raises MetadataError."""
        found = {} if (index := self.metadata[0].index) is None else index.extra
        return {name: from_json(value) for name, value in found.items() if is_extra(name)}

    @property
    def authenticated(self) -> bool:
        """Whether all of its metadata was vouched for, or is not encrypted."""
        return all(each.authenticated for each in self.metadata)

    @cached_property
    def budget(self) -> Budget:
        return self.access.budget(self.storage.held_by(self._of_file))

    def __getitem__(self, name: str) -> TensorHandle | ObjectHandle:
        """A handle that reads an item; raises KeyError if no item has that name."""
        item = self.stored[name]
        if isinstance(item, TensorItem):
            return TensorHandle(self, name, item, self.framework)
        return ObjectHandle(self, name, item)

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)

    def __contains__(self, name: object) -> bool:
        return name in self.stored

    __eq__, __hash__ = object.__eq__, object.__hash__  # two that are equal may be read with different keys

    def elements(self, item: TensorItem, chunk: Chunk) -> Elements:
        wanted = ItemPart(item, chunk)
        if self._last is not None and self._last[0] == wanted:
            return self._last[1]
        self._last = None  # what had to be decoded whole is not held while the next one is
        blocks = self.blocks(item, chunk)
        with located(file=self.label(chunk.place.file), item=item.name):
            made = wanted.elements(blocks)
            cost = chunk.place.size if wanted.planned <= blocks.size else wanted.planned  # blocks bound what they make
            self.budget.spend_once((item.name, chunk.offset), cost, "the tensor")
        self._last = wanted, made
        return made

    def blocks(self, item: Item, chunk: Chunk | None = None) -> Blocks:
        """The stream of an item or a tensor's chunk, opened with all checks. Raises StreamxfError, with its place."""
        wanted = ItemPart(item, chunk)
        name = wanted.place.file
        with located(file=self.label(name), item=item.name), self.storage.doubting():
            file, metadata = self._open_file(name), self._of_file[name]
            if metadata.name not in self._openers:
                self._openers[metadata.name] = ItemOpener(metadata, self.access, self.budget, self._open_file)
            opener = self._openers[metadata.name]
            opener.known = self.known
            return opener.blocks(opener.source(file, wanted.place), wanted)

    def _open_file(self, name: str) -> StoredFile:
        try:
            return self._files[name]
        except FileNotFoundError as error:
            raise self._of_file[name].no_file(self.storage, name) from error

    def load_object(self, name: str) -> Any:
        item = self.stored[name]
        if not isinstance(item, ObjectItem):
            raise ParameterError("this item is a tensor", item=name)
        with located(file=self.label(item.place.file), item=name), self.storage.doubting():
            return self.access.objects.load_at(item.place, self.read_stored(item), "cpu", self.budget)

    def read_stored(self, item: Item, chunk: Chunk | None = None) -> bytes:
        """An object as it is stored, or what torch.save wrote of a shard that only torch can make."""
        blocks, what = self.blocks(item, chunk), "the object" if chunk is None else "the tensor"
        place = ItemPart(item, chunk).place
        with located(file=self.label(place.file), item=item.name), self.storage.doubting():
            self.budget.spend_once((*place[:2], place.span), blocks.size, what)
            return read_all(blocks)

    def load_tensor(self, item: TensorItem) -> torch.Tensor:
        """A tensor that only torch and its class can make, on the CPU. Raises UnsupportedError if it has several
        shards, NotAllowedError if its class is not allowed, ObjectError if that fails.
        """
        if len(item.chunks) != 1:
            text = f"it is stored in {len(item.chunks)} shards, which only its class can join: load it with dcp.load"
            raise UnsupportedError(text, item=item.name)
        (chunk,) = item.chunks
        data = self.read_stored(item, chunk)
        with located(file=self.label(chunk.place.file), item=item.name):
            return self.access.objects.load_shard(io.BytesIO(data), len(data), item, chunk)

    def map(self, item: TensorItem, chunk: Chunk) -> torch.Tensor | Array:
        """What `ChunkHandle.mmap` gives."""
        place, size = chunk.place, math.prod(chunk.shape) * item.itemsize
        with located(file=self.label(place.file), item=item.name):
            if not chunk.raw:
                how = f"through {'+'.join(chunk.chain)}" if chunk.chain else "in torch.save's frame"
                raise UnsupportedError(f"it is stored {how}, and only raw tensors are mapped: transcode it to 'raw'")
            if not self.storage.near:
                raise UnsupportedError("only local files are mapped, and this storage has none: copy the checkpoint")
            if size and place.at % item.itemsize:
                raise UnsupportedError("its elements are not aligned in the file, so they cannot be mapped: read them")
            self.blocks(item, chunk)  # with all checks but those of its bytes
            kind, mode = unsigned(item.itemsize), "r" if self.framework == "numpy" else "c"
            if not size:
                array: Array = np.empty(chunk.shape, kind)
                array.flags.writeable = mode == "c"
            else:
                try:
                    array = np.memmap(self._files[place.file].raw, kind, mode, place.at, chunk.shape)  # type: ignore[call-overload]
                except ValueError as error:
                    raise ContainerError(f"the file cannot be mapped; it was truncated just now: {error}") from None
            return as_numpy(array, item) if self.framework == "numpy" else Box(item, *chunk[:2]).as_torch(array)

    def part(self, items: Mapping[str, Item]) -> Callable[[Access], Checkpoint]:
        files = {file: self._of_file[file] for item in items.values() for place in item.places for file in place.files}
        metadata = {each.name: each.of_files(files) for each in files.values()}
        of_file = {file: metadata[each.name] for file, each in files.items()}
        return partial(_part_of, self.storage, dict(items), of_file, self.budget.renewed())

    def label(self, file: str) -> str:
        return self.storage.label(file)

    def close(self) -> None:
        self._last = None
        self._files.close()


class ChunkHandle(Chunk):
    """A shard of a stored tensor: `offset`, `shape` and `place`, as `Chunk` has them."""

    _reader: Checkpoint
    _item: TensorItem

    def __new__(cls, chunk: Chunk, reader: Checkpoint, item: TensorItem) -> Self:
        made = super().__new__(cls, *chunk)
        made._reader, made._item = reader, item
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Chunk, tuple(self)

    def mmap(self) -> torch.Tensor | Array:
        """Map the shard into memory, as `TensorHandle.mmap` does."""
        return self._reader.map(self._item, self)

    def bytes(self) -> bytes:
        """Its elements' bytes, row-major and little-endian, also of a dtype that is not known here (``"float6:8"``,
        with the bits of an element); what ``torch.save`` wrote of it if it is framed. Raises StreamxfError.
        """
        return self._reader.read_stored(self._item, self)


class TensorHandle:
    """A stored tensor. ``handle[...]`` reads all of it, ``handle[10:20, :, 3]`` the blocks that this part needs.
    `chunks` says how it was sharded, and where each shard is stored.
    """

    def __init__(self, reader: Checkpoint, name: str, item: TensorItem, framework: Framework) -> None:
        self._reader = reader
        self._item = item
        self._framework = framework
        self.name = name
        self.dtype: str = item.dtype
        self.shape: tuple[int, ...] = item.shape

    @property
    def chunks(self) -> tuple[ChunkHandle, ...]:
        return tuple(ChunkHandle(each, self._reader, self._item) for each in self._item.chunks)

    @property
    def stored_bytes(self) -> int:
        return self._item.stored_bytes

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without dimensions has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"TensorHandle({self.name!r}, {self.dtype}, {list(self.shape)})"

    def __getitem__(self, key: Any) -> torch.Tensor | Array:
        """Read a part, as indexing with integers, slices and an ellipsis does, in the checkpoint's framework. Of a
        tensor that only torch and its class can make, all of it is read.

        Raises IndexError if it is outside the tensor; StreamxfError, with file, item, block, if damaged or altered.
        """
        try:
            return next(self.pieces(key, max(1, math.prod(self.shape)) * self._item.itemsize))[0]
        except UnsupportedError:
            if self._framework != "torch" or not any(chunk.framed for chunk in self._item.chunks):
                raise
        made = self._reader.load_tensor(self._item)
        return made if key is Ellipsis else made[key]

    def pieces(self, key: Any, limit: int) -> Iterator[tuple[torch.Tensor | Array, bool]]:
        """Read a part as ``handle[key]`` does, in pieces of at most `limit` bytes, in row-major order: each has whole
        rows, or lies inside of one. Each comes with whether a row ends there.
        """
        parts = _parts(key, self.shape)
        spans = [part if isinstance(part, range) else range(part, part + 1) for part in parts]
        kept = tuple(slice(None) if isinstance(part, range) else 0 for part in parts)
        lengths, most = tuple(map(len, spans)), max(1, limit // self._item.itemsize)
        last = max((at for at, part in enumerate(parts) if isinstance(part, range)), default=None)
        for offset, sizes in cut(lengths, most) if all(lengths) else [((0,) * len(lengths), lengths)]:
            inside = [span[at : at + size] for span, at, size in zip(spans, offset, sizes, strict=True)]
            first = tuple(span[0] if span else 0 for span in inside)
            array = self._read(first, sizes, tuple(span.step if len(span) > 1 else 1 for span in inside))
            box = Box(self._item, first, sizes)
            made: Any = as_numpy(array, self._item) if self._framework == "numpy" else box.as_torch(array)
            yield made[kept], last is None or offset[last] + sizes[last] == lengths[last]

    def read(self) -> torch.Tensor | Array:
        return self[...]

    def mmap(self) -> torch.Tensor | Array:
        """Map a raw tensor (``chain="raw"``) into memory, which reads nothing until its elements are used.

        A `numpy.memmap` is read-only. A torch tensor may be changed: changes stay in this process's memory. The map
        stays valid when the checkpoint is closed. **Nothing compares what is mapped with its CRCs**: `streamxf.verify`
        does. If another process cuts the file meanwhile, the operating system ends this one (SIGBUS).

        Raises UnsupportedError if it is not raw or not aligned, has several chunks (map each of `chunks`), or is not in
        a local file; StreamxfError if the file is not as long as it was.
        """
        if len(self._item.chunks) != 1:
            raise UnsupportedError(
                f"it is stored in {len(self._item.chunks)} chunks: map each by itself (.chunks[0].mmap())",
                item=self.name,
            )
        return self.chunks[0].mmap()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        made = as_numpy(self._read((0,) * len(self.shape), self.shape), self._item)
        return made if dtype is None else made.astype(dtype)

    def _read(self, offset: tuple[int, ...], lengths: tuple[int, ...], steps: tuple[int, ...] = ()) -> Array:
        box = Box(self._item, offset, lengths, steps if max(steps, default=1) > 1 else ())
        self._reader.read_into(box, out := box.array())
        return out


class ObjectHandle:
    """A stored object."""

    def __init__(self, reader: BoxReader, name: str, item: ObjectItem) -> None:
        self._reader = reader
        self._item = item
        self.name = name

    @property
    def stored_bytes(self) -> int:
        return self._item.stored_bytes

    def __repr__(self) -> str:
        return f"ObjectHandle({self.name!r})"

    def read(self) -> Any:
        """The object, unpickled with ``weights_only``; imports torch. Raises PolicyError if it needs a class that is
        not allowed, StreamxfError if it is damaged or was altered.
        """
        return self._reader.load_object(self.name)


def _part_of(
    storage: Storage, stored: Mapping[str, Item], of_file: dict[str, Metadata], budget: Budget, access: Access
) -> Checkpoint:
    made = Checkpoint.__new__(Checkpoint)
    made._open(storage, access, (), "numpy")
    made.stored, made._of_file, made.budget = stored, of_file, budget
    return made


def _read(storage: Storage, access: Access, rank: int | None = None, *, listing: bool = False) -> list[Metadata]:
    names = metadata_files(storage) if rank is None else [metadata_name(rank)]
    found = [read_metadata(storage, name, access, listing=listing) for name in names]
    if rank is None and not listing:
        Metadata.check_one_save(found, access, storage.label(), *Metadata.lacking(found))
    return found


def _parts(key: Any, shape: tuple[int, ...]) -> list[int | range]:
    """What is wanted in each dimension: one place, or a range of them."""
    keys: Sequence[Any] = key if isinstance(key, tuple) else (key,)
    given = [each for each in keys if each is not Ellipsis]
    if len(keys) - len(given) > 1:
        raise IndexError("an index has at most one ellipsis")
    if len(given) > len(shape):
        raise IndexError(f"{len(given)} indices for a tensor of {len(shape)} dimensions")
    at = next((at for at, each in enumerate(keys) if each is Ellipsis), len(given))
    missing = [slice(None)] * (len(shape) - len(given))
    return [_part(each, size) for each, size in zip([*given[:at], *missing, *given[at:]], shape, strict=True)]


def _part(key: Any, size: int) -> int | range:
    if isinstance(key, slice):
        part = range(*key.indices(size))
        if part.step < 0:
            raise IndexError("a step backwards is not supported, as in torch")
        return part
    if isinstance(key, bool) or not hasattr(key, "__index__"):
        raise IndexError(f"{key!r:.80} is not an integer, a slice or an ellipsis")
    place = key.__index__()
    if not -size <= place < size:
        raise IndexError(f"index {place} is out of bounds for a dimension of {size}")
    return int(place) % size


def as_numpy(array: Array, item: TensorItem) -> Array:
    """An array's memory as an array of the item's dtype. Raises UnsupportedError if numpy has no such dtype."""
    with suppress(TypeError):
        return array.view(item.dtype)
    try:
        import ml_dtypes

        return array.view(getattr(ml_dtypes, item.dtype))
    except (ImportError, AttributeError):
        raise UnsupportedError(
            f"numpy has no {item.dtype}: install ml_dtypes, or read it with framework='torch'", item=item.name
        ) from None
