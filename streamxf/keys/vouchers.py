"""Who stands for contents: a MAC, a voucher for each recipient whose key vouches, a signature; docs/format/keys.md,
"Vouchers".
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from streamxf.descriptor import shorten
from streamxf.errors import AuthenticationError, DescriptorError, ParameterError, WrongKeyError
from streamxf.keys.b64url import decode_b64url, encode_b64url
from streamxf.keys.datakey import DataKey
from streamxf.keys.derive import statement
from streamxf.keys.entry import Entry, ask, breach, fault
from streamxf.keys.provider import KeyProvider, wrong_voucher
from streamxf.keys.signing import SigningKey

_FORM = re.compile(
    r"mac=([0-9a-f]{64})((?:&v=(?!hpke-)[A-Za-z0-9:_-]+)*)(?:&sig=([0-9a-f]{16}):([A-Za-z0-9_-]{86}))?", re.ASCII
)


@dataclass(frozen=True)
class Vouchers:
    """What vouches for contents, which stand there by their digest alone.

    Attributes
    ----------
    mac : bytes
        HMAC-SHA256 under the data key.
    entries : tuple of Entry
        A voucher for each recipient whose key vouches, in the order of the `Envelope`.
    signature : tuple of str and bytes, or None
        The signer's id, and 64 bytes.
    """

    mac: bytes
    entries: tuple[Entry, ...] = ()
    signature: tuple[str, bytes] | None = None

    @classmethod
    def make(
        cls, digest: bytes, data_key: DataKey, recipients: Iterable[KeyProvider], signer: SigningKey | None = None
    ) -> Self:
        """Vouch for contents, with all of `recipients` that can.

        `digest` is D of the format. Raises ParameterError if the vouchers are too long, or a key provider breaks its
        protocol, and KeyServiceError if a service that holds a key cannot be reached.
        """
        signature = (signer.id, signer.sign(statement(digest))) if signer is not None else None
        entries = tuple(Entry.of(key, "vouch", ask(key, "vouch", digest)) for key in recipients if key.vouches)
        made = cls(_mac(data_key, digest), entries, signature)
        if reason := fault(str(made), entries):
            raise ParameterError(f"vouchers: {reason}")
        return made

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read vouchers; raises DescriptorError if they are malformed."""
        match = _FORM.fullmatch(text)
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

    def check(self, digest: bytes, data_key: DataKey, key: KeyProvider) -> None:
        """Check the MAC, and the voucher of the key that opened the data key.

        Raises AuthenticationError if one of them is wrong, or the voucher is missing, and KeyServiceError if a service
        that holds the key cannot be reached.
        """
        if not hmac.compare_digest(self.mac, _mac(data_key, digest)):
            raise AuthenticationError("the MAC does not match: the contents, or what vouches for them, were altered")
        if not key.vouches:
            return
        voucher = next((entry.data for entry in self.entries if entry.key == (key.kind, key.id)), None)
        if voucher is None:
            raise AuthenticationError(
                f"key {key.id} does not vouch for these contents: its voucher was removed, or they were written "
                "without that key by someone who had the data key"
            )
        try:
            answer = ask(key, "check_voucher", voucher, digest)
        except WrongKeyError:
            raise wrong_voucher(key) from None
        if answer is not None:  # False, say, from an author who took this for a predicate
            raise breach(key, f"check_voucher returned {type(answer).__name__}; it returns nothing, or raises")


def _mac(data_key: DataKey, digest: bytes) -> bytes:
    return hmac.digest(data_key.mac_key(), statement(digest), "sha256")
