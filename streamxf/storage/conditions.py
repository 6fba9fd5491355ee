"""Puts on a condition: an object is replaced only if it is still the one that was seen. A class for each client."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from streamxf.errors import ReplacedMeanwhile, escaped
from streamxf.storage.fetch import is_asynchronous, make_request, status_of
from streamxf.storage.files import draft_of

ABSENT = ""  # the stamp of an object that is not there

_log = logging.getLogger(__name__)


class S3Conditions:
    """Of an object, through s3fs. Each call may be repeated."""

    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem = filesystem
        bucket, key, _ = filesystem.split_path(path)
        self.bucket, self._object = bucket, {"Bucket": bucket, "Key": key}

    async def stamp(self) -> str:
        """What identifies the object that is there now. Raises FileNotFoundError if there is none."""
        return str((await self._filesystem._call_s3("head_object", **self._object))["ETag"])

    async def put_over(self, data: bytes, stamp: str) -> None:
        """Store it if the one that is there has that stamp; raises the store's own refusal if not."""
        condition = {"IfMatch": stamp} if stamp != ABSENT else {"IfNoneMatch": "*"}
        await self._filesystem._call_s3("put_object", Body=data, **self._object, **condition)


class AzureConditions:
    """The same through adlfs."""

    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem, self._path = filesystem, path
        self.bucket = filesystem.split_path(path)[0]

    async def stamp(self) -> str:
        return str((await self._filesystem._info(self._path, refresh=True))["etag"])

    async def put_over(self, data: bytes, stamp: str) -> None:
        from azure.core import MatchConditions
        from azure.core.exceptions import ResourceModifiedError

        unchanged = {"etag": stamp, "match_condition": MatchConditions.IfNotModified}
        how = unchanged if stamp != ABSENT else {"mode": "create"}
        try:
            await self._filesystem._pipe_file(self._path, data, **how)
        except ResourceModifiedError as error:
            raise FileExistsError(self._path) from error  # what adlfs raises in place of the other refusal


class GoogleConditions:
    """The same through gcsfs, which has a condition for new objects alone."""

    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem = filesystem
        self.bucket, self._key, _ = filesystem.split_path(path)

    async def stamp(self) -> str:
        how = {"fields": "generation", "json_out": True}
        return str((await self._filesystem._call("GET", "b/{}/o/{}", self.bucket, self._key, **how))["generation"])

    async def put_over(self, data: bytes, stamp: str) -> None:
        parts = (
            b"--=0=\nContent-Type: application/json; charset=UTF-8\n\n" + json.dumps({"name": self._key}).encode(),
            b"\n--=0=\nContent-Type: application/octet-stream\n\n" + data,
            b"\n--=0=--",
        )
        await self._filesystem._call(
            "POST",
            f"{self._filesystem._location}/upload/storage/v1/b/{{}}/o",
            self.bucket,
            uploadType="multipart",
            headers={"Content-Type": 'multipart/related; boundary="=0="'},
            data=b"".join(parts),
            ifGenerationMatch=stamp or "0",
        )


class ObstoreConditions:
    """The same through obstore's own interface, which has conditions where its file system for fsspec has none."""

    def __init__(self, filesystem: Any, path: str) -> None:
        self.bucket, self._key = filesystem._split_path(path)
        self._store = filesystem._construct_store(self.bucket)

    async def stamp(self) -> str:
        return str((await self._store.head_async(self._key))["e_tag"])

    async def put_over(self, data: bytes, stamp: str) -> None:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            await self._store.put_async(self._key, data, mode={"e_tag": stamp} if stamp != ABSENT else "create")
        except (AlreadyExistsError, PreconditionError) as error:
            raise FileExistsError(self._key) from error


_REPLACED = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}
_UNKNOWN = {"NotImplemented", "501"}
_TRIED = "_streamxf_conditions"  # in a client, of which fsspec has one for each endpoint

Conditions = S3Conditions | AzureConditions | GoogleConditions | ObstoreConditions

# By what only they have: other packages, with other methods, go by the same protocols.
_KINDS: dict[str, Callable[[Any, str], Conditions]] = {
    "_call_s3": S3Conditions,
    "service_client": AzureConditions,
    "_call_list_objects": GoogleConditions,
    "_construct_store": ObstoreConditions,
}


