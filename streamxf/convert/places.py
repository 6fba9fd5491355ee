"""Where copies come from and go to."""

from __future__ import annotations

import os


def is_same(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> bool:
    """Whether two paths or URLs lead to the same place, as far as it can be told."""
    try:
        return os.path.samefile(source, target)
    except OSError:  # one of them is not there, or a URL
        return os.fspath(source).rstrip("/") == os.fspath(target).rstrip("/")
