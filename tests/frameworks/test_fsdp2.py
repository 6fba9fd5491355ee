"""docs/examples/fsdp2.py, killed and resumed; and with its two lines about `install` left out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from dcp.helpers import stored_chain
from dcp.test_install_environment import with_entry_points

import streamxf

from .killed import EXAMPLES, ROOT, assert_resumes, finished, two_ranks

pytestmark = pytest.mark.slow


def test_killed_and_resumed(tmp_path: Path) -> None:
    folder = assert_resumes(tmp_path, two_ranks(EXAMPLES / "fsdp2.py"))
    assert streamxf.latest(str(folder)) == str(folder / "step-12")
    assert {stored_chain(path, None) for path in folder.glob("step-*")} == {"floatzip+checksum"}


def test_ranks_by_environment(tmp_path: Path) -> None:
    """torchrun hands its environment on, and the key's location with it."""
    example = (EXAMPLES / "fsdp2.py").read_text()
    without = example.replace('streamxf.install(chain="floatzip+checksum")\n', "")
    assert without != example
    script, key = tmp_path / "plain.py", streamxf.Key.generate()
    script.write_text(without)
    streamxf.write_key(tmp_path / "key", key)
    finished(
        two_ranks(script, tmp_path / "run"),
        PYTHONPATH=os.pathsep.join(map(str, [with_entry_points(tmp_path), ROOT])),
        STREAMXF_CHAIN="zstd+encrypt",
        STREAMXF_KEYS=f"file:{tmp_path / 'key'}",
    )
    assert {stored_chain(path, key) for path in (tmp_path / "run").glob("step-*")} == {"zstd+encrypt"}
