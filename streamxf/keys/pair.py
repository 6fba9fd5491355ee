"""Key pairs for public-key encryption of data keys, by HPKE (RFC 9180): `PublicKey` wraps, `PrivateKey` unwraps.

A training node that has only the public key can write checkpoints that it cannot read. Nothing then shows who wrote
them, since anyone may have the public key: see `SigningKey`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from typing_extensions import Buffer

from streamxf.errors import ParameterError, WrongKeyError
from streamxf.keys.derive import HYBRID, public_id
from streamxf.keys.key import Secret, as_bytes, draw_secret
from streamxf.keys.provider import KeyProvider

if TYPE_CHECKING:
    from streamxf.keys.kem import Kem

_INFO = b"streamxf/1 hpke"


@dataclass(frozen=True)
class PublicKey(KeyProvider):
    """The public half of a `PrivateKey`: it wraps data keys that only the private half opens.

    It is not secret. Its `id` is 16 hexadecimal digits derived from it.

    Parameters
    ----------
    data : bytes-like
        32 bytes for ``hpke-x25519``, 1216 for ``hpke-mlkem768-x25519``.
    kind : str
        ``"hpke-mlkem768-x25519"``, the default, which also holds against quantum computers, or ``"hpke-x25519"``.

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
        wrapped: bytes = kem.suite.encrypt(data_key, kem.public(self.data), info=_INFO + dek_id)
        return wrapped


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
        from cryptography.exceptions import InvalidTag

        kem = _kem(self.kind)
        try:
            data_key: bytes = kem.suite.decrypt(wrapped, kem.private(self._material), info=_INFO + dek_id)
        except (InvalidTag, ValueError):
            raise WrongKeyError(f"private key {self.id} does not open this wrapped data key") from None
        return data_key

    def _to_own_child(self) -> Any:
        return type(self), (self._material, self.kind)


def _kem(kind: str) -> Kem:
    from streamxf.keys.kem import KEMS

    if kind not in KEMS:
        raise ParameterError(f"there is no key pair of kind {kind!r:.80}; the kinds are {', '.join(sorted(KEMS))}")
    return KEMS[kind]
