"""The one key derivation that the format uses, and what is made with it; docs/format/keys.md."""

from __future__ import annotations


def derive(secret: bytes, info: bytes, length: int, salt: bytes | None = None) -> bytes:
    """HKDF-SHA256 (RFC 5869) of `secret`: `length` bytes."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(algorithm=SHA256(), length=length, salt=salt, info=info).derive(secret)


def public_id(data: bytes, kind: str) -> str:
    """The id of a public key, or of a key in a service: 16 hexadecimal digits."""
    return derive(data, b"streamxf/1 key id " + kind.encode("ascii"), 8).hex()


def statement(digest: bytes) -> bytes:
    """V of the format: what a voucher or a signature for contents with the digest D is made over."""
    return b"streamxf/1 contents\0" + digest
