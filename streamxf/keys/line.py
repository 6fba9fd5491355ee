"""The key in a file: a line of `streamxf.keys.text`, one that a passphrase protects, or 32 bytes in hexadecimal or
base64, as ``openssl rand`` prints them.
"""

from __future__ import annotations

import base64
import binascii
import re

from streamxf.errors import ParameterError
from streamxf.keys.key import Key
from streamxf.keys.text import PROTECTED, PUBLIC, SECRET, AnyKey, parse_key

_HEX = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
_BASE64 = re.compile(r"[A-Za-z0-9+/]{43}=", re.ASCII)
_BLANK = " \t\r"


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


def _from_base64(line: str) -> bytes | None:
    if not _BASE64.fullmatch(line):
        return None
    try:
        material = base64.b64decode(line, validate=True)
    except binascii.Error:
        return None
    return material if base64.b64encode(material).decode("ascii") == line else None
