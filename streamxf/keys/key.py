"""`Key`: a user's 32-byte key-encryption key, which never shows itself."""

from __future__ import annotations

import os
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

from typing_extensions import Buffer

from streamxf.errors import ParameterError
from streamxf.keys.derive import derive

KEY_BYTES = 32


class Key:
    """A 256-bit key-encryption key (KEK): it wraps data keys and never encrypts data itself.

    Its material stays inside: no repr, error, log line, descriptor or ordinary pickle has it. Only a process that
    ``multiprocessing`` starts from this one may receive it (``dcp.async_save`` by process needs that).

    Parameters
    ----------
    material : bytes-like
        Exactly 32 bytes, from a cryptographic random source (`Key.generate`), not a passphrase.

    Attributes
    ----------
    id : str
        16 hexadecimal digits derived from the key; public. Descriptors name keys by it.

    Raises
    ------
    ParameterError
        If `material` is not 32 bytes.
    """

    __slots__ = ("_material", "id")

    id: str
    _material: bytes

    def __init__(self, material: Buffer) -> None:
        if isinstance(material, str):
            raise ParameterError(
                "a key is 32 bytes, not text: decode it first (bytes.fromhex, base64), and never use a passphrase as "
                "a key"
            )
        try:
            secret = bytes(memoryview(material))
        except TypeError:
            raise ParameterError(f"a key is 32 bytes, not {type(material).__name__}") from None
        if len(secret) != KEY_BYTES:
            raise ParameterError(
                f"a key is {KEY_BYTES} bytes long (AES-256); this one has {len(secret)}. Make one with "
                "streamxf.Key.generate()"
            )
        object.__setattr__(self, "_material", secret)
        object.__setattr__(self, "id", derive(secret, b"streamxf/1 key id", 8).hex())

    @classmethod
    def generate(cls) -> Key:
        """Draw a new key from the operating system's random source."""
        return cls(os.urandom(KEY_BYTES))

    def reveal(self) -> bytes:
        """Return the 32 bytes of the key, for whoever has to store it.

        Nothing in streamxf calls this to print or record it.
        """
        return self._material

    def wrapping_key(self) -> bytes:
        """The AES key that wraps data keys, 32 bytes, derived from the key."""
        return derive(self._material, b"streamxf/1 wrap", 32)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a Key does not change")

    def __repr__(self) -> str:
        return f"Key(id={self.id!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Key does not go into a pickle, where it could end up on disk or in a log; "
            "hand it over as a secret (a file, an environment variable) and make the Key there"
        )

    def __copy__(self) -> Key:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Key:
        return self


KeyLike = Key | Buffer


def as_key(key: KeyLike) -> Key:
    """Return `key` as a `Key`; bytes must be exactly 32."""
    return key if isinstance(key, Key) else Key(key)


def _to_own_child(key: Key) -> tuple[type[Key], tuple[bytes]]:
    return Key, (key.reveal(),)


# ForkingPickler serves only pipes between a process and the children that multiprocessing starts for it; it is asked
# before __reduce__.
ForkingPickler.register(Key, _to_own_child)
