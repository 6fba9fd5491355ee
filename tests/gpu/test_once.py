"""Loads that read once into tensors of a device. What ranks send each other goes over gloo, so they can share one."""

from pathlib import Path

import torch

from tests.dcp.helpers import needs_gloo
from tests.dcp.rank_scenarios import run_ranks

pytestmark = needs_gloo


def test_what_several_ranks_need_arrives_on_their_device(device: torch.device, tmp_path: Path) -> None:
    (tmp_path / "device").write_text(device.type)
    for report in run_ranks(2, tmp_path, "on_device", module=f"{__package__}.once_ranks"):
        found = report["on_device"]
        for number in range(2):
            assert found[f"wrong {number}"] == []
            assert found[f"read {number}"] == ["once", ""]
            assert found[f"received {number}"] > 0
        assert device.type == "cuda" or found["late"]
