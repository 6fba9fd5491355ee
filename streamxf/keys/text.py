"""Keys as one line of text, for files and environment variables; docs/format/keys.md, "Key files".

``streamxf-secret:<kind>:<id>:<base64url>`` for secret keys, ``streamxf-public:...`` for public ones. The id identifies
the key, and shows that the line is complete.
"""

from __future__ import annotations

from collections.abc import Callable

from streamxf.errors import ParameterError
from streamxf.keys.derive import HYBRID, X25519, encode_b64url, try_decode
from streamxf.keys.key import Key
from streamxf.keys.pair import ED25519, PrivateKey, PublicKey, SigningKey, VerifyKey

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
    (SECRET, ED25519): SigningKey,
    (PUBLIC, X25519): lambda data: PublicKey(data, X25519),
    (PUBLIC, HYBRID): lambda data: PublicKey(data, HYBRID),
    (PUBLIC, ED25519): VerifyKey,
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
        raise ParameterError("this key is damaged: the part behind its id is not base64url")
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
