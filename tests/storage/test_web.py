"""Checkpoints behind a web server, by fsspec: with ranges and without, pages of links, and what it refuses."""

from collections import Counter
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf.cli.exits import USAGE, exit_code
from streamxf.errors import ForeignError, NoCheckpointError, is_damage, notes_of
from streamxf.storage import fetch
from streamxf.storage.opening import open_storage
from streamxf.testing import FILES, check_storage
from tests.storage.stores import Ranges, WholeFiles, web_server

pytest.importorskip("aiohttp")

KINDS = pytest.mark.parametrize("kind", [Ranges, WholeFiles])
STATE = {"weight": torch.arange(300_000.0), "step": 7, "names": {"a": 1}}


class Fails(Ranges):
    """Answers the `first` requests of each of its `methods` for a path by an error."""

    asked: ClassVar[Counter[tuple[int, str, str]]] = Counter()
    status, first, methods, only = 503, 3, ("GET", "HEAD"), (".metadata", ".distcp")

    def send_head(self) -> Any:
        self.asked[key := (self.server.server_port, self.command, self.path)] += 1
        fails = self.asked[key] <= self.first and self.command in self.methods and self.path.endswith(self.only)
        return self.send_error(self.status) if fails else super().send_head()


class FailsToSend(Fails):
    methods, only = ("GET",), ("",)


def load(url: str) -> dict[str, Any]:
    state: dict[str, Any] = {"weight": torch.zeros(300_000), "step": 0}
    dcp.load(state, storage_reader=streamxf.FsspecReader(url), no_dist=True)
    return state


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(fetch, "_PAUSE", 0.001)
    with streamxf.CheckpointManager(tmp_path / "run", "zstd") as manager:
        for step in (1, 7):
            manager.save(step, STATE)
    return tmp_path / "run"


@KINDS
def test_it_does_what_is_relied_on(tmp_path: Path, kind: type[SimpleHTTPRequestHandler]) -> None:
    for path, data in FILES.items():
        (tmp_path / path).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / path).write_bytes(data)
    with web_server(tmp_path, kind) as url:
        storage = open_storage(url)
        check_storage(storage, FILES)
        for act in (lambda: storage.write("a", b""), lambda: storage.create("a"), lambda: storage.make_folder("a")):
            with pytest.raises(OSError, match="read-only"):
                act()
        assert "read-only" in str(storage.remove(["plain"])["plain"])


@pytest.mark.parametrize("kind", [Ranges, WholeFiles, Fails, FailsToSend])
def test_a_run(run: Path, kind: type[SimpleHTTPRequestHandler]) -> None:
    with web_server(run.parent, kind) as url:
        assert streamxf.verify(f"{url}/run").ok
        assert streamxf.verify(f"{url}/run/step-7").ok
        assert streamxf.latest(f"{url}/run") == f"{url}/run/step-7"
        state = load(f"{url}/run/step-7")
        assert state["step"] == 7
        assert torch.equal(state["weight"], STATE["weight"])
        with streamxf.CheckpointManager(f"{url}/run") as manager:
            assert manager.resume(state) == 7
        with pytest.raises(NoCheckpointError):
            streamxf.verify(f"{url}/run/step-8")


def test_large_files_are_not_sent_whole_for_each_part(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That says nothing of a checkpoint, nor of an item: nobody takes an older one, nor the others alone."""
    monkeypatch.setattr(fetch, "AHEAD_BYTES", 2000)
    with web_server(run.parent, WholeFiles) as server:
        url, newest = f"{server}/run", f"{server}/run/step-7"
        for act in (
            lambda: streamxf.Checkpoint(newest)["weight"].read(),
            lambda: streamxf.verify(newest),
            lambda: streamxf.latest(url, verify="sample"),
            lambda: streamxf.latest(url, verify="whole"),
            lambda: streamxf.CheckpointManager(url).latest(),
            lambda: streamxf.load_intact(newest, {"weight": torch.zeros(300_000)}),
            lambda: streamxf.salvage(newest, run / "salvaged"),
            lambda: streamxf.salvage(newest, run / "salvaged", without_metadata=True),
            lambda: streamxf.diff(newest, f"{url}/step-1"),
        ):
            with pytest.raises(OSError, match="does not support HTTP ranges") as error:
                act()
            assert not is_damage(error.value)
            assert "STREAMXF_SKIP" not in str(notes_of(error.value))
            assert exit_code(error.value, "streamxf") == USAGE


def test_a_refusal_is_no_missing_checkpoint(run: Path) -> None:
    with web_server(run.parent, type("", (Fails,), {"status": 403, "first": 1000, "only": ""})) as url:
        with pytest.raises(ForeignError, match="403"):
            streamxf.verify(f"{url}/run")
        assert sum(Fails.asked[key] for key in Fails.asked if f":{key[0]}" in url) <= 2, "by HEAD and by GET"


@pytest.mark.parametrize("status", [401, 403, 429, 451, 500, 503])
def test_metadata_that_is_refused_is_not_missing(run: Path, status: int) -> None:
    with web_server(run.parent, type("", (Fails,), {"status": status, "first": 1000})) as url:
        for act in (load, streamxf.Checkpoint, streamxf.verify, lambda url: streamxf.latest(url.rpartition("/")[0])):
            with pytest.raises((ForeignError, CheckpointException), match=f": {status}, message") as error:
                act(f"{url}/run/step-7")
            assert "there is no" not in str(error.value)


def test_a_page_whose_address_does_not_end_in_a_slash(run: Path) -> None:
    class Stays(WholeFiles):
        def send_head(self) -> Any:
            if Path(self.translate_path(self.path)).is_dir():
                self.path = f"{self.path.rstrip('/')}/"
            return super().send_head()

    with web_server(run.parent, Stays) as url:
        assert streamxf.verify(f"{url}/run/step-7").ok
