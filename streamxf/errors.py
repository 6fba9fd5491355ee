"""streamxf's own errors: one class for each layer that can fail.

Every error can say where it happened: ``file``, ``item`` and ``block`` are filled in by the layer that knows them while
the error travels outwards. Names come from checkpoints and messages may quote them, so the text of an error has every
character that would end a line or control a terminal escaped; the attributes ``file`` and ``item`` keep names as they
are. All classes survive a pickle round trip, because DCP sends errors between ranks by pickle,
and one that fails to unpickle leaves the other ranks waiting for their timeout.
"""

from __future__ import annotations

import errno
import io
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any, TypeVar

T = TypeVar("T")

MAX_SENT = 1 << 16  # bytes of an error
_MAX_TEXT = 1 << 13
_MAX_CAUSES = 8
_PLACE: dict[str, type] = {"file": str, "item": str, "block": int}
_EVERYWHERE = sys.stdlib_module_names | {"streamxf"}
_PASSWORD = re.compile(r"(://[^\s/:@]*:)[^\s/]*@")


def escaped(text: str) -> str:
    """Text in which every character that would end the line or control a terminal is escaped as in Python's strings."""
    return text if text.isprintable() else "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def redacted(text: str) -> str:
    """Text without the passwords of URLs in it, as in ``sftp://user:password@host``."""
    return _PASSWORD.sub(r"\1***@", text) if "@" in text else text


def hide_passwords(error: BaseException) -> None:
    """Redact the texts of an error that another package raised, and of all that led to it: a traceback shows them."""
    chain: list[BaseException | None] = [error]
    for each in chain:
        if each is None:
            continue
        with suppress(Exception):  # its class may be anyone's
            each.args = tuple(redacted(text) if isinstance(text, str) else text for text in each.args)
            for name in ("strerror", "filename", "filename2"):
                if isinstance(text := getattr(each, name, None), str):
                    setattr(each, name, redacted(text))
        chain += [link for link in (each.__cause__, each.__context__) if not any(link is known for known in chain)]


def shorten(text: str, width: int = 80) -> str:
    """Cut untrusted text to a length that fits an error message."""
    return text if len(text) <= width else text[: width - 3] + "..."


def text_of(error: BaseException) -> str:
    """The text of an error whose class may be anyone's."""
    try:
        return str(error)
    except Exception:
        return "(the error has no text that can be shown)"


def notes_of(error: BaseException) -> list[str]:
    """The notes of an error whose class may be anyone's."""
    with suppress(Exception):
        return [note for note in getattr(error, "__notes__", ()) if isinstance(note, str)]
    return []


def add_note(error: BaseException, text: str) -> None:
    """Add a note to an error whose class may be anyone's, and take none: the error matters more."""
    with suppress(Exception):
        if type(getattr(error, "__notes__", [])) is not list:
            error.__notes__ = notes_of(error)
        BaseException.add_note(error, redacted(text))


class StreamxfError(Exception):
    """Base class of streamxf's own errors; messages say what is wrong, and what to do about it.

    - `file`, `item`, `block`: the place, as far as it is known: the file's path, the item's name in the state dict, and
      the number of the block inside the item's stream, from 0.
    """

    message = ""  # of a subclass that does not call this
    file: str | None = None
    item: str | None = None
    block: int | None = None

    def __init__(self, message: str, *, file: str | None = None, item: str | None = None, block: int | None = None):
        message = redacted(escaped(message))
        super().__init__(message)
        self.message, self.file, self.item, self.block = message, file, item, block

    def locate(self, *, file: str | None = None, item: str | None = None, block: int | None = None) -> StreamxfError:
        """Fill in unknown parts of the place, and return the error itself."""
        self.file = file if self.file is None else self.file
        self.item = item if self.item is None else self.item
        self.block = block if self.block is None else self.block
        return self

    def __str__(self) -> str:
        known = (("file", self.file), ("item", self.item), ("block", self.block))
        place = ", ".join(f"{label} {value}" for label, value in known if value is not None)
        return redacted(escaped(f"{self.message} [{place}]" if place else self.message))

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(type(self), file=self.file, item=self.item, block=self.block)
        notes = notes_of(self)
        return (make, (self.message,), {"__notes__": notes}) if notes else (make, (self.message,))


