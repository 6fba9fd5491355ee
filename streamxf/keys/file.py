"""Keys in files and environment variables: `read_key`, `write_key`, `read_environment`, and locations of both.

Either holds a line of `streamxf.keys.ring`, one that a passphrase protects, or 32 bytes in hexadecimal or base64,
as ``openssl rand`` prints them. A passphrase protects a key that its owner keeps, never a checkpoint: the cost of a
guess is stored beside the key, and an attacker would choose it for a checkpoint of his own.
"""

from __future__ import annotations

import base64
import os
import re
import stat
import unicodedata
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from streamxf.errors import KeyFileError, KeyMissingError, ParameterError, UnsupportedError, WrongKeyError
from streamxf.keys import ring
from streamxf.keys.key import SECRET_BYTES, Key, encode_b64url, is_key_id, try_decode
from streamxf.keys.pair import PublicKey, VerifyKey
from streamxf.lazy import aead, argon2, exceptions, pattern
from streamxf.wording import reason_of

PathLike = str | os.PathLike[str]

MAX_MEMORY = 2**20
MAX_PASSES = 16
MAX_LANES = 16
MAX_PASSPHRASE = 4096

_KDF = "argon2id"
_SALT_BYTES = 16
_TAG_BYTES = 16
_NONCE = bytes(12)  # the salt makes a new key for each line, and each key encrypts once
_COST = pattern(r"([1-9][0-9]{0,6})\.([1-9][0-9]?)\.([1-9][0-9]?)", re.ASCII)
_UNTYPABLE = {"Cc": "a control character", "Cs": "half a character", "Cn": "a character unknown to Unicode"}
_HEX = pattern(r"[0-9a-fA-F]{64}", re.ASCII)
_PIN = pattern(r".#[0-9a-f]{16}\Z", re.ASCII)
_SHORT = 31  # characters: fewer than 16 bytes take in hexadecimal
_VARIABLE = pattern(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

P = ParamSpec("P")
T = TypeVar("T")


def discreet(call: Callable[P, T]) -> Callable[P, T]:
    """Strip errors of the frames of `call`, whose variables hold keys: tools record variables of tracebacks."""

    @wraps(call)
    def raises_alone(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except Exception as error:
            found = error
        del args, kwargs
        found.__cause__ = found.__context__ = None
        raise found.with_traceback(None)

    return raises_alone


@discreet
def read_key(path: PathLike, passphrase: str | None = None) -> ring.AnyKey:
    """Read a key file, following symbolic links; `passphrase` is for a file that is protected by one.

    It is a file of `write_key`, or 32 random bytes as ``openssl rand -hex 32`` and ``openssl rand -base64 32`` print
    them, which make a `Key`. Lines that begin with ``#`` are comments.

    Raises
    ------
    KeyFileError
        If there is no such file, it is not a regular file or holds no key; or if others have access to it: a key file
        must belong to this user or root, and only its owner may write to it. If the key is secret, only the owner may
        read it, and the group, if root owns the file.
    KeyMissingError, WrongKeyError, ParameterError
        If a passphrase protects the key, and it is missing, wrong, or unusable.
    """
    place = os.fspath(path)
    data, status = _read(place)
    if len(data) > ring.MAX_KEY_FILE:
        raise KeyFileError(f"a key file has at most {ring.MAX_KEY_FILE} bytes", file=place)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise KeyFileError(
            "this key file is not text in UTF-8; if it holds the 32 raw bytes of a key, pass those bytes", file=place
        ) from None
    try:
        line = key_line(text)
    except ParameterError as error:
        raise KeyFileError(f"this is not a key file: {error.message}", file=place) from None
    _check_access(status, place, secret=not line.startswith(f"{ring.PUBLIC}:"))
    try:
        return read_line(line, passphrase)
    except ParameterError as error:
        raise KeyFileError(f"this key file cannot be used: {error.message}", file=place) from None


@discreet
def write_key(path: PathLike, key: ring.AnyKey, passphrase: str | None = None) -> None:
    """Write a key to a new file: readable by its owner only if it is secret, by everyone if it is public.

    The file is removed if it cannot be written. `read_key` needs its `passphrase`, which public keys do not take.

    Raises KeyFileError if the path exists, its folder does not, or the file cannot be written; ParameterError if the
    passphrase cannot be used, or `key` is not a key.
    """
    place = os.fspath(path)
    public = isinstance(key, PublicKey | VerifyKey)
    data = f"{_line(key, passphrase)}\n".encode("ascii")
    try:
        file = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644 if public else 0o600)
    except FileExistsError:
        raise KeyFileError("this file exists, and a key file is never overwritten; name another", file=place) from None
    except FileNotFoundError:
        raise KeyFileError("the folder for the key file does not exist; create it first", file=_shown(place)) from None
    except (OSError, ValueError) as error:
        raise KeyFileError(f"the key file cannot be created: {reason_of(error, place)}", file=_shown(place)) from None
    try:
        with os.fdopen(file, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(file)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(place)
        if isinstance(error, OSError):
            raise KeyFileError(f"the key file cannot be written: {reason_of(error, place)}", file=place) from None
        raise
    try:
        folder = os.open(os.path.dirname(place) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:  # not every file system can do it; the key itself is on disk
        warnings.warn(f"{place} is written, but its folder could not be synced: {error.strerror}", stacklevel=4)


@discreet
def read_location(path: str, passphrase: str | None = None) -> ring.AnyKey:
    """The key at the location ``file:PATH``, where ``~`` is the user's home; raises as `read_key`."""
    if not path:
        raise KeyFileError("'file:' names no file; put its path after the colon, 'file:/run/secrets/key'")
    if path.startswith("//") and not path.startswith("///"):
        raise KeyFileError(
            "'file://' with a host name is not supported; put the path after a single colon, "
            "'file:/run/secrets/key' or 'file:training.key'"
        )
    if path.startswith((f"{ring.SECRET}:", f"{ring.PROTECTED}:")):  # it must not appear in an error
        raise KeyFileError("after 'file:' comes a key itself; put it into a file, and give that file's path")
    path, pinned = (path[:-17], path[-16:]) if _PIN.search(path) else (path, None)
    key = read_key(os.path.expanduser(path), passphrase)
    if pinned is not None and key.id != pinned:
        raise KeyFileError(f"this file holds the key {key.id}, and the location requires {pinned}", file=path)
    return key


@discreet
def read_environment(name: str, passphrase: str | None = None) -> ring.AnyKey:
    """Read a key from the environment variable `name`, in any of the forms of a key file.

    Child processes inherit the variable, and other processes of the same user can read it. Raises as `read_key`,
    KeyMissingError if the variable is not set, and ParameterError if it holds no key.
    """
    if not _VARIABLE.fullmatch(name):
        raise ParameterError("this is not the name of an environment variable, which has letters, digits and _")
    text = os.environ.get(name)
    shown = f"the environment variable {name}" if len(name) <= _SHORT else "this environment variable"
    if text is None:
        raise KeyMissingError(f"{shown} should hold a key, and is not set")
    if len(text) > ring.MAX_KEY_FILE:
        raise ParameterError(f"{shown}: a key has at most {ring.MAX_KEY_FILE} characters")
    try:
        return read_text(text, passphrase)
    except ParameterError as error:
        raise ParameterError(f"{shown} cannot be used: {error.message}") from None


@discreet
def read_text(text: str, passphrase: str | None = None) -> ring.AnyKey:
    """Read a key from what a key file holds; raises as `read_key`, and ParameterError if the text holds no key."""
    return read_line(key_line(text), passphrase)


def key_line(text: str) -> str:
    """The line besides comments and blank lines in a file's text; raises ParameterError if there is not exactly one."""
    lines = [line.strip(" \t\r") for line in text.split("\n")]
    found = [line for line in lines if line and not line.startswith("#")]
    if len(found) != 1:
        raise ParameterError(f"it has {len(found)} lines apart from blank ones and comments (#); a key is one line")
    return found[0]


def read_line(line: str, passphrase: str | None = None) -> ring.AnyKey:
    """The key in a line, which no error shows; raises as `read_key`, and ParameterError if it is not a key."""
    label = line.partition(":")[0]
    if label == ring.PROTECTED:
        return open_protected(line, passphrase)
    if passphrase is not None:
        raise ParameterError("the key is not protected by a passphrase; leave passphrase= out")
    if label in (ring.SECRET, ring.PUBLIC):
        return ring.parse_key(line)
    if _HEX.fullmatch(line):
        return Key(bytes.fromhex(line))
    try:
        material = base64.b64decode(line, validate=True)
    except ValueError:
        material = b""
    if len(material) != SECRET_BYTES or base64.b64encode(material).decode("ascii") != line:
        kinds = f"{ring.SECRET}:..., {ring.PUBLIC}:... or {ring.PROTECTED}:..."
        raise ParameterError(
            f"there is no key in it: it does not look like {kinds}, nor like 64 hexadecimal digits or 44 characters of "
            "base64"
        )
    return Key(material)


def _read(place: str) -> tuple[bytes, os.stat_result]:
    """Up to one byte more than is allowed, and the status of the same open file."""
    try:
        file = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        hint = "; this takes a path, without 'file:'" if place.startswith("file:") else ""
        raise KeyFileError(
            f"the key file cannot be opened: {reason_of(error, place)}{hint}", file=_shown(place)
        ) from None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise KeyFileError("a key file is a regular file, and this is not one", file=place)
        with os.fdopen(file, "rb", closefd=False) as stream:
            return stream.read(ring.MAX_KEY_FILE + 1), status
    except OSError as error:
        raise KeyFileError(f"the key file cannot be read: {reason_of(error, place)}", file=place) from None
    finally:
        os.close(file)


def _shown(place: str) -> str:
    """A path for an error. If there is no such file it may be a key that was given in place of a path, so only its
    folder is shown, unless the rest is too short to be a key.
    """
    folder = place
    while folder and not os.path.lexists(folder):
        folder, below = os.path.dirname(folder), folder
        if folder == below:
            break
    return place if len(place) - len(folder) <= _SHORT else os.path.join(folder, "...")


def _check_access(status: os.stat_result, place: str, secret: bool) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in (0, os.geteuid()):
        raise KeyFileError(
            f"this key file belongs to user {status.st_uid}, who can change it; it must belong to the user of this "
            f"process ({os.geteuid()}) or to root",
            file=place,
        )
    # root let the group in that reads its file: Kubernetes mounts secrets like that for pods with an fsGroup
    if secret and mode & (0o027 if status.st_uid == 0 else 0o067):
        raise KeyFileError(
            f"users other than its owner have access to this secret key file (its mode is {mode:04o}); if they had it "
            f"for long, make a new key, else run: chmod 600 {place!r}",
            file=place,
        )
    if mode & 0o022:
        raise KeyFileError(
            f"other users can put another key into this file (its mode is {mode:04o}); check that it is still the "
            f"right one, and run: chmod 644 {place!r}",
            file=place,
        )


def _line(key: ring.AnyKey, passphrase: str | None) -> str:
    if not isinstance(key, ring.AnyKey):
        raise ParameterError(f"write_key takes one of streamxf's own keys, not {type(key).__name__}")
    if passphrase is None:
        return ring.format_key(key)
    if isinstance(key, PublicKey | VerifyKey):
        raise ParameterError("a public key needs no passphrase; leave passphrase= out")
    return protect_key(key, passphrase)


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
            kdf = argon2.Argon2id(
                salt=salt, length=SECRET_BYTES, iterations=self.passes, lanes=self.lanes, memory_cost=self.memory
            )
        except exceptions.UnsupportedAlgorithm:
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


def protect_key(key: ring.SecretKey, passphrase: str, cost: PassphraseCost = DEFAULT_COST) -> str:
    """The line for a secret key that only its passphrase opens. The key's kind and id stay readable.

    Raises ParameterError if the passphrase cannot be used.
    """
    salt = os.urandom(_SALT_BYTES)
    begin = f"{ring.PROTECTED}:{key.kind}:{key.id}:{_KDF}:{cost}:{encode_b64url(salt)}:"
    sealed = aead.AESGCM(cost.stretch(passphrase, salt)).encrypt(_NONCE, key.reveal(), begin.encode("ascii"))
    return begin + encode_b64url(sealed)


def open_protected(line: str, passphrase: str | None) -> ring.AnyKey:
    """Undo `protect_key`.

    Raises ParameterError if line or passphrase cannot be used, KeyMissingError without one, WrongKeyError if wrong.
    """
    parts = line.split(":")
    if len(parts) != 7 or (parts[0], parts[3]) != (ring.PROTECTED, _KDF) or not is_key_id(parts[2]):
        raise ParameterError(f"this protected key does not look like {ring.PROTECTED}:kind:id:{_KDF}:cost:salt:sealed")
    _, kind, key_id, _, cost_text, salt_text, sealed_text = parts
    ring.check_kind(ring.SECRET, kind)
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
        material = aead.AESGCM(cost.stretch(passphrase, salt)).decrypt(_NONCE, sealed, begin.encode("ascii"))
    except exceptions.InvalidTag:
        raise WrongKeyError(f"the passphrase does not open the key {key_id}, or its line was altered") from None
    return ring.make_key(ring.SECRET, kind, key_id, material)
