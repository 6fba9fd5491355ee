"""A data key, drawn at random for each save, and the same wrapped for each of its recipients; docs/format/keys.md,
"Wrapped keys".
"""

from __future__ import annotations

import hmac
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn, Self

from streamxf.descriptor import MAX_KEY_LINE
from streamxf.errors import (
    DescriptorError,
    KeyMissingError,
    KeyServiceError,
    ParameterError,
    StreamxfError,
    WrongKeyError,
    shorten,
)
from streamxf.keys.derive import decode_b64url, derive, encode_b64url
from streamxf.keys.key import Uncopied
from streamxf.keys.provider import KeyProvider

DEK_BYTES = 32
MAX_ENTRY = 6144
MAX_RECIPIENTS = 16

WRAPPED_KEY = re.compile(rb"dek=[0-9a-f]{64}(?:&w=[a-z0-9-]{1,32}:[0-9a-f]{16}:[A-Za-z0-9_-]{1,8192}){1,16}")
"""What looks like an `Envelope`, among other bytes."""

_ENTRY = re.compile(r"([a-z0-9-]{1,32}):([0-9a-f]{16}):(.*)", re.ASCII)
_ENVELOPE = re.compile(r"dek=([0-9a-f]{64})((?:&w=[A-Za-z0-9:_-]+)+)", re.ASCII)


class DataKey(Uncopied):
    """A data key (DEK), 32 random bytes, and the values derived from it.

    Not a dataclass: `dataclasses.asdict` would reveal the secret.
    """

    __slots__ = ("secret",)

    def __init__(self, secret: bytes) -> None:
        self.secret = secret

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DataKey) and hmac.compare_digest(self.secret, other.secret)

    def __repr__(self) -> str:
        return "DataKey()"

    @classmethod
    def draw(cls) -> DataKey:
        return cls(os.urandom(DEK_BYTES))

    def __reduce__(self) -> NoReturn:
        raise TypeError("data keys cannot be pickled")

    @property
    def id(self) -> bytes:
        """The public id that a wrapped key is checked against, 32 bytes."""
        return derive(self.secret, b"streamxf/1 dek id", 32)

    def mac_key(self) -> bytes:
        """The HMAC-SHA256 key of the vouchers' MAC, 32 bytes."""
        return derive(self.secret, b"streamxf/1 mac", 32)

    def wrap(self, other: DataKey) -> bytes:
        """The data key of another process that wrote files of the same save, 40 bytes."""
        from cryptography.hazmat.primitives.keywrap import aes_key_wrap

        return aes_key_wrap(derive(self.secret, b"streamxf/1 keys", 32), other.secret)

    def unwrap(self, wrapped: bytes) -> DataKey:
        """Undo `wrap`; raises WrongKeyError for anything else."""
        from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap

        try:
            return DataKey(aes_key_unwrap(derive(self.secret, b"streamxf/1 keys", 32), wrapped))
        except (InvalidUnwrap, ValueError):
            text = "the data key of another process is not wrapped under that of the one that published"
            raise WrongKeyError(text) from None

    def stream_keys(self, salt: bytes, header_digest: bytes) -> tuple[bytes, bytes]:
        """The AES-256-GCM key and the seal of one stream, 32 bytes each."""
        material = derive(self.secret, b"streamxf/1 stream" + header_digest, 64, salt)
        return material[:32], material[32:]


@dataclass(frozen=True)
class Entry:
    """A wrapped data key or a voucher, by the key of this kind and id: 1 to 6144 bytes of `data`."""

    kind: str
    key_id: str
    data: bytes

    def __str__(self) -> str:
        return f"{self.kind}:{self.key_id}:{encode_b64url(self.data)}"

    @property
    def key(self) -> tuple[str, str]:
        """Kind and id, which identify the key."""
        return self.kind, self.key_id

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises DescriptorError if `text` is not an entry."""
        match = _ENTRY.fullmatch(text)
        if match is None:
            raise DescriptorError(f"{shorten(text)!r} is not of the form kind:key_id:data")
        entry = cls(match[1], match[2], decode_b64url(match[3]))
        if not 1 <= len(entry.data) <= MAX_ENTRY:
            raise DescriptorError(f"the entry of key {entry.key_id} has {len(entry.data)} bytes, not 1 to {MAX_ENTRY}")
        return entry

    @classmethod
    def of(cls, provider: KeyProvider, operation: str, answer: object) -> Self:
        """The entry with a provider's `answer`; raises ParameterError if that breaks its protocol."""
        if not isinstance(answer, bytes):
            raise breach(provider, f"{operation} returned {type(answer).__name__}, not bytes")
        try:
            return cls.parse(str(cls(provider.kind, provider.id, answer)))
        except DescriptorError as error:
            raise breach(provider, error.message) from None


