"""What a save tells: the bytes of tensors and objects, as their blocks leave."""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Checksum, FloatZip, ZStandard
from streamxf.errors import ParameterError, UnsupportedError
from tests.dcp.helpers import KEY, Xor, error_of, full_chain
from tests.dcp.test_write_failures import FaultyFiles

from .recorder import Recorder, make_state, raw_size

CHAINS = {
    "default": lambda: None,
    "full": full_chain,
    "none": list,
    "foreign": lambda: [Xor(), ZStandard()],
    "foreign alone": lambda: [Xor()],
}
MIB = 2**20


@pytest.mark.parametrize("options", [{}, {"thread_count": 3}, {"single_file_per_rank": False}], ids=str)
@pytest.mark.parametrize("chain", CHAINS)
def test_all_of_it_is_told(tmp_path: Path, chain: str, options: dict[str, Any]) -> None:
    recorder = Recorder()
    writer = streamxf.FileSystemWriter(tmp_path, _extensions=CHAINS[chain](), progress=recorder, **options)
    dcp.save(make_state(), storage_writer=writer)
    assert recorder.done == recorder.expected == raw_size(make_state())


@pytest.mark.parametrize("chain", CHAINS)
def test_a_single_tensor_comes_in_pieces(tmp_path: Path, chain: str) -> None:
    recorder = Recorder()
    state = {"w": torch.randint(0, 2**30, (10 * MIB,), dtype=torch.int32)}
    writer = streamxf.FileSystemWriter(tmp_path, _extensions=CHAINS[chain](), progress=recorder)
    dcp.save(state, storage_writer=writer)
    assert recorder.done == recorder.expected == 40 * MIB
    assert max(recorder.steps) <= (16 * MIB if chain in ("none", "foreign alone") else MIB + 100)


def test_each_save_counts_again_and_over_fsspec() -> None:
    recorder = Recorder()
    writer = streamxf.FsspecWriter("memory://progress/saves", _extensions=[Checksum()], progress=recorder)
    for number in (1, 2):
        dcp.save(make_state(), storage_writer=writer)
        assert recorder.done == recorder.expected == number * raw_size(make_state())


def test_in_the_background(tmp_path: Path) -> None:
    recorder = Recorder()
    writer = streamxf.FileSystemWriter(tmp_path, _extensions=[Checksum()], progress=recorder)
    dcp.async_save(make_state(), storage_writer=writer).result()
    assert recorder.done == recorder.expected == raw_size(make_state())


@pytest.mark.parametrize("progress", [True, False, Recorder()], ids=["bar", "none", "recorder"])
def test_a_copy_in_another_process_saves(tmp_path: Path, progress: Any) -> None:
    """It keeps the bar, and leaves the object where it is."""
    writer = streamxf.FileSystemWriter(tmp_path, _extensions=[FloatZip()], progress=progress)
    copy = pickle.loads(pickle.dumps(writer))
    dcp.save(make_state(), storage_writer=copy)
    assert copy._progress is (progress is True)
    assert writer._progress is progress
    if isinstance(progress, Recorder):
        assert not progress.steps


@pytest.mark.parametrize("chain", ["default", "none"])
def test_a_save_that_fails_is_not_complete(tmp_path: Path, chain: str) -> None:
    recorder = Recorder()
    writer = streamxf.FileSystemWriter(tmp_path, _extensions=CHAINS[chain](), progress=recorder)
    with FaultyFiles("write", 2).patched():
        assert isinstance(error_of(lambda: dcp.save(make_state(), storage_writer=writer)), OSError)
    assert recorder.done < recorder.expected == raw_size(make_state())


@pytest.mark.parametrize("chain", CHAINS)
def test_what_it_raises_fails_the_save(tmp_path: Path, chain: str) -> None:
    class Stopping(Recorder):
        def advance(self, count: int) -> None:
            raise RuntimeError("enough")

    writer = streamxf.FileSystemWriter(tmp_path, _extensions=CHAINS[chain](), progress=Stopping())
    assert str(error_of(lambda: dcp.save(make_state(), storage_writer=writer))) == "enough"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("progress", [None, 1, "bar", object(), print])
@pytest.mark.parametrize("made", [streamxf.FileSystemWriter, streamxf.FileSystemReader])
def test_an_object_without_the_methods(tmp_path: Path, made: Any, progress: Any) -> None:
    with pytest.raises(ParameterError, match=r"progress=.*expect and advance"):
        made(tmp_path, progress=progress)


def test_a_bar_needs_rich(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr("streamxf.progress.find_spec", lambda name: None if name == "rich" else found(name))
    with pytest.raises(UnsupportedError, match=r"pip install 'streamxf\[cli\]'"):
        streamxf.FileSystemWriter(tmp_path, progress=True)
    with pytest.raises(UnsupportedError, match=r"pip install 'streamxf\[cli\]'"):
        streamxf.FsspecReader("memory://nothing", keys=KEY, progress=True)
    streamxf.FileSystemWriter(tmp_path, progress=Recorder())
