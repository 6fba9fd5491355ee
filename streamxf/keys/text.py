"""Keys as one line of text, for files and environment variables; docs/format.md, "Key files".

``streamxf-secret:<kind>:<id>:<base64url>`` for what must stay secret, ``streamxf-public:...`` for what need not. The id
shows which key it is, and that the line is whole.
"""

from __future__ import annotations

from collections.abc import Callable

from streamxf.errors import ParameterError
from streamxf.keys.b64url import encode_b64url, try_decode
from streamxf.keys.key import Key
from streamxf.keys.pair import HYBRID, X25519, PrivateKey, PublicKey
from streamxf.keys.signing import ED25519, SigningKey, VerifyKey

SecretKey = Key | PrivateKey | SigningKey
AnyKey = SecretKey | PublicKey | VerifyKey

SECRET = "streamxf-secret"
PUBLIC = "streamxf-public"
PROTECTED = "streamxf-protected"

_MAKERS: dict[tuple[str, str], Callable[[bytes], AnyKey]] = {
    (SECRET, Key.kind): Key,
    (SECRET, X25519): lambda data: PrivateKey(data, X25519),
    (SECRET, HYBRID): lambda data: PrivateKey(data, HYBRID),
    (SECRET, ED25519): SigningKey,
    (PUBLIC, X25519): lambda data: PublicKey(data, X25519),
    (PUBLIC, HYBRID): lambda data: PublicKey(data, HYBRID),
    (PUBLIC, ED25519): VerifyKey,
}


def format_key(key: AnyKey) -> str:
    """The line for a key. That of a secret key is secret."""
    if isinstance(key, PublicKey | VerifyKey):
        return f"{PUBLIC}:{kind_of(key)}:{key.id}:{encode_b64url(key.data)}"
    return f"{SECRET}:{kind_of(key)}:{key.id}:{encode_b64url(key.reveal())}"


def parse_key(text: str) -> AnyKey:
    """Undo `format_key`.

    Raises
    ------
    ParameterError
        If the text is no such line, or a part of it is missing. It is not shown, in case it is a key.
    """
    parts = text.strip().split(":")
    if len(parts) != 4 or parts[0] not in (SECRET, PUBLIC):
        raise ParameterError(f"this is no key: it does not look like {SECRET}:kind:id:data or {PUBLIC}:kind:id:data")
    label, kind, key_id, data = parts
    check_kind(label, kind)
    material = try_decode(data)
    if material is None:
        raise ParameterError("this key is damaged: what stands behind its id is not base64url")
    return make_key(label, kind, key_id, material)


def kind_of(key: AnyKey) -> str:
    """The kind that stands in a key's line."""
    return ED25519 if isinstance(key, SigningKey | VerifyKey) else key.kind


def check_kind(label: str, kind: str) -> None:
    """Raises ParameterError if there is no such kind of key, secret or public as `label` says."""
    if (label, kind) not in _MAKERS:
        known = ", ".join(sorted(f"{label}:{kind}" for label, kind in _MAKERS))
        raise ParameterError(f"this key is of a kind that is not known here; known are {known}")


def make_key(label: str, kind: str, key_id: str, material: bytes) -> AnyKey:
    """The key of a kind that `check_kind` knows, whose id must be `key_id`.

    Raises
    ------
    ParameterError
        If `material` is no such key, or another one.
    """
    key = _MAKERS[label, kind](material)
    if key.id != key_id:
        raise ParameterError(f"this key is damaged: its id is {key.id}, and another stands before it")
    return key