@dataclass(frozen=True)
class Envelope:
    """A wrapped data key: its id, 32 bytes, and 1 to 16 entries with the data key, wrapped for one key each."""

    dek_id: bytes
    recipients: tuple[Entry, ...]

    @classmethod
    def seal(cls, data_key: DataKey, recipients: Iterable[KeyProvider]) -> Self:
        """Wrap a data key for all who may read; raises ParameterError as `checked`, and as `Entry.of` and `ask`."""
        dek_id = data_key.id
        entries = []
        for recipient in recipients:
            entry = Entry.of(recipient, "wrap", ask(recipient, "wrap", data_key.secret, dek_id))
            if data_key.secret in entry.data:
                raise breach(recipient, "wrap returned the data key unprotected")
            entries.append(entry)
        return cls(dek_id, tuple(entries)).checked()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a wrapped data key; raises DescriptorError if it is malformed."""
        match = _ENVELOPE.fullmatch(text)
        if match is None:
            raise DescriptorError(f"wrapped data key {shorten(text)!r} is not of the form dek=id&w=kind:key_id:data")
        envelope = cls(bytes.fromhex(match[1]), tuple(map(Entry.parse, match[2].split("&w=")[1:])))
        try:
            return envelope.checked()
        except ParameterError as error:
            raise DescriptorError(error.message) from None

    def __str__(self) -> str:
        return "&".join([f"dek={self.dek_id.hex()}", *(f"w={entry}" for entry in self.recipients)])

    def checked(self) -> Self:
        """Itself; raises ParameterError if there are no recipients, too many, or one twice, or it is too long."""
        if not 1 <= len(self.recipients) <= MAX_RECIPIENTS:
            raise ParameterError(f"there are {len(self.recipients)} recipients; 1 to {MAX_RECIPIENTS} are allowed")
        if reason := fault(str(self), self.recipients):
            raise ParameterError(f"wrapped data keys: {reason}")
        return self

    def missing(self, keys: Iterable[KeyProvider]) -> KeyMissingError:
        """The error for a reader whose `keys` have no entry here."""
        names = [entry.key for entry in self.recipients]
        wanted = ", ".join(f"{key_id} ({kind})" for kind, key_id in names)
        passed = [f"{key.id} ({key.kind}{'' if key.unwraps else ', which can only wrap'})" for key in keys]
        halves = ", ".join(key.id for key in keys if (key.kind, key.id) in names)
        cure = f"Reading needs the PrivateKey of {halves}" if halves else "Pass the right key"
        return KeyMissingError(f"encrypted for key id {wanted}; keys given: {', '.join(passed) or 'none'}. {cure}")


def fault(text: str, entries: Iterable[Entry]) -> str | None:
    """The rule of the format that `text`, which has these entries, breaks; None if it breaks none."""
    if len(text) > MAX_KEY_LINE:
        return f"they take {len(text)} characters; at most {MAX_KEY_LINE} are allowed"
    keys = Counter(entry.key for entry in entries)
    return next((f"the key {key_id} is named twice" for (_, key_id), count in keys.items() if count > 1), None)


def ask(key: KeyProvider, operation: str, *arguments: bytes) -> Any:
    """A provider's answer; raises KeyServiceError for errors that its protocol does not define."""
    failure: StreamxfError
    try:
        return getattr(key, operation)(*arguments)
    except StreamxfError as error:
        failure = error.with_traceback(None)
    except Exception as error:  # whatever a third party's provider, or a package below it, raises
        failure = KeyServiceError(f"{type(key).__name__} {key.id}: {operation} failed with {type(error).__name__}")
    # raised here, without frames: they, and the text of the original error, may hold the data key
    arguments = ()
    raise failure


def breach(key: KeyProvider, reason: str) -> ParameterError:
    """The error for a provider that breaks its protocol."""
    return ParameterError(f"{type(key).__name__} breaks the KeyProvider protocol: {reason}")
