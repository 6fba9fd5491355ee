"""Keys in files: `read_key`, `write_key`, and the location ``file:PATH``."""

from __future__ import annotations

import os
import re
import stat
import warnings
from contextlib import suppress

from streamxf.errors import KeyFileError, ParameterError
from streamxf.keys.pair import PublicKey
from streamxf.keys.signing import VerifyKey
from streamxf.keys.text import MAX_TEXT, PROTECTED, SECRET, AnyKey, format_key, is_public, key_line, read_line

PathLike = str | os.PathLike[str]

_PIN = re.compile(r".#[0-9a-f]{16}\Z", re.ASCII)
_OTHERS = 0o007
_GROUP_WRITES = 0o020
_GROUP_READS = 0o040
_OTHERS_WRITE = 0o002
_SHORT = 31  # characters: fewer than 16 bytes have in hexadecimal


def read_key(path: PathLike, passphrase: str | None = None) -> AnyKey:
    """Read a key file.

    It holds what `write_key` made, or 32 random bytes as ``openssl rand -hex 32`` and ``openssl rand -base64 32`` print
    them, which make a `Key`. Lines that begin with ``#`` are comments.

    Parameters
    ----------
    path : path-like
        Symbolic links are followed.
    passphrase : str, optional
        For a file that one protects.

    Returns
    -------
    Key, PrivateKey, PublicKey, SigningKey or VerifyKey

    Raises
    ------
    KeyFileError
        If there is no such file, it is none or holds no key; or if others can get at a secret key: the file must belong
        to this user or root, nobody else may write to it, and nobody else may read it, save for the group of a file
        that root owns. A public key's file must have such an owner, too, and nobody else may write to it.
    KeyMissingError
        If the key is protected by a passphrase, and there is none.
    WrongKeyError
        If there is another one.
    ParameterError
        If there is one that cannot be used.
    """
    place = os.fspath(path)
    data, status = _read(place)
    if len(data) > MAX_TEXT:
        raise KeyFileError(f"a key file has at most {MAX_TEXT} bytes", file=place)
    text = _decoded(data)
    if text is None:
        raise KeyFileError(
            "this key file is not text; if it holds the 32 bytes of a key as they are, pass these bytes", file=place
        )
    try:
        line = key_line(text)
    except ParameterError as error:
        raise KeyFileError(f"this is no key file: {error.message}", file=place) from None
    if is_public(line):
        _check_public(status, place)
    else:
        _check_secret(status, place)
    return _parsed(line, passphrase, place)


