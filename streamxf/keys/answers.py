"""`Answers`: what the keys of a ring answered, so that no service is asked twice, and which services did not."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable
from time import monotonic
from typing import Any

from streamxf.errors import AuthenticationError, KeyServiceError, WrongKeyError
from streamxf.keys.entry import ask
from streamxf.keys.provider import KeyProvider

REST_SECONDS = 300.0
MAX_REMEMBERED = 2**13


class Answers:
    """What keys were asked, and what they answered.

    A checkpoint has a data key for each process that wrote it. To wait for the same service for each of a thousand
    would take hours: one that did not answer is asked last for a while, and nothing is asked twice.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Any, WrongKeyError | AuthenticationError | None]] = {}
        self._silent: dict[tuple[str, str], tuple[float, str]] = {}
        self._warned: set[tuple[str, str]] = set()

    def ask(self, key: KeyProvider, operation: str, data: bytes, bound_to: bytes) -> Any:
        """As `entry.ask`, for ``unwrap`` and ``check_voucher``; that something is wrong is remembered, too."""
        name = f"{operation} {key.kind} {key.id} ".encode()
        question = hashlib.sha256(name + bound_to + data).digest()  # `bound_to` has 32 bytes
        known = self._known.get(question)
        if known is None:
            try:
                known = ask(key, operation, data, bound_to), None
            except (WrongKeyError, AuthenticationError) as error:
                known = None, error
            except KeyServiceError as error:
                self._silent[key.kind, key.id] = (monotonic() + REST_SECONDS, error.message)
                raise
            self._silent.pop((key.kind, key.id), None)
            if len(self._known) >= MAX_REMEMBERED:
                self._known.pop(next(iter(self._known)), None)
            self._known[question] = known
        answer, wrong = known
        if wrong is not None:
            raise type(wrong)(wrong.message)
        return answer

    def error(self, key: KeyProvider) -> KeyServiceError | None:
        """What it failed with, if that was just now."""
        until, message = self._silent.get((key.kind, key.id), (0.0, ""))
        return KeyServiceError(message) if monotonic() < until else None

    def first_error(self, keys: Iterable[KeyProvider]) -> KeyServiceError | None:
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
