"""`is_complete` and `latest`: what a job may go on from, where `os.path.exists` says nothing."""

import errno
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf.checkpoint.access import Access
from streamxf.dcp import reader
from streamxf.errors import ForeignError, KeyServiceError, NoCheckpointError, ParameterError, UnsupportedError
from streamxf.manager import folder
from streamxf.manager.latest import is_complete
from streamxf.manager.notes import Authority
from streamxf.storage import remote
from streamxf.storage.local import LocalStorage
from streamxf.storage.storage import StorageEntry
from tests.altered import flip
from tests.failing import fails_where
from tests.storage.stores import MemoryStorage
from tests.tools.verify.test_verify_files import shards as shards  # a fixture

from .runs import damage, resumed, saved_run, state_at

KEY = streamxf.Key(bytes(range(32)))
STATE = {"weight": torch.arange(5000.0), "step": 7}


def save(path: Path | str, **options: Any) -> None:
    dcp.save(dict(STATE), storage_writer=streamxf.FileSystemWriter(path, **options))


def data_of(path: Path) -> Path:
    (file,) = path.glob("*.distcp")
    return file


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


class Fails:
    """What cannot be pickled, so that a save of it fails when other items are written already."""

    def __reduce__(self) -> Any:
        raise RuntimeError("no")


# -- is_complete ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"chain": []}, {"chain": "zstd+encrypt", "keys": KEY}], ids=str)
def test_a_checkpoint_is(tmp_path: Path, options: dict[str, Any]) -> None:
    save(tmp_path / "a", **options)
    assert is_complete(tmp_path / "a")
    assert is_complete(str(tmp_path / "a"))


def test_nothing_is_not(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("no checkpoint")
    for name in ("nothing", "empty", "text.txt"):
        assert not is_complete(tmp_path / name)


def test_a_save_that_failed_is_not_though_its_folder_is_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointException):
        dcp.save({**STATE, "bad": Fails()}, storage_writer=streamxf.FileSystemWriter(tmp_path / "a"))
    assert os.path.exists(tmp_path / "a")
    assert not is_complete(tmp_path / "a")
    save(tmp_path / "a")
    assert is_complete(tmp_path / "a")
    with pytest.raises(CheckpointException):
        dcp.save({**STATE, "bad": Fails()}, storage_writer=streamxf.FileSystemWriter(tmp_path / "a"))
    assert is_complete(tmp_path / "a"), "the older one still loads"


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: (path / ".metadata").unlink(),
        lambda path: cut(path / ".metadata"),
        lambda path: data_of(path).unlink(),
        lambda path: cut(data_of(path)),
    ],
    ids=["no metadata", "metadata cut", "no data", "data cut"],
)
@pytest.mark.parametrize("stock", [False, True], ids=["streamxf", "stock"])
def test_half_a_checkpoint_is_not(tmp_path: Path, damage: Callable[[Path], None], stock: bool) -> None:
    writer = dcp.FileSystemWriter(tmp_path) if stock else streamxf.FileSystemWriter(tmp_path)
    dcp.save(dict(STATE), storage_writer=writer)
    assert is_complete(tmp_path)
    damage(tmp_path)
    assert not is_complete(tmp_path)


def test_a_file_of_another_size_is_not_what_was_saved(tmp_path: Path) -> None:
    save(tmp_path)
    with data_of(tmp_path).open("ab") as file:
        file.write(b"more")
    assert not is_complete(tmp_path)
    assert any("Not of the size" in note for note in streamxf.inspect(tmp_path).notes)


def test_rank_local_metadata_needs_the_number_of_ranks(tmp_path: Path) -> None:
    dcp.save(dict(STATE), storage_writer=streamxf.FileSystemWriter(tmp_path), use_collectives=False)
    assert not is_complete(tmp_path)
    assert is_complete(tmp_path, ranks=1)
    assert not is_complete(tmp_path, ranks=2)
    data_of(tmp_path).unlink()
    assert not is_complete(tmp_path, ranks=1)


def test_other_formats(tmp_path: Path) -> None:
    tensors = {"a": torch.zeros(100), "b": torch.ones(100)}
    save_file(tensors, tmp_path / "model.safetensors")
    torch.save(tensors, tmp_path / "model.pt")
    for name in ("model.safetensors", "model.pt"):
        assert is_complete(tmp_path / name)
        cut(tmp_path / name)
        assert not is_complete(tmp_path / name)


