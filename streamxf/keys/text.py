"""Keys as one line of text, for files and environment variables; docs/format/keys.md, "Key files".

``streamxf-secret:<kind>:<id>:<base64url>`` for what must stay secret, ``streamxf-public:...`` for what need not. The id
shows which key it is, and that the line is complete. A `Key` may also be 32 bytes in hexadecimal or base64, as
``openssl rand`` prints them.
"""

from __future__ import annotations

import base64
import binascii
import re
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

MAX_TEXT = 2**16

_HEX = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
_BASE64 = re.compile(r"[A-Za-z0-9+/]{43}=", re.ASCII)
_BLANK = " \t\r"

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


def key_line(text: str) -> str:
    """The line besides comments and blank lines in a file's text; raises ParameterError if there is not exactly one."""
    lines = [line.strip(_BLANK) for line in text.split("\n")]
    found = [line for line in lines if line and not line.startswith("#")]
    if len(found) != 1:
        raise ParameterError(f"it has {len(found)} lines besides blank ones and comments (#); a key is one line")
    return found[0]


def read_line(line: str, passphrase: str | None = None) -> AnyKey:
    """The key in a line, which no error shows.

    Raises ParameterError if the line holds no key, it is damaged, or there is a passphrase that is not needed;
    KeyMissingError if there is none and one protects the key; and WrongKeyError if it is wrong.
    """
    label = line.partition(":")[0]
    if label == PROTECTED:
        from streamxf.keys.passphrase import open_protected

        return open_protected(line, passphrase)
    if passphrase is not None:
        raise ParameterError("the key is not protected by a passphrase; leave passphrase= out")
    if label in (SECRET, PUBLIC):
        return parse_key(line)
    material = bytes.fromhex(line) if _HEX.fullmatch(line) else _from_base64(line)
    if material is None:
        raise ParameterError(
            f"there is no key in it: it does not look like {SECRET}:..., {PUBLIC}:... or {PROTECTED}:..., nor like 64 "
            "hexadecimal digits or 44 characters of base64"
        )
    return Key(material)


def parse_key(text: str) -> AnyKey:
    """Undo `format_key`; raises ParameterError if the text, which is not shown, is something else or incomplete."""
    parts = text.strip().split(":")
    if len(parts) != 4 or parts[0] not in (SECRET, PUBLIC):
        raise ParameterError(f"this is not a key: it does not look like {SECRET}:kind:id:data or {PUBLIC}:kind:id:data")
    label, kind, key_id, data = parts
    check_kind(label, kind)
    material = try_decode(data)
    if material is None:
        raise ParameterError("this key is damaged: what follows its id is not base64url")
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


def _from_base64(line: str) -> bytes | None:
    if not _BASE64.fullmatch(line):
        return None
    try:
        material = base64.b64decode(line, validate=True)
    except binascii.Error:
        return None
    return material if base64.b64encode(material).decode("ascii") == line else None
