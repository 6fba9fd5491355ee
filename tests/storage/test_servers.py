"""Storages that the documentation names, on real servers: what is relied on, saves, runs, threads, races and kills."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import streamxf
from streamxf.errors import AbortedError, ForeignError
from streamxf.storage.opening import open_storage
from streamxf.testing import check_storage
from tests.cli import preloaded
from tests.dcp.fsspec_checks import check_round_trips, load_from, save_to
from tests.dcp.helpers import KEY, assert_same
from tests.forked import status_of_child
from tests.objectstore.emulators import just_before_the_put, state_of
from tests.storage.servers import PASSWORD, SERVERS, Place, served

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*is not known to replace a file in one step")]


# This client takes a minute with each of two servers of SFTP, of which OpenSSH is the one that people run.
RARE = {"asyncssh, paramiko": pytest.mark.exhaustive}
PARAMS = [pytest.param(kind, marks=RARE[kind]) if kind in RARE else kind for kind in SERVERS]


@pytest.fixture(scope="module", params=PARAMS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with served(request.param, tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture
def place(server: Place) -> Place:
    name = uuid4().hex
    return server._replace(url=f"{server.url}/{name}", folder=server.folder / name)


def test_it_does_what_is_relied_on(place: Place) -> None:
    storage = open_storage(place.url, place.options)
    check_storage(storage)
    # SeaweedFS shows obstore folders that it keeps as empty objects
    left = [each for each in storage.below() if "obstore" not in place.kind or each.size] if storage.exists() else []
    assert not (left if storage.abilities.flat else storage.exists())


def test_round_trips(server: Place, place: Place) -> None:
    check_round_trips(place.url, state_of(0), place.options)
    root = server.folder.parent
    shown = [str(each.relative_to(root)) for each in root.rglob("*")]
    assert not [each for each in shown if PASSWORD in each or ":" in each], "only make_folder makes folders"


def test_a_run(place: Place) -> None:
    options: dict[str, Any] = {"storage_options": place.options}
    with streamxf.CheckpointManager(place.url, "zstd", keep=2, async_save="thread", **options) as manager:
        for step in (1, 2, 3):
            manager.save(step, state_of(step), metrics={"loss": 1 / step})
    with streamxf.CheckpointManager(place.url, "zstd", keep=2, **options) as manager:
        state = state_of(0)
        assert manager.resume(state) == 3
        assert_same(state, state_of(3))
    names = [record.name for record in streamxf.list_checkpoints(place.url, **options)]
    assert names == ["step-2", "step-3"]
    assert streamxf.verify(f"{place.url}/step-3", storage_options=place.options).ok


def test_threads_that_load_at_once(place: Place) -> None:
    save_to(place.url, state_of(5), place.options)
    storage = open_storage(place.url, place.options)

    def read(number: int) -> None:
        if number % 2:
            with streamxf.Checkpoint(storage, keys=KEY) as checkpoint:
                assert (checkpoint["weight"].read() == 5).all()
        assert ".metadata" in {each.name for each in storage.entries()}

    with ThreadPoolExecutor(4) as pool:
        [*pool.map(read, range(16))]


def test_of_two_saves_at_once_the_last_one_stays_whole(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    just_before_the_put(monkeypatch, lambda: save_to(place.url, state_of(1), place.options))
    save_to(place.url, state_of(2), place.options)
    assert_same(load_from(place.url, state_of(0), place.options), state_of(2))


CHILD = """
import json, os, signal, sys
from streamxf.storage.remote import RemoteStorage
from tests.dcp.fsspec_checks import save_to
from tests.objectstore.emulators import state_of
from tests.storage.servers import using

kind, url, options = json.loads(sys.argv[1])
replace = RemoteStorage._replace

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def killed(self, path, data, over, check):
    replace(self, path, data, over, die if path == ".metadata" else check)

RemoteStorage._replace = killed
with using(kind):
    save_to(url, state_of(2), options)
"""


def test_a_save_that_is_killed_leaves_the_old_checkpoint(place: Place) -> None:
    """When all is written but the name of `.metadata`."""
    save_to(place.url, state_of(1), place.options)
    storage = open_storage(place.url, place.options)
    before = storage.names().keys()
    child = preloaded.script(CHILD, json.dumps([place.kind, place.url, place.options]), cwd=Path(__file__).parents[2])
    assert child.returncode == -9, child.stderr
    assert storage.names().keys() > before
    assert_same(load_from(place.url, state_of(0), place.options), state_of(1))
    save_to(place.url, state_of(3), place.options)
    assert_same(load_from(place.url, state_of(0), place.options), state_of(3))


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded")
def test_a_fork_is_told_that_it_has_no_client(place: Place) -> None:
    save_to(place.url, state_of(1), place.options)
    storage = open_storage(place.url, place.options)

    def refused() -> None:
        with pytest.raises((AbortedError, ForeignError), match="fork"):
            storage.read(".metadata", 0, 9)

    assert status_of_child(refused) == 0
    assert storage.read(".metadata", 0, 9)
