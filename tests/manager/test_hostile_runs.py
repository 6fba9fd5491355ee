"""What somebody plants in a run's folder who can write there: nothing of it makes the manager remove, hide or miss a
genuine checkpoint, touch another folder, or hang.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf.errors import KeyMissingError, NoCheckpointError, PolicyError
from streamxf.manager.forget import forget
from streamxf.manager.listing import list_checkpoints
from streamxf.manager.manager import CheckpointManager
from streamxf.manager.retention import Retention
from streamxf.manager.schedule import Schedule

from .runs import blank, complete, is_at, resumed, saved_run, state_at

KEYS = "zstd+encrypt"


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """A folder outside of the run, in which nothing changes."""
    folder.mkdir(exist_ok=True)
    (folder / ".metadata").write_bytes(b"somebody's")
    (folder / "__0_0.distcp").write_bytes(b"somebody's")
    before = files_below(folder)
    yield
    assert files_below(folder) == before


def test_a_planted_hold_whose_name_is_not_literal_stops_no_removal(place: tuple[str, dict[str, Any]]) -> None:
    base, options = place
    saved_run(f"{base}/run", 1, 2, 3, storage_options=options)
    filesystem, path = fsspec.core.url_to_fs(f"{base}/run", **options)
    for name in ("step-1?", "step-2"):
        filesystem.pipe_file(f"{path}/.streamxf/holds/{name}@100@host-1-00000000", b"")
    assert forget(f"{base}/run", 1, storage_options=options).removed == ("step-1", "step-2")
    left = filesystem.find(f"{path}/.streamxf/holds")
    assert not [each for each in left if "step-2@" in each], "that of a reader that is over goes all the same"


# -- patterns ------------------------------------------------------------------------------------------------------


def test_a_run_whose_path_is_a_pattern_removes_its_own_and_no_others(place: tuple[str, dict[str, Any]]) -> None:
    base, options = place
    for run in ("exp1", "exp2"):
        saved_run(f"{base}/{run}", 1, 2, storage_options=options)
    for pattern in ("exp[12]", "exp?", "exp*"):
        saved_run(f"{base}/{pattern}", 1, 2, 3, keep=1, storage_options=options)
        assert complete(f"{base}/{pattern}", storage_options=options) == ["step-3"]
    for run in ("exp1", "exp2"):
        assert complete(f"{base}/{run}", storage_options=options) == ["step-1", "step-2"]
        assert resumed(f"{base}/{run}", storage_options=options) == 2


def test_a_planted_name_that_is_a_pattern_removes_nothing(place: tuple[str, dict[str, Any]], key: streamxf.Key) -> None:
    base, options = place
    saved_run(f"{base}/run", 100, 200, 300, chain=KEYS, keys=key, storage_options=options)
    filesystem, path = fsspec.core.url_to_fs(f"{base}/run", **options)
    for file in filesystem.find(f"{path}/step-200"):
        for name in ("step-1*", "step-9*"):  # a series of their own, of which the older one goes
            filesystem.pipe_file(file.replace("step-200", name), filesystem.cat_file(file))
    keep = Retention(last=1, steps=[100])
    forget(f"{base}/run", keep, keys=key, storage_options=options)
    assert {"step-100", "step-300"} <= set(complete(f"{base}/run", storage_options=options))
    saved_run(f"{base}/run", 400, chain=KEYS, keys=key, keep=keep, storage_options=options)
    assert {"step-100", "step-400"} <= set(complete(f"{base}/run", storage_options=options))
    with CheckpointManager(f"{base}/run", chain=KEYS, keys=key, storage_options=options) as manager:
        state = blank()
        assert manager.resume(state, step=100) == 100
        assert is_at(state, 100)


# -- what is no small file -----------------------------------------------------------------------------------------


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    try:
        os.mknod(path, 0o20666, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        pytest.skip("this process may not make devices")


def hole(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


def wrote(data: bytes) -> Callable[[Path], None]:
    return lambda path: void(path.write_bytes(data))


def void(_: Any) -> None:
    return None


STRANGE: dict[str, Callable[[Path], None]] = {
    "fifo": fifo,
    "device": device,
    "hole": hole,
    "directory": Path.mkdir,
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "1e400": wrote(b'{"version": 1, "saved": {"step-1": {"time": 1e400}}}'),
    "400 digits": wrote(b'{"version": 1, "runs": [[' + b"9" * 400 + b", 1, true]]}"),
    "garbage": wrote(os.urandom(200)),
    "nothing": wrote(b""),
}
HEX = "0123456789abcdef" * 2
BELOW = (
    *("catalog.json", "saves/step-1", f"session-{HEX}", f"session-{HEX}.lock", f"going-1700000000-{HEX[:16]}"),
    *(f"damage-{HEX}", f"holds/step-1@1700000000@host-1-{HEX[:8]}"),
)
BESIDE = (".streamxf-saving", ".streamxf-removed", f".streamxf-note-{HEX[:8]}", ".streamxf.lock")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", STRANGE)
def test_strange_things_in_place_of_every_small_file_stop_nothing(tmp_path: Path, kind: str) -> None:
    saved_run(tmp_path, 1, 2, 3)
    (tmp_path / ".streamxf" / "holds").mkdir(exist_ok=True)
    plants = [tmp_path / ".streamxf" / name for name in BELOW] + [tmp_path / "step-2" / name for name in BESIDE]
    for path in plants:
        path.unlink(missing_ok=True)
        STRANGE[kind](path)
    assert resumed(tmp_path) == 3
    assert forget(tmp_path, 9).failed == {}
    saved_run(tmp_path, 4, save=Schedule(optimal=True), keep=3)
    assert complete(tmp_path) == ["step-2", "step-3", "step-4"]
    saved_run(tmp_path, 5, keep=3)
    assert complete(tmp_path) == ["step-3", "step-4", "step-5"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["fifo", "hole", "garbage", "directory", "link to a device"])
def test_strange_things_in_place_of_what_makes_a_checkpoint_are_passed_over(
    tmp_path: Path, key: streamxf.Key, kind: str
) -> None:
    keyed: dict[str, Any] = {"chain": KEYS, "keys": key}
    saved_run(tmp_path, 1, 2, **keyed)
    for step, name in ((3, ".metadata"), (4, ".streamxf-commit")):
        (tmp_path / f"step-{step}").mkdir()
        STRANGE[kind](tmp_path / f"step-{step}" / name)
    assert resumed(tmp_path, **keyed) == 2
    saved_run(tmp_path, 5, keep=2, **keyed)
    assert {"step-2", "step-5"} <= set(complete(tmp_path))
    assert "step-1" not in complete(tmp_path)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", STRANGE)
def test_strange_things_in_place_of_the_folder_of_small_files_stop_nothing(tmp_path: Path, kind: str) -> None:
    saved_run(tmp_path, 1)
    shutil.rmtree(tmp_path / ".streamxf")
    STRANGE[kind](tmp_path / ".streamxf")
    assert resumed(tmp_path) == 1
    forget(tmp_path, 1)
    saved_run(tmp_path, 2)
    assert complete(tmp_path)[-1] == "step-2"


# -- copies, and what nobody vouches for ---------------------------------------------------------------------------


def test_a_job_that_can_only_encrypt_resumes_from_no_planted_plaintext(tmp_path: Path) -> None:
    public = streamxf.PrivateKey.generate().public
    assert resumed(tmp_path, chain=[streamxf.Encrypt(public)]) is None
    saved_run(tmp_path, 7)
    for planted in (lambda: resumed(tmp_path, chain=[streamxf.Encrypt(public)]),):
        with pytest.raises((KeyMissingError, NoCheckpointError, PolicyError)):
            planted()
    saved_run(tmp_path, 8, 9, chain=[streamxf.Encrypt(public)], keep=1)
    assert complete(tmp_path) == ["step-7", "step-9"], "what is not verified is never a reason to remove, nor removed"


def test_a_planted_newest_that_is_not_encrypted_is_no_reason_to_remove(tmp_path: Path, key: streamxf.Key) -> None:
    keyed: dict[str, Any] = {"chain": KEYS, "keys": key}
    saved_run(tmp_path, 1, 2, **keyed)
    saved_run(tmp_path / "elsewhere", 998, 999)
    for step in (998, 999):
        shutil.move(tmp_path / "elsewhere" / f"step-{step}", tmp_path)
    assert resumed(tmp_path, **keyed) == 2
    assert forget(tmp_path, 2, keys=key).removed == ()
    saved_run(tmp_path, 3, keep=2, **keyed)
    assert [name for name in complete(tmp_path) if "99" not in name] == ["step-2", "step-3"]


# -- links ---------------------------------------------------------------------------------------------------------


def test_nothing_is_saved_through_a_link_that_has_a_steps_name(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    saved_run(other, 5)
    saved_run(run, 1)
    (run / "step-5").symlink_to(other / "step-5")
    before = files_below(other)
    with CheckpointManager(run) as manager:
        manager.save(5, state_at(9))
        manager.wait()
        assert files_below(other) == before
        assert not (run / "step-5").is_symlink()
        state = blank()
        assert manager.resume(state) == 5
        assert is_at(state, 9)


def test_a_link_is_removed_alone(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    saved_run(other, 2)
    saved_run(run, 1, 3)
    (run / "step-2").symlink_to(other / "step-2")
    before = files_below(other)
    saved_run(run, 4, 5, keep=1)
    assert files_below(other) == before
    assert complete(run)[-1] == "step-5"


def test_of_a_link_that_is_removed_nothing_is_locked(tmp_path: Path) -> None:
    """A killed process would leave the lock's file out there."""
    saved_run(tmp_path, 1, 2)
    (tmp_path / "elsewhere").mkdir()
    target = (tmp_path / "step-1").rename(tmp_path / "elsewhere" / "moved")
    (tmp_path / "step-1").symlink_to(target)
    before = target.stat().st_mtime_ns
    assert forget(tmp_path, 1).removed == ("step-1",)
    assert target.stat().st_mtime_ns == before


