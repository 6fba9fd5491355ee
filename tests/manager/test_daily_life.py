"""What happens to runs day by day: they are moved, copied, uploaded, mixed and shared. Each time what was promised
holds, and nothing is removed.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf.errors import AbortedError, KeyMissingError, NoCheckpointError, ParameterError
from streamxf.manager.forget import forget
from streamxf.manager.listing import list_checkpoints
from streamxf.manager.manager import CheckpointManager
from streamxf.manager.retention import Retention
from streamxf.notes import Commit
from tests.altered import flip
from tests.dcp.s3_server import storage as s3_options

from .jobs import Job
from .runs import blank, complete, damage, is_at, resumed, saved_run, state_at

KEYED: dict[str, Any] = {"chain": "zstd+encrypt", "keys": streamxf.Key(bytes(range(32)))}


@pytest.fixture(params=[{}, KEYED], ids=["without keys", "with keys"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.param
    return found


def kinds(run: Path | str, **options: Any) -> dict[str, str]:
    return {record.name: record.kind for record in list_checkpoints(run, **options)}


def goes_on(run: Path | str, **options: Any) -> None:
    """What a run of steps 1 to 3 does after whatever happened: it resumes and saves, and rules and metrics hold."""
    assert resumed(run, **options) == 3
    assert list_checkpoints(run, **_storage(options))[0].metrics == {"loss": 1.0}
    keep = Retention(last=1, best=1, metric="loss", mode="max")
    saved_run(run, 4, 5, keep=keep, **options)
    assert complete(run, **_storage(options)) == ["step-1", "step-5"], "the best and the last one"
    assert {record.run for record in list_checkpoints(run, **_storage(options))} != {None}
    assert len({record.run for record in list_checkpoints(run, **_storage(options))}) == 1


def _storage(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name == "storage_options"}


# -- elsewhere -------------------------------------------------------------------------------------------------------


def test_a_run_that_was_moved_goes_on(tmp_path: Path, options: dict[str, Any]) -> None:
    saved_run(tmp_path / "run", 1, 2, 3, **options)
    (tmp_path / "run").rename(tmp_path / "moved")
    goes_on(tmp_path / "moved", **options)


def test_a_run_that_was_copied_goes_on_and_so_does_the_first_one(tmp_path: Path, options: dict[str, Any]) -> None:
    saved_run(tmp_path / "run", 1, 2, 3, **options)
    subprocess.run(["cp", "-r", str(tmp_path / "run"), str(tmp_path / "copied")], check=True)
    goes_on(tmp_path / "copied", **options)
    goes_on(tmp_path / "run", **options)


def test_a_run_whose_small_files_are_lost_goes_on(tmp_path: Path, options: dict[str, Any]) -> None:
    saved_run(tmp_path, 1, 2, 3, **options)
    shutil.rmtree(tmp_path / ".streamxf")
    goes_on(tmp_path, **options)


def test_a_run_that_was_uploaded_goes_on_there_and_back_here(
    tmp_path: Path, place: tuple[str, dict[str, Any]], options: dict[str, Any]
) -> None:
    url, storage_options = place
    saved_run(tmp_path / "run", 1, 2, 3, **options)
    filesystem, base = fsspec.core.url_to_fs(url, **storage_options)
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file():
            filesystem.pipe_file(f"{base}/{path.relative_to(tmp_path / 'run')}", path.read_bytes())
    goes_on(url, storage_options=storage_options, **options)
    for path in filesystem.find(base):
        here = tmp_path / "back" / path.removeprefix(base).lstrip("/")
        here.parent.mkdir(parents=True, exist_ok=True)
        here.write_bytes(filesystem.cat_file(path))
    assert resumed(tmp_path / "back", **options) == 5
    saved_run(tmp_path / "back", 6, keep=2, **options)
    assert complete(tmp_path / "back") == ["step-5", "step-6"]


def test_a_run_that_frameworks_saved_goes_on_after_it_was_copied(tmp_path: Path, options: dict[str, Any]) -> None:
    with CheckpointManager(tmp_path / "run", **options) as manager:
        for step in (1, 2):
            (Path(manager.begin(step)) / "model.bin").write_bytes(b"weights %d" % step)
            manager.commit(step, metrics={"loss": float(step)})
    subprocess.run(["cp", "-r", str(tmp_path / "run"), str(tmp_path / "copied")], check=True)
    shutil.rmtree(tmp_path / "copied" / ".streamxf")
    with CheckpointManager(tmp_path / "copied", **options) as manager:
        assert manager.latest() == str(tmp_path / "copied" / "step-2")
    assert [record.metrics for record in list_checkpoints(tmp_path / "copied")] == [{"loss": 1.0}, {"loss": 2.0}]
    (tmp_path / "copied" / "step-2" / "model.bin").write_bytes(b"weights 3")
    with CheckpointManager(tmp_path / "copied", **options) as manager:
        assert manager.latest() == str(tmp_path / "copied" / "step-1"), "the digests went along"


# -- beside others ---------------------------------------------------------------------------------------------------


def test_a_base_model_beside_the_steps_is_no_part_of_them(tmp_path: Path, options: dict[str, Any]) -> None:
    dcp.save(state_at(0), storage_writer=streamxf.FileSystemWriter(tmp_path / "llama-7b", chain="zstd"))
    (tmp_path / "datasets-2024").mkdir()
    (tmp_path / "datasets-2024" / "train.bin").write_bytes(b"data")
    saved_run(tmp_path, 1, 2, keep=1, **options)
    assert resumed(tmp_path, **options) == 2
    assert set(complete(tmp_path)) == {"step-2", "llama-7b"}
    assert (tmp_path / "datasets-2024" / "train.bin").exists()
    state = blank()
    dcp.load(state, storage_reader=streamxf.FileSystemReader(tmp_path / "llama-7b"))
    assert is_at(state, 0)


def test_what_a_job_saved_without_a_manager_goes_on_with_one(tmp_path: Path) -> None:
    for step in (1, 2):
        dcp.save(state_at(step), storage_writer=streamxf.FileSystemWriter(tmp_path / f"step-{step}"))
    assert kinds(tmp_path) == {"step-1": "unclaimed", "step-2": "unclaimed"}
    assert resumed(tmp_path) == 2
    saved_run(tmp_path, 3, keep=2)
    assert kinds(tmp_path) == {"step-2": "unclaimed", "step-3": "own"}


def test_a_step_of_another_run_stops_a_new_job_and_a_running_one_ignores_it(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    saved_run(other, 9, **options)
    with CheckpointManager(run, keep=2, **options) as manager:
        for step in (1, 2):
            manager.save(step, state_at(step))
        manager.wait()
        shutil.copytree(other / "step-9", run / "step-9")
        for step in (3, 4):
            manager.save(step, state_at(step))
    assert complete(run) == ["step-3", "step-4", "step-9"]
    with pytest.raises(ParameterError, match="run_id="):
        resumed(run, **options)
    ids = {record.name: record.run for record in list_checkpoints(run)}
    assert resumed(run, run_id=ids["step-4"], **options) == 4
    assert resumed(run, run_id=ids["step-9"], **options) == 9
    with pytest.raises(ParameterError, match="run_id="):
        saved_run(run, 5, keep=1, **options)
    saved_run(run, 5, keep=1, run_id=ids["step-4"], **options)
    assert complete(run) == ["step-5", "step-9"]


def test_with_a_wrong_key_the_reason_is_said_once_and_the_advice_is_not_about_plaintext(tmp_path: Path) -> None:
    saved_run(tmp_path, 1, 2, 3, keep=None, **KEYED)
    with pytest.raises(NoCheckpointError) as caught:
        resumed(tmp_path, chain="zstd+encrypt", keys=streamxf.Key(bytes(range(1, 33))))
    text = caught.value.message
    assert "(step-3, step-2, step-1: not verified: " in text
    assert text.count("not verified") == 1
    assert "plaintext" not in text
    assert "Nothing was removed; `streamxf list` shows which there are; " in text


# -- encryption turned on --------------------------------------------------------------------------------------------


def test_encryption_is_turned_on_midway_once_somebody_says_so(tmp_path: Path) -> None:
    saved_run(tmp_path, 1, 2, 3)
    with pytest.raises(NoCheckpointError, match="plaintext=True"):
        resumed(tmp_path, **KEYED)
    with CheckpointManager(tmp_path, keep=1, **KEYED) as manager:
        state = blank()
        assert manager.resume(state, plaintext=True) == 3
        assert is_at(state, 3)
        for step in (4, 5):
            manager.save(step, state_at(step))
    assert complete(tmp_path) == ["step-1", "step-2", "step-3", "step-5"], "what is not verified stays"
    assert resumed(tmp_path, **KEYED) == 5
    assert len({record.run for record in list_checkpoints(tmp_path)}) == 1
    assert forget(tmp_path, 1, keys=KEYED["keys"]).removed == ()
    assert forget(tmp_path, 1, keys=KEYED["keys"], unverified=True).removed == ("step-1", "step-2", "step-3")


# -- jobs that end early, and jobs beside each other -------------------------------------------------------------------


def test_a_job_that_was_preempted_in_its_first_save_starts_over_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    with Job("one_job", tmp_path, "save", "keyed" if options else "plain") as job:
        job.wait_for("begun")
    assert kinds(job.run) == {"step-1": "unfinished"}
    assert resumed(job.run, **options) is None
    assert "the save of step-1 was not completed" in caplog.text
    saved_run(job.run, 2, **options)
    assert kinds(job.run) == {"step-2": "own"}
    assert not (job.run / "step-1").exists()


def test_what_was_never_published_is_not_reported_as_kept(tmp_path: Path) -> None:
    saved_run(tmp_path, 1, 2)
    shutil.copytree(tmp_path / "step-2", tmp_path / "step-3", ignore=shutil.ignore_patterns(".metadata"))
    assert kinds(tmp_path)["step-3"] == "unfinished"
    report = forget(tmp_path, 1, dry_run=True)
    assert report.removed == ("step-1",)
    assert [*report.kept] == ["step-2"]


def test_an_evaluation_with_the_same_configuration_reads_and_removes_nothing(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    with CheckpointManager(tmp_path, keep=2, **options) as trainer:
        for step in (1, 2):
            trainer.save(step, state_at(step))
        trainer.wait()
        with CheckpointManager(tmp_path, keep=1, **options) as evaluation:
            state = blank()
            assert evaluation.resume(state) == 2
            assert evaluation.latest() == str(tmp_path / "step-2")
            trainer.save(3, state_at(3)), trainer.save(4, state_at(4))
            trainer.wait()
            assert complete(tmp_path) == ["step-2", "step-3", "step-4"], "it is held while it is read"
            assert evaluation.resume(state) == 4
        trainer.save(5, state_at(5))
    assert complete(tmp_path) == ["step-4", "step-5"]


def test_the_second_of_two_jobs_by_mistake_is_told_of_the_first_and_may_save_once_that_was_killed(
    tmp_path: Path,
) -> None:
    with Job("one_job", tmp_path, "train", "plain") as first:
        pid = first.wait_for("saved")
        with CheckpointManager(first.run, keep=1) as second:
            assert second.resume(blank()) == 1, "reading is not saving"
            with pytest.raises(AbortedError, match=rf"process {pid} on .+, which was last heard of .+ ago") as error:
                second.save(2, state_at(2))
            assert os.uname().nodename in str(error.value)
            first.kill()
            second.save(2, state_at(2))
    assert complete(first.run) == ["step-2"]


# -- rules -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extras", ["keep", "remove"])
def test_what_is_beside_a_checkpoint_in_its_folder_stays_unless_the_rules_say_otherwise(
    tmp_path: Path, extras: Any
) -> None:
    saved_run(tmp_path, 1, 2)
    (tmp_path / "step-1" / "notes.txt").write_text("somebody's")
    (tmp_path / "step-1" / "link").symlink_to(tmp_path / "step-2")
    saved_run(tmp_path, 3, keep=Retention(last=1, extras=extras))
    assert complete(tmp_path) == ["step-3"]
    assert (tmp_path / "step-1" / "notes.txt").exists() == (extras == "keep")
    assert not list((tmp_path / "step-1").glob("*.distcp"))
    assert kinds(tmp_path) == {"step-3": "own"}, "it is no longer listed"


# -- what frameworks write -------------------------------------------------------------------------------------------


def framework_saves(manager: CheckpointManager, step: int, data: bytes, **known: Any) -> Path:
    folder = manager.begin(step)
    filesystem, path = fsspec.core.url_to_fs(folder)
    filesystem.pipe_file(f"{path}/model.bin", data)
    manager.commit(step, **known)
    return Path(path)


def test_a_flipped_bit_is_found_in_what_a_framework_wrote(tmp_path: Path, options: dict[str, Any]) -> None:
    """By digests: without keys a thread computes them in the background."""
    with CheckpointManager(tmp_path, **options) as manager:
        for step in (1, 2):
            framework_saves(manager, step, os.urandom(100_000))
        manager.wait()
    with CheckpointManager(tmp_path, **options) as manager:
        assert manager.latest() == str(tmp_path / "step-2")
    file = tmp_path / "step-2" / "model.bin"
    flip(file, 54_321, 4)
    with CheckpointManager(tmp_path, **options) as manager:
        assert manager.latest() == str(tmp_path / "step-1")
        assert "SHA-256" in manager.skipped["step-2"]
        framework_saves(manager, 3, b"weights")
        manager.wait()
        assert manager.latest() == str(tmp_path / "step-3")


def test_with_keys_the_digests_are_there_from_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or whoever takes a later note of them away could change the weights."""
    with CheckpointManager(tmp_path, **KEYED) as manager:
        for step in (1, 2):
            framework_saves(manager, step, b"weights")
        monkeypatch.setattr(Commit, "without_digests", lambda self: [])
        framework_saves(manager, 3, b"weights")
    monkeypatch.undo()
    (tmp_path / "step-2" / "model.bin").write_bytes(b"weighty")
    for step in (1, 2, 3):
        for note in (tmp_path / f"step-{step}").glob(".streamxf-note-*"):
            note.unlink()
    with CheckpointManager(tmp_path, **KEYED) as manager:
        assert manager.latest() == str(tmp_path / "step-1")
        assert "SHA-256" in manager.skipped["step-2"]
        assert "no digest of model.bin" in manager.skipped["step-3"]


