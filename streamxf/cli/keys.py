"""From locations to keys. Keys are never passed on the command line, where other users could read them."""

from __future__ import annotations

import os
import sys
from getpass import getpass
from typing import Any

from streamxf.errors import KeyMissingError, ParameterError

PROMPT = "prompt"
PASSPHRASE_VARIABLE = "STREAMXF_PASSPHRASE"


def key_at(location: str) -> Any:
    """The key at a location.

    ``prompt`` asks for the text of a key. Where a passphrase protects the key it is taken from the environment variable
    STREAMXF_PASSPHRASE, or asked for.

    Raises
    ------
    ParameterError, KeyFileError, KeyMissingError, WrongKeyError, KeyServiceError
        If there is no key, or it cannot be read.
    """
    from streamxf.keys.line import key_line, read_line
    from streamxf.keys.location import find, maker

    if location == PROMPT:
        return read_line(key_line(_asked("Key (what a key file holds; it is not shown): ", "a key is asked for")))
    try:
        return find(location)
    except KeyMissingError:
        scheme, _, rest = location.partition(":")
        if scheme == "file" or (scheme == "env" and rest in os.environ):
            return maker(scheme)(rest, _passphrase(f"Passphrase of {location}: ", f"{location} has a passphrase"))
        raise


def new_passphrase(file: str) -> str:
    """A passphrase for a new file: that of STREAMXF_PASSPHRASE, or one that is typed twice.

    Raises
    ------
    KeyMissingError
        If there is neither the variable nor a terminal to ask at.
    ParameterError
        If nothing was typed, or two different things.
    """
    first = _passphrase(f"New passphrase for {file}: ", "a passphrase is asked for")
    if PASSPHRASE_VARIABLE not in os.environ and getpass("The same again: ") != first:
        raise ParameterError("the two passphrases differ; nothing was written")
    return first


def _passphrase(question: str, why: str) -> str:
    given = os.environ.get(PASSPHRASE_VARIABLE)
    return given if given is not None else _asked(question, why)


def _asked(question: str, why: str) -> str:
    if not sys.stdin.isatty():
        raise KeyMissingError(
            f"{why}, and there is no terminal to ask at; give the key as file:PATH or env:VARIABLE, and its "
            f"passphrase, if it has one, in {PASSPHRASE_VARIABLE}"
        )
    answer = getpass(question)
    if not answer:
        raise ParameterError("nothing was typed")
    return answer
