"""Entropies of samples, of order 0 and in bits, with the Miller-Madow correction for the sample's size.

Without it a sample of noise would look compressible (G. Miller, "Note on the bias of information estimates", 1955).
"""

from __future__ import annotations

import math

import numpy as np

from streamxf.codecs.floatzip.planes import Array

MAX_SAMPLE = 8192

_COUNTS = np.arange(1, MAX_SAMPLE + 1)
_LOGS = np.concatenate([[0.0], _COUNTS * np.log2(_COUNTS)])  # n log2 n


def entropy(histogram: Array) -> float:
    """Bits of each of at most `MAX_SAMPLE` values that were counted, one count for each kind."""
    kinds = int(np.count_nonzero(histogram))
    if kinds <= 1:
        return 0.0
    total = int(histogram.sum())
    bits = math.log2(total) - float(_LOGS[histogram].sum()) / total
    return bits + (kinds - 1) / (2 * total * math.log(2))


def entropy_of(values: Array) -> float:
    """Bits of each of at most `MAX_SAMPLE` bytes."""
    return entropy(np.bincount(values.ravel(), minlength=1))
