"""Key pairs: by HPKE (RFC 9180) a `PublicKey` wraps data keys, and a `PrivateKey` unwraps them; by Ed25519, alone
or together with ML-DSA-65 (FIPS 204), a `SigningKey` signs contents, and a `VerifyKey` checks the signature.

A training node that has only the public key can write checkpoints that it cannot read. Nothing then shows who wrote
them, since anyone may have the public key, unless it has a `SigningKey`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, ClassVar, NamedTuple, Self

from typing_extensions import Buffer

from streamxf.errors import AuthenticationError, ParameterError, UnsupportedError, WrongKeyError
from streamxf.keys.key import HYBRID, X25519, KeyProvider, Secret, as_bytes, derive, draw_secret, public_id, statement
from streamxf.lazy import ed25519, exceptions, hpke, mldsa, mlkem, x25519

ED25519 = "ed25519"
SIGNED_TWICE = "ed25519+mldsa65"
_MLKEM_SEED = 64
_MLKEM_PUBLIC = 1184
_INFO = b"streamxf/1 hpke"
_PRIME = 2**255 - 19
# the y of all points of order 1, 2, 4 and 8: anyone can make signatures that such a "key" verifies
_LOW_ORDER = (
    0,
    1,
    _PRIME - 1,
    0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
    0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,
)


@dataclass(frozen=True)
class PublicKey(KeyProvider):
    """The public half of a `PrivateKey`: it wraps data keys that only the private half opens.

    It is not secret. Its `id` is 16 hexadecimal digits derived from it.

    Parameters
    ----------
    data : bytes-like
        32 bytes for ``hpke-x25519``, 1216 for ``hpke-mlkem768-x25519``.
    kind : str
        ``"hpke-mlkem768-x25519"``, the default, which also resists quantum computers, or ``"hpke-x25519"``.

    Raises UnsupportedError if the cryptography package here has no ML-KEM.
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
            kem.suite.encrypt(b"", kem.public(key))  # fails for points of low order, which keep no secret
        except ValueError as error:
            raise ParameterError(f"this is not a public key of kind {kind}: {error}") from None
        object.__setattr__(self, "data", key)
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "id", public_id(key, kind))

    def wrap(self, data_key: bytes, dek_id: bytes) -> bytes:
        kem = _kem(self.kind)
        return kem.suite.encrypt(data_key, kem.public(self.data), info=_INFO + dek_id)


