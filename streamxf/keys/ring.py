"""`KeyRing`: the keys that a reader may use, found by their ids, and whose signatures it trusts.

Keys as text: one line for files and environment variables (docs/format/keys.md, "Key files"), and where a key comes
from: ``file:/run/secrets/key``, ``env:CHECKPOINT_KEY``, ``aws-kms:arn:...``.

A line is ``streamxf-secret:<kind>:<id>:<base64url>`` for secret keys, ``streamxf-public:...`` for public ones. The id
identifies the key, and shows that the line is complete.

The part of a location before the first colon is the scheme. Third parties register theirs in the entry-point group
``streamxf.key_providers``: each is a callable that takes the rest of the text and returns a `KeyProvider`. A path
object, such as ``pathlib.Path``, is a key file.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from time import monotonic
from typing import Any, NamedTuple, TypeVar, Union

from typing_extensions import Buffer

from streamxf.descriptor import Parameters, format_parameters
from streamxf.engine import ForkLock
from streamxf.errors import (
    AuthenticationError,
    KeyMissingError,
    KeyServiceError,
    ParameterError,
    PolicyError,
    StreamxfError,
    WrongKeyError,
)
from streamxf.keys.envelope import DEK_BYTES, DataKey, Envelope, Vouchers, ask, breach
from streamxf.keys.key import HYBRID, X25519, Key, KeyProvider, Uncopied, encode_b64url, try_decode
from streamxf.keys.pair import SIGNATURES, PrivateKey, PublicKey, SigningKey, VerifyKey

SecretKey = Key | PrivateKey | SigningKey
AnyKey = SecretKey | PublicKey | VerifyKey

SECRET = "streamxf-secret"
PUBLIC = "streamxf-public"
PROTECTED = "streamxf-protected"

MAX_KEY_FILE = 2**16

_MAKERS: dict[tuple[str, str], Callable[[bytes], AnyKey]] = {
    (SECRET, Key.kind): Key,
    (SECRET, X25519): lambda data: PrivateKey(data, X25519),
    (SECRET, HYBRID): lambda data: PrivateKey(data, HYBRID),
    **{(SECRET, kind): partial(SigningKey, kind=kind) for kind in SIGNATURES},
    (PUBLIC, X25519): lambda data: PublicKey(data, X25519),
    (PUBLIC, HYBRID): lambda data: PublicKey(data, HYBRID),
    **{(PUBLIC, kind): partial(VerifyKey, kind=kind) for kind in SIGNATURES},
}


def format_key(key: AnyKey) -> str:
    """The line for a key. That of a secret key is secret."""
    if isinstance(key, PublicKey | VerifyKey):
        return f"{PUBLIC}:{key.kind}:{key.id}:{encode_b64url(key.data)}"
    return f"{SECRET}:{key.kind}:{key.id}:{encode_b64url(key.reveal())}"


def parse_key(text: str) -> AnyKey:
    """Undo `format_key`; raises ParameterError if the text, which is not shown, is something else or incomplete."""
    parts = text.strip(" \t\r\n").split(":")
    if len(parts) != 4 or parts[0] not in (SECRET, PUBLIC):
        raise ParameterError(f"this is not a key: it does not look like {SECRET}:kind:id:data or {PUBLIC}:kind:id:data")
    label, kind, key_id, data = parts
    check_kind(label, kind)
    material = try_decode(data)
    if material is None:
        raise ParameterError("this key is damaged: the part after its id is not base64url")
    return make_key(label, kind, key_id, material)


def check_kind(label: str, kind: str) -> None:
    """Raises ParameterError if there is no such kind of key, secret or public as `label` says."""
    if (label, kind) not in _MAKERS:
        known = ", ".join(sorted(f"{label}:{kind}" for label, kind in _MAKERS))
        raise ParameterError(f"this key is of an unknown kind; the known ones are {known}")


def make_key(label: str, kind: str, key_id: str, material: bytes) -> AnyKey:
    """The key of a kind that `check_kind` knows; raises ParameterError if its id is not `key_id`."""
    key = _MAKERS[label, kind](material)
    if key.id != key_id:
        raise ParameterError(f"this key is damaged: its id is {key.id}, and its line names another")
    return key


PROVIDER_GROUP = "streamxf.key_providers"

Location = str | os.PathLike[str]
KeyLike = KeyProvider | Buffer | Location
SignerLike = SigningKey | Location

_FORMAT_KINDS = frozenset({"aeskw", "hpke-x25519", "hpke-mlkem768-x25519", "aws-kms"})
_PLACES = {
    "file": "streamxf.keys.file:read_location",
    "env": "streamxf.keys.file:read_environment",
    "aws-kms": "streamxf.keys.aws:AwsKms",
}
_SHOWN = 31  # characters of a file name: fewer than 16 bytes take in hexadecimal

T = TypeVar("T")


def as_provider(key: KeyLike) -> KeyProvider:
    """Return `key` as a `KeyProvider`: bytes are a `Key`, a string is a location, a path object is a key file.

    Raises ParameterError if it is none of these, or leads to a key that opens nothing; also as `find_key`.
    """
    found = _followed(key)
    if isinstance(found, SigningKey | VerifyKey):
        use = "signer=" if isinstance(found, SigningKey) else "trust="
        raise ParameterError(f"{_named(key, found)}, which opens nothing; pass it as {use}")
    if not isinstance(found, KeyProvider):
        return Key(found)
    own = any(cls.__module__.startswith("streamxf.") and cls is not KeyProvider for cls in type(found).__mro__)
    if found.kind in _FORMAT_KINDS and not own:
        raise ParameterError(
            f"{type(found).__name__} has the kind {found.kind!r}, which the format defines; give it a kind of its own"
        )
    return found


def as_verify_key(signer: VerifyKey | Location) -> VerifyKey:
    """The argument of ``trust=`` as a `VerifyKey`; raises as `as_provider`."""
    takes = "trust= takes a location that leads to a VerifyKey ('file:trainer.pub'), a streamxf.VerifyKey, or several"
    return _as(signer, VerifyKey, takes)


def as_signing_key(signer: SignerLike) -> SigningKey:
    """The argument of ``signer=`` as a `SigningKey`; raises as `as_provider`."""
    takes = "signer= takes a location that leads to a SigningKey ('file:trainer.sign'), or a streamxf.SigningKey"
    return _as(signer, SigningKey, takes)


def _as(value: object, cls: type[T], takes: str) -> T:
    found = _followed(value)
    if isinstance(found, cls):
        return found
    if isinstance(found, KeyProvider | SigningKey | VerifyKey):
        raise ParameterError(f"{_named(value, found)}; {takes}")
    raise ParameterError(f"{takes}, not {type(found).__name__}")


def several(values: Any, name: str, make: Callable[[Any], T]) -> tuple[T, ...]:
    """Apply `make` to each entry of the argument `name`: nothing, one or several; errors say which entry it was."""
    if values is None:
        return ()
    if isinstance(values, str | Buffer | KeyProvider) or not isinstance(values, Iterable):
        return (make(values),)
    found = []
    for number, entry in enumerate(values):
        try:
            found.append(make(entry))
        except StreamxfError as error:
            error.message = f"{name}[{number}]: {error.message}"
            raise
    if not found:
        raise ParameterError(
            f"{name}= is empty: an empty list would silently switch checks off; if you want that, leave {name}= out"
        )
    return tuple(found)


def find_key(location: Location, passphrase: Callable[[], str] | None = None) -> KeyProvider | SigningKey | VerifyKey:
    """The key at a location, or in the file at a path. What `passphrase` returns opens a key that one protects.

    Raises KeyFileError, KeyMissingError or KeyServiceError if it cannot be read there, and ParameterError if the string
    has no known scheme. The string may be a key, so no error shows it.
    """
    text = location if isinstance(location, str) else f"file:{os.fsdecode(location)}"
    scheme, colon, rest = text.partition(":")
    known = key_schemes()
    if not colon or scheme not in known:
        begin = f"{guess} A" if (guess := _guess(text)) else "a"
        raise ParameterError(
            f"{begin} key is 32 bytes, not a string; a string is a location: "
            "'file:PATH', 'env:VARIABLE', 'aws-kms:ARN', or that of an installed provider. This one begins with "
            "none of " + ", ".join(known)
        )
    make = find_provider(scheme)
    try:
        found = make(rest)
    except KeyMissingError:
        if passphrase is None or (scheme != "file" and (scheme != "env" or rest not in os.environ)):
            raise
        found = make(rest, passphrase())
    if not isinstance(found, KeyProvider | SigningKey | VerifyKey) or (
        scheme not in _PLACES and not isinstance(found, KeyProvider)
    ):
        raise ParameterError(f"the key provider {scheme!r} returned a {type(found).__name__}, not a KeyProvider")
    return found


def _followed(key: Any) -> Any:
    return find_key(key) if isinstance(key, str | os.PathLike) else key


def _named(value: object, found: KeyProvider | SigningKey | VerifyKey) -> str:
    """A key that was given, or the location that led to it, which is therefore not a key and may be shown."""
    what = f"the {type(found).__name__} {found.id}"
    return f"{os.fspath(value)!r:.200} holds {what}" if isinstance(value, str | os.PathLike) else f"this is {what}"


def _guess(text: str) -> str:
    """Guess the meaning of a string that is not a location. It may hold a key, so errors show little of it."""
    if text.startswith((f"{SECRET}:", f"{PUBLIC}:", f"{PROTECTED}:")):
        return "this is a key itself; put it into a file or an environment variable, and pass its location."
    if text and os.path.isfile(text):
        return f"did you mean 'file:{text}'?" if len(text) <= _SHOWN else "if this is a file, put 'file:' before it."
    return ""


def key_schemes() -> dict[str, list[str]]:
    """All schemes, each with the installed packages that provide it: none for streamxf's own. Imports nothing."""
    found: dict[str, list[str]] = {scheme: [] for scheme in _PLACES}
    for name in sorted({point.name for point in entry_points(group=PROVIDER_GROUP)} - found.keys()):
        dists = (point.dist for point in _points(name))
        found[name] = list(dict.fromkeys(f"{dist.name}=={dist.version}" for dist in dists if dist is not None))
    return found


