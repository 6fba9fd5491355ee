"""The process that saves in the background: signals that come to every process of a job, and its end."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dcp.helpers import needs_gloo
from tests.polling import wait_until

from .jobs import Job
from .runs import complete, resumed

pytestmark = [pytest.mark.slow, needs_gloo]


def wait_for_the_end(process: int) -> None:
    """Until it is gone, or nobody has asked yet how it ended."""
    command = Path(f"/proc/{process}/cmdline")
    wait_until(lambda: not command.exists() or not command.read_bytes())


@pytest.fixture
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    with Job("saving_job", tmp_path, *getattr(request, "param", ())) as made:
        yield made


@pytest.mark.parametrize("when", ["training", "saving 1"], ids=["while that process starts", "while it saves"])
def test_a_signal_to_every_process_of_the_job_leads_to_a_last_save(job: Job, when: str) -> None:
    job.wait_for(when)
    job.tell(signal.SIGTERM, signal.SIGUSR1)
    job.wait_for("asked")
    job.ends()
    wait_for_the_end(job.wait_for("saving 1"))
    first, *_, last = complete(job.run)
    assert first == "step-1"
    assert resumed(job.run) == int(last[5:])


def test_it_ends_with_the_job_and_publishes_nothing_afterwards(job: Job) -> None:
    saver = job.wait_for("saving 1")
    os.kill(job.process.pid, signal.SIGKILL)
    job.process.wait()
    wait_for_the_end(saver)
    assert complete(job.run) == []
    assert resumed(job.run) is None


@pytest.mark.parametrize("job", [["wait"]], indirect=True, ids=[""])
def test_where_it_is_dead_saves_are_made_in_the_foreground(job: Job) -> None:
    job.wait_for("saved")
    os.kill(job.wait_for("saving 1"), signal.SIGKILL)
    job.wait_for("asked")
    job.tell(signal.SIGTERM)
    job.ends()
    assert len(complete(job.run)) == 3