def write_key(path: PathLike, key: AnyKey, passphrase: str | None = None) -> None:
    """Write a key to a new file: readable for its owner only if it is secret, for everybody if it is public.

    Parameters
    ----------
    path : path-like
        Nothing may be there yet.
    key : Key, PrivateKey, PublicKey, SigningKey or VerifyKey
    passphrase : str, optional
        What `read_key` must be given for this file from then on. Not for public keys.

    Raises
    ------
    KeyFileError
        If there is something, no folder, or the file cannot be written; it is removed then.
    ParameterError
        If the passphrase cannot be used, or `key` is no key of these kinds.
    """
    place = os.fspath(path)
    public = isinstance(key, PublicKey | VerifyKey)
    data = f"{_line(key, passphrase)}\n".encode("ascii")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    refusal = ""
    try:
        file = os.open(place, flags, 0o644 if public else 0o600)
    except FileExistsError:
        refusal = "there is a file already, and a key file is never overwritten; name another"
    except FileNotFoundError:
        refusal = "the folder for the key file does not exist; make it first"
    except (OSError, ValueError) as error:
        refusal = f"the key file cannot be made: {_reason(error)}"
    if refusal:  # out here, since the system's error holds the path
        raise KeyFileError(refusal, file=_shown(place))
    try:
        with os.fdopen(file, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(file)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(place)
        if isinstance(error, OSError):
            raise KeyFileError(f"the key file cannot be written: {error.strerror}", file=place) from None
        raise
    try:
        _sync_folder(place)
    except OSError as error:  # not every file system can; the key itself is on the disk
        warnings.warn(f"{place} is written, but its folder could not be synced: {error.strerror}", stacklevel=3)


def read_location(path: str, passphrase: str | None = None) -> AnyKey:
    """What the location ``file:PATH`` leads to; ``~`` is the user's home.

    Raises
    ------
    KeyFileError, KeyMissingError
        As `read_key`; also if there is no path, or a URL in its place.
    """
    if not path:
        raise KeyFileError("'file:' names no file; write its path behind the colon, 'file:/run/secrets/key'")
    if path.startswith("//") and not path.startswith("///"):
        raise KeyFileError(
            "'file://' with the name of a machine is no place of keys; write the path behind one colon, "
            "'file:/run/secrets/key' or 'file:training.key'"
        )
    if path.startswith((f"{SECRET}:", f"{PROTECTED}:")):  # which no error may show
        raise KeyFileError("behind 'file:' stands a key itself; put it into a file, and write that file's path there")
    path, pinned = (path[:-17], path[-16:]) if _PIN.search(path) else (path, None)
    key = read_key(os.path.expanduser(path), passphrase)
    if pinned is not None and key.id != pinned:
        raise KeyFileError(f"this file holds the key {key.id}, and the location wants {pinned}", file=path)
    return key


def _read(place: str) -> tuple[bytes, os.stat_result]:
    """Up to one byte more than is allowed, and the status of the very file that they come from."""
    reason = ""
    try:
        file = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = _reason(error)
    if reason:  # out here, since the system's error holds the path
        hint = "; this takes a path, without 'file:' before it" if place.startswith("file:") else ""
        raise KeyFileError(f"the key file cannot be opened: {reason}{hint}", file=_shown(place))
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise KeyFileError("a key file is a regular file, and this is none", file=place)
        with os.fdopen(file, "rb", closefd=False) as stream:
            return stream.read(MAX_TEXT + 1), status
    except OSError as error:
        raise KeyFileError(f"the key file cannot be read: {error.strerror}", file=place) from None
    finally:
        os.close(file)


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__


def _shown(place: str) -> str:
    """A path for an error. Where it leads nowhere it may be a key that was given in place of a path, so only its folder
    is shown, unless the rest is too short to be one.
    """
    folder = place
    while folder and not os.path.lexists(folder):
        folder, below = os.path.dirname(folder), folder
        if folder == below:
            break
    return place if len(place) - len(folder) <= _SHORT else os.path.join(folder, "...")


def _decoded(data: bytes) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:  # it holds the data, so it must not become the context of another error
        return None


def _parsed(line: str, passphrase: str | None, place: str) -> AnyKey:
    try:
        return read_line(line, passphrase)
    except ParameterError as error:
        raise KeyFileError(f"this key file cannot be used: {error.message}", file=place) from None


def _check_owner(status: os.stat_result, place: str, kind: str, danger: str) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise KeyFileError(
            f"this {kind} key file belongs to user {status.st_uid}, who can {danger}; it must belong to the user "
            f"of this process ({os.geteuid()}) or to root",
            file=place,
        )


def _check_secret(status: os.stat_result, place: str) -> None:
    _check_owner(status, place, "secret", "change it")
    mode = stat.S_IMODE(status.st_mode)
    # a group that reads what root owns was let in by root: Kubernetes mounts secrets so for pods with an fsGroup
    refused = _OTHERS | _GROUP_WRITES | (0 if status.st_uid == 0 else _GROUP_READS)
    if mode & refused:
        raise KeyFileError(
            f"others than its owner can get at this secret key file (its mode is {mode:04o}); if it was like that for "
            f"long, make a new key, else run: chmod 600 {place!r}",
            file=place,
        )


def _check_public(status: os.stat_result, place: str) -> None:
    _check_owner(status, place, "public", "put another key there")
    mode = stat.S_IMODE(status.st_mode)
    if mode & (_GROUP_WRITES | _OTHERS_WRITE):
        raise KeyFileError(
            f"others can put another key into this file (its mode is {mode:04o}); look whether it is still the "
            f"right one, and run: chmod 644 {place!r}",
            file=place,
        )


def _line(key: AnyKey, passphrase: str | None) -> str:
    if isinstance(key, PublicKey | VerifyKey):
        if passphrase is not None:
            raise ParameterError("a public key needs no passphrase; leave passphrase= out")
        return format_key(key)
    if not isinstance(key, AnyKey):
        raise ParameterError(f"write_key takes a key of streamxf's own, not {type(key).__name__}")
    if passphrase is None:
        return format_key(key)
    from streamxf.keys.passphrase import protect_key

    return protect_key(key, passphrase)


def _sync_folder(place: str) -> None:
    folder = os.open(os.path.dirname(place) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
