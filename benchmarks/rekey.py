"""Changing who may read large checkpoints: seconds, and memory. Linux only.

The checkpoints are made up: metadata as a save by several ranks leaves it, beside sparse data files that nobody reads.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

import streamxf
from benchmarks.child import in_child
from benchmarks.harness import MIB, Settings, progress, timed
from benchmarks.memory import need_proc, peak_added
from benchmarks.result import Result, Row, Table, goal_row
from benchmarks.spread import Spread
from streamxf.dcp.metadata import file as metadata_file
from streamxf.dcp.metadata.manifest import FileFacts, Manifest

GIB = 1024 * MIB
GOAL_SECONDS = 10
CASES = {"64 GiB of data": (8, 512, 64), "100,000 items": (8, 100_000, 8), "512 ranks": (512, 102_400, 64)}
SMOKE_CASES = {"1 GiB of data": (2, 40, 1)}
ALL = "rekey, to a key"
SIGNED = "rekey, to a hybrid public key and a key, signed"

OLD, NEW = streamxf.Key(bytes(range(32))), streamxf.Key(bytes(range(1, 33)))
PAIR = streamxf.PrivateKey(bytes(range(2, 34)))
SIGNER = streamxf.SigningKey(bytes(range(3, 35)))


def run(settings: Settings) -> Result:
    """Measure.

    Raises
    ------
    OSError
        If the system has no /proc to read a process's memory from.
    """
    need_proc()
    rows: list[Row] = []
    goals: list[Row] = []
    for label, (ranks, items, gib) in settings.pick(CASES, SMOKE_CASES).items():
        progress(f"rekey: {label}")
        found = in_child(
            "benchmarks.rekey",
            "child",
            folder=str(settings.folder),
            ranks=ranks,
            items=items,
            gib=gib,
            rounds=settings.rounds,
        )
        for name, (seconds, added) in found["operations"].items():
            measured = Spread.of(seconds)
            rows.append(
                {
                    "checkpoint": label,
                    "ranks": ranks,
                    "items": items,
                    "data, GiB": gib,
                    "metadata, MiB": found["metadata"] / MIB,
                    "operation": name,
                    "seconds": measured,
                    "MiB added": added / MIB,
                }
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
    """Make a checkpoint up and change its recipients, again and again.

    Returns
    -------
    dict
        ``metadata``: bytes of the file; ``operations``: for each its seconds, and the bytes that it added.

    Raises
    ------
    AssertionError
        If the checkpoint is not what it should be afterwards.
    """
    path = Path(mkdtemp(dir=folder))
    try:
        size = make_up(path, ranks, items, gib)
        before = {file.name: (file.stat().st_mtime_ns, file.stat().st_size) for file in path.glob("*.distcp")}
        seconds: dict[str, list[float]] = {}
        added: dict[str, int] = {}
        for number in range(rounds + 1):
            for name, action in _operations(path).items():
                if number:
                    seconds.setdefault(name, []).append(timed(action))
                else:  # warm, and memory has its maximum at the first time
                    added[name] = peak_added(action)
            content = metadata_file.load((path / ".metadata").read_bytes(), streamxf.KeyRing([OLD]), published=True)
            if len(content.storage_data) != items:
                raise AssertionError("the metadata is not what it was")
        after = {file.name: (file.stat().st_mtime_ns, file.stat().st_size) for file in path.glob("*.distcp")}
        if after != before:
            raise AssertionError("data files were touched")
        return {"metadata": size, "operations": {name: (seconds[name], added[name]) for name in added}}
    finally:
        shutil.rmtree(path)


def _operations(path: Path) -> dict[str, Callable[[], Any]]:
    """One after the other; at the end, the checkpoint is under its first key again."""
    return {
        "recipients, without a key": lambda: streamxf.recipients(path),
        ALL: lambda: streamxf.rekey(path, OLD, NEW),
        "add_recipient": lambda: streamxf.add_recipient(path, NEW, OLD),
        "remove_recipient": lambda: streamxf.remove_recipient(path, OLD, NEW.id),
        SIGNED: lambda: streamxf.rekey(path, OLD, [PAIR.public, NEW], signer=SIGNER),
        "rekey, from the private key": lambda: streamxf.rekey(path, PAIR, OLD, trust=SIGNER.verify_key),
    }


def make_up(path: Path, ranks: int, items: int, gib: int) -> int:
    """Write metadata and sparse files; return the metadata's bytes."""
    tensors = items // ranks
    stored = gib * GIB // items
    files = [f"__{rank}_0_{os.urandom(16).hex()}.distcp" for rank in range(ranks)]
    for file in files:
        with (path / file).open("wb") as stream:
            stream.truncate(tensors * stored)
    chains = [streamxf.Encrypt(OLD) for _ in range(ranks)]
    lists = [[str(chain.get_descriptor()), "streamxf.floatzip/1"] for chain in chains]
    rows = max(1, stored // (4096 * 2))
    content = Metadata({}, {}, {}, StorageMeta(checkpoint_id=str(path), save_id="0" * 32))
    for number in range(tensors):
        name = f"model.layers.{number // 8}.block.{number % 8}.weight"
        chunks = [ChunkStorageMetadata(torch.Size([rank * rows, 0]), torch.Size([rows, 4096])) for rank in range(ranks)]
        properties = TensorProperties(dtype=torch.bfloat16)
        content.state_dict_metadata[name] = TensorStorageMetadata(properties, torch.Size([ranks * rows, 4096]), chunks)
        for rank, chunk in enumerate(chunks):
            content.storage_data[MetadataIndex(name, chunk.offsets, rank)] = _StorageInfo(
                files[rank], number * stored, stored, lists[rank]
            )
    facts = {file: FileFacts(tensors * stored, file[-39:-7], "crc32c:00000000") for file in files}
    packages = {"streamxf": streamxf.__version__, "torch": torch.__version__}
    manifest = Manifest("0" * 32, None, chains[0].get_descriptor(), packages, facts)
    data = metadata_file.dump(content, manifest, chains[0].data_key)
    (path / ".metadata").write_bytes(data)
    return len(data)