def test_a_digest_that_the_plug_in_gave_counts(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        framework_saves(manager, 1, b"weights")
        framework_saves(manager, 2, b"weights", digests={"model.bin": "0" * 64})
        manager.wait()
        assert manager.latest() == str(tmp_path / "step-1")


@pytest.mark.s3
@pytest.mark.slow
def test_the_stores_own_checksums_show_what_was_replaced_on_s3(endpoint: str) -> None:
    run, options = f"s3://checkpoints/commits-{secrets.token_hex(4)}", s3_options(endpoint)
    filesystem, base = fsspec.core.url_to_fs(run, **options)
    with CheckpointManager(run, storage_options=options) as manager:
        for step in (1, 2):
            manager.begin(step)
            filesystem.pipe_file(f"{base}/step-{step}/model.bin", os.urandom(5000))
            manager.commit(step)
        manager.wait()
        assert manager.latest() == f"{run}/step-2"
        filesystem.pipe_file(f"{base}/step-2/model.bin", os.urandom(5000))
        assert manager.latest() == f"{run}/step-1"
        assert "checksum" in manager.skipped["step-2"]


# -- jobs that hold no key to read -------------------------------------------------------------------------------------


def test_a_job_that_only_encrypts_and_signs_removes_what_its_signature_shows_to_be_its_own(tmp_path: Path) -> None:
    """Also in a new process; and what is planted beside stays, and is no reason to remove anything."""
    public, signer = streamxf.PrivateKey.generate().public, streamxf.SigningKey.generate()
    chain = [streamxf.Encrypt(public, signer=signer)]
    saved_run(tmp_path, 1, 2, 3, chain=chain)
    saved_run(tmp_path / "elsewhere", 9, chain=[streamxf.Encrypt(public, signer=streamxf.SigningKey.generate())])
    shutil.move(tmp_path / "elsewhere" / "step-9", tmp_path)
    saved_run(tmp_path, 4, chain=chain, keep=2)
    assert complete(tmp_path) == ["step-3", "step-4", "step-9"]


def test_a_job_that_only_encrypts_removes_what_it_has_saved_itself_and_nothing_older(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chain = [streamxf.Encrypt(streamxf.PrivateKey.generate().public)]
    saved_run(tmp_path, 1, 2, chain=chain)
    saved_run(tmp_path, 3, 4, 5, chain=chain, keep=1)
    assert complete(tmp_path) == ["step-1", "step-2", "step-5"]
    assert "without run_id= what it saves is another run" in caplog.text
    with pytest.raises(KeyMissingError, match="holds no key"):
        resumed(tmp_path, chain=chain)


# -- damage ------------------------------------------------------------------------------------------------------------


def test_the_second_best_takes_the_place_of_a_damaged_best(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keep = Retention(last=1, best=2, metric="loss")
    with CheckpointManager(tmp_path, keep=keep) as manager:
        for step in (1, 2, 3):
            manager.save(step, state_at(step), metrics={"loss": float(step)})
        manager.wait()
        assert manager.best() == str(tmp_path / "step-1")
        damage(tmp_path / "step-1")
        assert manager.best() == str(tmp_path / "step-2")
    assert "step-1 is passed over" in caplog.text
