"""docs/examples/fsdp2.py, killed and resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
from dcp.helpers import stored_chain

import streamxf

from .killed import EXAMPLES, assert_resumes, two_ranks

pytestmark = pytest.mark.slow


def test_killed_and_resumed(tmp_path: Path) -> None:
    folder = assert_resumes(tmp_path, two_ranks(EXAMPLES / "fsdp2.py"))
    assert streamxf.latest(str(folder)) == str(folder / "step-12")
    assert {stored_chain(path, None) for path in folder.glob("step-*")} == {"floatzip+checksum"}