class located:
    """Fill in the place of a `StreamxfError` that passes, and an OSError's path; `doing` is in a note for others."""

    __slots__ = ("_doing", "_file", "_item")

    def __init__(self, *, file: str | None = None, item: str | None = None, doing: str | None = None) -> None:
        self._file = file
        self._item = item
        self._doing = doing

    def run(self, call: Callable[[], T]) -> T:
        """Make a call, in any thread."""
        with self:
            return call()

    def __enter__(self) -> None:
        """There is nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StreamxfError):
            error.locate(file=self._file, item=self._item)
            return
        if (isinstance(error, OSError) and error.errno and self._file) and (
            error.filename is None or self._file.endswith(f"/{error.filename}")
        ):
            error.filename = self._file  # a read knows none, and of an open folder the system the name alone
        if self._doing and error is not None:
            names = {"item": self._item, "file": self._file}
            places = [escaped(f"{kind} {name}") for kind, name in names.items() if name is not None]
            if not any(note.startswith("while ") and note.endswith(places[-1]) for note in notes_of(error)):
                add_note(error, f"while {self._doing} {' of '.join(places)}")


class ParameterError(StreamxfError, ValueError):
    """A codec, key or function was given an invalid parameter."""


class ChainError(StreamxfError, ValueError):
    """A chain breaks a rule of order, or its text form cannot be read."""


class DescriptorError(StreamxfError, ValueError):
    """A codec's descriptor is malformed, or has parameters that the codec does not know."""


class UnknownCodecError(StreamxfError):
    """No installed codec has the name and version that a descriptor gives."""


class CodecNotAllowedError(StreamxfError):
    """The codec exists, but is not in the caller's allow-list."""


class DuplicateCodecError(StreamxfError):
    """Two packages, or two classes, claim the same codec name."""


class CodecError(StreamxfError):
    """A codec could not encode or decode a block, or returned an invalid result."""


class ChecksumError(CodecError):
    """A checksum does not match."""


class ContainerError(StreamxfError):
    """The framing of a container, a plain file or its index is damaged, truncated or appended to."""


class BlockError(ContainerError):
    """One block of a container is damaged, out of place or too long."""


class IdentityError(StreamxfError):
    """The container is intact, but belongs to another item, chain or save."""


class KeyMissingError(StreamxfError):
    """The data is encrypted, and no given key opens it."""


class WrongKeyError(StreamxfError):
    """A key has the right id, but does not open the wrapped data key."""


class KeyFileError(StreamxfError):
    """A key file cannot be used: others can read it, it is damaged, or it cannot be read."""


class KeyServiceError(StreamxfError):
    """A key service cannot be reached, or refuses the request."""


class AuthenticationError(StreamxfError):
    """A seal, a tag or a MAC does not match: the data was altered, or another key made it."""


class MetadataError(StreamxfError):
    """``.metadata`` is damaged or inconsistent, or not metadata at all."""


class ReplacedError(StreamxfError):
    """The metadata was replaced while it was read: another save was published. Start again."""


class NoCheckpointError(MetadataError):
    """There is no checkpoint at this path."""


class PolicyError(StreamxfError):
    """The data has weaker protection than the caller requires."""


class NotAllowedError(PolicyError):
    """An object needs classes or functions that are not allowed here; it was not constructed."""


class UnsupportedError(StreamxfError):
    """This combination of writer, reader, format and extensions cannot work."""


class NotFetchedError(UnsupportedError):
    """There is a Git LFS pointer instead of the file, about which nothing is known."""


class ObjectError(StreamxfError):
    """An object cannot be constructed here, or by the code of its class; its stored bytes are not to blame."""


NOT_DAMAGE = (KeyMissingError, WrongKeyError, KeyServiceError, PolicyError, IdentityError, ReplacedError)
"""Key and policy errors; they do not imply damage."""

NOT_AT_HAND = (UnknownCodecError, CodecNotAllowedError, DuplicateCodecError)
"""A codec is not available here, which says nothing about the data."""

DAMAGE = (AuthenticationError, CodecError, ContainerError, DescriptorError, IdentityError, MetadataError)
"""Errors that mean damaged or misplaced data."""


def is_damage(error: BaseException) -> bool:
    """Whether an error means that this checkpoint is damaged; with any other error, an older one would fail as well."""
    return isinstance(error, (FileNotFoundError, *DAMAGE))  # EIO may pass: a disk or a server had a bad moment


_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EOPNOTSUPP})
_EXHAUSTED_TEXT = re.compile(
    r"can't start new thread|can't allocate memory|out of memory|not enough memory", re.IGNORECASE
)


