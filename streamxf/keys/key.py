"""`KeyProvider`, which every kind of key is; `Key`, a user's 32 bytes; `Secret`, whose 32 bytes are never shown."""

from __future__ import annotations

import base64
import hmac
import os
import re
from abc import ABC, abstractmethod
from functools import cache
from multiprocessing.reduction import ForkingPickler
from typing import Any, ClassVar, NoReturn, Self

from typing_extensions import Buffer

from streamxf import errors
from streamxf.lazy import hashes, hkdf, keywrap, pattern

HYBRID = "hpke-mlkem768-x25519"
X25519 = "hpke-x25519"

_ID = pattern(r"[0-9a-f]{16}", re.ASCII)


def derive(secret: bytes, info: bytes, length: int, salt: bytes | None = None) -> bytes:
    """HKDF-SHA256 (RFC 5869) of `secret`: `length` bytes."""
    kdf, algorithm = _hkdf()
    return kdf(algorithm, length, salt, info).derive(secret)


@cache  # each stream has a key of its own, and looking these up would take a third as long as deriving it
def _hkdf() -> tuple[type[hkdf.HKDF], hashes.SHA256]:
    return hkdf.HKDF, hashes.SHA256()


def public_id(data: bytes, kind: str) -> str:
    """The id of a public key, or of a key in a service: 16 hexadecimal digits."""
    return derive(data, b"streamxf/1 key id " + kind.encode("ascii"), 8).hex()


def is_key_id(text: str) -> bool:
    """Whether a string has the form of a key's id."""
    return _ID.fullmatch(text) is not None


def statement(digest: bytes) -> bytes:
    """V of the format: the bytes that a voucher or a signature for contents with the digest D covers."""
    return b"streamxf/1 contents\0" + digest


def encode_b64url(data: bytes) -> str:
    """Base64url without padding (RFC 4648, section 5)."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def decode_b64url(text: str) -> bytes:
    """Undo `encode_b64url`; raises DescriptorError for anything but its own spelling."""
    data = try_decode(text)
    if data is None:
        raise errors.DescriptorError(f"{errors.shorten(text)!r} is not base64url")
    return data


def try_decode(text: str) -> bytes | None:
    """As `decode_b64url`, for text that must not appear in an error: None if it is anything else."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        return None
    return data if encode_b64url(data) == text else None


class KeyProvider(ABC):
    """A key-encryption key, wherever it is kept: it wraps and unwraps data keys, and may vouch for contents.

    Third parties derive from this class, and register it in the entry-point group ``streamxf.key_providers`` if
    locations (``vault:transit/training``) should lead to it. docs/security.md shows how.

    Attributes
    ----------
    kind : str
        How data keys are wrapped: 1 to 32 lower-case letters, digits and hyphens, recorded with each wrapped key. A
        kind of your own begins with a name of your own.
    id : str
        16 hexadecimal digits, public, by which readers find the key (`streamxf.keys.public_id` makes one).
    unwraps : bool
        Whether it can unwrap; a public key cannot.
    vouches : bool
        Whether only its holders can vouch with it: readers accept what it vouches for, else require a signature.
    portable : bool
        Whether it may be pickled: it holds nothing secret.
    """

    __slots__ = ()

    unwraps: ClassVar[bool] = True
    vouches: ClassVar[bool] = False
    portable: ClassVar[bool] = False

    kind: str
    id: str

    @abstractmethod
    def wrap(self, data_key: bytes, dek_id: bytes) -> bytes:
        """Wrap a data key: 32 secret bytes; the default of `vouch` passes 64. Returns 1 to 6144 bytes.

        `dek_id` is its public id, 32 bytes, which `unwrap` is given again. Bind it to the result, so that it cannot be
        unwrapped with another id. Raises KeyServiceError if a service that holds the key cannot be reached.
        """

    def unwrap(self, wrapped: bytes, dek_id: bytes) -> bytes:
        """Undo `wrap`; raises WrongKeyError if it does not open it, KeyMissingError if it only wraps, and as `wrap`."""
        raise errors.KeyMissingError(f"{self!r} can wrap data keys, but not unwrap them")

    def vouch(self, digest: bytes) -> bytes:
        """Vouch for contents with this digest, 32 bytes; called only if the key `vouches`, and returns as `wrap`.

        The default wraps the digest, twice over: a data key has half that size, so a voucher never passes for one.
        """
        return self.wrap(digest + digest, digest)

    def check_voucher(self, voucher: bytes, digest: bytes) -> None:
        """Check a voucher of `vouch`; return nothing. Raises AuthenticationError if it is wrong; else as `unwrap`."""
        try:
            found = self.unwrap(voucher, digest)
        except errors.WrongKeyError:
            found = b""
        if not hmac.compare_digest(found, digest + digest):
            raise wrong_voucher(self)


def wrong_voucher(key: KeyProvider) -> errors.AuthenticationError:
    """The error for a wrong voucher."""
    return errors.AuthenticationError(
        f"the voucher of key {key.id} is not for these contents: they were altered, or written without that key"
    )


SECRET_BYTES = 32

_TEXT = pattern(rb"[A-Za-z0-9 _./+=:-]+|[a-z][a-z0-9-]*:[ -~]+")


