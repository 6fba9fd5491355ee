"""Where a checkpoint is: in a folder, or at a URL; and what stands below torch's file systems."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from streamxf.errors import ParameterError
from streamxf.proportion import held_at

_CACHES = frozenset({"blockcache", "cached", "filecache", "simplecache"})
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]*://", re.ASCII)


def check_local(path: str | os.PathLike[str] | None, instead: str) -> None:
    """Refuse a URL, of which torch would make a folder with a name such as ``s3:``; `instead` is the class for URLs.

    Raises
    ------
    ParameterError
    """
    if isinstance(path, str) and _SCHEME.match(path):
        raise ParameterError(f"{path!r:.200} is a URL, and this class takes a folder: use streamxf.{instead} for it")


def local_path(fs: Any, path: str | os.PathLike[str]) -> str | None:
    """The path in the local file system; None where `fs`, a torch ``FileSystemBase``, is another one."""
    if getattr(fs, "fs", None) is None:  # torch's own
        return os.fspath(path)
    for layer, inner_path, names in _layers(fs, path):
        if "file" in names:
            return str(layer._strip_protocol(inner_path))
    return None


def held_by(fs: Any, folder: Any, names: Iterable[str], listed: Mapping[str, int | None]) -> int:
    """How many bytes the storage holds of some files of a folder, all but their holes; what cannot be asked counts for
    nothing.

    Parameters
    ----------
    fs : FileSystemBase
        Torch's.
    folder, names
        The files' paths are relative to the folder, and inside of it.
    listed : mapping of str to int
        Sizes that are known.
    """
    return sum(_held(fs, fs.concat_path(folder, name), listed.get(name)) for name in names)


def _held(fs: Any, path: Any, size: int | None) -> int:
    if (local := local_path(fs, path)) is not None:
        return held_at(local)
    if size is None:
        with suppress(OSError):
            size = fs.fs.info(os.fspath(path))["size"]
    return size or 0


def protocol_of(fs: Any) -> str:
    """The protocol of the storage below all layers of fsspec's: ``file``, ``s3``, ...; "" if it is none of fsspec's."""
    found = "file" if getattr(fs, "fs", None) is None else ""
    for _, _, names in _layers(fs, ""):
        found = names[0]
    return found


def is_cached(fs: Any) -> bool:
    """Whether files are read through a cache of fsspec's, which may remember what has been replaced since."""
    return any(_CACHES.intersection(names) for _, _, names in _layers(fs, ""))


def _layers(fs: Any, path: Any) -> Iterator[tuple[Any, Any, tuple[str, ...]]]:
    """Fsspec's file systems below torch's wrapper, the outermost first: caches, and folders that pose as a root."""
    layer: Any = getattr(fs, "fs", None)
    while hasattr(layer, "_strip_protocol"):
        path = layer._strip_protocol(path)
        names = (layer.protocol,) if isinstance(layer.protocol, str) else tuple(layer.protocol)
        yield layer, path, names
        if "dir" in names:
            path = layer._join(path)
        layer = getattr(layer, "fs", None)
