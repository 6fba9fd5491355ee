"""`KeyRing`: the keys that a reader may use, found by their ids, and whose signatures it trusts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Union

from typing_extensions import Buffer

from streamxf.descriptor import Parameters
from streamxf.errors import ParameterError
from streamxf.keys.datakey import DataKey
from streamxf.keys.envelope import Envelope
from streamxf.keys.location import KeyLike, as_provider
from streamxf.keys.provider import KeyProvider
from streamxf.keys.signing import VerifyKey

KeysLike = Union["KeyRing", KeyLike, Iterable[KeyLike], None]
TrustLike = VerifyKey | Iterable[VerifyKey]


class KeyRing:
    """Any number of keys, and the signers that are trusted.

    The key that opens a checkpoint is found by its id, so keys from before a rotation can stay in the ring.

    Parameters
    ----------
    keys : iterable of KeyProvider, bytes or locations
        As in the ``keys=`` of every reader.
    trust : VerifyKey, or several
        Who may have written what is read. A checkpoint that a `PrivateKey` opens must be signed by one of them, since
        anybody may have its public key; once there is one here, every checkpoint must.
    allow_unsigned : bool
        Whether a checkpoint may lack that signature: then a private key shows that it is meant for you, and not who
        wrote it.

    Raises
    ------
    ParameterError
        If a key or signer is none, or a signer is named without any key.
    """

    def __init__(self, keys: Iterable[KeyLike] = (), *, trust: TrustLike = (), allow_unsigned: bool = False) -> None:
        found: list[KeyProvider] = []
        for key in map(as_provider, keys):
            if key not in found:  # not by a hash: a provider of others need not have one
                found.append(key)
        self._keys = tuple(found)
        self.trust = (trust,) if isinstance(trust, VerifyKey) else tuple(trust)
        self.allow_unsigned = allow_unsigned
        self._opened: dict[Parameters, DataKey] = {}
        for signer in self.trust:
            if not isinstance(signer, VerifyKey):
                raise ParameterError(f"trust= takes a streamxf.VerifyKey, or several, not {type(signer).__name__}")
        if (self.trust or allow_unsigned) and not self._keys:
            raise ParameterError("trust= and allow_unsigned= say whose data keys count; they need keys=")

    @classmethod
    def of(cls, keys: KeysLike, trust: TrustLike = (), allow_unsigned: bool = False) -> KeyRing:
        """Make a ring of whatever a ``keys=`` argument takes: nothing, one key, several, or a ring.

        Raises
        ------
        ParameterError
            If a key cannot be used, or the argument is something else; also if there is a ring and `trust` or
            `allow_unsigned` beside it, since the ring has its own.
        """
        if isinstance(keys, KeyRing):
            if trust or allow_unsigned:
                raise ParameterError("keys= is a KeyRing: give trust= and allow_unsigned= to that")
            return keys
        if keys is None:
            return cls(trust=trust, allow_unsigned=allow_unsigned)
        if isinstance(keys, KeyProvider | Buffer | str):
            return cls([keys], trust=trust, allow_unsigned=allow_unsigned)
        if isinstance(keys, Iterable):
            return cls(keys, trust=trust, allow_unsigned=allow_unsigned)
        raise ParameterError(
            f"keys= takes a key (32 bytes, a streamxf.Key, a location such as 'file:key.txt'), several, or a KeyRing, "
            f"not {type(keys).__name__}"
        )

    def unwrap(self, fragment: Parameters) -> DataKey:
        """The data key in the fragment of an Encrypt descriptor.

        What was opened once is remembered: all items of a process have the same, and a key service takes its time.

        Raises
        ------
        DescriptorError
            If the fragment is not well formed.
        KeyMissingError, WrongKeyError, PolicyError, AuthenticationError, KeyServiceError
            As `Envelope.open`.
        """
        data_key = self._opened.get(fragment)
        if data_key is None:
            data_key = Envelope.parse(fragment).open(self, self.trust, self.allow_unsigned)
            self._opened[fragment] = data_key
        return data_key

    def union(self, other: KeyRing) -> KeyRing:
        """A ring of the keys and signers of both; unsigned checkpoints are fine only if both say so."""
        if not len(other):
            return self
        if not len(self):
            return other
        return KeyRing(
            [*self, *other],
            trust=dict.fromkeys([*self.trust, *other.trust]),
            allow_unsigned=self.allow_unsigned and other.allow_unsigned,
        )

    def __iter__(self) -> Iterator[KeyProvider]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(key.id for key in self)})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": {}}
