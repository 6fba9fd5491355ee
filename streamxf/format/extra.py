"""What planners put into DCP's metadata, as JSON: an index has no tuples, bytes, fractions, negative numbers or keys
that are not strings, so each of these is an object with one member that names its kind: {"tuple": [...]},
{"bytes": "00ff"}, {"number": "-1.5"}, {"dict": [[key, value], ...]}.
"""

from __future__ import annotations

import math
from typing import Any

from streamxf.budget import Steps
from streamxf.errors import MetadataError
from streamxf.format import limits
from streamxf.format.items import check_text

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


def is_decimal(text: str) -> bool:
    """Whether it is an integer as Python writes it."""
    return len(text) <= 20 and text.isascii() and text.removeprefix("-").isdecimal() and str(int(text)) == text


def _number(text: str) -> int | float:
    made = float(text) if len(text) > 20 or not text.removeprefix("-").isdigit() else int(text)
    if repr(made) != text or not math.isfinite(made):
        raise ValueError(text)
    return made
