"""Publishing to a store that no lock protects: `.metadata` is put on a condition, and parts of killed uploads go. What
saves to S3 and loads from it ask the server for, and which failures they survive: a proxy looks on.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
import s3fs
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Checksum, Encrypt
from streamxf.errors import AbortedError, MetadataError, NoCheckpointError, StreamxfError
from streamxf.storage import stores as conditions
from streamxf.storage.opening import open_storage
from streamxf.storage.remote import RemoteStorage
from streamxf.storage.storage import Storage
from tests.dcp.fsspec_checks import assert_only_the_save_remains, load_from, save_to
from tests.dcp.helpers import KEY, OTHER_KEY, assert_same, error_of, refused
from tests.dcp.s3_server import storage

from .control import Proxy, most_at_once
from .emulators import check_two_saves_at_once, just_before_the_put, state_of
from .requests import Fault, Request

pytestmark = [pytest.mark.s3, pytest.mark.slow]


def files_of(url: str, options: dict[str, Any]) -> set[str]:
    return {name.rpartition("/")[2] for name in s3fs.S3FileSystem(**options).find(url)}


@pytest.mark.parametrize("first", [True, False])
def test_of_two_saves_at_once_the_last_one_stays_whole(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    url, options = f"s3://checkpoints/two/{first}", storage(endpoint)
    check_two_saves_at_once(url, options, monkeypatch, first)


def test_a_save_that_must_not_overwrite_does_not(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url, options = "s3://checkpoints/no-overwrite", storage(endpoint)
    just_before_the_put(monkeypatch, lambda: save_to(url, state_of(1), options))
    writer = streamxf.FsspecWriter(url, overwrite=False, **options)
    error = error_of(lambda: dcp.save(state_of(2), storage_writer=writer))
    assert isinstance(error, AbortedError)
    assert_same(load_from(url, state_of(0), options), state_of(1))


def test_recipients_do_not_change_a_save_that_was_published_meanwhile(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, options = "s3://checkpoints/rekey", storage(endpoint)
    save_to(url, state_of(0), options)
    original = RemoteStorage.stamp

    def stamp(self: Storage, name: str) -> str | None:
        found = original(self, name)
        monkeypatch.setattr(RemoteStorage, "stamp", original)
        save_to(url, state_of(1), options)
        return found

    # what is compared before the put would notice, too
    monkeypatch.setattr(RemoteStorage, "stamp", stamp)
    with refused(MetadataError, "replaced meanwhile"):
        streamxf.rekey(url, keys=KEY, recipients=OTHER_KEY, storage_options=options)
    assert_same(load_from(url, state_of(0), options), state_of(1))

    just_before_the_put(monkeypatch, lambda: save_to(url, state_of(2), options))
    with refused(MetadataError, "replaced meanwhile"):
        streamxf.rekey(url, keys=KEY, recipients=OTHER_KEY, storage_options=options)
    assert_same(load_from(url, state_of(0), options), state_of(2))


def test_the_answer_to_a_put_is_lost(proxy: Proxy) -> None:
    """The client repeats the put, and is told that something is there already: its own."""
    url, options = "s3://checkpoints/lost", storage(proxy.url)
    proxy.faults(Fault("reset after", "PutObject", number=1))
    save_to(url, state_of(1), options)
    assert proxy.counts()["PutObject"] == 3, "the data file, and twice the metadata"
    assert_same(load_from(url, state_of(0), options), state_of(1))


# -- uploads that were never finished ----------------------------------------------------------------------------


@contextmanager
def uploading(url: str, options: dict[str, Any], *names: str) -> Iterator[None]:
    """Uploads that somebody has begun; other tests of the same server find none of them."""
    filesystem = s3fs.S3FileSystem(**options)
    with ExitStack() as stack:
        for name in names:
            bucket, key, _ = filesystem.split_path(f"{url}/{name}")
            place = {"Bucket": bucket, "Key": key}
            upload = place | {"UploadId": filesystem.call_s3("create_multipart_upload", **place)["UploadId"]}
            filesystem.call_s3("upload_part", **upload, PartNumber=1, Body=b"x" * 6 * 2**20)
            stack.callback(_abort, filesystem, upload)
        yield


def _abort(filesystem: Any, upload: dict[str, str]) -> None:
    with suppress(FileNotFoundError):  # it was
        filesystem.call_s3("abort_multipart_upload", **upload)


def uploads_to(url: str, options: dict[str, Any]) -> list[str]:
    return [upload.name for upload in open_storage(url, options).uploads()]


OWN = f"__0_0_{'ab' * 16}.distcp"


@pytest.mark.parametrize("published", [True, False])
def test_clean_drops_the_parts_of_killed_uploads(endpoint: str, published: bool) -> None:
    url, options = f"s3://checkpoints/parts/{published}", storage(endpoint)
    if published:
        save_to(url, state_of(1), options)
    with uploading(url, options, OWN, "foreign.bin", f"inner/{OWN}"):
        assert sorted(uploads_to(url, options)) == sorted([OWN, "foreign.bin"])
        keys = KEY if published else None
        report = streamxf.clean(url, keys=keys, storage_options=options)
        assert (report.uploads, report.recent) == ((), (OWN,)), "a save may be under way"
        assert streamxf.clean(url, keys=keys, min_age=0, dry_run=True, storage_options=options).uploads == (OWN,)
        assert OWN in uploads_to(url, options)
        assert streamxf.clean(url, keys=keys, min_age=0, storage_options=options).uploads == (OWN,)
        assert uploads_to(url, options) == ["foreign.bin"]
    if published:
        assert_same(load_from(url, state_of(0), options), state_of(1))
    else:
        with pytest.raises(NoCheckpointError):
            streamxf.clean(url, min_age=0, storage_options=options)


MIB = 2**20
SMALL = 60  # tensors


@pytest.fixture(scope="module")
def state() -> dict[str, Any]:
    """Small tensors, and one that is uploaded in four parts or more, whatever size they have."""
    generator = torch.Generator().manual_seed(7)
    small = {f"small{number:02}": torch.randn(100, generator=generator) for number in range(SMALL)}
    return {**small, "large": torch.randn(9 * MIB, generator=generator), "step": 3}


@pytest.fixture(scope="module")
def stored(running: Proxy, state: dict[str, Any]) -> str:
    url = "s3://checkpoints/transfers/stored"
    save(running, url, state)
    return url


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first put of a process asks the store, and which is not counted here."""
    monkeypatch.setattr(conditions, "_heeded", lambda *_: {"creates": True, "replaces": True})


