"""A stock ``.metadata`` that is one hole is refused before it is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import streamxf
from streamxf.errors import MetadataError


def test_metadata_that_is_a_hole_is_not_read(tmp_path: Path) -> None:
    (tmp_path / ".metadata").touch()
    os.truncate(tmp_path / ".metadata", 2**30)
    with pytest.raises(MetadataError, match="holes"):
        streamxf.Checkpoint(tmp_path)
