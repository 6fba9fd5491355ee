"""Names of every printable character, and the longest ones, in all places where users give names: either refused at
once, or everything works, from the first save to the last removal.
"""

import hashlib
import os
import secrets
import socket
import string
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import CheckpointManager
from streamxf.errors import MetadataError, NoCheckpointError, ParameterError, escaped
from streamxf.storage import remote
from streamxf.storage.opening import open_storage
from streamxf.storage.remote import RemoteStorage
from streamxf.storage.storage import Storage

from .runs import resumed, state_at

CHARACTERS = "".join(each for each in string.printable if each.isprintable() and each != "/") + "é界👍\u0301"
SOME = [CHARACTERS[at : at + 25] for at in range(0, len(CHARACTERS), 25)]
OF_A_NAME = 170 - len("-") - 15  # bytes of `name=` without the step


def life_of(place: Storage, name: str, *, item: str, file: str, metric: str) -> None:
    """A save of the manager's own and two of a framework's; what no rule keeps is gone in the end."""
    state = {item: torch.arange(4.0), "nested": {item: 1}}
    for step in (1, 2, 3):
        with CheckpointManager(place, [streamxf.Checksum()], name=name, keep=1) as manager:
            if step == 1:
                manager.save(step, state, metrics={metric: 1.0})
            else:
                folder = manager.begin(step)
                assert isinstance(folder, Storage)
                for path in (file, f"below/{file}"):
                    write(folder, path, b"what a framework wrote")
                digest = hashlib.sha256(b"what a framework wrote").hexdigest().upper()
                manager.commit(step, digests={} if step == 2 else {file: digest})
            manager.commit(step, metrics={metric: 2.0})
        with CheckpointManager(place, [streamxf.Checksum()], name=name) as manager:
            (record,) = streamxf.list_checkpoints(place)
            assert (record.name, record.kind, record.metrics) == (name.format(step), "own", {metric: 2.0})
            assert str(manager.latest()) == str(place.child(record.name))
            if step == 1:
                restored = {item: torch.zeros(4), "nested": {item: 0}}
                assert manager.resume(restored) == step
                assert torch.equal(restored[item], state[item])
                assert restored["nested"] == {item: 1}
    left = {each.name.split("/")[0] for each in place.below() if not each.name.startswith(".streamxf/session-")}
    assert left <= {name.format(3), ".streamxf"}
    assert not [each.name for each in place.below() if each.name.startswith(".streamxf/holds/")]


def run_at(base: str, options: dict[str, Any], folder: str = "run") -> Storage:
    storage = open_storage(base, options)
    storage.make_folder()
    return storage.child(folder)


def write(folder: Storage, path: str, data: bytes) -> None:
    """As a framework does, which knows nothing of a `Storage`."""
    if folder.near:
        os.makedirs(os.path.dirname(os.path.join(folder.path, path)), exist_ok=True)
        with open(os.path.join(folder.path, path), "wb") as file:
            file.write(data)
    else:
        folder.filesystem.pipe_file(folder.path_of(path), data)


def host_is(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: name)


@pytest.mark.parametrize("characters", SOME)
def test_every_character(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, characters: str) -> None:
    host_is(monkeypatch, text := f"a{characters}b")
    name = text.replace("{", "{{").replace("}", "}}") + "-{}"
    run = run_at(str(tmp_path), {}, text)
    life_of(run, name, item=text, file=text, metric=text)
    monkeypatch.setenv("STREAMXF_SKIP", f"{text}-3")
    with pytest.raises(NoCheckpointError, match="STREAMXF_SKIP names it"):
        streamxf.latest(run)


@pytest.mark.parametrize("characters", SOME)
def test_every_character_in_an_object_store(
    place: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, characters: str
) -> None:
    host_is(monkeypatch, text := f"a{characters}b")
    taken = text.replace("\\", "")
    run = run_at(*place, taken)
    life_of(run, taken.replace("{", "{{").replace("}", "}}") + "-{}", item=text, file=taken, metric=text)


@pytest.mark.parametrize("name", ["a\\b", "a?versionId=b", "50%", "a#b", "a?b"])
def test_what_a_store_might_not_take_literally_is_refused_at_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if "\\" not in name and "versionId" not in name:
        monkeypatch.setattr(remote, "_KEYS", frozenset())  # it is one that nobody knows
    run = run_at(f"memory://{secrets.token_hex(8)}", {})
    for given, reason in ((f"{name}-{{}}", "might not take this name literally"), ("a::b-{}", "chains file systems")):
        with pytest.raises(ParameterError, match=reason):
            CheckpointManager(run, name=given)
    with CheckpointManager(run) as manager:
        folder = manager.begin(1)
        assert isinstance(folder, Storage)
        write(folder, name, b"1")
        with pytest.raises(ParameterError, match="might not take this name literally"):
            manager.commit(1)
        assert [each.kind for each in streamxf.list_checkpoints(run)] == ["unfinished"]


