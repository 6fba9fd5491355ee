"""A nested state dict out of a flat one, as far as it is there."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

Path = tuple[str | int, ...]


def nested(flat: Mapping[str, Any], paths: Mapping[str, Path]) -> dict[str, Any]:
    """Put each value where its path says: a text is a key of a table, a number an index of a list.

    What is missing in a list is None. A value without a path, or whose path leads through another value, keeps its flat
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
    return node[step] if isinstance(step, int) and 0 <= step < len(node) else None


def _set(node: Any, step: str | int, value: Any) -> bool:
    if isinstance(node, dict):
        node[step] = value
        return True
    if not isinstance(step, int) or step < 0:
        return False
    node.extend([None] * (step + 1 - len(node)))
    node[step] = value
    return True
