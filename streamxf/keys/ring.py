"""`KeyRing`: the keys that a reader may use, found by their ids, and whose signatures it trusts."""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from multiprocessing.reduction import ForkingPickler
from typing import Any, Self, TypeVar, Union

from typing_extensions import Buffer

from streamxf.descriptor import Parameters, format_parameters
from streamxf.errors import KeyServiceError, ParameterError, PolicyError, WrongKeyError
from streamxf.keys.answers import Answers
from streamxf.keys.datakey import DEK_BYTES, DataKey
from streamxf.keys.entry import breach
from streamxf.keys.envelope import Envelope
from streamxf.keys.location import KeyLike, Location, as_provider, as_verify_key, each
from streamxf.keys.policy import NO_INDEX, PIPE, Claim
from streamxf.keys.provider import KeyProvider
from streamxf.keys.secret import Uncopied
from streamxf.keys.signing import SigningKey, VerifyKey
from streamxf.keys.vouchers import Vouchers

KeysLike = Union["KeyRing", KeyLike, Iterable[KeyLike], None]
TrustLike = VerifyKey | Location | Iterable[VerifyKey | Location] | None

MAX_OPENED = 1024

T = TypeVar("T")


class KeyRing(Uncopied):
    """Any number of keys, and the signers that are trusted.

    The key that opens a checkpoint is found by its id, so keys from before a rotation can stay in the ring.

    Parameters
    ----------
    keys : KeyProvider, bytes or location, or several
        As in the ``keys=`` of every reader.
    trust : VerifyKey or location, or several
        Whose signatures count. What a `PrivateKey` opens must be signed by one of them, since anyone may have its
        public key; if any are given, everything must.
    allow_unsigned : bool
        Whether that signature may be missing: a private key then shows that a checkpoint is meant for you, but not who
        wrote it.

    Raises
    ------
    ParameterError
        If a key or signer is something else, or signers are given without keys.
    """

    def __init__(self, keys: KeysLike = None, *, trust: TrustLike = None, allow_unsigned: bool = False) -> None:
        if not isinstance(allow_unsigned, bool):
            raise ParameterError(f"allow_unsigned= is True or False, not {type(allow_unsigned).__name__}")
        self._take(_distinct(as_providers(keys)), _as_signers(trust), allow_unsigned)
        if (self._trust or allow_unsigned) and not self._keys:
            raise ParameterError("trust and allow_unsigned apply to what keys open; pass keys, too")

    def _take(self, keys: tuple[KeyProvider, ...], trust: tuple[VerifyKey, ...], allow_unsigned: bool) -> Self:
        self._keys, self._trust, self._allow_unsigned = keys, trust, allow_unsigned
        self._answers = Answers()
        self._opened = lru_cache(MAX_OPENED)(self._open)
        return self

    @property
    def trust(self) -> tuple[VerifyKey, ...]:
        """Whose signatures count."""
        return self._trust

    @property
    def allow_unsigned(self) -> bool:
        """Whether a signature may be missing."""
        return self._allow_unsigned

    @classmethod
    def of(cls, keys: KeysLike, trust: TrustLike = None, allow_unsigned: bool = False) -> KeyRing:
        """Make a ring of whatever a ``keys=`` argument takes: nothing, one key, several, or a ring.

        Raises ParameterError as the constructor, and if `trust` or `allow_unsigned` is given with a ring.
        """
        if isinstance(keys, KeyRing):
            if _as_signers(trust) or allow_unsigned:
                raise ParameterError("keys= is a KeyRing: pass trust= and allow_unsigned= to that")
            return keys
        return cls(keys, trust=trust, allow_unsigned=allow_unsigned)

    def open(self, wrapped: str, vouchers: str, digest: bytes) -> DataKey:
        """Unwrap a data key, and check that someone vouches for the contents.

        `wrapped` and `vouchers` are as they are stored, and `digest` is D of the format. What was opened is remembered.
        A service that did not answer is asked last for some minutes.

        Raises
        ------
        DescriptorError
            If `wrapped` or `vouchers` is malformed.
        KeyMissingError, WrongKeyError, KeyServiceError
            If no key opens the data key: it is wrapped for none; it was altered; a service could not be reached.
        AuthenticationError
            If a MAC, a voucher or a signature is wrong, or the voucher of the key that opened it is missing.
        PolicyError
            If a signature is required, and it is missing or a stranger's.
        ParameterError
            If a third party's key provider breaks its protocol.
        """
        return self.open_by(wrapped, vouchers, digest)[1]

    def open_by(self, wrapped: str, vouchers: str, digest: bytes) -> tuple[KeyProvider, DataKey]:
        """The key that opens a data key, and the result of `open`; raises as that."""
        return self._opened(wrapped, Claim(Vouchers.parse(vouchers), digest))

    def open_pipe(self, wrapped: str) -> DataKey:
        """Unwrap a data key whose vouchers come later, to be checked by `open` then.

        Raises as `open`, and PolicyError if the contents must be signed: a pipe hands them out before the signature.
        """
        return self._opened(wrapped, PIPE)[1]

    def unwrap(self, wrapped: str) -> DataKey:
        """Unwrap a data key whose id is in an index that was vouched for; raises as `open`."""
        return self._opened(wrapped, None)[1]

    def unwrap_unvouched(self, fragment: Parameters) -> DataKey:
        """Unwrap the data key in the fragment of an Encrypt descriptor: no index vouches for it, or for anything else.

        Raises as `open`, and PolicyError if a signature is required.
        """
        return self._opened(format_parameters(fragment), NO_INDEX)[1]

    def _open(self, wrapped: str, claim: Claim | None) -> tuple[KeyProvider, DataKey]:
        envelope, answers = Envelope.parse(wrapped), self._answers
        wrapped_for = [
            (key, entry.data)
            for entry in envelope.recipients
            for key in self._keys
            if key.unwraps and (key.kind, key.id) == entry.key
        ]
        if not wrapped_for:
            raise envelope.missing(self._keys)
        named = [key for key, _ in wrapped_for]
        refusal: PolicyError | None = None
        for key, data in sorted(wrapped_for, key=lambda pair: (bool(answers.error(pair[0])), not pair[0].vouches)):
            try:
                data_key = self._unwrapped(key, data, envelope.dek_id)
                if data_key is None:
                    continue
                if claim is not None and claim.vouchers is not None:
                    claim.vouchers.check(claim.digest, wrapped, data_key, key, answers)
                if claim is not None:
                    claim.check_signature(key, self._trust, self._allow_unsigned, answers.first_error(named))
            except KeyServiceError:
                continue
            except PolicyError as error:
                refusal = refusal or error
                continue
            answers.warn(named, key)
            return key, data_key
        ids = ", ".join(dict.fromkeys(key.id for key in named))
        altered = WrongKeyError(f"key {ids} does not open the wrapped data key: it was altered")
        raise refusal or answers.first_error(named) or altered

    def _unwrapped(self, key: KeyProvider, wrapped: bytes, dek_id: bytes) -> DataKey | None:
        try:
            secret = self._answers.ask(key, "unwrap", wrapped, dek_id)
        except WrongKeyError:
            return None
        if not isinstance(secret, bytes):
            raise breach(key, f"unwrap returned {type(secret).__name__}, not bytes")
        data_key = DataKey(secret)
        return data_key if len(secret) == DEK_BYTES and hmac.compare_digest(data_key.id, dek_id) else None

    def __iter__(self) -> Iterator[KeyProvider]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(key.id for key in self)})"

    def __reduce__(self) -> tuple[Any, ...]:
        if held := [key for key in self if not key.portable]:
            raise TypeError(
                f"a KeyRing with a {type(held[0]).__name__} cannot be pickled: the key could end up on disk or in a "
                "log; make a ring where it is needed"
            )
        return _to_own_child(self)


def _remade(*parts: Any) -> KeyRing:
    return KeyRing.__new__(KeyRing)._take(*parts)


def _to_own_child(ring: KeyRing) -> tuple[Any, ...]:
    return _remade, (ring._keys, ring._trust, ring._allow_unsigned)


ForkingPickler.register(KeyRing, _to_own_child)  # multiprocessing's own pipes, as for `Secret`


def _distinct(keys: Iterable[KeyProvider]) -> tuple[KeyProvider, ...]:
    found: list[KeyProvider] = []
    for key in keys:
        if key not in found:  # not by a hash: a third party's provider need not have one
            found.append(key)
    return tuple(found)


def as_providers(keys: KeysLike, name: str = "keys") -> list[KeyProvider]:
    """What the argument `name` was given, one key or several: each as a `KeyProvider`; raises as `as_provider`."""
    if isinstance(keys, KeyRing):
        raise ParameterError(f"{name}= is a KeyRing, which has its own trust=; KeyRing([*ring]) takes only its keys")
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
            f"{name}= is empty: an empty list would switch checks off without notice; leave {name}= out if that is "
            "what you want"
        )
    return made
