"""What each rank does in tests of ranks that differ: in writers, chains, and what they have under the same names."""

import random
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

import streamxf
from streamxf.dcp.plans import SMALL

from .failing_ranks import failures_of
from .helpers import assert_same, full_chain

WRITERS: dict[str, Callable[[Path], Any]] = {
    "torch": dcp.FileSystemWriter,
    "streamxf": streamxf.FileSystemWriter,
    "zstd": lambda path: streamxf.FileSystemWriter(path, chain="zstd"),
    "plain": lambda path: streamxf.FileSystemWriter(path, chain=[]),
    "attached": lambda path: streamxf.attach(dcp.FileSystemWriter(path), full_chain()),
}


def told(action: Callable[[], Any]) -> tuple[dict[str, str] | None, list[str]]:
    """The ranks' errors, as this rank was told, and the warnings that were given on it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        failures = failures_of(action)
    return failures, [text for each in caught if "the same names" in (text := str(each.message))]


def reached_by(path: Path, writers: list[str], planner: Callable[[], Any]) -> Any:
    """A save in which each rank has a writer of its own: errors, and whether there is a checkpoint then."""
    rank = dist.get_rank()
    state = {"shared": torch.ones(400), f"of rank {rank}": torch.full((50,), float(rank))}
    failures, _ = told(lambda: dcp.save(state, storage_writer=WRITERS[writers[rank]](path), planner=planner()))
    dist.barrier()
    return failures, (path / ".metadata").exists()


def writers_of_two_kinds(folder: Path) -> Any:
    found = {}
    pairs = (
        "torch-streamxf",
        "streamxf-torch",
        "zstd-streamxf",
        "plain-zstd",
        "attached-streamxf",
        "streamxf-attached",
    )
    for pair in (*pairs, "attached-torch"):
        cached = partial(type(f"Cached {pair}", (streamxf.SavePlanner,), {}), enable_plan_caching=True)
        for number, planner in enumerate([dcp.DefaultSavePlanner, streamxf.SavePlanner, cached, cached]):
            name = f"{pair} {number}"
            found[name] = reached_by(folder / name, pair.split("-"), planner)
    return found


# -- values --------------------------------------------------------------------------------------------------------

LARGE = SMALL // 4 + 1  # elements of 4 bytes
PAIRS: dict[str, tuple[Any, Any]] = {
    "tensor": (torch.zeros(5), torch.ones(5)),
    "first of many": (torch.zeros(LARGE), torch.ones(LARGE)),
    "signs": (torch.tensor(0.0), torch.tensor(-0.0)),
    "view": (torch.arange(6.0).reshape(2, 3).T, torch.arange(6.0).reshape(3, 2)),
    "number": (1, 2),
    "kind": (1, 1.0),
    "text": ("rank 0", "rank 1"),
    "nothing": (None, ()),
    "random state": (random.Random(0).getstate(), random.Random(1).getstate()),
    "generator": (torch.Generator().get_state(), torch.Generator().manual_seed(1).get_state()),
    "shape": (torch.zeros(3), torch.zeros(4)),
    "dtype": (torch.zeros(3), torch.zeros(3, dtype=torch.int64)),
    "dimensions": (torch.zeros(3), torch.zeros(3, 1)),
    "object": (1, torch.zeros(3)),
    "equal": (torch.arange(6.0).reshape(2, 3).T, torch.arange(6.0).reshape(2, 3).T.contiguous()),
    "parts": (("ab" * 2,) * 2, ("abab", "".join(["ab", "ab"]))),
    "sets": ({"a", "b"}, {"c"}),
}
PLANNERS: dict[str, Any] = {"torch": dcp.DefaultSavePlanner, "own": streamxf.SavePlanner}


def values(folder: Path) -> Any:
    """A save of each pair by each planner: errors, warnings, and whether the report says that it was compared."""
    found = {}
    for kind, planner in PLANNERS.items():
        for name, pair in PAIRS.items():
            writer = streamxf.FileSystemWriter(folder / kind / name, sync_files=False)
            state = {"it": {"is": pair[dist.get_rank()]}, "other": torch.ones(3)}
            for _ in range(2):  # a warning comes once
                told_now = told(lambda: dcp.save(state, storage_writer=writer, planner=planner()))  # noqa: B023
                found.setdefault(f"{kind} {name}", (*told_now, writer.report and writer.report.compared))
            assert not told_now[1]
    return found


def dtensors(folder: Path) -> Any:
    """Shards, which differ by rank; replicas that do; and shards of two dtypes."""
    rank, mesh = dist.get_rank(), init_device_mesh("cpu", (2,))
    cases = {
        "shards": DTensor.from_local(torch.full((2, 3), float(rank)), mesh, [Shard(0)]),
        "replicas": DTensor.from_local(torch.full((2, 3), float(rank)), mesh, [Replicate()], run_check=False),
        "dtypes": DTensor.from_local(torch.zeros(2, 3).to([torch.int8, torch.int16][rank]), mesh, [Shard(0)]),
    }
    found = {}
    for kind, planner in PLANNERS.items():
        for name, tensor in cases.items():
            writer = streamxf.FileSystemWriter(folder / f"{kind} {name}")
            found[f"{kind} {name}"] = told(lambda: dcp.save({name: tensor}, storage_writer=writer, planner=planner()))  # noqa: B023
    return found


def cached_values(folder: Path) -> Any:
    """Saves by planners that keep plans, of other values, another value alone, and another dtype."""
    found = {}
    for kind, planner in PLANNERS.items():
        cached = partial(type(f"Caching {kind}", (planner,), {}), enable_plan_caching=True)
        writer = streamxf.FileSystemWriter(folder / "cached", sync_files=False)
        for number, dtype in enumerate([torch.float32, torch.float32, torch.float64]):
            state = {"it": torch.full((3,), dist.get_rank() + number, dtype=dtype), 7: {"other": torch.ones(3)}}
            failures, warned = told(lambda: dcp.save(state, storage_writer=writer, planner=cached()))  # noqa: B023
            nested = failures is None and 7 in streamxf.load_intact(folder / "cached").state_dict
            found[f"{kind} {number}"] = failures, len(warned), writer.report and writer.report.compared, nested
            dist.barrier()
        alone = streamxf.FileSystemWriter(folder / f"alone {dist.get_rank()}")
        found[f"{kind} alone"] = told(lambda: dcp.save(state, storage_writer=alone, planner=cached(), no_dist=True))  # noqa: B023
    return found


KINDS: list[Callable[[random.Random], Any]] = [
    lambda draw: torch.full((draw.randrange(1, 4),), draw.random()),
    lambda draw: torch.full((draw.randrange(1, 4), 2), draw.randrange(9), dtype=torch.int32),
    lambda draw: torch.full((), draw.random(), dtype=torch.bfloat16),
    lambda draw: torch.full((LARGE + draw.randrange(2),), draw.random()),
    lambda draw: draw.randrange(3),
    lambda draw: draw.choice(["a", "b"]),
    lambda draw: (draw.random(), None),
]


def is_same(one: Any, other: Any) -> bool:
    try:
        assert_same(one, other)
    except AssertionError:
        return False
    return True


def two_states(seed: int) -> list[dict[str, Any]]:
    """States of two ranks that differ in a few names or values."""
    draw = random.Random(seed)
    own = {f"name {number}": draw.choice(KINDS)(draw) for number in range(6)}
    other = dict(own)
    for name in draw.sample([*own], draw.randrange(4)):
        if draw.random() < 0.3:
            other[f"{name} of one"] = other.pop(name)
        elif draw.random() < 0.6:
            other[name] = own[name] + type(own[name])([1]) if isinstance(own[name], str | tuple) else own[name] + 1
        else:
            other[name] = draw.choice(KINDS)(draw)
    return [own, other]


def random_differences(folder: Path) -> Any:
    """What each of many saves came to: "" if it was right."""
    return [problem for seed in range(60) if (problem := _random_difference(folder / str(seed), seed))]


def _random_difference(path: Path, seed: int) -> str:
    rank, states = dist.get_rank(), two_states(seed)
    draw = random.Random(-seed)
    writers = draw.choices([*WRITERS][:4], k=2) if draw.random() < 0.2 else ["streamxf"] * 2
    planner = PLANNERS[draw.choice([*PLANNERS])]()
    differ = {name for name in states[0].keys() & states[1].keys() if not is_same(states[0][name], states[1][name])}
    failures, warned = told(
        lambda: dcp.save(states[rank], storage_writer=WRITERS[writers[rank]](path), planner=planner)
    )
    if writers[0] != writers[1]:
        return "" if failures else f"{seed}: {writers} saved"
    if failures is not None:
        text = " ".join(failures.values())
        # torch says this of these, and 2.7 nothing
        named = any(name in text for name in differ) or text in (
            "AssertionError: item.index.fqn not in md",
            "AssertionError: ",
        )
        return "" if named else f"{seed}: {text}, where {differ} differ"
    named = {name for name in differ if name in " ".join(warned)}
    wanted = differ if rank == 0 and writers[0] != "torch" else set()
    target = {name: torch.zeros_like(own) if torch.is_tensor(own) else None for name, own in states[rank].items()}
    dcp.load(target, storage_reader=streamxf.FileSystemReader(path))
    wrong = [name for name, own in states[rank].items() if name not in differ and not is_same(target[name], own)]
    if named != wanted or bool(warned) != bool(wanted):
        return f"{seed}: {differ} differ, and {warned} was said"
    return f"{seed}: {wrong} loaded wrongly" if wrong else ""


# -- a state that is empty on one rank -------------------------------------------------------------------------------


def empty_on_one_rank(folder: Path) -> Any:
    """Each rank is a stage of a pipeline; the optimizer of the second has made no step before the load."""
    rank = dist.get_rank()
    state: dict[str, Any] = {"optimizer": {"state": {f"stage {rank}": {"exp_avg": torch.ones(3)}}}}
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(folder / "stages"))
    if rank == 1:
        state["optimizer"]["state"] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dcp.load(state, storage_reader=streamxf.FileSystemReader(folder / "stages"))
    return [text for each in caught if "the state to load is empty" in (text := str(each.message))]
