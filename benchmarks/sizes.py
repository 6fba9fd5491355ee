"""Stored size as a fraction of the raw size: entropy, peers, FloatZip, and what was to be reached."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.data.gaussian import gaussian_matrices
from benchmarks.data.minilm import minilm
from benchmarks.data.quantized import E4M3, E5M2, fp8, mxfp4, nvfp4
from benchmarks.data.training import MOMENTS, SMOKE, Training, training_state
from benchmarks.dcp_sides import FLOATZIP, STOCK_ZSTD, State, raw_bytes, saved_bytes
from benchmarks.harness import Settings, progress
from benchmarks.kernels import encoded_bytes
from benchmarks.peers import blosc2_compress, flat_bytes, zipnn_compress
from benchmarks.result import Result, Table
from streamxf import FloatZip

DTYPES = {torch.bfloat16: ("bf16", 0.668), torch.float32: ("fp32", 0.832), torch.float16: ("fp16", 0.852)}
MOMENT_GOALS = {"exp_avg": 0.835, "exp_avg_sq": 0.80}
ABOVE_ENTROPY = 1.005  # what bytes of quantized weights may take
THREADS = 2
_PART = 2**24  # elements at a time, because NumPy counts in words of eight bytes

ENTROPY, ZIPNN, BLOSC2, ALONE = "entropy", "ZipNN", "blosc2", "FloatZip"
STOCK, OURS = "checkpoint, stock ZStandard", "checkpoint, FloatZip"


Case = tuple[str, State, float | None]
"""What it is, and what share of its size FloatZip and a checkpoint may take."""


def run(settings: Settings) -> Result:
    """Measure."""
    rows = []
    for label, state, goal in _cases(settings):
        progress(f"sizes: {label}")
        sizes = _sizes(settings, state)
        rows.append(
            {
                "data": label,
                "MiB": round(raw_bytes(state) / 2**20, 1),
                **sizes,
                "goal": f"<= {goal:g}" if goal else "",
                "reached by FloatZip": _reached(sizes[ALONE], goal),
                "by the checkpoint": _reached(sizes[OURS], goal),
            }
        )
    note = (
        "Stored bytes divided by the bytes of the tensors. *Entropy* is that of the byte planes of elements rotated "
        "by one bit, counted for each tensor. ZipNN, blosc2 (byte shuffle, zstd level 1) and *FloatZip* are the "
        "compressed tensors alone; a *checkpoint* counts every file. Gaussian weights have a standard deviation of "
        "0.02; all-MiniLM-L6-v2 was published in fp32 and is cast, its matrices to fp8 and four bits, too, counted "
        "with their scales: there the goal is 0.5% above the entropy. The training state is that of a byte-level "
        "transformer of 6 million parameters after 500 steps of AdamW over Python's standard library."
    )
    return Result("sizes", "Sizes", note, [Table(rows, digits=4)])


def _reached(size: float, goal: float | None) -> str:
    return "" if goal is None else "yes" if size <= goal else "**no**"


def _cases(settings: Settings) -> Iterator[Case]:
    """One after the other, so that only one is in memory."""
    mib = settings.pick(settings.mib, 2)
    for dtype, (short, goal) in DTYPES.items():
        yield f"Gaussian, {short}", gaussian_matrices(mib, mib / 8, dtype), goal
    for dtype, (short, goal) in DTYPES.items():
        yield f"MiniLM, {short}", minilm(dtype, settings.pick(None, 40)), goal
    weights = _matrices(settings)
    for short, dtype in (("e4m3", E4M3), ("e5m2", E5M2)):
        for rows, scale in ((False, "tensor"), (True, "row")):
            yield _near_entropy(f"MiniLM, fp8 {short}, a scale per {scale}", fp8(weights, dtype, rows=rows))
    yield _near_entropy("MiniLM, MXFP4", mxfp4(weights))
    yield _near_entropy("MiniLM, NVFP4", nvfp4(weights))
    del weights
    state = training_state(settings.cache, settings.pick(Training(), SMOKE))
    yield "training, parameters, fp32", state["parameters"], None
    for moment in MOMENTS:
        yield f"training, {moment}, fp32", state[moment], MOMENT_GOALS[moment]


def _matrices(settings: Settings) -> State:
    """The model's; in a smoke run the three smallest."""
    matrices = {name: tensor for name, tensor in minilm(torch.float32).items() if tensor.dim() == 2}
    names = sorted(matrices, key=lambda name: matrices[name].nbytes)
    return {name: matrices[name] for name in settings.pick(names, names[:3])}


def _near_entropy(label: str, state: State) -> Case:
    return label, state, round(ABOVE_ENTROPY * plane_entropy(state), 4)


def _sizes(settings: Settings, state: State) -> dict[str, float]:
    raw = raw_bytes(state)
    sizes = {
        ENTROPY: plane_entropy(state),
        ZIPNN: sum(len(zipnn_compress(tensor, THREADS)) for tensor in state.values()) / raw,
        BLOSC2: sum(len(blosc2_compress(tensor, THREADS)) for tensor in state.values()) / raw,
        ALONE: encoded_bytes(state, [FloatZip()]) / raw,
    }
    for name, side in ((STOCK, STOCK_ZSTD), (OURS, FLOATZIP)):
        sizes[name] = saved_bytes(side, state, settings.folder / "sizes", THREADS) / raw
    return sizes


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
