"""AES-256-GCM encryption in the STREAM construction; docs/security.md says what it protects, docs/format.md has every
byte.

Each stream has a key of its own, derived by HKDF-SHA256 from the save's data key, a fresh 32-byte salt and the header's
digest. Under that key the nonce is the block's number and whether it is the last, so no nonce repeats within a stream,
and blocks cannot be moved, dropped or added. The seal, derived beside the key, stands in the header: it commits to the
key and authenticates the header before anything is decrypted.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from streamxf.codec import BlockInfo, Codec, Role, StreamInfo
from streamxf.descriptor import Descriptor, Parameters
from streamxf.errors import AuthenticationError, CodecError, DescriptorError, KeyMissingError, ParameterError
from streamxf.keys import KeyProvider, KeyRing, KeysLike, SignerLike, SigningKey
from streamxf.keys.datakey import DataKey
from streamxf.keys.envelope import MAX_RECIPIENTS, Envelope
from streamxf.keys.location import as_signing_key
from streamxf.keys.ring import as_providers

if TYPE_CHECKING:  # it takes its time and its memory, and not every process encrypts
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

TAG_BYTES = 16
MAX_BLOCKS = 2**32


class _Session:
    """A data key and the fragment that carries it wrapped.

    `writer` is the process that may encrypt with it; None where it was read. This is no dataclass: `dataclasses.asdict`
    of a codec would spell out the data key.
    """

    __slots__ = ("data_key", "fragment", "writer")

    def __init__(self, data_key: DataKey, fragment: Parameters, writer: int | None) -> None:
        self.data_key = data_key
        self.fragment = fragment
        self.writer = writer


@dataclass(frozen=True)
class _StreamState:
    cipher: AESGCM = field(repr=False)
    seal: bytes


class _Turns:
    """A lock for each process that has a codec: a child of a fork may find one held by a thread that it lacks."""

    __slots__ = ("_locks",)

    def __init__(self) -> None:
        self._locks: dict[int, Any] = {}

    def mine(self) -> Any:
        return self._locks.setdefault(os.getpid(), threading.RLock())

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


@dataclass(frozen=True)
class Encrypt(Codec):
    """Encrypt and authenticate each block with AES-256-GCM.

    The keys given here wrap a random data key, which is drawn anew for every save and process and never leaves it
    unwrapped. A pickle of the codec carries no secret: the copy must be given its keys again before it can write (only
    `multiprocessing`'s own pipes to child processes carry them).

    Parameters
    ----------
    recipients : KeyProvider, bytes or location, or several
        Who may read, at most 16: a `Key` or its 32 bytes, a `PublicKey`, a key service, ``"file:/run/secrets/key"``.
        Any one of them suffices.
    signer : SigningKey or location, optional
        Shows who wrote the checkpoint. Readers that open it with a private key ask for that, so there is a warning if
        it is missing where no recipient shows who wrote.

    Raises
    ------
    ParameterError
        If a key is not 32 bytes or cannot be used otherwise, or there is none or too many.
    """

    name: ClassVar[str] = "streamxf.encrypt"
    role: ClassVar[Role] = "encryption"

    recipients: tuple[KeyProvider, ...]
    signer: SigningKey | None
    _session: _Session | None = field(default=None, init=False, repr=False, compare=False)
    _turns: _Turns = field(init=False, repr=False, compare=False)

    def __init__(self, recipients: KeysLike, *, signer: SignerLike | None = None) -> None:
        made = as_recipients(recipients)
        by = as_signing_key(signer) if signer is not None else None
        accepted = isinstance(recipients, KeyRing) and recipients.allow_unsigned
        if by is None and not accepted and not any(key.authenticates_writer for key in made):
            warnings.warn(
                "nothing will show who wrote this: anybody may have these public keys, and there is no signer=. "
                "Readers will refuse it unless they say allow_unsigned=True; pass signer=, a SigningKey",
                stacklevel=2,
            )
        self._take(made, by, None)

    def _take(self, recipients: tuple[KeyProvider, ...], signer: Any, session: _Session | None) -> Self:
        for name, value in (
            ("recipients", recipients),
            ("signer", signer),
            ("_session", session),
            ("_turns", _Turns()),
        ):
            object.__setattr__(self, name, value)
        return self

    # -- blocks ------------------------------------------------------------------------------------

    def start(self, stream: StreamInfo) -> _StreamState:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        key, seal = self.data_key.stream_keys(stream.salt, stream.header_digest)
        return _StreamState(AESGCM(key), seal)

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
        from cryptography.exceptions import InvalidTag

        out = info.scratch(size)
        try:
            info.state.cipher.decrypt_into(_nonce(info), block, None, out)
        except InvalidTag:
            out[:] = bytes(size)  # decrypt_into leaves what it decrypted there, and nobody has vouched for that
            raise AuthenticationError("AES-GCM tag does not match: the block was altered or moved") from None
        return out

    # -- data key ----------------------------------------------------------------------------------

    @property
    def data_key(self) -> DataKey:
        """The data key in use: the one that was read, or one drawn for this process."""
        return self._current().data_key

    @property
    def key_ids(self) -> tuple[str, ...]:
        """The ids of those who may read."""
        return tuple(key.id for key in self.recipients)

    def renew(self) -> Self:
        self._check_writes()
        return self.__new__(type(self))._take(self.recipients, self.signer, None)

    def _check_writes(self) -> None:
        if not self.recipients:
            raise KeyMissingError(
                "this Encrypt was made to read a checkpoint and cannot write one; make a new Encrypt(key)"
            )

    def _current(self) -> _Session:
        session = self._session
        if session is None or session.writer not in (None, os.getpid()):
            with self._turns.mine():
                session = self._session
                if session is None or session.writer not in (None, os.getpid()):
                    self._check_writes()
                    data_key = DataKey.draw()
                    envelope = Envelope.seal(data_key, self.recipients, self.signer)
                    session = _Session(data_key, envelope.fragment, os.getpid())
                    object.__setattr__(self, "_session", session)
        return session

    # -- descriptor --------------------------------------------------------------------------------

    def descriptor(self) -> Descriptor:
        return Descriptor(self.name, self.version, (), self._current().fragment)

    @classmethod
    def open(cls, descriptor: Descriptor, keys: KeyRing) -> Self:
        """Make the codec that decrypts what `descriptor` describes.

        Raises
        ------
        DescriptorError
            If the descriptor is not well formed.
        KeyMissingError, WrongKeyError, PolicyError, AuthenticationError, KeyServiceError
            As `KeyRing.unwrap`.
        """
        if descriptor.parameters:
            raise DescriptorError(f"codec {cls.name} takes no parameters after '?'")
        if not descriptor.fragment:
            raise DescriptorError(f"codec {cls.name}: the descriptor carries no wrapped key")
        session = _Session(keys.unwrap(descriptor.fragment), descriptor.fragment, None)
        return cls.__new__(cls)._take((), None, session)

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> NoReturn:
        raise KeyMissingError("the data is encrypted, and this registry has no keys; use streamxf.Registry(keys=...)")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Encrypt) and self._readers() == other._readers()

    def __hash__(self) -> int:
        return hash(self._readers())

    def _readers(self) -> tuple[Any, ...]:
        """Who may read and who signed, also where the keys themselves were left out of a pickle."""
        signer = self.signer.id if self.signer is not None else None
        read = self._session.data_key.id if self._session is not None and self._session.writer is None else None
        return tuple((key.kind, key.id) for key in self.recipients), signer, read

    # -- copies and pickles ------------------------------------------------------------------------

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # copy would go by __reduce__, and lose the key

    def __reduce__(self) -> tuple[Any, ...]:
        kept = tuple(key if key.portable else _AbsentKey(key.kind, key.id) for key in self.recipients)
        return _remade, (kept, _AbsentSigner(self.signer.id) if self.signer is not None else None)


class _AbsentKey(KeyProvider):
    """Stands where a key was before a pickle left it out: it has the key's id and nothing else."""

    portable: ClassVar[bool] = True

    def __init__(self, kind: str, key_id: str) -> None:
        self.kind = kind
        self.id = key_id

    def wrap(self, data_key: bytes, dek_id: bytes) -> NoReturn:
        raise _did_not_travel(f"key {self.id}")

    def __repr__(self) -> str:
        return f"key {self.id}, which did not travel"


class _AbsentSigner:
    """The same for a signing key."""

    def __init__(self, key_id: str) -> None:
        self.id = key_id

    def sign(self, dek_id: bytes) -> NoReturn:
        raise _did_not_travel(f"signing key {self.id}")

    def __repr__(self) -> str:
        return f"signing key {self.id}, which did not travel"


def _did_not_travel(what: str) -> KeyMissingError:
    return KeyMissingError(f"{what} did not travel with the pickle of this Encrypt; make a new Encrypt(key) here")


def _remade(recipients: tuple[KeyProvider, ...], signer: Any) -> Encrypt:
    return Encrypt.__new__(Encrypt)._take(recipients, signer, None)


def as_recipients(keys: KeysLike, name: str = "recipients") -> tuple[KeyProvider, ...]:
    """Those for whom data keys are wrapped, 1 to 16, each once.

    Raises
    ------
    ParameterError
        If there are none or more, or one cannot be used.
    """
    if isinstance(keys, KeyRing) and keys.trust:
        raise ParameterError("this KeyRing says in trust= whom to believe when reading; Encrypt takes its keys alone")
    made = tuple(keys) if isinstance(keys, KeyRing) else tuple(KeyRing(as_providers(keys, name) or None))
    if not 1 <= len(made) <= MAX_RECIPIENTS:
        raise ParameterError(f"Encrypt takes a key of 32 bytes, or 1 to {MAX_RECIPIENTS} keys, not {len(made)}")
    return made


def _to_own_child(codec: Encrypt) -> tuple[Any, ...]:
    return _remade, (codec.recipients, codec.signer)


ForkingPickler.register(Encrypt, _to_own_child)


def _nonce(info: BlockInfo) -> bytes:
    if info.index >= MAX_BLOCKS:
        raise CodecError(f"a stream of more than {MAX_BLOCKS} blocks cannot be encrypted under one key")
    return info.index.to_bytes(11, "big") + (b"\x01" if info.last else b"\x00")
