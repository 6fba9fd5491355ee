"""The payload of differences between two steps of training, beside what others store or send of them: bytes, and how
fast one core makes them and applies them.

The steps are AdamW's in form: Gaussian weights, of which each moves by the learning rate times a number of about 1.
bsdiff4 and moonclip are measured if they are installed, the former over the first 4 MiB: it takes seconds for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import zstandard

from benchmarks.data.gaussian import SCALE
from benchmarks.dcp_sides import BLOCK_SIZE
from benchmarks.harness import MIB, Phases, Settings, alternate, timed
from benchmarks.peers import flat_bytes
from benchmarks.result import Result, Row, Spread, Table, goal_row
from streamxf.codecs.floatzip import differences

ROW = 4096  # elements
GOALS = {6.1e-7: 0.0090, 1.82e-6: 0.0196, 6e-6: 0.0435, 6e-5: 0.155}
"""Of raw, by the distance that a weight moves: 2.2, 5.4, 14 and 57% of them change in bf16."""
FEW, FEW_GOAL = 6.1e-7, 0.0130
SPEEDS = {True: ("differences", 3.0), False: ("differences, contexts=False", 7.0)}
SLOW = 4 * MIB  # that bsdiff4 is given
BYTES = "Bytes, of raw"

Blocks = list[tuple[memoryview, memoryview, int]]
"""Blocks before and after a step, and how many elements of a row lie before each."""


def run(settings: Settings) -> Result:
    """Measure."""
    size = settings.pick(32 * MIB, MIB // 2)
    goals: list[Row] = []
    bytes_of: list[Row] = []
    for far, goal in GOALS.items():
        base, new = weights(size, far)
        share = float((base != new).float().mean())
        found = {name: taken / size for name, taken in others(base, new).items()}
        for contexts, (name, _) in SPEEDS.items():
            found[name] = sum(map(len, encoded(blocks(base, new), contexts))) / size
        goals.append(goal_row(f"{share:.1%} of bf16 changed", "raw", Spread.of([found["differences"]]), goal))
        bytes_of.append({"changed": f"{share:.1%}", **{name: f"{part:.5f}" for name, part in sorted(found.items())}})
        if far == FEW:
            without = Spread.of([found[SPEEDS[False][0]]])
            goals.append(goal_row(f"{share:.1%}, `contexts=False`", "raw", without, FEW_GOAL))
            taken = alternate(
                {name: Speed(blocks(base, new), contexts) for contexts, (name, _) in SPEEDS.items()},
                settings.rounds,
                "differences",
            )
            for name, limit in SPEEDS.values():
                for phase, seconds in taken[name].items():
                    speed = Spread.of([size / 1e9 / each for each in seconds])
                    goals.append(goal_row(f"{phase}, {share:.1%}, {name}", "GB/s of raw", speed, limit, at_least=True))
    note = (
        f"{size // MIB} MiB in blocks of 1 MiB, without headers and framing. Bytes are shares of the raw ones; beside "
        "differences, positions as int32 with new values, XOR under zstd at level 3, and where they were installed "
        "(`pip install bsdiff4 moonclip`) what moonclip's second save adds to its folder, and bsdiff4's patch of the "
        f"first 4 MiB. Speeds: one thread, with the CRC, {settings.rounds} rounds after one to warm up."
    )
    return Result("differences", "Differences between steps", note, [Table(goals, digits=4), Table(bytes_of, BYTES)])


def weights(size: int, far: float) -> tuple[torch.Tensor, torch.Tensor]:
    """`size` bytes of bf16 before and after a step, of which the masters are fp32."""
    generator = torch.Generator().manual_seed(1)
    masters = torch.empty(size // 2 // ROW, ROW).normal_(0, SCALE, generator=generator)
    step = torch.empty_like(masters).normal_(generator=generator).clamp_(-2.5, 2.5)
    return masters.bfloat16(), (masters - far * step).bfloat16()


def blocks(base: torch.Tensor, new: torch.Tensor) -> Blocks:
    """As a save cuts them."""
    old, made = (memoryview(flat_bytes(each)) for each in (base, new))
    begins = range(0, len(old), BLOCK_SIZE)
    return [(old[at : at + BLOCK_SIZE], made[at : at + BLOCK_SIZE], at // 2 % ROW) for at in begins]


def encoded(pairs: Blocks, contexts: bool) -> list[memoryview]:
    """The payloads; AssertionError where a block would be stored whole."""
    return list(_payloads(pairs, contexts))


def _payloads(pairs: Blocks, contexts: bool) -> Iterator[memoryview]:
    for base, new, before in pairs:
        payload = differences.encode(base, new, "bfloat16", row=ROW, before=before, contexts=contexts)
        if payload is None:
            raise AssertionError("there is no kernel, or a difference is no smaller than half of a block")
        yield payload


class Speed:
    """Encodes and decodes all blocks when called, in this thread; AssertionError if one does not come back."""

    def __init__(self, pairs: Blocks, contexts: bool) -> None:
        self._pairs, self._contexts = pairs, contexts
        self._out = memoryview(bytearray(b"\1") * BLOCK_SIZE)

    def __call__(self) -> Phases:
        payloads: list[memoryview] = []
        encoding = timed(lambda: payloads.extend(_payloads(self._pairs, self._contexts)))
        decoding = timed(lambda: self._decode(payloads))
        if bytes(self._out[: len(self._pairs[-1][1])]) != bytes(self._pairs[-1][1]):
            raise AssertionError("the last block did not come back as it was")
        return {"encode": encoding, "decode": decoding}

    def _decode(self, payloads: list[memoryview]) -> None:
        for (base, _, _), payload in zip(self._pairs, payloads, strict=True):
            differences.decode(base, payload, self._out[: len(base)])


def others(before: torch.Tensor, after: torch.Tensor) -> dict[str, int]:
    """How many bytes others store."""
    base, new = flat_bytes(before), flat_bytes(after)
    changed = int((base.view(np.uint16) != new.view(np.uint16)).sum())
    found = {
        "int32 and values": (4 + 2) * changed,
        "XOR, zstd": len(zstandard.compress((base ^ new).tobytes(), 3)),
    }
    with suppress(ImportError):
        found["moonclip"] = moonclip(import_module("moonclip.pytorch").CheckpointManager, before, after)
    with suppress(ImportError):
        patch = import_module("bsdiff4").diff(base[:SLOW].tobytes(), new[:SLOW].tobytes())
        found["bsdiff4"] = len(patch) * len(base) // len(base[:SLOW])
    return found


def moonclip(manager: Any, *states: torch.Tensor) -> int:
    """What its second save adds to its folder."""
    with TemporaryDirectory() as folder:
        saving, sizes = manager(folder, async_save=False), [0]
        for step, state in enumerate(states):
            saving.save(step=step, model=SimpleNamespace(state_dict=partial(dict, weight=state)))
            sizes.append(sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()))
    return sizes[-1] - sizes[-2]
