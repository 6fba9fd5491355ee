"""Where copies come from and go to."""

from __future__ import annotations

import os

from streamxf.errors import ParameterError


def is_same(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> bool:
    """Whether two paths or URLs lead to the same place, as far as it can be told."""
    try:
        return os.path.samefile(source, target)
    except OSError:  # one of them is not there, or a URL
        return os.fspath(source).rstrip("/") == os.fspath(target).rstrip("/")


def refuse_inside(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Refuse to write into the folder that is read.

    Raises
    ------
    ParameterError
    """
    if is_same(source, target):
        raise ParameterError("source and target are the same, and the files of one would lie among those of the other")
    outer, inner = os.fspath(source).rstrip("/"), os.fspath(target)
    if "://" not in outer and "://" not in inner:
        outer, inner = os.path.realpath(outer), os.path.realpath(inner)
    if inner.startswith(f"{outer}/"):
        raise ParameterError("the target lies in the folder that is to be packed: name one outside of it")
