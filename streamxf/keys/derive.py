"""Key derivation as the format uses it, what is made with it, and the kinds of key pairs; docs/format/keys.md."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

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
    """V of the format: what a voucher or a signature for contents with the digest D is made over."""
    return b"streamxf/1 contents\0" + digest
