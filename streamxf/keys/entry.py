"""What a recipient finds in an `Envelope` (its wrapped data key) or in `Vouchers` (its voucher), and how keys are asked
for either.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from streamxf.descriptor import shorten
from streamxf.errors import DescriptorError, KeyServiceError, ParameterError, StreamxfError
from streamxf.keys.b64url import decode_b64url, encode_b64url
from streamxf.keys.provider import KeyProvider

MAX_ENTRY = 6144
MAX_TEXT = 32768

_FORM = re.compile(r"([a-z0-9-]{1,32}):([0-9a-f]{16}):(.*)", re.ASCII)


@dataclass(frozen=True)
class Entry:
    """What the key of this kind and id made: 1 to 6144 bytes of `data`."""

    kind: str
    key_id: str
    data: bytes

    def __str__(self) -> str:
        return f"{self.kind}:{self.key_id}:{encode_b64url(self.data)}"

    @property
    def key(self) -> tuple[str, str]:
        """What finds the key: its kind and id."""
        return self.kind, self.key_id

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises DescriptorError if `text` is not an entry."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise DescriptorError(f"{shorten(text)!r} is not of the form kind:key_id:data")
        entry = cls(match[1], match[2], decode_b64url(match[3]))
        if not 1 <= len(entry.data) <= MAX_ENTRY:
            raise DescriptorError(f"the entry of key {entry.key_id} has {len(entry.data)} bytes, not 1 to {MAX_ENTRY}")
        return entry

    @classmethod
    def of(cls, provider: KeyProvider, operation: str, answer: object) -> Self:
        """The entry with what a provider returned; raises ParameterError if that breaks its protocol."""
        if not isinstance(answer, bytes):
            raise breach(provider, f"{operation} returned {type(answer).__name__}, not bytes")
        try:
            return cls.parse(str(cls(provider.kind, provider.id, answer)))
        except DescriptorError as error:
            raise breach(provider, error.message) from None


def fault(text: str, entries: Iterable[Entry]) -> str | None:
    """What the format does not allow about `text`, which has these entries; None if it is fine."""
    if len(text) > MAX_TEXT:
        return f"they take {len(text)} characters; at most {MAX_TEXT} are allowed"
    keys = Counter(entry.key for entry in entries)
    return next((f"the key {key_id} is named twice" for (_, key_id), count in keys.items() if count > 1), None)


def ask(key: KeyProvider, operation: str, *arguments: bytes) -> Any:
    """What a provider returns; raises KeyServiceError if it fails in a way that its protocol does not have."""
    failure: StreamxfError
    try:
        return getattr(key, operation)(*arguments)
    except StreamxfError as error:
        failure = error.with_traceback(None)
    except Exception as error:  # whatever a third party's provider, or a package below it, raises
        name = f"{type(key).__name__} {key.id}"
        failure = KeyServiceError(f"{name}: {operation} failed with {type(error).__name__}")
    # raised here, without frames: they, and the text of the original error, may hold the data key
    arguments = ()
    raise failure


def breach(key: KeyProvider, reason: str) -> ParameterError:
    """The error for a provider that breaks its protocol."""
    return ParameterError(f"{type(key).__name__} breaks the KeyProvider protocol: {reason}")
