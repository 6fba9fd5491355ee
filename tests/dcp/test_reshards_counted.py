"""What resharded loads read of 1 MiB blocks, beyond those that ranks need; docs/quickstart.md has the table."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

import streamxf
from streamxf import Checkpoint
from tests.checkpoint.test_blocks_read import KEY, needed_of, save
from tests.dcp.test_load_planner import as_rank

MATRIX = (4096, 4096)
EXPERTS = (16, 1024, 1024)  # 2 MiB each


def grid(shape: tuple[int, ...], *cuts: int) -> list[Any]:
    """The boxes of as many ranks, cut along the first dimensions."""
    lengths = tuple(size // count for size, count in itertools.zip_longest(shape, cuts, fillvalue=1))
    places = itertools.product(*(range(0, size, length) for size, length in zip(shape, lengths, strict=True)))
    return [(place, lengths) for place in places]


@dataclass
class Reshard:
    """Shards as they were saved, and the ranks that load.

    - `sum`: of what all ranks read, as a multiple of the tensor; what its blocks allow.
    """

    boxes: list[Any]
    mesh: tuple[int, ...]
    placements: list[Any]
    sum: float
    shape: tuple[int, ...] = MATRIX


RESHARDS = {
    "8 to 16, dim 0": Reshard(grid(MATRIX, 8), (16,), [Shard(0)], 1),
    "16 to 6, dim 0": Reshard(grid(MATRIX, 16), (6,), [Shard(0)], 37 / 32),
    "8 along dim 0 to 4 along dim 1": Reshard(grid(MATRIX, 8), (4,), [Shard(1)], 4),
    "(2, 2) to (4, 1)": Reshard(grid(MATRIX, 2, 2), (4, 1), [Shard(0), Shard(1)], 1),
    "experts: 4 along dim 0 to 2 along dim 1": Reshard(grid(EXPERTS, 4), (2,), [Shard(1)], 1, EXPERTS),
}


CHAINS = ["plain", "full", "full", "plain", "full"]


@pytest.mark.parametrize(
    ("name", "chain"), [*((name, "raw") for name in RESHARDS), *zip(RESHARDS, CHAINS, strict=True)]
)
def test_ranks_read_the_blocks_that_they_need(name: str, chain: str) -> None:
    reshard, keys = RESHARDS[name], KEY if chain == "full" else None
    tensor = torch.randn(reshard.shape, generator=torch.Generator().manual_seed(0)).bfloat16()
    store = save(chain, 20, tensor, reshard.boxes)
    read = needed = requests = 0
    for rank in range(math.prod(reshard.mesh)):
        with as_rank(rank, math.prod(reshard.mesh)):
            mesh = init_device_mesh("cpu", reshard.mesh)
            lengths, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, reshard.placements)
            part = tuple(slice(at, at + size) for at, size in zip(offset, lengths, strict=True))
            of_shape: dict[str, Any] = {"run_check": False, "shape": tensor.shape, "stride": tensor.stride()}
            local = DTensor.from_local(torch.zeros(lengths, dtype=tensor.dtype), mesh, reshard.placements, **of_shape)
            store.asked.clear()
            dcp.load({"w": local}, storage_reader=streamxf.FileSystemReader(store, keys=keys), no_dist=True)
            assert torch.equal(local.to_local(), tensor[part])
        read, requests = read + store.bytes_read, requests + len(store.asked)
        mask = np.zeros(tensor.shape, bool)
        mask[part] = True
        with Checkpoint(store, keys=keys) as aside:
            needed += sum(needed_of(aside, "w", mask).values())
            stored = aside["w"].stored_bytes
    print(f"| {name} | {chain} | {read / stored:.2f} | {read / needed:.3f} | {requests} |")
    assert read <= 1.1 * needed
    if chain != "plain":  # whose elements begin behind a frame, so that blocks hold what two ranks need
        assert needed == pytest.approx(reshard.sum * stored, rel=0.03)
