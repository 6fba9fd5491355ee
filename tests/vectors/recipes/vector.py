"""A vector: files, what a reader is given, and what has to come of it; README.md has the words of its JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.sealing import KEY, OTHER_KEY, READER, TRUSTED


@dataclass(frozen=True)
class Reader:
    """What a reader is given.

    Attributes
    ----------
    held : tuple of (str, bytes)
        The kind of each key, and its 32 secret bytes.
    trust : tuple of bytes
        Public Ed25519 keys.
    allow_unsigned : bool
    """

    held: tuple[tuple[str, bytes], ...] = ()
    trust: tuple[bytes, ...] = ()
    allow_unsigned: bool = False

    def described(self) -> dict[str, Any]:
        """As the JSON has it; what is empty is left out."""
        entry: dict[str, Any] = {}
        if self.held:
            entry["keys"] = [{"kind": kind, "secret": secret.hex()} for kind, secret in self.held]
        if self.trust:
            entry["trust"] = [public.hex() for public in self.trust]
        if self.allow_unsigned:
            entry["allow_unsigned"] = True
        return entry


NOTHING = Reader()
SIGNERS = Reader(trust=(TRUSTED,))
HELD = Reader((("aeskw", KEY),))
OTHERS = Reader((("aeskw", OTHER_KEY),))


def holding(*kinds: str, trust: tuple[bytes, ...] = (TRUSTED,), allow_unsigned: bool = False) -> Reader:
    """A reader with `READER` as a private key of these kinds, or with `KEY` for the kind `aeskw`."""
    return Reader(tuple((kind, KEY if kind == "aeskw" else READER) for kind in kinds), trust, allow_unsigned)


@dataclass(frozen=True)
class Vector:
    """One vector.

    Attributes
    ----------
    name, about : str
    make : callable
        Gives the files by name; called only where they are not there yet.
    outcome : dict
        What is in it, or the rule that it breaks.
    reader : Reader
    facts : dict
        What else the JSON says.
    """

    name: str
    about: str
    make: Callable[[], dict[str, bytes]]
    outcome: dict[str, Any]
    reader: Reader = NOTHING
    facts: dict[str, Any] = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        """The vector's JSON, but for its files."""
        return {"name": self.name, "about": self.about, **self.reader.described(), **self.facts, **self.outcome}


def digest_of(data: bytes) -> dict[str, Any]:
    """How a JSON tells what bytes there are."""
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def holds(name: str, about: str, make: Callable[[], bytes], data: bytes, reader: Reader = NOTHING) -> Vector:
    """A plain file that holds `data`."""
    return Vector(name, about, lambda: {name: make()}, {"holds": digest_of(data)}, reader)


def breaks(rule: str, name: str, about: str, file: bytes, reader: Reader = NOTHING) -> Vector:
    """A plain file that is refused."""
    full = f"{rule.replace(' ', '-')}-{name}"
    return Vector(full, about, lambda: {full: file}, {"breaks": rule}, reader)
