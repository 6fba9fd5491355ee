"""What asks for far more than is stored, through everything that streamxf does: memory and output stay in proportion to
the files, and it ends.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .made import LARGE

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits of a process are those of Linux")

TIMES = 64  # what is stored, or
FREE = 256 * 2**20  # bytes; docs/security.md
SLACK = 128 * 2**20  # for modules that are imported late, and buffers


SAMPLE = {"an item of 2^60 expanded elements"}


def outcomes(name: str) -> list[list[Any]]:
    """Of each tool its name, bytes that are stored, what went wrong, and bytes that it took and printed."""
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.hostile.measured", name]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line)[1:] for line in done.stdout.splitlines()]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "name", [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.exhaustive) for name in LARGE]
)
def test_every_tool_stays_in_proportion(name: str) -> None:
    found = outcomes(name)
    assert found
    for tool, stored, failed, memory, printed in found:
        most = max(FREE, TIMES * stored)
        assert failed is None, f"{tool}: {failed}"
        assert memory <= most + SLACK, f"{tool} took {memory >> 20} MiB, of {stored} bytes"
        assert printed <= most, f"{tool} printed {printed} bytes, of {stored}"