def test_a_hugging_face_folder_needs_all_its_shards(shards: Path) -> None:
    assert is_complete(shards)
    (shards / "model-2.safetensors").unlink()
    assert not is_complete(shards)


def test_storage_that_does_not_answer_raises(silent: str) -> None:
    pytest.importorskip("s3fs")
    options = {"endpoint_url": f"http://{silent}", "key": "a", "secret": "b"}
    options["config_kwargs"] = {"retries": {"max_attempts": 0}}
    for ask in (is_complete, streamxf.latest):
        with pytest.raises(ForeignError, match="EndpointConnectionError"):
            ask("s3://bucket/run", storage_options=options)


# -- latest --------------------------------------------------------------------------------------------------------


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("step-90", "step-900", "step-1000", "best", ".step-5000"):
        save(tmp_path / "runs" / name)
    return tmp_path / "runs"


def test_by_the_number_in_its_name(runs: Path) -> None:
    assert streamxf.latest(runs) == str(runs / "step-1000")
    assert streamxf.latest(f"{runs}/") == str(runs / "step-1000")


def test_one_that_is_not_complete_is_passed_over(runs: Path) -> None:
    (runs / "step-1000" / ".metadata").unlink()
    (runs / "step-2000").mkdir()
    (runs / "step-3000.log").write_text("no folder")
    assert streamxf.latest(runs) == str(runs / "step-900")


def test_no_complete_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert streamxf.latest(tmp_path / "nothing") is None
    assert "there is no such folder" in caplog.text
    assert streamxf.latest(tmp_path) is None
    save(tmp_path / "best")
    assert streamxf.latest(tmp_path) is None
    with pytest.raises(UnsupportedError, match="not a folder"):
        streamxf.latest(data_of(tmp_path / "best"))


def test_at_a_url() -> None:
    for name in ("step-9", "step-10"):
        dcp.save(dict(STATE), storage_writer=streamxf.FsspecWriter(f"memory://latest/{name}"))
    assert streamxf.latest("memory://latest") == "memory://latest/step-10"
    assert is_complete("memory://latest/step-10")
    assert not is_complete("memory://latest/step-11")
    assert streamxf.latest("memory://nothing/at/all") is None


def test_each_rank_has_metadata_of_its_own(tmp_path: Path) -> None:
    for name in ("step-1", "step-2"):
        writer = streamxf.FileSystemWriter(tmp_path / name)
        dcp.save(dict(STATE), storage_writer=writer, use_collectives=False)
    with pytest.raises(NoCheckpointError, match="ranks="):
        streamxf.latest(tmp_path)
    assert streamxf.latest(tmp_path, ranks=1) == str(tmp_path / "step-2")


# -- what its manager has noted ------------------------------------------------------------------------------------


def managed(folder: Path, steps: dict[int, float], **options: Any) -> None:
    with streamxf.CheckpointManager(folder, **options) as manager:
        for step, loss in steps.items():
            manager.save(step, dict(STATE), metrics={"loss": loss})


def test_the_best_by_a_metric(tmp_path: Path) -> None:
    managed(tmp_path, {1: 0.5, 2: 0.25, 3: float("nan"), 4: 0.75})
    assert streamxf.latest(tmp_path, best="loss") == str(tmp_path / "step-2")
    assert streamxf.latest(tmp_path, best="loss", mode="max") == str(tmp_path / "step-4")
    assert streamxf.latest(tmp_path, best="accuracy") is None


def test_no_checkpoint_is_the_best_while_none_can_be_read(tmp_path: Path) -> None:
    """None would say that none has the metric; nobody knows, and an evaluation would begin with other weights."""
    managed(tmp_path, {1: 0.5, 2: 0.25})
    flip(tmp_path / "step-2" / ".metadata", -50)
    assert streamxf.latest(tmp_path, best="loss") == str(tmp_path / "step-1")
    flip(tmp_path / "step-1" / ".metadata", -50)
    with pytest.raises(NoCheckpointError, match="does not match"):
        streamxf.latest(tmp_path, best="loss")
    with (
        streamxf.CheckpointManager(tmp_path, keep=streamxf.Retention(best=1, metric="loss")) as manager,
        pytest.raises(NoCheckpointError, match="does not match"),
    ):
        manager.best()


