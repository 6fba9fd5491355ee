"""The fragment of an Encrypt descriptor: the data key, wrapped for each recipient, and who signed it; docs/format.md,
"streamxf.encrypt/1".
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Self

from streamxf.descriptor import MAX_FRAGMENT, Parameters, format_parameters, shorten
from streamxf.errors import (
    DescriptorError,
    KeyMissingError,
    KeyServiceError,
    ParameterError,
    PolicyError,
    StreamxfError,
    WrongKeyError,
)
from streamxf.keys.answers import NOT_OPENED, Answers
from streamxf.keys.b64url import decode_b64url, encode_b64url
from streamxf.keys.datakey import DEK_BYTES, DataKey
from streamxf.keys.provider import KeyProvider
from streamxf.keys.signing import SigningKey, VerifyKey

MAX_RECIPIENTS = 16
MAX_WRAPPED = 6144

_KIND = re.compile(r"[a-z0-9-]{1,32}", re.ASCII)
_ID = re.compile(r"[0-9a-f]{16}", re.ASCII)
_RING = "What takes keys= alone gets both in it: keys=KeyRing([...], trust=...)"


@dataclass(frozen=True)
class Wrapped:
    """A data key wrapped for one recipient.

    Attributes
    ----------
    kind, key_id : str
        Those of the `KeyProvider` that wrapped it.
    data : bytes
    """

    kind: str
    key_id: str
    data: bytes

    def __str__(self) -> str:
        return f"{self.kind}:{self.key_id}:{encode_b64url(self.data)}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises DescriptorError if `text` is no wrapped key."""
        kind, _, rest = text.partition(":")
        key_id, _, data = rest.partition(":")
        if not _KIND.fullmatch(kind) or not _ID.fullmatch(key_id):
            raise DescriptorError(f"streamxf.encrypt: wrapped key {shorten(text)!r} is not kind:key_id:data")
        wrapped = cls(kind, key_id, decode_b64url(data))
        if not 1 <= len(wrapped.data) <= MAX_WRAPPED:
            raise DescriptorError(
                f"streamxf.encrypt: a wrapped key has {len(wrapped.data)} bytes; there must be 1 to {MAX_WRAPPED}"
            )
        return wrapped


