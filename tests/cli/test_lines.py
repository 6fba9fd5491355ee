"""Lines at a terminal of 80 columns end between words, and advice can be copied as it stands."""

import io
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict_saver import save

import streamxf
from streamxf.cli.run import command_line
from streamxf.cli.show import wrapped
from tests.cli.command import Run
from tests.cli.conftest import flip_bit
from tests.cli.terminal import at_terminal

COMMANDS = command_line().commands
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # those of a bar among them, which only a slow machine shows


def shown(*arguments: object, columns: int = 80) -> tuple[int, list[str]]:
    """What a command shows at a terminal, without colours."""
    code, text = at_terminal(arguments, COLUMNS=str(columns))
    return code, ESCAPES.sub("", text).splitlines()


def words(lines: list[str]) -> set[str]:
    return {word for line in lines for word in line.replace("│", " ").split()}


@pytest.mark.parametrize("columns", [60, 70, 80])
@pytest.mark.parametrize("name", COMMANDS)
def test_help_cuts_no_word(run: Run, name: str, columns: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    found = words(run(name, "--help").out.splitlines())
    found |= {word.rstrip(",") for word in found}  # options with short forms, in a list without columns
    for parameter in COMMANDS[name].params:
        for text in (*parameter.opts, parameter.metavar or "", parameter.help or ""):
            if parameter.param_type_name == "option" or text not in parameter.opts:
                assert set(text.split()) <= found


@pytest.fixture
def long_names(tmp_path: Path) -> Path:
    path = tmp_path / "long"
    names = [f"model.transformer_layers.{layer}.self_attention.output_projection.weight_shard" for layer in range(3)]
    save({name: torch.arange(1000.0) for name in names}, storage_writer=streamxf.FileSystemWriter(path))
    return path


def test_names_in_tables_are_folded_behind_their_dots(long_names: Path):
    code, lines = shown("inspect", long_names)
    assert code == 0
    assert max(map(len, lines[1:])) <= 80  # the first has the path
    parts = [line.split()[0] for line in lines if line.strip().startswith(("model.", "output_", "weight_"))]
    assert (
        "".join(parts[: len(parts) // 3]) == "model.transformer_layers.0.self_attention.output_projection.weight_shard"
    )
    assert all(part.endswith((".", "_", "weight_shard")) for part in parts)


@pytest.mark.parametrize("columns", [20, 40])
def test_where_a_table_does_not_fit_each_row_is_a_paragraph(long_names: Path, columns: int):
    """Names stay whole then."""
    code, lines = shown("inspect", long_names, columns=columns)
    assert code == 0
    assert sum(line.endswith(".self_attention.output_projection.weight_shard") for line in lines) == 3
    assert (lines.count("  shape: 1000"), lines.count("  dtype: float32")) == (3, 3)


def test_a_listing_on_a_narrow_terminal(tmp_path: Path):
    with streamxf.CheckpointManager(tmp_path / "run") as manager:
        manager.save(5, {"w": torch.zeros(3)}, metrics={"loss": 0.25})
    code, lines = shown("list", tmp_path / "run", columns=40)
    assert code == 0
    assert {"step-5", "step: 5", "metrics: loss 0.25", "kind: own"} <= {line.strip() for line in lines}


def test_a_report_on_damage(run: Run, long_names: Path):
    flip_bit(long_names)
    code, lines = shown("verify", long_names)
    assert code == 1
    piped = run("verify", long_names).out
    # all but the seconds, which differ from run to run
    assert {word for word in piped.split() if not re.fullmatch(r"[0-9.]+", word)} <= words(lines)
    advice = f"save the rest with `streamxf salvage {long_names} TARGET`"
    assert all(len(line) <= 80 or " " not in line for line in lines)
    assert advice in piped
    assert advice in " ".join(" ".join(lines).split())


def test_an_error(tmp_path: Path):
    path = tmp_path / "a rather long name of a folder in which there is nothing at all"
    code, lines = shown("verify", path)
    assert code == 2
    assert len(lines) > 1
    assert f"there is no file or folder {str(path)!r}" in " ".join(" ".join(lines).split())


def test_what_was_written(tmp_path: Path):
    source = tmp_path / "model.safetensors"
    save_file({"weight": torch.zeros(10)}, source)
    target = tmp_path / ("a long name of a folder " * 4).strip()
    for arguments in (
        ["pack", source, target],
        ["transcode", target, tmp_path / "other"],
        ["unpack", target, tmp_path / "o.pt"],
    ):
        code, lines = shown(*arguments)
        assert code == 0
        assert all(len(line) <= 80 or " " not in line for line in lines)


def test_text_is_wrapped_at_a_terminal_alone(monkeypatch: pytest.MonkeyPatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "20")
    path = "/a/path/that-is-longer/than-a-line-is"
    text = f"three words and then {path} and more\n\nthe next line"
    assert wrapped(text, Terminal()).splitlines() == ["three words and then", path, "and more", "", "the next line"]
    assert wrapped(text, io.StringIO()) == text
