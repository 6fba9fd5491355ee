"""What each rank of a job does that publishes together."""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh

import streamxf
from streamxf import errors
from tests.dcp.process_groups import join_group
from tests.publishing.weights import Policy, assert_same, publisher


def held(policy: Policy, rank: int, count: int) -> list[tuple[Any, ...]]:
    """Of one tensor rows, of another columns, a DTensor, a replicated one, and some that one rank has alone."""
    tensors, mesh = policy.tensors, init_device_mesh("cpu", (count,))
    rows, columns = tensors["embed"].chunk(count)[rank], tensors["layers.0.weight"].chunk(count, 1)[rank]
    at = rank * rows.shape[0], rank * columns.shape[1]
    made: list[tuple[Any, ...]] = [
        ("embed", tensors["embed"].shape, (at[0], 0), rows),
        ("layers.0.weight", tensors["layers.0.weight"].shape, (0, at[1]), columns),
        ("layers.0.frozen", DTensor.from_local(tensors["layers.0.frozen"].chunk(count)[rank], mesh, [Shard(0)])),
        ("norm", DTensor.from_local(tensors["norm"], mesh, [Replicate()])),
    ]
    return made if rank else [*made, *((name, tensors[name]) for name in ("layers.0.count", "scale", "empty"))]


def publish(rank: int, count: int, meeting: str, run: str, options: dict[str, Any]) -> None:
    join_group(rank, count, meeting)
    policy = Policy()
    publishing = publisher(run, group=dist.group.WORLD, full_every=3, **options)
    follower = streamxf.Follower(run, {}, keys=options.get("keys")) if rank == 0 else None
    for step in range(1, 6):
        policy.step()
        if step == 4:
            with_failure(publishing, rank, held(policy, rank, count), Path(run))
        made = publishing.publish(step, held(policy, rank, count))
        assert made.number == step
        assert (publishing.report.differences > 0) == (step not in (1, 4)), (rank, step, publishing.report)
        if follower is not None:
            follower.prepare().apply()
            assert follower.held == made
            assert_same(follower._target._into, policy.tensors)
        dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()


def with_failure(publishing: streamxf.Publisher, rank: int, given: list[tuple[Any, ...]], run: Path) -> None:
    """One rank fails, at each of several points; then none has published."""
    before = (run / ".streamxf/newest").read_bytes()
    twice = [*given, ("scale", torch.tensor(1.0))] if rank == 1 else given
    lacking = given[1:] if rank == 1 else given
    broken = [*given[:2], ("norm", "no tensor")] if rank == 1 else given
    for tensors in (twice, lacking, broken):
        try:
            publishing.publish(9, tensors)
        except (errors.AbortedError, errors.ParameterError, errors.UnsupportedError):
            pass
        else:
            raise AssertionError("it was published")
        dist.barrier()
        assert (run / ".streamxf/newest").read_bytes() == before
        left = [] if rank else [*run.glob("step-9/*")]
        assert left == [], (left, tensors[-1], len(tensors))
