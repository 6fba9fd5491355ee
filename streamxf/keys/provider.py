"""`KeyProvider`: the protocol behind which every kind of key stands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from streamxf.errors import KeyMissingError


class KeyProvider(ABC):
    """A key-encryption key, wherever it is: it wraps and unwraps data keys, and does nothing else.

    Third parties derive from this class, and name it in the entry-point group ``streamxf.key_providers`` if locations
    (``vault:transit/training``) should lead to it. docs/keys.md shows how.

    Attributes
    ----------
    kind : str
        How data keys are wrapped: lower-case letters, digits and hyphens, at most 32. It is recorded with every wrapped
        key. Others than streamxf begin it with a name of their own.
    id : str
        16 hexadecimal digits, public, by which the key is found again (`streamxf.keys.public_id` makes such).
    unwraps : bool
        Whether it can unwrap; a public key cannot.
    authenticates_writer : bool
        Whether only somebody who was entrusted with the key can have wrapped a data key so that it unwraps. Where that
        is not so, readers ask for a signature.
    portable : bool
        Whether it may go into ordinary pickles: it holds nothing secret.
    """

    __slots__ = ()

    unwraps: ClassVar[bool] = True
    authenticates_writer: ClassVar[bool] = False
    portable: ClassVar[bool] = False

    kind: str
    id: str

    @abstractmethod
    def wrap(self, data_key: bytes, dek_id: bytes) -> bytes:
        """Wrap a data key.

        Parameters
        ----------
        data_key : bytes
            32 bytes, secret.
        dek_id : bytes
            Its public id, 32 bytes; what is wrapped should not count beside another one.

        Returns
        -------
        bytes
            At most 6144.

        Raises
        ------
        KeyServiceError
            If a service that holds the key cannot be asked.
        """

    def unwrap(self, wrapped: bytes, dek_id: bytes) -> bytes:
        """Undo `wrap`.

        Raises
        ------
        WrongKeyError
            If this key does not open it.
        KeyMissingError
            If this key can only wrap.
        KeyServiceError
            If a service that holds the key cannot be asked.
        """
        raise KeyMissingError(f"{self!r} can wrap data keys and not unwrap them")
