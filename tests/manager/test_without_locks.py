"""One correct job where nothing keeps two writers apart, on a storage whose requests take 5 ms: nothing is lost."""

import fcntl
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from streamxf.manager.listing import list_checkpoints, run_of
from streamxf.manager.manager import CheckpointManager
from streamxf.manager.retention import Retention
from streamxf.storage import abilities
from streamxf.storage.local import LocalStorage
from streamxf.storage.opening import open_storage

from .points import no_locks
from .runs import blank, is_at, state_at

REQUESTS = ("cat_file", "pipe_file", "info", "ls", "find", "rm_file", "mkdir", "makedirs", "exists", "_open", "mv")
SECONDS = 0.005


class Slow(MemoryFileSystem):  # type: ignore[misc]
    """Objects in memory, without puts on a condition; each request takes a while."""

    protocol = "slow"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012


def slowly(name: str) -> Any:
    def request(self: Slow, *arguments: Any, **options: Any) -> Any:
        time.sleep(SECONDS)
        return getattr(super(Slow, self), name)(*arguments, **options)

    return request


for _name in REQUESTS:
    setattr(Slow, _name, slowly(_name))
fsspec.register_implementation("slow", Slow, clobber=True)


@pytest.fixture(params=["store", "folder"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    known = abilities.CLIENTS["fsspec.implementations.memory.MemoryFileSystem"]
    monkeypatch.setitem(abilities.CLIENTS, f"{Slow.__module__}.Slow", known)
    if request.param == "store":
        yield f"slow://run-{secrets.token_hex(4)}"
        return
    put = LocalStorage.put
    for name in ("flock", "lockf", "fcntl"):
        monkeypatch.setattr(fcntl, name, no_locks)

    def slow_put(*arguments: Any, **options: Any) -> None:
        time.sleep(SECONDS)
        put(*arguments, **options)

    monkeypatch.setattr(LocalStorage, "put", slow_put)
    yield str(tmp_path)


KEEP = Retention(last=2, best=1, metric="loss")


def is_kept(run: str) -> None:
    """After steps 1 to 6, of which the second was the best: that, and the last two, with what is known of them."""
    assert {record.name: record.metrics for record in list_checkpoints(run)} == {
        f"step-{step}": {"loss": abs(2.0 - step), "late": float(step)} for step in (2, 5, 6)
    }
    state = blank()
    with CheckpointManager(run) as manager:
        assert manager.resume(state) == 6
    assert is_at(state, 6)


def one_job(run: str) -> None:
    with CheckpointManager(run, save=1, keep=KEEP, async_save=True, in_flight=2) as manager:
        for step in range(1, 7):
            assert manager.should_save(step)
            manager.save(step, state_at(step), metrics={"loss": abs(2.0 - step)})
            manager.commit(step, metrics={"late": float(step)})
    is_kept(run)


def a_framework(run: str) -> None:
    with CheckpointManager(run, keep=KEEP) as manager:
        for step in range(1, 7):
            path = manager.begin(step)
            filesystem, place = fsspec.core.url_to_fs(path)
            filesystem.pipe_file(f"{place}/model.bin", b"weights")
            manager.commit(step, metrics={"loss": abs(2.0 - step)})
            manager.commit(step, metrics={"late": float(step)})
    assert {record.name: record.metrics for record in list_checkpoints(run)} == {
        f"step-{step}": {"loss": abs(2.0 - step), "late": float(step)} for step in (2, 5, 6)
    }
    with CheckpointManager(run) as manager:
        assert (manager.latest() or "").endswith("step-6")


def test_a_job_loses_neither_metrics_nor_rules(place: str) -> None:
    one_job(place)


def test_a_framework_loses_neither_metrics_nor_rules(place: str) -> None:
    a_framework(place)


@pytest.mark.exhaustive
@pytest.mark.parametrize("_", range(50))
def test_no_job_of_fifty_loses_anything(place: str, _: int) -> None:
    one_job(f"{place}/run")
    a_framework(f"{place}/framework")


def test_it_is_slow() -> None:
    began = time.monotonic()
    filesystem = fsspec.filesystem("slow")
    filesystem.pipe_file("/slow/file", b"data")
    assert filesystem.cat_file("/slow/file") == b"data"
    assert time.monotonic() - began >= 2 * SECONDS
    assert open_storage("slow://slow").protocol == "slow"


def test_what_is_said_of_a_checkpoint_is_said_of_its_run(tmp_path: Path) -> None:
    (tmp_path / "there" / "step-1").mkdir(parents=True)
    (tmp_path / "run").symlink_to("there")
    place = open_storage(tmp_path / "run" / "step-1", abilities={"locks": "hosts", "stored": False})
    run, name = run_of(place)
    assert (run.label(), name) == (str(tmp_path.resolve() / "there"), "step-1")
    assert (run.abilities.locks, run.abilities.stored) == ("hosts", False)
