"""What recipes give: the files of vectors by their names, which the JSON describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

Files = dict[str, bytes]
Made = dict[str, "bytes | Files"]

T = TypeVar("T")


def under(prefix: str, made: Mapping[str, T]) -> dict[str, T]:
    """The same, with `prefix` before the names; it is the rule that they break, or what they are about."""
    return {f"{prefix}-{name}": each for name, each in made.items()}
