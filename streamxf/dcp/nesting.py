"""What DCP's names and paths do not say of a state dict: which keys are no strings, and where dicts are empty. It goes
into the index as a member of `extra` that no planner can give; docs/format.md, "Root".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch

from streamxf.errors import MetadataError
from streamxf.format.extra import NESTING, is_decimal, to_json

_MOST = 2**20  # bytes; of a state with more exceptions than that nothing is recorded
_Entry = tuple[str, Any]


def nesting_of(state: Any) -> dict[str, list[Any]]:
    """The record of what DCP flattens on one rank; empty where names and paths say all."""
    found: dict[str, list[Any]] = {}
    for kind, entry in _visit((), state) if isinstance(state, Mapping) else ():
        with suppress(MetadataError):  # of a key that JSON or UTF-8 does not have
            found.setdefault(kind, []).append(to_json(entry))
    return found if len(json.dumps(found)) <= _MOST else {}


def merged(records: Iterable[Mapping[str, list[Any]]]) -> dict[str, Any]:
    """The member of `extra` for the records of all ranks."""
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        for kind, entries in record.items():
            found.setdefault(kind, {}).update((json.dumps(entry), entry) for entry in entries)
    return {NESTING: {kind: [*entries.values()] for kind, entries in found.items()}} if found else {}


def _visit(path: tuple[str | int, ...], value: Any) -> Iterator[_Entry]:
    if isinstance(value, Mapping):
        if path and not value:
            yield "empty", [*path]
        yield from _keys(path, value)
        pairs: Iterable[tuple[Any, Any]] = value.items()
    else:
        pairs = enumerate(value)
    for key, inner in pairs:
        if isinstance(inner, Mapping) or (isinstance(inner, list) and _is_flattened(inner)):
            yield from _visit((*path, key if isinstance(value, list) else str(key)), inner)


def _keys(path: tuple[str | int, ...], value: Mapping[Any, Any]) -> Iterator[_Entry]:
    strange = [key for key in value if isinstance(key, int | float | None)]
    if any(type(key) is int for key in strange) and not any(isinstance(key, str) and is_decimal(key) for key in value):
        yield "integers", [*path]
        strange = [key for key in strange if type(key) is not int]
    for key in strange:
        yield "keys", [[*path, str(key)], key]


def _is_flattened(value: list[Any]) -> bool:
    """Whether DCP makes items of a list's elements, and not an object of the whole."""
    return any(
        isinstance(each, Mapping | torch.Tensor) or (isinstance(each, list) and _is_flattened(each)) for each in value
    )
