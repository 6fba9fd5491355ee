"""Training that goes back to an earlier checkpoint: what it gives up, and what stays its own."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.metadata import read_metadata
from streamxf.checkpoint.notes import Note
from streamxf.errors import NoCheckpointError, ParameterError, ReplacedError, UnsupportedError
from streamxf.manager import folder, housekeeper, notes, saves, state
from streamxf.manager.folder import Folder
from streamxf.manager.forget import forget
from streamxf.manager.housekeeper import Housekeeper
from streamxf.manager.listing import Run, list_checkpoints
from streamxf.manager.manager import CheckpointManager
from streamxf.manager.record import Record
from streamxf.manager.retention import Retention
from streamxf.manager.saves import SaveNotes
from streamxf.manager.sessions import Sessions
from streamxf.storage.opening import open_storage
from streamxf.storage.small import put_small
from tests.failing import fails_where, fails_with
from tests.forked import status_of_child

from .runs import blank, complete, damage, is_at, replace_by_larger, resumed, saved_run, state_at

KEYED = {"chain": "floatzip+encrypt", "keys": streamxf.Key(bytes(range(32)))}


def test_what_training_has_given_up_goes_when_somebody_says_so(run: Path) -> None:
    os.symlink("step-500", run / "best")
    assert forget(run, abandoned=True, dry_run=True).removed == forget(run, abandoned=True).removed == ("step-600",)
    assert {*complete(run)} == {f"step-{step}" for step in (300, 400, 410, 420, 500)}
    (run / "best").unlink()
    damage(run / "step-420")
    assert forget(run, abandoned=True, verify="whole").removed == ("step-500",), "as 410 is of the line, and verifies"
    assert (forget(run, 1, abandoned=True).removed, resumed(run)) == (("step-300", "step-400"), 410)
    lost = state.RunState([Record("step-6", damaged=True, note="cut", abandoned="-"), Record("step-5", line=(5,))])
    assert lost.rules_applied("step-{}", Retention(), 0.0, (), max, abandoned=True)["step-6"] == ("cut",)


def test_a_save_that_was_killed_over_the_only_one_of_the_last_line_leaves_no_older_line_in_force() -> None:
    """Of whichever of two lines that is, training had gone back to before step 36."""
    over = Record("step-11", damaged=True, note="cut", lines=((24,), (24, 0)))
    found = state.RunState([over, Record("step-23"), Record("step-36")])
    (doubt,) = found.doubts(found.records[-1], lambda _: 0.0, ())
    assert (doubt.name, doubt.stops) == ("step-11", True)


def test_who_goes_back_to_what_was_given_up_has_rules_within_its_history() -> None:
    found = state.RunState(state.lined([Record("step-17"), Record("step-21", line=(12,)), Record("step-40")], (12,)))
    reasons = found.rules_applied("step-{}", Retention(last=1), 0.0, (), next, line=(41, 0))
    assert [name for name, why in reasons.items() if not why] == ["step-17"]


def test_lines_have_an_end_that_is_said() -> None:
    found = state.RunState([Record("step-1"), Record("step-2", line=(1,) * 1000)])
    with pytest.raises(UnsupportedError, match="gone back 1,000 times in this run: save to another folder"):
        found.line_after("step-{}", found.records[0], lambda _: 0.0)


def goes_back(run: Any, to: int | None, *steps: int, resumes: int | None = None, **options: Any) -> None:
    with CheckpointManager(run, **options) as manager:
        assert manager.resume(blank(), step=to) == (resumes or to)
        for step in steps:
            manager.save(step, state_at(step), metrics={"loss": 1 / step})


def abandoned(run: Any, **options: Any) -> list[str]:
    return [record.name for record in list_checkpoints(run, **options) if record.abandoned]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """From 400 training went on to 600; then back to 400 and on to 420."""
    saved_run(tmp_path / "run", 300, 400, 500, 600)
    goes_back(tmp_path / "run", 400, 410, 420)
    return tmp_path / "run"


@pytest.mark.parametrize("options", [{}, KEYED], ids=["plain", "keyed"])
def test_the_newest_of_the_line_that_was_saved_last_is_resumed_from(
    tmp_path: Path, place: tuple[str, dict[str, Any]], options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    url, storage_options = place
    options = {**options, "storage_options": storage_options}
    saved_run(url, 300, 400, 500, 600, **options)
    goes_back(url, 400, 410, 420, **options)
    assert resumed(url, **options) == 420
    assert "step-600 is passed over: abandoned: training went back to step 400" in caplog.text
    reader = {name: options[name] for name in options.keys() - {"chain"}}
    assert str(streamxf.latest(url, **reader)).endswith("step-420")
    assert abandoned(url, storage_options=storage_options) == ["step-500", "step-600"]
    saved_run(url, 430, **options)  # a job that loads by itself, or not at all, goes on
    assert resumed(url, **options) == 430
    goes_back(url, 600, 610, **options)
    assert resumed(url, **options) == 610
    assert abandoned(url, storage_options=storage_options) == ["step-410", "step-420", "step-430"]


def test_rules_count_within_the_line_and_abandoned_ones_stay_and_are_named(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    goes_back(run, 420, 430, keep=3)
    assert complete(run) == ["step-410", "step-420", "step-430", "step-500", "step-600"]
    assert "no rule removes step-500, step-600: training went back to an earlier one" in caplog.text
    report = forget(run, 1)
    assert report.removed == ("step-410", "step-420")
    assert report.kept["step-600"] == ("abandoned: training went back to step 400",)
    assert resumed(run) == 430, "though nothing of what it went back to is there"


def test_a_save_over_an_abandoned_one_says_so(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    with CheckpointManager(run) as manager:
        manager.resume(blank())
        manager.save(420, state_at(420))
        assert "replaces" not in caplog.text
        manager.save(500, state_at(500))
        manager.begin(600)
    texts = [text for text in caplog.messages if "this save replaces the checkpoint of another line" in text]
    assert [text.split(": training went back to step ")[-1] for text in texts] == ["400", "400"]


def test_who_looks_for_the_newest_after_a_resume_goes_on_from_what_was_loaded(run: Path) -> None:
    with CheckpointManager(run) as manager:
        assert manager.resume(blank(), step=300) == 300
        assert manager.latest() == str(run / "step-420")
        manager.save(310, state_at(310))
    assert resumed(run) == 310


def test_who_passes_one_over_after_a_resume_has_gone_back(tmp_path: Path) -> None:
    saved_run(tmp_path, 10, 20, 30)
    with CheckpointManager(tmp_path) as manager:
        assert manager.resume(blank()) == 30
        assert manager.latest({"step-30": "it diverged"}) == str(tmp_path / "step-20")
        manager.save(25, state_at(25))
    assert resumed(tmp_path) == 25


def unreadable(monkeypatch: pytest.MonkeyPatch, error: OSError | UnsupportedError) -> set[str]:
    """A set of names: what they hold cannot be read for now, by no fault of its own."""
    names: set[str] = set()
    record = Folder.record

    def failing(folder: Folder) -> Any:
        if folder.name not in names:
            return record(folder)
        if isinstance(error, OSError):
            raise error
        return Record(folder.name, kind="foreign", newer=True, note=error.message)

    monkeypatch.setattr(Folder, "record", failing)
    return names


TROUBLE = [PermissionError(13, "Permission denied"), OSError(5, "Input/output error"), UnsupportedError("is newer")]


@pytest.mark.parametrize(
    ("error", "way", "went_back"), [*zip(TROUBLE, ["skip", "step", "latest"], [True, False, True], strict=True)]
)
def test_what_was_passed_over_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, way: str, went_back: bool
) -> None:
    """Neither by itself, nor so that rules count from it, when it can be read again."""
    saved_run(tmp_path, 100, 200, 300)
    if went_back:
        goes_back(tmp_path, 100, 150, 200, 250, 300)
    bad = unreadable(monkeypatch, error)
    bad.add("step-300")
    with pytest.raises(type(error)):
        resumed(tmp_path)
    with CheckpointManager(tmp_path, keep=3) as manager:
        if way == "latest":
            assert str(manager.latest({str(tmp_path / "step-300"): "I know"})).endswith(
                "step-250" if went_back else "step-200"
            )
        else:
            if way == "skip":
                monkeypatch.setenv("STREAMXF_SKIP", "step-1, step-300")
            manager.resume(blank(), step=200 if way == "step" else None)
        for step in (260, 270):
            manager.save(step, state_at(step))
    monkeypatch.delenv("STREAMXF_SKIP", raising=False)
    bad.clear()
    assert resumed(tmp_path, keep=1) == 270
    saved_run(tmp_path, 280, keep=1)
    assert resumed(tmp_path) == 280
    assert "step-300" in complete(tmp_path)


def test_the_line_is_known_though_a_frameworks_commit_record_is_gone(tmp_path: Path) -> None:
    def commit(manager: CheckpointManager, *steps: int) -> None:
        for step in steps:
            torch.save({}, Path(str(manager.begin(step))) / "model.pt")
            manager.commit(step)

    with CheckpointManager(tmp_path) as manager:
        commit(manager, 400, 500, 600)
    with CheckpointManager(tmp_path) as manager:
        manager.latest({"step-500": "", "step-600": ""})
        commit(manager, 410)
    for file in (tmp_path / "step-410").glob(".streamxf*"):
        file.unlink()
    with CheckpointManager(tmp_path, keep=1) as manager:
        assert manager.latest() == str(tmp_path / "step-400")
        with pytest.raises(ParameterError, match="no name of this run's, such as step-1"):
            manager.latest({"epoch=3": "a typing error"})


@pytest.mark.parametrize(
    ("what", "steps", "last", "chosen"), [("cut", (400, 410), 410, 400), ("lost", (400, 410, 420, 600, 610), 610, 600)]
)
def test_a_line_is_not_guessed_where_the_note_of_it_is_lost_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, steps: tuple[int, ...], last: int, chosen: int
) -> None:
    """Whoever took the abandoned line for the last one would train on from there, and its rules remove the other."""
    saved_run(tmp_path, 300, 400, 500, 600)
    goes_back(tmp_path, 400, *steps[1:3])
    if last == 610:
        goes_back(tmp_path, 600, 610)
    metadata = tmp_path / f"step-{last}" / ".metadata"
    metadata.write_bytes(b"") if what == "cut" else metadata.unlink()
    assert resumed(tmp_path) == chosen
    shutil.rmtree(tmp_path / ".streamxf")
    before = sorted(tmp_path.glob("step-*"))
    for call in (lambda: resumed(tmp_path), lambda: streamxf.latest(tmp_path), lambda: forget(tmp_path, 1)):
        with pytest.raises(NoCheckpointError, match=f"step-{last} was saved after step-.* resume.state, step=N"):
            call()
    assert sorted(tmp_path.glob("step-*")) == before
    assert not any("went back" in each.abandoned for each in list_checkpoints(tmp_path) if each.damaged)
    other = 420 if last == 610 else 600
    with CheckpointManager(tmp_path) as manager:
        assert manager.latest({f"step-{last}": "I know"}) == str(tmp_path / f"step-{other}")
    monkeypatch.setenv("STREAMXF_SKIP", f"step-{last}")
    assert resumed(tmp_path) == other
    goes_back(tmp_path, 400, 700)
    monkeypatch.delenv("STREAMXF_SKIP")
    assert resumed(tmp_path) == 700


def test_a_note_that_is_older_than_what_cannot_be_read_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_run(tmp_path, 400, 500, 600)
    goes_back(tmp_path, 400, 410, 420, 430)
    monkeypatch.setattr(SaveNotes, "_put", lambda *_: None)  # killed before that, or the disk was full
    goes_back(tmp_path, 410, 415)
    assert resumed(tmp_path) == 415
    unreadable(monkeypatch, TROUBLE[0]).add("step-415")
    for call in (lambda: resumed(tmp_path), lambda: streamxf.latest(tmp_path), lambda: forget(tmp_path, 1)):
        with pytest.raises(NoCheckpointError, match="step-415 was saved after step-430, and cannot be read"):
            call()


def test_notes_of_lines_go_with_their_checkpoints(tmp_path: Path) -> None:
    saved_run(tmp_path, 1, 2)
    goes_back(tmp_path, 1, *range(3, 23))
    for step in range(3, 20):
        shutil.rmtree(tmp_path / f"step-{step}")
    saved_run(tmp_path, 23)
    noted = {each.name for each in tmp_path.glob(".streamxf/saves/*")}
    assert noted == {f"step-{step}" for step in (1, 2, *range(20, 24))}


def test_a_line_is_known_where_only_others_checkpoints_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (400, 500, 600):
        dcp.save(state_at(step), checkpoint_id=tmp_path / f"step-{step}", no_dist=True)
    goes_back(tmp_path, 400, 410)
    run = list_checkpoints(tmp_path)[1].run
    unreadable(monkeypatch, TROUBLE[0]).add("step-410")
    with pytest.raises(PermissionError):
        resumed(tmp_path)
    monkeypatch.setenv("STREAMXF_SKIP", "step-410")
    assert resumed(tmp_path) == 400
    saved_run(tmp_path, 420)
    assert list_checkpoints(tmp_path)[2].run == run, "it is the same run as before"


@pytest.mark.parametrize("lines", ['["401"]', "[]", "[5]", "[[[1]]]", "5"])
def test_a_note_of_a_line_that_is_none_counts_for_nothing(tmp_path: Path, lines: str) -> None:
    saved_run(tmp_path, 400, 500)
    run = list_checkpoints(tmp_path)[0].run
    for name in ("step-450", "step-500"):
        note = Note.seal({"run": run, "name": name, "lines": json.loads(lines), "coming": None, "given_up": None}, None)
        put_small(open_storage(tmp_path), f".streamxf/saves/{name}", note)
    damage(tmp_path / "step-500")
    assert resumed(tmp_path) == 400
    saved_run(tmp_path, 600)


def test_two_jobs_that_go_back_to_one_step_have_lines_of_their_own(tmp_path: Path) -> None:
    saved_run(tmp_path, 400, 500, 600)
    with CheckpointManager(tmp_path) as first:
        assert first.resume(blank(), step=400) == 400
        goes_back(tmp_path, 400, 420, 430)
        first.save(410, state_at(410))
    assert resumed(tmp_path) == 410


def test_a_run_goes_on_from_a_foreign_checkpoint_as_itself(run: Path, tmp_path: Path) -> None:
    saved_run(tmp_path / "other", 7)
    shutil.copytree(tmp_path / "other" / "step-7", run / "step-5")
    with CheckpointManager(run) as manager:
        assert manager.resume(blank(), step=5, foreign=True) == 5
        manager.save(8, state_at(8))
    assert resumed(run) == 8


def test_each_checkpoint_says_what_it_continues(run: Path) -> None:
    found, save_id = {}, ""
    for step in (400, 410, 420):
        index = read_metadata(open_storage(run / f"step-{step}"), ".metadata", Access()).index
        assert index is not None
        assert index.run is not None
        found[step] = index.run.continues, index.run.line
        save_id = index.save_id if step == 400 else save_id
    assert found == {400: (None, ()), 410: ((400, save_id), (401,)), 420: ((400, save_id), (401,))}


def test_it_falls_back_within_its_line_and_no_further(run: Path) -> None:
    damage(run / "step-420")
    assert resumed(run) == 410
    damage(run / "step-410")
    damage(run / "step-400")
    assert resumed(run) == 300
    damage(run / "step-300")
    with pytest.raises(NoCheckpointError, match=r"step-600, step-500: abandoned: .*step=N\) loads an abandoned one"):
        resumed(run)
    goes_back(run, 600, 700)
    assert resumed(run) == 700


def test_the_best_is_looked_for_in_the_line_and_changes_none(run: Path) -> None:
    keep = Retention(best=1, metric="loss")
    with CheckpointManager(run, keep=keep) as manager:
        assert manager.best() == str(run / "step-420"), "of all, step-600 has the least"
        manager.save(430, state_at(430), metrics={"loss": 1.0})
    assert resumed(run) == 430
    assert complete(run)[-1] == "step-600"


@pytest.mark.parametrize("options", [{}, KEYED], ids=["plain", "keyed"])
def test_what_is_replaced_while_it_is_read_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    saved_run(tmp_path, 100, 200, **options)
    monkeypatch.setattr(folder, "read_metadata", fails_with(ReplacedError, "another save was published here"))
    with pytest.raises(ReplacedError):
        resumed(tmp_path, **options)


@pytest.mark.parametrize("tip", [410, 610])
def test_a_disk_that_is_away_takes_no_line_along(tmp_path: Path, tip: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link to what is not mounted, and a folder that cannot be looked at, are checkpoints that are there."""
    run = tmp_path / "run"
    saved_run(run, 400, 500, 600)
    goes_back(run, 400, tip)
    (run / f"step-{tip}").rename(tmp_path / "away")
    (run / f"step-{tip}").symlink_to(tmp_path / "mount" / "there")
    for call in (lambda: resumed(run), lambda: streamxf.latest(run)):
        with pytest.raises(UnsupportedError, match="there, which is empty or not there: mount it, or remove the link"):
            call()
    assert not forget(run, 1).removed
    (run / f"step-{tip}").unlink()
    (tmp_path / "away").rename(run / f"step-{tip}")
    error = OSError(107, "Transport endpoint is not connected")
    fails_where(monkeypatch, os, "stat", lambda path: str(path).endswith(f"step-{tip}"), error)
    with pytest.raises(OSError, match="Transport endpoint"):
        resumed(run)
    with pytest.raises(OSError, match="Transport endpoint"):
        forget(run, 1)


