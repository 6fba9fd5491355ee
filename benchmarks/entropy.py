"""Order-0 entropy of byte planes: what a coder that looks at each byte by itself can reach."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.dcp_sides import State
from benchmarks.peers import flat_bytes

_PART = 2**24  # elements at a time, because NumPy counts in words of eight bytes


def plane_entropy(state: State) -> float:
    """The entropy of a state's byte planes as a fraction of its size.

    Each element is rotated left by one bit, so that the exponent fills the highest byte and the sign goes to the
    mantissa; the bytes of each place are then counted over each tensor.
    """
    bits = sum(_bits(tensor) for tensor in state.values())
    return bits / (8 * sum(tensor.nbytes for tensor in state.values()))


def _bits(tensor: torch.Tensor) -> float:
    width = tensor.element_size()
    words = flat_bytes(tensor).view(f"<u{width}")
    counts = np.zeros((width, 256), np.int64)
    for start in range(0, len(words), _PART):
        part = words[start : start + _PART]
        rotated = (part << 1) | (part >> (8 * width - 1))
        for place in range(width):
            counts[place] += np.bincount(((rotated >> (8 * place)) & 0xFF).astype(np.uint8), minlength=256)
    share = counts[counts > 0] / len(words)
    return float(-np.sum(counts[counts > 0] * np.log2(share)))
