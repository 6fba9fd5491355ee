"""What commands decode and print is bounded by what is stored, unless they are told otherwise."""

import json
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf.budget import Budget
from streamxf.cli import show
from streamxf.errors import PolicyError
from tests.cli.command import Run
from tests.hostile.made import long_name_of_many_chunks

KIB = 2**10


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamxf.budget.FREE", 100 * KIB)


@pytest.fixture
def zeros(tmp_path: Path, little: None) -> Path:
    """A MiB in a few hundred bytes."""
    writer = streamxf.FileSystemWriter(tmp_path / "zeros", _extensions=[streamxf.ZStandard()], sync_files=False)
    dcp.save({"w": torch.zeros(KIB, 256)}, storage_writer=writer)
    return tmp_path / "zeros"


def test_an_error_names_the_option_and_the_option_helps(run: Run, tmp_path: Path, zeros: Path) -> None:
    done = run.exits(1, "salvage", zeros, tmp_path / "out")
    assert "(--max-expansion)" in done.out
    assert "max_expansion" not in done.out + run("salvage", zeros, tmp_path / "out", "--json").out
    done = run.exits(0, "salvage", zeros, tmp_path / "out", "--max-expansion", 10_000, err="")
    assert "1 item salvaged" in done.out


def test_output_out_of_proportion_is_not_printed(run: Run, tmp_path: Path, little: None) -> None:
    (tmp_path / "in").mkdir()
    path = long_name_of_many_chunks(tmp_path / "in")
    done = run.exits(1, "salvage", path, tmp_path / "out", "--json")
    assert "the output would take" in json.loads(done.out)["error"]["message"]
    assert "(--max-expansion)" in done.err
    assert "0 items salvaged" in run.exits(1, "salvage", path, tmp_path / "out").out


# -- JSON piece by piece -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"a": []},
        {"a": (), "b": {}},
        {"a": [1, "two", None, {"c": (3, 4)}], "b": "ü\n", "c": ({"d": 5.5},)},
        {"a": [[1, 2], [3]], "b": True, "long": ["x" * 2**18] * 5},
    ],
)
def test_json_is_the_same_however_it_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, facts: dict[str, object]
) -> None:
    monkeypatch.setattr(show, "_INDENTED", 0)
    show.as_json(facts)
    assert capsys.readouterr().out == json.dumps({"json_version": show.JSON_VERSION, **facts}) + "\n"


def test_json_that_is_too_long_prints_nothing(capsys: pytest.CaptureFixture[str], little: None) -> None:
    with pytest.raises(PolicyError):
        show.as_json({"a": ["x" * KIB] * 101}, Budget(1, 0))
    assert capsys.readouterr().out == ""
    show.as_json({"a": ["x" * KIB] * 99}, Budget(1, 0))
    assert len(json.loads(capsys.readouterr().out)["a"]) == 99


def test_what_is_stored_is_what_is_in_a_folder_or_file(tmp_path: Path, little: None) -> None:
    (tmp_path / "file").write_bytes(bytes(150 * KIB))
    for path in (str(tmp_path), str(tmp_path / "file"), f"local://{tmp_path}"):
        show.budget_for(1, path).spend(150 * KIB, "it")
        with pytest.raises(PolicyError):
            show.budget_for(1, path).spend(150 * KIB + 1, "it")
