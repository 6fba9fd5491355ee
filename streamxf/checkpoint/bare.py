"""Tensors that stock DCP stored in safetensors' format within its own data files.

For each of them its metadata says where that part of the file begins, and how many bytes the elements have: as many as
no frame of ``torch.save`` has, by which they are recognized. Torch 2.13 itself reads none of these checkpoints.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import is_not
from typing import Any, ClassVar, Self

from streamxf.budget import FREE_WHOLE, MAX_EXPANSION
from streamxf.errors import ContainerError, MetadataError, shorten
from streamxf.format.items import ITEMSIZES, Chunk, Item, TensorItem
from streamxf.format.limits import MAX_INT
from streamxf.storage.reading import StoredFile
from streamxf.storage.storage import Storage
from streamxf.wording import size_text

_SLICES = "DCP_SHARDING_INFO"  # what DCP adds: that each tensor is a slice of the one by its name, and from where on
_BYTES_EACH = 12  # a tensor's entry has three lists and objects in more than forty; parsed, each takes sixty and more


def placed(storage: Storage, items: Mapping[str, Item]) -> Mapping[str, Item]:
    """The items of stock metadata, with their elements' places. What is damaged stays, and is found when it is read."""
    headers: dict[tuple[str, int], Mapping[str, tuple[int, int, Any]]] = {}

    def bare(item: TensorItem, chunk: Chunk) -> Chunk:
        place, size = chunk.place, math.prod(chunk.shape) * ITEMSIZES[item.dtype]
        if not chunk.framed or place.descriptors or place.size != size:
            return chunk
        if place[:2] not in headers:
            headers[place[:2]] = _spans(storage, place.file, place.at)
        begin, end, offset = headers[place[:2]].get(item.name, (0, -1, None))
        if end - begin != size or offset != list(chunk.offset):
            return chunk
        return chunk._replace(place=place._replace(at=begin), framed=False)

    found = dict(items)
    for name, item in items.items():
        if isinstance(item, TensorItem) and item.dtype in ITEMSIZES:
            chunks = tuple(bare(item, chunk) for chunk in item.chunks)
            if any(map(is_not, chunks, item.chunks)):
                found[name] = replace(item, chunks=chunks)
    return found


def _spans(storage: Storage, file: str, at: int) -> Mapping[str, tuple[int, int, Any]]:
    """Where tensors begin and end in a file, a part of which has that format, and where they belong in whole ones."""
    try:
        with storage.open(file) as opened:
            header = BareHeader.read(opened, at)
            spans = {name: facts["data_offsets"] for name, facts in header.tensors.items()}
            if not all(type(end) is int and 0 <= end <= MAX_INT for span in spans.values() for end in span):
                return {}
            return {
                name: (header.start + begin, header.start + end, header.slices[name]["saved_offsets"])
                for name, (begin, end) in spans.items()
            }
    except (FileNotFoundError, ContainerError, MetadataError, KeyError, TypeError, ValueError, AttributeError):
        return {}


@dataclass(frozen=True)
class BareHeader:
    """What a safetensors file's header says: facts of `tensors`, and of `slices`, which DCP notes of parts of tensors,
    both unchecked; the rest of the `metadata`; and `start`, where the tensors' bytes begin in the file.
    """

    LENGTH: ClassVar = 8  # bytes of its length, which stands before it
    MOST: ClassVar = 100_000_000  # bytes, as in the safetensors library
    METADATA: ClassVar = "__metadata__"

    tensors: dict[str, Any]
    slices: dict[str, Any]
    metadata: dict[str, str]
    start: int

    @classmethod
    def read(cls, file: StoredFile, at: int = 0) -> Self:
        """Raises ContainerError, also where the file hardly holds anything else: parsed, a header takes much memory."""
        length = int.from_bytes(file.read(at, cls.LENGTH), "little")
        if length > cls.MOST:
            text = f"the header has {length} bytes, as the file says; the format allows {cls.MOST}"
            raise ContainerError(f"{text}: the file is damaged, or not a safetensors file")
        header = file.slice(at + cls.LENGTH, length)
        if length > FREE_WHOLE and MAX_EXPANSION * length > file.held:
            text = f"the header has {size_text(length)}, of a file of which {size_text(file.held)} are stored"
            raise ContainerError(f"{text}: that is more than its tensors explain; it was not read")
        content = _parsed(header.read_at(0, length))
        metadata = {} if (found := content.pop(cls.METADATA, None)) is None else found
        if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
            raise ContainerError(f"the header's {cls.METADATA!r} is not an object of strings")
        slices = _parsed(metadata.pop(_SLICES, "{}").encode("utf-8", "surrogatepass"))
        return cls(content, slices, metadata, at + cls.LENGTH + length)


def _parsed(data: bytes) -> dict[str, Any]:
    if not data.startswith(b"{"):
        raise ContainerError("the header does not begin with '{', as every safetensors file's does")
    if data.count(b"{") + data.count(b"[") > 16 + len(data) // _BYTES_EACH:
        raise ContainerError("the header has more lists and objects than tensors need; it was not read")
    try:
        content: dict[str, Any] = json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
        return content
    except RecursionError:
        raise ContainerError("the header is nested deeper than any safetensors file's") from None
    except ValueError as error:
        raise ContainerError(f"the header is not JSON: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ContainerError(f"the header has {shorten(twice)!r} twice")
    return made
