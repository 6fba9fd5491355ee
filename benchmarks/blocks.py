"""FloatZip's two implementations, block by block in one thread."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

import streamxf
from benchmarks.data.gaussian import gaussian_layers
from benchmarks.dcp_sides import BLOCK_SIZE, State
from benchmarks.harness import MIB, Phases, Settings, alternate
from benchmarks.kernels import OneThread
from benchmarks.result import Result, Row, Table
from benchmarks.spread import Spread, ratios
from streamxf.codecs.floatzip import kernel

DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "fp8 e4m3": torch.float8_e4m3fn,
    "fp8 e5m2": torch.float8_e5m2,
}
SIDES = ("compiled", "numpy")


def run(settings: Settings) -> Result:
    """Measure. Raises RuntimeError if the kernel was not built, since there is nothing to compare then."""
    if kernel.compiled is None:
        raise RuntimeError("FloatZip's kernel was not built, or STREAMXF_KERNEL=numpy is set")
    mib = settings.pick(64, 2)
    blocks = mib * MIB // BLOCK_SIZE
    speeds: list[Row] = []
    for name, dtype in DTYPES.items():
        state = _weights(mib, dtype)
        coder = OneThread(state, [streamxf.FloatZip()], time.thread_time)
        taken = alternate({side: _with(side, coder) for side in SIDES}, settings.rounds, f"blocks: {name}")
        each = {
            (side, phase): Spread.of([1e3 * seconds / blocks for seconds in taken[side][phase]])
            for side in SIDES
            for phase in ("compress", "decompress")
        }
        for phase, verb in (("compress", "encode"), ("decompress", "decode")):
            speeds.append(
                {
                    "what": f"{verb}, {name}",
                    "compiled, ms": each["compiled", phase],
                    "numpy, ms": each["numpy", phase],
                    "compiled / numpy": ratios(taken["compiled"][phase], taken["numpy"][phase]),
                    "compiled, GB/s": Spread.of([mib * MIB / 1e9 / seconds for seconds in taken["compiled"][phase]]),
                }
            )
    note = (
        f"{blocks} blocks of {BLOCK_SIZE // MIB} MiB of Gaussian weights, from memory to memory under "
        f"`[FloatZip()]` in one thread, the implementations in turn: milliseconds of CPU for a block, medians "
        f"of {settings.rounds} rounds."
    )
    return Result("blocks", "FloatZip's implementations", note, [Table(speeds)])


def _weights(mib: int, dtype: torch.dtype) -> State:
    """Gaussian weights; those of one byte are scaled to use their range, as is usual."""
    if dtype.itemsize > 1:
        return gaussian_layers(mib, dtype)
    wide = gaussian_layers(2 * mib, torch.bfloat16)
    return {name: (tensor * 50).to(dtype) for name, tensor in wide.items()}


def _with(side: str, coder: OneThread) -> Callable[[], Phases]:
    def measure() -> Phases:
        built = kernel.compiled
        if side == "numpy":
            kernel.compiled = None
        try:
            return coder.compress_and_decompress()
        finally:
            kernel.compiled = built

    return measure
