"""How much of the library a save and a load of three items go through: ceilings that may only fall."""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Checksum, Encrypt, Key, ZStandard, engine

PACKAGE = f"{Path(streamxf.__file__).parent}{os.sep}"
KEY = Key(bytes(range(32)))


def save(path: Path) -> None:
    state = {"weight": torch.randn(600, 1000), "bias": torch.zeros(100), "step": 3}
    writer = streamxf.FileSystemWriter(path, chain=[ZStandard(), Checksum(), Encrypt(KEY)])
    dcp.save(state, storage_writer=writer)


def load(path: Path) -> None:
    state = {"weight": torch.empty(600, 1000), "bias": torch.empty(100), "step": 0}
    dcp.load(state, storage_reader=streamxf.FileSystemReader(path, keys=KEY))


def write(path: Path) -> None:
    with streamxf.CheckpointWriter(path, chain=[ZStandard(), Checksum(), Encrypt(KEY)]) as writer:
        writer["weight"] = np.ones((600, 1000))
        writer["bias"] = np.zeros(100)
        writer["step"] = 3


def entered(action: Callable[[], object]) -> set[str]:
    """The files of streamxf whose functions are called, in threads that begin meanwhile, too."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(PACKAGE):
            found.add(code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def test_a_save_and_a_load_enter_few_files(tmp_path: Path):
    save(tmp_path / "warm")
    load(tmp_path / "warm")
    saved, loaded = entered(lambda: save(tmp_path / "saved")), entered(lambda: load(tmp_path / "saved"))
    assert 20 < len(saved) <= 42, sorted(saved)
    assert 20 < len(loaded) <= 43, sorted(loaded)


def test_what_is_written_without_dcp_enters_fewer(tmp_path: Path):
    write(tmp_path / "warm")
    written = entered(lambda: write(tmp_path / "written"))
    assert 20 < len(written) <= 42, sorted(written)
    assert not [path for path in written if path.startswith(f"{PACKAGE}dcp{os.sep}")]


def test_a_block_is_few_calls_away_from_its_worker(tmp_path: Path, monkeypatch):
    """The most frames of streamxf between `write_data` and a worker's queue, both included."""
    counts: list[int] = []
    submit = engine.Engine.submit

    def counted(self: engine.Engine, job: Any) -> Any:
        frame: FrameType | None = sys._getframe(1)
        count = 1  # this stands for `submit`
        while frame is not None:
            count += frame.f_code.co_filename.startswith(PACKAGE)
            if frame.f_code.co_name == "write_data":
                counts.append(count)
                break
            frame = frame.f_back
        return submit(self, job)

    monkeypatch.setattr(engine.Engine, "submit", counted)
    save(tmp_path / "saved")
    assert max(counts) <= 11
