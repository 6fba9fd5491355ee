"""What object stores offer beyond fsspec: uploads in parts, and puts on a condition, by which an object is replaced
only if it is still the one that was seen. A class for each client, of coroutines, each of which may be repeated.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import IO, Any, cast

from typing_extensions import Buffer

from streamxf.buffers import flat_view
from streamxf.cached import cached_property
from streamxf.engine import finalize_apart
from streamxf.errors import ReplacedMeanwhile, add_note, escaped
from streamxf.storage.fetch import is_asynchronous, make_request, start_request, status_of
from streamxf.storage.files import draft_of

ABSENT = ""  # the stamp of an object that is not there
PART_BYTES = 8 * 2**20
_UNDER_WAY = 4  # parts; each takes its bytes of memory, as does the one that is being filled
_LONGER: tuple[tuple[int, int], ...] = ((8_000, 64), (5_000, 8))
"""From which part on they are how many times as long, and go one by one. S3 takes 10,000: a terabyte fits."""
_EQUAL = 9_500

_log = logging.getLogger(__name__)


class S3:
    """An object by s3fs, for S3 and whatever speaks its protocol. It appears when an upload is completed, whose parts
    are numbered from 1.
    """

    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem = filesystem
        self.bucket, key, _ = filesystem.split_path(path)
        self._object = {"Bucket": self.bucket, "Key": key}
        self._upload: dict[str, str] = {}

    async def stamp(self) -> str:
        """What identifies the object that is there now. Raises FileNotFoundError if there is none."""
        return str((await self._call("head_object"))["ETag"])

    async def put_over(self, data: bytes, stamp: str) -> None:
        """Store it if the one that is there has that stamp; raises the store's own refusal if not."""
        condition = {"IfMatch": stamp} if stamp != ABSENT else {"IfNoneMatch": "*"}
        await self._call("put_object", Body=data, **condition)

    async def put(self, data: bytearray) -> None:
        """Store the whole object in one request."""
        await self._call("put_object", Body=data)

    async def begin(self) -> None:
        self._upload = {"UploadId": (await self._call("create_multipart_upload"))["UploadId"]}

    async def part(self, number: int, data: bytearray) -> Any:
        """Upload a part; returns what `complete` needs to know of it."""
        answer = await self._call("upload_part", **self._upload, PartNumber=number, Body=data)
        return {"PartNumber": number} | {
            name: answer[name] for name in answer if name == "ETag" or name.startswith("Checksum")
        }

    async def complete(self, parts: Sequence[Any]) -> None:
        try:
            await self._call("complete_multipart_upload", **self._upload, MultipartUpload={"Parts": list(parts)})
        except FileNotFoundError:
            # There is no such upload. If the answer to an earlier attempt was lost, the object is there: its name is
            # used only once.
            await self._call("head_object")

    async def abort(self) -> None:
        if self._upload:
            await self._call("abort_multipart_upload", **self._upload)

    async def _call(self, method: str, **arguments: Any) -> Any:
        return await self._filesystem._call_s3(method, **self._object, **arguments)


class Azure:
    """The same by adlfs, in blocks. The store itself drops blocks that were never committed, after a week."""

    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem, self._path = filesystem, path
        self.bucket, self._name, _ = filesystem.split_path(path)

    @cached_property
    def _blob(self) -> Any:
        # it sends through the session of adlfs's client, and has none of its own to be closed
        return self._filesystem.service_client.get_blob_client(self.bucket, self._name)

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

    async def put(self, data: bytearray) -> None:
        await self._blob.upload_blob(bytes(data), overwrite=True)

    async def begin(self) -> None:
        """Blocks need no announcement."""

    async def part(self, number: int, data: bytearray) -> Any:
        name = f"{number:05}"  # those of a blob must have the same length
        await self._blob.stage_block(name, data)
        return name

    async def complete(self, parts: Sequence[Any]) -> None:
        await self._blob.commit_block_list(list(parts))

    async def abort(self) -> None:
        """See above."""


