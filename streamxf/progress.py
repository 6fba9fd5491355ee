"""`Progress`: who wants to know how far a long piece of work has come."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """What the functions that take ``progress=`` tell how far they are, in bytes. Any thread may call it."""

    def expect(self, count: int) -> None:
        """Say that there are `count` bytes to do, besides those that were expected before."""

    def advance(self, count: int) -> None:
        """Say that `count` bytes are done."""