def test_a_folder_without_a_line_that_is_away_is_not_passed_over(tmp_path: Path) -> None:
    saved_run(tmp_path, 100, 200)
    (tmp_path / "step-300").symlink_to(tmp_path / "not mounted")
    with pytest.raises(UnsupportedError, match="mount it") as caught:
        resumed(tmp_path)
    assert "STREAMXF_SKIP=step-300" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("tip", [None, 410, 610])
def test_a_folder_that_is_not_mounted_is_empty_and_not_passed_over(tmp_path: Path, tip: int | None) -> None:
    run = tmp_path / "run"
    saved_run(run, 400, 500, 600)
    if tip is not None:
        goes_back(run, 400, tip)
    folder = run / f"step-{tip or 600}"
    folder.rename(tmp_path / "away")
    folder.mkdir()
    for call in (lambda: resumed(run), lambda: streamxf.latest(run), lambda: resumed(run)):
        with pytest.raises(UnsupportedError, match="the folder is empty: mount it, or remove the folder") as caught:
            call()
        assert f"STREAMXF_SKIP={folder.name}" in "".join(caught.value.__notes__)
    assert forget(run, 1).removed == (("step-400",) if tip is None else ())
    folder.rmdir()
    (tmp_path / "away").rename(folder)
    assert resumed(run) == (tip or 600)