def is_exhausted(error: BaseException) -> bool:
    """Whether it stops all work alike: no open files, memory or threads are left, a server sends no ranges, or what is
    read needs torch, which is not here.
    """
    if isinstance(error, OSError):
        return error.errno in _EXHAUSTED
    # torch, zstandard and the interpreter have no class of their own for most of it
    own = isinstance(error, StreamxfError)
    lacking = isinstance(error, ModuleNotFoundError) and error.name == "torch"
    return lacking or isinstance(error, MemoryError) or (not own and _EXHAUSTED_TEXT.search(text_of(error)) is not None)


class AbortedError(StreamxfError):
    """A stream was used after it failed, was aborted, or crossed a fork."""


class ReplacedMeanwhile(Exception):
    """Another process has put, replaced or removed a file since its stamp was taken. Nothing was changed."""


class ForeignError(StreamxfError):
    """An error of another package, such as a storage's, that cannot be sent to other ranks; with its class and text."""


class StaleError(ForeignError):
    """Apparent damage in a place that may show what another host has replaced: it proves nothing."""


class NoSpaceError(StreamxfError, OSError):
    """The save does not fit on the disk; raised before anything is written. ``errno`` is ``ENOSPC``."""

    errno = errno.ENOSPC


def sendable(error: BaseException) -> BaseException:
    """The error itself, or what can be sent to other ranks in its place."""
    causes = [note for note in _causes(error) if note not in notes_of(error)]
    if _is_known(type(error)):
        for note in causes:
            add_note(error, note)
        if _survives(error):
            return error
        causes = []
    made = _stand_in(error)
    for note in [*notes_of(error), *causes]:
        made.add_note(note[:_MAX_TEXT])
    return made if _survives(made) else ForeignError(_named(error)[: MAX_SENT // 8])


def _stand_in(error: BaseException) -> BaseException:
    """An error of the nearest class that all ranks have, with the text of `error`."""
    nearest = next(cls for cls in type(error).__mro__ if issubclass(cls, BaseException) and _is_known(cls))
    named = _text(error) if nearest is type(error) else _named(error)
    made: BaseException | None = None
    if issubclass(nearest, StreamxfError):
        place: dict[str, Any] = {name: getattr(error, name, None) for name in _PLACE}
        made = nearest(named, **{name: place[name] for name in place if type(place[name]) is _PLACE[name]})
    elif isinstance(error, OSError) and type(error.errno) is int:
        made = OSError(error.errno, named)
    elif nearest not in (BaseException, Exception):
        with suppress(Exception):  # it is not made of a text
            made = nearest(named)
    return made if made is not None and _survives(made) else ForeignError(_named(error))


def _survives(error: BaseException) -> bool:
    """Whether the error comes out of a pickle as it went in, and needs nothing for it that another rank may lack."""
    sink = io.BytesIO()
    try:
        _Sender(sink).dump(error)
        if sink.tell() > MAX_SENT:
            return False
        again = pickle.loads(sink.getvalue())
        return type(again) is type(error) and str(again) == str(error) and notes_of(again) == notes_of(error)
    except Exception:  # an error's own code may raise anything
        return False


class _Sender(pickle.Pickler):
    """Takes what is made of classes and functions that every rank has."""

    def reducer_override(self, obj: Any) -> Any:
        function = isinstance(obj, FunctionType | BuiltinFunctionType)
        if not _is_known(obj if function or isinstance(obj, type) else type(obj)):
            raise pickle.PicklingError(f"{type(obj).__name__} may not be known everywhere")
        return NotImplemented


def _is_known(named: Any) -> bool:
    root = str(named.__module__).partition(".")[0]
    return root in _EVERYWHERE or (root == "torch" and isinstance(named, type) and issubclass(named, BaseException))


def _named(error: BaseException) -> str:
    cls = type(error)
    name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    text = _text(error)
    return f"{name}: {text}" if text else name


def _text(error: BaseException) -> str:
    message = getattr(error, "message", None) if isinstance(error, StreamxfError) else None
    return (message if isinstance(message, str) else text_of(error))[:_MAX_TEXT]


def _causes(error: BaseException) -> Iterator[str]:
    seen = {id(error)}
    for _ in range(_MAX_CAUSES):
        cause, how = error.__cause__, "caused by"
        if cause is None and not error.__suppress_context__:
            cause, how = error.__context__, "raised while this was handled:"
        if cause is None or id(cause) in seen:
            return
        seen.add(id(cause))
        yield f"{how} {_named(cause)}"
        error = cause
