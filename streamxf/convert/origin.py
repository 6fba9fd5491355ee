"""`Origin`: what `pack` keeps of the files that it packed, besides tensors and objects, so that `unpack` can give them
back.

It is stored as one object more, `ITEM`, made of nothing but dicts, lists, texts, numbers and bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from streamxf.errors import MetadataError
from streamxf.formats.contents import Format

ITEM = "streamxf.source"
"""The item's name in the state dict."""

_VERSION = 1
_PACKED = (Format.SAFETENSORS, Format.HUGGING_FACE, Format.TORCH)


@dataclass(frozen=True)
class View:
    """How a tensor of a ``torch.save`` file lies in its storage.

    Attributes
    ----------
    storage : int
        The storage's number in its file. Tensors with the same number share their memory.
    offset : int
        Of its first element, in elements.
    strides : tuple of int
        In elements.
    requires_grad : bool
    parameter : bool
        Whether it is a ``torch.nn.Parameter``.
    """

    storage: int
    offset: int
    strides: tuple[int, ...]
    requires_grad: bool = False
    parameter: bool = False


@dataclass(frozen=True)
class Pickled:
    """What a ``torch.save`` file held around its tensors.

    Attributes
    ----------
    skeleton : Any
        The saved object with its dicts, lists and tuples, keys and their order; at the place of each tensor or object
        its name in the flat state dict. What is a text in it is always such a name, except for keys.
    views : dict of str to View
        Of all tensors, by their names.
    storages : tuple of int
        Bytes of each storage, by its number.
    """

    skeleton: Any
    views: dict[str, View]
    storages: tuple[int, ...]


@dataclass(frozen=True)
class Origin:
    """What was packed.

    Attributes
    ----------
    format : Format
        `SAFETENSORS`, `HUGGING_FACE` or `TORCH`.
    name : str
        Of the file or folder, without the path to it.
    heads : dict of str to bytes
        For each safetensors file, by its path relative to the folder (or its name, where it is the checkpoint): what
        stands in it before the tensors, the eight bytes of the header's length among it.
    pickled : dict of str to Pickled
        The same for each ``torch.save`` file.
    files : dict of str to bytes
        Other files of a Hugging Face folder, by relative path: index, configuration, tokenizer.
    left_out : dict of str to int
        Sizes of those that were not kept, by relative path.
    """

    format: Format
    name: str
    heads: dict[str, bytes] = field(default_factory=dict)
    pickled: dict[str, Pickled] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        """What is stored."""
        return {
            "version": _VERSION,
            "format": self.format.name,
            "name": self.name,
            "heads": dict(self.heads),
            "pickled": {
                name: {
                    "skeleton": file.skeleton,
                    "views": {
                        tensor: [view.storage, view.offset, list(view.strides), view.requires_grad, view.parameter]
                        for tensor, view in file.views.items()
                    },
                    "storages": list(file.storages),
                }
                for name, file in self.pickled.items()
            },
            "files": dict(self.files),
            "left_out": dict(self.left_out),
        }

    @classmethod
    def from_plain(cls, value: Any) -> Self:
        """Read what was stored.

        Raises
        ------
        MetadataError
            If it is anything else.
        """
        try:
            if value["version"] != _VERSION:
                raise MetadataError(
                    f"the item has version {value['version']!r:.20}; this streamxf reads version {_VERSION}", item=ITEM
                )
            kind = Format[value["format"]]
            if kind not in _PACKED:
                raise ValueError(f"pack keeps nothing of {kind}")
            return cls(
                kind,
                _text(value["name"]),
                {_text(name): _bytes(head) for name, head in value["heads"].items()},
                {_text(name): _pickled(file) for name, file in value["pickled"].items()},
                {_text(name): _bytes(data) for name, data in value["files"].items()},
                {_text(name): int(size) for name, size in value["left_out"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            raise MetadataError(f"the item is not what pack stores: {error!r:.100}", item=ITEM) from None


def _pickled(value: Any) -> Pickled:
    views = {
        _text(name): View(int(storage), int(offset), tuple(map(int, strides)), bool(grad), bool(parameter))
        for name, (storage, offset, strides, grad, parameter) in value["views"].items()
    }
    return Pickled(value["skeleton"], views, tuple(map(int, value["storages"])))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no text")
    return value


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"{value!r:.40} is no bytes")
    return value
