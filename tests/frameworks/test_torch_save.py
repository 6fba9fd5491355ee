"""docs/examples/torch_save.py, killed and resumed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import streamxf

from .killed import EXAMPLES, assert_resumes

pytestmark = pytest.mark.slow


def test_killed_and_resumed(tmp_path: Path) -> None:
    path = assert_resumes(tmp_path, [sys.executable, EXAMPLES / "torch_save.py"]) / "last.pt.sxf"
    with pytest.raises(Exception, match="load"):
        torch.load(path)
    with streamxf.open(path) as file:
        assert torch.load(file)["step"] == 12
