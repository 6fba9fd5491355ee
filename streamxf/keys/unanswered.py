"""Key services that did not answer while another key stood in for them: for a while they are asked last."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from time import monotonic

from streamxf.errors import KeyServiceError
from streamxf.keys.provider import KeyProvider

REST_SECONDS = 300.0


class Unanswered:
    """What services failed with, and for how long they are asked only where no other key opens a data key.

    A checkpoint has a data key for each process that wrote it. To wait for the same service for each of a thousand
    would take hours.
    """

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], tuple[float, str]] = {}
        self._warned: set[tuple[str, str]] = set()

    def note(self, key: KeyProvider, error: KeyServiceError) -> None:
        """Remember that `key` could not be reached just now."""
        self._said[key.kind, key.id] = (monotonic() + REST_SECONDS, error.message)

    def clear(self, key: KeyProvider) -> None:
        """Forget that: it has answered."""
        self._said.pop((key.kind, key.id), None)

    def error(self, key: KeyProvider) -> KeyServiceError | None:
        """What it failed with, if that was just now."""
        until, message = self._said.get((key.kind, key.id), (0.0, ""))
        return KeyServiceError(message) if monotonic() < until else None

    def first(self, keys: Iterable[KeyProvider]) -> KeyServiceError | None:
        """What the first of `keys` failed with that could not be reached; None if all could."""
        return next((error for key in keys if (error := self.error(key)) is not None), None)

    def warn(self, keys: Iterable[KeyProvider], used: KeyProvider) -> None:
        """Warn once of each key that could not be reached, since `used` stood in for it."""
        for key in keys:
            error = self.error(key)
            if error is None or (key.kind, key.id) in self._warned:
                continue
            self._warned.add((key.kind, key.id))
            warnings.warn(
                f"a key service did not answer, and key {used.id} ({used.kind}) was used instead: {error}. For "
                f"{REST_SECONDS / 60:.0f} minutes it is asked only for what no other key opens",
                stacklevel=2,
            )
