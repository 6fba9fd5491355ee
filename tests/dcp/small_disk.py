"""Run as a script where a small tmpfs is mounted: saves that fit on it, and saves that do not. Prints JSON."""

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import streamxf

KEY = streamxf.Key(bytes(range(32)))
MIB = 1 << 20


def noise(size: int) -> torch.Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def save(state: dict[str, Any], path: Path, chain: list[Any]) -> None:
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(path, _extensions=chain))


def outcome(action: Callable[[], Any], path: Path) -> dict[str, Any]:
    """How a save ended, on each rank that failed, and the data files that are there."""
    found: dict[str, Any] = {}
    try:
        action()
    except CheckpointException as error:
        found = {str(rank): [type(failure).__name__, str(failure)] for rank, (failure, _) in error.failures.items()}
    return {"failures": found, "files": sorted(file.name for file in path.glob("*.distcp"))}


def one_rank(folder: Path) -> dict[str, Any]:
    """16 MiB are free; before the saves that must fail, one that fits was published."""
    path = folder / "checkpoint"
    old, large = {"w": torch.arange(MIB)}, {"w": noise(15 * MIB)}
    zeros = {"w": torch.zeros(40 * MIB, dtype=torch.uint8)}
    checked, packed = [streamxf.Checksum(), streamxf.Encrypt(KEY)], [streamxf.ZStandard(), streamxf.Encrypt(KEY)]
    found = {"fits": outcome(lambda: save(old, path, checked), path)}
    for name, state, chain in (
        ("noise, no codec", large, []),
        ("noise, checksum and encrypt", large, checked),
        ("noise, zstd and encrypt", large, packed),
        ("zeros, encrypt", zeros, [streamxf.Encrypt(KEY)]),
    ):
        found[name] = outcome(lambda state=state, chain=chain: save(state, path, chain), path)
    target = {"w": torch.zeros(MIB, dtype=torch.int64)}
    dcp.load(target, storage_reader=streamxf.FileSystemReader(path, keys=KEY))
    found["old loads"] = torch.equal(target["w"], old["w"])
    found["zeros, zstd and encrypt"] = outcome(lambda: save(zeros, path, packed), path)
    return found


def several_ranks(folder: Path, rank: int, world_size: int) -> dict[str, Any]:
    """Each of three ranks has room for its 6 MiB, and all together have not; then with what fits."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    path = folder / "of all"
    found = {}
    for name, size in (("too much", 6 * MIB), ("fits", 4 * MIB)):
        state = {f"of rank {rank}": noise(size)}
        found[name] = outcome(lambda state=state: save(state, path, [streamxf.Checksum()]), path)
        dist.barrier()
    dist.destroy_process_group()
    return found


def in_ranks(folder: Path, world_size: int) -> dict[str, Any]:
    """`several_ranks` in processes that are forked while there are no threads; what the first one found."""
    children = []
    for rank in range(world_size):
        child = os.fork()
        if not child:
            try:
                (folder / f"{rank}.json").write_text(json.dumps(several_ranks(folder, rank, world_size)))
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        children.append(child)
    ended = [os.waitpid(child, 0)[1] for child in children]
    if any(ended):
        raise RuntimeError("a rank failed")
    (folder / "store").unlink(missing_ok=True)
    return json.loads((folder / "0.json").read_text())


if __name__ == "__main__":
    mounted = Path(sys.argv[1])
    results = {"several": in_ranks(mounted, 3)}
    for file in (mounted / "of all").iterdir():
        file.unlink()
    print(json.dumps(results | one_rank(mounted)))