@dataclass(frozen=True)
class Envelope:
    """What the fragment says.

    Attributes
    ----------
    dek_id : bytes
        32 bytes.
    recipients : tuple of Wrapped
        1 to 16.
    signature : tuple of str and bytes, or None
        The signer's id, and 64 bytes.
    """

    dek_id: bytes
    recipients: tuple[Wrapped, ...]
    signature: tuple[str, bytes] | None = None

    @classmethod
    def seal(cls, data_key: DataKey, recipients: Iterable[KeyProvider], signer: SigningKey | None = None) -> Self:
        """Wrap a data key for everybody who may read, and sign its id.

        Raises
        ------
        ParameterError
            If there are too many recipients, or a third party's key provider does not keep to its protocol.
        KeyServiceError
            If a service that holds a key cannot be asked.
        """
        dek_id = data_key.id
        wrapped = tuple(_wrap(data_key, dek_id, recipient) for recipient in recipients)
        return cls(dek_id, wrapped, (signer.id, signer.sign(dek_id)) if signer is not None else None).checked()

    @classmethod
    def parse(cls, fragment: Parameters) -> Self:
        """Read a fragment.

        Raises
        ------
        DescriptorError
            If it is not well formed.
        """
        if unknown := {key for key, _ in fragment} - {"dek", "w", "sig"}:
            raise DescriptorError(f"streamxf.encrypt: the fragment has unknown keys {sorted(unknown)}")
        dek_id = decode_b64url(_only(fragment, "dek"))
        if len(dek_id) != 32:
            raise DescriptorError(f"streamxf.encrypt: the data key's id has {len(dek_id)} bytes, not 32")
        recipients = tuple(Wrapped.parse(value) for key, value in fragment if key == "w")
        if not 1 <= len(recipients) <= MAX_RECIPIENTS:
            raise DescriptorError(
                f"streamxf.encrypt: {len(recipients)} wrapped keys; there must be 1 to {MAX_RECIPIENTS}"
            )
        signed = any(key == "sig" for key, _ in fragment)
        if twice := _repeated(recipients):
            raise DescriptorError(f"streamxf.encrypt: the key {twice} stands there twice")
        made = cls(dek_id, recipients, _parse_signature(_only(fragment, "sig")) if signed else None)
        if made.fragment != fragment:
            raise DescriptorError("streamxf.encrypt: the fragment must hold 'dek', then 'w', then 'sig'")
        return made

    @property
    def fragment(self) -> Parameters:
        """As it stands in a descriptor."""
        parts = [("dek", encode_b64url(self.dek_id)), *(("w", str(wrapped)) for wrapped in self.recipients)]
        if self.signature is not None:
            signer, signature = self.signature
            parts.append(("sig", f"{signer}:{encode_b64url(signature)}"))
        return tuple(parts)

    def checked(self) -> Self:
        """Itself, if it fits the format.

        Raises
        ------
        ParameterError
            If it does not.
        """
        if not 1 <= len(self.recipients) <= MAX_RECIPIENTS:
            raise ParameterError(
                f"a checkpoint has 1 to {MAX_RECIPIENTS} recipients, not {len(self.recipients)}; some may share a key"
            )
        if twice := _repeated(self.recipients):
            raise ParameterError(f"the key {twice} stands twice among the recipients; each is wrapped for once")
        size = len(format_parameters(self.fragment))
        if size > MAX_FRAGMENT:
            raise ParameterError(f"the wrapped keys take {size} characters, of which {MAX_FRAGMENT} are allowed")
        return self

    def open(
        self,
        keys: Iterable[KeyProvider],
        trust: Iterable[VerifyKey] = (),
        allow_unsigned: bool = False,
        answers: Answers | None = None,
    ) -> DataKey:
        """Unwrap the data key with whichever of `keys` it is wrapped for, and check who signed it.

        Parameters
        ----------
        keys : iterable of KeyProvider
            Those that authenticate the writer are tried first. A service that cannot be asked is passed over if
            another key opens it.
        trust : iterable of VerifyKey
            Whose signature counts. If there are any, somebody among them must have signed; without them, only where a
            key opened it that does not authenticate the writer.
        allow_unsigned : bool
            Whether a missing signature is acceptable. One by somebody else is not, once there is anybody in `trust`.
        answers : Answers, optional
            What was asked before: nothing is asked twice, and services that did not answer of late are tried last. It
            is kept up to date.

        Raises
        ------
        KeyMissingError
            If it is wrapped for none of `keys`.
        WrongKeyError
            If the one that it names does not open it: it was altered.
        PolicyError
            If it must be signed by one of `trust`, and is not.
        AuthenticationError
            If the signature is not right.
        KeyServiceError
            If a service that holds a key cannot be asked, and no other key opens it.
        ParameterError
            If a third party's key provider does not keep to its protocol.
        """
        known = answers if answers is not None else Answers()
        given = tuple(keys)
        key, data_key, unasked = self.unwrap(given, known)
        self.check_signature(tuple(trust), allow_unsigned, key, unasked)
        for other in given:
            known.warn(other, key)
        return data_key

    def unwrap(
        self, keys: Collection[KeyProvider], answers: Answers
    ) -> tuple[KeyProvider, DataKey, KeyServiceError | None]:
        """The first key that opens it, what it opened, and what a service said that was passed over."""
        before = {id(key): answers.error(key) for key in keys}
        pairs = [
            (key, wrapped)
            for key in sorted(keys, key=lambda key: (before[id(key)] is not None, not key.authenticates_writer))
            for wrapped in self.recipients
            if key.unwraps and (key.kind, key.id) == (wrapped.kind, wrapped.key_id)
        ]
        unasked: KeyServiceError | None = None
        for key, wrapped in pairs:
            secret = answers.recall(key, wrapped.data, self.dek_id)
            if secret is None:
                try:
                    secret = _unwrapped(key, wrapped.data, self.dek_id)
                except KeyServiceError as error:
                    answers.note(key, error)
                    unasked = unasked or error
                    continue
                answers.clear(key)
                answers.remember(key, wrapped.data, self.dek_id, secret)
            if secret == NOT_OPENED:
                continue
            data_key = DataKey(secret)
            if len(secret) == DEK_BYTES and hmac.compare_digest(data_key.id, self.dek_id):
                passed = [said for other, _ in pairs if (said := before[id(other)]) is not None]
                return key, data_key, unasked or next(iter(passed), None)
        if unasked is not None:
            raise unasked
        if pairs:
            ids = ", ".join(dict.fromkeys(key.id for key, _ in pairs))
            raise WrongKeyError(f"key {ids} does not open the wrapped data key: the descriptor was altered")
        wanted = ", ".join(f"{wrapped.key_id} ({wrapped.kind})" for wrapped in self.recipients)
        have = (
            ", ".join(f"{key.id} ({key.kind}{'' if key.unwraps else ', which only wraps'})" for key in keys) or "none"
        )
        half = [key.id for key in keys if (key.kind, key.id) in [(one.kind, one.key_id) for one in self.recipients]]
        missing = f"Reading needs the PrivateKey of {', '.join(half)}" if half else "Pass the right key as keys="
        raise KeyMissingError(f"encrypted for key id {wanted}; keys given: {have}. {missing}")

    def check_signature(
        self, trust: tuple[VerifyKey, ...], allow_unsigned: bool, key: KeyProvider, unasked: KeyServiceError | None
    ) -> None:
        """Check who signed what `key` opened; as `open`. `unasked` is what a service said that was passed over."""
        if self.signature is not None:
            signer, signature = self.signature
            trusted = [verify_key for verify_key in trust if verify_key.id == signer]
            for verify_key in trusted:
                verify_key.verify(signature, self.dek_id)
            if trusted:
                return
        # allow_unsigned= beside trust= is for a signature that is missing, and not for a stranger's
        if allow_unsigned and not (trust and self.signature is not None):
            return
        if key.authenticates_writer and not trust:
            return
        reason = (
            "trust= asks for a signature"
            if key.authenticates_writer
            else "anybody who has the public key can have written it"
        )
        if self.signature is None:
            found, cure = "not signed", "have it saved with Encrypt(..., signer=...), or pass allow_unsigned=True"
        else:
            found = f"signed by {self.signature[0]}, whom trust= does not name"
            cure = "if you trust that writer, pass the signer's VerifyKey in trust="
        if key.authenticates_writer:
            cure += f", or leave trust= out: the key {key.id} shows who wrote"
        # the service might have vouched for the writer
        raise PolicyError(f"the data key is {found}, and {reason}; {cure}. {_RING}") from unasked