def test_of_several_runs_one_must_be_named(tmp_path: Path) -> None:
    ids = {run: run * 16 for run in ("aa", "bb")}
    for number, run in enumerate(ids):
        managed(tmp_path / run, {number + 1: 0.5}, run_id=ids[run])
    shutil.copytree(tmp_path / "aa" / "step-1", tmp_path / "bb" / "step-1")
    with pytest.raises(ParameterError, match="run_id="):
        streamxf.latest(tmp_path / "bb")
    for run, step in (("aa", "step-1"), ("bb", "step-2")):
        assert streamxf.latest(tmp_path / "bb", run_id=ids[run]) == str(tmp_path / "bb" / step)


def test_a_framework_s_save_is_complete_once_it_is_committed(tmp_path: Path) -> None:
    with streamxf.CheckpointManager(tmp_path) as manager:
        folder = Path(manager.begin(1))
        folder.mkdir(exist_ok=True)
        save_file({"a": torch.zeros(100)}, folder / "model.safetensors")
        assert not is_complete(folder)
        assert streamxf.latest(tmp_path) is None
        manager.commit(1)
    assert is_complete(folder)
    assert streamxf.latest(tmp_path, verify="whole") == str(folder)
    (tmp_path / "best").symlink_to(folder)
    assert is_complete(tmp_path / "best")
    cut(folder / "model.safetensors")
    assert not is_complete(folder)
    with pytest.raises(NoCheckpointError, match="had 472 bytes when it was committed"):
        streamxf.latest(tmp_path)


def test_damage_of_the_newest_and_of_all(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path / f"step-{step}")
    flip(data_of(tmp_path / "step-2"), -2000)
    assert streamxf.latest(tmp_path) == str(tmp_path / "step-2"), "sizes show nothing"
    assert streamxf.latest(tmp_path, verify="sample") == str(tmp_path / "step-1")
    flip(data_of(tmp_path / "step-1"), -2000)
    with pytest.raises(NoCheckpointError, match=r"step-2: .*step-1: "):
        streamxf.latest(tmp_path, verify="sample")


def test_what_the_environment_names_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2, 3):
        save(tmp_path / f"step-{step}")
    monkeypatch.setenv("STREAMXF_SKIP", "step-3,step-2")
    assert streamxf.latest(tmp_path) == str(tmp_path / "step-1")


def test_with_keys_only_what_they_authenticate_counts(tmp_path: Path) -> None:
    save(tmp_path / "step-1", chain="zstd+encrypt", keys=KEY)
    save(tmp_path / "step-2")
    assert streamxf.latest(tmp_path) == str(tmp_path / "step-2")
    assert streamxf.latest(tmp_path, keys=KEY) == str(tmp_path / "step-1")
    shutil.rmtree(tmp_path / "step-1")
    with pytest.raises(NoCheckpointError, match="step-2"):
        streamxf.latest(tmp_path, keys=KEY)