def find_provider(scheme: str) -> Callable[..., Any]:
    """The callable that makes a key of the rest of a location; raises ParameterError if there is none, or one fails."""
    points = {point.value: point for point in _points(scheme)}
    if len(points) > 1:
        raise ParameterError(
            f"several packages provide keys for {scheme!r}: {', '.join(sorted(points))}; uninstall all but one"
        )
    (point,) = points.values()
    try:
        loaded: Callable[..., Any] = point.load()
    except Exception as error:  # whatever a foreign module raises while it is imported
        raise ParameterError(f"the key provider {scheme!r} ({point.value}) cannot be imported: {error}") from error
    if not callable(loaded):
        raise ParameterError(f"the key provider {scheme!r} ({point.value}) is not a callable that makes a KeyProvider")
    return loaded


def _points(scheme: str) -> Iterable[EntryPoint]:
    if scheme in _PLACES:
        return [EntryPoint(scheme, _PLACES[scheme], PROVIDER_GROUP)]
    return entry_points(group=PROVIDER_GROUP, name=scheme)


KeysLike = Union["KeyRing", KeyLike, Iterable[KeyLike], None]
TrustLike = VerifyKey | Location | Iterable[VerifyKey | Location] | None

MOST_REMEMBERED = 2**13
REST_SECONDS = 300.0


