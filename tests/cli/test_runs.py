"""``streamxf list``, ``latest`` and ``forget``."""

import math
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict_saver import save

import streamxf
from streamxf import Key, Retention
from streamxf.format.run import RunFacts
from streamxf.keys import PrivateKey, SigningKey, write_key
from streamxf.manager.holds import hold
from streamxf.storage import local
from tests.cli.command import Run
from tests.cli.conftest import flip_bit
from tests.cli.terminal import at_terminal

DAY = 86400
RUN_IS = "the run is the folder that it lies in: `streamxf list"
ID = "0123456789abcdef" * 2
RULES = Retention(last=1, every=200)
LOSSES = {100: 0.5, 200: 0.25, 300: math.nan, 1000: 0.75}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run: four steps, a day apart, and a save that was killed."""
    return made_run(tmp_path_factory.mktemp("made") / "run")


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "run")


def made_run(folder: Path, run: str = ID, **options: Any) -> Path:
    for number, (step, loss) in enumerate(LOSSES.items()):
        writer = streamxf.FileSystemWriter(folder / f"step-{step}", **options)
        writer.run_facts = RunFacts(run, f"step-{step}", step, 1.7e9 + number * DAY, RULES.to_json(), {"loss": loss})
        save({"weight": torch.arange(6000.0)}, storage_writer=writer)
    shutil.copytree(folder / "step-1000", folder / "step-1100")
    (folder / "step-1100" / ".metadata").unlink()
    return folder


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))


# -- list ------------------------------------------------------------------------------------------


def test_list(run: Run, folder: Path):
    done = run.exits(0, "list", folder, err="")
    lines = [line.split() for line in done.out.splitlines() if "step-" in line]
    assert [line[0] for line in lines] == [f"step-{step}" for step in (*LOSSES, 1100)]
    assert [line[1] for line in lines] == ["100", "200", "300", "1,000", "1,100"]
    assert [line[-3:] for line in lines[:4]] == [["loss", f"{loss:.4g}", "own"] for loss in LOSSES.values()]
    assert lines[4][-1] == "unfinished"
    assert "4 complete checkpoints, " in done.out


def test_list_as_json(run: Run, folder: Path):
    with hold(folder / "step-200"):
        facts = run("list", folder, "--json").json
    size = sum(file.stat().st_size for file in (folder / "step-100").iterdir())
    first, *_, killed = facts["checkpoints"]
    assert len(first.pop("save_id")) == 32
    assert first == {
        "name": "step-100", "step": 100, "time": 1.7e9, "bytes": size, "metrics": {"loss": 0.5},
        "kind": "own", "run": ID,
    }  # fmt: skip
    assert [each["metrics"] for each in facts["checkpoints"][1:]] == [
        {"loss": 0.25},
        {"loss": None},
        {"loss": 0.75},
        {},
    ]
    assert killed["kind"] == "unfinished"
    assert "bytes" not in killed
    assert list(facts["in_use"]) == ["step-200"]


def test_list_shows_kinds_links_and_notes(run: Run, folder: Path, plain: Path):
    shutil.copytree(folder / "step-100", folder / "step-2000")
    shutil.copytree(plain, folder / "step-3000")
    (folder / "step-4000").symlink_to(plain)
    done = run("list", folder)
    lines = {line.split()[0]: " ".join(line.split()) for line in done.out.splitlines() if "step-" in line}
    assert done.code == 0
    assert lines["step-100"].endswith(" own")
    assert lines["step-2000"].endswith(" foreign; a copy of step-100")
    assert lines["step-3000"].endswith(" unclaimed")
    found = {each["name"]: each for each in run("list", folder, "--json").json["checkpoints"]}
    assert [found[name]["kind"] for name in ("step-2000", "step-3000")] == ["foreign", "unclaimed"]
    assert found["step-2000"]["note"] == "a copy of step-100"
    assert found["step-4000"]["link"] == str(plain)


def test_list_shows_what_is_damaged_below_the_table(run: Run, folder: Path):
    metadata = folder / "step-200" / ".metadata"
    metadata.write_bytes(metadata.read_bytes()[:-100])
    (folder / "step-300" / ".metadata").write_bytes(b"")
    done = run("list", folder)
    lines = {line.split()[0]: line.split() for line in done.out.splitlines() if line.startswith(" step-")}
    assert done.code == 0
    assert [lines[f"step-{step}"][-1] for step in (100, 200, 300)] == ["own", "damaged", "damaged"]
    assert max(map(len, lines["step-200"])) < 20
    *_, total, first, second = done.out.splitlines()
    assert total.startswith("2 complete checkpoints, ")
    assert first.startswith("damaged: step-200: MetadataError: ")
    assert second.startswith("damaged: step-300: MetadataError: ")
    found = {each["name"]: each for each in run("list", folder, "--json").json["checkpoints"]}
    assert found["step-200"]["kind"] == "damaged"
    assert "MetadataError" in found["step-200"]["note"]
    assert "note" not in found["step-100"]


def test_list_names_the_folders_that_it_leaves_out(run: Run, folder: Path):
    shown = run("list", folder).out
    try:
        for name in (b"step-\xff-7", b".hidden-\xff-8", b"other-\xff"):
            (folder / os.fsdecode(name)).mkdir()
    except OSError:
        pytest.skip("this file system takes no such name")
    done = run("list", folder)
    assert (done.code, len(done.out)) == (0, len(shown))
    text = "1 folder left out: the names are not UTF-8; rename step-\\udcff-7 to list what is there"
    assert done.err == f"streamxf: warning: {text}\n"


def test_list_of_one_of_several_runs(run: Run, folder: Path, tmp_path: Path):
    other = made_run(tmp_path / "other", "ab" * 16)
    (other / "step-100").rename(folder / "step-5000")
    shutil.copytree(other / "step-200", folder / "step-200", dirs_exist_ok=True)
    found = run("list", folder, "--run-id", ID, "--json").json["checkpoints"]
    assert [each["kind"] for each in found] == ["own", "foreign", "own", "own", "unfinished", "foreign"]
    assert run("latest", folder).code == 2
    assert run("latest", folder, "--run-id", ID).out == f"{folder}/step-1000\n"
    assert run("list", folder, "--run-id", "7").code == 2


def test_list_says_who_reads(run: Run, folder: Path):
    with hold(folder / "step-200"):
        (line,) = (line for line in run("list", folder).out.splitlines() if "step-200" in line)
    assert "own; " in line
    assert " reads it, since " in line


def test_list_of_nothing(run: Run, tmp_path: Path, plain: Path):
    (tmp_path / "empty").mkdir()
    assert run("list", tmp_path / "empty").out == "there are no checkpoints\n"
    assert run("list", tmp_path / "empty", "--json").json["checkpoints"] == []
    assert run("list", tmp_path / "nothing").code == 2
    assert run("list", plain / ".metadata").code == 2


def test_a_name_cannot_steer_the_terminal(run: Run, folder: Path):
    (folder / "step-100").rename(folder / "step-\x1b[31m100")
    assert "\x1b" not in run("list", folder).out + run("forget", folder, "-l1", "--dry-run").out
    other = folder / "other"
    save({"w": torch.ones(2)}, storage_writer=streamxf.FileSystemWriter(other / "step-1\n\x1b[31m"))
    assert run("latest", other).out == f"{other}/step-1\\n\\x1b[31m\n"


def checkpoint_of_a_framework(folder: Path, kind: str) -> None:
    """What the Trainer, under FSDP too, and Lightning save, and what some framework has committed."""
    folder.mkdir(parents=True)
    if kind == "committed":
        with streamxf.CheckpointManager(folder.parent) as manager:
            Path(manager.begin(12), "state").touch()
            manager.commit(12)
        return
    if kind == "FSDP":
        for part in ("pytorch_model_fsdp_0", "optimizer_0"):
            save({"weight": torch.ones(3)}, checkpoint_id=folder / part)
        torch.save({}, folder / "scheduler.pt")
    elif kind == "Lightning":
        torch.save({}, folder / "lightning.ckpt")
    else:
        save_file({"weight": torch.ones(3)}, folder / "model.safetensors")


@pytest.mark.parametrize("command", ["list", "latest", "forget --keep last=1 --yes", "forget"])
@pytest.mark.parametrize("kind", ["managed", "stock", "Trainer", "FSDP", "Lightning", "committed"])
def test_of_a_checkpoint_its_run_is_named(run: Run, folder: Path, tmp_path: Path, kind: str, command: str):
    checkpoint = folder / "step-1000" if kind == "managed" else tmp_path / "runs of mine" / "step-12"
    if kind == "stock":
        save({"weight": torch.ones(3)}, checkpoint_id=checkpoint)
    elif kind != "managed":
        checkpoint_of_a_framework(checkpoint, kind)
    name, *options = command.split()
    done = run.exits(2, name, checkpoint, *options, out="")
    what = "this is a checkpoint, and not a run;"
    if kind == "Lightning":  # its folder may be the run's, too, with a file for each checkpoint
        what = "there are no folders of checkpoints here, only files (lightning.ckpt); if they are a checkpoint,"
    assert f"{what} {RUN_IS} {shlex.quote(str(checkpoint.parent))}`" in done.err


def test_a_run_may_have_other_files_beside_its_checkpoints(run: Run, folder: Path, tmp_path: Path):
    """The Trainer puts the model there in the end."""
    for kind in ("Trainer", "Lightning"):
        checkpoint_of_a_framework(tmp_path / kind / "checkpoint-12", kind)
        shutil.copytree(tmp_path / kind / "checkpoint-12", tmp_path / kind, dirs_exist_ok=True)
        assert run("list", tmp_path / kind).code == 0
    torch.save({}, folder / "scheduler.pt")
    run.exits(0, "latest", folder, out=f"{folder}/step-1000\n", err="")


def test_list_shows_what_latest_takes_of_another_format(run: Run, tmp_path: Path):
    for name in ("run/checkpoint-12", "run/checkpoint-7"):
        checkpoint_of_a_framework(tmp_path / name, "Trainer")
    (tmp_path / "run" / "logs-1").mkdir()
    found = run("list", tmp_path / "run", "--json").json["checkpoints"]
    assert [(each["name"], each["kind"], each["note"]) for each in found] == [
        ("checkpoint-7", "unclaimed", "Hugging Face"),
        ("checkpoint-12", "unclaimed", "Hugging Face"),
    ]
    assert run("latest", tmp_path / "run").out == f"{tmp_path}/run/checkpoint-12\n"


# -- latest ----------------------------------------------------------------------------------------


def test_latest_passes_over_what_is_damaged(run: Run, folder: Path):
    flip_bit(folder / "step-1000")
    (folder / "step-300" / ".metadata").write_bytes(b"")
    done = run.exits(0, "latest", folder, out=f"{folder}/step-200\n")
    assert "passed over: step-1000: verify found damage: " in done.err
    assert "passed over: step-300: " in done.err
    facts = run("latest", folder, "--json", "--verify", "whole").json
    assert facts["latest"] == f"{folder}/step-200"
    assert list(facts["skipped"]) == ["step-1000", "step-300"]
    assert run("latest", folder, "--verify", "none").out == f"{folder}/step-1000\n"


def test_latest_of_none(run: Run, folder: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    done = run.exits(1, "latest", tmp_path / "empty", out="")
    assert done.err == f"streamxf latest: {tmp_path}/empty: there is no complete checkpoint\n"
    for step in LOSSES:
        flip_bit(folder / f"step-{step}")
    done = run("latest", folder, "--json")
    assert (done.code, done.json["latest"], len(done.json["skipped"])) == (1, None, 4)
    assert done.err.endswith("no complete checkpoint passes the check\n")


def test_latest_with_a_key(run: Run, tmp_path: Path, encrypted: Path, key_file: Path):
    shutil.copytree(encrypted, tmp_path / "run" / "step-1")
    assert run("latest", tmp_path / "run", "--key", f"file:{key_file}").out == f"{tmp_path}/run/step-1\n"
    done = run("latest", tmp_path / "run")
    assert (done.code, done.out) == (2, "")  # a key that is missing is no damage
    assert "key" in done.err
    assert run("latest", tmp_path / "run", "--verify", "none").out == f"{tmp_path}/run/step-1\n"
    write_key(tmp_path / "other.key", Key.generate())
    done = run.exits(1, "latest", tmp_path / "run", "--key", f"file:{tmp_path}/other.key", out="")
    assert "passed over: step-1: " in done.err


def test_latest_gives_each_reason_once(run: Run, tmp_path: Path):
    reader = PrivateKey.generate()
    write_key(tmp_path / "reader.key", reader)
    made_run(tmp_path / "run", chain=[streamxf.Encrypt(reader.public, signer=SigningKey.generate())])
    done = run.exits(1, "latest", tmp_path / "run", "--key", f"file:{tmp_path}/reader.key", out="")
    first, second = done.err.splitlines()
    assert first.startswith("streamxf: warning: passed over: step-1000, step-300, step-200, step-100: not verified: ")
    assert first.endswith("; if you trust that writer, pass the signer's public key (--trust)")
    assert second.endswith("no complete checkpoint passes the check")
    done = run(
        "rename", tmp_path / "run" / "step-100", "weight=w", "--key", f"file:{tmp_path}/reader.key", "--allow-unsigned"
    )
    assert ", and has to be signed again (--signer) [file " in done.err


def test_latest_with_the_best_value(run: Run, folder: Path):
    assert run("latest", folder, "--best", "loss").out == f"{folder}/step-200\n"
    assert run("latest", folder, "--best", "loss:max").out == f"{folder}/step-1000\n"
    flip_bit(folder / "step-200")
    done = run.exits(0, "latest", folder, "--best", "loss:min", out=f"{folder}/step-100\n")
    assert "passed over: step-200: " in done.err
    done = run.exits(1, "latest", folder, "--best", "los", out="")
    assert "no complete checkpoint with a value of 'los'" in done.err


def test_latest_where_each_rank_has_metadata_of_its_own(run: Run, tmp_path: Path):
    writer = streamxf.FileSystemWriter(tmp_path / "run" / "step-1")
    save({"weight": torch.arange(10.0)}, storage_writer=writer, use_collectives=False)
    assert run("latest", tmp_path / "run").code == 1
    assert run("latest", tmp_path / "run", "--ranks", "1").out == f"{tmp_path}/run/step-1\n"


def test_a_path_cannot_steer_the_terminal(run: Run, plain: Path, tmp_path: Path):
    shutil.copytree(plain, tmp_path / "run" / "\x1b[31m1")
    run.exits(0, "latest", tmp_path / "run", out=f"{tmp_path}/run/\\x1b[31m1\n")


# -- forget ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "stay"),
    [
        *[("--keep last=2", [300, 1000]), ("--keep last=1", [1000]), ("--keep last=unlimited", [100, 200, 300, 1000])],
        *[("--keep hourly=2", [300, 1000]), ("--keep daily=3", [200, 300, 1000])],
        *[("--keep daily=5", [100, 200, 300, 1000]), ("--keep weekly=1", [1000]), ("--keep monthly=1", [1000])],
        *[("--keep yearly=1", [1000]), ("--keep yearly=2", [100, 1000]), ("--max-age 1d", [300, 1000])],
        *[("--max-age 30h", [300, 1000]), ("--keep last=3 --max-age 36h", [300, 1000])],
        *[("--max-age 1W", [100, 200, 300, 1000]), ("--keep every=100", [100, 200, 300, 1000])],
        *[("--keep every=200", [200, 1000]), ("--keep step=100,step=300", [100, 300, 1000])],
        *[("--keep best=1 --metric loss", [200, 1000]), ("--keep best=1 --metric loss:max", [1000])],
        *[("--keep best=2 --metric loss --keep last=2", [100, 200, 300, 1000]), ("--max-size 1B", [1000])],
        *[("--max-size 2TB", [100, 200, 300, 1000]), ("--max-size 1B --keep step=100", [100, 1000])],
        *[("--abandoned", [100, 200, 300, 1000]), ("--abandoned --keep last=1", [1000])],
    ],
)
def test_each_option(run: Run, folder: Path, arguments: str, stay: list[int]):
    words = arguments.split()
    facts = run("forget", folder, *words, "--dry-run", "--json").json
    assert list(facts["reasons"]) == [f"step-{step}" for step in stay]
    assert all(facts["reasons"].values())
    assert steps(folder) == [*LOSSES, 1100]
    assert run.exits(0, "forget", folder, *words, "--yes", "--json").json == facts | {"dry_run": False}
    assert steps(folder) == [*stay, 1100]
    assert run("forget", folder, *words, "--yes", "--json").json["removed"] == []


def test_what_it_prints(run: Run, folder: Path):
    rules = ["--keep", "last=1,best=1", "--metric", "loss"]
    done = run.exits(0, "forget", folder, *rules, "--yes", err="")
    first, *lines = done.out.splitlines()
    assert first.startswith("removed 2 checkpoints, ")
    assert lines == [
        "removed: step-100",
        "removed: step-300",
        "kept: step-200: best 1 by loss",
        "kept: step-1000: last 1",
    ]


def test_without_a_rule_those_of_the_job_are_shown(run: Run, folder: Path):
    done = run.exits(0, "forget", folder, err="")
    assert done.out.splitlines()[:3] == [
        "the job's own rules: last=1, every=200",
        *run("forget", folder, "--keep", "last=1,every=200", "--dry-run").out.splitlines()[:2],
    ]
    assert run("forget", folder, "--json").json["removed"] == ["step-100", "step-300"]
    assert steps(folder) == [*LOSSES, 1100]


def test_without_keys_anybody_can_have_written_these(run: Run, folder: Path):
    done = run.exits(2, "forget", folder, "--yes")
    assert "rules recorded in a checkpoint are not trusted" in " ".join(done.err.split())
    assert steps(folder) == [*LOSSES, 1100]


def test_with_keys_those_of_the_job_are_followed(run: Run, tmp_path: Path, key: Key, key_file: Path):
    folder = made_run(tmp_path / "run", chain="zstd+encrypt", keys=key)
    planted = streamxf.FileSystemWriter(folder / "step-9000")
    planted.run_facts = RunFacts(ID, "step-9000", 9000, 1.7e9, Retention(last=1).to_json())
    save({"weight": torch.zeros(1)}, storage_writer=planted)
    done = run("forget", folder, "--yes", "--key", f"file:{key_file}", "--json")
    assert (done.code, done.json["removed"]) == (0, ["step-100", "step-300"])
    (reason,) = done.json["reasons"]["step-9000"]
    assert reason.startswith("not verified: the checkpoint is not encrypted")
    done = run("forget", folder, "--keep", "last=2", "--yes", "--key", f"file:{key_file}", "--json")
    assert done.json["removed"] == [], "explicit rules win"
    rules = ["--keep", "last=1", "--yes", "--run-id", ID]
    assert run("forget", folder, *rules, "--key", f"file:{key_file}", "--json").json["removed"] == ["step-200"]
    done = run("forget", folder, "--yes", "--unverified", "--key", f"file:{key_file}")
    assert done.code == 2, "rules are never believed unverified"


def test_without_any_rule_it_refuses(run: Run, tmp_path: Path, plain: Path):
    shutil.copytree(plain, tmp_path / "run" / "step-1")
    for arguments in ([], ["--dry-run"]):
        done = run.exits(2, "forget", tmp_path / "run", *arguments)
        assert "nothing says what is to stay" in " ".join(done.err.split())


@pytest.mark.parametrize(("extras", "stays"), [("keep", True), ("remove", False)])
def test_other_files_in_its_folder(run: Run, folder: Path, extras: str, stays: bool):
    (folder / "step-100" / "notes.txt").write_text("mine")
    assert run("forget", folder, "--keep", "last=3", "--extras", extras, "--yes").code == 0
    assert (folder / "step-100" / "notes.txt").exists() == stays
    assert not (folder / "step-100" / ".metadata").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        *[("--keep last=0", "'0' is not a count"), ("--keep last=all", "'all' is not a count")],
        *[("--keep last", "'' is not a count"), ("--keep last=1,last=2", "last is given twice")],
        *[("--keep last=1 --keep last=2", "last is given twice"), ("--keep 3", "'3' is not a rule; write last=3")],
        *[("--keep last=3,", "'' is not a rule"), ("--keep metric=3", "'metric=3' is not a rule")],
        *[("--keep daily=-2", "'-2' is not a count"), ("--keep every=x", "'x' is not a whole number")],
        ("--keep every=0", "every=0: it is a number of steps, from 1"),
        *[("--keep step=-1", "'-1' is not a whole number"), ("--max-age 0", "is a time, more than 0")],
        *[("--max-age soon", "is not a time"), ("--max-size 0", "is not a size")],
        *[("--keep best=2", "--metric NAME go together"), ("--metric loss --keep last=1", "--metric NAME go together")],
        *[("--keep last=1 --verify some", "some"), ("--extras remove", "no rule"), ("--max-age 3x", "is not a time")],
    ],
)
def test_what_makes_no_sense(run: Run, folder: Path, arguments: str, says: str):
    assert says in run.exits(2, "forget", folder, *arguments.split(), "--yes").err
    assert steps(folder) == [*LOSSES, 1100]


def test_nothing_is_removed_unasked(run: Run, folder: Path):
    for arguments in ([], ["--json"]):
        assert "--yes" in run.exits(2, "forget", folder, "--keep", "last=1", *arguments).err
    assert steps(folder) == [*LOSSES, 1100]


@pytest.mark.parametrize(("typed", "stay"), [("y\n", [1000]), ("n\n", [*LOSSES])])
def test_at_a_terminal_it_asks(folder: Path, typed: str, stay: list[int]):
    code, shown = at_terminal(["forget", folder, "--keep", "last=1"], typed)
    assert code == 0
    assert "would remove: step-100" in shown
    assert "Remove them? [y/N]" in shown
    assert ("nothing was removed" in shown) == (len(stay) > 1)
    assert steps(folder) == [*stay, 1100]


def test_what_is_read_stays(run: Run, folder: Path):
    with hold(folder / "step-200"):
        done = run("forget", folder, "--keep", "last=1", "--yes", "--json")
    assert (done.code, list(done.json["in_use"])) == (0, ["step-200"])
    assert steps(folder) == [200, 1000, 1100]
    assert run("forget", folder, "--keep", "last=1", "--yes", "--json").json["removed"] == ["step-200"]


def test_where_nothing_passes_the_check_nothing_is_removed(run: Run, folder: Path):
    for step in LOSSES:
        flip_bit(folder / f"step-{step}")
    done = run("forget", folder, "--keep", "last=1", "--yes", "--json")
    assert (done.code, done.json["removed"]) == (0, [])
    assert steps(folder) == [*LOSSES, 1100]


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_a_newest_one_that_is_small_is_verified_in_full(run: Run, tmp_path: Path, place: float):
    """A sample would miss a flip in an object, and the last good checkpoint would go."""
    for step in (1, 2):
        writer = streamxf.FileSystemWriter(tmp_path / f"step-{step}", chain="checksum")
        save({"weight": torch.ones(3), "object": ["text" * 2000]}, storage_writer=writer)
    (file,) = (tmp_path / "step-2").glob("*.distcp")
    flip_bit(tmp_path / "step-2", int(file.stat().st_size * place))
    done = run("forget", tmp_path, "--keep", "last=1", "--yes")
    assert steps(tmp_path) == [1, 2], done.out
    assert "step-1: the newest that verifies" in done.out


def test_what_cannot_be_removed_is_named(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch):
    unlink = local._unlink

    def refuse(folder: int, path: str) -> None:
        if path == ".metadata":
            raise PermissionError(13, "Permission denied")
        unlink(folder, path)

    monkeypatch.setattr(local, "_unlink", refuse)
    done = run.exits(1, "forget", folder, "--keep", "last=3", "--yes")
    assert "not removed: step-100: Permission denied; check permissions of it and its folders" in done.out
    monkeypatch.undo()
    assert run("forget", folder, "--keep", "last=3", "--yes").code == 0
    assert steps(folder) == [200, 300, 1000, 1100]


def test_in_an_object_store(run: Run, folder: Path):
    import fsspec

    fsspec.filesystem("memory").put(str(folder), "/cli-run", recursive=True)
    try:
        assert run("latest", "memory://cli-run").out == "memory://cli-run/step-1000\n"
        assert len(run("list", "memory://cli-run", "--json").json["checkpoints"]) == 5
        assert len(run("forget", "memory://cli-run", "--keep", "last=1", "--yes", "--json").json["removed"]) == 3
        assert run("latest", "memory://cli-run").out == "memory://cli-run/step-1000\n"
    finally:
        fsspec.filesystem("memory").rm("/cli-run", recursive=True)


def test_a_metric_that_no_checkpoint_has(run: Run, folder: Path):
    """Or a typing error would remove all the best."""
    done = run.exits(2, "forget", folder, "--keep", "best=1", "--metric", "los", "--yes")
    assert "no checkpoint has the metric 'los'; there are loss" in " ".join(done.err.split())
    assert steps(folder) == [*LOSSES, 1100]
