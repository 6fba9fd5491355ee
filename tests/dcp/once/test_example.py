"""Jobs under torchrun: the example of docs/, and one of which a rank is killed."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch import multiprocessing
from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from tests.dcp.helpers import needs_gloo
from tests.dcp.process_groups import PRELOAD

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "read_once.py"
KILLED_JOB = Path(__file__).with_name("killed_job.py")

pytestmark = [pytest.mark.slow, needs_gloo]


def four_ranks(logs: Path, *command: str | Path) -> str:
    """What ranks print that are copies of a process that has imported torch."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)
    options = ["--standalone", "--nproc-per-node=4", "--start-method=forkserver", "--run-path", "--redirects=1"]
    with ThreadPoolExecutor(1) as pool:  # outside of the main thread it leaves signal handlers alone
        pool.submit(run.main, [*options, f"--log-dir={logs}", *map(str, command)]).result()
    return "".join(file.read_text() for file in logs.rglob("stdout.log"))


def test_the_example_reads_a_quarter(tmp_path: Path) -> None:
    printed = four_ranks(tmp_path / "logs", EXAMPLE, tmp_path / "saved")
    lines = [line.split() for line in printed.splitlines() if "bytes read" in line]
    assert [line[0] for line in lines] == ["each:", "once:"]
    each, once = (int(line[1].replace(",", "")) for line in lines)
    assert 2 < each / once < 4  # the rows are read twice, the other matrix four times


@pytest.mark.parametrize("others", ["die", "stay"])
def test_a_job_ends_soon_after_a_rank_was_killed(tmp_path: Path, others: str) -> None:
    """Also if its other ranks handle the signal by which torchrun ends them."""
    with pytest.raises(ChildFailedError, match=r"Signal 9 \(SIGKILL\) received by PID"):
        four_ranks(tmp_path / "logs", KILLED_JOB, tmp_path, others)
    assert time.monotonic() - float((tmp_path / "died").read_text()) < 30
