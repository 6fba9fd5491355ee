"""What is wrong with the machine, or with what a process knows, is no damage: every tool raises or names it as what it
is, no note of damage is left, and the same checkpoint is tried again.
"""

from __future__ import annotations

import json
import os
import shutil
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf.cli.__main__ import main
from streamxf.errors import ObjectError, UnsupportedError
from streamxf.manager.listing import Run
from streamxf.manager.manager import CheckpointManager
from tests.cli import preloaded
from tests.failing import fails_where

from . import troubled
from .runs import saved_run

TOOLS = ("resume", "latest", "verify", "load_intact", "salvage", "diff", "afterwards")
FINE = ("step 2", "step-2", "OK: no damage found", "all", "all", "same", "step 2")
OBJECT = (
    *("raised ObjectError", "step-2", "OK: no damage found", "refused thing: ObjectError", "all"),
    *("thing: that of the first cannot be read: * ObjectError: *", "step 2"),
)
UNKNOWN = (
    *("raised NotAllowedError", "step-2"),
    "OK: no damage found (1 check skipped: that 1 tensor can be loaded here, which needs framework_of_somebody.Scaled)",
    *("refused scaled: NotAllowedError", "all", "same", "raised NotAllowedError"),
)
UNREADABLE = (
    *("raised EIO", "raised EIO", "DAMAGED in * places", "raised MetadataError", "raised MetadataError"),
    *("raised EIO", "step 2"),
)
CASES = {
    "a device": {"": FINE},
    "an object": {"its own code": OBJECT, "an import": OBJECT},
    "a class": {"": UNKNOWN},
    "many files": {
        "no threads": FINE,
        "few open files": FINE,
        "no open files": (*["raised EMFILE"] * 6, "step 2"),
        "bad sectors once": FINE,
        "bad sectors": UNREADABLE,
    },
    "a large tensor": {"little memory": (*FINE[:3], *["raised MemoryError"] * 2, "same", "step 2")},
}


def run_python(*arguments: object, path: Path | None = None) -> str:
    before = "" if path is None else f"import sys; sys.path.append({str(path)!r})"
    done = preloaded.module(troubled.__name__, *arguments, before=before)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_the_code_of_an_unpickled_object_misses_is_no_damage(tmp_path: Path) -> None:
    (tmp_path / "vocabulary").write_text("a b c")
    reader = {"weights_only": False}
    with streamxf.CheckpointManager(tmp_path / "run", reader=reader) as manager:
        for step in (1, 2):
            manager.save(step, {"words": troubled.Words(str(tmp_path / "vocabulary"))})
    (tmp_path / "vocabulary").unlink()
    with streamxf.CheckpointManager(tmp_path / "run", reader=reader) as manager:
        with pytest.raises(CheckpointException) as failure:
            manager.resume({"words": None})
        ((error, _),) = failure.value.failures.values()
        assert isinstance(error, ObjectError)
        assert manager.skipped == {}


@pytest.mark.parametrize("what", CASES)
def test_trouble_is_told_as_what_it_is(what: str, tmp_path: Path) -> None:
    framework = tmp_path / "site"
    framework.mkdir()
    (framework / "framework_of_somebody.py").write_text(troubled.FRAMEWORK)
    run = tmp_path / "run"
    run_python("save", run, what, path=framework)
    found = json.loads(run_python("use", run, what, *CASES[what]))
    for kind, texts in CASES[what].items():
        wanted = dict(zip(TOOLS, texts, strict=True))
        assert not {name: text for name, text in found[kind].items() if not fnmatchcase(text, wanted[name])}, kind
    if what == "a class":
        assert run_python("resume", run, what, path=framework) == "step 2\n"


def test_a_pointer_in_place_of_a_file_is_not_passed_over_as_damage(tmp_path: Path) -> None:
    """Of Git LFS: the older checkpoint would not be what anybody asked for."""
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 5531\n"
    saved_run(tmp_path / "dcp", 100, 200)
    next((tmp_path / "dcp" / "step-200").glob("*.distcp")).write_bytes(pointer)
    with CheckpointManager(tmp_path / "other") as manager:
        for step in (100, 200):
            (Path(str(manager.begin(step))) / "model.pt").write_bytes(bytes(5531))
            manager.commit(step)
    (tmp_path / "other" / "step-200" / "model.pt").write_bytes(pointer)
    shutil.copytree(tmp_path / "other", tmp_path / "record")
    (tmp_path / "record" / "step-200" / ".streamxf-commit").write_bytes(pointer)
    for run in ("dcp", "other", "record"):
        with pytest.raises(UnsupportedError, match="git lfs pull"):
            streamxf.latest(tmp_path / run)
        with CheckpointManager(tmp_path / run, verify="none") as manager, pytest.raises(UnsupportedError):
            manager.latest()


def test_what_cannot_be_read_is_not_removed_and_stops_no_other_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_run(tmp_path, 100, 200, 300, 400, 500)
    for step in (100, 500):
        (tmp_path / f"step-{step}" / ".metadata").write_bytes(bytes(2000))
    error = PermissionError(13, "Permission denied")
    fails_where(monkeypatch, Run, "is_still", lambda run, record, _: record.name == "step-200", error)
    report = streamxf.forget(tmp_path, 1)
    assert report.removed == ("step-300",)
    assert [*report.failed] == ["step-200"]
    assert report.kept.keys() == {"step-100", "step-400", "step-500"}


def test_an_error_of_a_folder_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    saved_run(tmp_path, 100)
    error = OSError(5, "Input/output error", 3)
    fails_where(monkeypatch, os, "scandir", lambda folder: isinstance(folder, int), error)
    for command in ("verify", "inspect", "diff"):
        places = [str(tmp_path / "step-100")] * (2 if command == "diff" else 1)
        code = main([command, *places])
        assert str(tmp_path / "step-100") in capfd.readouterr().err
        assert (code == 2) == (command != "inspect")
