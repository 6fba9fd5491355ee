"""Where a checkpoint is: in a folder, or at a URL."""

from __future__ import annotations

import os
import re

from streamxf.errors import ParameterError

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]*://", re.ASCII)


def check_local(path: str | os.PathLike[str] | None, instead: str) -> None:
    """Refuse a URL, of which torch would make a folder with a name such as ``s3:``; `instead` is the class for URLs.

    Raises
    ------
    ParameterError
    """
    if isinstance(path, str) and _SCHEME.match(path):
        raise ParameterError(f"{path!r:.200} is a URL, and this class takes a folder: use streamxf.{instead} for it")
