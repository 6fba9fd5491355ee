"""Data keys wrapped with an X25519 public key of low order, of which everybody knows the shared secret: zeros.

It is HPKE (RFC 9180) by hand, since libraries refuse such a key.
"""

from __future__ import annotations

import hashlib
import hmac

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from tests.sealing import DEK, HYBRID, READER, X25519, dek_id

LOW = b"\1" + bytes(31)
_KEMS = {X25519: b"\x00\x20", HYBRID: b"\x64\x7a"}


def hpke_with(kind: str, point: bytes = LOW, secret: bytes = bytes(32)) -> bytes:
    """The wrapped data key for `READER`, with this X25519 public key of the sender, and what is shared by it."""
    seed = hashlib.shake_256(READER).digest(96)
    curve = X25519PrivateKey.from_private_bytes(seed[64:] if kind == HYBRID else READER)
    public = curve.public_key().public_bytes_raw()
    if kind == HYBRID:
        lattice, ciphertext = MLKEM768PrivateKey.from_seed_bytes(seed[:64]).public_key().encapsulate()
        enc = ciphertext + point
        shared = hashlib.sha3_256(lattice + secret + point + public + bytes.fromhex("5C2E2F2F5E5C")).digest()
    else:
        suite, enc = b"KEM" + _KEMS[kind], point
        shared = _expand(suite, _extract(suite, b"", b"eae_prk", secret), b"shared_secret", enc + public, 32)
    suite = b"HPKE" + _KEMS[kind] + b"\x00\x01\x00\x02"
    info = _extract(suite, b"", b"info_hash", b"streamxf/1 hpke" + dek_id())
    context = b"\0" + _extract(suite, b"", b"psk_id_hash", b"") + info
    made = _extract(suite, shared, b"secret", b"")
    key, nonce = (_expand(suite, made, label, context, size) for label, size in ((b"key", 32), (b"base_nonce", 12)))
    return enc + AESGCM(key).encrypt(nonce, DEK, b"")


def _extract(suite: bytes, salt: bytes, label: bytes, material: bytes) -> bytes:
    return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + material, "sha256")


def _expand(suite: bytes, secret: bytes, label: bytes, info: bytes, size: int) -> bytes:
    return HKDFExpand(SHA256(), size, size.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info).derive(secret)
