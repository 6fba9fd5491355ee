"""A vector: a file, what a reader is given, and what has to come of it; README.md has the words of its JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Keys:
    """What a reader is given: `held` has pairs of a kind of wrapped key and 32 bytes, `trust` public Ed25519 keys."""

    held: tuple[tuple[str, bytes], ...] = ()
    trust: tuple[bytes, ...] = ()
    allow_unsigned: bool = False

    def described(self) -> dict[str, Any]:
        """As the JSON has it; what is empty is left out."""
        entry: dict[str, Any] = {"keys": [{"kind": kind, "secret": secret.hex()} for kind, secret in self.held]}
        if self.trust:
            entry["trust"] = [public.hex() for public in self.trust]
        if self.allow_unsigned:
            entry["allow_unsigned"] = True
        return entry


NO_KEYS = Keys()


@dataclass(frozen=True)
class Vector:
    """One vector.

    `make` gives the file's bytes, and is called only where the file is not there yet. `outcome` is all of the JSON
    that depends on neither keys nor bytes.
    """

    name: str
    about: str
    make: Callable[[], bytes]
    keys: Keys
    outcome: dict[str, Any] = field(default_factory=dict)

    def described(self, file: bytes) -> dict[str, Any]:
        """The vector's JSON."""
        return {
            "about": self.about,
            "file_sha256": hashlib.sha256(file).hexdigest(),
            **self.keys.described(),
            **self.outcome,
        }


def digest_of(data: bytes) -> dict[str, Any]:
    """How a JSON tells what bytes there are."""
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def reads(
    name: str, about: str, chain: list[str], make: Callable[[], bytes], data: bytes, keys: Keys = NO_KEYS
) -> Vector:
    """A plain file that holds `data`."""
    return Vector(name, about, make, keys, {"chain": chain, "holds": digest_of(data)})


def fails(
    name: str,
    about: str,
    chain: list[str],
    file: bytes,
    layer: str,
    *,
    keys: Keys = NO_KEYS,
    in_order: str | None = None,
    released: bytes = b"",
) -> Vector:
    """A plain file that is refused: by `layer`, or `in_order` if it is read front to back."""
    outcome: dict[str, Any] = {"chain": chain, "fails": layer}
    if in_order is not None:
        outcome["fails_in_order"] = in_order
    return Vector(name, about, lambda: file, keys, outcome | {"released": digest_of(released)})
