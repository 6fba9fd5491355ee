"""From locations to keys. A key itself never stands in an argument, where other users of the machine could read it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from getpass import getpass
from typing import Any

from streamxf.errors import KeyMissingError, ParameterError

PROMPT = "prompt"
PASSPHRASE_VARIABLE = "STREAMXF_PASSPHRASE"


def keys_at(locations: Sequence[str] | None) -> list[Any] | None:
    """The keys at locations, for every ``keys=``; None if there are no locations.

    ``prompt`` asks for the text of a key. A key that a passphrase protects asks for that, unless it stands in the
    environment variable STREAMXF_PASSPHRASE.

    Raises
    ------
    ParameterError, KeyFileError, KeyMissingError, WrongKeyError, KeyServiceError
        If there is no key, or it cannot be read.
    """
    return [_key_at(location) for location in locations] if locations else None


def key_at(location: str | None) -> Any:
    """The key at one location, or None; raises as `keys_at`."""
    return _key_at(location) if location is not None else None


def new_passphrase(file: str) -> str:
    """A passphrase for a new file: that of STREAMXF_PASSPHRASE, or one that is typed twice.

    Raises
    ------
    KeyMissingError
        If there is neither the variable nor a terminal to ask at.
    ParameterError
        If nothing was typed, or two different things.
    """
    given = os.environ.get(PASSPHRASE_VARIABLE)
    if given is not None:
        return given
    first = _asked(f"New passphrase for {file}: ", "a passphrase is asked for")
    if getpass("The same again: ") != first:
        raise ParameterError("the two passphrases differ; nothing was written")
    return first


def _key_at(location: str) -> Any:
    from streamxf.keys.location import find

    if location == PROMPT:
        return _typed()
    try:
        return find(location)
    except KeyMissingError:
        scheme, _, rest = location.partition(":")
        if scheme == "file":
            from streamxf.keys.file import read_location

            return read_location(rest, _passphrase(location))
        if scheme == "env" and rest in os.environ:
            from streamxf.keys import read_environment

            return read_environment(rest, _passphrase(location))
        raise


def _typed() -> Any:
    from streamxf.keys.line import key_line, read_line

    return read_line(key_line(_asked("Key (what a key file holds; it is not shown): ", "a key is asked for")))


def _passphrase(location: str) -> str:
    given = os.environ.get(PASSPHRASE_VARIABLE)
    if given is not None:
        return given
    return _asked(f"Passphrase of {location}: ", f"{location} is protected by a passphrase")


def _asked(question: str, why: str) -> str:
    if not sys.stdin.isatty():
        raise KeyMissingError(
            f"{why}, and there is no terminal to ask in; give the key as file:PATH or env:VARIABLE, and its "
            f"passphrase, if it has one, in {PASSPHRASE_VARIABLE}"
        )
    answer = getpass(question)
    if not answer:
        raise ParameterError("nothing was typed")
    return answer
