"""Key services that did not answer, and which another key can stand in for: they are left alone for a while."""

from __future__ import annotations

import warnings
from time import monotonic

from streamxf.errors import KeyServiceError
from streamxf.keys.provider import KeyProvider

REST_SECONDS = 300.0


class Unanswered:
    """What services said in place of an answer, and until when they are asked only if nothing else opens a data key.

    A checkpoint has a data key for each process that wrote it. To wait for the same service anew for each of a thousand
    would take hours.
    """

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], tuple[float, str]] = {}
        self._warned: set[tuple[str, str]] = set()

    def note(self, key: KeyProvider, error: KeyServiceError) -> None:
        """Remember that `key` could not be asked just now."""
        self._said[key.kind, key.id] = (monotonic() + REST_SECONDS, error.message)

    def clear(self, key: KeyProvider) -> None:
        """It has answered."""
        self._said.pop((key.kind, key.id), None)

    def error(self, key: KeyProvider) -> KeyServiceError | None:
        """What it said, if that was just now."""
        until, message = self._said.get((key.kind, key.id), (0.0, ""))
        return KeyServiceError(message) if monotonic() < until else None

    def warn(self, key: KeyProvider, used: KeyProvider) -> None:
        """Say once that it was passed over, since `used` did its work."""
        error = self.error(key)
        if error is None or (key.kind, key.id) in self._warned:
            return
        self._warned.add((key.kind, key.id))
        warnings.warn(
            f"a key service was passed over, and key {used.id} ({used.kind}) used instead: {error}. For "
            f"{REST_SECONDS / 60:.0f} minutes it is asked only for what no other key opens",
            stacklevel=2,
        )
