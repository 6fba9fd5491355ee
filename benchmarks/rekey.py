"""Changing who may read large checkpoints: seconds, and memory. Linux only.

The checkpoints are made up: metadata as a save by several ranks leaves it, beside sparse data files that nobody reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import streamxf
from benchmarks.child import in_child
from benchmarks.costs import need_proc, peak_added
from benchmarks.harness import MIB, Settings, progress, timed
from benchmarks.result import Result, Row, Spread, Table, goal_row
from streamxf.chain import Chains
from streamxf.checkpoint.datafile import FileRecord
from streamxf.checkpoint.publish import assemble
from streamxf.checkpoint.saving import Extensions
from streamxf.format.items import Chunk, Item, Place, TensorItem

GIB = 1024 * MIB
GOAL_SECONDS = 10
CASES = {"64 GiB of data": (8, 512, 64), "100,000 items": (8, 100_000, 8), "512 ranks": (512, 102_400, 64)}
SMOKE_CASES = {"1 GiB of data": (2, 40, 1)}
ALL = "rekey, to a key"
HYBRID = "rekey, to a hybrid public key and a key"

OLD, NEW = streamxf.Key(bytes(range(32))), streamxf.Key(bytes(range(1, 33)))
PAIR = streamxf.PrivateKey(bytes(range(2, 34)))


def run(settings: Settings) -> Result:
    """Measure."""
    need_proc()
    rows: list[Row] = []
    goals: list[Row] = []
    for label, (ranks, items, gib) in settings.pick(CASES, SMOKE_CASES).items():
        progress(f"rekey: {label}")
        size = {"ranks": ranks, "items": items, "gib": gib}
        with TemporaryDirectory(dir=settings.folder) as folder:
            found = in_child("benchmarks.rekey", "child", folder=folder, **size, rounds=settings.rounds)
        about = {"ranks": ranks, "items": items, "data, GiB": gib, "metadata, MiB": found["metadata"] / MIB}
        for name, (seconds, added) in found["operations"].items():
            measured = Spread.of(seconds)
            rows.append(
                {"checkpoint": label, **about, "operation": name, "seconds": measured, "MiB added": added / MIB}
            )
            if name == ALL:
                goals.append(goal_row(f"seconds, {label}", "", measured, GOAL_SECONDS))
    note = (
        "`streamxf.rekey` and its kin on checkpoints that were made up: metadata as a save by several ranks leaves it, "
        "each with a data key of its own, beside sparse data files. An item is one chunk of a tensor. Seconds include "
        f"the fsync; *added* is the peak over the memory in use before. To be kept: {GOAL_SECONDS} s."
    )
    return Result("rekey", "Changing recipients", note, [Table(goals, "Goals", digits=2), Table(rows, "All", digits=2)])


# -- in the child ----------------------------------------------------------------------------------------------------


def child(folder: str, ranks: int, items: int, gib: int, rounds: int) -> dict[str, Any]:
    """Make a checkpoint up and change its recipients, again and again: the bytes of the metadata, and for each of the
    operations its seconds and the bytes that it added. AssertionError if the checkpoint is damaged by it.
    """
    path = Path(folder)
    size = make_up(path, ranks, items, gib)
    before = _data_files(path)
    seconds: dict[str, list[float]] = {}
    added: dict[str, int] = {}
    for number in range(rounds + 1):
        for name, action in _operations(path).items():
            if number:
                seconds.setdefault(name, []).append(timed(action))
            else:  # warm, and memory has its maximum at the first time
                added[name] = peak_added(action)
        with streamxf.Checkpoint(path, keys=OLD) as checkpoint:
            found = checkpoint.stored.values()
        if sum(len(item.chunks) for item in found if isinstance(item, TensorItem)) != items:
            raise AssertionError("the metadata is not what it was")
    if _data_files(path) != before:
        raise AssertionError("data files were touched")
    return {"metadata": size, "operations": {name: (seconds[name], added[name]) for name in added}}


def _data_files(path: Path) -> dict[str, tuple[int, int]]:
    return {file.name: (file.stat().st_mtime_ns, file.stat().st_size) for file in path.glob("*.distcp")}


def _operations(path: Path) -> dict[str, Callable[[], Any]]:
    """One after the other; at the end, the checkpoint is under its first key again."""
    return {
        "recipients, without a key": lambda: streamxf.recipients(path),
        ALL: lambda: streamxf.rekey(path, keys=OLD, recipients=NEW),
        "add_recipient": lambda: streamxf.add_recipient(path, keys=NEW, recipients=OLD),
        "remove_recipient": lambda: streamxf.remove_recipient(path, keys=OLD, recipient=NEW.id),
        HYBRID: lambda: streamxf.rekey(path, keys=OLD, recipients=[PAIR.public, NEW], allow_unsigned=True),
        "rekey, from the private key": lambda: streamxf.rekey(
            path, keys=PAIR, recipients=OLD, vouch=True, allow_unsigned=True
        ),
    }


def make_up(path: Path, ranks: int, items: int, gib: int) -> int:
    """Write metadata and sparse files; return the metadata's bytes."""
    tensors = items // ranks
    stored = gib * GIB // items
    rows = max(1, stored // (4096 * 2))
    chains = [Extensions((), Chains.chosen([streamxf.FloatZip(), streamxf.Encrypt(OLD)])).renew() for _ in range(ranks)]
    records = []
    for rank, chain in enumerate(chains):
        writer_id = os.urandom(16)
        assert chain.encryption is not None
        name, wrapped, secret = (
            f"__{rank}_0_{writer_id.hex()}.distcp",
            chain.encryption.wrapped,
            chain.encryption.data_key,
        )
        record = FileRecord(name, tensors * stored, writer_id, wrapped, (), chain.summary(), None, secret.secret)
        with (path / record.path).open("wb") as stream:
            stream.truncate(record.size)
        records.append(record)
    content: dict[str, Item] = {}
    recorded = chains[0].recorded_for("")
    for number in range(tensors):
        name = f"model.layers.{number // 8}.block.{number % 8}.weight"
        places = [Place(record.path, number * stored, stored, recorded, None, number) for record in records]
        chunks = [Chunk((rank * rows, 0), (rows, 4096), place, False) for rank, place in enumerate(places)]
        content[name] = TensorItem(name, "bfloat16", (ranks * rows, 4096), tuple(chunks))
    _, data = assemble(content, records, chains[0], "0" * 32, str(path))
    (path / ".metadata").write_bytes(data)
    return len(data)
