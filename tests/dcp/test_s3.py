"""Checkpoints on a real S3 server, which the tests start on loopback."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Checksum
from streamxf.errors import KeyMissingError, MetadataError
from tests.polling import wait_until

from .fsspec_checks import assert_only_the_save_remains, check_round_trips, fsspec_files, load_from, save_to
from .helpers import KEY, OTHER_KEY, Acting, assert_same, error_of, refused
from .s3_server import serving, storage

pytestmark = [pytest.mark.s3, pytest.mark.slow]


def test_round_trips(endpoint: str, state: dict[str, Any]) -> None:
    check_round_trips("s3://checkpoints/run/step", state, storage(endpoint), thread_count=2)


def test_the_server_does_ask_for_credentials(endpoint: str, state: dict[str, Any]) -> None:
    """Or else the test above would not show that they survive a reset."""
    url = "s3://checkpoints/credentials"
    save_to(url, state, storage(endpoint))
    assert_same(load_from(url, state, storage(endpoint)), state)
    assert error_of(lambda: load_from(url, state, storage(endpoint, "wrong"))) is not None


def test_recipients_change(endpoint: str, state: dict[str, Any]) -> None:
    url = "s3://checkpoints/recipients"
    options = storage(endpoint)
    save_to(url, state, options)
    before = fsspec_files(url, options)
    assert streamxf.rekey(url, keys=KEY, recipients=OTHER_KEY, storage_options=options) == (".metadata",)
    assert_same(load_from(url, state, options, keys=OTHER_KEY), state)
    with refused(KeyMissingError, KEY.id):
        load_from(url, state, options)
    after = fsspec_files(url, options)
    assert {**after, ".metadata": 0} == {**before, ".metadata": 0}
    assert streamxf.add_recipient(url, keys=OTHER_KEY, recipients=KEY, storage_options=options) == (".metadata",)
    assert_same(load_from(url, state, options), state)
    assert streamxf.remove_recipient(url, keys=KEY, recipient=OTHER_KEY.id, storage_options=options) == (".metadata",)
    assert [reader.id for reader in streamxf.recipients(url, keys=KEY, storage_options=options).whole] == [KEY.id]
    with refused(MetadataError, "no checkpoint"):
        streamxf.rekey("s3://checkpoints/nothing", keys=KEY, recipients=OTHER_KEY, storage_options=options)


def uploads_begun(options: dict[str, Any]) -> list[Any]:
    import s3fs

    found = s3fs.S3FileSystem(**options).call_s3("list_multipart_uploads", Bucket="checkpoints").get("Uploads", [])
    return [upload for upload in found if upload["Key"].startswith("fails/")]  # others may be of other tests


def test_a_save_that_fails_leaves_no_object_and_no_upload(endpoint: str) -> None:
    url = "s3://checkpoints/fails"
    options = {**storage(endpoint), "default_block_size": 5 * 2**20}  # the smallest part that S3 takes
    old = {str(number): torch.randn(800_000) for number in range(24)}  # more than may be in flight
    save_to(url, old, options)

    def act(number: int) -> None:
        if number == 24:
            wait_until(lambda: uploads_begun(options))  # the request is made by a thread of fsspec's
        if number >= 6 and uploads_begun(options):
            raise ValueError("in the middle")

    error = error_of(
        lambda: dcp.save(
            {name: tensor + 1 for name, tensor in old.items()},
            storage_writer=streamxf.FsspecWriter(url, _extensions=[Checksum()], **options),
            planner=Acting(act),
        )
    )
    assert isinstance(error, ValueError)
    assert not uploads_begun(options)
    assert_only_the_save_remains(url, options)
    assert_same(load_from(url, old, options), old)


def test_a_server_that_dies_in_the_middle_fails_the_save(tmp_path: Path, endpoint: str) -> None:
    state = {str(number): torch.randn(800_000) for number in range(4)}
    with ExitStack() as server:
        options = {**storage(server.enter_context(serving(tmp_path))), "default_block_size": 5 * 2**20}
        assert options["endpoint_url"] != endpoint
        once = {"config_kwargs": {"retries": {"max_attempts": 0}}}  # it will not come back
        writer = streamxf.FsspecWriter("s3://checkpoints/dies", _extensions=[Checksum()], **options, **once)
        writer.fs.fs.retries = 1
        planner = Acting(lambda number: server.close() if number == 3 else None)
        error = error_of(lambda: dcp.save(state, storage_writer=writer, planner=planner))
    assert isinstance(error, Exception)
    assert type(error).__module__.partition(".")[0] in ("builtins", "streamxf")
    assert writer.report is None