def save(proxy: Proxy, url: str, state: dict[str, Any], threads: int = 1) -> None:
    chain = [Checksum(), Encrypt(KEY)]
    writer = streamxf.FsspecWriter(url, _extensions=chain, thread_count=threads, **options(proxy))
    dcp.save(state, storage_writer=writer)


def load(proxy: Proxy, url: str, state: dict[str, Any]) -> dict[str, Any]:
    return load_from(url, state, options(proxy))


def options(proxy: Proxy) -> dict[str, Any]:
    # botocore's own retries wait for half a minute, and would hide streamxf's
    return {**storage(proxy.url), "config_kwargs": {"retries": {"max_attempts": 1}}}


def of(requests: list[Request], *operations: str) -> list[Request]:
    return [request for request in requests if request.operation in operations]


def test_parts_are_uploaded_at_once_and_nothing_else_on_the_way(proxy: Proxy, state: dict[str, Any]) -> None:
    proxy.pace(latency=0.1)
    save(proxy, "s3://checkpoints/transfers/parts", state)
    requests = proxy.requests()
    counts = Counter(request.operation for request in requests)
    assert counts["CreateMultipartUpload"] == counts["CompleteMultipartUpload"] == 1
    assert counts["PutObject"] == 1, "only the metadata is small enough"
    assert not counts.keys() & {"CopyObject", "UploadPartCopy", "AbortMultipartUpload", "GetObject", "DeleteObject"}
    parts = of(requests, "UploadPart")
    assert len(parts) >= 4
    assert most_at_once(parts) >= 2
    (begun,), (done,) = of(requests, "CreateMultipartUpload"), of(requests, "CompleteMultipartUpload")
    assert all(part.ended <= done.begun for part in parts)
    between = [request for request in requests if begun.begun < request.begun < done.begun]
    assert {request.operation for request in between} == {"UploadPart"}
    (metadata,) = of(requests, "PutObject")
    assert metadata.key.endswith("/.metadata")
    assert metadata.begun > done.ended


def test_ranges_are_fetched_at_once_and_each_byte_once(proxy: Proxy, state: dict[str, Any], stored: str) -> None:
    proxy.forget()
    proxy.pace(latency=0.1)
    assert_same(load(proxy, stored, state), state)
    requests = proxy.requests()
    assert {request.operation for request in requests} <= {"GetObject", "HeadObject"}
    ranges = [request for request in of(requests, "GetObject") if request.key.endswith(".distcp")]
    assert most_at_once(ranges) >= 2
    size = sum(request.received for request in ranges)
    raw = sum(value.nbytes for value in state.values() if isinstance(value, torch.Tensor))
    assert raw <= size < 1.1 * raw
    assert len(ranges) < SMALL / 2, "small tensors were fetched one by one"


@pytest.mark.parametrize(
    "faults",
    [
        [
            Fault("503", "CreateMultipartUpload"),
            Fault("500", "UploadPart", number=1, times=2),
            Fault("reset midway", "UploadPart", number=4),
            Fault("reset after", "CompleteMultipartUpload"),
            Fault("503", "PutObject"),
        ],
        [
            Fault("reset after", "CreateMultipartUpload"),
            Fault("reset after", "UploadPart", number=0),
            Fault("stalled", "UploadPart", number=3, seconds=0.1),
            Fault("200 with an error", "CompleteMultipartUpload"),
            Fault("reset after", "PutObject"),
        ],
    ],
    ids=["refused", "answers lost"],
)
def test_saves_survive(proxy: Proxy, state: dict[str, Any], faults: list[Fault]) -> None:
    url = "s3://checkpoints/transfers/survives"
    proxy.faults(*faults)
    save(proxy, url, state, threads=2)
    assert hit(proxy) == sum(fault.times for fault in faults)
    assert_same(load(proxy, url, state), state)
    assert_only_the_save_remains(url, storage(proxy.url))


@pytest.mark.parametrize("kinds", [("500", "reset before", "truncated"), ("503", "reset after", "stalled")])
def test_loads_survive(proxy: Proxy, state: dict[str, Any], stored: str, kinds: tuple[str, ...]) -> None:
    proxy.forget()
    proxy.faults(
        *(Fault(kind, "GetObject", number, seconds=0.1) for kind, number in zip(kinds, (0, 2, 4), strict=True))
    )
    assert_same(load(proxy, stored, state), state)
    assert hit(proxy) == len(kinds)


@pytest.mark.parametrize("number", [0, 2])
def test_wrong_bytes_are_found(proxy: Proxy, state: dict[str, Any], stored: str, number: int) -> None:
    """In the metadata, and in a tensor."""
    proxy.forget()
    proxy.faults(Fault("wrong bytes", "GetObject", number, times=10**6))
    error = error_of(lambda: load(proxy, stored, state))
    assert isinstance(error, StreamxfError), repr(error)


def hit(proxy: Proxy) -> int:
    return sum(bool(request.fault) for request in proxy.requests())
