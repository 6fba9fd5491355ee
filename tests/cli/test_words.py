"""What errors and reports advise."""

import re
import shlex
import shutil
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint import FileSystemWriter as StockWriter
from torch.distributed.checkpoint.state_dict_saver import save

import streamxf
from streamxf import Key
from streamxf.cli import show
from streamxf.keys import write_key
from tests.altered import flip
from tests.cli.command import Done, Run


def test_a_load_that_fails_names_commands(run: Run, plain: Path, encrypted: Path, key_file: Path):
    done = run.exits(2, "diff", encrypted, plain, "--key", f"file:{key_file}")
    assert "leave the keys out" in done.err
    assert "keys=" not in done.err
    (plain / ".metadata").unlink()
    assert "`streamxf salvage --without-metadata`" in run("inspect", plain).err


@pytest.mark.parametrize("left", ["cut", "nothing"])
def test_the_advised_salvage_is_the_one_that_works(run: Run, plain: Path, tmp_path: Path, left: str):
    place = plain.rename(tmp_path / "a name with blanks")
    metadata = place / ".metadata"
    metadata.write_bytes(metadata.read_bytes()[:-100]) if left == "cut" else metadata.unlink()
    (advice,) = re.findall(r"^next: .*`streamxf (.*)`$", run.exits(1, "verify", place).out, re.MULTILINE)
    assert run("verify", place, "--json").json["advice"].endswith(f"`streamxf {advice}`")
    target = tmp_path / "rescued"
    done = run(*(str(target) if word == "TARGET" else word for word in shlex.split(advice)))
    assert "3 items salvaged, 0 damaged, 0 missing" in done.out
    assert run("verify", target, "--json").json["advice"] == ""


def test_of_several_places_each_has_its_advice(run: Run, plain: Path, tmp_path: Path):
    shutil.copytree(plain, tmp_path / "other")
    shutil.copytree(plain, tmp_path / "whole")
    (tmp_path / "other" / ".metadata").write_bytes(b"")
    flip(*plain.glob("*.distcp"))
    (last,) = (line for line in run("verify", plain, tmp_path / "other", tmp_path / "whole").out.splitlines()[-1:])
    assert f"`streamxf salvage {plain} TARGET`, `" in last
    assert last.count("restore what is damaged") == 1
    assert last.endswith(f"`streamxf salvage {tmp_path / 'other'} TARGET --without-metadata`")
    assert "whole" not in last


def test_what_is_salvaged_replaces_nothing(run: Run, plain: Path, tmp_path: Path):
    done = run("salvage", plain, tmp_path / "rescued")
    assert (done.code, "nothing was written" in done.out) == (0, False)
    assert run.exits(2, "salvage", plain, tmp_path / "rescued").err.strip().endswith("name another target")


def test_a_salvage_that_finds_nothing_says_so(run: Run, plain: Path, tmp_path: Path):
    for data in plain.glob("*.distcp"):
        data.write_bytes(b"")
    assert f"nothing was written to {tmp_path / 'rescued'}" in run("salvage", plain, tmp_path / "rescued").out


@pytest.mark.parametrize(
    "command", ["clean {} --yes", "recipients {}", "rekey {} --key file:k --recipient file:k", "transcode {} to"]
)
def test_where_only_checkpoints_inside_will_do_they_are_named(
    run: Run, tmp_path: Path, key_file: Path, monkeypatch: pytest.MonkeyPatch, command: str
):
    monkeypatch.chdir(tmp_path)
    key_file.rename("k")
    for step in (10, 20):
        save({"weight": torch.ones(3)}, checkpoint_id=f"run/step-{step}")
    Path("hf/checkpoint-12").mkdir(parents=True)
    torch.save({}, "hf/checkpoint-12/optimizer.pt")
    before = sorted(tmp_path.rglob("*"))
    for place, named in {
        "run": "2 checkpoints in it: step-10, step-20. Name one of them",
        "hf": "1 checkpoint in it: checkpoint-12. Name one of them",
        "hf/checkpoint-12": "not a checkpoint of DCP; it has files of other formats: optimizer.pt",
    }.items():
        done = run.exits(2, *command.format(place).split())
        assert named in done.err
        assert "delete the folder" not in done.err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("list run --run-id deadbeef", "--run-id 'deadbeef': "),
        ("forget run --keep last=0 --yes", "a number from 1, or unlimited (or -1)"),
        ("forget run --yes", "pass --keep, --key or --dry-run"),
        ("forget run --keep last=1 --extras del", "'del' is not one of "),
        ("verify run/step-10 --key file:signer", "--key number 1: "),
        ("verify run/step-10 --key me", "key is 32 bytes, not a string; a string is a location"),
    ],
)
def test_errors_speak_of_options_and_not_of_python(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, says: str
):
    monkeypatch.chdir(tmp_path)
    save({"weight": torch.ones(3)}, checkpoint_id="run/step-10")
    write_key("signer", streamxf.SigningKey.generate())
    done = run.exits(2, *command.split())
    assert says in done.err
    words = ("list_checkpoints", "keep=", "signer=", "keys[", "KeyRing", "fromhex", "Value error")
    assert not [word for word in words if word in done.err]


PYTHON = ("require=", "FileSystemReader(", "safe_globals", "weights_only", "streamxf.VerifyKey", "=True", "=False")


def says(done: Done) -> str:
    text = " ".join(f"{done.out} {done.err}".split())
    assert not [word for word in PYTHON if word in text], text
    return text


