"""Notes that somebody without keys puts into the steps of a job that encrypts, or into a run's cache."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import CheckpointManager, Retention
from streamxf.checkpoint import notes
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.notes import COMMIT, seal_note
from streamxf.errors import MetadataError, ParameterError
from streamxf.manager.catalog import RowCache
from streamxf.manager.folder import Folder
from streamxf.manager.latest import is_complete
from streamxf.manager.listing import Run, list_checkpoints
from streamxf.manager.notes import Authority
from streamxf.manager.removal import files_of
from streamxf.storage.opening import open_storage

from .runs import blank, complete, is_at, resumed, saved_run, state_at


def test_a_commit_record_with_a_known_id_counts_for_nothing(tmp_path: Path, key: streamxf.Key) -> None:
    """The ids of saves stand in clear beside them."""
    with CheckpointManager(tmp_path, [streamxf.Encrypt(key)], keep=3) as manager:
        for step in (1, 2, 3):
            manager.save(step, state_at(step))
        manager.wait()
        third = list_checkpoints(tmp_path)[-1]
        for step in (1000, 1001, 1002):
            run = {"run": third.run, "name": f"step-{step}", "step": step, "time": 1, "rules": {}, "metrics": {}}
            (tmp_path / f"step-{step}").mkdir()
            note = seal_note({"save_id": third.save_id, "run": run, "files": []})
            (tmp_path / f"step-{step}" / ".streamxf-commit").write_bytes(note)
        manager.save(4, state_at(4))
        manager.wait()
        assert {"step-2", "step-3", "step-4"} <= set(complete(tmp_path))
        assert manager.latest() == str(tmp_path / "step-4")


@pytest.mark.parametrize(
    "planted", [b"garbage", seal_note({"save_id": "0" * 32, "time": 1, "metrics": {}, "sha256": {}})]
)
def test_a_supplement_that_cannot_be_believed_leaves_metrics_unknown(
    tmp_path: Path, key: streamxf.Key, planted: bytes
) -> None:
    """So the checkpoint stays, since it may be the best."""
    keep = Retention(last=1, best=1, metric="loss")
    with CheckpointManager(tmp_path, [streamxf.Encrypt(key)], keep=keep) as manager:
        manager.save(1, state_at(1), metrics={"loss": 0.1})
        manager.wait()
        (tmp_path / "step-1" / ".streamxf-note-deadbeef").write_bytes(planted)
        for step in (2, 3):
            manager.save(step, state_at(step), metrics={"loss": 0.5})
        manager.wait()
    assert "step-1" in complete(tmp_path)


@pytest.mark.parametrize("planted", [b"", b"garbage", seal_note({"save_id": "0" * 32})])
def test_a_commit_record_that_cannot_be_read_is_none(tmp_path: Path, planted: bytes) -> None:
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / ".streamxf-commit").write_bytes(planted)
    run = open_storage(tmp_path)
    folder = Folder("step-1", run.child("step-1"), files_of(run, "step-1"), Authority(Access()))
    with pytest.raises(MetadataError, match="the commit record cannot be read"):
        folder.committed()


@pytest.mark.parametrize("row", ['{"a":1,"b":2}', "[1e999,1e999,1e999,[],null]", '["x",null,null,[1],[1,2,3,4]]', 7])
def test_rows_of_any_form_stop_nothing(tmp_path: Path, row: object) -> None:
    saved_run(tmp_path, 1, 2)
    for name in ("step-1", "step-2"):
        made = {"time": 2**52, "rows": {name: ["*", row], "x": {"a": 1, "b": 2}}}
        (tmp_path / ".streamxf" / f"rows-{name}").write_bytes(seal_note(json.loads(json.dumps(made))))
    state = blank()
    with CheckpointManager(tmp_path) as manager:
        assert manager.resume(state) == 2
    assert is_at(state, 2)


@pytest.mark.parametrize("harm", ["cut", "unfinished"])
def test_only_rows_of_what_lasts_are_kept(tmp_path: Path, harm: str) -> None:
    """What is not complete now may be so when it is looked at again."""
    saved_run(tmp_path, 1, 2, 3)
    metadata = tmp_path / "step-2" / ".metadata"
    if harm == "cut":
        metadata.write_bytes(metadata.read_bytes()[:-1])
    else:
        metadata.unlink()
    old = time.time() - 60
    for folder in tmp_path.glob("step-*"):
        os.utime(folder, (old, old))  # one that has just changed may change again within the same moment
    for file in (tmp_path / ".streamxf").glob("rows-*"):
        file.unlink()
    run = Run.at(tmp_path)
    assert len(run.read().records) == 3
    assert [run._rows.known(f"step-{step}", looked=True) is not None for step in (1, 2, 3)] == [True, False, True]


@pytest.mark.parametrize("blind", [False, True])
def test_rows_that_their_own_writer_would_not_believe_are_not_stored(tmp_path: Path, blind: bool) -> None:
    """A private key opens what others wrote, and vouches for nothing."""
    saved_run(tmp_path, 1)
    (record,) = list_checkpoints(tmp_path)
    for file in (tmp_path / ".streamxf").glob("rows-*"):
        file.unlink()
    keys = streamxf.PrivateKey.generate() if blind else None
    rows = RowCache(open_storage(tmp_path), Authority(Access.of(keys)))
    rows.note(record.name, "mark", record)
    rows.save([record.name])
    assert len([*(tmp_path / ".streamxf").glob("rows-*")]) == (not blind)


@pytest.mark.parametrize("names", [["step-2"], ["step-3"], ["step-1", "step-2", "step-3"]], ids=",".join)
@pytest.mark.parametrize("of", ["another run", "another step"])
def test_rows_neither_hide_a_checkpoint_nor_say_which_run_this_is(tmp_path: Path, names: list[str], of: str) -> None:
    """Without keys anybody can write them, with the marks that the folders have."""
    saved_run(tmp_path, 1, 2, 3)
    (mine,) = {record.run for record in list_checkpoints(tmp_path)}
    old = time.time() - 60
    for folder in tmp_path.glob("step-*"):
        os.utime(folder, (old, old))
    told = {
        name: [Run(open_storage(tmp_path))._mark(name), json.dumps([None, 0, 1, {}, told_by(of, str(mine))])]
        for name in names
    }
    for file in (tmp_path / ".streamxf").glob("rows-*"):
        file.unlink()
    (tmp_path / ".streamxf" / "rows-planted").write_bytes(seal_note({"time": 2**52, "rows": told}))
    assert [record.kind for record in list_checkpoints(tmp_path)] == ["own"] * 3
    state = blank()
    with CheckpointManager(tmp_path, keep=3) as manager:
        assert manager.resume(state) == 3
        manager.save(4, state_at(4))
    assert {record.run for record in list_checkpoints(tmp_path)} == {mine}
    assert complete(tmp_path) == ["step-2", "step-3", "step-4"]


@pytest.mark.parametrize("told", [{"step-1": 0.0}, {"step-2": 9.0}, {"step-1": 0.0, "step-2": 9.0}], ids=str)
def test_rows_do_not_say_which_is_the_best(tmp_path: Path, told: dict[str, float]) -> None:
    with CheckpointManager(tmp_path) as manager:
        for step, loss in enumerate([0.5, 0.1, 0.4, 0.6], start=1):
            manager.save(step, state_at(step), metrics={"loss": loss})
    (mine,) = {record.run for record in list_checkpoints(tmp_path)}
    old = time.time() - 60
    for folder in tmp_path.glob("step-*"):
        os.utime(folder, (old, old))
    for file in (tmp_path / ".streamxf").glob("rows-*"):
        file.unlink()
    rows = {
        name: [
            Run(open_storage(tmp_path))._mark(name),
            json.dumps([None, 0, 1, {"loss": loss}, told_by("this one", str(mine))]),
        ]
        for name, loss in told.items()
    }
    (tmp_path / ".streamxf" / "rows-planted").write_bytes(seal_note({"time": 2**52, "rows": rows}))
    listed = {record.name: record.metrics for record in list_checkpoints(tmp_path)}
    assert {name: (listed[name] or {})["loss"] for name in told} == told, "the cache is not used, so this shows nothing"
    keep = Retention(last=1, best=1, metric="loss")
    with CheckpointManager(tmp_path, keep=keep) as manager:
        assert manager.best() == streamxf.latest(tmp_path, best="loss") == str(tmp_path / "step-2")
    assert streamxf.forget(tmp_path, keep).removed == ("step-1", "step-3")


def told_by(of: str, run: str) -> list[Any]:
    if of == "this one":
        return [run, "", {}]
    return ["a" * 32, "", {}] if of == "another run" else [run, "step-77", {}]


def test_rules_of_any_form_are_refused() -> None:
    for rules in ({"best": 1, "metric": {"a": 1}}, {"unknown": 1}, {"max_age": "1e400d"}):
        with pytest.raises(ParameterError):
            Retention.of_json(rules)


def test_a_name_that_is_no_text_is_passed_over(tmp_path: Path) -> None:
    saved_run(tmp_path, 1, 2)
    (tmp_path / "step-2").rename(tmp_path / "x\udcff-2")
    assert complete(tmp_path) == ["step-1"]
    assert streamxf.forget(tmp_path, 1).removed == ()


@pytest.mark.parametrize("file", [".streamxf-saving", ".streamxf-commit", ".streamxf-note-01234567"])
def test_what_keys_do_not_vouch_for_is_not_parsed(
    tmp_path: Path, key: streamxf.Key, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """It could take seconds, and gigabytes."""
    saved_run(tmp_path, 1, 2, chain=[streamxf.Encrypt(key)])
    planted = seal_note(dict.fromkeys(("planted", "names", "rows")))
    (tmp_path / "step-2" / file).write_bytes(planted)
    for each in ("rows-" + "0" * 16, "session-" + "0" * 32, f"going-{2**31}-" + "0" * 16):
        (tmp_path / ".streamxf" / each).write_bytes(planted)
    parse, found = notes.parse_json, []

    def parsed(*arguments: Any) -> Any:
        found.append(parse(*arguments))
        return found[-1]

    monkeypatch.setattr(notes, "parse_json", parsed)
    saved_run(tmp_path, 3, chain=[streamxf.Encrypt(key)], keep=4, save=streamxf.Schedule(optimal=True))
    assert found
    assert not any("planted" in content for content in found)


@pytest.mark.parametrize("planted", [b"", b"garbage", seal_note({"save_id": "0" * 32, "run": {}, "files": []})])
@pytest.mark.parametrize("managed", [True, False], ids=["own", "unclaimed"])
def test_a_planted_commit_record_does_not_hide_what_keys_verify(
    tmp_path: Path, key: streamxf.Key, planted: bytes, managed: bool
) -> None:
    chain = [streamxf.Encrypt(key)]
    saved_run(tmp_path, 1, 2, chain=chain)
    if not managed:
        dcp.save(state_at(2), storage_writer=streamxf.FileSystemWriter(tmp_path / "step-2", chain=chain))
    (tmp_path / "step-2" / COMMIT).write_bytes(planted)
    assert resumed(tmp_path, chain=chain) == 2
    assert streamxf.latest(tmp_path, keys=key, verify="whole") == str(tmp_path / "step-2")
    assert streamxf.forget(tmp_path, 1, keys=key).removed == ("step-1",)


def test_without_keys_a_planted_commit_record_does_not_hide_what_a_manager_saved(tmp_path: Path) -> None:
    saved_run(tmp_path, 1, 2)
    (tmp_path / "step-2" / COMMIT).write_bytes(b"garbage")
    assert [record.kind for record in list_checkpoints(tmp_path)] == ["own", "own"]
    assert resumed(tmp_path) == 2
    assert is_complete(tmp_path / "step-2")