def test_what_became_known_later_is_known_behind_a_link_too(tmp_path: Path) -> None:
    """A step was moved to another disk, and a link put in its place."""
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere-1"
    with CheckpointManager(run) as manager:
        for step in 1, 2:
            manager.begin(step)
            (run / f"step-{step}" / "weights").write_text("weights")
            manager.commit(step)
            manager.commit(step, metrics={"loss": 0.5})
    (run / "step-2").rename(elsewhere)
    (run / "step-2").symlink_to(elsewhere)
    assert [record.metrics for record in list_checkpoints(run)] == [{"loss": 0.5}] * 2


def test_a_link_in_place_of_the_managers_folder_is_not_followed(tmp_path: Path) -> None:
    run, victim = tmp_path / "run", tmp_path / "victim"
    saved_run(run, 1, 2)
    shutil.rmtree(run / ".streamxf")
    with untouched(victim):
        (victim / "catalog.json").write_text("somebody's")
        (victim / "holds").mkdir()
        (victim / "holds" / "step-1@1@host-1-01234567").write_text("")
        before = files_below(victim)
        (run / ".streamxf").symlink_to(victim)
        assert resumed(run) == 2
        forget(run, 1)
        saved_run(run, 3, keep=1)
        assert files_below(victim) == before
        (victim / "catalog.json").unlink(), (victim / "holds" / "step-1@1@host-1-01234567").unlink()
    assert complete(run)[-1] == "step-3"


