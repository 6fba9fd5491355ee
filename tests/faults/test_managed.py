"""A training job that is killed again and again, and resumes by itself: a fixed part of what `make torture` tries."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from tests.faults.conftest import Try

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"),
]


def test_a_training_job_that_is_killed_comes_to_its_end_by_itself(passes: Try) -> None:
    found = passes("managed", "in a thread", "floatzip+checksum", kills=3, at_least=3)
    assert found["runs"] >= 1


@pytest.mark.s3
@pytest.mark.exhaustive
def test_so_does_one_that_saves_to_an_s3_server(passes: Try) -> None:
    passes("managed_s3", "in the foreground", "floatzip+checksum", kills=2, at_least=2)
