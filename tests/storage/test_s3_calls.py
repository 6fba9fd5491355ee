"""What is asked of S3 through s3fs: uploads in parts, and puts on a condition. tests/objectstore asks real servers."""

import errno
import hashlib
from typing import Any

import pytest
from fsspec.asyn import AsyncFileSystem

import streamxf
from streamxf.errors import ParameterError, ReplacedMeanwhile
from streamxf.storage import stores as multipart
from streamxf.storage.opening import open_storage
from streamxf.storage.stores import ABSENT, creating, put_over, stamp_of

PATH = "bucket/folder/object"
PART = 1000


class Refused(Exception):
    """As botocore raises it; s3fs keeps it as the cause of its own."""

    def __init__(self, code: str) -> None:
        self.response = {"Error": {"Code": code}}


class S3(AsyncFileSystem):  # type: ignore[misc]
    """A store in memory, behind the one method of s3fs that is called; it notes the calls.

    - `lost`: the methods whose next answer is lost: the call is done, and answered by an error.
    - `refuses`: the code and the error with which puts are refused.
    """

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.calls: list[str] = []
        self.lost: set[str] = set()
        self.refuses: tuple[str, OSError | NotImplementedError] | None = None
        self._streamxf_conditions = {"bucket": {"creates": True, "replaces": True}}  # else the first put tries them

    @staticmethod
    def split_path(path: str) -> tuple[str, str, None]:
        bucket, _, key = path.partition("/")
        return bucket, key, None

    async def _cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        if path not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[path]

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        self.objects[path] = value

    async def _call_s3(self, method: str, *, Bucket: str, Key: str, **arguments: Any) -> dict[str, Any]:
        self.calls.append(method)
        answer: dict[str, Any] = getattr(self, method)(f"{Bucket}/{Key}", **arguments)
        if method in self.lost:
            self.lost.remove(method)
            raise OSError("the connection was closed")
        return answer

    def head_object(self, path: str, **_: Any) -> dict[str, Any]:
        if path not in self.objects:
            raise FileNotFoundError(path)
        return {"ETag": etag(self.objects[path])}

    def put_object(
        self, path: str, Body: bytes, IfMatch: str | None = None, IfNoneMatch: str | None = None
    ) -> dict[str, Any]:
        if self.refuses is not None:
            raise self.refuses[1] from Refused(self.refuses[0])
        there = self.objects.get(path)
        if (IfMatch is not None and (there is None or etag(there) != IfMatch)) or (
            IfNoneMatch == "*" and there is not None
        ):
            raise OSError(errno.EINVAL, "At least one of the pre-conditions") from Refused("PreconditionFailed")
        self.objects[path] = bytes(Body)
        return {}

    def create_multipart_upload(self, path: str) -> dict[str, Any]:
        self.uploads["an id"] = {}
        return {"UploadId": "an id"}

    def upload_part(self, path: str, UploadId: str, PartNumber: int, Body: bytes) -> dict[str, Any]:
        self.uploads[UploadId][PartNumber] = bytes(Body)
        return {"ETag": etag(Body), "ChecksumCRC32": "sum", "ServerSideEncryption": "AES256"}

    def complete_multipart_upload(
        self, path: str, UploadId: str, MultipartUpload: dict[str, list[dict[str, Any]]]
    ) -> dict[str, Any]:
        if UploadId not in self.uploads:
            raise FileNotFoundError("no such upload")
        parts = self.uploads.pop(UploadId)
        expected = [{"PartNumber": n, "ETag": etag(parts[n]), "ChecksumCRC32": "sum"} for n in sorted(parts)]
        assert MultipartUpload == {"Parts": expected}
        self.objects[path] = b"".join(parts[number] for number in sorted(parts))
        return {}

    def abort_multipart_upload(self, path: str, UploadId: str) -> dict[str, Any]:
        del self.uploads[UploadId]
        return {}


def etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> S3:
    monkeypatch.setattr(multipart, "PART_BYTES", PART)
    monkeypatch.setattr("streamxf.storage.fetch._PAUSE", 0.001)
    return S3()


# -- puts on a condition ---------------------------------------------------------------------------


