"""`Contents`: what a checkpoint of any format holds, by its own metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Format(Enum):
    """What a path holds.

    ``str()`` is the word for people.
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


@dataclass(frozen=True, slots=True)
class Part:
    """Where a tensor, one shard of it or an object is stored.

    Attributes
    ----------
    offsets, shape : tuple of int
        The shard's place in its tensor, in elements; both empty for an object.
    file : str
        Relative to the checkpoint; the file's own name where a single file is the checkpoint.
    start : int
        Where its bytes begin in the file.
    stored_bytes : int
    chain : tuple of str
        Descriptors in save order without their fragments, as in ``("streamxf.zstd/1", "streamxf.checksum/1")``; empty
        where the bytes are stored as they are.
    """

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    start: int
    stored_bytes: int
    chain: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor, or an object that is none.

    Attributes
    ----------
    name : str
        In the flat state dict.
    dtype : str or None
        As torch names it, ``"bfloat16"``; None for an object.
    shape : tuple of int
        Of the whole tensor; empty for an object.
    raw_bytes : int or None
        Of the tensor's elements; of an object None, because only decoding it tells.
    parts : tuple of Part
        One for each shard.
    """

    name: str
    dtype: str | None
    shape: tuple[int, ...]
    raw_bytes: int | None
    parts: tuple[Part, ...]

    @property
    def is_tensor(self) -> bool:
        """Whether it is a tensor."""
        return self.dtype is not None

    @property
    def stored_bytes(self) -> int:
        """Of all parts."""
        return sum(part.stored_bytes for part in self.parts)


@dataclass(frozen=True)
class Contents:
    """What a checkpoint holds.

    Attributes
    ----------
    path : str
        As it was given.
    format : Format
    entries : dict of str to Entry
        By name, in the order of the checkpoint's own metadata.
    files : dict of str to int
        Sizes in bytes of the files that belong to it, by their paths relative to the checkpoint; metadata among them.
    packages : dict of str to str
        Versions of what wrote it, as far as it says.
    save_ids : tuple of str
        streamxf's; where ranks have metadata of their own, one for each.
    key_ids : tuple of str
        Ids of the keys that open it, and their kinds, as in ``"aeskw:0123456789abcdef"``.
    signers : tuple of str
        Ids of the keys that signed it; nobody has checked these signatures.
    notes : tuple of str
        In plain sentences, what a reader should know: that nobody has vouched for the metadata, say.
    extra : mapping
        What the format has besides, as safetensors' ``__metadata__``.
    incomplete : tuple of str
        Files that belong to it and are not there, or do not have the size that its metadata gives.
    """

    path: str
    format: Format
    entries: Mapping[str, Entry]
    files: Mapping[str, int]
    packages: Mapping[str, str] = field(default_factory=dict)
    save_ids: tuple[str, ...] = ()
    key_ids: tuple[str, ...] = ()
    signers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)
    incomplete: tuple[str, ...] = ()

    @property
    def tensors(self) -> list[Entry]:
        """The entries that are tensors."""
        return [entry for entry in self.entries.values() if entry.is_tensor]

    @property
    def objects(self) -> list[Entry]:
        """Those that are none."""
        return [entry for entry in self.entries.values() if not entry.is_tensor]