class Google:
    """The same by gcsfs, without uploads in parts; it has a condition for new objects alone."""

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


class Obstore:
    """The same by obstore's own interface, which has conditions where its file system for fsspec has none."""

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

Store = S3 | Azure | Google | Obstore

# By what only they have: other packages, with other methods, go by the same protocols.
_KINDS: dict[str, Callable[[Any, str], Store]] = {
    "_call_s3": S3,
    "service_client": Azure,
    "_call_list_objects": Google,
    "_construct_store": Obstore,
}


def can_condition(filesystem: Any) -> bool:
    """Whether it is known how something is put on a condition."""
    return is_asynchronous(filesystem) and any(hasattr(filesystem, name) for name in _KINDS)


def store_of(filesystem: Any, path: str) -> Store | None:
    """The object at `path`; None in a store that is not known."""
    if not can_condition(filesystem):
        return None
    return next(kind(filesystem, path) for name, kind in _KINDS.items() if hasattr(filesystem, name))


def tried(filesystem: Any, path: str) -> dict[str, Any]:
    """What puts of this process have shown of the place: whether it ``creates`` and ``replaces`` on a condition."""
    store = store_of(filesystem, path)
    return {} if store is None else vars(filesystem).setdefault(_TRIED, {}).setdefault(store.bucket, {})


def stamp_of(filesystem: Any, path: str) -> str | None:
    """What identifies the object that is at `path` now; None where the store has no such condition for a put."""
    store = store_of(filesystem, path)
    if store is None or tried(filesystem, path).get("replaces") is False:
        return None
    return _stamp(filesystem, store)


def put_over(filesystem: Any, path: str, data: bytes, stamp: str) -> None:
    """Put `data` at `path`, whose `stamp_of` is known, if the object there still has it. Raises ReplacedMeanwhile. The
    first time that a process puts something, it looks whether the store heeds conditions.
    """
    store, known = store_of(filesystem, path), tried(filesystem, path)
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
    store = store_of(filesystem, draft)
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


def _refused(filesystem: Any, store: Store, data: bytes, stamp: str) -> Exception | None:
    """Put it on the condition; what the store says if that was not met."""
    try:
        make_request(filesystem, lambda: store.put_over(data, stamp))
    except Exception as error:  # of whatever class: each client has its own
        if _code_of(error) in _REPLACED or isinstance(error, FileExistsError):
            return error
        raise
    return None


def _stamp(filesystem: Any, store: Store) -> str:
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


