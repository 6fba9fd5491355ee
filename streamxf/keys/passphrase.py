"""Secret keys under a passphrase, as one line of text; docs/format/keys.md, "Key files".

A passphrase protects a key that its owner keeps, never a checkpoint: the cost of a guess is stored beside the key, and
an attacker would choose it for a checkpoint of his own.
"""

from __future__ import annotations

import os
import re
import unicodedata
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from streamxf.errors import KeyMissingError, ParameterError, UnsupportedError, WrongKeyError
from streamxf.keys.key import SECRET_BYTES, encode_b64url, is_key_id, try_decode
from streamxf.keys.location import PROTECTED, SECRET, AnyKey, SecretKey, check_kind, make_key

MAX_MEMORY = 2**20
MAX_PASSES = 16
MAX_LANES = 16
MAX_PASSPHRASE = 4096

_KDF = "argon2id"
_SALT_BYTES = 16
_TAG_BYTES = 16
_NONCE = bytes(12)  # the salt makes a new key for each line, and each key encrypts once
_COST = re.compile(r"([1-9][0-9]{0,6})\.([1-9][0-9]?)\.([1-9][0-9]?)", re.ASCII)
_UNTYPABLE = {"Cc": "a control character", "Cs": "half a character", "Cn": "a character unknown to Unicode"}


@dataclass(frozen=True)
class PassphraseCost:
    """The cost of one guess at a passphrase, by Argon2id. The default is the second choice of RFC 9106."""

    memory: int = 2**16  # KiB, at least 8 for each lane; opening the key takes as much
    passes: int = 3  # over that memory
    lanes: int = 4  # how much one guess may compute in parallel

    def __post_init__(self) -> None:
        for name, low, high in (("lanes", 1, MAX_LANES), ("passes", 1, MAX_PASSES), ("memory", 0, MAX_MEMORY)):
            value, least = getattr(self, name), low or 8 * self.lanes
            if type(value) is not int or not least <= value <= high:
                raise ParameterError(f"the cost of a passphrase: {name} is {value!r:.20}; {least} to {high} is allowed")

    def __str__(self) -> str:
        return f"{self.memory}.{self.passes}.{self.lanes}"

    @classmethod
    def parse(cls, text: str) -> PassphraseCost:
        match = _COST.fullmatch(text)
        if match is None:
            raise ParameterError("this protected key is damaged: its cost is not memory.passes.lanes")
        return cls(*map(int, match.groups()))

    def stretch(self, passphrase: str, salt: bytes) -> bytes:
        typed = normalise(passphrase)
        try:
            kdf = Argon2id(
                salt=salt, length=SECRET_BYTES, iterations=self.passes, lanes=self.lanes, memory_cost=self.memory
            )
        except UnsupportedAlgorithm:
            raise UnsupportedError(
                "the cryptography package here has no Argon2id, which passphrases need: its OpenSSL is too old. "
                "Install cryptography 48 or later from PyPI"
            ) from None
        return kdf.derive(typed)


DEFAULT_COST: Final = PassphraseCost()


def normalise(passphrase: str) -> bytes:
    """A passphrase as bytes: the same ones however a keyboard composes its accents.

    Raises ParameterError if it is empty, longer than 4096 bytes, or has characters that cannot be typed.
    """
    if not isinstance(passphrase, str):
        raise ParameterError(f"a passphrase is text, not {type(passphrase).__name__}")
    for kind in map(unicodedata.category, passphrase):
        if kind in _UNTYPABLE:
            hint = "; remove the line break at its end" if passphrase.endswith("\n") else ""
            raise ParameterError(f"this passphrase has {_UNTYPABLE[kind]} in it{hint}")
    text = unicodedata.normalize("NFC", passphrase).encode("utf-8")
    if not 1 <= len(text) <= MAX_PASSPHRASE:
        raise ParameterError(f"a passphrase has 1 to {MAX_PASSPHRASE} bytes, this one has {len(text)}")
    return text


def protect_key(key: SecretKey, passphrase: str, cost: PassphraseCost = DEFAULT_COST) -> str:
    """The line for a secret key that only its passphrase opens. The key's kind and id stay readable.

    Raises ParameterError if the passphrase cannot be used.
    """
    salt = os.urandom(_SALT_BYTES)
    begin = f"{PROTECTED}:{key.kind}:{key.id}:{_KDF}:{cost}:{encode_b64url(salt)}:"
    sealed = AESGCM(cost.stretch(passphrase, salt)).encrypt(_NONCE, key.reveal(), begin.encode("ascii"))
    return begin + encode_b64url(sealed)


def open_protected(line: str, passphrase: str | None) -> AnyKey:
    """Undo `protect_key`.

    Raises ParameterError if line or passphrase cannot be used, KeyMissingError without one, WrongKeyError if wrong.
    """
    parts = line.split(":")
    if len(parts) != 7 or (parts[0], parts[3]) != (PROTECTED, _KDF) or not is_key_id(parts[2]):
        raise ParameterError(f"this protected key does not look like {PROTECTED}:kind:id:{_KDF}:cost:salt:sealed")
    _, kind, key_id, _, cost_text, salt_text, sealed_text = parts
    check_kind(SECRET, kind)
    cost = PassphraseCost.parse(cost_text)
    salt, sealed = try_decode(salt_text), try_decode(sealed_text)
    if salt is None or len(salt) != _SALT_BYTES or sealed is None or len(sealed) != SECRET_BYTES + _TAG_BYTES:
        raise ParameterError("this protected key is damaged: its salt or its sealed part has the wrong size")
    if passphrase is None:
        raise KeyMissingError(
            f"the key {key_id} is protected by a passphrase: open it with streamxf.keys.read_key(path, passphrase=...)"
        )
    begin = line[: line.rindex(":") + 1]
    try:
        material = AESGCM(cost.stretch(passphrase, salt)).decrypt(_NONCE, sealed, begin.encode("ascii"))
    except InvalidTag:
        raise WrongKeyError(f"the passphrase does not open the key {key_id}, or its line was altered") from None
    return make_key(SECRET, kind, key_id, material)