def test_an_empty_folder_that_never_held_a_checkpoint_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved_run(tmp_path, 100, 200)
    for step in (150, 300):
        (tmp_path / f"step-{step}").mkdir()
    assert resumed(tmp_path) == 200
    assert streamxf.latest(tmp_path) == str(tmp_path / "step-200")
    assert caplog.text.count("step-200 is chosen, and ") == 2
    shutil.rmtree(tmp_path / "step-100")
    (tmp_path / "step-100").mkdir()
    assert resumed(tmp_path) == 200
    assert "step-100 may have" not in caplog.text, "its note says that it is of the same line, and so earlier"
    assert "step-300 is empty: a save was killed there, or it is not mounted" in caplog.text
    saved_run(tmp_path, 300)
    assert resumed(tmp_path) == 300


def deny_notes(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """Those with this in their paths cannot be read."""
    error = PermissionError(13, "Permission denied")
    fails_where(monkeypatch, notes, "read_small", lambda storage, path, *_: part in path, error)


def test_notes_that_cannot_be_read_for_now_are_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved_run(tmp_path, 400, 500, 600)
    goes_back(tmp_path, 400, 610)
    unreadable(monkeypatch, TROUBLE[0]).add("step-610")
    deny_notes(monkeypatch, "saves/")
    monkeypatch.setenv("STREAMXF_SKIP", "step-610")
    for call in (lambda: resumed(tmp_path), lambda: streamxf.latest(tmp_path), lambda: forget(tmp_path, 1)):
        with pytest.raises(PermissionError, match=r"\.streamxf/saves/step-610"):
            call()


@pytest.mark.parametrize("by_framework", [False, True])
def test_another_job_saves_before_the_first_save_of_one_that_found_nothing(tmp_path: Path, by_framework: bool) -> None:
    with CheckpointManager(tmp_path) as late:
        assert (late.latest() if by_framework else late.resume(blank())) is None
        saved_run(tmp_path, 100, 200)
        late.save(10, state_at(10))
    assert resumed(tmp_path) == 10
    assert abandoned(tmp_path) == ["step-100", "step-200"]


def test_a_job_that_ends_between_a_listing_and_a_session_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_run(tmp_path, 600)
    begin = Sessions.begin

    def after_another(sessions: Sessions) -> None:
        monkeypatch.setattr(Sessions, "begin", begin)
        saved_run(tmp_path, 650)
        begin(sessions)

    with CheckpointManager(tmp_path) as manager:
        assert manager.resume(blank()) == 600
        monkeypatch.setattr(Sessions, "begin", after_another)
        manager.save(610, state_at(610))
    assert resumed(tmp_path) == 610


def test_what_says_nothing_of_itself_is_of_the_line_that_was_noted(tmp_path: Path) -> None:
    """A framework's save that lost its commit record, and has DCP's metadata."""
    saved_run(tmp_path, 400, 500, 600)
    with CheckpointManager(tmp_path) as manager:
        manager.resume(blank(), step=400)
        dcp.save(state_at(410), checkpoint_id=manager.begin(410))
        manager.commit(410)
    (tmp_path / "step-410" / ".streamxf-commit").unlink()
    assert resumed(tmp_path) == 410


def test_an_open_manager_of_a_store_sees_what_was_saved_anew(place: tuple[str, dict[str, Any]]) -> None:
    """Folders there have no marks that show it."""
    url, options = place
    saved_run(url, 400, 500, 600, storage_options=options)
    with CheckpointManager(url, storage_options=options) as manager:
        assert str(manager.latest()).endswith("step-600")
        goes_back(url, 400, 500, storage_options=options)
        assert str(manager.latest()).endswith("step-500")
        manager.save(610, state_at(610))
    assert abandoned(url, storage_options=options) == ["step-600"]


def test_an_open_manager_of_a_store_sees_what_somebody_has_put_there(place: tuple[str, dict[str, Any]]) -> None:
    url, options = place
    saved_run(url, 1, 2, 3, storage_options=options)
    with CheckpointManager(url, storage_options=options) as manager:
        assert str(manager.latest()).endswith("step-3")
        replace_by_larger(open_storage(url, options).child("step-3"))
        state = blank()
        assert manager.resume(state) == 3
        assert is_at(state, 22)


def test_who_looks_at_a_save_that_is_killed_once_it_is_published_remembers_nothing_of_it(
    place: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, options = place
    saved_run(url, 1, 2, 3, storage_options=options)
    reader, finish = Run(open_storage(url, options)), streamxf.FileSystemWriter.finish
    reader.read()

    def looked_at(*arguments: Any, **how: Any) -> None:
        reader.read()
        finish(*arguments, **how)

    monkeypatch.setattr(streamxf.FileSystemWriter, "finish", looked_at)
    monkeypatch.setattr(Housekeeper, "_saved", lambda *_: None)
    goes_back(url, 1, 3, storage_options=options)
    seen, there = reader.read().records, list_checkpoints(url, storage_options=options)
    assert [each.save_id for each in seen] == [each.save_id for each in there]
    assert [each.abandoned != "" for each in seen] == [False, True, False]


def test_a_link_of_the_last_line_whose_target_lost_its_metadata(tmp_path: Path) -> None:
    run = tmp_path / "run"
    saved_run(run, 400, 500, 600, **KEYED)
    goes_back(run, 400, 610, **KEYED)
    (run / "step-610").rename(tmp_path / "step-610")
    (run / "step-610").symlink_to(tmp_path / "step-610")
    assert resumed(run, **KEYED) == 610
    (tmp_path / "step-610" / ".metadata").unlink()
    assert resumed(run, **KEYED) == 400


def test_a_job_without_keys_in_the_folder_leaves_the_notes_of_others(tmp_path: Path) -> None:
    saved_run(tmp_path, 400, 500, 600, **KEYED)
    goes_back(tmp_path, 400, 610, **KEYED)
    for step in range(1, 30):
        saved_run(tmp_path, step, name="plain-{}")
    damage(tmp_path / "step-610")
    assert resumed(tmp_path, **KEYED) == 400


def test_a_note_that_could_not_be_put_is_put_by_the_next_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved_run(tmp_path, 400, 500)
    with CheckpointManager(tmp_path) as manager:
        manager.resume(blank(), step=400)
        with monkeypatch.context() as filled:
            filled.setattr(saves, "put_note", fails_with(OSError, 28, "No space left on device"))
            manager.save(610, state_at(610))
        manager.save(610, state_at(610))
    damage(tmp_path / "step-610")
    assert resumed(tmp_path) == 400


@pytest.mark.parametrize("readable", [True, False])
def test_a_save_that_failed_leaves_no_line_on_what_it_was_to_replace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readable: bool
) -> None:
    saved_run(tmp_path, 400, 500, 600)
    with CheckpointManager(tmp_path) as manager:
        assert manager.resume(blank(), step=400) == 400
        if not readable:
            unreadable(monkeypatch, TROUBLE[0]).add("step-500")
        with pytest.raises(CheckpointException):
            manager.save(500, {"w": lambda: None})
    if readable:
        damage(tmp_path / "step-500")
    assert not [*tmp_path.glob(".streamxf/holds/*")]
    assert resumed(tmp_path) == 600


def test_notes_of_lines_go_with_what_rules_remove(tmp_path: Path) -> None:
    saved_run(tmp_path, 1, 2)
    with CheckpointManager(tmp_path, keep=2) as manager:
        manager.resume(blank(), step=1)
        for step in range(3, 13):
            manager.save(step, state_at(step))
    assert sorted(each.name for each in tmp_path.glob(".streamxf/saves/*")) == ["step-11", "step-12", "step-2"]


def zero_metadata(checkpoint: Path) -> None:
    """Its times stay, as where a sector was lost."""
    file = checkpoint / ".metadata"
    times = file.stat()
    file.write_bytes(bytes(times.st_size))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def put_away(checkpoint: Path) -> None:
    """As where a disk is not mounted."""
    checkpoint.rename(checkpoint.parent.parent / "away")
    checkpoint.mkdir()


def test_a_save_before_it_gives_it_no_other_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved_run(tmp_path, 400, 500)
    zero_metadata(tmp_path / "step-500")
    with CheckpointManager(tmp_path, async_save=True, in_flight=2) as manager:
        assert manager.resume(blank()) == 400
        for step in (410, 500):
            manager.save(step, state_at(step))
    unreadable(monkeypatch, TROUBLE[0]).add("step-500")
    for call in (lambda: resumed(tmp_path), lambda: streamxf.latest(tmp_path)):
        with pytest.raises(type(TROUBLE[0])):
            call()


def test_where_a_note_cannot_be_put_no_older_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved_run(tmp_path, 400, 500, 600)
    goes_back(tmp_path, 400, 500)
    with monkeypatch.context() as filled, CheckpointManager(tmp_path) as manager:
        assert manager.resume(blank(), step=400) == 400
        manager.save(410, state_at(410))
        filled.setattr(notes, "put_small", fails_with(OSError, 28, "No space left on device"))
        manager.save(500, state_at(500))
    unreadable(monkeypatch, TROUBLE[0]).add("step-500")
    with pytest.raises(type(TROUBLE[0])):
        resumed(tmp_path)


def killed_over_500(run: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    saved_run(run, 400, 500, 600, **options)

    def killed() -> None:
        monkeypatch.setattr(streamxf.FileSystemWriter, "finish", lambda *_, **__: os._exit(9))
        goes_back(run, 400, 500, **options)

    assert status_of_child(killed) == 9


def check_asks(run: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    with pytest.raises(NoCheckpointError, match=r"step-500 .* cannot be read: .*training had gone back"):
        resumed(run, **options)
    with monkeypatch.context() as skipping:
        skipping.setenv("STREAMXF_SKIP", "step-500")
        assert resumed(run, **options) == 600


@pytest.mark.parametrize("trouble", [zero_metadata, put_away])
def test_a_note_beside_a_killed_save_may_be_that_of_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: Callable[[Path], None]
) -> None:
    killed_over_500(tmp_path / "run", monkeypatch)
    assert resumed(tmp_path / "run") == 600
    trouble(tmp_path / "run" / "step-500")
    check_asks(tmp_path / "run", monkeypatch)
    assert str(streamxf.latest(tmp_path / "run", best="loss")).endswith("step-600")


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_job_that_was_killed_once_it_had_published_over_another(tmp_path: Path, goes_on: bool) -> None:
    """In the background, before it has noted that."""
    saved_run(tmp_path, 100, 200, 300)
    metadata = tmp_path / "step-300" / ".metadata"
    before = metadata.read_bytes()

    def killed() -> None:
        with CheckpointManager(tmp_path, async_save=True) as manager:
            manager.resume(blank(), step=100)
            manager.save(300, state_at(300))
            while metadata.read_bytes() == before:
                pass
            os._exit(9)

    assert status_of_child(killed) == 9
    assert resumed(tmp_path) == 300
    if goes_on:
        goes_back(tmp_path, None, 310, resumes=300)
        zero_metadata(tmp_path / "step-310")
    zero_metadata(tmp_path / "step-300")
    if goes_on:
        assert resumed(tmp_path) == 100
        return
    with pytest.raises(NoCheckpointError, match="step-300 may have been replaced by a save that was killed"):
        resumed(tmp_path)


def test_no_save_goes_where_something_is_away(tmp_path: Path) -> None:
    run = tmp_path / "run"
    saved_run(run, 300, 400)
    put_away(run / "step-400")
    with CheckpointManager(run) as manager:
        assert manager.resume(blank(), step=300) == 300
        with pytest.raises(UnsupportedError, match="the folder is empty: mount it"):
            manager.save(400, state_at(400))
        assert manager.best() is None
    with pytest.raises(UnsupportedError, match="the folder is empty: mount it"):
        resumed(run)
    assert str(streamxf.latest(run, best="loss", mode="max")).endswith("step-300")


def test_an_emptied_folder_of_what_was_removed_is_not_away(tmp_path: Path) -> None:
    saved_run(tmp_path, 100, 200, 300)
    (tmp_path / "step-100" / "eval.json").write_text("{}")
    saved_run(tmp_path, 400, keep=2)
    (tmp_path / "step-100" / "eval.json").unlink()
    assert not [*(tmp_path / "step-100").iterdir()]
    for step in (300, 400):
        zero_metadata(tmp_path / f"step-{step}")
    with pytest.raises(NoCheckpointError, match="no checkpoint can be resumed from"):
        resumed(tmp_path)
    shutil.rmtree(tmp_path / "step-400")

    def killed() -> None:
        saved_run(tmp_path, 400)

    with patch.object(housekeeper, "put_small", lambda *_, **__: os._exit(9)):
        assert status_of_child(killed) == 9
    (tmp_path / "step-400").mkdir(exist_ok=True)
    with pytest.raises(NoCheckpointError, match="no checkpoint can be resumed from"):
        resumed(tmp_path)


def test_a_note_counts_for_its_own_checkpoint(tmp_path: Path) -> None:
    saved_run(tmp_path, 400, 500, 600, **KEYED)
    goes_back(tmp_path, 400, 610, **KEYED)
    shutil.rmtree(tmp_path / "step-610")
    (tmp_path / ".streamxf" / "saves" / "step-610").rename(tmp_path / ".streamxf" / "saves" / "step-500")
    zero_metadata(tmp_path / "step-500")
    assert resumed(tmp_path, **KEYED) == 600


def test_notes_of_saves_get_new_recipients(tmp_path: Path) -> None:
    saved_run(tmp_path, 400, 500, 600, **KEYED)
    goes_back(tmp_path, 400, 610, **KEYED)
    new = streamxf.Key(bytes(range(1, 33)))
    for checkpoint in tmp_path.glob("step-*"):
        streamxf.rekey(checkpoint, recipients=new, keys=KEYED["keys"])
    zero_metadata(tmp_path / "step-610")
    assert resumed(tmp_path, **{**KEYED, "keys": new}) == 400


def test_what_was_deleted_by_hand_and_saved_anew_is_not_what_was_remembered(place: tuple[str, dict[str, Any]]) -> None:
    url, options = place
    saved_run(url, 300, 400, 500, 600, keep=10, storage_options=options)
    saved_run(url, 700, keep=10, storage_options=options)  # by now the first ones are remembered
    files = open_storage(url, options)
    files.remove([f"step-500/{each.name}" for each in files.child("step-500").below()])
    goes_back(url, 400, 500, storage_options=options)
    assert resumed(url, keep=2, storage_options=options) == 500
    assert abandoned(url, storage_options=options) == ["step-600", "step-700"]


def leave_a_file(run: Path) -> None:
    """Rules remove 500, and what a person has put beside it stays."""
    saved_run(run, 300, 400, 500, 600)
    (run / "step-500" / "ema.pt").write_bytes(b"x")
    saved_run(run, 700, keep=Retention(last=1, steps=(400, 600)))
    assert [each.name for each in (run / "step-500").iterdir()] == ["ema.pt"]


@pytest.mark.parametrize("at", ["put_hold", "finish"])
def test_a_save_that_was_killed_where_a_persons_file_lies_decides_nothing(tmp_path: Path, at: str) -> None:
    leave_a_file(tmp_path)

    def killed() -> None:
        with patch.object(
            housekeeper if at == "put_hold" else streamxf.FileSystemWriter, at, lambda *_, **__: os._exit(9)
        ):
            goes_back(tmp_path, 400, 500)

    assert status_of_child(killed) == 9
    goes_back(tmp_path, None, 800, resumes=700)
    assert resumed(tmp_path) == 800
    assert forget(tmp_path, 1).removed == ("step-400", "step-600", "step-700")


@pytest.mark.parametrize("copied", [False, True])
def test_what_a_person_puts_into_a_removed_folder_is_no_checkpoint(tmp_path: Path, copied: bool) -> None:
    leave_a_file(tmp_path)
    os.utime(tmp_path / "step-500" / "ema.pt")  # an evaluation of it ends late
    shutil.rmtree(tmp_path / ".streamxf") if copied else None
    assert resumed(tmp_path) == 700
    assert forget(tmp_path, 2).removed == ("step-400",)


def test_what_is_known_to_be_abandoned_need_not_be_readable(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unreadable(monkeypatch, TROUBLE[0]).add("step-600")
    assert resumed(run) == 420
    deny_notes(monkeypatch, "saves/step-410")
    assert resumed(run) == 420, "of which that note says nothing"


def test_a_save_puts_a_folder_in_the_place_of_a_link_each_time(tmp_path: Path) -> None:
    run = tmp_path / "run"
    saved_run(run, 400, 500)
    for _ in range(2):
        (run / "step-500").rename(tmp_path / "cold")
        (run / "step-500").symlink_to(tmp_path / "cold")
        goes_back(run, 400, 500)
        shutil.rmtree(tmp_path / "cold")
    assert resumed(run) == 500


def test_data_of_what_lost_its_metadata_stays_though_a_mark_of_its_save_does(tmp_path: Path) -> None:
    saved_run(tmp_path, 100, 200)

    def killed() -> None:
        with patch.object(Housekeeper, "_end", lambda *_, **__: os._exit(9)):
            saved_run(tmp_path, 300)

    assert status_of_child(killed) == 9
    metadata = tmp_path / "step-300" / ".metadata"
    metadata.rename(tmp_path / "kept")
    saved_run(tmp_path, 250)
    (tmp_path / "kept").rename(metadata)
    assert resumed(tmp_path) == 300
