"""A nested state dict out of a flat one, as far as it is there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import Any

from streamxf.format.items import Path

MAX_LISTS = 2**20
"""Elements that all lists may have together, and 16 more for each item: what is not there takes memory, too."""


def list_lengths(paths: Collection[Path]) -> int:
    longest: dict[Path, int] = {}
    for path in paths:
        for depth, step in enumerate(path):
            if isinstance(step, int):
                longest[path[:depth]] = max(longest.get(path[:depth], 0), step + 1)
    return sum(longest.values())


def nested(flat: Mapping[str, Any], paths: Mapping[str, Path]) -> dict[str, Any]:
    """Put each value where its path says: a string is a key of a dict, a number an index of a list.

    Missing places of a list are None. A value without a path, or whose path leads through another value, keeps its flat
    name.
    """
    root: dict[str, Any] = {}
    made: dict[int, Any] = {id(root): root}
    for name, value in flat.items():
        if not _put(root, paths.get(name) or (name,), value, made):
            root[name] = value
    return root


def _put(root: dict[str, Any], path: Path, value: Any, made: dict[int, Any]) -> bool:
    node: Any = root
    for step, following in pairwise(path):
        inner = _get(node, step)
        if inner is None:
            inner = {} if isinstance(following, str) else []
            if not _set(node, step, inner):
                return False
            made[id(inner)] = inner
        if id(inner) not in made:  # a value; DCP would write into it
            return False
        node = inner
    return _get(node, path[-1]) is None and _set(node, path[-1], value)


def _get(node: Any, step: str | int) -> Any:
    if isinstance(node, dict):
        return node.get(step)
    return node[step] if isinstance(step, int) and step < len(node) else None


def _set(node: Any, step: str | int, value: Any) -> bool:
    if isinstance(node, dict):
        node[step] = value
        return True
    if not isinstance(step, int):
        return False
    node.extend([None] * (step + 1 - len(node)))
    node[step] = value
    return True
