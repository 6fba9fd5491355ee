"""Entropies of samples, of order 0 and in bits.

Shannon's has the Miller-Madow correction for the sample's size, without which a sample of noise would look compressible
(G. Miller, "Note on the bias of information estimates", 1955).
"""

from __future__ import annotations

import math

import numpy as np

from streamxf.codecs.floatzip.planes import Array

MAX_SAMPLE = 24 * 1024

_COUNTS = np.arange(1, MAX_SAMPLE + 1)
_LOGS = np.concatenate([[0.0], _COUNTS * np.log2(_COUNTS)])  # n log2 n


def collision_bits(histogram: Array, total: int) -> float:
    """The collision entropy (Renyi's, of order 2) of counted values, without bias.

    It is never more than Shannon's entropy, the same for noise, and a single operation of numpy: where samples are
    taken, workers wait for each other.
    """
    pairs = int(np.dot(histogram, histogram)) - total
    return math.log2(total * (total - 1) / pairs) if pairs else math.inf


def entropies(histograms: Array) -> list[float]:
    """Bits of each of at most `MAX_SAMPLE` values that were counted.

    - `histograms`: how often each kind was met; as many values in each sample.
    """
    total = int(histograms[0].sum())
    kinds = (histograms > 0).sum(axis=1)
    bits = math.log2(total) - _LOGS[histograms].sum(axis=1) / total + (kinds - 1) * (0.5 / math.log(2) / total)
    bits[kinds == 1] = 0.0  # exactly
    found: list[float] = bits.tolist()
    return found


def entropy_of(values: Array) -> float:
    """Bits of each of at most `MAX_SAMPLE` bytes."""
    return entropies(np.bincount(values.ravel(), minlength=1)[None])[0]
