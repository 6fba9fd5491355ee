"""Puts on a condition, where a store has them: an object is replaced only if it is still the one that was seen."""

from __future__ import annotations

from typing import Any

from streamxf.transfer.calls import made
from streamxf.transfer.multipart import AzureMultipart, S3Multipart, multipart_of

ABSENT = ""  # the stamp of an object that is not there

_REPLACED = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}
_UNKNOWN = {"NotImplemented", "501"}


class ReplacedMeanwhile(Exception):
    """Another process has put, replaced or removed the object since its stamp was taken. Nothing was changed."""


def stamp_of(filesystem: Any, path: str) -> str | None:
    """What identifies the object that is at `path` now; None where the store has no such condition for a put."""
    store = multipart_of(filesystem, path)
    try:
        if isinstance(store, S3Multipart):
            bucket, key, _ = filesystem.split_path(path)
            return str(made(filesystem, lambda: filesystem._call_s3("head_object", Bucket=bucket, Key=key))["ETag"])
        if isinstance(store, AzureMultipart):
            return str(made(filesystem, lambda: filesystem._info(path, refresh=True))["etag"])
    except FileNotFoundError:
        return ABSENT
    return None


def put_over(filesystem: Any, path: str, data: bytes, stamp: str) -> None:
    """Put `data` at `path` if the object there still has that stamp. Raises ReplacedMeanwhile."""
    bucket, key, _ = filesystem.split_path(path)
    condition = {"IfMatch": stamp} if stamp != ABSENT else {"IfNoneMatch": "*"}
    request = {"Bucket": bucket, "Key": key, "Body": data, **condition}
    try:
        if isinstance(multipart_of(filesystem, path), AzureMultipart):
            made(filesystem, lambda: _put_to_azure(filesystem, path, data, stamp))
        else:
            made(filesystem, lambda: filesystem._call_s3("put_object", **request))
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


async def _put_to_azure(filesystem: Any, path: str, data: bytes, stamp: str) -> None:
    from azure.core import MatchConditions
    from azure.core.exceptions import ResourceModifiedError

    unchanged = {"etag": stamp, "match_condition": MatchConditions.IfNotModified}
    try:
        await filesystem._pipe_file(path, data, **(unchanged if stamp != ABSENT else {"mode": "create"}))
    except ResourceModifiedError as error:
        raise FileExistsError(path) from error  # what adlfs raises in place of the other refusal


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