class Upload:
    """A file written from start to end: it appears at once when the upload is completed; an error aborts that."""

    def __init__(self, filesystem: Any, multipart: S3 | Azure) -> None:
        self._filesystem = filesystem
        self._multipart = multipart
        self._part = bytearray()
        self._least, self._growth = PART_BYTES, _LONGER
        self._begun = False
        self._under_way: deque[Future[Any]] = deque()
        self._parts: list[Any] = []
        self._number = 0

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            try:
                self._complete()
            except BaseException as reason:
                self._abort(reason)
                raise
        else:
            finalize_apart(self._abort, error)

    def expect(self, size: int) -> None:
        """Have all parts but the last of one length, as some stores want (R2), in a file of about so many bytes."""
        if 1.02 * size > _LONGER[-1][0] * PART_BYTES:  # of which containers take some
            self._least, self._growth = -(-size // _EQUAL), ((_EQUAL + 300, 64),)

    def write(self, data: Buffer, /) -> int:
        """Take all of `data`; raises what went wrong with an earlier part."""
        view = flat_view(data)
        done = 0
        while done < len(view):
            piece = view[done : done + self._part_bytes - len(self._part)]
            self._part += piece
            done += len(piece)
            if len(self._part) == self._part_bytes:
                self._send()
        return done

    def flush(self) -> None:
        """Nothing can be had of an object before it is complete."""

    @property
    def _part_bytes(self) -> int:
        return self._least * self._longer

    @property
    def _longer(self) -> int:
        return next((times for number, times in self._growth if self._number >= number), 1)

    def _send(self) -> None:
        if not self._begun:
            make_request(self._filesystem, self._multipart.begin)
            self._begun = True
        while len(self._under_way) >= (_UNDER_WAY if self._longer == 1 else 1):
            self._take()
        self._number += 1
        number, data = self._number, self._part
        self._part = bytearray()
        self._under_way.append(start_request(self._filesystem, lambda: self._multipart.part(number, data)))

    def _take(self) -> None:
        self._parts.append(self._under_way.popleft().result())

    def _complete(self) -> None:
        data = self._part
        if not self._begun:
            make_request(self._filesystem, lambda: self._multipart.put(data))
            return
        if data:
            self._send()
        while self._under_way:
            self._take()
        make_request(self._filesystem, lambda: self._multipart.complete(self._parts))

    def _abort(self, error: BaseException) -> None:
        wait(self._under_way)  # a part that arrives after the upload was aborted may be kept all the same
        if not self._begun:
            return
        try:
            make_request(self._filesystem, self._multipart.abort)
        except Exception as reason:  # a store that does not answer; it must not hide what went wrong before
            add_note(error, _kept(reason))


@contextmanager
def creating(filesystem: Any, path: str) -> Iterator[IO[bytes]]:
    """A new file of fsspec's, for writing once and in order. After an error nothing is left, if the storage answers."""
    multipart = store_of(filesystem, path)
    if isinstance(multipart, S3 | Azure):
        with Upload(filesystem, multipart) as upload:
            yield cast("IO[bytes]", upload)
        return
    stream = filesystem.open(path, "wb")
    try:
        yield stream
        stream.close()
    except BaseException as error:
        _discard(filesystem, path, stream, error)
        raise


def _discard(filesystem: Any, path: str, stream: Any, error: BaseException) -> None:
    """Closing a file would store it, by an error that leaves ``with``, too: half of a data file."""
    uploads = hasattr(stream, "autocommit")  # one of fsspec's buffered files, which appear when they are closed
    try:
        if hasattr(stream, "discard"):  # that of webdav4 is none of them, and appears then, too
            stream.discard()
        if not uploads:
            stream.close()
            with suppress(FileNotFoundError):
                filesystem.rm_file(path)
    except Exception as reason:
        add_note(error, _kept(reason))
    finally:
        if uploads:
            stream.closed = True


def _kept(reason: Exception) -> str:
    return (
        f"the upload of this file could not be aborted ({type(reason).__name__}: {reason}); the store keeps its parts "
        "until `streamxf clean` or a rule for incomplete uploads removes them"
    )


@dataclass(frozen=True)
class PendingUpload:
    """An upload to S3 that was begun, and neither completed nor aborted, of an object with that name."""

    name: str
    begun: datetime
    abort: Callable[[], Any]


def pending_uploads(filesystem: Any, folder: str) -> list[PendingUpload]:
    """Those of objects directly in a folder; none where the store is not S3."""
    if not isinstance(store_of(filesystem, f"{folder}/any"), S3):
        return []
    bucket, prefix, _ = filesystem.split_path(f"{folder.rstrip('/')}/")
    found: list[PendingUpload] = []
    after: dict[str, str] = {}
    while True:
        answer = filesystem.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **after)
        for upload in answer.get("Uploads", ()):
            if "/" not in upload["Key"][len(prefix) :]:
                which = {"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
                abort = partial(filesystem.call_s3, "abort_multipart_upload", **which)
                found.append(PendingUpload(upload["Key"][len(prefix) :], upload["Initiated"], abort))
        if not answer.get("IsTruncated"):
            return found
        after = {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer["NextUploadIdMarker"]}
