"""What ranks do that fail, or die, in the middle of a save. Every function here runs in a process of its own."""

import gc
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import SavePlanner
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

import streamxf
from streamxf.storage.local import LocalStorage
from streamxf.storage.storage import Storage
from tests.failing import fails_with

from .foreign_errors import NeedsTwo, StoreError
from .helpers import KEY, Told, full_chain, index_of
from .process_groups import join_group, start_ranks


def state_of(value: float) -> dict[str, Any]:
    """A tensor of this rank's own, and one that all have."""
    rank = dist.get_rank()
    return {f"of rank {rank}": torch.full((50,), value + rank), "shared": torch.full((20,), value)}


class Planner(dcp.DefaultSavePlanner):
    """Raises, or does, something when its rank's data is asked for, or when its plan is."""

    def __init__(self, act: Callable[[], None] | None, in_plan: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self._act, self._in_plan = act, in_plan

    def create_local_plan(self) -> Any:
        if self._act is not None and self._in_plan:
            self._act()
        return super().create_local_plan()

    def resolve_data(self, write_item: Any) -> Any:
        if self._act is not None and not self._in_plan:
            self._act()
        return super().resolve_data(write_item)


class Raise:
    """In place of a lambda: background processes get it by pickle."""

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments

    def __call__(self) -> None:
        raise NeedsTwo(*self._arguments)


def writer_for(path: Path, **options: Any) -> streamxf.FileSystemWriter:
    return streamxf.FileSystemWriter(path, _extensions=full_chain(), thread_count=2, **options)


def failures_of(action: Callable[[], Any]) -> dict[str, str] | None:
    """Each rank's error in a CheckpointException, as this rank was told; None if nothing failed."""
    try:
        action()
    except CheckpointException as error:
        return {str(rank): f"{type(failure).__name__}: {failure}" for rank, (failure, _) in error.failures.items()}
    return None


def loads(path: Path, value: float) -> bool:
    wanted = state_of(value)
    found = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
    dcp.load(found, storage_reader=streamxf.FileSystemReader(path, keys=KEY))
    return all(torch.equal(found[name], wanted[name]) for name in wanted)


def failing_saves(folder: Path) -> Any:
    """One writer; ranks fail in turn, in every step. The time-out would be a RuntimeError, and end the test."""
    path = folder / "steps"
    rank = dist.get_rank()
    writer = writer_for(path)
    dcp.save(state_of(1), storage_writer=writer)
    first = index_of(path).save_id
    found: dict[str, Any] = {}

    def attempt(name: str, who: set[int], act: Callable[[], None], **options: Any) -> None:
        planner = Planner(act if rank in who else None, **options)
        found[name] = failures_of(lambda: dcp.save(state_of(2), storage_writer=writer, planner=planner))
        found[f"{name}: published"] = index_of(path).save_id != first
        dist.barrier()

    attempt("data of one", {1}, Raise("put", 1))
    attempt("data of the coordinator", {0}, Raise("put", 0))
    attempt("data of two", {1, 2}, Raise("put", rank))
    attempt("plan of one", {2}, _fail_with_value_error, in_plan=True)

    put = LocalStorage.put
    if rank == 0:
        LocalStorage.put = fails_with(StoreError, 503)  # type: ignore[method-assign]
    attempt("publishing", set(), Raise())
    LocalStorage.put = put  # type: ignore[method-assign]

    found["report of the rank that publishes"] = rank != 0 or writer.report is None
    mine = writer_for(path)
    if rank == 1:
        (folder / "a file").touch()
        mine.path = folder / "a file" / "below"
    found["no folder"] = failures_of(lambda: dcp.save(state_of(2), storage_writer=mine))
    found["old loads"] = loads(path, 1)
    dcp.save(state_of(2), storage_writer=writer)
    found["new loads"] = loads(path, 2)
    dist.barrier()
    found["leftovers"] = sorted({file.name for file in path.iterdir()} - {".metadata", *index_of(path).files})
    return found


def what_failed_saves_leave(folder: Path) -> Any:
    """The data files in a folder, once the save that failed there is over and after the rank that publishes goes on."""
    rank = dist.get_rank()
    path = folder / "left"
    writer = writer_for(path)
    dcp.save(state_of(1), storage_writer=writer)
    before = sorted(os.listdir(path))
    found: dict[str, Any] = {}

    def left() -> list[str]:
        dist.barrier()
        names = sorted({name[:3] for name in set(os.listdir(path)) - set(before)})
        dist.barrier()
        return names

    for failing in (0, 1):
        planner = Planner(Raise("put", rank) if rank == failing else None)
        failures = failures_of(lambda: dcp.save(state_of(2), storage_writer=writer, planner=planner))  # noqa: B023
        found[f"{failing} fails"] = list(failures or ()), left()
        dcp.save(state_of(3), checkpoint_id=folder / "elsewhere", storage_writer=writer)
        found[f"{failing} fails, then elsewhere"] = left()
        writer.reset(path)
        planner = Planner(Raise("put", rank) if rank == failing else None)
        failures_of(lambda: dcp.save(state_of(2), storage_writer=writer, planner=planner))  # noqa: B023
        writer = writer_for(path)
        gc.collect()  # torch's error leads to itself
        found[f"{failing} fails, then another writer"] = left()
    planner = Planner(None)
    planner.finish_plan = Raise("plan", rank) if rank == 1 else planner.finish_plan  # type: ignore[method-assign]
    failures_of(lambda: dcp.save(state_of(2), storage_writer=writer, planner=planner))
    found["a plan fails"] = left()
    writer.reset(path)
    found["a plan fails, then reset"] = left()
    found["old loads"] = loads(path, 1), loads(folder / "elsewhere", 3)
    return found


_fail_with_value_error = fails_with(ValueError, "no plan")


def cached_plans(folder: Path) -> Any:
    """Saves that fail on one rank or another between saves that do not, all with cached plans."""
    path = folder / "cached"
    rank = dist.get_rank()
    writer = writer_for(path)
    found = []
    for number, failing in enumerate([1, None, 0, 2, None, 1, None]):
        planner = Planner(Raise("put", rank) if failing == rank else None, enable_plan_caching=True)
        failures = failures_of(lambda: dcp.save(state_of(number), storage_writer=writer, planner=planner))  # noqa: B023
        right = list(failures or ()) == ([] if failing is None else [str(failing)])
        found.append(right and (failing is not None or loads(path, number)))
        dist.barrier()
    return {"right": found, "cached": bool(SavePlanner._cached_save_plan)}


def failing_loads(folder: Path) -> Any:
    """Metadata, or a data file, that one rank cannot read, because of an error that cannot be sent."""
    path = folder / "read"
    dcp.save(state_of(3), storage_writer=writer_for(path))

    def load_without(what: str, rank: int) -> Any:
        opened = LocalStorage.open

        def fails(storage: Storage, name: str = "", **options: Any) -> Any:
            if name.endswith(what):
                raise NeedsTwo("get", rank)
            return opened(storage, name, **options)

        if dist.get_rank() == rank:
            LocalStorage.open = fails  # type: ignore[method-assign]
        reader = streamxf.FileSystemReader(path, keys=KEY)
        try:
            return failures_of(lambda: dcp.load(state_of(0), storage_reader=reader))
        finally:
            LocalStorage.open = opened  # type: ignore[method-assign]

    return {"metadata": load_without(".metadata", 1), "data": load_without(".distcp", 2)}


def failing_in_the_background(folder: Path) -> Any:
    """Each rank is told by its future, and the log of its own process."""
    with Told() as told:
        return _failing_in_the_background(folder, told)


def _failing_in_the_background(folder: Path, told: Told) -> Any:
    found: dict[str, Any] = {}
    rank = dist.get_rank()
    for kind in (AsyncCheckpointerType.THREAD, AsyncCheckpointerType.PROCESS):
        path = folder / kind.value
        writer = writer_for(path)
        for number, failing in enumerate([None, 1, 0, None]):
            planner = Planner(Raise("put", rank) if rank == failing else None)
            future = dcp.async_save(
                state_of(number), storage_writer=writer, planner=planner, async_checkpointer_type=kind
            )
            failures = failures_of(lambda: future.result(300))  # noqa: B023
            found[f"{kind.value} {number}"] = failures
            if failures:
                found[f"{kind.value} {number} logged"] = told.wait()
            dist.barrier()
            found[f"{kind.value} {number} loads"] = loads(path, 3 if number == 3 else 0)
            dist.barrier()
    found["logged"] = len(told.records)
    return found


# -- ranks that die --------------------------------------------------------------------------------


def run_doomed(count: int, folder: Path, limit: float = 600, **scenarios: set[int]) -> dict[str, list[Any]]:
    """Run scenarios beside each other, each on ranks of its own, some of which are killed by it.

    Returns
    -------
    dict
        For each scenario what the ranks reported, None for those that died.
    """
    contexts = {}
    for name in scenarios:
        (folder / name).mkdir()
        arguments = (count, str(folder / name), name)
        contexts[name] = start_ranks(_doomed, arguments, count)
    end = time.monotonic() + limit
    found = {}
    try:
        for name, context in contexts.items():
            for process in context.processes:
                process.join(max(0.0, end - time.monotonic()))
            codes = [process.exitcode for process in context.processes]
            wanted = [-signal.SIGKILL if rank in scenarios[name] else 0 for rank in range(count)]
            assert codes == wanted, f"{name}: the ranks ended with {codes}"
            reports = [folder / name / f"report {rank}.json" for rank in range(count)]
            found[name] = [json.loads(file.read_text()) if file.exists() else None for file in reports]
    finally:
        for context in contexts.values():
            for process in context.processes:
                if process.is_alive():
                    process.kill()
                    process.join()
    return found


def _doomed(rank: int, count: int, folder: str, name: str) -> None:
    join_group(rank, count, str(Path(folder) / "meeting"))
    path = Path(folder) / "checkpoint"
    alone: dict[str, Any] = {"use_collectives": False} if name == "fails_alone" else {}
    dcp.save(state_of(1), storage_writer=writer_for(path), **alone)
    dist.barrier()
    report: dict[str, Any] = {}
    begin = time.monotonic()
    try:
        globals()[name](path)
        report["error"] = None
    except BaseException as error:
        report["error"] = f"{type(error).__name__}: {error}"
    report["seconds"] = time.monotonic() - begin
    (Path(folder) / f"report {rank}.json").write_text(json.dumps(report))
    os._exit(0)  # as a job that has failed: nobody can take the group down any more


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies_while_writing(path: Path) -> None:
    planner = Planner(_die if dist.get_rank() == 2 else None)
    dcp.save(state_of(2), storage_writer=writer_for(path), planner=planner)


def dies_before_publishing(path: Path) -> None:
    _with_publish(path, before=True)


def dies_after_publishing(path: Path) -> None:
    _with_publish(path, before=False)


def _with_publish(path: Path, before: bool) -> None:
    """The coordinator, of rank 0, dies in `finish`."""
    put = LocalStorage.put

    def put_and_die(*arguments: Any, **options: Any) -> None:
        if not before:
            put(*arguments, **options)
        _die()

    LocalStorage.put = put_and_die  # type: ignore[method-assign]
    dcp.save(state_of(2), storage_writer=writer_for(path))


def fails_alone(path: Path) -> None:
    """Without collectives: rank 1 fails and its process ends; the others have published theirs."""
    planner = Planner(_fail_with_value_error if dist.get_rank() == 1 else None)
    dcp.save(state_of(2), storage_writer=writer_for(path), planner=planner, use_collectives=False)
