"""What object stores offer beyond fsspec: uploads in parts. A class for each store, of coroutines."""

from __future__ import annotations

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
from streamxf.engine import finalize_apart
from streamxf.errors import add_note
from streamxf.storage.fetch import is_asynchronous, make_request, start_request

PART_BYTES = 8 * 2**20
_UNDER_WAY = 4  # parts; each takes its bytes of memory, as does the one that is being filled
_LONGER: tuple[tuple[int, int], ...] = ((8_000, 64), (5_000, 8))
"""From which part on they are how many times as long, and go one by one. S3 takes 10,000: a terabyte fits."""
_EQUAL = 9_500


class S3Multipart:
    """An upload of one object through s3fs, for S3 and whatever speaks its protocol. The object appears when it is
    completed. Parts are numbered from 1; each call may be repeated.
    """

    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem = filesystem
        bucket, key, _ = filesystem.split_path(path)
        self._object = {"Bucket": bucket, "Key": key}
        self._upload: dict[str, str] = {}

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


class AzureMultipart:
    """The same through adlfs, in blocks. The store itself drops blocks that were never committed, after a week."""

    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem = filesystem
        self._path = path
        container, name, _ = filesystem.split_path(path)
        # it sends through the session of adlfs's client, and has none of its own to be closed
        self._blob = filesystem.service_client.get_blob_client(container, name)

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


Multipart = S3Multipart | AzureMultipart

# By what only they have: other packages, with other methods, go by the same protocols.
_KINDS: dict[str, Callable[[Any, str], Multipart]] = {"_call_s3": S3Multipart, "service_client": AzureMultipart}


def multipart_of(filesystem: Any, path: str) -> Multipart | None:
    """How an object at `path` is uploaded in parts; None where that is not known."""
    if not is_asynchronous(filesystem):
        return None
    return next((kind(filesystem, path) for name, kind in _KINDS.items() if hasattr(filesystem, name)), None)


class Upload:
    """A file written from start to end: it appears at once when the upload is completed; an error aborts that."""

    def __init__(self, filesystem: Any, multipart: Multipart) -> None:
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
    multipart = multipart_of(filesystem, path)
    if multipart is not None:
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
    if not isinstance(multipart_of(filesystem, f"{folder}/any"), S3Multipart):
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
