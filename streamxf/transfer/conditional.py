"""Puts on a condition, where a store has them: an object is replaced only if it is still the one that was seen."""

from __future__ import annotations

from typing import Any

from streamxf.transfer.calls import made
from streamxf.transfer.multipart import ABSENT, multipart_of

_REPLACED = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}
_UNKNOWN = {"NotImplemented", "501"}


class ReplacedMeanwhile(Exception):
    """Another process has put, replaced or removed the object since its stamp was taken. Nothing was changed."""


def stamp_of(filesystem: Any, path: str) -> str | None:
    """What identifies the object that is at `path` now; None where the store has no such condition for a put."""
    store = multipart_of(filesystem, path)
    if store is None:
        return None
    try:
        return made(filesystem, store.stamp)
    except FileNotFoundError:
        return ABSENT


def put_over(filesystem: Any, path: str, data: bytes, stamp: str) -> None:
    """Put `data` at `path`, whose `stamp_of` is known, if the object there still has it. Raises ReplacedMeanwhile."""
    store = multipart_of(filesystem, path)
    assert store is not None
    try:
        made(filesystem, lambda: store.put_over(data, stamp))
    except (OSError, NotImplementedError) as error:
        code = _code_of(error)
        if code in _UNKNOWN:
            filesystem.pipe_file(path, data)
            return
        if code not in _REPLACED and not isinstance(error, FileExistsError):
            raise
        # if the answer to an attempt was lost, the next one was refused on account of the first
        if made(filesystem, lambda: _read(filesystem, path)) != data:
            raise ReplacedMeanwhile from error


async def _read(filesystem: Any, path: str) -> bytes | None:
    try:
        found: bytes = await filesystem._cat_file(path)
    except FileNotFoundError:
        return None
    return found


def _code_of(error: BaseException) -> str:
    """The code in the server's answer; s3fs keeps that as the cause of its errors."""
    answer = getattr(error.__cause__, "response", None)
    return str(answer.get("Error", {}).get("Code", "")) if isinstance(answer, dict) else ""
