"""Synthetic weights: to a compressor, Gaussian layers look as trained ones do."""

from __future__ import annotations

import math

import torch

from benchmarks.dcp_sides import State
from benchmarks.harness import MIB, Settings

SCALE = 0.02  # standard deviation; of the usual size for the weights of a transformer
TENSOR_MIB = (24, 4, 128, 0.5)
"""Sizes of tensors that stock DCP and streamxf are compared at, those that shards have in training first."""


def tensor_sizes(settings: Settings) -> list[float]:
    """`TENSOR_MIB`, or very small ones in the same proportions."""
    return [settings.pick(mib, mib / 64) for mib in TENSOR_MIB]


def gaussian_matrices(mib: float, tensor_mib: float, dtype: torch.dtype) -> State:
    """Make matrices of `tensor_mib` MiB each and about `mib` MiB together, each with memory of its own.

    They are at most four times as wide as they are high, and as many columns as a power of two: 24 MiB of bf16 are
    3072 x 4096.
    """
    generator = torch.Generator().manual_seed(1)
    elements = int(tensor_mib * MIB) // dtype.itemsize
    columns = 1 << math.ceil(math.log2(elements) / 2)
    return {
        f"layers.{number}.weight": torch.empty(elements // columns, columns)
        .normal_(0, SCALE, generator=generator)
        .to(dtype)
        for number in range(max(1, round(mib / tensor_mib)))
    }


def gaussian_items(count: int, size: int, dtype: torch.dtype) -> State:
    """Make `count` tensors of `size` bytes, each with memory of its own."""
    generator = torch.Generator().manual_seed(1)
    values = torch.empty(count, size // dtype.itemsize).normal_(0, SCALE, generator=generator).to(dtype)
    return {f"layers.{number}.bias": row.clone() for number, row in enumerate(values)}
