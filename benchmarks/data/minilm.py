"""The weights of all-MiniLM-L6-v2, a published model of 23 million parameters."""

from __future__ import annotations

import torch

from benchmarks.dcp_sides import State
from streamxf.cli.demo import PACKAGE, load_model


def minilm(dtype: torch.dtype, count: int | None = None) -> State:
    """The model with its floating-point tensors, or the `count` smallest, in `dtype`; they were published in fp32.
    FileNotFoundError if the package with the weights is not installed.
    """
    weights = load_model()
    if weights is None:
        raise FileNotFoundError(f"the package {PACKAGE} is missing; make bench installs it")
    floats = {name: tensor for name, tensor in weights.items() if tensor.is_floating_point()}
    names = sorted(floats, key=lambda name: floats[name].nbytes)[:count] if count else floats
    return {name: floats[name].to(dtype) for name in names}
