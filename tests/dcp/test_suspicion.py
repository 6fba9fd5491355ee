"""The note that a checkpoint of a run was found damaged."""

import os
import pickle
from pathlib import Path

import fsspec
import pytest

from streamxf.dcp.reader import note_damage, suspect
from streamxf.errors import BlockError, IdentityError, KeyMissingError, PolicyError, StreamxfError, WrongKeyError
from streamxf.storage.opening import open_storage
from tests.failing import fails_with

ID = "0123456789abcdef" * 2
NOTE = f".streamxf/damage-{ID}"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run" / ".streamxf").mkdir(parents=True)
    (tmp_path / "run" / "step-3").mkdir()
    return tmp_path / "run"


def notes_of(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


def test_it_lies_in_the_run(run: Path, monkeypatch: pytest.MonkeyPatch):
    for _ in range(2):  # the second rank finds it there
        assert suspect(open_storage(run / "step-3"), ID) is True
    assert (run / NOTE).read_bytes() == b""
    (run / NOTE).unlink()
    monkeypatch.chdir(run / "step-3")
    assert suspect(open_storage("."), ID) is True
    assert (run / NOTE).is_file()


def test_elsewhere_nothing_is_made(tmp_path: Path):
    (tmp_path / "step-3").mkdir()
    assert suspect(open_storage(tmp_path / "step-3"), ID) is None
    assert suspect(open_storage("memory://plain/step-3"), ID) is None
    assert os.listdir(tmp_path) == ["step-3"]
    error = BlockError("torn")
    note_damage(open_storage(tmp_path / "step-3"), ID, "next: look", error)
    assert notes_of(error) == "next: look"


def test_a_store(tmp_path: Path):
    memory = fsspec.filesystem("memory")
    memory.pipe_file(f"{tmp_path}/run/.streamxf/rows", b"")
    storage = open_storage(f"memory://{tmp_path}/run/step-3/")
    assert suspect(storage, ID) is True
    assert memory.cat_file(f"{tmp_path}/run/{NOTE}") == b""


def test_a_store_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    memory = fsspec.filesystem("memory")
    memory.pipe_file(f"{tmp_path}/run/.streamxf/rows", b"")
    monkeypatch.setattr(type(memory), "pipe_file", fails_with(RuntimeError, "read only"))
    assert suspect(open_storage(f"memory://{tmp_path}/run/step-3"), ID) is False


@pytest.mark.parametrize("what", ["folder", "note"])
def test_links_are_not_followed(what: str, run: Path, tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    if what == "folder":
        (run / ".streamxf").rmdir()
        (run / ".streamxf").symlink_to(outside)
    else:
        (run / NOTE).symlink_to(outside / "made")
    assert suspect(open_storage(run / "step-3"), ID) is False
    assert not list(outside.iterdir())


def test_a_pipe_in_its_place_does_not_block(run: Path):
    os.mkfifo(run / NOTE)
    assert suspect(open_storage(run / "step-3"), ID) is False


@pytest.mark.parametrize("save_id", [None, "", "../step-3", "0" * 31], ids=repr)
def test_only_a_save_id_names_a_file(save_id: str | None, run: Path):
    assert suspect(open_storage(run / "step-3"), save_id) is False
    assert not list((run / ".streamxf").iterdir())


def test_where_no_note_can_be_left_the_error_says_how_to_go_on(run: Path):
    error = BlockError("torn")
    note_damage(open_storage(run / "step-3"), None, "next: look", error)
    assert "STREAMXF_SKIP=step-3" in notes_of(error)
    assert notes_of(pickle.loads(pickle.dumps(error))) == notes_of(error)


@pytest.mark.parametrize("kind", [KeyMissingError, WrongKeyError, PolicyError, OSError])
def test_what_is_no_damage_leaves_none(kind: type[StreamxfError], run: Path):
    error = kind("something else")
    for save_id in ID, None:
        note_damage(open_storage(run / "step-3"), save_id, "next: look", error)
    assert not list((run / ".streamxf").iterdir())
    assert not notes_of(error)


def test_what_belongs_elsewhere_leaves_none_but_advice(run: Path):
    error = IdentityError("of another save")
    for _ in range(2):  # the second time there is nothing to add
        note_damage(open_storage(run / "step-3"), ID, "next: look", error)
    assert notes_of(error) == "next: look"
    assert not list((run / ".streamxf").iterdir())
