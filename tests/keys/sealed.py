"""What stands beside contents: a wrapped data key and vouchers, to be altered; and key providers that do as told."""

import dataclasses
import hashlib
import hmac
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from streamxf import Encrypt, Key
from streamxf.codecs.encrypt import _WrappedKey
from streamxf.descriptor import Parameters, parse_parameters
from streamxf.errors import KeyServiceError, WrongKeyError
from streamxf.keys import KeyProvider, KeyRing
from streamxf.keys.envelope import DataKey, Envelope, Vouchers
from streamxf.keys.pair import SigningKey

DEK = DataKey(bytes(range(60, 92)))
DIGEST = hashlib.sha256(b"contents").digest()


@dataclass(frozen=True)
class Sealed:
    """Contents with the digest `digest`, as a reader finds them."""

    envelope: Envelope
    vouchers: Vouchers
    digest: bytes = DIGEST

    @classmethod
    def make(cls, recipients: Any, signer: Any = None, data_key: DataKey = DEK, digest: bytes = DIGEST) -> Self:
        envelope = Envelope.seal(data_key, recipients)
        return cls(envelope, Vouchers.make(digest, str(envelope), data_key, recipients, signer), digest)

    def change(self, **fields: Any) -> Self:
        """With other fields of the vouchers."""
        return dataclasses.replace(self, vouchers=dataclasses.replace(self.vouchers, **fields))

    @property
    def fragment(self) -> Parameters:
        """As an Encrypt descriptor has it."""
        return fragment_of(str(self.envelope))

    def open(self, keys: Any, trust: Any = None, allow_unsigned: bool = False) -> DataKey:
        return self.open_with(KeyRing.of(keys, trust, allow_unsigned))

    def open_with(self, ring: KeyRing) -> DataKey:
        return ring.open(str(self.envelope), str(self.vouchers), self.digest)


class Fake(KeyProvider):
    """Does as it is told, and notes that it was asked to unwrap."""

    def __init__(
        self,
        name: str = "a",
        kind: Any = "fake",
        wrapped: Any = b"wrapped",
        unwrapped: Any = DEK.secret,
        vouches: bool = False,
        voucher: Any = b"voucher",
        checked: Any = None,
        log: list[str] | None = None,
    ) -> None:
        self.kind = kind
        self.id = name * 16
        self.wrapped, self.unwrapped, self.voucher, self.checked = wrapped, unwrapped, voucher, checked
        self.vouches = vouches
        self.log = log if log is not None else []

    def wrap(self, data_key: bytes, dek_id: bytes) -> Any:
        return self.wrapped

    def unwrap(self, wrapped: bytes, dek_id: bytes) -> Any:
        self.log.append(self.id[0])
        return self._answer(self.unwrapped)

    def vouch(self, digest: bytes) -> Any:
        return self._answer(self.voucher)

    def check_voucher(self, voucher: bytes, digest: bytes) -> Any:
        return self._answer(self.checked)

    def _answer(self, answer: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer


class Service(KeyProvider):
    """Wraps by adding one to each byte, notes what it unwraps, and raises the next of its `errors`, if any, instead."""

    kind = "acme-service"
    vouches: ClassVar[bool] = True

    def __init__(self, name: str = "a", errors: Iterable[Exception] = ()) -> None:
        self.id = name * 16
        self.errors = iter(errors)
        self.asked: list[bytes] = []

    @classmethod
    def down(cls, name: str = "a") -> Self:
        return cls(name, (KeyServiceError(f"{name} does not answer") for _ in count()))

    def wrap(self, data_key: bytes, dek_id: bytes) -> bytes:
        return bytes((byte + 1) % 256 for byte in data_key)

    def unwrap(self, wrapped: bytes, dek_id: bytes) -> bytes:
        self.asked.append(dek_id + wrapped)
        for error in self.errors:
            raise error
        return bytes((byte - 1) % 256 for byte in wrapped)


class Vault(KeyProvider):
    """A third party's provider that vouches in the default way."""

    kind = "acme-vault"
    vouches: ClassVar[bool] = True

    def __init__(self, secret: bytes = bytes(range(140, 172)), name: str = "5") -> None:
        self.id = name * 16
        self._cipher = AESGCM(secret)

    def wrap(self, data_key: bytes, dek_id: bytes) -> bytes:
        nonce = os.urandom(12)
        return nonce + self._cipher.encrypt(nonce, data_key, dek_id)

    def unwrap(self, wrapped: bytes, dek_id: bytes) -> bytes:
        try:
            return self._cipher.decrypt(wrapped[:12], wrapped[12:], dek_id)
        except (InvalidTag, ValueError):
            raise WrongKeyError(f"the vault key {self.id} does not open this") from None


class Forger(Encrypt):
    """What someone writes with who once had a data key, and everything that is public, but no key that vouches."""

    def __init__(
        self, data_key: DataKey, wrapped: str, vouch: Callable[[bytes], Vouchers], signed: bool = False
    ) -> None:
        signer, session = SigningKey.generate() if signed else None, _WrappedKey(data_key, wrapped, os.getpid())
        vars(self).update(vars(self._made((Key.generate(),), signer, session)))
        object.__setattr__(self, "_forged", vouch)

    def renew(self) -> Self:
        return self

    def vouch(self, digest: bytes) -> str:
        return str(self._forged(digest))


def fragment_of(wrapped: object) -> Parameters:
    return parse_parameters(str(wrapped), repeatable=("w",))


def mac(data_key: DataKey, digest: bytes, wrapped: object) -> bytes:
    """As the format says, in other words than the package's."""
    stated = b"streamxf/1 contents" + b"\0" + digest + str(wrapped).encode("ascii")
    return hmac.new(data_key.mac_key(), stated, hashlib.sha256).digest()
