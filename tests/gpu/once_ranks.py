"""Ranks that read once into tensors of a device, which they share. Every function here runs in a process of its own."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.dcp.once.once_ranks import loaded, same, values
from tests.late_copies import LateCopies, pretend

from .helpers import KEY, blank, late, on_host, save, side_stream, weights


def on_device(folder: Path) -> Any:
    """Load twice, the second time in another stream. Each rank also has a tensor of its own, which it reads alone."""
    device, copies = torch.device((folder / "device").read_text()), LateCopies()
    with pytest.MonkeyPatch.context() as patched:
        if device.type == "cpu":
            pretend(patched, copies)
        shared = {name: each.to(device) if isinstance(each, torch.Tensor) else each for name, each in values().items()}
        wanted = shared | {f"of rank {dist.get_rank()}": weights(3, device)}
        save(wanted, folder / "saved")
        found: dict[str, Any] = {}
        stream, _ = side_stream(device)
        for number in range(2):
            with stream if number else nullcontext():
                late(device)
                target = blank(wanted) | odd_targets(device)
                report = loaded(folder / "saved", target, keys=KEY)
                found[f"wrong {number}"] = same(on_host(target), on_host(wanted | {"w0": wanted["w0"].float()}))
            found[f"read {number}"] = report.read, report.reason
            found[f"received {number}"] = report.received_bytes
        return found | {"late": copies.made}


def odd_targets(device: torch.device) -> dict[str, torch.Tensor]:
    """Targets of another dtype, with gaps, that require gradients, on the host, and transposed."""
    return {
        "w0": torch.zeros(700, 1024, device=device),
        "w1": torch.zeros(701, 2048, dtype=torch.bfloat16, device=device)[:, ::2],
        "w2": torch.zeros(702, 1024, dtype=torch.bfloat16, device=device).requires_grad_(),
        "w3": torch.zeros(703, 1024, dtype=torch.bfloat16),  # on the host
        "large": torch.zeros(1024, 1100, device=device).t(),
    }
