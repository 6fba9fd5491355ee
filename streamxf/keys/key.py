"""`Key`: a user's 32-byte key-encryption key."""

from __future__ import annotations

import hmac
from typing import ClassVar

from typing_extensions import Buffer

from streamxf.errors import WrongKeyError
from streamxf.keys.derive import derive, statement
from streamxf.keys.provider import KeyProvider, wrong_voucher
from streamxf.keys.secret import Secret


class Key(Secret, KeyProvider):
    """A 256-bit key-encryption key (KEK): it wraps data keys and never encrypts data itself.

    Whoever has it can read and write. Its material never appears in a repr, an error, a log, a descriptor or an
    ordinary pickle. Only a process that ``multiprocessing`` starts from this one may receive it
    (``dcp.async_save`` by process needs that).

    Parameters
    ----------
    material : bytes-like
        Exactly 32 bytes, from a cryptographic random source (`Key.generate`). A passphrase, or other text, is refused.

    Attributes
    ----------
    id : str
        16 hexadecimal digits derived from the key; public. Checkpoints name keys by it.
    """

    __slots__ = ()

    kind = "aeskw"
    vouches: ClassVar[bool] = True

    def __init__(self, material: Buffer) -> None:
        super().__init__(material)
        object.__setattr__(self, "id", derive(self._material, b"streamxf/1 key id", 8).hex())

    def wrapping_key(self) -> bytes:
        """The AES key that wraps data keys, 32 bytes."""
        return derive(self._material, b"streamxf/1 wrap", 32)

    def vouching_key(self) -> bytes:
        """The HMAC-SHA256 key that vouches for contents, 32 bytes."""
        return derive(self._material, b"streamxf/1 vouch", 32)

    def wrap(self, data_key: bytes, dek_id: bytes) -> bytes:
        from cryptography.hazmat.primitives.keywrap import aes_key_wrap

        return aes_key_wrap(self.wrapping_key(), data_key)

    def unwrap(self, wrapped: bytes, dek_id: bytes) -> bytes:
        from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap

        try:
            return aes_key_unwrap(self.wrapping_key(), wrapped)
        except (InvalidUnwrap, ValueError):
            raise WrongKeyError(f"key {self.id} does not open this wrapped data key") from None

    def vouch(self, digest: bytes) -> bytes:
        return hmac.digest(self.vouching_key(), statement(digest), "sha256")

    def check_voucher(self, voucher: bytes, digest: bytes) -> None:
        if not hmac.compare_digest(voucher, self.vouch(digest)):
            raise wrong_voucher(self)
