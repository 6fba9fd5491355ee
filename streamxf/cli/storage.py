"""Errors of the storage behind a URL: its client has classes and words of its own."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from streamxf.errors import ForeignError, StreamxfError
from streamxf.wording import printable

_LOCAL = "fsspec.implementations.local"
_SAID = 500  # characters
_FOUND_OUT = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)


def failure_in(error: BaseException | None) -> BaseException | None:
    """The error of a storage's client that ended the command; None if something else did, or the client only found out
    that a file is not there.
    """
    while error is not None:
        modules = {str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)}
        of_client = _LOCAL not in modules and any(module.partition(".")[0] == "fsspec" for module in modules)
        if of_client and not isinstance(error, (StreamxfError, *_FOUND_OUT)):
            return error
        error = error.__cause__ if isinstance(error, ForeignError | OSError) else None
    return None


def line_of(error: BaseException, arguments: Sequence[str]) -> str:
    """What to say of such an error; the command's arguments hold the URLs that it is about."""
    urls = [text for text in arguments if "://" in text and not text.startswith("-")]
    protocols = {url.partition("://")[0].rpartition("::")[2] for url in urls}
    variables = f"FSSPEC_{protocols.pop().upper()}_..." if len(protocols) == 1 else "FSSPEC_..."
    where = f"{', '.join(urls)}: " if urls else ""
    what = "refuses access" if isinstance(error, PermissionError) else "cannot be used"
    said = error.__cause__ or error  # s3fs says "Forbidden", and botocore to which request
    text = " ".join(f"{type(said).__name__}: {said}".removesuffix(": ").split()).rstrip(".")
    return (
        f"{where}the storage {what}: {printable(text, _SAID)}. Check its endpoint and your credentials: fsspec takes "
        f"them from {variables} in the environment, from ~/.config/fsspec, or from where the storage's own tools find "
        "them"
    )
