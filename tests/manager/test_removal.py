"""Removing: literal names in a folder, no link followed, no pattern expanded, whatever is swapped meanwhile."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest
import torch
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

import streamxf
from streamxf.errors import AbortedError, ParameterError
from streamxf.format.names import LOCK
from streamxf.manager import removal
from streamxf.storage import files as files_module
from streamxf.storage import lock as lock_module
from streamxf.storage.lock import locked
from streamxf.storage.opening import open_storage, storage_over
from streamxf.storage.storage import Storage
from tests.dcp.s3_server import storage as s3_options
from tests.failing import fails_where

FILES = [".metadata", "__0_0.distcp", "extra/rng.pt"]


class Stranger(LocalFileSystem):  # type: ignore[misc]
    """A local file system that streamxf takes for a server's with folders and links."""

    protocol = ("stranger",)


def made(run: Path, name: str, files: list[str] = FILES) -> Path:
    for file in files:
        (run / name / file).parent.mkdir(parents=True, exist_ok=True)
        (run / name / file).write_bytes(b"data")
    return run / name


def below(folder: Path) -> set[str]:
    """Everything, links not followed."""
    return {
        str(Path(place, name).relative_to(folder))
        for place, folders, files in os.walk(folder)
        for name in folders + files
    }


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose name is a pattern for its neighbours."""
    for name in ("exp1", "exp2", "exp[12]"):
        made(tmp_path / name, "step-1")
    return tmp_path / "exp[12]"


def test_a_folder_goes_with_its_files(run: Path) -> None:
    others = [below(run.with_name(name)) for name in ("exp1", "exp2")]
    (run / "step-1" / "empty" / "folders").mkdir(parents=True)
    assert removal.remove_tree(open_storage(run), "step-1", FILES[:1], FILES[1:]) == []
    assert below(run) == set()
    assert [below(run.with_name(name)) for name in ("exp1", "exp2")] == others
    assert removal.remove_tree(open_storage(run), "step-1", FILES[:1], FILES[1:]) == []


def test_what_was_not_asked_for_stays(run: Path) -> None:
    made(run, "step-1", ["mine.txt", "extra/notes/a", "data/b"])
    left = removal.remove_tree(open_storage(run), "step-1", FILES[:1], [*FILES[1:], "never/there", "data"])
    assert sorted(left) == ["data/b", "extra/notes/a", "mine.txt"]
    assert below(run / "step-1") == {"mine.txt", "extra", "extra/notes", "extra/notes/a", "data", "data/b"}


def test_the_lock_that_the_caller_holds_goes_too(run: Path) -> None:
    made(run, "step-1", [LOCK])
    assert LOCK not in open_storage(run).files_below("step-1")
    assert removal.remove_tree(open_storage(run), "step-1", FILES[:1], FILES[1:]) == []
    assert below(run) == set()


NAMES = ["", ".", "..", "../exp1", "/etc", "step-1/..", "step-1/extra", "a\0b"]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_lead_elsewhere(run: Path, name: str) -> None:
    before = below(run.parent)
    for storage in (open_storage(run), open_storage("memory://run")):
        with pytest.raises(ParameterError, match="not a name"):
            removal.remove_tree(storage, name, FILES, [])
        if name != "step-1/extra":
            for act in (storage.files_below, lambda name, at=storage: removal.remove_entry(at, name)):
                with pytest.raises(ParameterError, match="not a name"):
                    act(name or "..")
    assert below(run.parent) == before


@pytest.mark.parametrize("path", ["", ".", "../step-2/.metadata", "/etc/passwd", "a/../../x", "a//b", "a\0"])
def test_paths_that_lead_elsewhere(run: Path, path: str) -> None:
    """They stay, and nothing else does for their sake."""
    before = below(run.parent)
    first = FILES[0]
    for files in (([first, path], []), (["__0_0.distcp"], [path])):
        assert removal.remove_tree(open_storage(run), "step-1", *files)
    assert before - below(run.parent) == {f"{run.name}/step-1/{each}" for each in (first, "__0_0.distcp")}


@pytest.mark.parametrize("given", ["local", "file", "link"])
def test_a_pattern_is_a_name(run: Path, given: str) -> None:
    link = run.with_name("link")
    link.symlink_to(run)
    storage = open_storage({"local": str(run), "file": f"file://{run}", "link": str(link)}[given])
    made(run, "step-1*")
    made(run, "step-100")
    before = below(run / "step-100")
    assert removal.remove_tree(storage, "step-1*", FILES[:1], FILES[1:]) == []
    assert below(run / "step-100") == before
    assert below(run / "step-1")
    assert not (run / "step-1*").exists()


def test_links_are_not_followed(run: Path, tmp_path: Path) -> None:
    victim = made(tmp_path, "victim")
    (run / "step-2").symlink_to(victim)
    (run / "step-3").mkdir()
    (run / "step-3" / ".metadata").symlink_to(victim / ".metadata")
    (run / "step-3" / "extra").symlink_to(victim / "extra")
    (run / "step-3" / "more").symlink_to(victim)
    storage = open_storage(run)
    assert storage.files_below("step-2") == storage.files_below("step-3") == {}
    assert removal.remove_tree(storage, "step-2", FILES, []) == []
    assert not os.path.lexists(run / "step-2")
    assert sorted(removal.remove_tree(storage, "step-3", FILES, [])) == ["extra", "more"]
    removal.remove_entry(storage, "step-3/extra/rng.pt")
    removal.remove_entry(storage, "step-3/more")
    assert below(run / "step-3") == {"extra"}
    assert below(victim) == {".metadata", "__0_0.distcp", "extra", "extra/rng.pt"}


def test_what_is_no_file(run: Path) -> None:
    step = run / "step-1"
    os.mkfifo(step / "pipe")
    (step / "folder").mkdir()
    (run / "file").write_bytes(b"")
    assert set(open_storage(run).files_below("step-1")) == set(FILES)
    assert open_storage(run).files_below("file") == open_storage(run).files_below("nothing") == {}
    removal.remove_entry(open_storage(run), "step-1/folder")
    assert (step / "folder").is_dir()
    assert removal.remove_tree(open_storage(run), "step-1", FILES, ["folder"]) == ["pipe"]
    assert removal.remove_tree(open_storage(run), "step-1", ["pipe"], []) == []
    with pytest.raises(NotADirectoryError):
        removal.remove_tree(open_storage(run), "file", FILES, [])
    removal.remove_entry(open_storage(run), "file")
    removal.remove_entry(open_storage(run), "file")
    assert below(run) == set()


def test_a_maze_of_links_is_not_walked(run: Path) -> None:
    step = run / "step-1"
    for level in range(30):
        (step / "a").mkdir() if level == 0 else None
        for way in ("left", "right"):
            (step / "a" / f"{way}{level}").symlink_to(step / "a")
    assert set(open_storage(run).files_below("step-1")) == set(FILES)
    assert len(removal.remove_tree(open_storage(run), "step-1", FILES, [])) == 60


def test_a_deep_folder_is_not_walked_to_its_end(run: Path) -> None:
    place = run / "step-1"
    for _ in range(files_module.DEEPEST + 8):
        place /= "d"
    place.mkdir(parents=True)
    (place / "file").touch()
    assert set(open_storage(run).files_below("step-1")) == set(FILES)
    assert removal.remove_tree(open_storage(run), "step-1", FILES, [])


def test_no_more_files_than_wanted(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    made(run, "step-1", [f"many{number}" for number in range(50)])
    assert len(open_storage(run).files_below("step-1", 20)) <= 20
    assert "more than 20" in caplog.text


CALLS = ["open", "stat", "unlink", "rmdir", "scandir"]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("what", ["step-1", "step-1/extra"])
def test_a_folder_swapped_for_a_link_meanwhile(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, what: str
) -> None:
    """Before each call in turn."""
    victim = made(tmp_path, "victim", [*FILES, "rng.pt"])
    wanted = below(victim)
    real = getattr(os, call)
    for at in range(1, 40):
        calls = 0

        def swapping(*given: Any, at: int = at, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at and (run / what).is_dir():
                (run / what).rename(tmp_path / f"moved{uuid4()}")
                (run / what).symlink_to(victim)
            return real(*given, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, swapping)
            with suppress(NotADirectoryError):
                removal.remove_tree(open_storage(run), "step-1", FILES[:1], FILES[1:])
        assert below(victim) == wanted
        if calls < at:
            break
        for place in (run / "step-1" / "extra", run / "step-1"):
            if place.is_symlink():
                place.unlink()
        made(run, "step-1")
    else:
        pytest.fail("it never came to its end")
    assert at > 1


@pytest.mark.parametrize("how", ["before", "before, and soon gone", "while it is waited for"])
def test_a_folder_swapped_for_a_link_just_before_its_lock_is_taken(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Or whoever swaps it would choose where the lock's file is made."""
    victim = made(tmp_path, "victim")
    before = victim.stat().st_mtime_ns
    folder, away = run / "step-1", tmp_path / "away"

    def swap() -> None:
        folder.rename(away)
        folder.symlink_to(victim)

    if how.startswith("before"):
        swap()
        opening = lock_module.open_folder

        def opened(place: str | int, **links: bool) -> int:
            try:
                return opening(place, **links)
            finally:
                if how != "before":
                    folder.unlink()

        monkeypatch.setattr(lock_module, "open_folder", opened)
    else:
        trying = lock_module._try_lock

        def tried(descriptor: int) -> bool | None:
            if not away.exists():
                swap()
            return trying(descriptor)

        monkeypatch.setattr(lock_module, "_try_lock", tried)
    with (
        pytest.raises(AbortedError, match="this folder was replaced by a link"),
        locked(open_storage(run).child("step-1"), links=False),
    ):
        pytest.fail("it is locked")
    assert victim.stat().st_mtime_ns == before
    assert below(victim) == {*FILES, "extra"}
    assert LOCK not in below(away)


