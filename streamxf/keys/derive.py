"""HKDF, base64url and ids as the format uses them, and the kinds of key pairs; docs/format/keys.md."""

from __future__ import annotations

import base64
import re
from functools import cache
from typing import Any

from streamxf.errors import DescriptorError, shorten

HYBRID = "hpke-mlkem768-x25519"
X25519 = "hpke-x25519"

_ID = re.compile(r"[0-9a-f]{16}", re.ASCII)


def derive(secret: bytes, info: bytes, length: int, salt: bytes | None = None) -> bytes:
    """HKDF-SHA256 (RFC 5869) of `secret`: `length` bytes."""
    kdf, algorithm = _hkdf()
    derived: bytes = kdf(algorithm, length, salt, info).derive(secret)
    return derived


@cache  # each stream has a key of its own, and importing takes as long as deriving it
def _hkdf() -> tuple[Any, Any]:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF, SHA256()


def public_id(data: bytes, kind: str) -> str:
    """The id of a public key, or of a key in a service: 16 hexadecimal digits."""
    return derive(data, b"streamxf/1 key id " + kind.encode("ascii"), 8).hex()


def is_key_id(text: str) -> bool:
    """Whether a string has the form of a key's id."""
    return _ID.fullmatch(text) is not None


def statement(digest: bytes) -> bytes:
    """V of the format: the bytes that a voucher or a signature for contents with the digest D covers."""
    return b"streamxf/1 contents\0" + digest


def encode_b64url(data: bytes) -> str:
    """Base64url without padding (RFC 4648, section 5)."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def decode_b64url(text: str) -> bytes:
    """Undo `encode_b64url`; raises DescriptorError for anything but its own spelling."""
    data = try_decode(text)
    if data is None:
        raise DescriptorError(f"{shorten(text)!r} is not base64url")
    return data


def try_decode(text: str) -> bytes | None:
    """As `decode_b64url`, for text that must not appear in an error: None if it is anything else."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        return None
    return data if encode_b64url(data) == text else None
