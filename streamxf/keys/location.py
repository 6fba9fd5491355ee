"""Keys as text: one line for files and environment variables (docs/format/keys.md, "Key files"), and where a key comes
from: ``file:/run/secrets/key``, ``env:CHECKPOINT_KEY``, ``aws-kms:arn:...``.

A line is ``streamxf-secret:<kind>:<id>:<base64url>`` for secret keys, ``streamxf-public:...`` for public ones. The id
identifies the key, and shows that the line is complete.

The part of a location before the first colon is the scheme. Third parties register theirs in the entry-point group
``streamxf.key_providers``: each is a callable that takes the rest of the text and returns a `KeyProvider`. A path
object, such as ``pathlib.Path``, is a key file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from typing_extensions import Buffer

from streamxf.errors import KeyMissingError, ParameterError, StreamxfError
from streamxf.keys.key import HYBRID, X25519, Key, KeyProvider, encode_b64url, try_decode
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
