"""What nobody has closed is found by the collector wherever it runs: in the thread, too, that talks to the storage."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec.asyn
import pytest
import torch
from fsspec.implementations.http import HTTPFileSystem
from torch.distributed.checkpoint import DefaultSavePlanner

from streamxf import CheckpointManager, CheckpointWriter, FsspecWriter
from streamxf.errors import AbortedError
from streamxf.manager.holds import active_holds
from streamxf.places import open_storage
from streamxf.storage.fetch import make_request
from streamxf.storage.stores import pending_uploads
from tests.cli import preloaded
from tests.dcp.s3_server import storage as s3_options
from tests.polling import wait_until


async def collect() -> int:
    return gc.collect()


@contextmanager
def collected_by_the_loop() -> Iterator[None]:
    """What is dropped meanwhile, in a cycle, is collected in fsspec's thread."""
    gc.collect()
    gc.disable()
    try:
        yield
        asyncio.run_coroutine_threadsafe(collect(), fsspec.asyn.get_loop()).result(60)
    finally:
        gc.enable()


def drop_manager(run: str, options: dict[str, Any]) -> None:
    manager: Any = CheckpointManager(run, storage_options=options)
    manager.itself = manager
    assert manager.latest() == f"{run}/step-1"
    assert [*active_holds(open_storage(run, options))] == ["step-1"]


def drop_writer(run: str, options: dict[str, Any]) -> None:
    writer: Any = CheckpointWriter(f"{run}/other", storage_options=options)
    writer.__enter__().itself = writer
    for name in "abc":
        writer[name] = torch.rand(2**22)
    assert uploads(run, options)


def drop_save(run: str, options: dict[str, Any]) -> None:
    writer: Any = FsspecWriter(f"{run}/third", **options)
    planner = DefaultSavePlanner()
    planner.set_up_planner({"w": torch.ones(3)}, writer.storage_meta(), is_coordinator=True)
    writer.set_up_storage_writer(True)
    plan = writer.prepare_local_plan(planner.create_local_plan())
    (plan,) = writer.prepare_global_plan(planner.create_global_plan([plan])[0])
    writer.write_data(planner.finish_plan(plan), planner).wait()
    writer._save.itself = writer.itself = writer
    assert data_files(run, options)


def uploads(run: str, options: dict[str, Any]) -> list[Any]:
    return pending_uploads(open_storage(run, options).filesystem, open_storage(f"{run}/other", options).path)


def data_files(run: str, options: dict[str, Any]) -> list[str]:
    return [name for name in open_storage(f"{run}/third", options).names(()) if name.endswith(".distcp")]


@pytest.mark.s3
@pytest.mark.slow
@pytest.mark.parametrize(
    ("drop", "left"),
    [
        (drop_manager, lambda run, options: active_holds(open_storage(run, options))),
        (drop_writer, uploads),
        (drop_save, data_files),
    ],
)
def test_by_the_thread_that_it_waits_for(
    endpoint: str, drop: Callable[..., None], left: Callable[[str, dict[str, Any]], Any]
) -> None:
    run, options = f"s3://checkpoints/{uuid4().hex}", s3_options(endpoint)
    with CheckpointManager(run, storage_options=options) as manager:
        manager.save(1, {"w": torch.ones(3)})
    with collected_by_the_loop():
        drop(run, options)
    wait_until(lambda: not left(run, options))


def test_a_request_is_not_waited_for_in_the_thread_that_makes_it() -> None:
    filesystem = HTTPFileSystem(skip_instance_cache=True)

    async def request() -> None:
        pass

    async def ask() -> None:
        make_request(filesystem, request)

    with pytest.raises(AbortedError, match="cannot wait"):
        asyncio.run_coroutine_threadsafe(ask(), filesystem.loop).result(60)


def test_on_a_disk_a_hold_ends_with_the_process(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, {"w": torch.ones(3)})
    code = f"import streamxf; manager = streamxf.CheckpointManager({str(tmp_path)!r}); print(manager.latest())"
    done = preloaded.script(code)
    assert done.stdout.strip() == str(tmp_path / "step-1")
    assert active_holds(open_storage(tmp_path)) == {}