def can_condition(filesystem: Any) -> bool:
    """Whether it is known how something is put on a condition."""
    return is_asynchronous(filesystem) and any(hasattr(filesystem, name) for name in _KINDS)


def conditions_of(filesystem: Any, path: str) -> Conditions | None:
    """How an object at `path` is put on a condition; None where that is not known."""
    if not can_condition(filesystem):
        return None
    return next(kind(filesystem, path) for name, kind in _KINDS.items() if hasattr(filesystem, name))


def tried(filesystem: Any, path: str) -> dict[str, Any]:
    """What puts of this process have shown of the place: whether it ``creates`` and ``replaces`` on a condition."""
    store = conditions_of(filesystem, path)
    return {} if store is None else vars(filesystem).setdefault(_TRIED, {}).setdefault(store.bucket, {})


def stamp_of(filesystem: Any, path: str) -> str | None:
    """What identifies the object that is at `path` now; None where the store has no such condition for a put."""
    store = conditions_of(filesystem, path)
    if store is None or tried(filesystem, path).get("replaces") is False:
        return None
    return _stamp(filesystem, store)


def put_over(filesystem: Any, path: str, data: bytes, stamp: str) -> None:
    """Put `data` at `path`, whose `stamp_of` is known, if the object there still has it. Raises ReplacedMeanwhile. The
    first time that a process puts something, it looks whether the store heeds conditions.
    """
    store, known = conditions_of(filesystem, path), tried(filesystem, path)
    assert store is not None
    if not known:
        known.update({"creates": None, "replaces": None} | _heeded(filesystem, path))
    ability, refused = "creates" if stamp == ABSENT else "replaces", None
    try:
        if known.get(ability) is not False:
            refused = _refused(filesystem, store, data, stamp)
    except Exception as error:  # of whatever class: each client has its own
        if _code_of(error) not in _UNKNOWN:
            raise
        known[ability] = False
    if known.get(ability) is False:
        filesystem.pipe_file(path, data)
        return
    # if the answer to an attempt was lost, the next one was refused on account of the first
    if refused is not None and make_request(filesystem, lambda: _read(filesystem, path)) != data:
        raise ReplacedMeanwhile from refused


def _heeded(filesystem: Any, path: str) -> dict[str, bool]:
    """Which conditions the store heeds, by a draft beside `path`: some take and ignore them. Empty if unknown."""
    draft = draft_of(path)
    store = conditions_of(filesystem, draft)
    assert store is not None
    try:
        _refused(filesystem, store, b"1", ABSENT)
        found = {"creates": _refused(filesystem, store, b"2", ABSENT) is not None}
        stamp = _stamp(filesystem, store)
        _refused(filesystem, store, b"3", stamp)
        found["replaces"] = _refused(filesystem, store, b"4", stamp) is not None
    except Exception as error:  # of whatever class: what is wrong with the store shows by the put itself
        if _code_of(error) not in _UNKNOWN:
            _log.debug("conditions could not be tried at %s: %s", store.bucket, error)
            return {}
        found = {"creates": False, "replaces": False}
    finally:
        with suppress(Exception):
            filesystem.rm_file(draft)
    if not all(found.values()):
        _log.warning(
            "the store of %s ignores the condition of a put: of two saves to one folder at the same moment, one may "
            "be lost. Give each job its own folder",
            escaped(str(store.bucket)),
        )
    return found


def _refused(filesystem: Any, store: Conditions, data: bytes, stamp: str) -> Exception | None:
    """Put it on the condition; what the store says if that was not met."""
    try:
        make_request(filesystem, lambda: store.put_over(data, stamp))
    except Exception as error:  # of whatever class: each client has its own
        if _code_of(error) in _REPLACED or isinstance(error, FileExistsError):
            return error
        raise
    return None


def _stamp(filesystem: Any, store: Conditions) -> str:
    try:
        return make_request(filesystem, store.stamp)
    except FileNotFoundError:
        return ABSENT


async def _read(filesystem: Any, path: str) -> bytes | None:
    with suppress(FileNotFoundError):
        return await filesystem._cat_file(path)  # type: ignore[no-any-return]
    return None


def _code_of(error: BaseException) -> str:
    """The code in the server's answer; s3fs keeps that as the cause of its errors."""
    answer = getattr(error.__cause__, "response", None)
    return str(answer.get("Error", {}).get("Code", "")) if isinstance(answer, dict) else str(status_of(error))
