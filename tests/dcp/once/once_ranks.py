"""What ranks do that read once. Every function here runs in a process of its own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import streamxf
from streamxf.checkpoint.memory import SaveMemory
from streamxf.dcp.once import plan
from streamxf.report import LoadReport
from streamxf.storage.reading import _LocalFile
from tests.dcp.helpers import KEY, full_chain, load_into, raw_bytes
from tests.dcp.s3_server import storage


@contextmanager
def counted(folder: Path) -> Iterator[Callable[[], float]]:
    """How many bytes of data files all ranks have read, for each that is stored."""
    read = torch.zeros(1, dtype=torch.int64)
    original = _LocalFile.read_into

    def read_into(self: Any, position: int, out: memoryview) -> int:
        count = original(self, position, out)
        if str(self._file.name).endswith(".distcp"):
            read.add_(count)
        return count

    def ratio() -> float:
        dist.all_reduce(read)
        return float(read.item() / sum(file.stat().st_size for file in folder.glob("*.distcp")))

    with patch.object(_LocalFile, "read_into", read_into):
        yield ratio


def same(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """The names of items that are not as they should be."""
    return [
        name
        for name, value in wanted.items()
        if not (
            torch.equal(raw_bytes(found[name]), raw_bytes(value))
            if isinstance(value, torch.Tensor)
            else found[name] == value
        )
    ]


def values(seed: int = 3) -> dict[str, Any]:
    """Large and small tensors, of all kinds that a state dict may have, and objects."""
    generator = torch.Generator().manual_seed(seed)
    state: dict[str, Any] = {
        f"w{n}": torch.randn(700 + n, 1024, generator=generator).to(torch.bfloat16) for n in range(4)
    }
    state["large"] = torch.randn(1100, 1024, generator=generator)  # of two units
    state["odd"] = torch.randint(0, 255, (4_500_001,), generator=generator, dtype=torch.uint8)
    state |= {f"step{n}": torch.tensor(float(n)) for n in range(30)}
    state |= {"flag": torch.tensor([True, False, True]), "byte": torch.tensor([7], dtype=torch.uint8)}
    state |= {"empty": torch.zeros(0, 3), "complex": torch.randn(5, 3, dtype=torch.complex128, generator=generator)}
    return state | {"epoch": 5, "name": "a run"}


def blank(state: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.zeros_like(value) if isinstance(value, torch.Tensor) else None for name, value in state.items()}


def loaded(folder: Path, state: dict[str, Any], **options: Any) -> LoadReport:
    reader = streamxf.FileSystemReader(folder, read="once", **options)
    dcp.load(state, storage_reader=reader)
    assert reader.report is not None
    return reader.report


def replicated(folder: Path) -> Any:
    """Twice, of which the second time is over the same connections."""
    state, path = values(), folder / "replicated"
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(path, _extensions=full_chain()))
    found: dict[str, Any] = {}
    for number in range(2):
        target = blank(state)
        with counted(path) as ratio:
            report = loaded(path, target, keys=KEY)
            found[f"ratio {number}"] = ratio()
        found[f"wrong {number}"] = same(target, state)
        found[f"read {number}"] = report.read, report.reason
    received = torch.tensor([report.received_bytes, report.stored_bytes])
    dist.all_reduce(received)
    size = sum(value.nbytes for value in state.values() if isinstance(value, torch.Tensor))
    found["received"] = received[0].item() / size
    return found


def unaligned(folder: Path) -> Any:
    """Elements that stand behind a frame, so that no block begins with the first of them."""
    state, path = values(), folder / "unaligned"
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(path, _extensions=[]))
    target = blank(state)
    with counted(path) as ratio, patch.object(plan, "UNIT", 1 << 20):
        report = loaded(path, target)
        read = ratio()
    return {"wrong": same(target, state), "read": report.read, "ratio": read}


def based(folder: Path) -> Any:
    """Differences, one upon the other."""
    state, memory, last = values(), SaveMemory(), None
    chain = [streamxf.FloatZip(), streamxf.Checksum(), streamxf.Encrypt(KEY)]
    for step in range(3):
        for n in range(4 if step else 0):
            state[f"w{n}"].view(torch.int16)[::50] += 1
        path = folder / f"based-{step}"
        dcp.save(state, storage_writer=streamxf.FileSystemWriter(path, chain=chain, memory=memory, base=last))
        last = path
    with streamxf.Checkpoint(path, keys=KEY) as checkpoint:
        beneath = min(len(checkpoint[f"w{n}"].chunks[0].place.beneath) for n in range(4))
    target = blank(state)
    report = loaded(path, target, keys=KEY)
    return {"wrong": same(target, state), "read": report.read, "beneath": beneath}


def targets(folder: Path) -> Any:
    """Targets that nothing can be received in as it comes."""
    state, path = values(), folder / "targets"
    tied = torch.randn(1500, 1024, generator=torch.Generator().manual_seed(4))
    state |= {"tied.a": tied, "tied.b": tied, "half.a": tied[:900].clone(), "half.b": tied[600:] + 1}
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(path))
    target = blank(state)
    target["w0"] = torch.zeros(state["w0"].shape, dtype=torch.float32)  # another dtype
    target["large"] = torch.zeros(1024, 1100).t()  # other strides
    target["w1"] = torch.zeros(701, 2048, dtype=torch.bfloat16)[:, ::2]
    target["step3"] = torch.zeros((), dtype=torch.float64)
    target["w2"] = torch.zeros(702, 1024, dtype=torch.bfloat16).requires_grad_()
    target["tied.b"] = target["tied.a"] = torch.zeros(1500, 1024)
    memory = torch.zeros(1500, 1024)  # of which each of these has its part, so that they overlap
    target["half.a"], target["half.b"] = memory[:900], memory[600:]
    report = loaded(path, target)
    wanted = dict(state) | {"w0": state["w0"].float(), "step3": state["step3"].double()}
    return {"wrong": same(target, wanted), "read": report.read}


# -- sharded ---------------------------------------------------------------------------------------


UNIT, BLOCK = 1 << 20, 1 << 18  # a quarter of what is usual, as are the matrices


@cache
def matrices(seed: int = 5) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "a": torch.randn(1024, 1024, generator=generator),
        "b": torch.randn(1031, 517, generator=generator).to(torch.bfloat16),
        "c": torch.randn(12, 40, 64, generator=generator),
    }


def spread(whole: dict[str, torch.Tensor], shape: tuple[int, ...], placements: list[Any]) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=tuple("xyz"[: len(shape)]))
    return {name: distribute_tensor(tensor.clone(), mesh, placements) for name, tensor in whole.items()}


def differing(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    return [name for name in wanted if not torch.equal(found[name].to_local(), wanted[name].to_local())]


def saved_in(folder: Path, name: str, shape: tuple[int, ...], placements: list[Any]) -> Path:
    path = folder / name
    writer = streamxf.FileSystemWriter(path, block_size=BLOCK)
    dcp.save(spread(matrices(), shape, placements), storage_writer=writer)
    return path


LAYOUTS: dict[str, tuple[tuple[int, ...], list[Any]]] = {
    "rows": ((4,), [Shard(0)]),
    "columns": ((4,), [Shard(1)]),
    "replicas": ((4,), [Replicate()]),
    "hybrid": ((2, 2), [Replicate(), Shard(0)]),
    "grid": ((2, 2), [Shard(0), Shard(1)]),
    "long grid": ((4, 1), [Shard(0), Shard(1)]),
}


def resharded(folder: Path) -> Any:
    """From each layout to each other one."""
    found = {}
    for before, (shape, placements) in LAYOUTS.items():
        path = saved_in(folder, before, shape, placements)
        for after, (shape, placements) in LAYOUTS.items():
            wanted = spread(matrices(), shape, placements)
            state = spread(matrices(6), shape, placements)
            with counted(path) as ratio, patch.object(plan, "UNIT", UNIT):
                report = loaded(path, state)
                read = ratio()
            found[f"{before} to {after}"] = [differing(state, wanted), read, report.read, report.reason]
    return found


def many_rounds(folder: Path) -> Any:
    """Units, rounds and groups are small, so that there are many of them."""
    with patch.multiple(plan, UNIT=1 << 16, ROUND=1 << 18, GROUP=3):
        state, path = values(), folder / "rounds"
        dcp.save(state, storage_writer=streamxf.FileSystemWriter(path, block_size=1 << 16))
        target = blank(state)
        with counted(path) as ratio:
            report = loaded(path, target)
            read = ratio()
        return {"wrong": same(target, state), "read": report.read, "ratio": read}


# -- those that cannot ------------------------------------------------------------------------------


def reasons(folder: Path) -> Any:
    """Loads that do not read once although they are asked to, and are right."""
    state, path = values(), folder / "reasons"
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(path))
    found: dict[str, Any] = {}

    def attempt(name: str, reader: Any, **options: Any) -> None:
        target = load_into(blank(state), reader, **options)
        found[name] = [same(target, state), reader.report.read, reader.report.reason]

    rank, count = dist.get_rank(), dist.get_world_size()
    if rank == 0:  # others do something else meanwhile
        attempt("alone", streamxf.FileSystemReader(path, read="once"), no_dist=True)
    dist.barrier()
    for other in (0, 1):
        attempt(f"{other} has each", streamxf.FileSystemReader(path, read="each" if rank == other else "once"))
    groups = [dist.new_group([*range(count // 2)]), dist.new_group([*reversed(range(count // 2, count))])]
    for number in range(2):
        group = groups[rank >= count // 2]
        attempt(f"group {number}", streamxf.FileSystemReader(path, read="once"), process_group=group)
    attempt("changed plan", streamxf.FileSystemReader(path, read="once"), planner=Changing(rank == 1))
    attempt("new plan", streamxf.FileSystemReader(path, read="once"), planner=Changing(rank == 1, new=True))
    for each in state, blank(state):
        each["mine"] = torch.full((3_000_000,), float(rank))
    path = folder / "little"
    mine = {f"of rank {rank}": torch.randn(2_000_000), "shared": torch.zeros(10)}
    dcp.save(mine, storage_writer=streamxf.FileSystemWriter(path))
    state = mine
    attempt("little", streamxf.FileSystemReader(path, read="once"))
    return found


class Changing(dcp.DefaultLoadPlanner):
    """On one rank it changes the plan in `finish_plan`: it reads the first tensor by itself, in two requests."""

    def __init__(self, changes: bool, new: bool = False) -> None:
        super().__init__()
        self._changes, self._new = changes, new

    def finish_plan(self, new_plan: Any) -> Any:
        if not self._changes:
            return new_plan
        from dataclasses import replace

        if self._new:
            return type(new_plan)([*new_plan.items])
        items = [*new_plan.items]
        number = next(n for n, item in enumerate(items) if item.storage_index.fqn == "large")
        whole = items[number]
        rows, columns = whole.lengths
        first = replace(whole, lengths=torch.Size((10, columns)))
        rest = torch.Size((10, 0))
        second = replace(whole, dest_offsets=rest, storage_offsets=rest, lengths=torch.Size((rows - 10, columns)))
        new_plan.items[number : number + 1] = [first, second]
        return new_plan


# -- other numbers of ranks ------------------------------------------------------------------------


def rows(fill: int) -> dict[str, Any]:
    """Matrices with a shard on each rank, of sizes that no number of ranks divides."""
    generator = torch.Generator().manual_seed(fill)
    whole = {
        "large": torch.randn(2251, 1024, generator=generator),
        "odd": torch.randn(4099, 517, generator=generator).to(torch.bfloat16),
        "small": torch.arange(1000.0) + fill,
    }
    return spread(whole, (dist.get_world_size(),), [Shard(0)])


def rows_saved(folder: Path) -> None:
    writer = streamxf.FileSystemWriter(folder / "rows", _extensions=full_chain(), block_size=BLOCK)
    dcp.save(rows(1), storage_writer=writer)


def rows_loaded(folder: Path) -> Any:
    path, state, wanted = folder / "rows", rows(2), rows(1)
    found: dict[str, Any] = {}
    for read in ("each", "once"):
        with counted(path) as ratio, patch.object(plan, "UNIT", UNIT):
            dcp.load(state, storage_reader=streamxf.FileSystemReader(path, keys=KEY, read=read))  # type: ignore[arg-type]
            found[read] = ratio()
    return found | {"wrong": differing(state, wanted)}


# -- other ways to ask for it ----------------------------------------------------------------------


def asked_of_install(folder: Path) -> Any:
    """By torch's own reader, and by a load that makes its reader."""
    state, path, found = values(), folder / "installed", dict[str, Any]()
    with streamxf.install(full_chain(), reader={"read": "once"}):
        dcp.save(state, checkpoint_id=path)
        for name in ("reader", "checkpoint_id"):
            target, made = blank(state), dcp.FileSystemReader(path)
            with counted(path) as ratio:
                dcp.load(target, **({"storage_reader": made} if name == "reader" else {"checkpoint_id": path}))
                found[name] = [same(target, state), ratio()]
            if name == "reader":
                found["read"] = made.report.read  # type: ignore[attr-defined]
    return found


