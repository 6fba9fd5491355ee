"""A data key, drawn at random for each save; the same wrapped for each of its recipients; and who vouches for contents:
a MAC, a voucher for each recipient whose key vouches, a signature; docs/format/keys.md, "Wrapped keys" and "Vouchers".
"""

from __future__ import annotations

import hmac
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Self

from streamxf.descriptor import MAX_KEY_LINE
from streamxf.errors import (
    AuthenticationError,
    DescriptorError,
    KeyMissingError,
    KeyServiceError,
    ParameterError,
    StreamxfError,
    WrongKeyError,
    shorten,
)
from streamxf.keys.key import KeyProvider, Uncopied, decode_b64url, derive, encode_b64url, statement, wrong_voucher
from streamxf.keys.pair import SIGNATURES, SigningKey, VerifyKey
from streamxf.lazy import keywrap, pattern

DEK_BYTES = 32
MAX_ENTRY = 2**14
MAX_RECIPIENTS = 16
MAX_SIGNATURES = 4

WRAPPED_KEY = pattern(rb"dek=[0-9a-f]{64}(?:&w=[a-z0-9-]{1,32}:[0-9a-f]{16}:[A-Za-z0-9_-]{1,21846}){1,16}")
"""What looks like an `Envelope`, among other bytes."""

_ENTRY = pattern(r"([a-z0-9+-]{1,32}):([0-9a-f]{16}):(.*)", re.ASCII)
_ENVELOPE = pattern(r"dek=([0-9a-f]{64})((?:&w=[A-Za-z0-9:_-]+)+)", re.ASCII)


class DataKey(Uncopied):
    """A data key (DEK), 32 random bytes, and the values derived from it.

    Not a dataclass: `dataclasses.asdict` would reveal the secret.
    """

    __slots__ = ("secret",)

    def __init__(self, secret: bytes) -> None:
        self.secret = secret

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DataKey) and hmac.compare_digest(self.secret, other.secret)

    def __repr__(self) -> str:
        return "DataKey()"

    @classmethod
    def draw(cls) -> DataKey:
        return cls(os.urandom(DEK_BYTES))

    def __reduce__(self) -> NoReturn:
        raise TypeError("data keys cannot be pickled")

    @property
    def id(self) -> bytes:
        """The public id that a wrapped key is checked against, 32 bytes."""
        return derive(self.secret, b"streamxf/1 dek id", 32)

    def mac_key(self) -> bytes:
        """The HMAC-SHA256 key of the vouchers' MAC, 32 bytes."""
        return derive(self.secret, b"streamxf/1 mac", 32)

    def wrap(self, other: DataKey) -> bytes:
        """The data key of another process that wrote files of the same save, 40 bytes."""
        return keywrap.aes_key_wrap(derive(self.secret, b"streamxf/1 keys", 32), other.secret)

    def unwrap(self, wrapped: bytes) -> DataKey:
        """Undo `wrap`; raises WrongKeyError for anything else."""
        try:
            return DataKey(keywrap.aes_key_unwrap(derive(self.secret, b"streamxf/1 keys", 32), wrapped))
        except (keywrap.InvalidUnwrap, ValueError):
            text = "the data key of another process is not wrapped under the publishing process's"
            raise WrongKeyError(text) from None

    def stream_keys(self, salt: bytes, header_digest: bytes) -> tuple[bytes, bytes]:
        """The AES-256-GCM key and the seal of one stream, 32 bytes each."""
        material = derive(self.secret, b"streamxf/1 stream" + header_digest, 64, salt)
        return material[:32], material[32:]


@dataclass(frozen=True)
class Entry:
    """A wrapped data key, a voucher or a signature, by the key of this kind and id: 1 to 16,384 bytes of `data`."""

    kind: str
    key_id: str
    data: bytes

    def __str__(self) -> str:
        return f"{self.kind}:{self.key_id}:{encode_b64url(self.data)}"

    @property
    def key(self) -> tuple[str, str]:
        """Kind and id, which identify the key."""
        return self.kind, self.key_id

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises DescriptorError if `text` is not an entry."""
        match = _ENTRY.fullmatch(text)
        if match is None:
            raise DescriptorError(f"{shorten(text)!r} is not of the form kind:key_id:data")
        entry = cls(match[1], match[2], decode_b64url(match[3]))
        if not 1 <= len(entry.data) <= MAX_ENTRY:
            raise DescriptorError(f"the entry of key {entry.key_id} has {len(entry.data)} bytes, not 1 to {MAX_ENTRY}")
        return entry

    @classmethod
    def of(cls, provider: KeyProvider, operation: str, answer: object) -> Self:
        """The entry with a provider's `answer`; raises ParameterError if that breaks its protocol."""
        if not isinstance(answer, bytes):
            raise breach(provider, f"{operation} returned {type(answer).__name__}, not bytes")
        try:
            return cls.parse(str(cls(provider.kind, provider.id, answer)))
        except DescriptorError as error:
            raise breach(provider, error.message) from None


