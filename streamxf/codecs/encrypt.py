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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from multiprocessing.reduction import ForkingPickler
from typing import Any, ClassVar, NoReturn, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from streamxf.codec import BlockInfo, Codec, Role, StreamInfo
from streamxf.descriptor import Descriptor, Parameters
from streamxf.errors import AuthenticationError, CodecError, DescriptorError, KeyMissingError
from streamxf.keys.datakey import DataKey, unwrap, wrap
from streamxf.keys.key import Key, KeyLike, as_key

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


_drawing = threading.Lock()


def _renew_lock_after_fork() -> None:
    # another thread of the parent may have held it, and the child has no such thread
    global _drawing
    _drawing = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock_after_fork)


@dataclass(frozen=True)
class Encrypt(Codec):
    """Encrypt and authenticate each block with AES-256-GCM.

    The key given here wraps a random data key, which is drawn anew for every save and process and never leaves it
    unwrapped. A pickle of the codec does not carry the key: the copy must be given one again before it can write (only
    `multiprocessing`'s own pipes to child processes carry it).

    Parameters
    ----------
    key : Key or bytes
        32 bytes.

    Raises
    ------
    ParameterError
        If the key is not 32 bytes.
    """

    name: ClassVar[str] = "streamxf.encrypt"
    role: ClassVar[Role] = "encryption"

    key: Key | None
    _session: _Session | None = field(default=None, init=False, repr=False, compare=False)

    def __init__(self, key: KeyLike) -> None:
        object.__setattr__(self, "key", as_key(key))
        object.__setattr__(self, "_session", None)

    # -- blocks ------------------------------------------------------------------------------------

    def start(self, stream: StreamInfo) -> _StreamState:
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

    def renew(self) -> Self:
        return type(self)(self._writing_key())

    def _writing_key(self) -> Key:
        if self.key is None:
            raise KeyMissingError(
                "this Encrypt was made to read a checkpoint and cannot write one; make a new Encrypt(key)"
            )
        return self.key

    def _current(self) -> _Session:
        session = self._session
        if session is None or session.writer not in (None, os.getpid()):
            with _drawing:
                session = self._session
                if session is None or session.writer not in (None, os.getpid()):
                    data_key = DataKey.draw()
                    session = _Session(data_key, wrap(data_key, [self._writing_key()]), os.getpid())
                    object.__setattr__(self, "_session", session)
        return session

    # -- descriptor --------------------------------------------------------------------------------

    def descriptor(self) -> Descriptor:
        return Descriptor(self.name, self.version, (), self._current().fragment)

    @classmethod
    def open(cls, descriptor: Descriptor, keys: Iterable[Key]) -> Self:
        """Make the codec that decrypts what `descriptor` describes.

        Raises
        ------
        DescriptorError
            If the descriptor is not well formed.
        KeyMissingError, WrongKeyError
            If none of `keys` opens the data key.
        """
        if descriptor.parameters:
            raise DescriptorError(f"codec {cls.name} takes no parameters after '?'")
        keys = tuple(keys)
        if not descriptor.fragment:
            raise DescriptorError(f"codec {cls.name}: the descriptor carries no wrapped key")
        session = _Session(unwrap(descriptor.fragment, keys), descriptor.fragment, None)
        codec = cls.__new__(cls)
        object.__setattr__(codec, "key", None)
        object.__setattr__(codec, "_session", session)
        return codec

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> NoReturn:
        raise KeyMissingError("the data is encrypted, and this registry has no keys; use streamxf.Registry(keys=...)")

    # -- copies and pickles ------------------------------------------------------------------------

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # copy would go by __reduce__, and lose the key

    def __reduce__(self) -> tuple[Any, ...]:
        return _without_key, (self.key.id if self.key is not None else "unknown",)


class _AbsentKey(Key):
    """Stands where a key was before a pickle left it out: it has the key's id and nothing else."""

    __slots__ = ()

    def __init__(self, key_id: str) -> None:
        object.__setattr__(self, "id", key_id)

    def reveal(self) -> NoReturn:
        raise KeyMissingError(
            f"key {self.id} did not travel with the pickle of this Encrypt; make a new Encrypt(key) here"
        )

    def wrapping_key(self) -> NoReturn:
        self.reveal()


def _without_key(key_id: str) -> Encrypt:
    return Encrypt(_AbsentKey(key_id))


def _to_own_child(codec: Encrypt) -> tuple[Any, ...]:
    # a codec that was opened to read, or lost its key before, has no key to hand on
    return (Encrypt, (codec.key,)) if type(codec.key) is Key else codec.__reduce__()


ForkingPickler.register(Encrypt, _to_own_child)


def _nonce(info: BlockInfo) -> bytes:
    if info.index >= MAX_BLOCKS:
        raise CodecError(f"a stream of more than {MAX_BLOCKS} blocks cannot be encrypted under one key")
    return info.index.to_bytes(11, "big") + (b"\x01" if info.last else b"\x00")
