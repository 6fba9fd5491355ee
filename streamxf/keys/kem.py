"""The KEMs of key pairs, from the cryptography package, which is slow to import: the first pair imports this module."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, MLKEM768X25519PrivateKey, MLKEM768X25519PublicKey, Suite

from streamxf.errors import UnsupportedError
from streamxf.keys.key import HYBRID, X25519

_MLKEM_SEED = 64
_MLKEM_PUBLIC = 1184


@dataclass(frozen=True)
class Kem:
    """How the keys of one KEM are made from bytes and turned into bytes."""

    suite: Suite
    public_size: int
    private: Callable[[bytes], Any]
    public: Callable[[bytes], Any]
    public_bytes: Callable[[Any], bytes]


@contextmanager
def _ml_kem() -> Iterator[None]:
    try:
        yield
    except UnsupportedAlgorithm:
        raise UnsupportedError(
            f"the cryptography package here has no ML-KEM, which keys of kind {HYBRID} need: its OpenSSL is too old. "
            f"Install cryptography 48 or later from PyPI, or use the kind {X25519}"
        ) from None


@_ml_kem()
def _expand(seed: bytes) -> tuple[MLKEM768PrivateKey, X25519PrivateKey]:
    """X-Wing's key pair out of its 32-byte seed."""
    expanded = hashlib.shake_256(seed).digest(_MLKEM_SEED + 32)
    return (
        MLKEM768PrivateKey.from_seed_bytes(expanded[:_MLKEM_SEED]),
        X25519PrivateKey.from_private_bytes(expanded[_MLKEM_SEED:]),
    )


@_ml_kem()
def _hybrid_public(data: bytes) -> MLKEM768X25519PublicKey:
    return MLKEM768X25519PublicKey(
        MLKEM768PublicKey.from_public_bytes(data[:_MLKEM_PUBLIC]),
        X25519PublicKey.from_public_bytes(data[_MLKEM_PUBLIC:]),
    )


KEMS = {
    X25519: Kem(
        Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM),
        32,
        X25519PrivateKey.from_private_bytes,
        X25519PublicKey.from_public_bytes,
        lambda seed: X25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw(),
    ),
    HYBRID: Kem(
        Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM),
        _MLKEM_PUBLIC + 32,
        lambda seed: MLKEM768X25519PrivateKey(*_expand(seed)),
        _hybrid_public,
        lambda seed: b"".join(key.public_key().public_bytes_raw() for key in _expand(seed)),
    ),
}
