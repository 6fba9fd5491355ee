"""How a property is said not to hold."""

from __future__ import annotations

from collections.abc import Callable


class ConformanceError(AssertionError):
    """A codec or a storage lacks a required property; the message has the property and the observation."""


def require(condition: bool, message: str | Callable[[], str]) -> None:
    """Raise `ConformanceError` unless `condition` holds; a bare ``assert`` would vanish under ``python -O``. A message
    that is costly to put together is given as a callable.
    """
    if not condition:
        raise ConformanceError(message if isinstance(message, str) else message())
