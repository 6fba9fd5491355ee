"""`Origin`: what `pack` keeps of the files that it packed, so that `unpack` writes the same bytes again.

A file is its tensors, each an item of its own, and the bytes around them, which are one item more. The origin says
where in the file each tensor stands. It is stored as one object, `ITEM`, of dicts, lists, strings and numbers only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from streamxf.convert.tree import is_inside, leads_inside
from streamxf.errors import MetadataError
from streamxf.formats.contents import Entry, Format
from streamxf.formats.extents import Extent, dense_order
from streamxf.formats.source import Source

ITEM = "streamxf.source"
"""The item's name in the state dict."""

_VERSION = 1
_FOLDERS = (Format.HUGGING_FACE, Format.FOLDER)
_PACKED = (Format.SAFETENSORS, Format.TORCH, *_FOLDERS)
_OWNER = 0o700


def rest_of(path: str) -> str:
    """The name of the item that holds a file's bytes around its tensors."""
    return f"{ITEM}/{path}"


def is_kept(name: str) -> bool:
    """Whether an item is what pack kept besides tensors and objects."""
    return name == ITEM or name.startswith(f"{ITEM}/")


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor whose elements stand in a file one after the other.

    Attributes
    ----------
    name : str
        The item's.
    start : int
        Where it begins in the file.
    dtype : str
        As torch names it.
    shape : tuple of int
    order : tuple of int
        Its dimensions, the one that changes slowest in the file first.
    """

    name: str
    start: int
    dtype: str
    shape: tuple[int, ...]
    order: tuple[int, ...]


def placed(entries: Iterable[Entry], extents: Mapping[str, Extent]) -> list[Placed]:
    """The tensors of a file that have bytes of their own, in their order. Of tensors that overlap, one counts; those
    with gaps between their elements do not.
    """
    found: list[Placed] = []
    stop = 0
    for entry in sorted(entries, key=lambda entry: (extents[entry.name].start, -(entry.raw_bytes or 0))):
        extent = extents[entry.name]
        order = dense_order(extent.shape, extent.strides)
        if entry.raw_bytes and order is not None and extent.start >= stop:
            found.append(Placed(entry.name, extent.start, str(entry.dtype), entry.shape, order))
            stop = extent.start + entry.raw_bytes
    return found


@dataclass(frozen=True, slots=True)
class PackedFile:
    """What is in a file besides the bytes around its tensors.

    Attributes
    ----------
    tensors : tuple of Placed
        In the order of the file.
    others : tuple of str
        Names of items that need no bytes of their own in the file: objects, and tensors that share their memory.
    mode : int or None
        Its permissions; None where the storage had none.
    """

    tensors: tuple[Placed, ...] = ()
    others: tuple[str, ...] = ()
    mode: int | None = None


@dataclass(frozen=True)
class Origin:
    """What was packed.

    Attributes
    ----------
    format : Format
        `SAFETENSORS` or `TORCH` for a file; `HUGGING_FACE` or `FOLDER`.
    files : dict of str to PackedFile
        By path relative to the folder; where a file was packed, by its name.
    folders : dict of str to int or None
        Their permissions. The folder itself has an empty path.
    links : dict of str to str
        Symbolic links, and what they say.
    excluded : tuple of str
        Patterns of what the caller left out.
    """

    format: Format
    files: dict[str, PackedFile] = field(default_factory=dict)
    folders: dict[str, int | None] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    excluded: tuple[str, ...] = ()

    @property
    def is_folder(self) -> bool:
        """Whether a folder was packed, with all that was in it."""
        return self.format in _FOLDERS

    def items(self) -> Iterator[str]:
        """The names of all items that the files are made of."""
        yield ITEM
        for path, file in self.files.items():
            yield rest_of(path)
            yield from (tensor.name for tensor in file.tensors)
            yield from file.others

    def to_plain(self) -> dict[str, Any]:
        """What is stored."""
        return {
            "version": _VERSION,
            "format": self.format.name,
            "files": {
                path: {
                    "tensors": [
                        [each.name, each.start, each.dtype, list(each.shape), list(each.order)] for each in file.tensors
                    ],
                    "others": list(file.others),
                    "mode": file.mode,
                }
                for path, file in self.files.items()
            },
            "folders": dict(self.folders),
            "links": dict(self.links),
            "excluded": list(self.excluded),
        }

    @classmethod
    def from_plain(cls, value: Any) -> Self:
        """Read what was stored.

        Raises
        ------
        MetadataError
            If it is anything else, or a path in it leads out of the folder.
        """
        try:
            if value["version"] != _VERSION:
                raise MetadataError(
                    f"the item has version {value['version']!r:.20}; this streamxf reads version {_VERSION}", item=ITEM
                )
            made = cls(
                Format[value["format"]],
                {_text(path): _file(file) for path, file in value["files"].items()},
                {_text(path): _mode(mode, _OWNER) for path, mode in value["folders"].items()},
                {_text(path): _text(leads_to) for path, leads_to in value["links"].items()},
                tuple(map(_text, value["excluded"])),
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            raise MetadataError(f"the item is not what pack stores: {error!r:.100}", item=ITEM) from None
        made._check()
        return made

    def _check(self) -> None:
        if self.format not in _PACKED or (not self.is_folder and len(self.files) != 1):
            raise MetadataError("it does not say how the one file looked that was packed", item=ITEM)
        folders = self.folders.keys() - {""}
        paths = [*self.files, *self.links, *folders]
        solid = {*self.files, *self.links}
        if (
            len(set(paths)) < len(paths)
            or not all(map(is_inside, paths))
            or any(_is_below(path, solid) for path in paths)
        ):
            raise MetadataError("it has a path twice, or one that does not belong in the folder", item=ITEM)
        if not all(leads_inside(path, leads_to) for path, leads_to in self.links.items()):
            raise MetadataError("it has a link that leads out of the folder", item=ITEM)
        names = list(self.items())
        if len(set(names)) < len(names):
            raise MetadataError("it has an item in two places", item=ITEM)


def origin_of(source: Source) -> Origin | None:
    """What `pack` kept of the files that it packed; None if the checkpoint was not packed.

    Raises
    ------
    MetadataError
        If the item is not one that `pack` stores.
    """
    entry = source.contents.entries.get(ITEM)
    return Origin.from_plain(source.load_object(entry)) if entry is not None else None


def _is_below(path: str, solid: set[str]) -> bool:
    """Whether a path leads through a file or a link."""
    at = path.find("/")
    while at >= 0:
        if path[:at] in solid:
            return True
        at = path.find("/", at + 1)
    return False


def _file(value: Any) -> PackedFile:
    tensors = tuple(
        Placed(_text(name), _count(start), _text(dtype), tuple(map(_count, shape)), tuple(map(_count, order)))
        for name, start, dtype, shape, order in value["tensors"]
    )
    for tensor in tensors:
        if sorted(tensor.order) != list(range(len(tensor.shape))):
            raise ValueError(f"{tensor.order!r:.40} is not an order of dimensions")
    return PackedFile(tensors, tuple(map(_text, value["others"])), _mode(value["mode"]))


def _mode(value: Any, least: int = 0) -> int | None:
    if value is None:
        return None
    if _count(value) > 0o777 or value & least != least:
        raise ValueError(f"{value!r:.40} are not permissions")
    return int(value)


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r:.40} is not a size")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is not a string")
    return value
