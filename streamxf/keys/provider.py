"""`KeyProvider`: the protocol that every kind of key implements."""

from __future__ import annotations

import hmac
from abc import ABC, abstractmethod
from typing import ClassVar

from streamxf.errors import AuthenticationError, KeyMissingError, WrongKeyError


class KeyProvider(ABC):
    """A key-encryption key, wherever it is kept: it wraps and unwraps data keys, and may vouch for contents.

    Third parties derive from this class, and register it in the entry-point group ``streamxf.key_providers`` if
    locations (``vault:transit/training``) should lead to it. docs/security.md shows how.

    Attributes
    ----------
    kind : str
        How data keys are wrapped: 1 to 32 lower-case letters, digits and hyphens, recorded with each wrapped key. A
        kind of your own begins with a name of your own.
    id : str
        16 hexadecimal digits, public, by which readers find the key (`streamxf.keys.public_id` makes one).
    unwraps : bool
        Whether it can unwrap; a public key cannot.
    vouches : bool
        Whether only its holders can vouch with it: readers accept what it vouches for, else require a signature.
    portable : bool
        Whether it may be pickled: it holds nothing secret.
    """

    __slots__ = ()

    unwraps: ClassVar[bool] = True
    vouches: ClassVar[bool] = False
    portable: ClassVar[bool] = False

    kind: str
    id: str

    @abstractmethod
    def wrap(self, data_key: bytes, dek_id: bytes) -> bytes:
        """Wrap a data key: 32 secret bytes; the default of `vouch` passes 64. Returns 1 to 6144 bytes.

        `dek_id` is its public id, 32 bytes, which `unwrap` is given again. Bind it to the result, so that it cannot be
        unwrapped with another id. Raises KeyServiceError if a service that holds the key cannot be reached.
        """

    def unwrap(self, wrapped: bytes, dek_id: bytes) -> bytes:
        """Undo `wrap`; raises WrongKeyError if it does not open it, KeyMissingError if it only wraps, and as `wrap`."""
        raise KeyMissingError(f"{self!r} can wrap data keys, but not unwrap them")

    def vouch(self, digest: bytes) -> bytes:
        """Vouch for contents with this digest, 32 bytes; called only if the key `vouches`, and returns as `wrap`.

        The default wraps the digest, twice over: a data key has half that size, so a voucher never passes for one.
        """
        return self.wrap(digest + digest, digest)

    def check_voucher(self, voucher: bytes, digest: bytes) -> None:
        """Check a voucher of `vouch`; return nothing. Raises AuthenticationError if it is wrong; else as `unwrap`."""
        try:
            found = self.unwrap(voucher, digest)
        except WrongKeyError:
            found = b""
        if not hmac.compare_digest(found, digest + digest):
            raise wrong_voucher(self)


def wrong_voucher(key: KeyProvider) -> AuthenticationError:
    """The error for a wrong voucher."""
    return AuthenticationError(
        f"the voucher of key {key.id} is not for these contents: they were altered, or written without that key"
    )
