"""What reading a large index takes: to open it and find an item, the shards of one rank, and all of them as columns.

Indexes are made from columns, since objects for 16 million shards take more memory than there is. Linux only.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.child import in_child, in_fork
from benchmarks.costs import Costs, cells, measured
from benchmarks.harness import MIB, Settings
from benchmarks.result import Row, Spread, goal_row
from benchmarks.simulated import names_of
from streamxf.format.digests import Digests
from streamxf.format.header import Kind
from streamxf.format.index import ChunkColumns, File, Index
from streamxf.format.items import Chunk, Item, TensorItem
from streamxf.format.sections import Trailer, pack
from streamxf.format.tiling import Boxes

ITEMS, SMOKE_ITEMS = 1000, 20
MAX_ROUNDS = 3
ROWS, COLUMNS, STEP = 4, 1024, 8192
CHAIN = "streamxf.floatzip/1"
DIGESTS = 2  # of a container of one block
MESHES: dict[tuple[int, int, bool], dict[str, float]] = {
    (1024, 1, False): {"find": 0.02, "rank": 0.05, "all": 0.1, "MiB": 40, "MB": 7},
    (1024, 1, True): {"all": 0.2},
    (16_384, 1, False): {"find": 0.1, "rank": 0.2, "all": 1.2, "MiB": 420, "MB": 90},
    (128, 128, False): {"column": 0.5},
}
"""Ranks by rows and by columns, and whether the index is signed; goals for operations, in CPU seconds, for the memory
that ``all`` adds, and for the index.
"""
UNITS = {"MiB": ("all", "MiB added"), "MB": ("bytes", "MB")}
SMOKE_MESHES = ((8, 1, False), (8, 1, True), (4, 4, False))
NOTE = (
    f"*Large indexes* have {ITEMS:,} tensors of two dimensions, cut among as many ranks as there are by rows alone "
    "(1,024 and 16,384 ranks) or by rows and columns (128 x 128). Each operation begins with a closed file in the page "
    "cache. *Find* is one tensor with all of its shards, *rank* the shards of one rank of all tensors, *column* those "
    "of all ranks in one column of the mesh, and *all* compares every shard as columns."
)


def tables(settings: Settings) -> tuple[list[Row], list[Row]]:
    """Goals, and all measurements."""
    items = settings.pick(ITEMS, SMOKE_ITEMS)
    rounds = min(settings.rounds, MAX_ROUNDS)
    goals: list[Row] = []
    rows: list[Row] = []
    for mesh in settings.pick([*MESHES], SMOKE_MESHES):
        tall, wide, signed = mesh
        arguments = {"mesh": [tall, wide], "items": items, "signed": signed, "rounds": rounds}
        with TemporaryDirectory(dir=settings.folder) as folder:
            found = in_child("benchmarks.large_index", "child", folder=folder, **arguments)
        what = f"{tall:,} x {wide}{', signed' if signed else ''}"
        measures = {"MB": Spread.of([found["bytes"] / 1e6])}
        for name, costs in found["costs"].items():
            rows.append({"ranks": what, "operation": name, **cells(costs), "requests": found["requests"][name]})
            measures[name] = Spread.of(costs["cpu"])
            measures["MiB"] = Spread.of([costs["added"][0] / MIB])  # of the last one
        for measure, limit in MESHES.get(mesh, {}).items():
            name, unit = UNITS.get(measure, (measure, "CPU seconds"))
            goals.append(goal_row(f"{what}: {name}", unit, measures[measure], limit))
    return goals, rows


def child(folder: str, mesh: list[int], items: int, signed: bool, rounds: int) -> dict[str, Any]:
    """Make an index, and measure each operation in a process of its own."""
    path = Path(folder) / "metadata"
    in_fork(make, path, mesh, items, signed)
    names = ["find", "rank", *(["column"] if mesh[1] > 1 else ["all"])]
    found = {name: in_fork(operation, path, mesh, signed, name, rounds) for name in names}
    size = path.stat().st_size
    return {
        "bytes": size,
        "costs": {name: costs | {"metadata": [size]} for name, (costs, _) in found.items()},
        "requests": {name: requests for name, (_, requests) in found.items()},
    }


def operation(path: Path, mesh: list[int], signed: bool, name: str, rounds: int) -> tuple[Costs, int]:
    """Measure one operation, and count its reads. Raises AssertionError if it finds something else."""
    tall, wide = mesh
    requests = 0

    def act() -> None:
        nonlocal requests
        requests = 0
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size

            def read(at: int, count: int) -> bytes:
                nonlocal requests
                requests += 1
                return os.pread(file.fileno(), count, at)

            end = read(size - min(size, 2**16), min(size, 2**16))
            trailer = Trailer.parse(end, size)
            assert trailer is not None
            tail = end if trailer.size <= len(end) else read(size - trailer.size, trailer.size)
            sections = trailer.split(tail[-trailer.size :], read=read)
            index = Index.parse(sections.root, sections.parts, sections.parts_size)
            _use(index, name, tall, wide)

    return measured(lambda: act, rounds), requests


def _use(index: Index, name: str, tall: int, wide: int) -> None:
    items: Any = index.items
    if name == "all":
        if not isinstance(items, dict):
            items.check()
        return
    if name == "find":
        assert len(tuple(items[next(iter(items))].chunks)) == tall * wide
        return
    rows = (tall // 3, 1) if name == "rank" else (0, tall)
    box = (rows[0] * ROWS, wide // 3 * COLUMNS), (rows[1] * ROWS, COLUMNS)
    for each in items.values():
        assert isinstance(each, TensorItem)
        assert len(each.overlapping([box])) == rows[1]


def make(path: Path, mesh: list[int], items: int, signed: bool) -> None:
    """An index of `items` tensors, each cut by a mesh of ranks."""
    tall, wide = mesh
    ranks, draw, numbers = tall * wide, random.Random(1), np.random.default_rng(1)
    paths = sorted(f"__{rank}_0_{draw.randbytes(16).hex()}.distcp" for rank in range(ranks))
    own, ends = np.arange(ranks), np.zeros(ranks, np.int64)
    offsets = np.stack([own // wide * ROWS, own % wide * COLUMNS], axis=1)
    boxes = Boxes(offsets, np.tile([ROWS, COLUMNS], (ranks, 1)))
    content: dict[str, Item] = {}
    for number, name in enumerate(sorted(names_of(items))):
        sizes = (STEP * numbers.uniform(0.67, 0.69, ranks)).astype(np.int64)
        places = np.stack([own, ends, sizes, np.full(ranks, number), np.zeros(ranks, np.int64)])
        ends = ends + sizes
        chunks: Sequence[Chunk] = ChunkColumns(boxes, places, paths, (CHAIN,), Kind.TENSOR)
        if signed:
            firsts = range(number * DIGESTS, items * ranks * DIGESTS, items * DIGESTS)  # a file's follow each other
            named = (each.place._replace(digest=first) for each, first in zip(chunks, firsts, strict=True))
            chunks = tuple(each._replace(place=place) for each, place in zip(chunks, named, strict=True))
        content[name] = TensorItem(name, "bfloat16", (ROWS * tall, COLUMNS * wide), chunks)
    files = {path: File(size, draw.randbytes(16)) for path, size in zip(paths, ends.tolist(), strict=True)}
    digests = Digests.of(draw.randbytes(32 * DIGESTS * ranks * items)) if signed else None
    root, parts = Index("0" * 32, None, (), ((CHAIN,),), files, content, digests).pack()
    path.write_bytes(pack(b"", parts, root, b""))