def test_a_checkpoint_swapped_for_a_link_while_it_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with streamxf.CheckpointManager(tmp_path / "run", "zstd") as manager:
        for step in (1, 2):
            manager.save(step, {"w": torch.ones(3)})
    victim = made(tmp_path, "victim")
    taking = streamxf.manager.forget.locked

    def swapped(storage: Storage, **how: Any) -> Any:
        if (tmp_path / "run" / "step-1").is_dir():
            (tmp_path / "run" / "step-1").rename(tmp_path / "away")
            (tmp_path / "run" / "step-1").symlink_to(victim)
        return taking(storage, **how)

    monkeypatch.setattr("streamxf.manager.forget.locked", swapped)
    before = victim.stat().st_mtime_ns
    report = streamxf.forget(tmp_path / "run", 1)
    assert report.removed == ()
    assert "this folder was replaced by a link" in report.failed["step-1"]
    assert victim.stat().st_mtime_ns == before
    assert below(victim) == {*FILES, "extra"}
    assert ".metadata" in below(tmp_path / "away")


def test_the_rest_stays_if_the_first_cannot_go(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.unlink
    fails_where(monkeypatch, os, "unlink", ".metadata".__eq__, PermissionError(13, "no metadata"))
    fails_where(monkeypatch, os, "unlink", "__0_0.distcp".__eq__, PermissionError(13, "no distcp"))
    with pytest.raises(PermissionError, match="metadata"):
        removal.remove_tree(open_storage(run), "step-1", FILES[:1], FILES[1:])
    assert below(run / "step-1") == {*FILES, "extra"}
    made(run, "step-1", ["mark"])
    with pytest.raises(PermissionError, match="distcp"):
        removal.remove_tree(open_storage(run), "step-1", [], [*FILES[1:], "mark"])
    assert below(run / "step-1") == {".metadata", "__0_0.distcp", "mark"}  # the others were tried, but for the last
    made(run, "step-2")
    monkeypatch.setattr(os, "unlink", lambda name, **options: name != ".metadata" and real(name, **options))
    done = removal.remove_trees(open_storage(run), {"step-1": ([], [*FILES[1:], "mark"]), "step-2": ([], FILES)})
    assert done == {"step-1": [".metadata"], "step-2": [".metadata"]}


@pytest.mark.parametrize("near", [True, False])
def test_what_says_whose_the_first_are_stays_if_one_of_them_cannot_go(
    near: bool, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, name = (os, "unlink") if near else (LocalFileSystem, "rm_file")
    error = OSError(5, "the disk has failed")
    fails_where(monkeypatch, kind, name, lambda *arguments: str(arguments[-1]).endswith(".metadata"), error)
    storage = open_storage(run) if near else storage_over(Stranger(), str(run), "run")
    made(run, "step-1", ["commit"])
    with pytest.raises(OSError, match="failed"):
        removal.remove_tree(storage, "step-1", [".metadata", "commit"], FILES[1:])
    assert below(run / "step-1") == {*FILES, "extra", "commit"}


def test_a_file_or_a_folder(run: Path, tmp_path: Path) -> None:
    victim = made(tmp_path, "victim")
    (run / "link").symlink_to(victim)
    (run / "step-1" / "link").symlink_to(victim)
    for name in ("link", "step-1/.metadata", "step-1", "nothing"):
        open_storage(run / name).remove_all()
    assert below(run) == set()
    assert below(victim) == {*FILES, "extra"}


# -- file systems of fsspec's --------------------------------------------------------------------------------


def put_all(storage: Storage, names: dict[str, list[str]]) -> None:
    for name, files in names.items():
        for file in files:
            path = storage.path_of(f"{name}/{file}")
            storage.filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
            storage.filesystem.pipe_file(path, b"data")


def check_literal(open_run: Callable[[str], Storage]) -> None:
    """That patterns in the path of a run and in names stand for themselves, in listings, too."""
    runs = {name: open_run(name) for name in ("exp1", "exp2", "exp[12]", "e*")}
    steps = ["step-1", "step-1*", "step-100", "step-[1]"]
    for storage in runs.values():
        put_all(storage, dict.fromkeys(steps, FILES))
    for name in ("exp[12]", "e*"):
        storage = runs[name]
        assert set(storage.folders()) == set(steps)
        assert set(storage.child("step-1*").names()) == {".metadata", "__0_0.distcp"}
        for step in ("step-1*", "step-[1]"):
            found = storage.files_below(step)
            assert {path: facts.size for path, facts in found.items()} == dict.fromkeys(FILES, 4)
            assert removal.remove_tree(storage, step, FILES[:1], FILES[1:]) == []
            assert storage.files_below(step) == {}
            assert removal.remove_tree(storage, step, FILES[:1], FILES[1:]) == []
        with_files = [step for step in storage.folders() if storage.files_below(step)]
        assert set(with_files) == {"step-1", "step-100"}  # SeaweedFS keeps empty folders
        removal.remove_entry(storage, "step-100/extra/rng.pt")
        removal.remove_entry(storage, "step-100/extra/rng.pt")
        assert removal.remove_tree(storage, "step-100", FILES[:1], []) == ["__0_0.distcp"]
        made_now = [f"step-{number}" for number in range(2, 14)]
        put_all(storage, {step: [*FILES, "mine"] for step in made_now})
        gives = removal.files_of_many(storage, made_now)
        assert all(set(gives(step)) == {*FILES, "mine"} for step in made_now)
        assert gives("nothing") == {}
        orders = dict.fromkeys(made_now, (FILES[:1], [*FILES[1:], "nothing"]))
        assert removal.remove_trees(storage, orders) == {step: ["mine"] for step in made_now}
        storage.remove_all()
        found = storage.filesystem.find(storage.path, detail=True).values()
        assert not [each for each in found if each["type"] == "file"]
    for name in ("exp1", "exp2"):
        assert all(set(runs[name].files_below(step)) == set(FILES) for step in steps)
        with pytest.raises(ParameterError):
            removal.remove_tree(runs[name], "step-1?versionId=7", FILES, [])


def test_in_memory() -> None:
    base = uuid4().hex
    check_literal(lambda name: open_storage(f"memory://{base}/{name}"))


def test_on_a_server_with_folders(tmp_path: Path) -> None:
    check_literal(lambda name: storage_over(Stranger(), f"{tmp_path}/{name}", "name"))


def test_on_a_server_with_links(tmp_path: Path) -> None:
    class Linked(Stranger):
        """Which tells links as SFTP does."""

        def ls(self, path: str, detail: bool = False, **options: Any) -> list[Any]:
            found = super().ls(path, detail=True, **options)
            for each in found:
                if each["islink"]:
                    each["type"] = "link"
            return found if detail else [each["name"] for each in found]

    victim = made(tmp_path, "victim")
    run = made(tmp_path / "run", "step-1").parent
    (run / "step-2").symlink_to(victim)
    (run / "step-1" / "more").symlink_to(victim)
    storage = storage_over(Linked(), str(run), "run")
    assert storage.files_below("step-2") == {}
    assert set(storage.files_below("step-1")) == set(FILES)
    with pytest.raises(OSError, match="link"):
        removal.remove_tree(storage, "step-2", FILES, [])
    with pytest.raises(OSError, match="this is a link"):
        storage.child("step-2").remove_all()
    assert removal.remove_tree(storage, "step-1", FILES, ["more/.metadata"]) == ["more"]
    assert below(victim) == {*FILES, "extra"}


def test_below_a_folder_that_poses_as_a_root(tmp_path: Path) -> None:
    made(tmp_path / "exp[1]", "step-1")
    storage = storage_over(DirFileSystem(str(tmp_path), fs=fsspec.filesystem("file")), "exp[1]", "dir")
    assert removal.remove_tree(storage, "step-1", FILES, []) == []
    assert below(tmp_path / "exp[1]") == set()


@pytest.mark.s3
@pytest.mark.slow
def test_on_s3(endpoint: str) -> None:
    base = f"s3://checkpoints/{uuid4().hex}"
    check_literal(lambda name: open_storage(f"{base}/{name}", s3_options(endpoint)))


@pytest.mark.s3
@pytest.mark.slow
def test_more_than_a_batch_on_s3(endpoint: str) -> None:
    storage = open_storage(f"s3://checkpoints/{uuid4().hex}", s3_options(endpoint))
    files = [f"file{number}" for number in range(1200)]
    filesystem = storage.filesystem
    filesystem.pipe({storage.path_of(f"step-1/{file}"): b"" for file in [*files, "mine"]})
    assert removal.remove_tree(storage, "step-1", [".metadata"], files) == ["mine"]
    sent: list[Any] = []
    real = filesystem._call_s3

    async def refusing(method: str, *given: Any, **options: Any) -> Any:
        sent.append(method)
        if method == "delete_objects":
            keys = [each["Key"] for each in options["Delete"]["Objects"]]
            return {"Errors": [{"Key": key, "Code": "AccessDenied", "Message": "no"} for key in keys]}
        return await real(method, *given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filesystem, "_call_s3", refusing)
        with pytest.raises(PermissionError, match="AccessDenied"):
            removal.remove_tree(storage, "step-1", [], ["mine"])
    assert sent == ["delete_objects"]
    assert set(storage.files_below("step-1")) == {"mine"}
