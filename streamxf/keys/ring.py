"""`KeyRing`: the keys that a reader may use, found by their ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Union

from typing_extensions import Buffer

from streamxf.errors import ParameterError
from streamxf.keys.key import Key, KeyLike, as_key

KeysLike = Union["KeyRing", KeyLike, Iterable[KeyLike], None]


class KeyRing:
    """Any number of keys.

    The one that opens a checkpoint is found by its id, so keys from before a rotation can stay in the ring.

    Parameters
    ----------
    keys : iterable of Key or bytes
        Each of 32 bytes.
    """

    def __init__(self, keys: Iterable[KeyLike] = ()) -> None:
        self._keys = {key.id: key for key in map(as_key, keys)}

    @classmethod
    def of(cls, keys: KeysLike) -> KeyRing:
        """Make a ring of whatever a ``keys=`` argument takes: nothing, one key, several, or a ring.

        Raises
        ------
        ParameterError
            If a key is not 32 bytes, or the argument is something else.
        """
        if isinstance(keys, KeyRing):
            return keys
        if keys is None:
            return cls()
        if isinstance(keys, Key | Buffer):
            return cls([keys])
        if isinstance(keys, Iterable) and not isinstance(keys, str):
            return cls(keys)
        raise ParameterError(
            f"keys= takes a key of 32 bytes, a streamxf.Key, several of them or a KeyRing, not {type(keys).__name__}"
        )

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys.values())

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(self._keys)})"
