"""AES-256-GCM encryption in the STREAM construction; docs/security.md has its limits, docs/format/ every byte.

Each stream has a key of its own, derived by HKDF-SHA256 from the save's data key, a fresh 16-byte salt and the header's
digest. Under that key the nonce is the block's number and whether it is the last, so no nonce repeats within a stream,
and blocks cannot be moved, dropped or added. The seal, derived together with the key, is stored in the header: it
commits to the key and authenticates the header before anything is decrypted.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, Self

from streamxf.codec import BlockInfo, Codec, Role, StreamInfo
from streamxf.descriptor import Descriptor
from streamxf.engine import ForkLock
from streamxf.errors import (
    AuthenticationError,
    ChainError,
    CodecError,
    DescriptorError,
    KeyMissingError,
    ParameterError,
)
from streamxf.keys import KeyProvider, KeyRing, KeysLike, SignerLike, SigningKey
from streamxf.keys.envelope import MAX_RECIPIENTS, DataKey, Envelope, Vouchers
from streamxf.keys.key import Uncopied
from streamxf.keys.ring import as_providers, as_signing_key
from streamxf.lazy import aead, exceptions

TAG_BYTES = 16
MAX_BLOCKS = 2**32


class _WrappedKey(NamedTuple):
    """A data key, wrapped for the recipients by the process `writer`; None where it was read."""

    data_key: DataKey
    wrapped: str
    writer: int | None


@dataclass(slots=True)
class _StreamState:
    cipher: aead.AESGCM = field(repr=False)
    seal: bytes


@dataclass(frozen=True)
class Encrypt(Uncopied, Codec):
    """Encrypt and authenticate each block with AES-256-GCM.

    The keys given here wrap a random data key, which is drawn for every save and process and never leaves it unwrapped.
    The process that publishes also vouches for the contents, with the keys that can, and signs them. A pickle of the
    codec contains no secret: the copy needs its keys again before it can write (only `multiprocessing`'s own pipes to
    child processes pass them on).

    Parameters
    ----------
    recipients : KeyProvider, bytes or location, or several
        Who may read, at most 16: a `Key` or its 32 bytes, a `PublicKey`, a key service, ``"file:/run/secrets/key"``.
        Any one of them suffices.
    signer : SigningKey or location, optional
        Signs published contents. Readers with a private key require a signature, so without a signer there is a warning
        unless a recipient's key vouches.

    Raises ParameterError for an unusable key, such as one that is not 32 bytes, and for no or too many recipients.
    """

    name: ClassVar[str] = "streamxf.encrypt"
    role: ClassVar[Role] = "encryption"

    recipients: tuple[KeyProvider, ...]
    signer: SigningKey | None
    _session: _WrappedKey | None = field(default=None, init=False, repr=False, compare=False)
    if TYPE_CHECKING:  # no field: `dataclasses.asdict` would copy it
        _turns: ForkLock

    def __init__(self, recipients: KeysLike, *, signer: SignerLike | None = None) -> None:
        vars(self).update(recipients=(), signer=None)  # for tracebacks that show what variables hold
        providers = self.recipients_of(recipients)
        by = as_signing_key(signer) if signer is not None else None
        accepted = isinstance(recipients, KeyRing) and recipients.allow_unsigned
        if by is None and not accepted and not any(key.vouches for key in providers):
            warnings.warn(
                "readers cannot tell who wrote this: anyone may have these public keys, and there is no signer. "
                "They will refuse it, unless they accept it unsigned (allow_unsigned)",
                stacklevel=2,
            )
        vars(self).update(vars(self._made(providers, by)))

    @staticmethod
    def recipients_of(keys: KeysLike) -> tuple[KeyProvider, ...]:
        """Those for which data keys are wrapped. Raises ParameterError unless they are 1 to 16, usable, each once."""
        if isinstance(keys, KeyRing) and keys.trust:
            raise ParameterError("this KeyRing has trust=, which is for reading; pass only its keys: Encrypt([*ring])")
        ring = keys if isinstance(keys, KeyRing) else KeyRing(as_providers(keys, "recipients") or None)
        if not 1 <= len(ring) <= MAX_RECIPIENTS:
            raise ParameterError(f"Encrypt takes a key of 32 bytes, or 1 to {MAX_RECIPIENTS} keys, not {len(ring)}")
        return tuple(ring)

    @classmethod
    def _made(cls, recipients: tuple[KeyProvider, ...], signer: Any, session: _WrappedKey | None = None) -> Self:
        codec = cls.__new__(cls)
        vars(codec).update(recipients=recipients, signer=signer, _session=session, _turns=ForkLock(threading.RLock))
        return codec

    def start(self, stream: StreamInfo) -> _StreamState:
        key, seal = self.data_key.stream_keys(stream.salt, stream.header_digest)
        return _StreamState(aead.AESGCM(key), seal)

    def encode(self, block: memoryview, info: BlockInfo) -> memoryview:
        out = info.scratch(len(block) + TAG_BYTES)
        info.state.cipher.encrypt_into(_nonce(info), block, None, out)
        return out

    def decode(self, block: memoryview, info: BlockInfo) -> memoryview:
        size = len(block) - TAG_BYTES
        if not 0 <= size <= info.limit:
            raise CodecError(
                f"encrypted block of {len(block)} bytes: from {TAG_BYTES} to {info.limit + TAG_BYTES} are allowed here"
            )
        out = info.scratch(size)
        try:
            info.state.cipher.decrypt_into(_nonce(info), block, None, out)
        except exceptions.InvalidTag:
            out[:] = bytes(size)  # decrypt_into leaves unauthenticated plaintext there
            raise AuthenticationError("AES-GCM tag does not match: the block was altered or moved") from None
        return out

    @property
    def data_key(self) -> DataKey:
        """The one that was read, or one drawn for this process."""
        return self._current().data_key

    @property
    def wrapped(self) -> str:
        """The data key, wrapped for the recipients, as it is stored."""
        self._check_writes()
        return self._current().wrapped

    def vouch(self, digest: bytes) -> str:
        """Vouch for contents by their digest, D of the format: all recipients' keys that can, and the signer. Raises
        KeyMissingError if this codec cannot write; otherwise as `Vouchers.make`.
        """
        self._check_writes()
        session = self._current()
        return str(Vouchers.make(digest, session.wrapped, session.data_key, self.recipients, self.signer))

    @property
    def key_ids(self) -> tuple[str, ...]:
        return tuple(key.id for key in self.recipients)

    def renew(self) -> Self:
        self._check_writes()
        return self._made(self.recipients, self.signer)

    def _check_writes(self) -> None:
        if not self.recipients:
            raise KeyMissingError("this Encrypt was made to read, and cannot write; make a new Encrypt(key)")

    def _current(self) -> _WrappedKey:
        session = self._session
        if session is None or session.writer not in (None, os.getpid()):
            with self._turns.here():
                session = self._session
                if session is None or session.writer not in (None, os.getpid()):
                    self._check_writes()
                    if isinstance(self.signer, _Absent):  # before anything is written that it must sign
                        raise self.signer.error()
                    data_key = DataKey.draw()
                    session = _WrappedKey(data_key, str(Envelope.seal(data_key, self.recipients)), os.getpid())
                    object.__setattr__(self, "_session", session)
        return session

    def descriptor(self) -> Descriptor:
        return Descriptor(self.name, self.version)

    @classmethod
    def rebuild(cls, descriptor: Descriptor, keys: KeyRing | DataKey | None = None) -> Self:
        """Make the codec that decrypts: with a data key, or with one that the descriptor carries and `keys` open.

        Nothing vouches for the latter: it is in a checkpoint without an index. Raises DescriptorError if the descriptor
        is malformed, or has a wrapped key exactly where it must not; otherwise as `KeyRing.unwrap_unvouched`.
        """
        if descriptor.parameters:
            raise DescriptorError(f"codec {cls.name} takes no parameters before '#'")
        if keys is None:
            raise KeyMissingError("the data is encrypted, and there are no keys here; use streamxf.Registry(keys=...)")
        opened = isinstance(keys, DataKey)
        if opened == bool(descriptor.fragment):
            found = "a wrapped data key, which belongs elsewhere" if opened else "no wrapped data key"
            raise DescriptorError(f"codec {cls.name}: the descriptor has {found}")
        if isinstance(keys, DataKey):
            return cls.reading(keys)
        return cls.reading(keys.unwrap_unvouched(descriptor.fragment))

    @classmethod
    def reading(cls, data_key: DataKey) -> Self:
        return cls._made((), None, _WrappedKey(data_key, "", None))

    @classmethod
    def from_text(cls, parameters: Mapping[str, str], keys: KeyRing) -> Self:
        if parameters:
            raise ChainError("chain text: encrypt takes no parameters")
        if len(keys) != 1:
            raise ChainError(f"chain text: 'encrypt' needs exactly one key in keys=, and there are {len(keys)}")
        return cls(keys)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Encrypt) and self._readers() == other._readers()

    def __hash__(self) -> int:
        return hash(self._readers())

    def _readers(self) -> tuple[Any, ...]:
        """Who may read and who signs, also where the keys themselves were left out of a pickle."""
        signer = self.signer.id if self.signer is not None else None
        read = self._session.data_key.id if self._session is not None and self._session.writer is None else None
        return tuple((key.kind, key.id) for key in self.recipients), signer, read

    def __reduce__(self) -> tuple[Any, ...]:
        kept = tuple(key if key.portable else _Absent("key", key) for key in self.recipients)
        return self._made, (kept, _Absent("signing key", self.signer) if self.signer is not None else None)

    def _to_own_child(self) -> tuple[Any, ...]:
        return self._made, (self.recipients, self.signer)


class _Absent(KeyProvider):
    """Stands in for a key that a pickle left out: it has that key's kind and id."""

    portable: ClassVar[bool] = True

    def __init__(self, noun: str, key: Any) -> None:
        self.noun, self.kind, self.id = noun, key.kind, key.id

    def wrap(self, data_key: bytes, dek_id: bytes) -> NoReturn:
        raise self.error()

    def error(self) -> KeyMissingError:
        return KeyMissingError(f"{self!r} was left out when this Encrypt was pickled; make a new Encrypt(key) here")

    def __repr__(self) -> str:
        return f"{self.noun} {self.id}"


def _nonce(info: BlockInfo) -> bytes:
    if info.index >= MAX_BLOCKS:
        raise CodecError(f"a stream of more than {MAX_BLOCKS} blocks cannot be encrypted under one key")
    return info.index.to_bytes(11, "big") + (b"\x01" if info.last else b"\x00")