def test_an_object_is_replaced_while_it_is_the_one_that_was_seen(s3: S3) -> None:
    first = stamp_of(s3, PATH)
    assert first == ABSENT
    put_over(s3, PATH, b"one", first)
    second = stamp_of(s3, PATH)
    assert second == etag(b"one")
    for stale in (ABSENT, etag(b"another")):
        with pytest.raises(ReplacedMeanwhile):
            put_over(s3, PATH, b"two", stale)
        assert s3.objects == {PATH: b"one"}
    put_over(s3, PATH, b"two", second)
    assert s3.objects == {PATH: b"two"}
    s3.objects.clear()
    with pytest.raises(ReplacedMeanwhile):
        put_over(s3, PATH, b"three", etag(b"two"))
    assert s3.objects == {}


def test_a_put_whose_answer_was_lost_is_no_replacement(s3: S3) -> None:
    s3.objects[PATH] = b"one"
    s3.lost = {"put_object"}
    put_over(s3, PATH, b"two", etag(b"one"))
    assert s3.objects == {PATH: b"two"}
    assert s3.calls == ["put_object", "put_object"]


@pytest.mark.parametrize("error", [NotImplementedError("a header"), OSError(errno.EINVAL, "a header")], ids=repr)
def test_a_store_without_conditions_is_written_to(s3: S3, error: Any) -> None:
    s3.refuses = ("NotImplemented", error)
    put_over(s3, PATH, b"one", ABSENT)
    assert s3.objects == {PATH: b"one"}


@pytest.mark.parametrize("error", [PermissionError("Access Denied"), OSError(errno.ENOSPC, "full")], ids=repr)
def test_another_refusal_is_raised(s3: S3, error: Any) -> None:
    s3.refuses = ("AccessDenied", error)
    with pytest.raises(OSError, match=r"Access Denied|full") as caught:
        put_over(s3, PATH, b"one", ABSENT)
    assert caught.value is error
    assert s3.objects == {}


def test_a_store_of_another_kind_has_no_stamps() -> None:
    assert stamp_of(AsyncFileSystem(), PATH) is None


# -- uploads in parts ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, PART - 1, PART, 3 * PART, 3 * PART + 7])
def test_an_upload(s3: S3, size: int) -> None:
    data = bytes(range(256)) * 20
    with creating(s3, PATH) as file:
        file.write(data[:size])
        assert s3.objects == {}
    assert s3.objects == {PATH: data[:size]}
    assert s3.uploads == {}
    assert s3.calls.count("upload_part") == (-(-size // PART) if size >= PART else 0)


def test_an_upload_that_is_given_up_leaves_no_parts(s3: S3) -> None:
    with pytest.raises(ValueError, match="mine"), creating(s3, PATH) as file:
        file.write(bytes(3 * PART))
        raise ValueError("mine")
    assert (s3.objects, s3.uploads) == ({}, {})
    assert s3.calls[-1] == "abort_multipart_upload"


def test_the_answer_that_all_is_complete_was_lost(s3: S3) -> None:
    s3.lost = {"complete_multipart_upload"}
    with creating(s3, PATH) as file:
        file.write(bytes(3 * PART))
    assert s3.objects == {PATH: bytes(3 * PART)}
    assert s3.calls[-1] == "head_object"


def test_an_upload_that_was_aborted_by_others(s3: S3) -> None:
    with pytest.raises(FileNotFoundError), creating(s3, PATH) as file:
        file.write(bytes(3 * PART))
        s3.complete_multipart_upload = s3.head_object  # type: ignore[assignment]  # which finds nothing, either
    assert s3.objects == {}


@pytest.mark.parametrize("url", ["s3://bucket//run", "s3a://bucket//run/", "dir://a::s3://bucket//run"])
def test_a_key_that_begins_with_a_slash_is_refused_at_once(url: str) -> None:
    """s3fs 2026.9.0 takes the slash away where it lists, and nowhere else."""
    options = {"key": "a", "secret": "b"} if "::" not in url else {"s3": {"key": "a", "secret": "b"}}
    for act in (
        lambda: open_storage(url, options),
        lambda: streamxf.FsspecWriter(url, **options),
        lambda: streamxf.FsspecReader(url, **options).read_metadata(),
        lambda: streamxf.CheckpointManager(url, storage_options=options),
    ):
        with pytest.raises(ParameterError, match="begins with a slash") as caught:
            act()
        assert url in str(caught.value)
    for other in ("s3://bucket/run", "s3://bucket/a//run", "s3://bucket", "s3://bucket//"):
        open_storage(other, {"key": "a", "secret": "b"})
