"""What `Encrypt` adds to `[FloatZip()]`: time of a save and a load, and bytes for each item."""

from __future__ import annotations

import shutil

import torch
import torch.distributed.checkpoint as dcp

import streamxf
from benchmarks.data.gaussian import gaussian_layers
from benchmarks.dcp_sides import FLOATZIP, KEY, DcpSide, State, compare
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
        state = gaussian_layers(mib, dtype)
        for threads in (1, 2):
            label = f"encryption: {short}, t={threads}"
            taken, _ = compare(SIDES, state, settings.folder / "encryption", threads, settings.rounds, label)
            for phase in ("save", "load"):
                ratio = ratios(taken[ENCRYPTED.name][phase], taken[FLOATZIP.name][phase])
                goals.append(goal_row(f"{phase}, {mib} MiB of {short}, t={threads}", PLAIN, ratio, TIME_GOAL))
            seconds += [
                {"side": side.name, "data": f"{short}, t={threads}"}
                | {f"{phase}, s": Spread.of(taken[side.name][phase]) for phase in ("save", "load")}
                for side in SIDES
            ]
    count = settings.pick(5000, 50)
    for side, what in ((ENCRYPTED, ""), (TO_MANY, f", {RECIPIENTS} recipients and a signature")):
        added = Spread.of([_added(settings, side, count)])
        goals.append(goal_row(f"bytes for each of {count:,} items of 4 KiB{what}", PLAIN, added, ITEM_GOAL))
    note = (
        f"Ratios of seconds within each of {settings.rounds} rounds, after one to warm up. Bytes: of the whole "
        "checkpoint, with the wrapped keys in `.metadata`, shared out among the items."
    )
    return Result("encryption", "What encryption costs", note, [Table(goals), Table(seconds, "Seconds")])


def _added(settings: Settings, side: DcpSide, count: int) -> float:
    """Bytes that encryption adds for each item."""
    state = {f"layer.{number}.weight": torch.randn(1024) for number in range(count)}
    return (_stored(settings, side, state) - _stored(settings, FLOATZIP, state)) / count


def _stored(settings: Settings, side: DcpSide, state: State) -> int:
    folder = settings.folder / "encryption-items"
    dcp.save(state, storage_writer=side.writer(folder, 1))
    size = sum(file.stat().st_size for file in folder.iterdir())
    shutil.rmtree(folder)
    return size
