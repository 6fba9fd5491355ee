"""Synthetic weights: to a compressor, Gaussian layers look as trained ones do."""

from __future__ import annotations

import torch

from benchmarks.dcp_sides import State
from benchmarks.harness import MIB

SCALE = 0.02  # standard deviation; of the usual size for the weights of a transformer


def gaussian_layers(mib: float, dtype: torch.dtype, layers: int = 8) -> State:
    """Make layers of Gaussian weights, `mib` MiB together; rows have 1024 elements where they are long enough."""
    generator = torch.Generator().manual_seed(1)
    elements = int(mib * MIB) // dtype.itemsize // layers
    shape = (elements // 1024, 1024) if elements >= 1024 else (elements,)
    return {
        f"layers.{number}.weight": torch.empty(shape).normal_(0, SCALE, generator=generator).to(dtype)
        for number in range(layers)
    }


def gaussian_items(count: int, size: int, dtype: torch.dtype = torch.bfloat16) -> State:
    """Make `count` tensors of `size` bytes, each with memory of its own."""
    generator = torch.Generator().manual_seed(1)
    values = torch.empty(count, size // dtype.itemsize).normal_(0, SCALE, generator=generator).to(dtype)
    return {f"layers.{number}.bias": row.clone() for number, row in enumerate(values)}
