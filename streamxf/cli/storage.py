"""Errors of the storage behind a URL, whose client has classes of its own."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence

from streamxf.errors import ForeignError, StreamxfError
from streamxf.wording import printable

_CLIENTS = "fsspec"
_LOCAL = "fsspec.implementations.local"
_SAID = 500  # characters
_FOUND_OUT = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)


def failure_in(error: BaseException) -> BaseException | None:
    """The error of a storage's client that ended the command; None if something else did, or the client only found out
    that a file is not there.
    """
    for each in _behind(error):
        if isinstance(each, (StreamxfError, *_FOUND_OUT)):
            continue
        modules = {str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(each.__traceback__)}
        if _LOCAL not in modules and any(module.partition(".")[0] == _CLIENTS for module in modules):
            return each
    return None


def line_of(error: BaseException, arguments: Sequence[str]) -> str:
    """What to say of such an error.

    Parameters
    ----------
    arguments : sequence of str
        The command's: they hold the URLs of which it speaks.
    """
    urls = [text for text in arguments if "://" in text and not text.startswith("-")]
    protocols = {url.partition("://")[0].rpartition("::")[2] for url in urls}
    variables = f"FSSPEC_{protocols.pop().upper()}_..." if len(protocols) == 1 else "FSSPEC_..."
    where = f"{', '.join(urls)}: " if urls else ""
    what = "refuses access" if isinstance(error, PermissionError) else "cannot be used"
    return (
        f"{where}the storage {what}: {_said(error)}. Check its endpoint and your credentials: fsspec takes them from "
        f"{variables} in the environment, from ~/.config/fsspec, or from where the storage's own tools find them"
    )


def _behind(error: BaseException) -> Iterator[BaseException]:
    """The error, and where streamxf only passes on what a storage's client raised, that."""
    yield error
    seen = {id(error)}
    while isinstance(error, ForeignError | OSError) and error.__cause__ is not None and id(error.__cause__) not in seen:
        error = error.__cause__
        seen.add(id(error))
        yield error


def _said(error: BaseException) -> str:
    """The words of the error beneath, if there is one: s3fs says "Forbidden", and botocore to which request."""
    said = error.__cause__ if error.__cause__ is not None else error
    return printable(" ".join(f"{type(said).__name__}: {said}".removesuffix(": ").split()).rstrip("."), _SAID)
