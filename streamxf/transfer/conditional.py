"""Puts on a condition, where a store has them: an object is replaced only if it is still the one that was seen."""

from __future__ import annotations

from typing import Any

from streamxf.transfer.calls import made
from streamxf.transfer.multipart import S3Multipart, multipart_of

ABSENT = ""  # the stamp of an object that is not there

_REPLACED = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}
_UNKNOWN = {"NotImplemented", "501"}


class ReplacedMeanwhile(Exception):
    """Another process has put, replaced or removed the object since its stamp was taken. Nothing was changed."""


def stamp_of(filesystem: Any, path: str) -> str | None:
    """What identifies the object that is at `path` now; None where the store has no such condition for a put."""
    if not isinstance(multipart_of(filesystem, path), S3Multipart):
        return None
    bucket, key, _ = filesystem.split_path(path)
    try:
        answer = made(filesystem, lambda: filesystem._call_s3("head_object", Bucket=bucket, Key=key))
    except FileNotFoundError:
        return ABSENT
    return str(answer["ETag"])


def put_over(filesystem: Any, path: str, data: bytes, stamp: str) -> None:
    """Put `data` at `path` if the object there still has that stamp. Raises ReplacedMeanwhile."""
    bucket, key, _ = filesystem.split_path(path)
    condition = {"IfMatch": stamp} if stamp != ABSENT else {"IfNoneMatch": "*"}
    request = {"Bucket": bucket, "Key": key, "Body": data, **condition}
    try:
        made(filesystem, lambda: filesystem._call_s3("put_object", **request))
    except (OSError, NotImplementedError) as error:
        code = _code_of(error)
        if code in _UNKNOWN:
            filesystem.pipe_file(path, data)
            return
        if code not in _REPLACED:
            raise
        # if the answer to an attempt was lost, the next one was refused on account of the first
        if made(filesystem, lambda: _read(filesystem, path)) != data:
            raise ReplacedMeanwhile from error
    filesystem.invalidate_cache(path)


async def _read(filesystem: Any, path: str) -> bytes | None:
    try:
        found: bytes = await filesystem._cat_file(path)
    except FileNotFoundError:
        return None
    return found


def _code_of(error: BaseException) -> str:
    """The code in the server's answer; s3fs keeps that as the cause of its errors."""
    answer = getattr(error.__cause__, "response", None) or {}
    return str(answer.get("Error", {}).get("Code", ""))
