"""Weights followed into a folder of safetensors, by the library and by ``streamxf follow``."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import streamxf
from streamxf import errors
from streamxf.publishing import folder as folders
from streamxf.publishing.version import HINT
from tests.cli.command import Run
from tests.failing import fails_with
from tests.publishing.weights import Policy, assert_same, publisher
from tests.tools.convert.child import Child


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(folders, "SHARD_SIZE", 300_000)


def loaded(folder: Path) -> dict[str, torch.Tensor]:
    found = {name: each for path in folder.glob("*.safetensors") for name, each in load_file(path).items()}
    if not (folder / "model.safetensors").exists():
        assert json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"].keys() == found.keys()
    return found


@pytest.mark.parametrize("in_place", [False, True])
def test_a_folder_is_as_each_version(tmp_path: Path, in_place: bool):
    """Also for a follower that is started again; and for who stays with the files of a version."""
    into, run, policy = tmp_path / "into", tmp_path / "run", Policy()
    into.mkdir()
    (into / "config.json").write_text("{}")
    publishing = publisher(run)
    for step in range(1, 6):
        policy.step()
        publishing.publish(step, policy.tensors.items())
        follower = streamxf.Follower(run, into, in_place=in_place)
        assert (follower.held and follower.held.number) == (step - 1 or None)
        update = follower.prepare()
        before = {} if step == 1 else loaded(follower.folder)
        assert_same(dict(update.tensors()), {name: policy.tensors[name] for name in update.changed})
        for patch in update.patches():
            whole = before.get(patch.name, torch.empty(patch.shape, dtype=patch.dtype)).clone().reshape(-1)
            whole[slice(None) if patch.indices is None else patch.indices] = patch.values
            assert torch.equal(whole.view(torch.uint8), policy.tensors[patch.name].reshape(-1).view(torch.uint8))
        update.apply()
        assert_same(loaded(follower.folder), policy.tensors)
        assert (follower.folder / "config.json").read_text() == "{}"
        assert follower.verify() == ()
        assert follower.prepare() is None
        assert follower.folder == (into if in_place else (into / "newest").resolve())
        follower.close()


def test_a_version_stays_as_it_was_for_who_has_mapped_it(tmp_path: Path):
    policy, publishing = Policy(), publisher(tmp_path / "run")
    policy.tensors["head"] = torch.ones(200_000)  # with a file of its own
    follower = streamxf.Follower(tmp_path / "run", tmp_path / "into")
    kept = []
    for step in range(1, 5):
        policy.step()
        publishing.publish(step, policy.tensors.items())
        follower.prepare().apply()
        kept.append((loaded(follower.folder), {name: tensor.clone() for name, tensor in policy.tensors.items()}))
    for found, wanted in kept:
        assert_same(found, wanted)
    ids = {path.name: path.stat().st_ino for path in (tmp_path / "into/one").glob("*.safetensors")}
    same = [path for path in (tmp_path / "into/two").glob("*.safetensors") if ids[path.name] == path.stat().st_ino]
    assert same, "a file in which nothing changed is linked"


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_what_cannot_be_locked_is_not_followed_into(tmp_path: Path, kind: str):
    publisher(tmp_path / "run").publish(1, Policy().tensors.items())
    lock = tmp_path / "into" / ".streamxf-lock"
    lock.parent.mkdir()
    lock.mkdir() if kind == "folder" else lock.symlink_to(tmp_path / "other")
    with pytest.raises(errors.AbortedError, match=r"cannot be locked.*\.streamxf-lock"):
        streamxf.Follower(tmp_path / "run", tmp_path / "into")
    assert sorted(os.listdir(tmp_path)) == ["into", "run"]


def test_what_was_written_to_meanwhile_is_found_and_mended(tmp_path: Path):
    policy, publishing = Policy(), publisher(tmp_path / "run")
    publishing.publish(1, policy.tensors.items())
    follower = streamxf.Follower(tmp_path / "run", tmp_path / "into")
    with pytest.raises(errors.NoCheckpointError, match="no version was applied"):
        follower.verify()
    follower.prepare().apply()
    path = max(follower.folder.glob("*.safetensors"), key=lambda each: b"layers.0.frozen" in each.read_bytes())
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xaa")
    assert len(follower.verify()) == 1
    follower.close()
    again = streamxf.Follower(tmp_path / "run", tmp_path / "into")
    assert again.held is None
    again.prepare().apply()
    assert again.verify() == ()


def test_one_process_at_a_time_follows_into_a_folder_in_one_way(tmp_path: Path):
    publisher(tmp_path / "run").publish(1, Policy().tensors.items())
    follower = streamxf.Follower(tmp_path / "run", tmp_path / "into")
    with pytest.raises(errors.AbortedError, match="another process follows"):
        streamxf.Follower(tmp_path / "run", tmp_path / "into")
    first, second = follower.prepare(), follower.prepare()
    with pytest.raises(errors.ParameterError, match="another update was prepared"):
        first.apply()
    second.apply()
    child = Child(lambda: os.kill(os.getpid(), signal.SIGSTOP))  # which is there, and has no part in the lock
    os.waitpid(child.process, os.WUNTRACED)
    follower.close()
    streamxf.Follower(tmp_path / "run", tmp_path / "into").close()
    child.kill()
    assert child.result() is None
    with pytest.raises(errors.ParameterError, match="in place"):
        streamxf.Follower(tmp_path / "run", tmp_path / "into", in_place=True)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_is_not_a_followers_stays(tmp_path: Path, kind: str):
    """Also a folder of weights that is named to be followed into in place."""
    publisher(tmp_path / "run").publish(1, Policy().tensors.items())
    mine = tmp_path / "into/one/notes.txt" if kind == "folder" else tmp_path / "into/one"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with streamxf.Follower(tmp_path / "run", tmp_path / "into") as follower:
        with pytest.raises(errors.ParameterError, match=r"no follower put this here.*into/one"):
            follower.prepare()
    assert mine.read_text() == "mine"
    model = tmp_path / "model/model-00001-of-00002.safetensors"
    model.parent.mkdir()
    model.write_text("mine")
    with pytest.raises(errors.ParameterError, match=r"\(model-00001-of-00002.safetensors\).*in place"):
        streamxf.Follower(tmp_path / "run", model.parent, in_place=True)
    assert model.read_text() == "mine"


@pytest.mark.parametrize("in_place", [False, True])
def test_a_full_disk_is_told_and_leaves_nothing_half_written(tmp_path: Path, monkeypatch, run: Run, in_place: bool):
    policy, into = Policy(), tmp_path / "into"
    publisher(tmp_path / "run").publish(1, policy.tensors.items())
    once = ("follow", tmp_path / "run", "--into", into, "--once", *["--in-place"] * in_place)
    with monkeypatch.context() as patch:
        patch.setattr(folders, "write_all", fails_with(OSError, errno.ENOSPC, "full"))
        err = run.exits(1, *once, out="").err
    side = ".streamxf-coming" if in_place else "one"
    assert f"{into}/{side}" in err
    assert "streamxf forget" not in err
    assert ("pass --in-place" in err) != in_place
    assert not (into / side).exists()
    run.exits(0, *once)
    assert_same(loaded(into if in_place else into / "newest"), policy.tensors)


FOLLOW = [sys.executable, "-m", "streamxf", "follow"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command(tmp_path: Path, number: int):
    publisher(tmp_path / "run").publish(1, Policy().tensors.items())
    command = [*FOLLOW, str(tmp_path / "run"), "--into", str(tmp_path / "into")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert "version 1, of step 1 is in" in process.stdout.readline()
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (128 + number, "", "streamxf follow: interrupted\n")


def test_the_command_keeps_a_folder_and_tells_of_it(tmp_path: Path, run: Run):
    policy, into, out, lines = Policy(), tmp_path / "into", tmp_path / "told", list[str]()
    publishing = publisher(tmp_path / "run")
    tell = f'echo "$STREAMXF_STEP $STREAMXF_SAVE_ID $STREAMXF_FOLDER" >> {out}'
    once = ("follow", tmp_path / "run", "--into", into, "--once", "--verify", "--exec", tell)
    for step in (7, 8):
        made = publishing.publish(step, policy.tensors.items())
        folder = into / ("one" if step == 7 else "two")
        done = run.exits(0, *once, "--json")
        facts = {"path": str(tmp_path / "run"), "folder": str(folder), "number": made.number, "step": step}
        assert json.loads(done.out) == {"json_version": 1, **facts, "save_id": made.save_id}
        lines.append(f"{step} {made.save_id} {folder}\n")
        run.exits(0, *once, out=f"all weights in {folder} are as version {made.number}, of step {step} has them\n")
        assert json.loads(run.exits(0, *once, "--json").out)["save_id"] == made.save_id
        assert out.read_text() == "".join(lines)
    assert_same(loaded(into / "newest"), policy.tensors)


def test_a_command_that_fails_is_told_and_tried_again(tmp_path: Path, run: Run):
    publisher(tmp_path / "run").publish(1, Policy().tensors.items())
    once = ("follow", tmp_path / "run", "--into", tmp_path / "into", "--once")
    assert "ended with 3" in run.exits(1, *once, "--exec", "exit 3").err
    run.exits(0, *once, "--exec", f"touch {tmp_path / 'told'}", out="")
    assert (tmp_path / "told").exists()
    assert "--double and --in-place exclude" in run.exits(2, *once, "--double", "--in-place").err
    assert "--every 0:" in run.exits(2, *once, "--every", "0").err
    assert "no engine" in run.exits(2, *once, "--engine", "triton=http://localhost").err


def test_a_run_without_a_version_is_told_and_waited_for(tmp_path: Path, run: Run):
    place = tmp_path / "run"
    once = ("follow", place, "--into", tmp_path / "into", "--once")
    assert "no such folder" in run.exits(2, *once, out="").err
    command = [*FOLLOW, *map(str, once[1:4]), "--every", "0.1"]
    with subprocess.Popen(command, stderr=-1, stdout=-1, text=True) as process:
        assert process.stderr.readline() == f"streamxf follow: waiting for {place}: there is no such folder yet\n"
        publisher(place).publish(1, Policy().tensors)
        assert "version 1, of step 1 is in" in process.stdout.readline()
        process.terminate()
        assert process.communicate(timeout=60)[1] == "streamxf follow: interrupted\n"
    (place / HINT).unlink()
    new = ("follow", place, "--into", tmp_path / "new", "--once")
    assert "there are checkpoints, and no hint (.streamxf/newest)" in run.exits(2, *new, out="").err
    (tmp_path / "empty").mkdir()
    assert "no version was published yet" in run.exits(2, "follow", tmp_path / "empty", *new[2:], out="").err


def test_weights_that_were_altered_are_told_by_name(tmp_path: Path, run: Run):
    publisher(tmp_path / "run").publish(1, {"weight": torch.ones(1000)}.items())
    once = ("follow", tmp_path / "run", "--into", tmp_path / "into", "--once", "--verify")
    run.exits(0, *once)
    path = tmp_path / "into/one/model.safetensors"
    times = path.stat()
    path.write_bytes(path.read_bytes()[:-1] + b"\xaa")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert "weight" in run.exits(1, *once).err


def test_no_manager_takes_versions_for_its_own(run: Run, tmp_path: Path):
    """Nor does any rule count them, unless it is told to by their run's id."""
    publishing, policy, folder = publisher(tmp_path), Policy(), str(tmp_path)
    for step in (1, 2):
        policy.step()
        publishing.publish(step, policy.tensors.items())
    found = streamxf.list_checkpoints(tmp_path)
    assert [(each.version, each.counts, each.complete) for each in found] == [(1, False, True), (2, False, True)]
    shown = run("list", folder).out
    assert "  version 1; run " in shown
    assert "unclaimed" not in shown
    listed = run("list", folder, "--json").json["checkpoints"]
    assert [(each["kind"], each["number"]) for each in listed] == [("published", 1), ("published", 2)]
    (run_id,) = {each["run"] for each in listed}
    assert f"It is version 2 of the published weights of run {run_id}." in streamxf.inspect(tmp_path / "step-2").notes
    with streamxf.CheckpointManager(tmp_path, keep=1) as manager:
        with pytest.raises(errors.NoCheckpointError, match="version 2 of the published weights"):
            manager.resume({"norm": torch.zeros(64)})
        for step in (3, 4):
            manager.save(step, {"norm": torch.zeros(64)})
    assert [each.name for each in streamxf.list_checkpoints(tmp_path)] == ["step-1", "step-2", "step-4"]
    report = streamxf.forget(tmp_path, 1)
    assert (report.removed, report.kept["step-1"][0][:19]) == ((), "foreign: version 1 ")
    with streamxf.CheckpointManager(tmp_path) as manager:
        assert manager.resume({"norm": torch.zeros(64)}) == 4
    assert streamxf.forget(tmp_path, 1, run_id=run_id).removed == ("step-1",)
