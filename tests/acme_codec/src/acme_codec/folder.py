"""Keys in a folder, one in each file, found by the file's name: ``acme-folder:/run/keys/training``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import ClassVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from streamxf.errors import KeyFileError, WrongKeyError
from streamxf.keys import Key, KeyProvider, public_id, read_key

NONCE_BYTES = 12


@dataclass(frozen=True)
class FolderKey(KeyProvider):
    """The key in one file of a folder.

    It holds the file's path, and reads the key for each use, so it can be pickled.

    Parameters
    ----------
    path : str
        The file's; its name says which key it is, wherever the folder is.
    """

    kind = "acme-folder"
    vouches: ClassVar[bool] = True
    portable: ClassVar[bool] = True
    path: str
    id: str = field(init=False)

    def __post_init__(self) -> None:
        name = os.path.basename(self.path)
        object.__setattr__(self, "id", public_id(os.fsencode(name), self.kind))

    def wrap(self, data_key: bytes, dek_id: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher().encrypt(nonce, data_key, dek_id)

    def unwrap(self, wrapped: bytes, dek_id: bytes) -> bytes:
        nonce, sealed = wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:]
        try:
            return self._cipher().decrypt(nonce, sealed, dek_id)
        except (InvalidTag, ValueError):
            raise WrongKeyError(f"the key {self.path} does not open this") from None

    def _cipher(self) -> AESGCM:
        key = read_key(self.path)
        if not isinstance(key, Key):
            raise KeyFileError("a key of 32 bytes is needed", file=self.path)
        return AESGCM(key.reveal())
