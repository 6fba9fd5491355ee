"""``streamxf pack`` and ``streamxf transcode``."""

import os
import re
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

import streamxf
from tests.cli import preloaded
from tests.cli.command import Run
from tests.cli.conftest import STATE
from tests.cli.test_interrupts import interrupted

WEIGHTS = {f"layers.{n}.weight": torch.arange(200_000, dtype=torch.float32) * n for n in range(4)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of 3 MiB."""
    save_file(WEIGHTS, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def check(path: Path, keys: object = None) -> None:
    state = {name: torch.zeros(200_000) for name in WEIGHTS}
    load(state, storage_reader=streamxf.FileSystemReader(path, keys=keys))
    assert all(torch.equal(state[name], WEIGHTS[name]) for name in WEIGHTS)


def test_pack_says_what_it_wrote(run: Run, file: Path, tmp_path: Path):
    done = run.exits(0, "pack", file, tmp_path / "new", "--chain", "zstd+checksum", err="")
    assert "wrote 6 items in 1 file" in done.out
    assert "chain zstd:level=3+checksum" in done.out
    check(tmp_path / "new")
    assert run("verify", tmp_path / "new").code == 0


def test_pack_for_a_key_and_back(run: Run, file: Path, tmp_path: Path, key_file: Path, key: streamxf.Key):
    done = run("pack", file, tmp_path / "new", "--recipient", f"file:{key_file}", "--file-size", "1MB", "--json")
    assert done.code == 0
    assert (done.json["files"], done.json["kept_files"], len(done.json["save_ids"])) == (4, 0, 1)
    check(tmp_path / "new", key)
    back = tmp_path / "back.safetensors"
    assert run("unpack", tmp_path / "new", back, "--key", f"file:{key_file}").code == 0
    assert back.read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["pack", "plain", "full"], "replace it (--overwrite)"),
        (["unpack", "plain", "full.pt"], "replace it (--overwrite)"),
        (
            ["unpack", "plain", "new.safetensors"],
            "choose items (--only, --prefix), or leave objects out (--skip-objects)",
        ),
        (["transcode", "plain"], "replace the source (--in-place)"),
        (["transcode", "plain", "plain"], "; --in-place replaces the source"),
        (["transcode", "plain", "new", "--chain", "encrypt"], "those who may read (--recipient)"),
        (["salvage", "plain", "new", "--without-metadata", "--expect-save-id", "0" * 32], "--expect-save-id means"),
    ],
    ids=" ".join,
)
def test_errors_speak_of_options(
    run: Run, plain: Path, tmp_path: Path, command: list[str], named: str, monkeypatch: pytest.MonkeyPatch
):
    """And not of the library's arguments."""
    monkeypatch.chdir(tmp_path)
    save(dict(STATE), storage_writer=streamxf.FileSystemWriter("full"))
    Path("full.pt").touch()
    done = run.exits(2, *command)
    assert named in done.err
    assert not re.search(r"\((overwrite|only|prefix|in_place|recipients)|[a-z]_[a-z]", done.err)


def test_transcode_in_place(run: Run, plain: Path, key_file: Path, key: streamxf.Key):
    done = run("transcode", plain, "--in-place", "--chain", "lz4+encrypt", "--recipient", f"file:{key_file}", "--json")
    assert done.code == 0
    assert done.json["target"] == str(plain)
    state = {"layer.weight": torch.zeros(60, 100), "step": 0}
    load(state, storage_reader=streamxf.FileSystemReader(plain, keys=key))
    assert torch.equal(state["layer.weight"], STATE["layer.weight"])
    assert "(--recipient)" in run.exits(2, "transcode", plain, "--in-place", "--key", f"file:{key_file}").err


@pytest.mark.slow
def test_an_interrupt_leaves_nothing_half_published_and_the_next_call_goes_on(run: Run, tmp_path: Path):
    generator = torch.Generator().manual_seed(0)
    state = {f"layers.{n}.weight": torch.randn(256, 1024, generator=generator) for n in range(8)}
    save(state, storage_writer=streamxf.FileSystemWriter(tmp_path / "old"))
    new = tmp_path / "new"
    command = ["transcode", tmp_path / "old", new, "--chain", "zstd:level=19+checksum", "--file-size", "1MiB"]
    code, shown = interrupted(command, lambda _: any(new.glob("*.slip")))
    assert code == 130
    assert shown.startswith("streamxf transcode: interrupted; nothing was published; ")
    assert "; finished data files, which stay: " in shown
    assert shown.endswith(" of 8; repeat it to resume\n")
    for known in (["verify", new], ["clean", new, "--yes"], ["inspect", new], ["recipients", new]):
        found = run.exits(2, *known)
        assert "there is no checkpoint here yet" in found.err
        assert "interrupted" in found.err
        assert "Repeat it to resume" in found.err
    finished = {path.name.removesuffix(".slip") for path in new.glob("*.slip")}
    assert {path.name for path in new.glob("*.distcp")} == finished
    assert not (new / ".metadata").exists()
    assert run.exits(0, *command, "--json").json["kept_files"] == len(finished)
    target = {name: torch.zeros(256, 1024) for name in state}
    load(target, storage_reader=streamxf.FileSystemReader(new))
    assert all(torch.equal(target[name], state[name]) for name in state)


@pytest.mark.slow
def test_an_interrupt_before_any_file_is_finished_says_that_the_next_call_starts_over(tmp_path: Path):
    save_file({"w": torch.randn(2048, 2048)}, tmp_path / "a.safetensors")
    command = ["pack", tmp_path / "a.safetensors", tmp_path / "new", "--chain", "zstd:level=19"]
    code, shown = interrupted(command, lambda _: any((tmp_path / "new").glob("*.distcp*")), wait=0.1)
    assert code == 130
    assert "no data file is finished: repeating it starts over" in shown


@pytest.mark.slow
def test_verify_and_clean_recognize_what_an_interrupt_in_place_left(run: Run, tmp_path: Path):
    """The old checkpoint is whole; what is finished of the new one can be used or removed."""
    generator = torch.Generator().manual_seed(0)
    state = {f"layers.{n}.weight": torch.randn(256, 1024, generator=generator) for n in range(8)}
    path = tmp_path / "checkpoint"
    save(state, storage_writer=streamxf.FileSystemWriter(path))
    command = ["transcode", path, "--in-place", "--chain", "zstd:level=19+checksum", "--file-size", "1MiB"]
    code, _ = interrupted(command, lambda _: any(path.glob("*.slip")))
    assert code == 130
    count = len(list(path.glob("*.slip")))
    said = f"interrupted: {count} of the data files left over"
    for known in (["verify", path], ["clean", path, "--dry-run"]):
        found = run.exits(0, *known)
        assert said in found.out
        assert "repeat it to resume" in found.out
    assert run("clean", path, "--yes").code == 0
    assert said not in run("verify", path).out


KILLED = """
import os, signal, sys
from streamxf.checkpoint import publish
from streamxf.cli.__main__ import main
publish.remove_leftovers = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
main(sys.argv[1:])
"""


def test_what_was_killed_once_it_was_published_is_not_interrupted(run: Run, tmp_path: Path):
    path = tmp_path / "checkpoint"
    save({"weight": torch.randn(512, 1024)}, storage_writer=streamxf.FileSystemWriter(path))
    done = preloaded.script(KILLED, "transcode", path, "--in-place", "--chain", "zstd+checksum")
    assert done.returncode == -9
    assert list(path.glob("*.slip"))
    for known in (["verify", path], ["clean", path, "--dry-run"]):
        found = run.exits(0, *known)
        assert ".slip" in found.out
        assert "interrupted" not in found.out
    assert run("clean", path, "--yes").code == 0
    assert len(list(path.iterdir())) == 2
    assert run("verify", path).code == 0


def test_paths_may_hold_any_bytes(run: Run, plain: Path, tmp_path: Path):
    try:
        source = plain.rename(tmp_path / os.fsdecode(b"odd-\xff"))
    except OSError:
        pytest.skip("this file system takes no such name")
    target = tmp_path / os.fsdecode(b"new-\xfe")
    run.exits(0, "transcode", source, target, "--chain", "zstd", err="")
    assert f"checkpoint_id={str(target)!r}" in repr(FileSystemReader(target).read_metadata().storage_meta)
    for command in (["verify", target], ["diff", source, target], ["rename", target, "layer.*=l.*"]):
        assert run(*command).code == 0
    assert run("transcode", target, "--in-place", "--chain", "lz4").code == 0
    assert run("unpack", target, f"{target}.pt").code == 0


def test_a_folder_on_the_command_line(run: Run, file: Path, tmp_path: Path):
    hub = tmp_path / "hub"
    hub.mkdir()
    file.rename(hub / "model.safetensors")
    (hub / "1_Pooling").mkdir()
    (hub / "1_Pooling" / "config.json").write_text("{}")
    (hub / "zeros").symlink_to("/dev/zero")
    done = run.exits(0, "pack", hub, tmp_path / "packed")
    assert "left out: zeros (a link, but not to a regular file)" in done.out
    assert run("unpack", tmp_path / "packed", tmp_path / "x.gguf").code == 2
    assert run("unpack", tmp_path / "packed", tmp_path / "back").code == 0
    assert (tmp_path / "back" / "1_Pooling" / "config.json").read_text() == "{}"
    (hub / "1_Pooling" / "config.json").write_text("[]")
    found = run.exits(1, "diff", tmp_path / "packed", hub)
    assert "streamxf.source/1_Pooling/config.json" in found.out
    assert "not compared: " in found.out


@pytest.mark.parametrize(("command", "code"), [("inspect q.pt", 0), ("pack q.pt packed", 0), ("diff q.pt q.pt", 2)])
def test_what_torch_says_of_quantized_tensors_is_nothing_of_the_commands(tmp_path: Path, command: str, code: int):
    with warnings.catch_warnings(action="ignore"):
        torch.save({"q": torch.quantize_per_tensor(torch.randn(4), 0.1, 1, torch.qint8)}, tmp_path / "q.pt")
    done = preloaded.run(command.split(), cwd=tmp_path)  # in a process of its own, since torch says it once
    assert (done.returncode, done.stderr) == (code, "")
