"""docs/examples/torch_save.py, killed, damaged and resumed."""

from pathlib import Path

import pytest
import torch

import streamxf

from .damaged import assert_falls_back
from .killed import EXAMPLES, assert_managed, copies

pytestmark = pytest.mark.slow


def test_killed_and_resumed(tmp_path: Path) -> None:
    path = assert_managed(tmp_path, copies(), [EXAMPLES / "torch_save.py"]) / "step-12" / "state.pt.sxf"
    with pytest.raises(Exception, match="load"):
        torch.load(path)
    with streamxf.open(path) as file:
        assert torch.load(file)["step"] == 12


def test_damaged_and_resumed(tmp_path: Path) -> None:
    assert_falls_back(tmp_path, [*copies(), EXAMPLES / "torch_save.py"], "state.pt.sxf")
