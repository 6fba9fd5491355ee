"""Who vouches for contents: a MAC, a voucher for each recipient whose key vouches, a signature; docs/format/keys.md,
"Vouchers".
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self

from streamxf.errors import AuthenticationError, DescriptorError, ParameterError, WrongKeyError, shorten
from streamxf.keys.derive import decode_b64url, encode_b64url, statement
from streamxf.keys.envelope import DataKey, Entry, ask, breach, fault
from streamxf.keys.pair import SigningKey, VerifyKey
from streamxf.keys.provider import KeyProvider, wrong_voucher

Ask = Callable[[KeyProvider, str, bytes, bytes], Any]

_FORM = re.compile(
    r"mac=([0-9a-f]{64})((?:&v=(?!hpke-)[A-Za-z0-9:_-]+)*)(?:&sig=([0-9a-f]{16}):([A-Za-z0-9_-]{86}))?", re.ASCII
)


@dataclass(frozen=True)
class Vouchers:
    """Proofs of who wrote contents, over their digest.

    The MAC, HMAC-SHA256 under the data key, also covers the wrapped data key, and so authenticates the list of
    recipients. An entry follows for each recipient whose key vouches, in the order of the `Envelope`, and a signature.
    """

    mac: bytes
    entries: tuple[Entry, ...] = ()
    signature: tuple[str, bytes] | None = None  # the signer's id, and 64 bytes

    @classmethod
    def make(
        cls,
        digest: bytes,
        wrapped: str,
        data_key: DataKey,
        recipients: Iterable[KeyProvider],
        signer: SigningKey | None = None,
        *,
        kept: tuple[Entry, ...] = (),
        signature: tuple[str, bytes] | None = None,
    ) -> Self:
        """Vouch for contents, with all of `recipients` that can.

        `digest` is D of the format, and `wrapped` the wrapped data key as it is stored with the contents. Vouchers
        that were `kept`, and a `signature` in the place of a new one, must be for the same digest. Raises
        ParameterError if the vouchers are too long, or a key provider breaks its protocol, and KeyServiceError if a
        service that holds a key cannot be reached.
        """
        if signer is not None:
            signature = (signer.id, signer.sign(statement(digest)))
        entries = kept + tuple(Entry.of(key, "vouch", ask(key, "vouch", digest)) for key in recipients if key.vouches)
        vouchers = cls(_mac(data_key, digest, wrapped), entries, signature)
        if reason := fault(str(vouchers), entries):
            raise ParameterError(f"vouchers: {reason}")
        return vouchers

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read vouchers; raises DescriptorError if they are malformed."""
        match = _FORM.fullmatch(text.partition("&_")[0])  # later versions give the rest a meaning
        if match is None:
            raise DescriptorError(f"vouchers {shorten(text)!r} are not of the form mac=...&v=kind:key_id:data&sig=...")
        entries = tuple(map(Entry.parse, match[2].split("&v=")[1:]))
        if reason := fault(text, entries):
            raise DescriptorError(f"vouchers: {reason}")
        return cls(bytes.fromhex(match[1]), entries, (match[3], decode_b64url(match[4])) if match[3] else None)

    def __str__(self) -> str:
        parts = [f"mac={self.mac.hex()}", *(f"v={entry}" for entry in self.entries)]
        if self.signature is not None:
            parts.append(f"sig={self.signature[0]}:{encode_b64url(self.signature[1])}")
        return "&".join(parts)

    def check(self, digest: bytes, wrapped: str, data_key: DataKey, key: KeyProvider, ask_once: Ask) -> None:
        """Check the MAC, and the voucher of the key that opened the data key.

        Raises AuthenticationError if one of them is wrong, or the voucher is missing, and KeyServiceError if a service
        that holds the key cannot be reached.
        """
        if not hmac.compare_digest(self.mac, _mac(data_key, digest, wrapped)):
            raise AuthenticationError(
                "the MAC does not match: the contents, the list of recipients, or the vouchers were altered"
            )
        if not key.vouches:
            return
        voucher = next((entry.data for entry in self.entries if entry.key == (key.kind, key.id)), None)
        if voucher is None:
            raise AuthenticationError(
                f"key {key.id} does not vouch for these contents: its voucher was removed, or they were written "
                "without that key by someone who had the data key"
            )
        try:
            answer = ask_once(key, "check_voucher", voucher, digest)
        except WrongKeyError:
            raise wrong_voucher(key) from None
        if answer is not None:  # False, say, from an author who took this for a predicate
            raise breach(key, f"check_voucher returned {type(answer).__name__}; it returns nothing, or raises")

    def signed_by(self, trust: Iterable[VerifyKey], digest: bytes) -> bool:
        """Whether one of `trust` signed; raises AuthenticationError for a wrong signature in the name of one."""
        if self.signature is None:
            return False
        signer, signature = self.signature
        named = [verify_key for verify_key in trust if verify_key.id == signer]
        for verify_key in named:
            verify_key.verify(signature, statement(digest))
        return bool(named)


def is_signed(key_lines: tuple[str, str] | None) -> bool:
    """Whether a metadata file with these keys, a wrapped data key and vouchers, is signed; raises DescriptorError."""
    return key_lines is not None and Vouchers.parse(key_lines[1]).signature is not None


def _mac(data_key: DataKey, digest: bytes, wrapped: str) -> bytes:
    return hmac.digest(data_key.mac_key(), statement(digest) + wrapped.encode("ascii"), "sha256")
