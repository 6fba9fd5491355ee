"""Notes that somebody without keys puts into the steps of a job that encrypts, or into a run's cache."""

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
from streamxf.checkpoint.notes import Note
from streamxf.errors import MetadataError, ParameterError
from streamxf.manager.folder import Folder
from streamxf.manager.latest import is_complete
from streamxf.manager.listing import Run, list_checkpoints
from streamxf.manager.notes import Authority
from streamxf.notes import COMMIT
from streamxf.storage.opening import open_storage

from .runs import complete, resumed, saved_run, state_at


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
            note = Note.seal({"save_id": third.save_id, "run": run, "files": []})
            (tmp_path / f"step-{step}" / ".streamxf-commit").write_bytes(note)
        manager.save(4, state_at(4))
        manager.wait()
        assert {"step-2", "step-3", "step-4"} <= set(complete(tmp_path))
        assert manager.latest() == str(tmp_path / "step-4")


@pytest.mark.parametrize(
    "planted", [b"garbage", Note.seal({"save_id": "0" * 32, "time": 1, "metrics": {}, "sha256": {}})]
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


@pytest.mark.parametrize("planted", [b"", b"garbage", Note.seal({"save_id": "0" * 32})])
def test_a_commit_record_that_cannot_be_read_is_none(tmp_path: Path, planted: bytes) -> None:
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / ".streamxf-commit").write_bytes(planted)
    run = open_storage(tmp_path)
    folder = Folder("step-1", run.child("step-1"), run.files_below("step-1"), Authority(Access()))
    with pytest.raises(MetadataError, match="the commit record cannot be read"):
        folder.committed()


@pytest.mark.parametrize("harm", ["cut", "unfinished"])
def test_only_what_lasts_is_not_looked_at_again(tmp_path: Path, harm: str) -> None:
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
    run = Run.at(tmp_path)
    assert len(run.read().records) == 3
    assert run._known.keys() == {"step-1", "step-3"}


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
    planted = Note.seal(dict.fromkeys(("planted", "names", "lines")))
    (tmp_path / "step-2" / file).write_bytes(planted)
    for each in ("saves/step-1", "session-" + "0" * 32, f"going-{2**31}-" + "0" * 16):
        (tmp_path / ".streamxf" / each).write_bytes(planted)
    parse, found = notes.parse_json, []

    def parsed(*arguments: Any) -> Any:
        found.append(parse(*arguments))
        return found[-1]

    monkeypatch.setattr(notes, "parse_json", parsed)
    saved_run(tmp_path, 3, chain=[streamxf.Encrypt(key)], keep=4, save=streamxf.Schedule(optimal=True))
    assert found
    assert not any("planted" in content for content in found)


@pytest.mark.parametrize("planted", [b"", b"garbage", Note.seal({"save_id": "0" * 32, "run": {}, "files": []})])
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