@dataclass(frozen=True)
class Envelope:
    """A wrapped data key: its id, 32 bytes, and 1 to 16 entries with the data key, wrapped for one key each."""

    dek_id: bytes
    recipients: tuple[Entry, ...]

    @classmethod
    def seal(cls, data_key: DataKey, recipients: Iterable[KeyProvider], kept: tuple[Entry, ...] = ()) -> Self:
        """Wrap a data key for all who may read and have no entry yet; raises as `checked`, `Entry.of` and `ask`."""
        dek_id, there = data_key.id, [entry.key for entry in kept]
        entries = [*kept]
        for recipient in (key for key in recipients if (key.kind, key.id) not in there):
            entry = Entry.of(recipient, "wrap", ask(recipient, "wrap", data_key.secret, dek_id))
            if data_key.secret in entry.data:
                raise breach(recipient, "wrap returned the data key unprotected")
            entries.append(entry)
        return cls(dek_id, tuple(entries)).checked()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a wrapped data key; raises DescriptorError if it is malformed."""
        match = _ENVELOPE.fullmatch(text)
        if match is None:
            raise DescriptorError(f"wrapped data key {shorten(text)!r} is not of the form dek=id&w=kind:key_id:data")
        envelope = cls(bytes.fromhex(match[1]), tuple(map(Entry.parse, match[2].split("&w=")[1:])))
        try:
            return envelope.checked()
        except ParameterError as error:
            raise DescriptorError(error.message) from None

    def __str__(self) -> str:
        return "&".join([f"dek={self.dek_id.hex()}", *(f"w={entry}" for entry in self.recipients)])

    def checked(self) -> Self:
        """Itself; raises ParameterError if there are no recipients, too many, or one twice, or it is too long."""
        if not 1 <= len(self.recipients) <= MAX_RECIPIENTS:
            raise ParameterError(f"there are {len(self.recipients)} recipients; 1 to {MAX_RECIPIENTS} are allowed")
        if reason := fault(str(self), self.recipients):
            raise ParameterError(f"wrapped data keys: {reason}")
        return self

    def missing(self, keys: Iterable[KeyProvider]) -> KeyMissingError:
        """The error for a reader whose `keys` have no entry here."""
        names = [entry.key for entry in self.recipients]
        wanted = ", ".join(f"{key_id} ({kind})" for kind, key_id in names)
        passed = [f"{key.id} ({key.kind}{'' if key.unwraps else ', which can only wrap'})" for key in keys]
        halves = ", ".join(key.id for key in keys if (key.kind, key.id) in names)
        cure = f"Reading needs the PrivateKey of {halves}" if halves else "Pass the right key"
        return KeyMissingError(f"encrypted for key id {wanted}; keys given: {', '.join(passed) or 'none'}. {cure}")


def fault(text: str, entries: Iterable[Entry]) -> str | None:
    """The rule of the format that `text`, which has these entries, breaks; None if it breaks none."""
    if len(text) > MAX_KEY_LINE:
        return f"they take {len(text)} characters; at most {MAX_KEY_LINE} are allowed"
    keys = Counter(entry.key for entry in entries)
    return next((f"the key {key_id} is named twice" for (_, key_id), count in keys.items() if count > 1), None)


def ask(key: KeyProvider, operation: str, *arguments: bytes) -> Any:
    """A provider's answer; raises KeyServiceError for errors that its protocol does not define."""
    failure: StreamxfError
    try:
        return getattr(key, operation)(*arguments)
    except StreamxfError as error:
        failure = error.with_traceback(None)
    except Exception as error:  # whatever a third party's provider, or a package below it, raises
        failure = KeyServiceError(f"{type(key).__name__} {key.id}: {operation} failed with {type(error).__name__}")
    # raised here, without frames: they, and the text of the original error, may hold the data key
    arguments = ()
    raise failure