class Claim(NamedTuple):
    """Vouchers for a digest, stored with a wrapped data key; or else why there are none, and what to do."""

    vouchers: Vouchers | None = None
    digest: bytes = b""
    unsigned: str = "it is not signed"
    cure: str = "have it saved with a signer"


_NO_INDEX = Claim(
    unsigned="a checkpoint without an index cannot be signed", cure="save it with streamxf.FileSystemWriter"
)
_PIPE = Claim(unsigned="in a pipe, the signature comes last", cure="open a file that can seek")


class KeyRing(Uncopied):
    """Any number of keys, and the signers that are trusted.

    The key that opens a checkpoint is found by its id, so keys from before a rotation can stay in the ring.

    Parameters
    ----------
    keys : KeyProvider, bytes or location, or several
        As in the ``keys=`` of every reader.
    trust : VerifyKey or location, or several
        Trusted signers. Contents for a `PrivateKey` must be signed by one of them, since anyone may have its public
        key; if any are given, all contents must, encrypted or not.
    allow_unsigned : bool
        Whether that signature may be missing: a private key then shows for whom it was written, but not by whom.

    Raises ParameterError if a key or signer cannot be used, or `allow_unsigned` is given without keys, or beside
    `trust`.
    """

    def __init__(self, keys: KeysLike = None, *, trust: TrustLike = None, allow_unsigned: bool = False) -> None:
        if not isinstance(allow_unsigned, bool):
            raise ParameterError(f"allow_unsigned= is True or False, not {type(allow_unsigned).__name__}")
        keys = [*keys] if isinstance(keys, Iterator) else keys
        providers, given = as_providers(keys), several(keys, "keys", self.anchored)
        held = (each for each in given if not isinstance(each, str) and not getattr(each, "portable", False))
        self.locations = () if any(True for _ in held) else given
        """What another process can open the same keys by; empty if one was given that lies in memory."""
        # not by a hash: a third party's provider need not have one
        self._keys = tuple(key for place, key in enumerate(providers) if key not in providers[:place])
        self._trust, self._allow_unsigned = several(trust, "trust", as_verify_key), allow_unsigned
        if allow_unsigned and (self._trust or not self._keys):
            why = "trust= names who has to sign" if self._trust else "without keys nothing has to be signed"
            raise ParameterError(f"allow_unsigned= accepts data that nobody signed, and {why}: leave it out")
        self._answers = _Answers()

    @property
    def trust(self) -> tuple[VerifyKey, ...]:
        """The trusted signers."""
        return self._trust

    @property
    def allow_unsigned(self) -> bool:
        """Whether a signature may be missing."""
        return self._allow_unsigned

    @classmethod
    def of(cls, keys: KeysLike, trust: TrustLike = None, allow_unsigned: bool = False) -> KeyRing:
        """Make a ring from the value of a ``keys=`` argument: None, one key, several, or a ring.

        Raises ParameterError as the constructor, and if `trust` or `allow_unsigned` is given with a ring.
        """
        if isinstance(keys, KeyRing):
            if several(trust, "trust", as_verify_key) or allow_unsigned:
                raise ParameterError("keys= is a KeyRing: pass trust= and allow_unsigned= to that")
            return keys
        return cls(keys, trust=trust, allow_unsigned=allow_unsigned)

    @staticmethod
    def anchored(key: Any) -> Any:
        """What means the same in every working folder: of a relative location of a file, and of a path object, an
        absolute one; all else as it is. ``~`` is the home of whoever opens it.
        """
        if not isinstance(key, str | os.PathLike):
            return key
        text = key if isinstance(key, str) else f"file:{os.fsdecode(key)}"
        scheme, _, path = text.partition(":")
        is_path = scheme == "file" and path and not path.startswith(("/", "~", f"{SECRET}:", f"{PROTECTED}:"))
        return f"file:{os.path.join(os.getcwd(), path)}" if is_path else text

    def open(self, wrapped: str, vouchers: str, digest: bytes) -> DataKey:
        """Unwrap a data key, and check that someone vouches for the contents.

        `wrapped` and `vouchers` are as they are stored, and `digest` is D of the format. Answers of keys are
        remembered. A service that did not answer is asked last for some minutes.

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
        return self._open(wrapped, Claim(Vouchers.parse(vouchers), digest))

    def open_pipe(self, wrapped: str) -> DataKey:
        """Unwrap a data key whose vouchers come later, to be checked by `open` then.

        Raises as `open`, and PolicyError if the contents must be signed: a pipe hands them out before the signature.
        """
        return self._open(wrapped, _PIPE)[1]

    def unwrap(self, wrapped: str) -> DataKey:
        """Unwrap a data key whose id is in an index that was vouched for; raises as `open`."""
        return self._open(wrapped, None)[1]

    def unwrap_unvouched(self, fragment: Parameters | str) -> DataKey:
        """Unwrap the data key in the fragment of an Encrypt descriptor: no index vouches for it, or for anything else.

        Raises as `open`, and PolicyError if a signature is required.
        """
        return self._open(fragment if isinstance(fragment, str) else format_parameters(fragment), _NO_INDEX)[1]

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
                    claim.vouchers.check(claim.digest, wrapped, data_key, key, answers.ask)
                if claim is not None:
                    self._check_signature(key, claim, answers.first_error(named))
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

    @staticmethod
    def check_signed(trust: tuple[VerifyKey, ...], vouchers: str, digest: bytes) -> None:
        """Check that one of `trust` signed contents, without a key; PolicyError, AuthenticationError if not."""
        made = Vouchers.parse(vouchers) if vouchers else None
        if made is None:
            raise PolicyError(
                "it is not signed, and signers are trusted, one of whom has to sign (trust); have it signed (`streamxf "
                "sign`), or leave trust out if you know where it comes from"
            )
        if not made.signed_by(trust, digest):
            found, cure = _strangers(made)
            raise PolicyError(f"{found}; {cure}")

    def _unwrapped(self, key: KeyProvider, wrapped: bytes, dek_id: bytes) -> DataKey | None:
        try:
            secret = self._answers.ask(key, "unwrap", wrapped, dek_id)
        except WrongKeyError:
            return None
        if not isinstance(secret, bytes):
            raise breach(key, f"unwrap returned {type(secret).__name__}, not bytes")
        data_key = DataKey(secret)
        return data_key if len(secret) == DEK_BYTES and hmac.compare_digest(data_key.id, dek_id) else None

    def _check_signature(self, key: KeyProvider, claim: Claim, unanswered: KeyServiceError | None) -> None:
        """Contents that `key` opened may need a signature (docs/format/keys.md, "What a reader requires").
        `unanswered` is why another key, which might have vouched, did not open them.
        """
        if key.vouches and not self.trust:
            return
        if self.allow_unsigned or (claim.vouchers is not None and claim.vouchers.signed_by(self.trust, claim.digest)):
            return
        found, cure = claim.unsigned, claim.cure if self.trust else f"{claim.cure}, or accept it so (allow_unsigned)"
        if claim.vouchers is not None and claim.vouchers.signatures:
            found, cure = _strangers(claim.vouchers)
        if key.vouches:
            found += ", and since signers are trusted, one of them has to sign"
            cure += f", or trust no signer: the key {key.id} vouches for the contents"
        else:
            found += ", and anyone who has the public key can have written it"
        raise PolicyError(f"{found}; {cure}. A KeyRing holds keys and trusted signers together") from unanswered

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
                "log; create the ring where it is needed"
            )
        return self._to_own_child()

    def _to_own_child(self) -> tuple[Any, ...]:
        return partial(KeyRing, trust=self.trust or None, allow_unsigned=self.allow_unsigned), (self._keys or None,)


def _strangers(vouchers: Vouchers) -> tuple[str, str]:
    who = ", ".join(f"{each.key_id} ({each.kind})" for each in vouchers.signatures)
    cure = "if you trust that writer, pass the signer's public key (trust)"
    return f"it is signed by {who}, who {'is' if len(vouchers.signatures) == 1 else 'are'} not trusted", cure


class _Answers:
    """Remembers the answers of keys.

    A checkpoint has a data key for each process that wrote it. To wait for the same service for each of a thousand
    would take hours: one that did not answer is asked last for a while, and nothing is asked twice.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Any, WrongKeyError | AuthenticationError | None]] = {}
        self._silent: dict[tuple[str, str], tuple[float, str]] = {}
        self._warned: set[tuple[str, str]] = set()
        self._turns = ForkLock()

    def ask(self, key: KeyProvider, operation: str, data: bytes, bound_to: bytes) -> Any:
        """As `envelope.ask`, for ``unwrap`` and ``check_voucher``; that something is wrong is remembered, too."""
        name = f"{operation} {key.kind} {key.id} ".encode()
        question = hashlib.sha256(name + bound_to + data).digest()  # `bound_to` has 32 bytes
        with self._turns.here():  # one thread at a time asks for a key
            known = self._known.get(question)
            if known is None:
                try:
                    known = ask(key, operation, data, bound_to), None
                except (WrongKeyError, AuthenticationError) as error:
                    known = None, error
                except KeyServiceError as error:
                    self._silent[key.kind, key.id] = (monotonic() + REST_SECONDS, error.message)
                    raise
                self._silent.pop((key.kind, key.id), None)
                if len(self._known) >= MOST_REMEMBERED:
                    self._known.pop(next(iter(self._known)), None)
                self._known[question] = known
        answer, wrong = known
        if wrong is not None:
            raise type(wrong)(wrong.message)
        return answer

    def error(self, key: KeyProvider) -> KeyServiceError | None:
        """The recent failure of `key`, if there was one."""
        until, message = self._silent.get((key.kind, key.id), (0.0, ""))
        return KeyServiceError(message) if monotonic() < until else None

    def first_error(self, keys: Iterable[KeyProvider]) -> KeyServiceError | None:
        return next(filter(None, map(self.error, keys)), None)

    def warn(self, keys: Iterable[KeyProvider], used: KeyProvider) -> None:
        """Warn once of each key that could not be reached, since `used` stood in for it."""
        for key in keys:
            error = self.error(key)
            if error is None or (key.kind, key.id) in self._warned:
                continue
            self._warned.add((key.kind, key.id))
            warnings.warn(
                f"a key service did not answer, and key {used.id} ({used.kind}) was used instead: {error}. For "
                f"{REST_SECONDS / 60:.0f} minutes it is asked only for what no other key opens",
                stacklevel=2,
            )


def as_providers(keys: KeysLike, name: str = "keys") -> tuple[KeyProvider, ...]:
    """The keys in the argument `name`, one or several, each as a `KeyProvider`; raises as `as_provider`."""
    if isinstance(keys, KeyRing):
        raise ParameterError(f"{name}= is a KeyRing, which has its own trust=; KeyRing([*ring]) takes only its keys")
    if not isinstance(keys, KeyProvider | SigningKey | VerifyKey | Buffer | str | os.PathLike | Iterable | None):
        raise ParameterError(
            f"{name}= takes a key (32 bytes, a streamxf.Key, a location such as 'file:key.txt'), several, or a "
            f"KeyRing, not {type(keys).__name__}"
        )
    return several(keys, name, as_provider)
