"""What planners put into DCP's metadata, as JSON: an index has no tuples, bytes, fractions, negative numbers or keys
that are not strings, so each of these is an object with one member that names its kind: {"tuple": [...]},
{"bytes": "00ff"}, {"number": "-1.5"}, {"dict": [[key, value], ...]}. One member, `NESTING`, has what names and paths
of items do not say: docs/format.md, "Nesting". It is for nesting items alone; other forms of it are passed over.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Self

from streamxf.budget import Steps
from streamxf.errors import MetadataError
from streamxf.format import limits
from streamxf.format.items import Path, check_text, is_path

_MAX_DEPTH = 32

NESTING = "_nesting"
"""The member that says what names and paths of items do not; planners give none whose name begins with ``_``."""


def to_json(value: Any, depth: int = _MAX_DEPTH) -> Any:
    """Plain data as JSON has it. Raises MetadataError if it is not plain data, or nested too deep."""
    if depth < 0:
        raise MetadataError("it is nested too deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return check_text(value)
    if isinstance(value, int) and abs(value) < 2**63:
        return int(value) if 0 <= value <= limits.MAX_NUMBER else {"number": repr(int(value))}
    if isinstance(value, float) and math.isfinite(value):
        return {"number": repr(float(value))}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, tuple):
        return {"tuple": [to_json(each, depth - 1) for each in value]}
    if isinstance(value, list):
        return [to_json(each, depth - 1) for each in value]
    if isinstance(value, dict):
        return {"dict": [[to_json(key, depth - 1), to_json(each, depth - 1)] for key, each in value.items()]}
    raise MetadataError(f"a {type(value).__name__} is not plain data")


def from_json(value: Any) -> Any:
    try:
        return _plain(value, Steps(0))
    except (TypeError, ValueError, RecursionError):
        raise MetadataError("the metadata's extra data is malformed") from None


def _plain(value: Any, steps: Steps) -> Any:
    if isinstance(value, list):
        return [_plain(each, steps) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "number":
        return _number(content)
    if kind == "tuple":
        return tuple(_plain(each, steps) for each in content)
    if kind == "dict":
        made: dict[Any, Any] = {}
        for key, each in content:
            key = _plain(key, steps)
            steps.charge_key(made, key)
            made[key] = _plain(each, steps)
        return made
    raise ValueError(kind)


def _number(text: str) -> int | float:
    made = float(text) if len(text) > 20 or not text.removeprefix("-").isdigit() else int(text)
    if repr(made) != text or not math.isfinite(made):
        raise ValueError(text)
    return made


_MOST_NESTING = 2**20  # bytes; of a state with more exceptions than that nothing is recorded

UNRECORDED: Any = {NESTING: {"unknown": [[]]}}
"""The member of `extra` where nobody recorded anything, as stock DCP does not."""


def _visit(path: Path, value: Any, is_flattened: Callable[[list[Any]], bool]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        keys = value.keys()  # other questions a TensorDict answers in its own way
        if path and not [*keys]:
            yield "empty", [*path]
        yield from _keys(path, keys)
        pairs: Iterable[tuple[Any, Any]] = value.items()
    else:
        pairs = enumerate(value)
    for key, inner in pairs:
        if isinstance(inner, Mapping) or (isinstance(inner, list) and is_flattened(inner)):
            yield from _visit((*path, key if isinstance(value, list) else str(key)), inner, is_flattened)


def _keys(path: Path, keys: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    strange = [key for key in keys if not isinstance(key, str) or key != str(key)]
    other = [key for key in strange if type(key) is not int or not Nesting.is_decimal(str(key))]
    if len(other) < len(strange) and not any(isinstance(key, str) and Nesting.is_decimal(key) for key in keys):
        yield "integers", [*path]
        strange = other
    for key in strange:
        number = (isinstance(key, int) and abs(key) < 2**63) or (isinstance(key, float) and math.isfinite(key))
        yield ("keys", [[*path, str(key)], key]) if number or key is None else ("unknown", [*path, str(key)])


class Nesting:
    """What the `extra` of an index says of nesting, and of the order of the save; of that of another form, nothing.

    - `empty`, `integers`, `unknown`: paths of empty dicts, of dicts all of whose keys that `is_decimal` are integers,
      and of keys of which nothing is known but that they were no strings: ``()`` if that goes for all.
    - `keys`: paths of other single keys, with the keys.
    """

    def __init__(self, extra: Mapping[str, Any] = UNRECORDED) -> None:
        found = extra.get(NESTING)
        self.extra, self._record = extra, found if isinstance(found, dict) else {}
        self.empty, self.integers, self.unknown = map(self._paths, ("empty", "integers", "unknown"))
        self.keys = [(path, key) for path, key in map(_key, self._entries("keys")) if path]

    @staticmethod
    def recorded(state: Any, is_flattened: Callable[[list[Any]], bool]) -> dict[str, list[Any]]:
        """The record of what DCP flattens on one rank; empty where names and paths say all. `is_flattened` says whether
        DCP makes items of a list's elements, and not an object of the whole.
        """
        found: dict[str, list[Any]] = {}
        for kind, entry in _visit((), state, is_flattened) if isinstance(state, Mapping) else ():
            with suppress(MetadataError):  # of a key that UTF-8 does not have
                found.setdefault(kind, []).append(to_json(entry))
        return found if len(json.dumps(found)) <= _MOST_NESTING else dict(UNRECORDED[NESTING])

    @classmethod
    def merged(cls, records: Iterable[Mapping[str, list[Any]]]) -> Self:
        """That of all ranks, each of which has `recorded` its own."""
        found: dict[str, dict[str, Any]] = {}
        for record in records:
            for kind, entries in record.items():
                found.setdefault(kind, {}).update((json.dumps(entry), entry) for entry in entries)
        return cls({NESTING: {kind: [*entries.values()] for kind, entries in found.items()}} if found else {})

    @staticmethod
    def is_decimal(text: str) -> bool:
        """Whether it is an integer as Python writes it."""
        return len(text) <= 20 and text.isascii() and text.removeprefix("-").isdecimal() and str(int(text)) == text

    def with_order(self, names: Iterable[str]) -> dict[str, Any]:
        """`extra` and the order in which items are saved, unless that is the order of names, or takes too much."""
        given = [*names]
        width = len(f"{len(given):x}")
        if width * len(given) > _MOST_NESTING or (ranked := sorted(given)) == given:
            return dict(self.extra)
        places = {name: place for place, name in enumerate(given)}
        order = [_digest(ranked), "".join(f"{places[name]:0{width}x}" for name in ranked)]
        return {**self.extra, NESTING: {**self._record, "order": order}}

    def in_saved_order(self, names: Iterable[str]) -> list[str]:
        """The names of all items of an index in the order of the save, if the record says that; else as they are."""
        given = [*names]
        match self._record.get("order"):
            case [str(digest), str(text)] if given and text and digest == _digest(ranked := sorted(given)):
                width = max(1, len(text) // len(ranked))
                with suppress(ValueError):
                    places = [int(text[at : at + width], 16) for at in range(0, len(text), width)]
                    if sorted(places) == [*range(len(ranked))]:
                        return [name for _, name in sorted(zip(places, ranked, strict=True))]
        return given

    def moved(self, pairs: Iterable[tuple[Path, Path]]) -> Nesting:
        """The same once items have moved from path to path, with what is around them; the rest is dropped."""
        if not self._record:
            return self
        where: dict[Path, Path] = {}
        for old, new in sorted(pairs, key=lambda pair: pair[0] == pair[1]):  # where some stay, what they are in stays
            for depth in range(len(old) + 1):
                end = len(new) - len(old) + depth
                if end >= 0 and old[depth:] == new[end:]:
                    where[old[:depth]] = new[:end]

        def at(path: Path) -> list[Any] | None:
            known = (depth for depth in range(len(path), -1, -1) if path[:depth] in where)
            return next(([*where[path[:depth]], *path[depth:]] for depth in known), None)

        record = {
            "empty": [*filter(None, map(at, self.empty))],
            "keys": [[new, to_json(key)] for new, key in ((at(path), key) for path, key in self.keys) if new],
            "integers": [new for new in map(at, self.integers) if new is not None],
            "unknown": [new for new in (at(path) if path else [] for path in self.unknown) if new is not None],
        }
        return Nesting({**self.extra, NESTING: record})

    def _entries(self, kind: str) -> list[Any]:
        found = self._record.get(kind)
        return found if isinstance(found, list) else []

    def _paths(self, kind: str) -> list[Path]:
        made = [tuple(path) for path in self._entries(kind) if isinstance(path, list)]
        return [path for path in made if not path or is_path(path)]


def _key(entry: Any) -> tuple[Path, float | None]:
    """A key and where it is; no path for what is none."""
    with suppress(MetadataError, TypeError, ValueError):
        path, key = entry
        if isinstance(path, list) and is_path(tuple(path)) and isinstance(made := from_json(key), int | float | None):
            return tuple(path), made
    return (), None


def _digest(names: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(names).encode()).hexdigest()
