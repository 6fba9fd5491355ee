"""Exit codes, and the one line that an error gets."""

from __future__ import annotations

from collections.abc import Iterator

from streamxf import errors
from streamxf.wording import printable

FINE = 0
FAILED = 1  # damaged, different, or the work itself failed
USAGE = 2  # it could not begin, because of what it was given
INTERRUPTED = 130  # as shells have it for Ctrl-C, 143 for SIGTERM
PIPE_CLOSED = 141  # and for SIGPIPE

LINE = 2000  # characters

# What was asked for cannot be done, whatever is in the files.
_ASKED_WRONGLY = (
    errors.ParameterError,
    errors.ChainError,
    errors.UnknownCodecError,
    errors.CodecNotAllowedError,
    errors.DuplicateCodecError,
    errors.KeyMissingError,
    errors.KeyFileError,
    errors.NoCheckpointError,
    errors.UnsupportedError,
    FileNotFoundError,
    FileExistsError,
    NotADirectoryError,
    IsADirectoryError,
    PermissionError,
)


def exit_code(error: BaseException) -> int:
    """The exit code for an error that ended a command."""
    return USAGE if isinstance(error, _ASKED_WRONGLY) else FAILED


def line_of(error: BaseException) -> str:
    """What an error says, in one line: what, where, and what to do."""
    parts = [part.strip() for part in _parts(error)]
    text = "; ".join(part for part in parts if part)
    return printable(" ".join(text.split()), LINE)


def expected(error: BaseException) -> bool:
    """Whether this is how things go wrong; anything else is an error of streamxf's own."""
    return isinstance(error, errors.StreamxfError | OSError | MemoryError)


def root_of(error: BaseException) -> BaseException:
    """The error itself, where DCP has put it into a collection of what went wrong on each rank."""
    failures = getattr(error, "failures", None)
    if not isinstance(failures, dict):
        return error
    found = [entry[0] if isinstance(entry, tuple) else entry for entry in failures.values()]
    return next((each for each in found if isinstance(each, BaseException)), error)


def _parts(error: BaseException) -> Iterator[str]:
    if isinstance(error, OSError) and error.strerror:
        yield f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    else:
        yield str(error) or type(error).__name__
    yield from getattr(error, "__notes__", ())
