"""Keys in environment variables: `read_environment`, and the location ``env:NAME``."""

from __future__ import annotations

import os
import re

from streamxf.errors import KeyMissingError, ParameterError
from streamxf.keys.text import MAX_TEXT, AnyKey, key_line, read_line

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_SHOWN = 40  # shorter than any key as text, in case one was given in place of a name


def read_environment(name: str, passphrase: str | None = None) -> AnyKey:
    """Read a key from an environment variable, which holds what a key file may hold.

    Parameters
    ----------
    name : str
        The variable's. Child processes inherit it, and other processes of the same user can read it.
    passphrase : str, optional
        For a key that is protected by one.

    Returns
    -------
    Key, PrivateKey, PublicKey, SigningKey or VerifyKey

    Raises
    ------
    KeyMissingError
        If there is no such variable, or a passphrase protects the key and none is given.
    WrongKeyError
        If the passphrase is wrong.
    ParameterError
        If the variable holds no key. What it holds is not shown.
    """
    if not _NAME.fullmatch(name):
        raise ParameterError("this is not the name of an environment variable, which has letters, digits and _")
    text = os.environ.get(name)
    if text is None:
        raise KeyMissingError(f"{_shown(name)} should hold a key, and is not set")
    if len(text) > MAX_TEXT:
        raise ParameterError(f"{_shown(name)}: a key has at most {MAX_TEXT} characters")
    try:
        return read_line(key_line(text), passphrase)
    except ParameterError as error:
        raise ParameterError(f"{_shown(name)} cannot be used: {error.message}") from None


def _shown(name: str) -> str:
    return f"the environment variable {name}" if len(name) <= _SHOWN else "this environment variable"