def _wrap(data_key: DataKey, dek_id: bytes, recipient: KeyProvider) -> Wrapped:
    data = _asked(recipient, "wrap", data_key.secret, dek_id)
    if not isinstance(data, bytes):
        raise _breach(recipient, f"wrap returned {type(data).__name__}, not bytes")
    if data_key.secret in data:
        raise _breach(recipient, "wrap returned the data key as it is")
    try:
        return Wrapped.parse(str(Wrapped(recipient.kind, recipient.id, data)))
    except DescriptorError as error:
        raise _breach(recipient, error.message) from None


def _unwrapped(key: KeyProvider, data: bytes, dek_id: bytes) -> bytes:
    try:
        secret = _asked(key, "unwrap", data, dek_id)
    except WrongKeyError:
        return NOT_OPENED
    if not isinstance(secret, bytes):
        raise _breach(key, f"unwrap returned {type(secret).__name__}, not bytes")
    return secret


def _asked(key: KeyProvider, operation: str, data: bytes, dek_id: bytes) -> Any:
    """What a provider answers; raises KeyServiceError if it fails in a way that is not in its protocol."""
    failure: StreamxfError
    try:
        return getattr(key, operation)(data, dek_id)
    except StreamxfError as error:
        failure = error.with_traceback(None)
    except Exception as error:  # whatever a third party's provider, or a package below it, raises
        raised = type(error).__name__
        failure = KeyServiceError(f"{type(key).__name__} {key.id} cannot be asked to {operation}: it raised {raised}")
    # out here, and without frames: the data key may stand in those, and in the words of what was raised
    data = b""
    raise failure


def _breach(key: KeyProvider, reason: str) -> ParameterError:
    return ParameterError(f"{type(key).__name__} does not keep to the protocol of KeyProvider: {reason}")


def _parse_signature(text: str) -> tuple[str, bytes]:
    signer, _, signature = text.partition(":")
    data = decode_b64url(signature)
    if not _ID.fullmatch(signer) or len(data) != 64:
        raise DescriptorError(f"streamxf.encrypt: signature {shorten(text)!r} is not signer:64 bytes")
    return signer, data


def _repeated(recipients: Iterable[Wrapped]) -> str | None:
    """The id of a key that more than one data key is wrapped for: a service would be asked for each."""
    ids = [(wrapped.kind, wrapped.key_id) for wrapped in recipients]
    return next((one[1] for one in ids if ids.count(one) > 1), None)


def _only(fragment: Parameters, name: str) -> str:
    values = [value for key, value in fragment if key == name]
    if len(values) != 1:
        raise DescriptorError(f"streamxf.encrypt: the fragment must hold {name!r} once")
    return values[0]
