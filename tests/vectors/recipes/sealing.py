"""A writer of plain files that can be told to do everything wrong; from docs/format.md, without streamxf.

`forge.Parts` makes CRCs, `seal` adds what a holder of the data key makes. Data keys and salts are made of names, so
that a file is the same each time; no writer of real files may do that.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Iterable, Sequence

import zstandard
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.keywrap import aes_key_wrap
from forge import Parts, prefix_of

ENCRYPT = "streamxf.encrypt/1"
KEY = bytes(range(32))
OTHER_KEY = bytes(range(32, 64))
NO_PREFIX = prefix_of(b"")


def secret(name: str) -> bytes:
    """32 bytes that stand for random ones."""
    return hashlib.sha256(b"vectors of streamxf: " + name.encode()).digest()


DEK = secret("data key")
SALT = secret("salt")


def hkdf(material: bytes, info: bytes, length: int, salt: bytes = b"") -> bytes:
    return HKDF(algorithm=SHA256(), length=length, salt=salt, info=info).derive(material)


def b64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def dek_id(dek: bytes = DEK) -> bytes:
    return hkdf(dek, b"streamxf/1 dek id", 32)


def key_id(key: bytes, label: bytes = b"") -> str:
    """The id of a key of 32 bytes; with a label, that of a public key."""
    return hkdf(key, b"streamxf/1 key id" + label, 8).hex()


def wrapped(key: bytes, dek: bytes = DEK) -> str:
    """One `w=` for a key of 32 bytes, without the `w=`."""
    blob = aes_key_wrap(hkdf(key, b"streamxf/1 wrap", 32), dek)
    return f"aeskw:{key_id(key)}:{b64url(blob)}"


def fragment(recipients: Sequence[str] | None = None, dek: bytes = DEK) -> str:
    """The fragment of `streamxf.encrypt`, by default for `KEY` alone."""
    return "&".join([f"dek={b64url(dek_id(dek))}", *(f"w={one}" for one in recipients or [wrapped(KEY, dek)])])


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3, write_content_size=True).compress(data)


def parts(chain: Sequence[str], payloads: Iterable[bytes], raw_size: int, *, text: str | None = None) -> Parts:
    """A file whose blocks store `payloads`; with encryption in the chain, what stands before it. Not yet sealed.

    `text` is the prefix's fragment, where it is not the usual one.
    """
    keyed = any(item.startswith("streamxf.encrypt/") for item in chain)
    usual = fragment() if keyed else ""
    stored = list(payloads)
    return Parts(
        prefix=prefix_of((usual if text is None else text).encode("latin-1")),
        version=1,
        block_log2=16,
        flags=1 if keyed else 0,
        reserved=0,
        chain="\n".join(chain).encode("latin-1"),
        identity=b"",
        salt=SALT,
        seal=bytes(32) if keyed else b"",
        blocks=tuple((number == len(stored) - 1, payload) for number, payload in enumerate(stored)),
        raw_size=raw_size,
    )


def header_digest(made: Parts) -> bytes:
    """The page's H."""
    fixed = (made.version, made.block_log2, made.flags, made.reserved, len(made.chain), len(made.identity), made.salt)
    body = struct.pack("<8sBBBBHH32s", b"\xd3SXF\r\n\x1a\n", *fixed) + made.chain + made.identity
    return hashlib.sha256(body).digest()


def seal(made: Parts, dek: bytes = DEK) -> Parts:
    """Encrypt the blocks, and seal the header."""
    derived = hkdf(dek, b"streamxf/1 stream" + header_digest(made), 64, made.salt)
    cipher = AESGCM(derived[:32])
    blocks = tuple(
        (last, cipher.encrypt(number.to_bytes(11, "big") + bytes([last]), payload, None))
        for number, (last, payload) in enumerate(made.blocks)
    )
    return made.change(seal=derived[32:], blocks=blocks)
