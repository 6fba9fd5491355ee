"""The example of docs/ under torchrun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "read_once.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"),
]


def test_the_example_reads_a_quarter(tmp_path: Path) -> None:
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", EXAMPLE, tmp_path / "saved"]
    ended = subprocess.run([sys.executable, *map(str, run)], capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stderr
    lines = [line.split() for line in ended.stdout.splitlines() if "bytes read" in line]
    assert [line[0] for line in lines] == ["each:", "once:"]
    each, once = (int(line[1].replace(",", "")) for line in lines)
    assert 2 < each / once < 4  # the rows are read twice, the other matrix four times
