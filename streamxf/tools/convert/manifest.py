"""`PackManifest`: what `pack` records of the files that it packed, so that `unpack` can write the same bytes again.

A file is its tensors, each an item of its own, and the bytes around them, which are one more item. The manifest says
where in the file each tensor belongs. It is stored as an object, `ITEM`, of dicts, lists, strings and numbers only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from streamxf.errors import MetadataError, UnsupportedError
from streamxf.format.limits import MAX_PATH
from streamxf.formats.contents import FOLDERS, Format
from streamxf.places import Storage, StorageEntry
from streamxf.reading import BoxReader
from streamxf.wording import printable, some

ITEM = "streamxf.source"
"""The item's name in the state dict."""

_VERSION = 1


def rest_of(path: str) -> str:
    """The name of the item that holds a file's bytes around its tensors."""
    return f"{ITEM}/{path}"


def is_kept(name: str) -> bool:
    """Whether an item is one that pack adds to the tensors and objects of the files."""
    return name == ITEM or name.startswith(f"{ITEM}/")


class Placed(NamedTuple):
    """A tensor whose elements begin at `start` in a file, without gaps; `order` has its dimensions, the slowest in the
    file first. With an `offset` it is a slice of the item from there on.
    """

    name: str
    start: int
    dtype: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    offset: tuple[int, ...] = ()


class PackedFile(NamedTuple):
    """A file's tensors, in the order of their places, and items without bytes of their own: objects, shared tensors."""

    tensors: tuple[Placed, ...]
    others: tuple[str, ...]


@dataclass(frozen=True)
class PackManifest:
    """What was packed: `SAFETENSORS` or `TORCH`, one file, by its name; `HUGGING_FACE` or `FOLDER`, the files in a
    folder, by relative paths. `left_out` is that of `FileTree`.
    """

    format: Format
    files: Mapping[str, PackedFile]
    left_out: tuple[str, ...] = ()

    @property
    def is_folder(self) -> bool:
        """Whether a folder was packed."""
        return self.format in FOLDERS

    def items(self) -> Iterator[str]:
        """The names of all items from which the files are made."""
        yield ITEM
        for path, file in self.files.items():
            yield from (rest_of(path), *(tensor.name for tensor in file.tensors), *file.others)

    def kept_as_bytes(self, stored: Collection[str]) -> list[str]:
        """Objects that are only in the bytes of their files: they have no items among those that are `stored`."""
        return [name for file in self.files.values() for name in file.others if name not in stored]

    def to_plain(self) -> Any:
        """The value that is stored."""
        return {
            "version": _VERSION,
            "format": self.format.name,
            "files": {
                path: [[_plain(tensor) for tensor in file.tensors], list(file.others)]
                for path, file in self.files.items()
            },
            "left_out": list(self.left_out),
        }

    @classmethod
    def from_plain(cls, value: Any) -> Self:
        """Read a stored value; raises MetadataError if pack does not store such, or if it leads out of the folder."""
        try:
            if value["version"] != _VERSION:
                raise MetadataError(
                    f"the item has version {value['version']!r:.20}; this streamxf reads version {_VERSION}", item=ITEM
                )
            made = cls(
                Format[value["format"]],
                {_text(path): _file(*file) for path, file in value["files"].items()},
                tuple(map(_text, value["left_out"])),
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            raise MetadataError(f"the item is not what pack stores: {error!r:.100}", item=ITEM) from None
        whole = (tensor.name for file in made.files.values() for tensor in file.tensors if not tensor.offset)
        names = [ITEM, *map(rest_of, made.files), *whole]
        above = (path[:at] for path in made.files for at, char in enumerate(path) if char == "/")
        if not (made.is_folder or (made.format in (Format.SAFETENSORS, Format.TORCH) and len(made.files) == 1)):
            raise MetadataError("it does not describe a single file, as its format requires", item=ITEM)
        if not all(map(is_inside, made.files)) or not made.files.keys().isdisjoint(above):
            raise MetadataError("it has a path that is below a file, or outside of the folder", item=ITEM)
        if len(set(names)) < len(names):
            raise MetadataError("it has an item in two places", item=ITEM)
        return made


def manifest_of(reader: BoxReader) -> PackManifest | None:
    """The manifest of a checkpoint; None if `pack` did not make it. Raises as `PackManifest.from_plain`."""
    return PackManifest.from_plain(reader.load_object(ITEM)) if ITEM in reader.stored else None


def _plain(tensor: Placed) -> list[Any]:
    return [*tensor[:3], *map(list, tensor[3:5]), *filter(None, [list(tensor.offset)])]


def _file(tensors: Any, others: Any) -> PackedFile:
    made = tuple(
        Placed(_text(name), _count(start), _text(dtype), *(tuple(map(_count, numbers)) for numbers in (shape, *rest)))
        for name, start, dtype, shape, *rest in tensors
    )
    for tensor in made:
        if len(tensor.offset) not in (0, len(tensor.shape)):
            raise ValueError(f"{tensor.offset!r:.40} is not where a slice begins")
        if sorted(tensor.order) != list(range(len(tensor.shape))):
            raise ValueError(f"{tensor.order!r:.40} is not an order of dimensions")
    return PackedFile(made, tuple(map(_text, others)))


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r:.40} is not a size")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is not a string")
    return value


