"""Tensors that stock DCP stored in safetensors' format within its own data files.

For each of them its metadata says where that part of the file begins, and how many bytes the elements have: as many as
no frame of ``torch.save`` has, by which they are recognized. Torch 2.13 itself reads none of these checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streamxf.budget import check_head
from streamxf.errors import ContainerError, MetadataError, shorten
from streamxf.format.items import ITEMSIZES, Chunk, Item, TensorItem, elements_size
from streamxf.format.limits import MAX_INT
from streamxf.storage.storage import Storage

LENGTH_BYTES = 8
MAX_HEADER = 100_000_000  # bytes, as in the safetensors library

METADATA = "__metadata__"
SLICES = "DCP_SHARDING_INFO"
"""What DCP adds there: that each tensor is a slice of the one by its name, and from where on."""
_BYTES_EACH = 12  # a tensor's entry has three lists and objects in more than forty; parsed, each takes sixty and more

_Headers = dict[tuple[str, int], Mapping[str, tuple[int, int, Any]]]


def placed(storage: Storage, items: Mapping[str, Item]) -> Mapping[str, Item]:
    """The items of stock metadata, with their elements' places. What is damaged stays, and is found when it is read."""
    headers: _Headers = {}
    found = dict(items)
    for name, item in items.items():
        if isinstance(item, TensorItem) and any(_is_bare(item, chunk) for chunk in item.chunks):
            chunks = tuple(_elements_of(storage, item, chunk, headers) for chunk in item.chunks)
            found[name] = replace(item, chunks=chunks)
    return found


def _is_bare(item: TensorItem, chunk: Chunk) -> bool:
    place = chunk.place
    has_size = item.dtype in ITEMSIZES and place.size == elements_size(item.dtype, chunk.shape)
    return has_size and chunk.framed and not place.descriptors


def _elements_of(storage: Storage, item: TensorItem, chunk: Chunk, headers: _Headers) -> Chunk:
    place = chunk.place
    if not _is_bare(item, chunk):
        return chunk
    if place[:2] not in headers:
        headers[place[:2]] = _spans(storage, place.file, place.at)
    begin, end, offset = headers[place[:2]].get(item.name, (0, -1, None))
    if end - begin != place.size or offset != list(chunk.offset):
        return chunk
    return chunk._replace(place=place._replace(at=begin), framed=False)


def _spans(storage: Storage, file: str, at: int) -> Mapping[str, tuple[int, int, Any]]:
    """Where tensors begin and end in a file, a part of which has that format, and where they belong in whole ones."""
    try:
        with storage.open(file) as opened:
            length = int.from_bytes(opened.read(at, LENGTH_BYTES), "little")
            if length > MAX_HEADER:
                return {}
            check_head(opened.raw, opened.size, length, ContainerError)
            start = at + LENGTH_BYTES
            content = parse_header(opened.read(start, length))
            noted = parse_header(content.pop(METADATA)[SLICES].encode("utf-8"))
            spans = {name: facts["data_offsets"] for name, facts in content.items()}
            if not all(type(end) is int and 0 <= end <= MAX_INT for span in spans.values() for end in span):
                return {}
            first = start + length
            return {
                name: (first + begin, first + end, noted[name]["saved_offsets"]) for name, (begin, end) in spans.items()
            }
    except (FileNotFoundError, ContainerError, MetadataError, KeyError, TypeError, ValueError, AttributeError):
        return {}


def parse_header(data: bytes) -> dict[str, Any]:
    """What a header says, by tensor, and ``__metadata__``; none of it is checked yet. Raises ContainerError."""
    if not data.startswith(b"{"):
        raise ContainerError("the header does not begin with '{', as every safetensors file's does")
    if data.count(b"{") + data.count(b"[") > 16 + len(data) // _BYTES_EACH:
        raise ContainerError("the header has more lists and objects than tensors need; it was not read")
    try:
        content = json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
    except RecursionError:
        raise ContainerError("the header is nested deeper than any safetensors file's") from None
    except ValueError as error:
        raise ContainerError(f"the header is not JSON: {error}") from None
    assert isinstance(content, dict)  # it begins with '{'
    return content


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ContainerError(f"the header has {shorten(twice)!r} twice")
    return made
