"""`Contents`: items, files and provenance of a checkpoint of any format; `Shard`: the same of one file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any

from streamxf.errors import MetadataError
from streamxf.format.items import Chunk, Item, Path, Place, TensorItem
from streamxf.storage.reading import StoredFile

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
SUFFIXES = {".safetensors": Format.SAFETENSORS, **dict.fromkeys(OF_TORCH, Format.TORCH)}


@dataclass(frozen=True)
class Contents:
    """What a checkpoint holds.

    Attributes
    ----------
    path : str
        As it was given.
    format : Format
    items : dict of str to Item
        By name, in the order of the checkpoint's own metadata. If ranks have their own metadata, the names of copies
        end with the rank.
    files : dict of str to int
        Sizes in bytes of the files that belong to it, metadata among them, by their relative paths.
    packages : dict of str to str
        Versions of the packages that wrote it, if it names them.
    save_ids : tuple of str
        streamxf's, one for each metadata file.
    key_ids : tuple of str
        Kinds and ids of the keys that open it, as in ``"aeskw:0123456789abcdef"``.
    signers : tuple of str
        Ids of the keys that signed it; these signatures were not checked.
    notes : tuple of str
        Remarks, in sentences, such as that the metadata is not authenticated.
    extra : mapping
        Metadata of the format's own, as safetensors' ``__metadata__``.
    incomplete : tuple of str
        Files that are missing, or do not have the size that the metadata gives.
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
    """

    items: dict[str, Item]
    strides: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    objects: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, int] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)


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
            with suppress(FileNotFoundError, MetadataError), open_file(name) as file:
                size = file.size
        if size is not None:
            sizes[name] = size
    return sizes


def chosen(items: Mapping[str, Item], only: Sequence[str], prefix: str) -> dict[str, Item]:
    """Items whose names begin with `prefix` and, without it, match one of the shell patterns `only`; by their names
    without it.
    """
    behind = {name.removeprefix(prefix): item for name, item in items.items() if name.startswith(prefix)}
    if not only:
        return behind
    return {name: item for name, item in behind.items() if any(fnmatchcase(name, pattern) for pattern in only)}
