"""`Checkpoint`: a checkpoint of DCP, streamxf's or another writer's, opened to be read without DCP."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

from streamxf.checkpoint.access import Access, Require, SaveIds
from streamxf.checkpoint.elements import Elements
from streamxf.checkpoint.handles import Framework, ObjectHandle, TensorHandle
from streamxf.checkpoint.metadata import merged, metadata_files, metadata_name, no_file, read_metadata
from streamxf.checkpoint.opening import ItemOpener, Wanted
from streamxf.checkpoint.reading import BoxReader
from streamxf.checkpoint.storage import OpenFiles, Storage
from streamxf.errors import ParameterError, located
from streamxf.format.items import Chunk, Item, ObjectItem, Place, TensorItem, elements_size
from streamxf.keys import KeysLike, TrustLike
from streamxf.proportion import MAX_EXPANSION, Budget
from streamxf.registry import CodecRegistry
from streamxf.stream.reader import read_all
from streamxf.stream.source import Blocks


class Checkpoint(BoxReader):
    """A DCP checkpoint, opened for reading: its items, tensors and parts of tensors.

    Only metadata is read when it is opened. `items` lists what there is; ``checkpoint[name]`` returns a handle, and
    slicing it reads only the blocks that are needed::

        with streamxf.Checkpoint("checkpoint", keys=key) as checkpoint:
            for name, item in checkpoint.items.items():
                print(name, item)
            rows = checkpoint["layers.0.weight"][10:20]

    Parameters
    ----------
    path : path or str
        The checkpoint's folder, or its URL.
    keys : Key, bytes, location, several of them or a KeyRing, optional
        For what is encrypted. With keys, what is not encrypted is refused.
    trust, allow_unsigned, require, expect_save_id, weights_only, safe_globals
        As in `FileSystemReader`.
    framework : {"torch", "numpy"}
        What tensors are read as. With ``"numpy"`` torch is not imported, unless an object is loaded.
    rank : int, optional
        Whose metadata to use where each rank has its own; None takes those of all ranks together.
    max_expansion : int
        How many times what is stored may be decoded where blocks do not bound it: of objects, tensors whose strides
        repeat elements, and stream transforms. 256 MiB is always allowed.
    codecs : CodecRegistry, optional
    storage_options : mapping, optional
        fsspec's, for a URL.

    Attributes
    ----------
    items : mapping of str to TensorItem or ObjectItem
        By name, in the order of the metadata: dtypes, shapes, and where each chunk is stored.
    metadata : tuple of Metadata
        What each metadata file says; one, or one for each rank.

    Raises
    ------
    NoCheckpointError, MetadataError
        If there is none, or its metadata is damaged, hostile or inconsistent.
    AuthenticationError, IdentityError
        If it was altered, or is another save than the expected one.
    KeyMissingError, WrongKeyError, KeyServiceError
        If it is encrypted and none of the keys opens it.
    PolicyError
        If it is weaker than what is required.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        keys: KeysLike = None,
        trust: TrustLike = None,
        allow_unsigned: bool = False,
        require: Require | None = None,
        expect_save_id: SaveIds = None,
        framework: Framework = "torch",
        rank: int | None = None,
        weights_only: bool = True,
        safe_globals: Sequence[Any] = (),
        max_expansion: int = MAX_EXPANSION,
        codecs: CodecRegistry | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        access = Access.of(
            keys,
            trust=trust,
            allow_unsigned=allow_unsigned,
            require=require,
            expect_save_id=expect_save_id,
            codecs=codecs,
            weights_only=weights_only,
            safe_globals=safe_globals,
            max_expansion=max_expansion,
        )
        self._open(Storage.of(path, storage_options), access, rank=rank, framework=framework)

    @classmethod
    def at(cls, storage: Storage, access: Access, *, rank: int | None = None, listing: bool = False) -> Checkpoint:
        """Open a checkpoint for streamxf's own tools. With `listing` only its metadata is needed: then an encrypted one
        needs no keys, and nothing is authenticated.
        """
        made = cls.__new__(cls)
        made._open(storage, access, rank=rank, listing=listing, framework="numpy")
        return made

    def _open(
        self, storage: Storage, access: Access, *, rank: int | None, framework: Framework, listing: bool = False
    ) -> None:
        self.storage = storage
        self.access = access
        if framework not in ("torch", "numpy"):
            raise ParameterError(f"framework={framework!r:.80}: it is 'torch' or 'numpy'")
        self.framework = framework
        names = metadata_files(storage) if rank is None else [metadata_name(rank)]
        self.metadata = tuple(read_metadata(storage, name, access, listing=listing) for name in names)
        self._of_file = {
            place.file: each for each in self.metadata for item in each.items.values() for place in item.places
        }
        self.items: Mapping[str, Item] = MappingProxyType(merged(self.metadata))
        self._openers: dict[str, ItemOpener] = {}
        self._files = OpenFiles(storage.open, local=storage.local is not None)
        self._last: tuple[Place, Elements] | None = None

    @property
    def save_ids(self) -> tuple[str, ...]:
        """Which save it is, as ``writer.save_id`` gave it; one for each metadata file, and none for other writers'."""
        return tuple(each.index.save_id for each in self.metadata if each.index is not None)

    @property
    def authenticated(self) -> bool:
        """Whether all of its metadata was vouched for, or is not encrypted."""
        return all(each.authenticated for each in self.metadata)

    @cached_property
    def budget(self) -> Budget:
        return self.access.budget(self.storage.held_by(self._of_file))

    def __getitem__(self, name: str) -> TensorHandle | ObjectHandle:
        """A handle that reads an item; raises KeyError if no item has that name."""
        item = self.items[name]
        if isinstance(item, TensorItem):
            return TensorHandle(self, name, item, self.framework)
        return ObjectHandle(self, name, item)

    def __iter__(self) -> Iterator[str]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __contains__(self, name: object) -> bool:
        return name in self.items

    def elements(self, item: TensorItem, chunk: Chunk) -> Elements:
        if self._last is not None and self._last[0] == chunk.place:
            return self._last[1]
        self._last = None  # what had to be decoded whole is not held while the next one is
        blocks = self.blocks(item, chunk)
        with located(file=self.full(chunk.place.file), item=item.name):
            made = Wanted(item, chunk).elements(blocks)
            size = elements_size(item.dtype, chunk.shape)
            cost = chunk.place.size if size <= blocks.size else size  # blocks bound what they decode to
            self.budget.spend_once((item.name, chunk.offset), cost, "the tensor")
        self._last = chunk.place, made
        return made

    def blocks(self, item: Item, chunk: Chunk | None = None) -> Blocks:
        """The stream of an item, or of a tensor's chunk, block by block; opened with all checks. Raises StreamxfError,
        with file and item.
        """
        wanted = Wanted(item, chunk)
        name = wanted.place.file
        try:
            file = self._files[name]
        except FileNotFoundError as error:
            raise no_file(self.full(name)) from error
        metadata = self._of_file[name]
        if metadata.name not in self._openers:
            opener = ItemOpener(metadata, self.access, self.access.objects.limit, budget=self.budget)
            self._openers[metadata.name] = opener
        with located(file=file.name, item=item.name):
            return self._openers[metadata.name].open(file, wanted)

    def load_object(self, name: str) -> Any:
        item = self.items[name]
        if not isinstance(item, ObjectItem):
            raise ParameterError("this item is a tensor", item=name)
        blocks = self.blocks(item)
        with located(file=self.storage.full(item.place.file), item=name):
            self.budget.spend_once(name, blocks.size, "the object")
            return self.access.objects.load(read_all(blocks), item.place.size)

    def full(self, file: str) -> str:
        return self.storage.full(file)

    def close(self) -> None:
        self._last = None
        self._files.close()
