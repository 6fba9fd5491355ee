"""`open_storage`: the one way from a path or a URL to a `Storage`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from streamxf.errors import ParameterError, UnsupportedError, redacted
from streamxf.storage.abilities import AbilitiesLike
from streamxf.storage.checked import known_errors
from streamxf.storage.local import LocalStorage
from streamxf.storage.storage import Storage, is_url

Location = str | os.PathLike[str] | Storage  # where a checkpoint is: a path, a URL, or a storage


def open_storage(
    path: Location, storage_options: Mapping[str, Any] | None = None, abilities: AbilitiesLike = None
) -> Storage:
    """The storage at a path or a URL, to be given wherever a path is taken; nothing of it is read yet.

    Parameters
    ----------
    path : path, str or Storage
        A URL is for fsspec, and so is anything with `storage_options`.
    storage_options : mapping, optional
        fsspec's, for a URL.
    abilities : Abilities or mapping, optional
        What you know of the place, and of all that is below, such as ``{"locks": "hosts", "stored": True}``. It counts
        for more than what streamxf knows; None says nothing, so where you are not sure say False.

    Raises
    ------
    ParameterError, UnsupportedError
        If an argument is invalid; if a URL needs a package that is not installed.
    """
    return _opened(path, storage_options).told(abilities) if abilities else _opened(path, storage_options)


def _opened(path: Location, storage_options: Mapping[str, Any] | None) -> Storage:
    if isinstance(path, Storage):
        if storage_options:
            raise ParameterError(f"storage_options= are for URLs; {type(path).__name__} has its own")
        return path
    options = {} if storage_options is None else storage_options
    if not isinstance(options, Mapping) or not all(isinstance(each, str) for each in options):
        raise ParameterError("storage_options= is a mapping from names of fsspec's options to their values")
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not text or not isinstance(text, str) or "\0" in text:
        raise ParameterError(f"{path!r:.80} is no path: pass text that is not empty, a Path, a URL or a Storage")
    if not is_url(text) and not options:
        return LocalStorage(text)
    shown = redacted(text)
    if text.startswith(("zip://", "tar://")) and "::" not in text and "fo" not in options:
        kind = text[:3]
        raise ParameterError(f"this URL names no archive: write {kind}://FOLDER::file:///PATH.{kind}", file=shown)
    try:
        from fsspec.core import url_to_fs

        filesystem, inner = url_to_fs(text, **options)
    except ImportError as error:
        raise UnsupportedError(f"this URL needs a package that is not installed: {error}", file=shown) from None
    except ValueError as error:
        raise ParameterError(f"this URL cannot be used: {error}", file=shown) from None
    except Exception:  # of whatever class: some clients connect here
        with known_errors(shown):
            raise
    # to a link without a path fsspec gives that of the next, which is right for a cache
    within = re.match("dir(?::/*(.*?))?::", text)
    return storage_over(filesystem, inner if within is None else within[1] or "", text)


def storage_over(filesystem: Any, path: str, location: str) -> Storage:
    """A path in a file system of fsspec's; None is the local one, which may also lie below others of its layers."""
    if filesystem is None:
        return LocalStorage(path, location)
    from streamxf.storage.remote import RemoteStorage, WebStorage, layers_of  # which few processes need

    for place, names in layers_of(filesystem, path):
        if "file" in names:
            return LocalStorage(str(place), location)
    remote = RemoteStorage(path, filesystem, location)
    return WebStorage(path, filesystem, location) if remote.protocol in ("http", "https") else remote
