"""Key pairs for public-key encryption of data keys, by HPKE (RFC 9180): `PublicKey` wraps, `PrivateKey` unwraps.

A training node that has only the public key can write checkpoints that it cannot read. Nothing then says who wrote one,
since anybody may have the public key: see `SigningKey`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)
from typing_extensions import Buffer

from streamxf.errors import ParameterError, UnsupportedError, WrongKeyError
from streamxf.keys.derive import public_id
from streamxf.keys.provider import KeyProvider
from streamxf.keys.secret import Secret, as_bytes, draw_secret

HYBRID = "hpke-mlkem768-x25519"
X25519 = "hpke-x25519"

_INFO = b"streamxf/1 hpke"
_MLKEM_SEED = 64
_MLKEM_PUBLIC = 1184


@dataclass(frozen=True)
class _Kem:
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
            f"Install cryptography 48 or later from PyPI, or take the kind {X25519}"
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


def _hybrid_public_bytes(seed: bytes) -> bytes:
    return b"".join(key.public_key().public_bytes_raw() for key in _expand(seed))


_KEMS = {
    X25519: _Kem(
        Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM),
        32,
        X25519PrivateKey.from_private_bytes,
        X25519PublicKey.from_public_bytes,
        lambda seed: X25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw(),
    ),
    HYBRID: _Kem(
        Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM),
        _MLKEM_PUBLIC + 32,
        lambda seed: MLKEM768X25519PrivateKey(*_expand(seed)),
        _hybrid_public,
        _hybrid_public_bytes,
    ),
}


@dataclass(frozen=True)
class PublicKey(KeyProvider):
    """The public half of a `PrivateKey`: it wraps data keys that only the private half opens.

    Not secret. Two are equal if their bytes are.

    Parameters
    ----------
    data : bytes-like
        32 bytes for ``hpke-x25519``, 1216 for ``hpke-mlkem768-x25519``.
    kind : str
        ``"hpke-mlkem768-x25519"``, the default, which also holds against quantum computers, or ``"hpke-x25519"``.

    Attributes
    ----------
    id : str
        16 hexadecimal digits derived from the key.

    Raises
    ------
    ParameterError
        If there is no such kind, or `data` is no such key.
    UnsupportedError
        If the cryptography package here has no ML-KEM.
    """

    unwraps: ClassVar[bool] = False
    portable: ClassVar[bool] = True

    data: bytes = field(repr=False)
    kind: str = HYBRID
    id: str = field(init=False, compare=False)

    def __init__(self, data: Buffer, kind: str = HYBRID) -> None:
        kem = _kem(kind)
        key = as_bytes(data, "a public key")
        if len(key) != kem.public_size:
            raise ParameterError(
                f"a public key of kind {kind} is {kem.public_size} bytes long; this one has {len(key)}"
            )
        try:
            kem.suite.encrypt(b"", kem.public(key))  # it fails for points of low order, which would keep no secret
        except ValueError as error:
            raise ParameterError(f"this is no public key of kind {kind}: {error}") from None
        object.__setattr__(self, "data", key)
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "id", public_id(key, kind))

    def wrap(self, data_key: bytes, dek_id: bytes) -> bytes:
        kem = _kem(self.kind)
        wrapped: bytes = kem.suite.encrypt(data_key, kem.public(self.data), info=_INFO + dek_id)
        return wrapped


class PrivateKey(Secret, KeyProvider):
    """The private half of a key pair: it opens the data keys that were wrapped for its `public` half.

    Parameters
    ----------
    material : bytes-like
        Exactly 32 bytes: the X25519 private key, or the seed of X-Wing.
    kind : str
        As in `PublicKey`.

    Attributes
    ----------
    id : str
        That of the public key.

    Raises
    ------
    ParameterError
        If there is no such kind, or `material` is not 32 bytes, or looks like text.
    UnsupportedError
        If the cryptography package here has no ML-KEM.
    """

    __slots__ = ("kind",)

    noun = "a private key"

    kind: str

    def __init__(self, material: Buffer, kind: str = HYBRID) -> None:
        _kem(kind)
        super().__init__(material)
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "id", self.public.id)

    @classmethod
    def generate(cls, kind: str = HYBRID) -> Self:
        """Draw a new one from the operating system's random source."""
        return cls(draw_secret(), kind)

    @property
    def public(self) -> PublicKey:
        """The half to give away."""
        return PublicKey(_kem(self.kind).public_bytes(self._material), self.kind)

    def wrap(self, data_key: bytes, dek_id: bytes) -> bytes:
        return self.public.wrap(data_key, dek_id)

    def unwrap(self, wrapped: bytes, dek_id: bytes) -> bytes:
        kem = _kem(self.kind)
        try:
            data_key: bytes = kem.suite.decrypt(wrapped, kem.private(self._material), info=_INFO + dek_id)
        except (InvalidTag, ValueError):
            raise WrongKeyError(f"private key {self.id} does not open this wrapped data key") from None
        return data_key

    def _arguments(self) -> tuple[Any, ...]:
        return (self._material, self.kind)


def _kem(kind: str) -> _Kem:
    if kind not in _KEMS:
        raise ParameterError(f"there is no key pair of kind {kind!r:.80}; there are {', '.join(sorted(_KEMS))}")
    return _KEMS[kind]
