"""Publishing to a store that no lock protects: `.metadata` is put on a condition, and parts of killed uploads go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
import s3fs
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf.errors import AbortedError, MetadataError, NoCheckpointError
from streamxf.storage.opening import open_storage
from streamxf.storage.remote import RemoteStorage
from streamxf.storage.storage import Storage
from tests.dcp.fsspec_checks import load_from, save_to
from tests.dcp.helpers import KEY, OTHER_KEY, assert_same, error_of, refused
from tests.dcp.s3_server import storage

from .control import Proxy
from .emulators import just_before_the_put, state_of
from .requests import Fault

pytestmark = [pytest.mark.s3, pytest.mark.slow]


def files_of(url: str, options: dict[str, Any]) -> set[str]:
    return {name.rpartition("/")[2] for name in s3fs.S3FileSystem(**options).find(url)}


@pytest.mark.parametrize("first", [True, False])
def test_of_two_saves_at_once_the_last_one_stays_whole(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    url, options = f"s3://checkpoints/two/{first}", storage(endpoint)
    if not first:
        save_to(url, state_of(0), options)
    just_before_the_put(monkeypatch, lambda: save_to(url, state_of(1), options))
    save_to(url, state_of(2), options)
    assert_same(load_from(url, state_of(0), options), state_of(2))
    with streamxf.Checkpoint(url, keys=KEY, storage_options=options) as checkpoint:
        named = {place.file for item in checkpoint.stored.values() for place in item.places}
    assert files_of(url, options) == {".metadata", *named}, "what the other save had published was not removed"


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
