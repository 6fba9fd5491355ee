"""What `Encrypt` adds to `[FloatZip()]`: time of a save and a load, and bytes for each item."""

from __future__ import annotations

import torch

import streamxf
from benchmarks.data.gaussian import gaussian_items, gaussian_matrices
from benchmarks.dcp_sides import FLOATZIP, KEY, PHASES, DcpSide, compare, saved_bytes
from benchmarks.harness import Settings
from benchmarks.result import Result, Row, Spread, Table, goal_row, ratios

ENCRYPTED = DcpSide(
    "streamxf, FloatZip + Encrypt", False, lambda: [streamxf.FloatZip(), streamxf.Encrypt(KEY)], keyed=True
)
RECIPIENTS = 16
PUBLIC = [streamxf.PrivateKey.generate().public for _ in range(RECIPIENTS)]
TO_MANY = DcpSide(
    f"streamxf, FloatZip + Encrypt, {RECIPIENTS} public keys, signed",
    False,
    lambda: [streamxf.FloatZip(), streamxf.Encrypt(PUBLIC, signer=streamxf.SigningKey.generate())],
)
SIDES = (FLOATZIP, ENCRYPTED)
PLAIN = "`[FloatZip()]`"
TIME_GOAL = 1.10
ITEM_GOAL = 200


def run(settings: Settings) -> Result:
    """Measure."""
    mib = settings.pick(settings.mib, 2)
    goals: list[Row] = []
    seconds: list[Row] = []
    for dtype, short in ((torch.bfloat16, "bf16"), (torch.float32, "fp32")):
        state = gaussian_matrices(mib, mib / 8, dtype)
        for threads in (1, 2):
            label = f"encryption: {short}, t={threads}"
            taken, _ = compare(SIDES, state, settings, threads, label)
            for phase in PHASES:
                ratio = ratios(taken[ENCRYPTED.name][phase], taken[FLOATZIP.name][phase])
                goals.append(goal_row(f"{phase}, {mib} MiB of {short}, t={threads}", PLAIN, ratio, TIME_GOAL))
            for side in SIDES:
                phases = {f"{phase}, s": Spread.of(taken[side.name][phase]) for phase in PHASES}
                seconds.append({"side": side.name, "data": f"{short}, t={threads}", **phases})
    state = gaussian_items(settings.pick(5000, 50), 4096, torch.float32)
    for side, what in ((ENCRYPTED, ""), (TO_MANY, f", {RECIPIENTS} recipients and a signature")):
        without, stored = (saved_bytes(each, state, settings.folder / "encryption", 1) for each in (FLOATZIP, side))
        added = Spread.of([(stored - without) / len(state)])
        goals.append(goal_row(f"bytes for each of {len(state):,} items of 4 KiB{what}", PLAIN, added, ITEM_GOAL))
    note = (
        f"Ratios of seconds within each of {settings.rounds} rounds, after one to warm up. Bytes: of the whole "
        "checkpoint, with the wrapped keys in `.metadata`, shared out among the items."
    )
    return Result("encryption", "What encryption costs", note, [Table(goals), Table(seconds, "Seconds")])
