"""Who wrote: a `SigningKey` (Ed25519) signs contents, and a `VerifyKey` checks the signature."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from typing_extensions import Buffer

from streamxf.errors import AuthenticationError, ParameterError
from streamxf.keys.derive import public_id
from streamxf.keys.key import Secret, as_bytes

ED25519 = "ed25519"
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
class VerifyKey:
    """The public half of a `SigningKey`, for ``trust=``. Not secret; `id` is 16 hexadecimal digits derived from it.

    `data` is 32 bytes. Points of low order, for which anyone can sign, are refused.
    """

    kind: ClassVar[str] = ED25519

    data: bytes = field(repr=False)
    id: str = field(init=False, compare=False)

    def __init__(self, data: Buffer) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        key = as_bytes(data, "a public key")
        try:
            Ed25519PublicKey.from_public_bytes(key)
        except ValueError:
            raise ParameterError(f"an Ed25519 public key is 32 bytes long; this one has {len(key)}") from None
        if int.from_bytes(key, "little") % 2**255 % _PRIME in _LOW_ORDER:
            raise ParameterError("anyone can make signatures for this Ed25519 public key: it is a point of low order")
        object.__setattr__(self, "data", key)
        object.__setattr__(self, "id", public_id(key, ED25519))

    def verify(self, signature: bytes, statement: bytes) -> None:
        """Check a signature; raises AuthenticationError if this key did not make it for this statement."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.data).verify(signature, statement)
        except InvalidSignature:
            raise AuthenticationError(
                f"the signature by {self.id} is not for these contents: they were altered, or the signature was"
            ) from None


class SigningKey(Secret):
    """Signs what a process publishes (Ed25519). Its `id` is that of its public half, `verify_key`.

    `material` is exactly 32 bytes.
    """

    __slots__ = ()

    noun = "a signing key"
    kind = ED25519

    def __init__(self, material: Buffer) -> None:
        super().__init__(material)
        object.__setattr__(self, "id", self.verify_key.id)

    @property
    def verify_key(self) -> VerifyKey:
        return VerifyKey(self._private().public_key().public_bytes_raw())

    def sign(self, statement: bytes) -> bytes:
        signature: bytes = self._private().sign(statement)
        return signature

    def _private(self) -> Any:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self._material)
