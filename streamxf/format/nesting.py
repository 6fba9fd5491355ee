"""The record in an index of what names and paths of items do not say, as readers take it: docs/format.md, "Nesting".
It is for nesting items alone, so what of it has another form is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from streamxf.format.items import Path, is_path


def entries_in(record: Any) -> tuple[list[Path], list[tuple[Path, Any]], list[Path]]:
    """What a record says: of empty dicts, of single keys, and of dicts all of whose decimal keys are integers."""

    def array(kind: str) -> list[Any]:
        found = record.get(kind) if isinstance(record, dict) else None
        return found if isinstance(found, list) else []

    def paths(found: list[Any]) -> list[Path]:
        made = [tuple(path) for path in found if isinstance(path, list)]
        return [path for path in made if not path or is_path(path)]

    pairs = [entry for entry in array("keys") if isinstance(entry, list) and len(entry) == 2]
    return (
        paths(array("empty")),
        [(path, key) for each, key in pairs for path in paths([each]) if path],
        paths(array("integers")),
    )


def moved(record: Any, pairs: Iterable[tuple[Path, Path]]) -> dict[str, Any]:
    """A record once items have moved from path to path, with what is around them; the rest is dropped."""
    where: dict[Path, Path] = {}
    for old, new in sorted(pairs, key=lambda pair: pair[0] == pair[1]):  # where some stay, what they are in stays
        for depth in range(len(old) + 1):
            end = len(new) - len(old) + depth
            if end >= 0 and old[depth:] == new[end:]:
                where[old[:depth]] = new[:end]

    def at(path: Path) -> list[Any] | None:
        known = (depth for depth in range(len(path), -1, -1) if path[:depth] in where)
        return next(([*where[path[:depth]], *path[depth:]] for depth in known), None)

    empty, keys, integers = entries_in(record)
    return {
        "empty": [*filter(None, map(at, empty))],
        "keys": [[new, key] for new, key in ((at(path), key) for path, key in keys) if new],
        "integers": [new for new in map(at, integers) if new is not None],
    }