@pytest.mark.parametrize(
    "name", ["a\udcff", "a\nb", "", "step", "step-{}-of-10", "1234567890123456-{}", ".step-{}", "a/{}"]
)
def test_names_that_no_run_has_are_refused_at_once(tmp_path: Any, name: str) -> None:
    with pytest.raises(ParameterError, match="name="):
        CheckpointManager(tmp_path, name=name)
    with CheckpointManager(tmp_path) as manager, pytest.raises(ParameterError, match="at most 15 digits"):
        manager.save(10**15, {})
    for rules in ({"best": 1, "metric": "a\nb"}, {"best": 1, "metric": "a\udcff"}, {"steps": [2**60]}):
        with pytest.raises(ParameterError, match="keep= cannot be recorded"):
            CheckpointManager(tmp_path, keep=streamxf.Retention(**rules))


def test_what_no_note_takes_is_refused_before_anything_is_written(tmp_path: Any) -> None:
    with CheckpointManager(tmp_path) as manager:
        folder = str(manager.begin(1))
        with open(os.path.join(os.fsencode(folder), b"a\xff"), "wb"):
            pass
        for metrics in ({"a\nb": 1.0}, {"\udcff": 1.0}, {"x" * 2**23: 1.0}):
            with pytest.raises(ParameterError, match="metrics= cannot be recorded"):
                manager.commit(1, metrics=metrics)
        for digests in ({"a": "0" * 63}, {"a": "x" * 64}, {"a": None}):
            with pytest.raises(ParameterError, match="64 hexadecimal digits"):
                manager.commit(1, digests=digests)  # type: ignore[arg-type]
        with pytest.raises(MetadataError, match="not UTF-8"):
            manager.commit(1)
        assert not os.path.exists(f"{folder}/.streamxf-commit")
        os.makedirs(other := str(manager.path(2)))
        with open(os.path.join(os.fsencode(other), b"a\xff"), "wb"), pytest.raises(MetadataError, match="not UTF-8"):
            manager.begin(2)
    assert resumed(tmp_path) is None


def test_a_frameworks_save_over_files_of_any_name_that_was_killed_is_not_resumed_from(tmp_path: Any) -> None:
    with CheckpointManager(tmp_path) as manager:
        for step in (1, 2):
            folder = Path(str(manager.path(step)))
            folder.mkdir()
            (folder / "rng:0.pth").write_bytes(b"1")
            manager.begin(step)
            dcp.save(state_at(step), storage_writer=streamxf.FileSystemWriter(folder))
            if step == 1:
                manager.commit(step)
    assert streamxf.latest(tmp_path) == str(tmp_path / "step-1")


@pytest.mark.parametrize("odd", ["a//b", "a/../b", "a\\b", "a\nb", "./b"])
def test_an_odd_key_stays_and_stops_no_removal(odd: str, caplog: pytest.LogCaptureFixture) -> None:
    run = run_at(f"memory://{secrets.token_hex(8)}", {})
    caplog.set_level("INFO", "streamxf")
    with CheckpointManager(run, keep=streamxf.Retention(last=1, extras="remove")) as manager:
        for step in (1, 2, 3):
            manager.save(step, state_at(step))
            write(run.child(f"step-{step}"), "extra", b"2")
            if step == 1:
                assert isinstance(run, RemoteStorage)
                run.filesystem.store[key := f"{run.path_of('step-1')}/{odd}"] = run.filesystem.store[
                    run.path_of("step-1/extra")
                ]
    assert [each.name for each in streamxf.list_checkpoints(run)] == ["step-3"]
    left = [path for path in run.filesystem.store if path.startswith(f"{run.path}/step-") and "step-3" not in path]
    assert left == [key]
    (record,) = [each for each in caplog.records if escaped(odd) in each.message]
    assert record.levelname == "WARNING"
    assert f"step-1 still holds 1 file ({escaped(odd)}): the client of this store might take" in record.message
    assert "what is not of the checkpoint stays" not in caplog.text


@pytest.mark.parametrize("letter", ["a", "é", "界", "👍"])
def test_the_longest_names(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, letter: str) -> None:
    longest(monkeypatch, run_at(str(tmp_path), {}, letter * (255 // len(letter.encode()))), letter)


@pytest.mark.parametrize("letter", ["a", "界"])
def test_the_longest_names_in_an_object_store(
    place: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, letter: str
) -> None:
    longest(monkeypatch, run_at(*place), letter)


def longest(monkeypatch: pytest.MonkeyPatch, run: Storage, letter: str) -> None:
    def long(size: int) -> str:
        return letter * (size // len(letter.encode()))

    host_is(monkeypatch, long(255))
    name = long(OF_A_NAME)
    life_of(run, f"{name}-{{}}", item=long(4000), file=long(255), metric=long(4000))
    with pytest.raises(ParameterError, match="170 are allowed"):
        CheckpointManager(run, name=f"{name}{letter * 2}-{{}}")
