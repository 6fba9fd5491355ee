"""Weights that train a little, as those of a policy do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import streamxf


class Policy:
    """Tensors by name, of which a few elements change with each step, also to -0.0 and to NaNs of odd bits."""

    def __init__(self, seed: int = 0) -> None:
        self._random = torch.Generator().manual_seed(seed)
        self.tensors = {
            "embed": self._normal(3000, 100).to(torch.bfloat16),
            "layers.0.weight": self._normal(400, 300),
            "layers.0.frozen": self._normal(900, 64).to(torch.float16),
            "layers.0.count": torch.arange(2000),
            "norm": torch.ones(64),
            "scale": torch.tensor(0.5),
            "empty": torch.empty(0, 3),
        }

    def _normal(self, *shape: int) -> torch.Tensor:
        return 0.02 * torch.randn(shape, generator=self._random)

    def step(self) -> None:
        for name in ("embed", "layers.0.weight"):
            flat = self.tensors[name].view(-1)
            where = torch.randperm(flat.numel(), generator=self._random)[: flat.numel() // 50]
            flat[where] *= 1.01
            flat[where[0]], flat[where[1]] = -0.0, 0.0
        self.tensors["norm"].view(torch.int32)[int(torch.randint(64, (), generator=self._random))] = 0x7FC00001
        self.tensors["layers.0.count"] += 1
        self.tensors["scale"] += 1


def assert_same(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Bit for bit."""
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(bits(found[name]), bits(tensor)), name


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def copies(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in policy.tensors.items()}


def publisher(run: Path | str, **how: Any) -> streamxf.Publisher:
    return streamxf.Publisher(run, chain=how.pop("chain", "floatzip+checksum"), **how)
