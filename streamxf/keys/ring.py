"""`KeyRing`: the keys that a reader may use, found by their ids, and whose signatures it trusts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.reduction import ForkingPickler
from typing import Any, Self, TypeVar, Union

from typing_extensions import Buffer

from streamxf.descriptor import Parameters
from streamxf.errors import KeyMissingError, KeyServiceError, ParameterError, PolicyError, WrongKeyError
from streamxf.keys.answers import Answers
from streamxf.keys.datakey import DataKey
from streamxf.keys.envelope import Envelope
from streamxf.keys.location import KeyLike, Location, as_provider, as_verify_key, each
from streamxf.keys.provider import KeyProvider
from streamxf.keys.signing import SigningKey, VerifyKey

KeysLike = Union["KeyRing", KeyLike, Iterable[KeyLike], None]
TrustLike = VerifyKey | Location | Iterable[VerifyKey | Location] | None

MAX_OPENED = 1024

T = TypeVar("T")


@dataclass(frozen=True)
class _Policy:
    """Keys, and whose signatures are asked for what they open."""

    keys: tuple[KeyProvider, ...]
    trust: tuple[VerifyKey, ...]
    allow_unsigned: bool


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

    def __init__(self, keys: KeysLike = None, *, trust: TrustLike = None, allow_unsigned: bool = False) -> None:
        found: list[KeyProvider] = []
        for key in as_providers(keys):
            if key not in found:  # not by a hash: a provider of others need not have one
                found.append(key)
        if not isinstance(allow_unsigned, bool):
            raise ParameterError(f"allow_unsigned= is True or False, not {type(allow_unsigned).__name__}")
        policy = _Policy(tuple(found), _as_signers(trust), allow_unsigned)
        if (policy.trust or allow_unsigned) and not found:
            raise ParameterError("trust= and allow_unsigned= say whose data keys count; they need keys=")
        self._take((policy,))

    def _take(self, policies: tuple[_Policy, ...]) -> Self:
        self._policies = policies
        keys: list[KeyProvider] = []
        for key in (key for policy in policies for key in policy.keys):
            if key not in keys:
                keys.append(key)
        self._keys = tuple(keys)
        self._answers = Answers()
        self._opened = lru_cache(MAX_OPENED)(self._open)
        return self

    @property
    def trust(self) -> tuple[VerifyKey, ...]:
        """Who may have written what is read. Of a union: all whom one of its rings trusts, each for its own keys."""
        return tuple(dict.fromkeys(signer for policy in self._policies for signer in policy.trust))

    @property
    def allow_unsigned(self) -> bool:
        """Whether a checkpoint may lack that signature. Of a union: whether all of its rings say so."""
        return all(policy.allow_unsigned for policy in self._policies)

    @classmethod
    def of(cls, keys: KeysLike, trust: TrustLike = None, allow_unsigned: bool = False) -> KeyRing:
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

        What was opened once is remembered: all items of a process have the same, and a key service is asked once for
        each wrapped data key. So is a service that did not answer: it is then asked last, for some minutes.

        Raises
        ------
        DescriptorError
            If the fragment is not well formed.
        KeyMissingError, WrongKeyError, PolicyError, AuthenticationError, KeyServiceError
            As `Envelope.open`.
        """
        return self._opened(fragment)

    def _open(self, fragment: Parameters) -> DataKey:
        envelope = Envelope.parse(fragment)
        if len(self._policies) == 1:
            (only,) = self._policies
            return envelope.open(only.keys, only.trust, only.allow_unsigned, self._answers)
        left = list(self._keys)
        refusal: PolicyError | None = None
        while True:
            try:
                key, data_key, unasked = envelope.unwrap(left, self._answers)
            except (KeyMissingError, WrongKeyError, KeyServiceError):
                if refusal is None:
                    raise
                raise refusal from None
            judges = [policy for policy in self._policies if key in policy.keys]
            try:
                for policy in judges:  # all of them, so that no ring loosens what another one asks for the same key
                    envelope.check_signature(policy.trust, policy.allow_unsigned, key, unasked)
                return data_key
            except PolicyError as error:
                refusal = refusal or error
                left = [other for other in left if not any(other in policy.keys for policy in judges)]

    def union(self, other: KeyRing) -> KeyRing:
        """A ring of the keys of both: what a key opens is judged as its own ring says, or as both if both have it."""
        if not len(other):
            return self
        if not len(self):
            return other
        return KeyRing.__new__(KeyRing)._take((*self._policies, *other._policies))

    def __iter__(self) -> Iterator[KeyProvider]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(key.id for key in self)})"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if held := [key for key in self if not key.portable]:
            raise TypeError(
                f"a KeyRing with a {type(held[0]).__name__} does not go into a pickle, where the key could end up on "
                "disk or in a log; make it anew where it is needed"
            )
        return _remade, (self._policies,)


def _remade(policies: tuple[_Policy, ...]) -> KeyRing:
    return KeyRing.__new__(KeyRing)._take(policies)


def _to_own_child(ring: KeyRing) -> tuple[Any, ...]:
    return _remade, (ring._policies,)


ForkingPickler.register(KeyRing, _to_own_child)  # multiprocessing's own pipes, as for `Secret`


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
        return _some(each(keys, name, as_provider), name)
    raise ParameterError(
        f"{name}= takes a key (32 bytes, a streamxf.Key, a location such as 'file:key.txt'), several, or a KeyRing, "
        f"not {type(keys).__name__}"
    )


def _as_signers(trust: TrustLike) -> tuple[VerifyKey, ...]:
    if trust is None:
        return ()
    if isinstance(trust, str | Buffer) or not isinstance(trust, Iterable):
        return (as_verify_key(trust),)
    return tuple(_some(each(trust, "trust", as_verify_key), "trust"))


def _some(made: list[T], name: str) -> list[T]:
    if not made:
        raise ParameterError(
            f"{name}= is empty: a list of keys that came out empty would switch checks off; leave {name}= out if that "
            "is meant"
        )
    return made