class PrivateKey(Secret, KeyProvider):
    """The private half of a key pair: it opens the data keys that were wrapped for its `public` half, and has its id.

    Parameters
    ----------
    material : bytes-like
        Exactly 32 bytes: the X25519 private key, or the seed of X-Wing.
    kind : str
        As in `PublicKey`.

    Raises UnsupportedError as `PublicKey`.
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
        return cls(draw_secret(), kind)

    @property
    def public(self) -> PublicKey:
        return PublicKey(_kem(self.kind).public_bytes(self._material), self.kind)

    def wrap(self, data_key: bytes, dek_id: bytes) -> bytes:
        return self.public.wrap(data_key, dek_id)

    def unwrap(self, wrapped: bytes, dek_id: bytes) -> bytes:
        kem = _kem(self.kind)
        try:
            data_key: bytes = kem.suite.decrypt(wrapped, kem.private(self._material), info=_INFO + dek_id)
        except (exceptions.InvalidTag, ValueError):
            raise WrongKeyError(f"private key {self.id} does not open this wrapped data key") from None
        return data_key

    def _to_own_child(self) -> Any:
        return type(self), (self._material, self.kind)


@dataclass(frozen=True)
class VerifyKey:
    """The public half of a `SigningKey`, for ``trust=``. Not secret; `id` is 16 hexadecimal digits derived from it.

    Parameters
    ----------
    data : bytes-like
        32 bytes for ``ed25519``, 1984 for ``ed25519+mldsa65``. Points of low order, for which anyone can sign, are
        refused.
    kind : str
        ``"ed25519"``, the default, or ``"ed25519+mldsa65"``, which also resists quantum computers: both signatures of a
        pair must be right.

    Raises UnsupportedError if the cryptography package here has no ML-DSA.
    """

    data: bytes = field(repr=False)
    kind: str = ED25519
    id: str = field(init=False, compare=False)

    def __init__(self, data: Buffer, kind: str = ED25519) -> None:
        key, size = as_bytes(data, "a public key"), SIGNATURES[_signing(kind)].public
        if len(key) != size:
            raise ParameterError(f"a public key of kind {kind} is {size} bytes long; this one has {len(key)}")
        if int.from_bytes(key[:32], "little") % 2**255 % _PRIME in _LOW_ORDER:
            raise ParameterError("anyone can make signatures for this Ed25519 public key: it is a point of low order")
        vars(self).update(data=key, kind=kind, id=public_id(key, kind))
        self._halves()

    def verify(self, signature: bytes, statement: bytes) -> None:
        """Check a signature; raises AuthenticationError if this key did not make it for this statement."""
        try:
            parts = (signature,) if self.kind == ED25519 else (signature[:64], signature[64:])
            for half, part in zip(self._halves(), parts, strict=True):
                half.verify(part, statement)
        except exceptions.InvalidSignature:
            raise AuthenticationError(
                f"the signature by {self.id} is not for these contents: they were altered, or the signature was"
            ) from None

    def statement(self, digest: bytes) -> bytes:
        """What a signature for contents with the digest D covers."""
        return statement_of(self.kind, digest)

    def _halves(self) -> list[Any]:
        made: list[Any] = [ed25519.Ed25519PublicKey.from_public_bytes(self.data[:32])]
        if self.kind != ED25519:
            with _available("ML-DSA", self.kind, ED25519):
                made.append(mldsa.MLDSA65PublicKey.from_public_bytes(self.data[32:]))
        return made


class SigningKey(Secret):
    """Signs published contents. Its `id` is that of its public half, `verify_key`.

    Parameters
    ----------
    material : bytes-like
        Exactly 32 bytes: the private key of Ed25519, or what those of both halves are derived from.
    kind : str
        As in `VerifyKey`.

    Raises UnsupportedError as `VerifyKey`.
    """

    __slots__ = ("kind",)

    noun = "a signing key"

    kind: str

    def __init__(self, material: Buffer, kind: str = ED25519) -> None:
        super().__init__(material)
        object.__setattr__(self, "kind", _signing(kind))
        object.__setattr__(self, "id", self.verify_key.id)

    @classmethod
    def generate(cls, kind: str = ED25519) -> Self:
        return cls(draw_secret(), kind)

    @property
    def verify_key(self) -> VerifyKey:
        return VerifyKey(b"".join(half.public_key().public_bytes_raw() for half in self._halves()), self.kind)

    def sign(self, statement: bytes) -> bytes:
        return b"".join(half.sign(statement) for half in self._halves())

    def statement(self, digest: bytes) -> bytes:
        """As that of the public half."""
        return statement_of(self.kind, digest)

    def _halves(self) -> list[Any]:
        if self.kind == ED25519:
            return [ed25519.Ed25519PrivateKey.from_private_bytes(self._material)]
        seeds = derive(self._material, b"streamxf/1 " + self.kind.encode("ascii"), 64)
        with _available("ML-DSA", self.kind, ED25519):
            lattice = mldsa.MLDSA65PrivateKey.from_seed_bytes(seeds[32:])
        return [ed25519.Ed25519PrivateKey.from_private_bytes(seeds[:32]), lattice]

    def _to_own_child(self) -> Any:
        return type(self), (self._material, self.kind)


class _Sizes(NamedTuple):
    public: int
    signature: int


SIGNATURES = {ED25519: _Sizes(32, 64), SIGNED_TWICE: _Sizes(32 + 1952, 64 + 3309)}
"""Bytes of public keys and signatures, by the kinds of signers."""


def statement_of(kind: str, digest: bytes) -> bytes:
    """What signatures of a kind cover; another for each, or half of a pair would pass for a signature by itself."""
    return statement(digest) + (b"" if kind == ED25519 else kind.encode("ascii"))


def _signing(kind: str) -> str:
    if kind not in SIGNATURES:
        raise ParameterError(f"there is no signer of kind {kind!r:.80}; the kinds are {', '.join(SIGNATURES)}")
    return kind


def _kem(kind: str) -> Kem:
    if kind not in kems():
        raise ParameterError(f"there is no key pair of kind {kind!r:.80}; the kinds are {', '.join(sorted(kems()))}")
    return kems()[kind]


@dataclass(frozen=True)
class Kem:
    """How the keys of one KEM are made from bytes and turned into bytes."""

    suite: hpke.Suite
    public_size: int
    private: Callable[[bytes], Any]
    public: Callable[[bytes], Any]
    public_bytes: Callable[[Any], bytes]


@contextmanager
def _available(primitive: str, kind: str, other: str) -> Iterator[None]:
    try:
        yield
    except exceptions.UnsupportedAlgorithm:
        raise UnsupportedError(
            f"the cryptography package here has no {primitive}, which keys of kind {kind} need: its OpenSSL is too "
            f"old. Install cryptography 48 or later from PyPI, or use the kind {other}"
        ) from None


_ml_kem = partial(_available, "ML-KEM", HYBRID, X25519)


@_ml_kem()
def _expand(seed: bytes) -> tuple[mlkem.MLKEM768PrivateKey, x25519.X25519PrivateKey]:
    """X-Wing's key pair out of its 32-byte seed."""
    expanded = hashlib.shake_256(seed).digest(_MLKEM_SEED + 32)
    return (
        mlkem.MLKEM768PrivateKey.from_seed_bytes(expanded[:_MLKEM_SEED]),
        x25519.X25519PrivateKey.from_private_bytes(expanded[_MLKEM_SEED:]),
    )


@_ml_kem()
def _hybrid_public(data: bytes) -> hpke.MLKEM768X25519PublicKey:
    return hpke.MLKEM768X25519PublicKey(
        mlkem.MLKEM768PublicKey.from_public_bytes(data[:_MLKEM_PUBLIC]),
        x25519.X25519PublicKey.from_public_bytes(data[_MLKEM_PUBLIC:]),
    )


@cache
def kems() -> dict[str, Kem]:
    """Those of all kinds of key pairs."""
    return {
        X25519: Kem(
            hpke.Suite(hpke.KEM.X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.AES_256_GCM),
            32,
            x25519.X25519PrivateKey.from_private_bytes,
            x25519.X25519PublicKey.from_public_bytes,
            lambda seed: x25519.X25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw(),
        ),
        HYBRID: Kem(
            hpke.Suite(hpke.KEM.MLKEM768_X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.AES_256_GCM),
            _MLKEM_PUBLIC + 32,
            lambda seed: hpke.MLKEM768X25519PrivateKey(*_expand(seed)),
            _hybrid_public,
            lambda seed: b"".join(key.public_key().public_bytes_raw() for key in _expand(seed)),
        ),
    }
