"""Data keys: drawn at random for each save; every stream's key is derived from one."""

from __future__ import annotations

import hmac
import os
from typing import NoReturn

from streamxf.keys.derive import derive
from streamxf.keys.secret import Uncopied

DEK_BYTES = 32


class DataKey(Uncopied):
    """A data key (DEK), 32 random bytes, and what is derived from it.

    Not a dataclass: `dataclasses.asdict` would reveal the secret.

    Attributes
    ----------
    secret : bytes
    """

    __slots__ = ("secret",)

    def __init__(self, secret: bytes) -> None:
        self.secret = secret

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DataKey) and hmac.compare_digest(self.secret, other.secret)

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return "DataKey()"

    @classmethod
    def draw(cls) -> DataKey:
        """Draw a new data key."""
        return cls(os.urandom(DEK_BYTES))

    def __reduce__(self) -> NoReturn:
        raise TypeError("data keys cannot be pickled")

    @property
    def id(self) -> bytes:
        """The public id that a wrapped key is checked against, 32 bytes."""
        return derive(self.secret, b"streamxf/1 dek id", 32)

    def mac_key(self) -> bytes:
        """The HMAC-SHA256 key of the vouchers' MAC, 32 bytes."""
        return derive(self.secret, b"streamxf/1 mac", 32)

    def stream_keys(self, salt: bytes, header_digest: bytes) -> tuple[bytes, bytes]:
        """The AES-256-GCM key and the seal of one stream, 32 bytes each."""
        material = derive(self.secret, b"streamxf/1 stream" + header_digest, 64, salt)
        return material[:32], material[32:]
