"""What a key file or an environment variable holds: a line by `format_key` or `protect_key`, or 32 bytes in hexadecimal
or base64, as ``openssl rand`` prints them.
"""

from __future__ import annotations

import base64
import binascii
import re

from streamxf.errors import ParameterError
from streamxf.keys.key import Key
from streamxf.keys.text import PROTECTED, PUBLIC, SECRET, AnyKey, parse_key

MAX_TEXT = 2**16

_HEX = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
_BASE64 = re.compile(r"[A-Za-z0-9+/]{43}=", re.ASCII)
_BLANK = " \t\r"


def key_line(text: str) -> str:
    """The one line that counts: comments and blank lines around it do not.

    Raises
    ------
    ParameterError
        If there is none, or another one.
    """
    lines = [line.strip(_BLANK) for line in text.split("\n")]
    found = [line for line in lines if line and not line.startswith("#")]
    if len(found) != 1:
        raise ParameterError(f"it holds {len(found)} lines that are neither blank nor a comment (#); a key is one line")
    return found[0]


def is_public(line: str) -> bool:
    """Whether anybody may see the key in this line."""
    return line.startswith(f"{PUBLIC}:")


def read_line(line: str, passphrase: str | None = None) -> AnyKey:
    """The key in a line, which no error shows.

    Raises
    ------
    ParameterError
        If there is none in it, it is damaged, or there is a passphrase although nothing needs one.
    KeyMissingError
        If it is protected by a passphrase, and there is none.
    WrongKeyError
        If there is another one.
    """
    label = line.partition(":")[0]
    if label == PROTECTED:
        from streamxf.keys.passphrase import open_protected

        return open_protected(line, passphrase)
    if passphrase is not None:
        raise ParameterError("the key is not protected by a passphrase; leave passphrase= out")
    if label in (SECRET, PUBLIC):
        return parse_key(line)
    if _HEX.fullmatch(line):
        return Key(bytes.fromhex(line))
    material = _from_base64(line)
    if material is None:
        raise ParameterError(
            f"there is no key in it: it does not look like {SECRET}:..., {PUBLIC}:... or {PROTECTED}:..., nor like 64 "
            "hexadecimal digits or 44 characters of base64"
        )
    return Key(material)


def _from_base64(line: str) -> bytes | None:
    if not _BASE64.fullmatch(line):
        return None
    try:
        material = base64.b64decode(line, validate=True)
    except binascii.Error:
        return None
    return material if base64.b64encode(material).decode("ascii") == line else None
