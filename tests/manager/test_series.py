"""Rules are for one series of names at a time: what else lies in a run's folder is none of a manager's business."""

import shutil
from pathlib import Path

import pytest
import torch.distributed.checkpoint as dcp

from streamxf import CheckpointManager, Retention, forget, latest, list_checkpoints
from streamxf.errors import NoCheckpointError, ParameterError

from .runs import saved_run, state_at


def with_a_model(run: Path) -> Path:
    """A run that has two more checkpoints beside its own."""
    saved_run(run, 1, 2)
    for name in ("llama-7b", "epoch-1-step-2"):
        shutil.copytree(run / "step-1", run / name)
    return run


def names(run: Path) -> set[str]:
    return {record.name for record in list_checkpoints(run)}


def test_forget_applies_the_rules_to_each(tmp_path: Path) -> None:
    run = with_a_model(tmp_path / "run")
    report = forget(run, Retention(last=1))
    assert report.removed == ("step-1",)
    assert names(run) == {"step-2", "llama-7b", "epoch-1-step-2"} == set(report.kept)


def test_numbers_may_be_padded(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, name="step-{:08}", keep=1) as manager:
        for step in (9, 10):
            manager.save(step, state_at(step))
    assert names(tmp_path) == {"step-00000010"}


def test_where_all_were_renamed_none_counts_by_itself(tmp_path: Path) -> None:
    saved_run(tmp_path / "run", 1, 2, 3)
    for step in (1, 2, 3):
        (tmp_path / "run" / f"step-{step}").rename(tmp_path / "run" / f"model-{step}")
    assert {record.kind for record in list_checkpoints(tmp_path / "run")} == {"foreign"}
    assert forget(tmp_path / "run", 2).removed == ()
    with pytest.raises(NoCheckpointError, match="a copy of step-3"):
        latest(tmp_path / "run")
    with CheckpointManager(tmp_path / "run", name="model-{}") as manager:
        with pytest.raises(NoCheckpointError, match="foreign=True"):
            manager.resume(state_at(0))
        assert manager.resume(state_at(0), step=3, foreign=True) == 3


@pytest.mark.parametrize("name", ["step-{:8d}", "step-{:_>8}", "{0}-{0}", "s{0:06d}-{0}"])
def test_a_name_whose_checkpoints_would_not_be_found_again_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ParameterError, match="for the step as its last number"):
        CheckpointManager(tmp_path, name=name)


def test_names_that_differ_by_another_number_are_of_two_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved_run(tmp_path, 100, 200, name="exp1-step-{}")
    with CheckpointManager(tmp_path, name="exp2-step-{}", keep=1) as manager:
        assert manager.resume(state_at(0)) is None
        assert "nothing is resumed from: exp1-step-200 is of no exp2-step-{}" in caplog.text
        for step in (10, 20):
            manager.save(step, state_at(step))
    assert names(tmp_path) == {"exp1-step-100", "exp1-step-200", "exp2-step-20"}
    with CheckpointManager(tmp_path, name="exp1-step-{}", keep=1) as manager:
        assert manager.resume(state_at(0)) == 200
        manager.save(300, state_at(300))
    assert names(tmp_path) == {"exp1-step-300", "exp2-step-20"}


def test_one_of_a_later_epoch_that_lost_its_metadata_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("epoch-1-step-2", "epoch-2-step-1"):
        dcp.save(state_at(1), checkpoint_id=tmp_path / name, no_dist=True)
    (tmp_path / "epoch-2-step-1/.metadata").unlink()
    assert latest(tmp_path) == str(tmp_path / "epoch-1-step-2")
    assert "epoch-1-step-2 is chosen, though epoch-2-step-1 may have been saved later" in caplog.text
