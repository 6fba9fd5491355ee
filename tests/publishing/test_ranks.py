"""Ranks that publish together, of which each gives what it holds."""

from pathlib import Path
from typing import Any

import pytest

import streamxf
from tests.dcp.process_groups import start_ranks
from tests.publishing.publishing_ranks import publish


@pytest.mark.parametrize("encrypts", [False, True])
def test_ranks_publish_what_they_hold(tmp_path: Path, encrypts: bool):
    options: dict[str, Any] = {}
    if encrypts:
        options = {"chain": "floatzip+encrypt", "keys": streamxf.Key(bytes(range(32)))}
    context = start_ranks(publish, (2, str(tmp_path / "meeting"), str(tmp_path / "run"), options), 2)
    while not context.join(timeout=1):
        pass
    assert streamxf.Checkpoint(tmp_path / "run/step-5", keys=options.get("keys"))["embed"].shape == (3000, 100)
