"""`PackManifest`: what `pack` records of the files that it packed, so that `unpack` can write the same bytes again.

A file is its tensors, each an item of its own, and the bytes around them, which are one more item. The origin says
where in the file each tensor belongs. It is stored as an object, `ITEM`, of dicts, lists, strings and numbers only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from streamxf.checkpoint.reading import BoxReader
from streamxf.errors import MetadataError
from streamxf.formats.contents import FOLDERS, Format
from streamxf.tools.convert.tree import is_inside

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
    file first.
    """

    name: str
    start: int
    dtype: str
    shape: tuple[int, ...]
    order: tuple[int, ...]


class PackedFile(NamedTuple):
    """The tensors of a file, in the order of their places, and the names of items without bytes of their own: objects,
    and tensors that share memory.
    """

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

    def to_plain(self) -> Any:
        """The value that is stored."""
        return {
            "version": _VERSION,
            "format": self.format.name,
            "files": {
                path: [[[*tensor[:3], *map(list, tensor[3:])] for tensor in file.tensors], list(file.others)]
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
        if reason := made._fault():
            raise MetadataError(reason, item=ITEM)
        return made

    def _fault(self) -> str:
        single = self.format in (Format.SAFETENSORS, Format.TORCH) and len(self.files) == 1
        if not self.is_folder and not single:
            return "it does not describe a single file, as its format requires"
        above = (path[:at] for path in self.files for at, char in enumerate(path) if char == "/")
        if not all(map(is_inside, self.files)) or not self.files.keys().isdisjoint(above):
            return "it has a path that is below a file, or outside of the folder"
        names = list(self.items())
        return "it has an item in two places" if len(set(names)) < len(names) else ""


def origin_of(reader: BoxReader) -> PackManifest | None:
    """The origin of a checkpoint; None if `pack` did not make it. Raises as `PackManifest.from_plain`."""
    return PackManifest.from_plain(reader.load_object(ITEM)) if ITEM in reader.stored else None


def _file(tensors: Any, others: Any) -> PackedFile:
    made = tuple(
        Placed(_text(name), _count(start), _text(dtype), tuple(map(_count, shape)), tuple(map(_count, order)))
        for name, start, dtype, shape, order in tensors
    )
    for tensor in made:
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
