"""Names of items are what somebody wrote: nothing that is said of them ends a line or steers a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner

import streamxf
from tests.altered import flip

from .helpers import data_files, save, unwrapped

NAME = "w\n\x1b[2J\u202e\u0085\r"
SHOWN = r"w\n\x1b[2J\u202e\x85\r"


class Failing(DefaultLoadPlanner):
    """Fails with an error of Python's, which knows no place."""

    def resolve_tensor(self, read_item: Any) -> torch.Tensor:
        raise ValueError("no tensor")


class FailingToSave(DefaultSavePlanner):
    def resolve_data(self, write_item: Any) -> torch.Tensor:
        raise ValueError("no tensor")


def texts_of(error: CheckpointException) -> list[str]:
    cause = unwrapped(error)
    return [str(cause), repr(cause), *getattr(cause, "__notes__", ())]


def test_no_error_and_no_report_shows_a_name_as_it_is(tmp_path: Path) -> None:
    save({NAME: torch.randn(1000), "other": torch.zeros(3)}, tmp_path / "a", [streamxf.ZStandard()])
    (file,) = data_files(tmp_path / "a")

    def load(planner: DefaultLoadPlanner | None = None) -> list[str]:
        with pytest.raises(CheckpointException) as caught:
            dcp.load(
                {NAME: torch.zeros(1000)}, storage_reader=streamxf.FileSystemReader(tmp_path / "a"), planner=planner
            )
        return texts_of(caught.value)

    texts = load(Failing())
    flip(file)
    texts += load()
    with pytest.raises(CheckpointException) as caught:
        writer = streamxf.FileSystemWriter(tmp_path / "b")
        dcp.save({NAME: torch.zeros(3)}, storage_writer=writer, planner=FailingToSave())
    texts += texts_of(caught.value)
    (damage,) = streamxf.verify(tmp_path / "a").damaged
    (lost,) = streamxf.load_intact(tmp_path / "a").damaged
    assert (damage.item, lost.item) == (NAME, NAME)
    texts += [str(damage), str(lost)]
    assert sum(SHOWN in text for text in texts) >= 5
    for text in texts:
        assert text.isprintable(), text