def test_folders_of_other_formats(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        (tmp_path / f"checkpoint-{step}").mkdir()
        save_file({"a": torch.zeros(100)}, tmp_path / f"checkpoint-{step}" / "model.safetensors")
    (tmp_path / "logs-4").mkdir()
    cut(tmp_path / "checkpoint-3" / "model.safetensors")
    for verify in ("none", "sample", "whole"):
        assert streamxf.latest(tmp_path, verify=verify) == str(tmp_path / "checkpoint-2")
    assert streamxf.latest(tmp_path, keys=KEY) is None, "nothing authenticates them"
    save(tmp_path / "step-1")
    assert streamxf.latest(tmp_path) == str(tmp_path / "step-1"), "models beside a run are no checkpoints of it"


def test_a_name_that_a_store_may_not_take_literally_is_no_empty_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of such a folder can be listed, which everybody is told who asks for it."""
    dcp.save(dict(STATE), storage_writer=streamxf.FsspecWriter("memory://literal/step-?9"))
    assert streamxf.latest("memory://literal") == "memory://literal/step-?9"
    monkeypatch.setattr(remote, "_KEYS", frozenset())
    with pytest.raises(NoCheckpointError, match=r"step-\?9.* might not take this name literally"):
        streamxf.latest("memory://literal")
    (record,) = streamxf.list_checkpoints("memory://literal")
    assert (record.complete, record.verified, "literally" in record.note) == (True, False, True)
    assert "not verified" in streamxf.forget("memory://literal", 1, dry_run=True).kept["step-?9"][0]


@pytest.mark.parametrize("verify", ["none", "sample", "whole"])
def test_data_that_cannot_be_read_is_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify: Any) -> None:
    """A bad moment of a disk or a server costs no work; where it lasts, the operator passes the checkpoint over."""
    saved_run(tmp_path, 1, 2, 3)
    error = OSError(errno.EIO, "Input/output error")
    where = lambda place, *name: place.name == "step-3" and "".join(name).endswith(".distcp")  # noqa: E731
    fails_where(monkeypatch, LocalStorage, "open", where, error)
    with pytest.raises((OSError, CheckpointException), match="Input/output error") as caught:
        resumed(tmp_path, verify=verify)
    if verify != "none":
        assert "STREAMXF_SKIP=step-3" in "".join(getattr(caught.value, "__notes__", ()))
        with pytest.raises(OSError, match="Input/output error"):
            streamxf.latest(tmp_path, verify=verify)
    assert not list((tmp_path / ".streamxf").glob("damage-*"))
    monkeypatch.setenv("STREAMXF_SKIP", "step-3")
    assert resumed(tmp_path, verify=verify) == 2


class Throttled(Exception):
    """Of a client of an object store."""


@pytest.mark.parametrize("error", [OSError(errno.EIO, "not now"), Throttled("not now")])
def test_metadata_that_only_one_rank_cannot_read_is_not_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    saved_run(tmp_path, 1, 2)
    fails_where(monkeypatch, reader, "read_metadata", lambda place, *_: place.name == "step-2", error)
    with pytest.raises(CheckpointException, match="not now"):
        resumed(tmp_path)
    monkeypatch.undo()
    assert resumed(tmp_path) == 2


def fail_to_read(monkeypatch: pytest.MonkeyPatch, names: Collection[str]) -> None:
    """The metadata of these checkpoints lies in bad sectors."""
    error = OSError(errno.EIO, "Input/output error")
    fails_where(monkeypatch, folder, "read_metadata", lambda place, *_: place.name in names, error)


def test_an_old_checkpoint_that_cannot_be_read_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest one does: who fell back from it for a disk's bad moment, or a permission, would lose work."""
    saved_run(tmp_path, 1, 2, 3)
    shutil.rmtree(tmp_path / ".streamxf")
    bad = {"step-1"}
    fail_to_read(monkeypatch, bad)
    assert resumed(tmp_path) == 3
    (first, *_) = streamxf.list_checkpoints(tmp_path)
    assert (first.complete, first.counts) == (True, False)
    assert "Input/output error" in first.note
    assert streamxf.forget(tmp_path, 1).removed == ("step-2",)
    bad.add("step-3")
    with pytest.raises(OSError, match="Input/output error"):
        resumed(tmp_path)


@pytest.mark.parametrize("above", ["damaged", "skipped", "foreign"])
def test_one_that_cannot_be_read_is_not_passed_over_with_what_lies_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, above: str
) -> None:
    saved_run(tmp_path, 1, 2, *((3,) if above != "foreign" else ()))
    shutil.rmtree(tmp_path / ".streamxf")
    if above == "damaged":
        damage(tmp_path / "step-3")
    elif above == "skipped":
        monkeypatch.setenv("STREAMXF_SKIP", "step-3")
    else:
        shutil.copytree(tmp_path / "step-1", tmp_path / "step-3")
    fail_to_read(monkeypatch, {"step-2"})
    for call in (resumed, streamxf.latest):
        with pytest.raises(OSError, match="Input/output error"):
            call(tmp_path)