class Uncopied:
    """What `copy` gives back as it is, since by way of a pickle it would lose its keys, or fail.

    ForkingPickler serves multiprocessing's connections: to the children that it starts, and to others only through a
    Listener that was opened on purpose, with an authentication key. `_to_own_child` is what they carry.
    """

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        ForkingPickler.register(cls, cls._to_own_child)

    def _to_own_child(self) -> Any:
        return self.__reduce_ex__(4)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class Secret(Uncopied):
    """Base of keys that stay secret: their material is in no repr, error, log, descriptor or ordinary pickle."""

    __slots__ = ("_material", "id")

    noun: ClassVar[str] = "a key"

    id: str
    _material: bytes

    def __init__(self, material: Buffer) -> None:
        # a near miss is refused: the mistake would go unnoticed, since it encrypts and decrypts
        if isinstance(material, str):
            raise errors.ParameterError(
                f"{self.noun} is 32 bytes, not text: decode it first (bytes.fromhex, base64), and never use a "
                "passphrase as a key"
            )
        secret = as_bytes(material, self.noun)
        make = f"Make one with streamxf.{type(self).__name__}.generate()"
        if len(secret) != SECRET_BYTES:
            raise errors.ParameterError(f"{self.noun} is {SECRET_BYTES} bytes long; this one has {len(secret)}. {make}")
        if reason := _suspicion(secret):
            raise errors.ParameterError(f"{self.noun} is {SECRET_BYTES} random bytes, and {reason}. {make}")
        object.__setattr__(self, "_material", secret)

    @classmethod
    def generate(cls) -> Self:
        """Draw a new one from the operating system's random source."""
        return cls(draw_secret())

    def reveal(self) -> bytes:
        """Return the 32 bytes, to store them elsewhere; of streamxf, only `streamxf.keys.write_key` does that."""
        return self._material

    def _to_own_child(self) -> Any:
        return type(self), (self._material,)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} cannot be changed")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled: it could end up on disk or in a log; pass it on as a secret "
            "(a file, an environment variable) and create it there"
        )


class Key(Secret, KeyProvider):
    """A 256-bit key-encryption key (KEK): it wraps data keys and never encrypts data itself.

    Its holders can read and write. Its `id`, 16 hexadecimal digits derived from it, is public: checkpoints name keys by
    it. Its material never appears in a repr, an error, a log, a descriptor or an ordinary pickle. Only a process that
    ``multiprocessing`` starts from this one may receive it (``dcp.async_save`` by process needs that).

    `material` is 32 bytes from a cryptographic random source (`Key.generate`); a passphrase, or other text, is refused.
    """

    __slots__ = ()

    kind = "aeskw"
    vouches: ClassVar[bool] = True

    def __init__(self, material: Buffer) -> None:
        super().__init__(material)
        object.__setattr__(self, "id", derive(self._material, b"streamxf/1 key id", 8).hex())

    def wrapping_key(self) -> bytes:
        """The AES key that wraps data keys, 32 bytes."""
        return derive(self._material, b"streamxf/1 wrap", 32)

    def vouching_key(self) -> bytes:
        """The HMAC-SHA256 key that vouches for contents, 32 bytes."""
        return derive(self._material, b"streamxf/1 vouch", 32)

    def wrap(self, data_key: bytes, dek_id: bytes) -> bytes:
        return keywrap.aes_key_wrap(self.wrapping_key(), data_key)

    def unwrap(self, wrapped: bytes, dek_id: bytes) -> bytes:
        try:
            return keywrap.aes_key_unwrap(self.wrapping_key(), wrapped)
        except (keywrap.InvalidUnwrap, ValueError):
            raise errors.WrongKeyError(f"key {self.id} does not open this wrapped data key") from None

    def vouch(self, digest: bytes) -> bytes:
        return hmac.digest(self.vouching_key(), statement(digest), "sha256")

    def check_voucher(self, voucher: bytes, digest: bytes) -> None:
        if not hmac.compare_digest(voucher, self.vouch(digest)):
            raise wrong_voucher(self)


def as_bytes(data: Buffer, noun: str) -> bytes:
    """A copy of a buffer of bytes; raises ParameterError for anything else, even a number, which `bytes` would take."""
    try:
        view = memoryview(data)
    except TypeError:
        raise errors.ParameterError(f"{noun} is made of bytes, not of {type(data).__name__}") from None
    if view.format not in ("B", "b", "c"):
        raise errors.ParameterError(f"{noun} is made of bytes; this {type(data).__name__} has items of another kind")
    return bytes(view)


def draw_secret() -> bytes:
    """32 bytes from the operating system's random source that no `Secret` mistakes for text."""
    while _suspicion(secret := os.urandom(SECRET_BYTES)):
        pass
    return secret


def _suspicion(secret: bytes) -> str | None:
    """Why 32 bytes cannot have been drawn at random; None if they can."""
    if len(set(secret)) == 1:
        return "these are all the same"
    if _TEXT.fullmatch(secret):
        return "these are text: a part of a key in hexadecimal or base64, a location ('file:...') or a passphrase"
    return None
