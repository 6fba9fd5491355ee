"""`Answers`: what keys said of wrapped data keys, and which key services did not answer."""

from __future__ import annotations

import hashlib
import warnings
from time import monotonic

from streamxf.errors import KeyServiceError
from streamxf.keys.provider import KeyProvider

REST_SECONDS = 300.0
MAX_REMEMBERED = 2**13

NOT_OPENED = b""
"""The answer of a key that does not open a wrapped data key."""


class Answers:
    """What the keys of one ring were asked, and what they said.

    A checkpoint has a data key for each process that wrote it, and may name each in many ways. A service is asked once
    for each wrapped data key, whatever stands around it. One that did not answer, and which another key can stand in
    for, is left alone for a while: to wait for it again for each of a thousand data keys would take hours.
    """

    def __init__(self) -> None:
        self._secrets: dict[bytes, bytes] = {}
        self._silent: dict[tuple[str, str], tuple[float, str]] = {}
        self._warned: set[tuple[str, str]] = set()

    def recall(self, key: KeyProvider, wrapped: bytes, dek_id: bytes) -> bytes | None:
        """What `key` said when it was asked to unwrap this: a secret, or `NOT_OPENED`; None if it was not asked."""
        return self._secrets.get(_question(key, wrapped, dek_id))

    def remember(self, key: KeyProvider, wrapped: bytes, dek_id: bytes, secret: bytes) -> None:
        """Keep what `key` said, in place of what was asked longest ago if that is too much."""
        if len(self._secrets) >= MAX_REMEMBERED:
            self._secrets.pop(next(iter(self._secrets)), None)
        self._secrets[_question(key, wrapped, dek_id)] = secret

    # -- services that do not answer ---------------------------------------------------------------

    def note(self, key: KeyProvider, error: KeyServiceError) -> None:
        """Remember that `key` could not be asked just now."""
        self._silent[key.kind, key.id] = (monotonic() + REST_SECONDS, error.message)

    def clear(self, key: KeyProvider) -> None:
        """It has answered."""
        self._silent.pop((key.kind, key.id), None)

    def error(self, key: KeyProvider) -> KeyServiceError | None:
        """What it said, if that was just now."""
        until, message = self._silent.get((key.kind, key.id), (0.0, ""))
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


def _question(key: KeyProvider, wrapped: bytes, dek_id: bytes) -> bytes:
    return hashlib.sha256(f"{key.kind} {key.id} ".encode() + dek_id + wrapped).digest()
