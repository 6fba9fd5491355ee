"""Data keys: drawn at random for each save, and the source of every stream's key."""

from __future__ import annotations

import hmac
import os
from typing import Any, NoReturn

from streamxf.keys.derive import derive

DEK_BYTES = 32


class DataKey:
    """A data key (DEK), 32 random bytes, and what is derived from it.

    This is no dataclass: `dataclasses.asdict` would spell out the secret.

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
        raise TypeError("a data key does not go into a pickle")

    def __copy__(self) -> DataKey:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> DataKey:
        return self

    @property
    def id(self) -> bytes:
        """The public id that a wrapped key is checked against, 32 bytes."""
        return derive(self.secret, b"streamxf/1 dek id", 32)

    def metadata_key(self) -> bytes:
        """The HMAC-SHA256 key of the metadata's tag, 32 bytes."""
        return derive(self.secret, b"streamxf/1 metadata", 32)

    def stream_keys(self, salt: bytes, header_digest: bytes) -> tuple[bytes, bytes]:
        """The AES-256-GCM key and the seal of one stream, 32 bytes each."""
        material = derive(self.secret, b"streamxf/1 stream" + header_digest, 64, salt)
        return material[:32], material[32:]