@pytest.mark.parametrize("options", [{}, {"keys": KEY, "chain": "encrypt"}], ids=["plain", "keyed"])
@pytest.mark.parametrize("file", [".metadata", ".streamxf-commit"])
def test_a_server_that_refuses_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], file: str
) -> None:
    saved_run(tmp_path, 1, 2, **options)
    if file != ".metadata":
        with streamxf.CheckpointManager(tmp_path, **options) as manager:
            (Path(str(manager.begin(2))) / "model.bin").write_bytes(b"data")
            manager.commit(2)
    shutil.rmtree(tmp_path / ".streamxf")

    def refuse(method: str) -> None:
        original = getattr(LocalStorage, method)

        def call(place: LocalStorage, name: str = "", *given: Any, **how: Any) -> Any:
            if f"{place.name}/{name}".endswith(f"step-2/{file}"):
                raise ForeignError("the storage failed: ClientResponseError: 403")
            return original(place, name, *given, **how)

        monkeypatch.setattr(LocalStorage, method, call)

    refuse("open")
    refuse("read")
    for call in (resumed, lambda run, **_: streamxf.latest(run, keys=options.get("keys"))):
        with pytest.raises(ForeignError, match="403"):
            call(tmp_path, **options)


@pytest.mark.parametrize("later", ["a killed save", "abandoned"])
def test_one_that_cannot_be_read_is_not_passed_over_for_what_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: str
) -> None:
    saved_run(tmp_path, 1, 2, 3)
    if later == "abandoned":
        saved_run(tmp_path, 8, 9)
        with streamxf.CheckpointManager(tmp_path) as manager:
            assert manager.resume(state_at(0), step=1) == 1
            manager.save(2, state_at(2))
            manager.save(3, state_at(3))
    else:
        (tmp_path / "step-9").mkdir()
        (tmp_path / "step-9" / f"__0_0_{'0' * 32}.distcp").write_bytes(b"x")
    shutil.rmtree(tmp_path / ".streamxf")
    fail_to_read(monkeypatch, {"step-3"})
    for call in (lambda: resumed(tmp_path), lambda: streamxf.latest(tmp_path)):
        with pytest.raises(OSError, match="Input/output error"):
            call()


def test_what_is_passed_over_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved_run(tmp_path, 1, 2, 3, 4)
    cut(tmp_path / "step-4" / ".metadata")
    for name in (".metadata", ".streamxf-saving"):
        (tmp_path / "step-3" / name).unlink(missing_ok=True)
    assert streamxf.latest(tmp_path) == str(tmp_path / "step-2")
    assert "step-4 is passed over: " in caplog.text
    assert "step-3 may have been saved later: it has data, and neither" in caplog.text
    caplog.clear()
    assert resumed(tmp_path) == 2
    assert "step-3 may have been saved later" in caplog.text


@pytest.mark.parametrize("damaged", [False, True])
def test_one_that_cannot_be_read_may_have_been_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, damaged: bool
) -> None:
    saved_run(tmp_path, 1, 2, 3)
    shutil.rmtree(tmp_path / ".streamxf")
    if damaged:
        cut(tmp_path / "step-1" / ".metadata")
    else:
        fail_to_read(monkeypatch, {"step-1"})
    keep = streamxf.Retention(best=3, metric="loss", mode="max")
    with streamxf.CheckpointManager(tmp_path, keep=keep) as manager:
        assert manager.best() == str(tmp_path / "step-2")
        assert manager.skipped.keys() == {"step-1"}
    assert "step-1 is passed over" in caplog.text
    assert streamxf.latest(tmp_path, best="loss", mode="max") == str(tmp_path / "step-2")
    assert streamxf.latest(tmp_path, best="accuracy") is None


@pytest.mark.parametrize(("error", "times"), [(KeyServiceError("it is down"), 1), (OSError("it was replaced"), 2)])
def test_a_key_service_that_fails_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception, times: int
) -> None:
    asked = []

    def read(*how: Any, **more: Any) -> None:
        asked.append(more)
        raise error

    monkeypatch.setattr("streamxf.manager.folder.read_metadata", read)
    files = {".metadata": StorageEntry(".metadata", "file", 9)}
    found = folder.Folder("step-1", MemoryStorage("step-1"), files, Authority(Access.of(KEY)))
    with pytest.raises(type(error)):
        _ = found._published
    assert len(asked) == times
