"""`Contents`: items, files and provenance of a checkpoint of any format; `Shard`: the same of one file; `FileReader`: a
checkpoint of files that store tensors uncompressed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from enum import Enum
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, TypeVar

from streamxf import errors
from streamxf.cached import cached_property
from streamxf.format.items import Chunk, ObjectItem, Place
from streamxf.places import Storage
from streamxf.reading import Access, BoxReader, Budget, Elements, Item, Nesting, Path, StoredFile, TensorItem, TorchFile
from streamxf.wording import some

T = TypeVar("T")

OpenFile = Callable[[str], AbstractContextManager[StoredFile]]


class Format(Enum):
    """What a path holds; ``str()`` is its name for people."""

    STREAMXF = "streamxf"
    DCP = "stock DCP"
    SAFETENSORS = "safetensors"
    HUGGING_FACE = "Hugging Face"
    TORCH = "torch.save"
    FOLDER = "folder"
    PLAIN = "streamxf file"

    def __str__(self) -> str:
        return self.value


FOLDERS = (Format.HUGGING_FACE, Format.FOLDER)
OF_TORCH = (".pt", ".pth", ".bin", ".ckpt")
PLAIN = ".sxf"  # the end of names of files that `streamxf.open` wrote

SUFFIXES = {".safetensors": Format.SAFETENSORS, **dict.fromkeys(OF_TORCH, Format.TORCH)}


@dataclass(frozen=True)
class Contents:
    """What a checkpoint holds.

    - `path`: as it was given.
    - `items`: by name, in the metadata's order; of ranks with their own metadata, names of copies end with the rank.
    - `files`: sizes in bytes of the files that belong to it, metadata among them, by their relative paths.
    - `packages`: versions of the packages that wrote it, if it names them.
    - `save_ids`: streamxf's, one for each metadata file.
    - `key_ids`: kinds and ids of the keys that open it, as in ``"aeskw:0123456789abcdef"``.
    - `signers`: ids of the keys that signed it; `notes` say so if their signatures were not checked.
    - `notes`: remarks, in sentences, such as that the metadata is not authenticated.
    - `extra`: metadata of the format's own, as safetensors' ``__metadata__``.
    - `incomplete`: files that are missing, or do not have the size that the metadata gives.
    """

    path: str
    format: Format
    items: Mapping[str, Item]
    files: Mapping[str, int]
    packages: Mapping[str, str] = field(default_factory=dict)
    save_ids: tuple[str, ...] = ()
    key_ids: tuple[str, ...] = ()
    signers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)
    incomplete: tuple[str, ...] = ()

    @property
    def tensors(self) -> dict[str, TensorItem]:
        """The items that are tensors."""
        return {name: item for name, item in self.items.items() if isinstance(item, TensorItem)}


@dataclass(frozen=True)
class Shard:
    """The contents of one file of a format that stores tensors uncompressed.

    - `items`: in the file's own order. A tensor has one chunk. The place of an object names its file and no more.
    - `strides`: of the tensors that are not stored row-major, in elements.
    - `objects`: the values of objects that are plain data; only torch can load the others.
    - `weights`: about how many bytes each object takes by itself. Objects of a file may share their parts.
    - `metadata`: the file's own, as safetensors' ``__metadata__``.
    - `records`: of a torch.save file, where tensors are that belong to objects.
    - `offsets`: of the tensors of which the file has slices, as DCP's Hugging Face writer stores them.
    - `nesting`: what names and paths do not say of a state dict.
    """

    items: dict[str, Item]
    strides: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    objects: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, int] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    records: frozenset[str] = frozenset()
    offsets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    nesting: Mapping[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Loaded:
    """What came of the objects in a file: all of it, in which the classes `unknown` are absent, or an error.

    - `absent`: whether some of a value is; `named`: dicts with their keys as text, by id.
    """

    file: str
    value: Any = None
    unknown: Collection[str] = ()
    absent: Callable[[Any], bool] = bool
    error: errors.StreamxfError | None = None
    named: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    def at(self, path: Path) -> Any:
        value = self.value
        for step in path:
            if not isinstance(step, int) and step not in value:  # its key is no string
                if id(value) not in self.named:
                    self.named[id(value)] = {str(key): each for key, each in value.items()}
                value = self.named[id(value)]
            value = value[step]
        if self.unknown and self.absent(value):
            raise errors.NotAllowedError(
                f"it needs what is not allowed, of which this file has {some(sorted(self.unknown))}: if you trust it, "
                "load it with torch.load(..., weights_only=False), and save plain data"
            )
        return value


def whole_tensor(
    name: str, dtype: str, shape: tuple[int, ...], file: str, at: int, size: int, path: Path
) -> TensorItem:
    """A tensor that is stored in one piece: `size` bytes at `at`."""
    chunk = Chunk((0,) * len(shape), shape, Place(file, at, size, ()), framed=False)
    return TensorItem(name, dtype, shape, (chunk,), path)


def sizes_of(names: Iterable[str], listed: Mapping[str, int | None], open_file: OpenFile) -> dict[str, int]:
    """Sizes of those of the files that are there; `listed` is what `Storage.names` returned."""
    sizes: dict[str, int] = {}
    for name in names:
        size = listed.get(name)
        if size is None:  # in a folder below, a link, as in the hub's cache, or not there
            with suppress(FileNotFoundError, errors.MetadataError), open_file(name) as file:
                size = file.size
        if size is not None:
            sizes[name] = size
    return sizes


def chosen(items: Mapping[str, T], only: Sequence[str], prefix: str) -> dict[str, T]:
    """Items with names that begin with `prefix` and then match a shell pattern in `only`; by the names without it."""
    behind = {name.removeprefix(prefix): item for name, item in items.items() if name.startswith(prefix)}
    if not only:
        return behind
    return {name: item for name, item in behind.items() if any(fnmatchcase(name, pattern) for pattern in only)}


class FileReader(BoxReader):
    """A checkpoint of files that need no decoding: safetensors, a Hugging Face folder, torch.save.

    `storage` is the folder, or the only file; `shards`, by a file's name in `Place`, are the contents of each file.
    `access` decides how objects are unpickled, and `open_file` opens a file that is not stored as it is. `budget` is by
    default that of `access` for these files.
    """

    def __init__(
        self,
        storage: Storage,
        contents: Contents,
        shards: Mapping[str, Shard],
        access: Access,
        open_file: OpenFile | None = None,
        budget: Budget | None = None,
    ) -> None:
        storage.warn_of_caches()
        self.storage = storage
        self.contents = contents
        self.shards = shards
        self.stored: Mapping[str, Item] = contents.items
        self.access = access
        self._open_file = open_file
        self._files = storage.open_files(open_file or (lambda name: self._place(name).open()))
        self._loaded: _Loaded | None = None
        if budget is not None:
            self.budget = budget

    @cached_property
    def budget(self) -> Budget:
        sizes = self.contents.files
        return self.access.budget(sum(self._place(name).held("", sizes.get(name)) for name in self.shards))

    def elements(self, item: TensorItem, chunk: Chunk) -> Elements:
        place = chunk.place
        self.budget.spend_once(item.name, item.size, "the tensor", file=self.label(place.file), item=item.name)
        strides = self.shards[place.file].strides.get(item.name)
        source = self._files[place.file].slice(place.at, place.size)
        return Elements.stored(source, item.itemsize, chunk.shape, strides)

    @property
    def nesting(self) -> Nesting:
        """What is recorded of it, as an index has it."""
        return Nesting.merged(shard.nesting for shard in self.shards.values())

    def label(self, file: str) -> str:
        return self._place(file).label()

    def load_object(self, name: str) -> Any:
        item = self.stored[name]
        if not isinstance(item, ObjectItem):
            raise errors.ParameterError("this item is a tensor", item=name)
        file = item.place.file
        objects = self.shards[file].objects
        if name in objects:
            return objects[name]
        with errors.located(file=self.label(file), item=name):
            if self._loaded is None or self._loaded.file != file:
                self._loaded = self._load(file)
            if self._loaded.error is not None:
                raise copy(self._loaded.error)
            return self._loaded.at(item.path or ())

    def _load(self, file: str) -> _Loaded:
        opened = self._files[file]
        try:
            whole = TorchFile(opened)
            return _Loaded(file, *self.access.objects.load_around(whole, opened.size, self.shards[file].records))
        except errors.ContainerError as error:  # it was altered since it was opened
            raise errors.ContainerError(f"this is not an intact file of torch.save: {error.message}") from None
        except (errors.PolicyError, errors.MetadataError, errors.ObjectError) as error:  # of all objects alike
            return _Loaded(file, error=error)

    def part(self, items: Mapping[str, Item]) -> Callable[[Access], FileReader]:
        contents = replace(self.contents, items=items, files={}, notes=())
        names = {item.name for item in items.values()}
        shards = {}
        for file in {place.file for item in items.values() for place in item.places} & self.shards.keys():
            tables: Any = self.shards[file].strides, self.shards[file].objects, self.shards[file].weights
            strides, objects, weights = ({name: of[name] for name in of.keys() & names} for of in tables)
            shards[file] = Shard({}, strides, objects, weights, records=self.shards[file].records)
        how: Any = {"open_file": self._open_file, "budget": self.budget.renewed()}
        return partial(type(self), self.storage, contents, shards, **how)

    def close(self) -> None:
        self._loaded = None
        self._files.close()

    def _place(self, file: str) -> Storage:
        return self.storage.child(file) if self.contents.format in FOLDERS else self.storage
