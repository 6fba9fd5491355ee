"""Items of several ranks' own metadata, put together: shards of one tensor become one item."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from streamxf.checkpoint.metadata import Metadata
from streamxf.collector import collector_paused
from streamxf.format.items import Item, TensorItem
from streamxf.format.tiling import overlap

_Each = tuple[int | None, Item]


@collector_paused()
def merged(files: Sequence[Metadata]) -> dict[str, Item]:
    """All items by name. What several ranks have under one name, and is not shards of one tensor, has a key with the
    rank behind that name, but for that of the lowest rank.
    """
    if len(files) == 1:
        return dict(files[0].items)
    found: dict[str, list[_Each]] = {}
    for file in files:
        for name, item in file.items.items():
            found.setdefault(name, []).append((file.rank, item))
    items: dict[str, Item] = {}
    for name, each in found.items():
        for level, (rank, item) in enumerate(_levels(each)):
            label = name if not level else _free(f"{name} (rank {rank})", found)
            items[label] = item
    return items


def _levels(each: list[_Each]) -> list[_Each]:
    """What ranks have under one name, as few items as that makes."""
    rank, first = each[0]
    if len(each) == 1:
        return each
    if isinstance(first, TensorItem) and all(_may_join(first, item) for _, item in each):
        joined = replace(first, chunks=tuple(chunk for _, item in each for chunk in _chunks(item)))
        if _apart(joined):
            return [(rank, joined)]
    levels: list[_Each] = []
    seen: Counter[tuple[int, ...]] = Counter()  # shards that were there before
    for rank, item in each:
        offsets = [chunk.offset for chunk in _chunks(item)] or [()]
        level = max(seen[offset] for offset in offsets)
        seen.update(offsets)
        while level < len(levels):
            lowest, other = levels[level]
            if isinstance(other, TensorItem) and _may_join(other, item):
                joined = replace(other, chunks=other.chunks + _chunks(item))
                if _apart(joined):
                    levels[level] = lowest, joined
                    break
            level += 1
        else:
            levels.append((rank, item))
    return levels


def _chunks(item: Item) -> tuple[Any, ...]:
    return item.chunks if isinstance(item, TensorItem) else ()


def _may_join(one: TensorItem, other: Item) -> bool:
    return isinstance(other, TensorItem) and (one.dtype, one.shape) == (other.dtype, other.shape)


def _apart(item: TensorItem) -> bool:
    return not overlap(item.shape, [(chunk.offset, chunk.shape) for chunk in item.chunks])


def _free(label: str, taken: Mapping[str, Any]) -> str:
    while label in taken:
        label += "'"
    return label
