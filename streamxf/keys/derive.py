"""The one key derivation that the format uses; docs/format.md, "Keys"."""

from __future__ import annotations

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF


def derive(secret: bytes, info: bytes, length: int, salt: bytes | None = None) -> bytes:
    """HKDF-SHA256 (RFC 5869) of `secret`: `length` bytes."""
    return HKDF(algorithm=SHA256(), length=length, salt=salt, info=info).derive(secret)
