"""Data keys: drawn at random for each save, wrapped under the user's keys, and the source of every stream's key."""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from streamxf.descriptor import Parameters, shorten
from streamxf.errors import DescriptorError, KeyMissingError, WrongKeyError
from streamxf.keys.derive import derive
from streamxf.keys.key import Key

DEK_BYTES = 32
MAX_RECIPIENTS = 16
AES_KEY_WRAP = "aeskw"


@dataclass(frozen=True)
class DataKey:
    """A data key (DEK), 32 random bytes, and what is derived from it."""

    secret: bytes = field(repr=False)

    @classmethod
    def draw(cls) -> DataKey:
        """Draw a new data key."""
        return cls(os.urandom(DEK_BYTES))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a data key does not go into a pickle")

    def __copy__(self) -> DataKey:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> DataKey:
        return self

    @property
    def id(self) -> bytes:
        """The public id that a wrapped key is checked against, 32 bytes."""
        return derive(self.secret, b"streamxf/1 dek id", 32)

    def metadata_key(self) -> bytes:
        """The HMAC-SHA256 key of the metadata's tag, 32 bytes."""
        return derive(self.secret, b"streamxf/1 metadata", 32)

    def stream_keys(self, salt: bytes, header_digest: bytes) -> tuple[bytes, bytes]:
        """The AES-256-GCM key and the seal of one stream, 32 bytes each."""
        material = derive(self.secret, b"streamxf/1 stream" + header_digest, 64, salt)
        return material[:32], material[32:]


def wrap(data_key: DataKey, keys: Iterable[Key]) -> Parameters:
    """Wrap a data key for each of `keys`: the fragment of an Encrypt descriptor."""
    wrapped = ((key.id, aes_key_wrap(key.wrapping_key(), data_key.secret)) for key in keys)
    recipients = tuple(("w", f"{AES_KEY_WRAP}:{key_id}:{encode_b64url(data)}") for key_id, data in wrapped)
    return (("dek", encode_b64url(data_key.id)), *recipients)


def unwrap(fragment: Parameters, keys: Iterable[Key]) -> DataKey:
    """Open the data key in the fragment of an Encrypt descriptor with whichever of `keys` it is wrapped for.

    Raises
    ------
    DescriptorError
        If the fragment is not well formed.
    KeyMissingError
        If none of `keys` has an id that the fragment names.
    WrongKeyError
        If the named key does not open it: the wrapped key was altered.
    """
    dek_id = decode_b64url(_only(fragment, "dek"))
    recipients = [_recipient(value) for key, value in fragment if key == "w"]
    if unknown := {key for key, _ in fragment} - {"dek", "w"}:
        raise DescriptorError(f"streamxf.encrypt: the fragment has unknown keys {sorted(unknown)}")
    if not 1 <= len(recipients) <= MAX_RECIPIENTS:
        raise DescriptorError(f"streamxf.encrypt: {len(recipients)} wrapped keys; there must be 1 to {MAX_RECIPIENTS}")
    by_id = {key.id: key for key in keys}
    mine = [(by_id[key_id], data) for kind, key_id, data in recipients if kind == AES_KEY_WRAP and key_id in by_id]
    for key, data in mine:
        data_key = _open(key, data, dek_id)
        if data_key is not None:
            return data_key
    if mine:
        ids = ", ".join(key.id for key, _ in mine)
        raise WrongKeyError(f"key {ids} does not open the wrapped data key: the descriptor was altered")
    wanted = ", ".join(shorten(key_id) for _, key_id, _ in recipients)
    have = ", ".join(by_id) or "none"
    raise KeyMissingError(f"encrypted for key id {wanted}; keys given: {have}. Pass the right key as keys=")


def _open(key: Key, data: bytes, dek_id: bytes) -> DataKey | None:
    try:
        data_key = DataKey(aes_key_unwrap(key.wrapping_key(), data))
    except (InvalidUnwrap, ValueError):
        return None
    right = len(data_key.secret) == DEK_BYTES and hmac.compare_digest(data_key.id, dek_id)
    return data_key if right else None


def _recipient(value: str) -> tuple[str, str, bytes]:
    parts = value.split(":")
    if len(parts) != 3:
        raise DescriptorError(f"streamxf.encrypt: wrapped key {shorten(value)!r} is not kind:key_id:data")
    return parts[0], parts[1], decode_b64url(parts[2])


def _only(fragment: Parameters, name: str) -> str:
    values = [value for key, value in fragment if key == name]
    if len(values) != 1:
        raise DescriptorError(f"streamxf.encrypt: the fragment must hold {name!r} once")
    return values[0]


def encode_b64url(data: bytes) -> str:
    """Base64url without padding (RFC 4648, section 5)."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def decode_b64url(text: str) -> bytes:
    """Undo `encode_b64url`; only its own spelling is taken.

    Raises
    ------
    DescriptorError
        If `text` is anything else.
    """
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if encode_b64url(data) != text:
        raise DescriptorError(f"{shorten(text)!r} is not base64url")
    return data
