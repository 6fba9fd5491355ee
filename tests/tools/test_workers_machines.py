"""``executor=`` with workers whose machines lack a mount, a codec or a key: the results are those of one process, and
what was done here names the worker's host.
"""

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import streamxf
from streamxf.errors import KeyMissingError, UnknownCodecError
from streamxf.keys import Key, KeyRing
from streamxf.keys.file import write_key
from streamxf.keys.ring import format_key
from streamxf.stream.container import ChainOpener
from streamxf.tools import fleet
from tests.altered import flip
from tests.dcp.helpers import KEY, data_files, full_chain, save
from tests.tools.executors import Elsewhere, Poor

STATE = {f"w{number}": torch.randn(100, 300) for number in range(6)}
HOST = f"on {socket.gethostname()}, "


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    save(STATE, tmp_path / "checkpoint", full_chain(), thread_count=2)
    monkeypatch.setenv("SOME_KEY", format_key(KEY))
    return tmp_path / "checkpoint"


def patched(apply: Callable[[pytest.MonkeyPatch], object]) -> Callable[[], AbstractContextManager[None]]:
    """What makes a context in which something is patched."""

    @contextmanager
    def lacking() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            apply(patch)
            yield

    return lacking


def no_codec(*_: Any) -> Any:
    raise UnknownCodecError("codec acme.x is not installed here")


@contextmanager
def moved_away(checkpoint: Path) -> Iterator[None]:
    checkpoint.rename(checkpoint.with_name("elsewhere"))
    try:
        yield
    finally:
        checkpoint.with_name("elsewhere").rename(checkpoint)


LACKING: dict[str, tuple[Callable[..., Any] | None, str]] = {
    "mount": (None, "missing"),
    "codec": (lambda patch: patch.setattr(ChainOpener, "_build", no_codec), "UnknownCodecError: codec acme.x is not"),
    "key": (lambda patch: patch.delenv("SOME_KEY"), "SOME_KEY"),
    "right key": (lambda patch: patch.setenv("SOME_KEY", format_key(Key.generate())), "KeyMissingError"),
}


@pytest.mark.parametrize("what", LACKING)
def test_what_a_machine_lacks_is_done_here(checkpoint: Path, what: str) -> None:
    apply, said = LACKING[what]
    executor: Any = Poor(partial(moved_away, checkpoint) if apply is None else patched(apply))
    how: dict[str, Any] = {"keys": "env:SOME_KEY"}
    report = streamxf.verify(checkpoint, executor=executor, **how)
    assert report.ok
    assert replace(report, seconds=0, finished_here="") == replace(streamxf.verify(checkpoint, **how), seconds=0)
    values, alone = (
        streamxf.inspect(checkpoint, values=True, executor=executor, **how),
        streamxf.inspect(checkpoint, values=True, **how),
    )
    assert values.values == alone.values
    found = streamxf.diff(checkpoint, checkpoint, executor=executor, **how)
    assert found.same
    made = streamxf.transcode(checkpoint, checkpoint.with_name("copy"), "zstd", executor=executor, **how)
    assert streamxf.diff(checkpoint, checkpoint.with_name("copy"), keys=KEY, encrypted=(True, False)).same
    for text in (report.finished_here, values.notes[-1], found.notes[-1], made.notes[-1]):
        assert HOST in text
        assert said in text


def test_what_is_lost_here_too_is_damage_and_damage_stays_a_workers_word(checkpoint: Path) -> None:
    flip(data_files(checkpoint)[0])
    data_files(checkpoint)[1].unlink()
    executor, alone = Elsewhere(), streamxf.verify(checkpoint, keys=KEY)
    report = streamxf.verify(checkpoint, keys="env:SOME_KEY", executor=executor)
    assert replace(report, seconds=0, finished_here="") == replace(alone, seconds=0)
    assert not report.finished_here


# -- where a key is -------------------------------------------------------------------------------------------------


def test_relative_locations_of_keys_are_those_of_the_client(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_key(tmp_path / "team.key", KEY)
    monkeypatch.chdir(tmp_path)
    for location in ("file:team.key", Path("team.key"), f"file:./team.key#{KEY.id}"):
        report = streamxf.verify(checkpoint, keys=location, executor=Poor(patched(lambda patch: patch.chdir("/"))))
        assert report.ok
        assert not report.finished_here


def test_which_locations_are_anchored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert KeyRing.anchored("file:../a.key") == f"file:{tmp_path}/../a.key"  # whose first part may be a link
    assert KeyRing.anchored(Path("a.key")) == f"file:{tmp_path}/a.key"
    for location in ("file:/a.key", "file:~/a.key", "file:", "env:A", "aws-kms:arn:a", "file://host/a", KEY):
        assert KeyRing.anchored(location) == location


@pytest.mark.parametrize("stale", ["recipient", "signer"])
def test_a_file_for_other_recipients_or_of_another_signer_is_written_here(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stale: str
) -> None:
    """One of the workers has what the client had before a rotation."""
    team, old, new = Key.generate(), Key.generate(), Key.generate()
    signers = {"before": streamxf.SigningKey.generate(), "now": streamxf.SigningKey.generate()}
    for name, key in {"TEAM": team, "ROTATED": new, "SIGNER": signers["now"]}.items():
        monkeypatch.setenv(name, format_key(key))
    count = 0

    @contextmanager
    def rotated() -> Iterator[None]:
        nonlocal count
        count += 1
        with pytest.MonkeyPatch.context() as patch:
            if count == 2:
                name, key = ("ROTATED", old) if stale == "recipient" else ("SIGNER", signers["before"])
                patch.setenv(name, format_key(key))
            yield

    target = tmp_path / "copy"
    keys: dict[str, Any] = {"keys": "env:SOME_KEY", "recipients": ["env:TEAM", "env:ROTATED"], "signer": "env:SIGNER"}
    made = streamxf.transcode(checkpoint, target, "zstd+encrypt", file_size=200_000, executor=Poor(rotated), **keys)
    assert count > 2
    assert "the target has not all that workers wrote" in made.notes[-1]
    trust = signers["now"].verify_key
    for key in (team, new):
        assert streamxf.verify(target, keys=key, trust=trust).ok
    with pytest.raises(KeyMissingError):
        streamxf.verify(target, keys=old, trust=trust)
    assert format_key(old).split(":")[2].encode() not in b"".join(file.read_bytes() for file in target.iterdir())


# -- nobody works ---------------------------------------------------------------------------------------------------


def test_a_cluster_without_workers_is_named(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Idle(Executor):
        def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            threads.submit(lambda: (time.sleep(0.3), future.set_result(call(*args))))
            return future

    monkeypatch.setattr(fleet, "_PATIENCE", 0.05)
    with ThreadPoolExecutor(1) as threads, pytest.warns(UserWarning, match="Idle has returned nothing") as warned:
        report = streamxf.verify(checkpoint, keys="env:SOME_KEY", executor=Idle())
    assert report.ok
    assert len(warned) == 1
    assert not report.finished_here
