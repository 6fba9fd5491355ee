"""Exit codes, and the one line for an error, also of the storage behind a URL, whose client has classes of its own."""

from __future__ import annotations

import errno
import re
import traceback
from collections.abc import Mapping, Sequence
from contextvars import ContextVar

from streamxf import errors
from streamxf.wording import RESTORE_METADATA, SALVAGE_DATA, printable, reason_of

FINE = 0
FAILED = 1  # damaged, different, or the work itself failed
USAGE = 2  # it could not begin, because of what it was given; nor compare
INTERRUPTED = 130  # as shells have it for Ctrl-C, 143 for SIGTERM
PIPE_CLOSED = 141  # and for SIGPIPE

LINE = 2000  # characters
_SAID = 500

_FOUND_OUT = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)
_LOCAL = "fsspec.implementations.local"

# What was asked for cannot be done, whatever is in the files.
_ASKED_WRONGLY = (
    *(errors.ParameterError, errors.ChainError, errors.KeyMissingError, errors.KeyFileError, errors.NoCheckpointError),
    *(errors.UnknownCodecError, errors.CodecNotAllowedError, errors.DuplicateCodecError, errors.UnsupportedError),
    *(errors.NotAllowedError, errors.ObjectError, errors.StaleError, PermissionError, *_FOUND_OUT),
)

_NEXT = {"distcp": f"; {SALVAGE_DATA}", "metadata": f"; {RESTORE_METADATA}"}
"""What to do about damage in a checkpoint's file, by the end of its name."""


def exit_code(error: BaseException, command: str) -> int:
    """The exit code for an error that ended a command. Of `diff`, 1 means "different" and nothing else; of `verify`,
    "damaged".
    """
    asked = isinstance(error, _ASKED_WRONGLY) or getattr(error, "errno", None) in (errno.EROFS, errno.EOPNOTSUPP)
    unread = command == "streamxf verify" and isinstance(error, OSError | errors.ForeignError)
    return USAGE if asked or unread or command == "streamxf diff" else FAILED


def line_of(error: BaseException) -> str:
    """What an error says, in one line: what, where, and what to do."""
    said = reason_of(error)
    if isinstance(error, errors.DAMAGE) and not isinstance(error, errors.IdentityError) and "salvage" not in said:
        said += _NEXT.get((error.file or "").rpartition(".")[2], "")
    said += "; if a checkpoint stays so, see `streamxf salvage --fresh`" * isinstance(error, errors.StaleError)
    return printable(" ".join(said.split()), LINE)


# hints that only Python has a use for, or that are about an option which the command does not have
_IN_PYTHON = re.compile(
    r" \(max_expansion\)|, or read it with framework='torch'"
    r"|; pass it as signer=|\. A KeyRing holds keys and trusted signers together"
    r"|, or load it with FileSystemReader\(path, require=None\)|,(?: or)? a streamxf\.\w+Key\b"
    r"|; weights_only=False lifts the limit for objects|without_metadata=\[\.\.\.\] or (?=--writer-id)"
    r"|; require='encrypted' accepts it|; where it was, pass require='encrypted' \(or 'bound', for an attached writer\)"
    r"|\. If you trust it, (?:import the package that defines it, or )?name the classes and functions that it needs, "
    r"safe_globals=\[.*?\](?: \(.* here)?"
)

OPTIONS: ContextVar[Mapping[str, str]] = ContextVar("OPTIONS")
"""Those of the command that runs, by the names of the library's arguments."""


def with_options(text: str) -> str:
    """A message in which the library's arguments are the command's options: those in parentheses, as in
    ``(only, prefix)``, and whatever has an underscore, as no word of English does.
    """
    options = OPTIONS.get({})
    name = "|".join(map(re.escape, options)) or "(?!)"
    unmistakable = "|".join(re.escape(each) for each in options if "_" in each) or "(?!)"
    text = re.sub(
        rf"\((?:{name})(?:, (?:{name}))*\)", lambda found: re.sub(r"\w+", lambda one: options[one[0]], found[0]), text
    )
    text = re.sub(rf"(?<!\S)({name})\[(\d+)\]", lambda found: f"{options[found[1]]} number {int(found[2]) + 1}", text)
    text = re.sub(rf"(?<![\w./:-])({name})=(?=['\"\d-])", lambda found: f"{options[found[1]]} ", text)
    text = re.sub(rf"(?<![\w./:-])({name})=(?=$|[\s,;)])", lambda found: options[found[1]], text)
    text = re.sub(rf"(?<![\w./-])({unmistakable})(?:=(?:True)?)?(?![\w./=[-])", lambda found: options[found[1]], text)
    return _IN_PYTHON.sub("", text)


def root_of(error: BaseException) -> BaseException:
    """The error itself, where DCP has put it into a collection of what went wrong on each rank."""
    failures = getattr(error, "failures", None)
    if not isinstance(failures, dict):
        return error
    found = [entry[0] if isinstance(entry, tuple) else entry for entry in failures.values()]
    return next((each for each in found if isinstance(each, BaseException)), error)


def storage_failure_in(error: BaseException | None) -> BaseException | None:
    """The error of a storage's client that ended the command; None if something else did, or a file is not there."""
    while error is not None:
        modules = {str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)}
        of_client = _LOCAL not in modules and any(module.partition(".")[0] == "fsspec" for module in modules)
        if of_client and not isinstance(error, (errors.StreamxfError, *_FOUND_OUT)):
            return error
        error = error.__cause__ if isinstance(error, errors.ForeignError | OSError) else None
    return None


def storage_line_of(error: BaseException, arguments: Sequence[str]) -> str:
    """What to say of such an error; the command's arguments hold the URLs that it is about."""
    urls = [text for text in arguments if "://" in text and not text.startswith("-")]
    protocols = {url.partition("://")[0].rpartition("::")[2] for url in urls}
    variables = f"FSSPEC_{protocols.pop().upper()}_..." if len(protocols) == 1 else "FSSPEC_..."
    where = f"{printable(', '.join(urls), LINE)}: " if urls else ""
    what = "refuses access" if isinstance(error, PermissionError) else "cannot be used"
    said = error.__cause__ or error  # s3fs says "Forbidden", and botocore to which request
    text = " ".join(f"{type(said).__name__}: {said}".removesuffix(": ").split()).rstrip(".")
    return (
        f"{where}the storage {what}: {printable(text, _SAID)}. Check its endpoint and your credentials: fsspec takes "
        f"them from {variables} in the environment, from ~/.config/fsspec, or from where the storage's own tools find "
        "them"
    )
