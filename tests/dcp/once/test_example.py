"""Jobs under torchrun: the example of docs/, and one of which a rank is killed."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.dcp.helpers import needs_gloo

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "read_once.py"
KILLED_JOB = Path(__file__).with_name("killed_job.py")

pytestmark = [pytest.mark.slow, needs_gloo]


def four_ranks(*command: str | Path) -> Any:
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", *command]
    return subprocess.run([sys.executable, *map(str, run)], capture_output=True, text=True, timeout=280)


def test_the_example_reads_a_quarter(tmp_path: Path) -> None:
    ended = four_ranks(EXAMPLE, tmp_path / "saved")
    assert ended.returncode == 0, ended.stderr
    lines = [line.split() for line in ended.stdout.splitlines() if "bytes read" in line]
    assert [line[0] for line in lines] == ["each:", "once:"]
    each, once = (int(line[1].replace(",", "")) for line in lines)
    assert 2 < each / once < 4  # the rows are read twice, the other matrix four times


@pytest.mark.parametrize("others", ["die", "stay"])
def test_a_job_ends_soon_after_a_rank_was_killed(tmp_path: Path, others: str) -> None:
    """Also if its other ranks handle the signal by which torchrun ends them."""
    ended = four_ranks(KILLED_JOB, tmp_path, others)
    seconds = time.monotonic() - float((tmp_path / "died").read_text())
    assert ended.returncode != 0
    assert "Signal 9 (SIGKILL) received by PID" in ended.stderr
    assert seconds < 30
