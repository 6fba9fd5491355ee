"""Metrics that became known after a checkpoint was published: what counts, in which order, and what tools that rewrite
the checkpoint do about them.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import CheckpointManager, Retention
from streamxf.checkpoint.notes import Note
from streamxf.errors import UnsupportedError
from streamxf.format.run import RunFacts
from streamxf.manager.listing import Run
from streamxf.manager.record import Record
from streamxf.notes import COMMIT
from streamxf.tools.rekey.rekey import stock

from .runs import complete, state_at

BEST = Retention(last=1, best=1, metric="loss")
LATE = {"loss": 0.01}


def note(save_id: str | None, when: int, encryption: Any = None, **metrics: float) -> bytes:
    content = {"save_id": save_id, "time": when, "metrics": RunFacts.metrics_json(metrics), "sha256": {}}
    return Note.seal(content, encryption)


def record(run: Path, name: str, keys: Any = None) -> Record:
    found = Run.at(run, keys=keys).record(name)
    assert found is not None
    return found


@pytest.fixture(params=["clear", "keys"])
def keys(request: pytest.FixtureRequest) -> Any:
    return streamxf.Key.generate() if request.param == "keys" else None


def begun(run: Path, keys: Any, keep: Retention = BEST) -> CheckpointManager:
    """A job whose first step turns out to be the best one later, and whose third is under way."""
    manager = CheckpointManager(run, [streamxf.Encrypt(keys)] if keys else [streamxf.Checksum()], keep=keep)
    for step in (1, 2):
        manager.save(step, state_at(step), metrics={"other": 1.0} if step == 1 else {"loss": 0.5})
        manager.commit(step, metrics=LATE if step == 1 else {})
    manager.wait()
    return manager


def transcoded(run: Path, keys: Any) -> None:
    streamxf.transcode(run / "step-1", None, [streamxf.Encrypt(keys)] if keys else [], in_place=True, keys=keys)


def renamed(run: Path, keys: Any) -> None:
    streamxf.rename(run / "step-1", {"weight": "w"}, keys=keys)


def with_pickle(run: Path, keys: Any) -> None:
    stock(run / "step-1")


def elsewhere(make: Callable[[Path, Path, Any], object]) -> Callable[[Path, Any], None]:
    """What writes a copy, which then takes the place of the source."""

    def replace(run: Path, keys: Any) -> None:
        make(run / "step-1", run.with_name("copy"), keys)
        (run / "step-1").rename(run.with_name("source"))
        os.rename(run.with_name("copy"), run / "step-1")

    return replace


def chain(keys: Any) -> Any:
    return [streamxf.Encrypt(keys)] if keys else [streamxf.Checksum()]


REWRITES = {
    "transcode in place": transcoded,
    "rename": renamed,
    "stock": with_pickle,
    "transcode": elsewhere(lambda a, b, keys: streamxf.transcode(a, b, chain(keys), keys=keys)),
    "salvage": elsewhere(lambda a, b, keys: streamxf.salvage(a, b, chain(keys), keys=keys)),
}


@pytest.mark.parametrize("rewrite", REWRITES)
def test_the_best_checkpoint_survives_what_rewrites_it(tmp_path: Path, keys: Any, rewrite: str) -> None:
    run = tmp_path / "run"
    with begun(run, keys) as manager:
        REWRITES[rewrite](run, keys)
        for step in (3, 4):
            manager.save(step, state_at(step), metrics={"loss": 0.3})
        manager.wait()
        assert complete(run) == ["step-1", "step-4"]
        assert manager.best() == str(run / "step-1")
    found = record(run, "step-1", keys)
    assert (found.metrics, found.other_notes) == ({"other": 1.0, **LATE}, False)


def test_pack_carries_them_too(tmp_path: Path) -> None:
    run = tmp_path / "run"
    begun(run, None).close()
    (run / "step-1" / ".streamxf-saving").unlink(missing_ok=True)
    elsewhere(lambda a, b, keys: streamxf.pack(a, b))(run, None)
    assert record(run, "step-1").metrics == {"other": 1.0, **LATE}


def test_a_copy_says_which_notes_it_leaves_out(tmp_path: Path) -> None:
    begun(tmp_path, None).close()
    planted = tmp_path / "step-1" / ".streamxf-note-00000000"
    planted.write_bytes(b"x")
    made = streamxf.transcode(tmp_path / "step-1", None, [], in_place=True)
    assert made.notes == (f"metrics that {planted.name} may name are not copied: of another save, or not authentic",)
    assert [path.name for path in (tmp_path / "step-1").glob(".streamxf-note-*")] == [planted.name]
    assert (record(tmp_path, "step-1").metrics, record(tmp_path, "step-1").other_notes) == (
        {"other": 1.0, **LATE},
        True,
    )


@pytest.mark.parametrize("change", ["rekey", "add", "remove"])
def test_notes_get_the_recipients_of_their_checkpoint(tmp_path: Path, change: str) -> None:
    """Or the new keys would not find out which one is the best."""
    old, new = streamxf.Key.generate(), streamxf.Key.generate()
    begun(tmp_path, old).close()
    planted = tmp_path / "step-1" / ".streamxf-note-00000000"
    planted.write_bytes(b"x")
    for step in (1, 2):
        if change == "rekey":
            streamxf.rekey(tmp_path / f"step-{step}", keys=old, recipients=new)
        else:
            streamxf.add_recipient(tmp_path / f"step-{step}", keys=old, recipients=new)
        if change == "remove":
            streamxf.remove_recipient(tmp_path / f"step-{step}", keys=new, recipient=old.id)
    assert record(tmp_path, "step-1", new).metrics == {"other": 1.0, **LATE}
    assert record(tmp_path, "step-1", old).verified == (change == "add")
    assert planted.read_bytes() == b"x"
    if change == "rekey":
        assert streamxf.rekey(tmp_path / "step-1", keys=new, recipients=new) == ()


@pytest.mark.parametrize("below", ["", "model"])
@pytest.mark.parametrize(
    "rewrite",
    [
        lambda path, key: streamxf.transcode(path, None, [streamxf.Encrypt(key)], in_place=True, keys=key),
        lambda path, key: streamxf.rename(path, {"weight": "w"}, keys=key),
        lambda path, key: streamxf.rekey(path, keys=key, recipients=streamxf.Key.generate()),
        lambda path, key: stock(path),
    ],
)
def test_what_a_framework_committed_is_not_rewritten(
    tmp_path: Path, key: streamxf.Key, rewrite: Callable[[Path, streamxf.Key], object], below: str
) -> None:
    """Its record has the sizes of all files, so what rewrites one would make damage of the checkpoint."""
    with CheckpointManager(tmp_path, [streamxf.Encrypt(key)]) as manager:
        folder = Path(str(manager.begin(1))) / below
        dcp.save(
            state_at(1), storage_writer=streamxf.FileSystemWriter(folder, chain=[streamxf.Encrypt(key)], stock=False)
        )
        manager.commit(1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(UnsupportedError, match="framework"):
        rewrite(folder, key)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    (tmp_path / "step-1" / COMMIT).write_bytes(b"what anybody may put there stops nothing")
    rewrite(folder, key)


PLANTED = {
    "a byte": lambda save_id, key: b"x",
    "another key": lambda save_id, key: note(save_id, 2**40, streamxf.Encrypt(streamxf.Key.generate()), loss=0.9),
    "no key": lambda save_id, key: note(save_id, 2**40, loss=0.9),
    "another save": lambda save_id, key: note("0" * 32, 2**40, streamxf.Encrypt(key), loss=0.9),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_what_nobody_vouches_for_changes_no_metric(tmp_path: Path, key: streamxf.Key, planted: str) -> None:
    """What it might have said stays unknown, and that is no reason to remove a checkpoint."""
    with CheckpointManager(tmp_path, [streamxf.Encrypt(key)], keep=BEST) as manager:
        for step, metrics in ((1, {"loss": 0.1}), (2, {}), (3, {"loss": 0.5})):
            manager.save(step, state_at(step), metrics=metrics)
            manager.wait()
            made = PLANTED[planted](record(tmp_path, f"step-{step}", key).save_id, key)
            (tmp_path / f"step-{step}" / ".streamxf-note-00000000").write_bytes(made)
        for step in (4, 5):
            manager.save(step, state_at(step), metrics={"loss": 0.7})
        manager.wait()
        assert manager.best() == str(tmp_path / "step-1")
        found = record(tmp_path, "step-1", key)
        assert (found.metrics, found.other_notes) == ({"loss": 0.1}, True)
        assert [found.knows(name) for name in ("loss", "accuracy")] == [True, False]
        assert complete(tmp_path) == ["step-1", "step-2", "step-5"], "step-3 is known not to be the best"


def test_a_note_that_only_looks_like_its_own_does_not_count_for_a_job_without_a_reading_key(tmp_path: Path) -> None:
    """The ids of saves stand in clear, so what this process has sealed counts by its bytes."""
    public = streamxf.PrivateKey.generate().public
    with CheckpointManager(tmp_path, [streamxf.Encrypt(public, signer=None)], keys=None) as manager:
        manager.save(1, state_at(1))
        manager.commit(1, metrics={"loss": 0.1})
        manager.wait()
        run = manager._run
        forged = note(record(tmp_path, "step-1").save_id, 2**45, loss=-1.0)
        (tmp_path / "step-1" / ".streamxf-note-ffffffff").write_bytes(forged)
        found = run.record("step-1")
        assert found is not None
        assert (found.metrics, found.other_notes) == ({"loss": 0.1}, True)


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_notes_the_later_holds_and_then_the_greater_name(tmp_path: Path, order: int) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, state_at(1), metrics={"a": 0.0, "b": 0.0, "c": 0.0})
    save_id = record(tmp_path, "step-1").save_id
    notes = {
        "aaaaaaaa": note(save_id, 7, a=1.0, b=1.0),
        "0000000f": note(save_id, 7, a=2.0),
        "00000001": note(save_id, 8, b=2.0),
    }
    for name in sorted(notes)[::order]:
        (tmp_path / "step-1" / f".streamxf-note-{name}").write_bytes(notes[name])
    assert record(tmp_path, "step-1").metrics == {"a": 1.0, "b": 2.0, "c": 0.0}


def test_a_save_over_another_takes_its_late_metrics_away(tmp_path: Path, keys: Any) -> None:
    """They would leave open what the new one's are, and no rule would ever remove it."""
    with streamxf.CheckpointManager(tmp_path, chain(keys), keys=keys) as manager:
        for _ in range(2):
            manager.save(1, state_at(1))
            manager.commit(1, metrics={"loss": 0.5})
        manager.save(1, state_at(1))
    (found,) = streamxf.list_checkpoints(tmp_path)
    assert (found.metrics, found.other_notes) == ({}, False)
    assert not [*tmp_path.glob("step-1/.streamxf-note-*")]