@pytest.fixture
def unpublished(tmp_path: Path, key: Key, key_file: Path) -> Path:
    """An encrypted checkpoint of torch's own writer, beside a newer one in a run."""
    for step in (10, 20):
        writer = StockWriter(tmp_path / "run" / f"step-{step}", _extensions=[streamxf.Encrypt(key)])
        save({"weight": torch.ones(3)}, storage_writer=writer)
    return tmp_path / "run" / "step-10"


def test_levels_of_protection_are_options(run: Run, unpublished: Path, key_file: Path):
    key = ("--key", f"file:{key_file}")
    for command in ("cat {} weight", "clean {} --yes", "inspect {}", "transcode {} x --chain zstd"):
        words = command.format(unpublished).split()
        assert "--require 'encrypted'" in says(run.exits(1, *words, *key))
    assert run("cat", unpublished, "weight", *key, "--require", "bound").code == 1
    run.exits(0, "cat", unpublished, "weight", "--text", *key, "--require", "encrypted", out="1.0 1.0 1.0\n")
    assert run("clean", unpublished, *key, "--require", "encrypted", "--yes").code == 0
    for command in ("latest {}", "latest {} --json", "forget {} --keep last=1 --yes"):
        assert "does not end in an index" in says(run(*command.format(unpublished.parent).split(), *key))
    assert "has no index" in says(run("recipients", unpublished, *key))


def test_what_torch_wrote_needs_no_stock(run: Run, tmp_path: Path):
    save({"w": torch.ones(2)}, storage_writer=StockWriter(tmp_path), no_dist=True)
    assert "torch reads it as it is" in says(run("stock", tmp_path))
    assert "has no index" in says(run("rename", tmp_path, "w=v"))


def test_a_file_has_no_level_of_protection(run: Run, tmp_path: Path, key_file: Path):
    with streamxf.open(tmp_path / "file", "wb") as file:
        file.write(b"bytes")
    done = run.exits(2, "cat", tmp_path / "file", "--key", f"file:{key_file}", "--require", "encrypted", out="")
    assert "--require is for items of checkpoints" in done.err


def test_keys_of_the_environment_are_unset(run: Run, plain: Path, key_file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STREAMXF_KEYS", f"file:{key_file}")
    assert "unset STREAMXF_KEYS if you know that it was not encrypted" in says(run.exits(1, "inspect", plain))


@pytest.mark.filterwarnings("ignore:readers will refuse")
def test_objects_that_need_more_than_torch_allows(run: Run, tmp_path: Path):
    for name in "ab":
        state = {"options": Fraction(1, 3), "weight": torch.ones(3)}
        save(state, storage_writer=streamxf.FileSystemWriter(tmp_path / name))
    for more in ([], ["--json"]):
        done = run("diff", tmp_path / "a", tmp_path / "b", *more)
        assert "the object was not loaded: " in says(done)
        assert "fractions.Fraction" in says(done)


def test_a_signer_is_no_symmetric_key(run: Run, plain: Path, key_file: Path):
    done = run.exits(2, "verify", plain, "--key", f"file:{key_file}", "--trust", f"file:{key_file}")
    assert "--trust takes a location that leads to a VerifyKey ('file:trainer.pub'), or several" in says(done)
    done = run("transcode", plain, "new", "--recipient", f"file:{key_file}", "--signer", f"file:{key_file}")
    assert says(done).endswith("; --signer takes a location that leads to a SigningKey ('file:trainer.sign')")


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "width", lambda: 40)


def test_a_narrow_terminal_has_the_heading_of_what_is_named(narrow: None, capsys: pytest.CaptureFixture[str]):
    table = show.TextTable("largest", "dtype", "shape")
    table.row("w" * 30, "float32", "1000000000 x 10")
    table.print()
    assert capsys.readouterr().out.split()[:2] == ["largest", "w" * 30]


def test_cells_are_folded_where_that_is_enough(narrow: None, capsys: pytest.CaptureFixture[str]):
    table = show.TextTable("name", "size", "note", right=["size"], fold=["name", "note"])
    table.row("layers.10.attention.weight", "1.0 MiB", "a few words")
    table.row("\u6743" * 8, "12 bytes", "")  # letters that take two columns
    table.print()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert max(len(line) + sum(letter == "\u6743" for letter in line) for line in lines) <= 40
    assert [line.split()[0] for line in lines if "." in line][:2] == ["layers.10.", "attention.weight"]
    ends = {line.index("MiB") + 3 for line in lines if "MiB" in line}
    assert ends == {lines[0].index("size") + 4}


@pytest.mark.parametrize(("columns", "headings"), [(60, "name memory note size"), (40, "name note size")])
def test_a_narrow_terminal_leaves_out_what_it_can_spare(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int, headings: str
):
    monkeypatch.setattr(show, "width", lambda: columns)
    table = show.TextTable("name", "memory", "note", "size", spare=["memory"])
    table.row("w" * 20, "1,000,000.0 MiB", "words", "12 bytes")
    table.print()
    assert capsys.readouterr().out.splitlines()[1].split() == headings.split()


def test_of_a_trainers_folder_a_file_in_a_checkpoint_is_no_other(run: Run, tmp_path: Path):
    checkpoint = tmp_path / "hf" / "checkpoint-12"
    checkpoint.mkdir(parents=True)
    save_file({"weight": torch.ones(3)}, checkpoint / "model.safetensors")
    torch.save({}, checkpoint / "optimizer.pt")
    assert "has 1 checkpoint in it: checkpoint-12. Name one" in run("inspect", tmp_path / "hf").err
