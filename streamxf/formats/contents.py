"""`Contents`: items, files and provenance of a checkpoint of any format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from streamxf.format.items import Item, TensorItem


class Format(Enum):
    """What a path holds.

    ``str()`` is its name for people.
    """

    STREAMXF = "streamxf"
    DCP = "stock DCP"
    SAFETENSORS = "safetensors"
    HUGGING_FACE = "Hugging Face"
    TORCH = "torch.save"
    FOLDER = "folder"
    PLAIN = "streamxf file"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Contents:
    """What a checkpoint holds.

    Attributes
    ----------
    path : str
        As it was given.
    format : Format
    items : dict of str to Item
        By name, in the order of the checkpoint's own metadata. Where ranks have metadata of their own, the names of
        copies end with the rank.
    files : dict of str to int
        Sizes in bytes of the files that belong to it, by their paths relative to the checkpoint; metadata among them.
    packages : dict of str to str
        Versions of the packages that wrote it, if it names them.
    save_ids : tuple of str
        streamxf's; where ranks have metadata of their own, one for each.
    key_ids : tuple of str
        Ids of the keys that open it, and their kinds, as in ``"aeskw:0123456789abcdef"``.
    signers : tuple of str
        Ids of the keys that signed it; these signatures were not checked.
    notes : tuple of str
        What a reader should know, in sentences: that the metadata is not authenticated, say.
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