def asked_of_manager(folder: Path) -> Any:
    state, target = values(), blank(values())
    with streamxf.CheckpointManager(folder / "run", full_chain(), verify="none", reader={"read": "once"}) as manager:
        manager.save(3, state)
        with counted(Path(str(manager.path(3)))) as ratio:
            step = manager.resume(target)
            return [step, same(target, state), ratio()]


def asked_of_urls(folder: Path) -> Any:
    """On an S3 server, of `FsspecReader` and of a manager."""
    import s3fs

    options = storage((folder / "endpoint").read_text())
    read, original = torch.zeros(1, dtype=torch.int64), s3fs.S3FileSystem._cat_file

    async def cat_file(self: Any, path: str, *args: Any, **kwargs: Any) -> Any:
        data = await original(self, path, *args, **kwargs)
        if path.endswith(".distcp"):
            read.add_(len(data))
        return data

    def ratio(url: str) -> float:
        dist.all_reduce(read)
        stored = sum(each["size"] for each in files.find(url, detail=True).values() if each["name"].endswith(".distcp"))
        found = float(read.item() / stored)
        read.zero_()
        return found

    state, found, files = values(), dict[str, Any](), s3fs.S3FileSystem(**options)
    with patch.object(s3fs.S3FileSystem, "_cat_file", cat_file):
        url, target = "s3://checkpoints/once", blank(state)
        dcp.save(state, storage_writer=streamxf.FsspecWriter(url, _extensions=full_chain(), **options))
        reader = streamxf.FsspecReader(url, keys=KEY, read="once", **options)
        dcp.load(target, storage_reader=reader)
        assert reader.report is not None
        found["reader"] = [same(target, state), reader.report.read, ratio(url)]
        url, target = "s3://checkpoints/once-run", blank(state)
        more: dict[str, Any] = {"verify": "none", "reader": {"read": "once"}, "storage_options": options}
        with streamxf.CheckpointManager(url, full_chain(), **more) as manager:
            manager.save(3, state)
            read.zero_()
            step = manager.resume(target)
            found["manager"] = [same(target, state), step, ratio(url)]
    return found
