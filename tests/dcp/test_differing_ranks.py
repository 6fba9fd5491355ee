"""Two ranks that differ, in their writers or in what they have: the checkpoint is right, or the difference is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

from .rank_scenarios import run_ranks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"),
]

MODULE = f"{__package__}.differing_ranks"


def test_a_chain_that_reaches_some_ranks_alone_fails_the_save_by_name(tmp_path: Path) -> None:
    for report in run_ranks(2, tmp_path, "writers_of_two_kinds", module=MODULE):
        found = report["writers_of_two_kinds"]
        assert len(found) == 16
        for case, (failures, published) in found.items():
            assert not published, case
            (rank, text), *others = failures.items()
            assert not others
            assert text.startswith("ChainError: "), case
            if case.startswith("torch-"):
                assert rank == "1"
                assert "rank 0 saves by torch's own writer, and this rank by streamxf's" in text
            else:
                assert rank == "0"
            if case.startswith("streamxf-"):
                assert "these save by torch's own writer, and rank 0 by streamxf's: rank 1. Nothing was written" in text
            if "torch" in case:
                assert "STREAMXF_CHAIN" in text
