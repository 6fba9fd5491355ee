"""How the suite says that a property does not hold."""

from __future__ import annotations

from collections.abc import Callable


class ConformanceError(AssertionError):
    """A codec lacks a property that every codec must have; the message names property and rule, and what was seen."""


def require(condition: bool, message: str | Callable[[], str]) -> None:
    """Raise `ConformanceError` unless `condition` holds; a bare ``assert`` would vanish under ``python -O``. A message
    that is costly to put together is given as a callable.
    """
    if not condition:
        raise ConformanceError(message if isinstance(message, str) else message())


def difference(expected: bytes | memoryview, found: bytes | memoryview) -> str:
    """Where two runs of bytes part, in words short enough for a message of any data."""
    if len(expected) != len(found):
        return f"{len(found)} bytes where {len(expected)} belong"
    pairs = zip(expected, found, strict=True)
    place = next((index for index, (left, right) in enumerate(pairs) if left != right), None)
    if place is None:
        return "equal bytes"
    return f"byte {place} of {len(expected)} is {found[place]:#04x} where {expected[place]:#04x} belongs"
