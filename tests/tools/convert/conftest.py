"""The checkpoint that most conversions begin with."""

from pathlib import Path

import pytest
from torch.distributed.checkpoint import save as dcp_save

import streamxf
from tests.tools.convert.states import trained


@pytest.fixture
def source(tmp_path: Path) -> Path:
    dcp_save(trained(), storage_writer=streamxf.FileSystemWriter(tmp_path / "source", sync_files=False))
    return tmp_path / "source"