_EMPTY = "an empty folder"
_SPECIAL = "not a regular file of known size"
_STRANGE = "a name that cannot be restored everywhere"


@dataclass(frozen=True)
class FileTree:
    """A folder, or a single file.

    - `files`: sizes by relative paths, sorted; a link to a regular file counts as that file.
    - `left_out`: what else there is, each path with the reason why it is not packed.
    """

    storage: Storage
    is_folder: bool
    files: Mapping[str, int]
    left_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, storage: Storage) -> FileTree:
        """List a folder or a file."""
        if not storage.is_folder():
            with storage.open() as file:
                return cls(storage, False, {storage.name: file.size})
        found = {each.name: _what(storage, each) for each in storage.below(folders=True)}
        full = {path.rpartition("/")[0] for path in found}
        files: dict[str, int] = {}
        left_out = []
        for path, what in sorted(found.items()):
            if isinstance(what, int) and path not in full:
                files[path] = what
            elif isinstance(what, int) or path not in full:  # an object may have a name that others have as a folder
                if what == _EMPTY and storage.near and any(storage.entries(path)):  # or it may not be read
                    raise UnsupportedError("the folder lies too deep to be packed", file=storage.label(path))
                left_out.append(f"{printable(path, 200)} ({_STRANGE if isinstance(what, int) else what})")
        return cls(storage, True, files, tuple(left_out))

    def notes(self) -> tuple[str, ...]:
        """What a report says of `left_out`, if there is any."""
        return (f"only regular files are packed; left out: {some(self.left_out)}",) if self.left_out else ()

    def place(self, path: str) -> Storage:
        """Where a file is."""
        return self.storage.child(path) if self.is_folder else self.storage

    def identity(self) -> str:
        """A digest of the paths, sizes and times of all files, to recognize them by."""
        versions = [[path, self.place(path).version()] for path in self.files]
        return hashlib.sha256(json.dumps([self.storage.real(), self.left_out, versions]).encode()).hexdigest()


def _what(storage: Storage, entry: StorageEntry) -> int | str:
    """The size of a file; of anything else what it is, if nothing is in it."""
    if not is_inside(entry.name):
        return _STRANGE
    if entry.kind == "link":
        with suppress(OSError):  # it leads nowhere, or in circles
            entry = storage.child(entry.name).info()
        if entry.kind != "file":
            return "a link, but not to a regular file"
    if entry.kind == "folder":
        return _EMPTY
    return _SPECIAL if entry.size is None else entry.size


def is_inside(path: str) -> bool:
    """Whether a relative path stays in its folder on every system, and is printable."""
    if len(path) > MAX_PATH or not path.isprintable() or "\\" in path:
        return False
    return all(part not in ("", ".", "..") for part in path.split("/"))