def breach(key: KeyProvider, reason: str) -> ParameterError:
    """The error for a provider that breaks its protocol."""
    return ParameterError(f"{type(key).__name__} breaks the KeyProvider protocol: {reason}")


Ask = Callable[[KeyProvider, str, bytes, bytes], Any]

_FORM = pattern(
    r"(?:mac=([0-9a-f]{64})((?:&v=(?!hpke-)[A-Za-z0-9:_-]+)*)|(?=sig=))((?:(?:^|&)sig=[A-Za-z0-9+:_-]+){0,4})", re.ASCII
)


@dataclass(frozen=True)
class Vouchers:
    """Proofs of who wrote contents, over their digest.

    The MAC, HMAC-SHA256 under the data key, also covers the wrapped data key, and so authenticates the list of
    recipients. An entry follows for each recipient whose key vouches, in the order of the `Envelope`, and signatures.
    Contents that are not encrypted have these alone.
    """

    mac: bytes
    entries: tuple[Entry, ...] = ()
    signatures: tuple[Entry, ...] = ()  # of any kind, also those that nobody here knows

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
        signatures: tuple[Entry, ...] = (),
    ) -> Self:
        """Vouch for contents, with all of `recipients` that can.

        `digest` is D of the format, and `wrapped` the wrapped data key as it is stored with the contents. Vouchers
        that were `kept`, and `signatures` beside a new one, must be for the same digest. Raises ParameterError if the
        vouchers are too long, or a key provider breaks its protocol, and KeyServiceError if a service that holds a key
        cannot be reached.
        """
        there = [entry.key for entry in kept]
        fresh = (key for key in recipients if key.vouches and (key.kind, key.id) not in there)
        entries = kept + tuple(Entry.of(key, "vouch", ask(key, "vouch", digest)) for key in fresh)
        made = cls(_mac(data_key, digest, wrapped), entries, signatures)
        return made.with_signature(digest, signer) if signer is not None else made._checked()

    def with_signature(self, digest: bytes, signer: SigningKey) -> Self:
        """The same with a signature by `signer`, where an older one of that key stood; ParameterError if there are four
        by others.
        """
        own = Entry(signer.kind, signer.id, signer.sign(signer.statement(digest)))
        signatures = {each.key: each for each in self.signatures} | {own.key: own}
        return replace(self, signatures=tuple(signatures.values()))._checked()

    def _checked(self) -> Self:
        if len(self.signatures) > MAX_SIGNATURES:
            raise ParameterError(f"there are {MAX_SIGNATURES} signatures already, which is the most")
        if reason := fault(str(self), self.entries):
            raise ParameterError(f"vouchers: {reason}")
        return self

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read vouchers; raises DescriptorError if they are malformed."""
        match = _FORM.fullmatch(text.partition("&_")[0])  # later versions give the rest a meaning
        if match is None:
            raise DescriptorError(f"vouchers {shorten(text)!r} are not of the form mac=...&v=kind:key_id:data&sig=...")
        entries = tuple(map(Entry.parse, (match[2] or "").split("&v=")[1:]))
        signatures = tuple(map(Entry.parse, f"&{match[3].lstrip('&')}".split("&sig=")[1:]))
        reason = fault(text, entries) or fault("", signatures)
        for each in signatures:
            if each.kind in SIGNATURES and len(each.data) != SIGNATURES[each.kind].signature:
                reason = f"a signature of {each.kind} has {len(each.data)} bytes"
        if reason:
            raise DescriptorError(f"vouchers: {reason}")
        return cls(bytes.fromhex(match[1] or ""), entries, signatures)

    def __str__(self) -> str:
        parts = [f"mac={self.mac.hex()}"] if self.mac else []
        return "&".join([*parts, *(f"v={each}" for each in self.entries), *(f"sig={each}" for each in self.signatures)])

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
            raise breach(key, f"check_voucher returned {type(answer).__name__}; it must return None, or raise")

    def signed_by(self, trust: Iterable[VerifyKey], digest: bytes) -> bool:
        """Whether one of `trust` signed; raises AuthenticationError for a wrong signature in the name of one."""
        named = [(key, each.data) for each in self.signatures for key in trust if each.key == (key.kind, key.id)]
        for key, signature in named:
            key.verify(signature, key.statement(digest))
        return bool(named)

    @property
    def signers(self) -> tuple[str, ...]:
        """The ids of those in whose names there are signatures, which nobody has verified."""
        return tuple(each.key_id for each in self.signatures)


def _mac(data_key: DataKey, digest: bytes, wrapped: str) -> bytes:
    return hmac.digest(data_key.mac_key(), statement(digest) + wrapped.encode("ascii"), "sha256")


@dataclass(frozen=True)
class KeySet:
    """The keys of a metadata file or of a plain file: wrapped data keys, and what vouches for the contents."""

    envelopes: tuple[Envelope, ...]  # that of the process that published, then those of other writers
    vouchers: Vouchers
    digest: bytes  # D of the format, for which the vouchers are made; it changes with the index alone

    @classmethod
    def parse(cls, wrapped: str, vouchers: str, digest: bytes, head: bytes = b"") -> Self:
        """As they are stored, with what looks like other writers' in the `head`; raises DescriptorError. Where nothing
        is encrypted, `wrapped` is empty.
        """
        vouched = Vouchers.parse(vouchers)
        if bool(wrapped) != bool(vouched.mac):
            raise DescriptorError("a wrapped data key and a MAC belong together, and one of them is missing")
        envelopes = {first.dek_id: first for first in ([Envelope.parse(wrapped)] if wrapped else [])}
        for text in cls.wrapped_in(head) if wrapped else ():
            with suppress(DescriptorError):
                envelopes.setdefault((other := Envelope.parse(text)).dek_id, other)
        return cls(tuple(envelopes.values()), vouched, digest)

    @classmethod
    def of_signer(cls, digest: bytes, signer: SigningKey, others: Self | None = None) -> Self:
        """Of contents that are not encrypted: signatures by `signer`, and by `others` if they are for this digest."""
        kept = others.vouchers if others is not None and others.digest == digest else Vouchers(b"")
        return cls((), kept.with_signature(digest, signer), digest)

    @staticmethod
    def wrapped_in(data: bytes) -> list[str]:
        """What looks like a wrapped data key, among other bytes."""
        return [found.decode("ascii") for found in WRAPPED_KEY.findall(data)]

    @staticmethod
    def readers_of(wrapped: str) -> list[tuple[str, str]]:
        """For whom a data key is wrapped, by the kinds and ids of their keys; raises DescriptorError."""
        return [entry.key for entry in Envelope.parse(wrapped).recipients]

    @property
    def readers(self) -> list[list[tuple[str, str]]]:
        """For whom each data key is wrapped."""
        return [[entry.key for entry in envelope.recipients] for envelope in self.envelopes]

    @property
    def vouching(self) -> list[tuple[str, str]]:
        """Whose keys vouch."""
        return [entry.key for entry in self.vouchers.entries]

    @property
    def signers(self) -> tuple[str, ...]:
        """The ids of those who signed, which nobody has verified."""
        return self.vouchers.signers

    @property
    def lines(self) -> tuple[str, str]:
        """The publisher's wrapped data key and the vouchers, as they are stored."""
        return "".join(map(str, self.envelopes[:1])), str(self.vouchers)

    def only(self, ids: Collection[bytes]) -> KeySet:
        """The wrapped keys of these data keys; others are the text of a name in the pickle, say."""
        return replace(self, envelopes=tuple(envelope for envelope in self.envelopes if envelope.dek_id in ids))

    def change(
        self,
        data_keys: Sequence[DataKey],
        kept: Collection[tuple[str, str]] | None,
        kept_vouchers: Collection[tuple[str, str]] | None,
        readers: Sequence[KeyProvider] = (),
        vouching: Iterable[KeyProvider] = (),
        signer: SigningKey | None = None,
    ) -> KeySet:
        """The same `data_keys`, one for each envelope, for recipients that are `kept`, and for `readers`.

        Of the vouchers, `kept_vouchers` stay, and `vouching` keys without one make theirs, if they can. None keeps all.
        """
        envelopes = []
        for envelope, data_key in zip(self.envelopes, data_keys, strict=True):
            staying = tuple(entry for entry in envelope.recipients if kept is None or entry.key in kept)
            envelopes.append(Envelope.seal(data_key, readers, staying))
        old = tuple(entry for entry in self.vouchers.entries if kept_vouchers is None or entry.key in kept_vouchers)
        about = self.digest, str(envelopes[0]), data_keys[0], vouching, signer
        return KeySet(
            tuple(envelopes), Vouchers.make(*about, kept=old, signatures=self.vouchers.signatures), self.digest
        )
