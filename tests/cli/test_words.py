"""What errors and reports advise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import save

from cli.command import Run


def test_a_load_that_fails_names_commands(run: Run, plain: Path, encrypted: Path, key_file: Path):
    done = run("diff", encrypted, plain, "--key", f"file:{key_file}")
    assert done.code == 1
    assert "leave the keys out" in done.err
    assert "keys=" not in done.err
    (plain / ".metadata").unlink()
    assert "`streamxf salvage --without-metadata`" in run("inspect", plain).err


def test_reports_name_commands_too(run: Run, plain: Path):
    (data,) = plain.glob("*.distcp")
    stored = bytearray(data.read_bytes())
    stored[len(stored) // 2] ^= 1
    data.write_bytes(stored)
    done = run("verify", plain)
    assert done.code == 1
    assert "save the rest with `streamxf salvage`" in " ".join(done.out.split())


def test_what_is_salvaged_replaces_nothing(run: Run, plain: Path, tmp_path: Path):
    assert run("salvage", plain, tmp_path / "rescued").code == 0
    done = run("salvage", plain, tmp_path / "rescued")
    assert done.code == 2
    assert done.err.strip().endswith("name another target")


def test_diff_says_how_one_of_two_is_opened(run: Run, plain: Path, encrypted: Path, key_file: Path):
    assert "--plain-a or --plain-b" in run("diff", encrypted, plain, "--key", f"file:{key_file}").err
    assert not run("diff", encrypted, plain, "--key", f"file:{key_file}", "--plain-b").err


@pytest.mark.parametrize(
    "command", ["clean {} --yes", "recipients {}", "rekey {} --key file:k --to file:k", "transcode {} to"]
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
        done = run(*command.format(place).split())
        assert done.code == 2
        assert named in done.err
        assert "delete the folder" not in done.err
    assert sorted(tmp_path.rglob("*")) == before
