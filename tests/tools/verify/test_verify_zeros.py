"""Zeros in the place of a container's blocks and table: a report that is soon there, since zeros are no blocks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import streamxf
from streamxf import Checksum
from tests.dcp.helpers import data_files, save

HEADER = 300  # more than a header has, less than the first block


@pytest.mark.parametrize("with_metadata", [True, False])
def test_zeros_are_not_followed_as_blocks(tmp_path: Path, with_metadata: bool) -> None:
    save({"w": torch.randn(100_000)}, tmp_path, [Checksum()], block_size=1 << 16)
    (file,) = data_files(tmp_path)
    data = file.read_bytes()
    file.write_bytes(data[:HEADER] + bytes(len(data) - HEADER))
    if not with_metadata:
        (tmp_path / ".metadata").unlink()
    report = streamxf.verify(tmp_path)
    assert not report.ok
    assert any(damage.item == "w" for damage in report.damaged)
    assert report.blocks <= 10
    assert len(report.damaged) <= 6