@pytest.mark.timeout(300)
def test_links_within_a_committed_checkpoint_are_neither_walked_nor_followed(tmp_path: Path) -> None:
    """Each folder leads to the next one twice: 2^30 paths."""
    run, victim = tmp_path / "run", tmp_path / "victim"
    with untouched(victim):
        with CheckpointManager(run, keep=1) as manager:
            for step in (1, 2):
                path = Path(manager.begin(step))
                path.mkdir(exist_ok=True)
                (path / "model.bin").write_bytes(b"weights")
                (path / "victim").symlink_to(victim)
                for depth in range(30):
                    (path / f"{depth}").mkdir()
                    for name in "ab":
                        (path / f"{depth}" / name).symlink_to(f"../{depth + 1}")
                manager.commit(step)
                manager.wait()
        assert complete(run) == ["step-2"]
        assert not (run / "step-1" / "model.bin").exists()


def test_a_folder_that_is_swapped_for_a_link_during_its_removal_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    saved_run(other, 1)
    saved_run(run, 1, 2)
    moved: list[str] = []

    def swapping(path: Any, *arguments: Any, **options: Any) -> None:
        if not moved and "metadata" in os.fspath(path):
            os.rename(run / "step-1", tmp_path / "moved")
            (run / "step-1").symlink_to(other / "step-1")
            moved.extend(os.listdir(tmp_path / "moved"))
            for name in moved:  # the same names there
                (other / "step-1" / name).write_bytes(b"of the other run")
        unlink(path, *arguments, **options)

    unlink = os.unlink
    before = set(os.listdir(other / "step-1"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", swapping)
        patched.setattr(os, "remove", swapping)
        forget(run, 1)
    assert moved
    assert before.union(moved) == set(os.listdir(other / "step-1"))
    assert complete(run)[-1] == "step-2"


def test_metadata_of_the_run_itself_is_no_checkpoint_of_it(tmp_path: Path) -> None:
    """As if the run were its own step: `.` is never a name."""
    saved_run(tmp_path, 1, 2)
    for name in (".metadata", ".streamxf-commit"):
        (tmp_path / name).write_bytes(b"planted")
    saved_run(tmp_path, 3, keep=1)
    assert complete(tmp_path) == ["step-3"]
    assert (tmp_path / ".metadata").exists()


def test_dcp_loads_what_stays(tmp_path: Path) -> None:
    saved_run(tmp_path, 1, 2, keep=1)
    state = blank()
    dcp.load(state, storage_reader=streamxf.FileSystemReader(tmp_path / "step-2"))
    assert is_at(state, 2)
