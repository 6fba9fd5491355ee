"""`KeyRing`: the keys that a reader may use, found by their ids, and whose signatures it trusts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, Union

from typing_extensions import Buffer

from streamxf.descriptor import Parameters
from streamxf.errors import ParameterError
from streamxf.keys.datakey import DataKey
from streamxf.keys.envelope import Envelope
from streamxf.keys.location import KeyLike, Location, as_provider, as_verify_key, each
from streamxf.keys.provider import KeyProvider
from streamxf.keys.signing import SigningKey, VerifyKey
from streamxf.keys.unanswered import Unanswered

KeysLike = Union["KeyRing", KeyLike, Iterable[KeyLike], None]
TrustLike = VerifyKey | Location | Iterable[VerifyKey | Location]


class KeyRing:
    """Any number of keys, and the signers that are trusted.

    The key that opens a checkpoint is found by its id, so keys from before a rotation can stay in the ring.

    Parameters
    ----------
    keys : KeyProvider, bytes or location, or several
        As in the ``keys=`` of every reader.
    trust : VerifyKey or location, or several
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

    def __init__(self, keys: KeysLike = (), *, trust: TrustLike = (), allow_unsigned: bool = False) -> None:
        found: list[KeyProvider] = []
        for key in as_providers(keys):
            if key not in found:  # not by a hash: a provider of others need not have one
                found.append(key)
        if not isinstance(allow_unsigned, bool):
            raise ParameterError(f"allow_unsigned= is True or False, not {type(allow_unsigned).__name__}")
        self._keys = tuple(found)
        self.trust = _as_signers(trust)
        self.allow_unsigned = allow_unsigned
        self._opened: dict[Parameters, DataKey] = {}
        self._unanswered = Unanswered()
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
            if _as_signers(trust) or allow_unsigned:
                raise ParameterError("keys= is a KeyRing: give trust= and allow_unsigned= to that")
            return keys
        return cls(keys, trust=trust, allow_unsigned=allow_unsigned)

    def unwrap(self, fragment: Parameters) -> DataKey:
        """The data key in the fragment of an Encrypt descriptor.

        What was opened once is remembered: all items of a process have the same, and a key service takes its time. So
        is a service that did not answer: it is then asked last, for some minutes.

        Raises
        ------
        DescriptorError
            If the fragment is not well formed.
        KeyMissingError, WrongKeyError, PolicyError, AuthenticationError, KeyServiceError
            As `Envelope.open`.
        """
        data_key = self._opened.get(fragment)
        if data_key is None:
            data_key = Envelope.parse(fragment).open(self, self.trust, self.allow_unsigned, self._unanswered)
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
        return {**self.__dict__, "_opened": {}, "_unanswered": Unanswered()}


def as_providers(keys: KeysLike, name: str = "keys") -> list[KeyProvider]:
    """What the argument `name` was given, one key or several: each as a `KeyProvider`.

    Raises
    ------
    ParameterError
        If it is something else, or a ring, which also says whom it trusts.
    StreamxfError
        As `as_provider`; if there are several, it says which one it was.
    """
    if isinstance(keys, KeyRing):
        raise ParameterError(f"{name}= is a KeyRing, which has its own trust=; KeyRing([*ring]) takes its keys alone")
    if keys is None:
        return []
    if isinstance(keys, KeyProvider | SigningKey | VerifyKey | Buffer | str | os.PathLike):
        return [as_provider(keys)]
    if isinstance(keys, Iterable):
        return each(keys, name, as_provider)
    raise ParameterError(
        f"{name}= takes a key (32 bytes, a streamxf.Key, a location such as 'file:key.txt'), several, or a KeyRing, "
        f"not {type(keys).__name__}"
    )


def _as_signers(trust: TrustLike) -> tuple[VerifyKey, ...]:
    if isinstance(trust, str | Buffer) or not isinstance(trust, Iterable):
        return (as_verify_key(trust),)
    return tuple(each(trust, "trust", as_verify_key))
