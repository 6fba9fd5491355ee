"""Training beside saves: stagers, weights that change as soon as they may, FSDP2, and the manager."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import streamxf
from streamxf import Retention, Schedule
from tests.cli import preloaded
from tests.dcp.helpers import KEY, blank

from .helpers import assert_kept, chain, load, load_into, on_host, save, weights, writer

LIMIT = 120


def stager(pinned: bool, shared: bool, background: bool, non_blocking: bool) -> Callable[[], dict[str, Any]]:
    return lambda: {"async_stager": DefaultStager(StagingOptions(pinned, shared, background, non_blocking))}


STAGERS: dict[str, Callable[[], dict[str, Any]]] = {
    "the writer": dict,
    "DefaultStager": stager(False, False, False, False),
    "shared": stager(False, True, False, False),
    "pinned": stager(True, False, False, False),
    "pinned, shared, non-blocking": stager(True, True, False, True),
    "in the background": stager(False, False, True, False),
    "all": stager(True, True, True, True),
}
ON_THE_CPU = ("the writer", "DefaultStager", "shared")  # the others need a GPU


class Trained:
    """A model with its optimizer, and as many steps as are asked for."""

    def __init__(self, device: torch.device, *, sharded: bool = False) -> None:
        torch.manual_seed(3)
        width = 1000 if device.type == "cuda" else 300
        layers = [torch.nn.Linear(width, width, device=device, dtype=torch.bfloat16) for _ in range(4)]
        self.model = torch.nn.Sequential(*layers)
        if sharded:
            mesh = init_device_mesh(device.type, (1,))
            for layer in self.model:
                fully_shard(layer, mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.data = torch.randn(16, width, device=device, dtype=torch.bfloat16)
        self.step()

    def step(self) -> None:
        self.model(self.data).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}


def whole(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: whole(value) for name, value in state.items()}
    if isinstance(state, list):
        return [whole(value) for value in state]
    value = state.full_tensor() if hasattr(state, "full_tensor") else state
    return on_host(value)


@pytest.mark.parametrize("name", STAGERS)
def test_weights_that_change_as_soon_as_they_may(device: torch.device, checkpoint: Path, name: str) -> None:
    if device.type == "cpu" and name not in ON_THE_CPU:
        pytest.skip("the stager needs a GPU")
    trained = Trained(device)
    own = streamxf.FileSystemWriter(checkpoint, _extensions=chain(), thread_count=2)
    options = STAGERS[name]()
    # the second save is staged into the memory of the first; older torch closes the stager with the save
    for _ in range(2 if torch.__version__ >= (2, 13) else 1):
        trained.step()
        state = trained.state()
        wanted = whole(state)
        if device.type == "cuda":
            torch.cuda.synchronize()  # torch's staging in the background waits for no stream
        saved = dcp.async_save(state, storage_writer=own, **options)
        if (staged := getattr(saved, "staging_completion", None)) is not None:
            staged.result(LIMIT)
        for _ in range(20):
            trained.step()
        getattr(saved, "upload_completion", saved).result(LIMIT)
        found = load_into(blank(trained.state()), checkpoint)
        assert_kept(found, wanted)
        assert not torch.equal(whole(trained.state())["model"]["0.weight"], wanted["model"]["0.weight"])
    if options and torch.__version__ >= (2, 13):
        options["async_stager"].close()


def test_a_step_right_after_a_save(device: torch.device, checkpoint: Path) -> None:
    trained = Trained(device)
    for _ in range(3):
        trained.step()
        wanted = whole(trained.state())
        save(trained.state(), checkpoint, thread_count=3)
        trained.step()
        assert_kept(load_into(blank(trained.state()), checkpoint), wanted)


def test_training_goes_on_from_where_it_was(device: torch.device, checkpoint: Path) -> None:
    one, other = Trained(device), Trained(device)
    for _ in range(3):
        one.step()
    save(one.state(), checkpoint)
    state = load_into(other.state(), checkpoint)
    set_state_dict(other.model, other.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    assert_kept(whole(other.state()), whole(one.state()))
    one.step()
    other.step()
    assert_kept(whole(other.state()), whole(one.state()))


@pytest.mark.usefixtures("group")
def test_fsdp2(device: torch.device, checkpoint: Path) -> None:
    trained, other = Trained(device, sharded=True), Trained(device, sharded=True)
    trained.step()
    wanted = whole(trained.state())
    save(trained.state(), checkpoint, thread_count=2)
    trained.step()
    state = load_into(other.state(), checkpoint)
    set_state_dict(other.model, other.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    assert_kept(whole(other.state()), wanted)
    saved = dcp.async_save(other.state(), storage_writer=writer(checkpoint))
    other.step()
    saved.result(LIMIT)
    assert_kept(whole(load_into(trained.state(), checkpoint)), wanted)


@pytest.mark.usefixtures("group")
def test_a_sharded_model_into_a_plain_one_and_back(device: torch.device, checkpoint: Path) -> None:
    sharded, plain = Trained(device, sharded=True), Trained(device)
    sharded.step()
    save(sharded.state(), checkpoint)
    assert_kept(load_into(blank(plain.state()), checkpoint), whole(sharded.state()))
    plain.step()
    save(plain.state(), checkpoint)
    assert_kept(whole(load_into(sharded.state(), checkpoint)), whole(plain.state()))


@pytest.mark.parametrize("background", [False, True])
def test_the_manager(device: torch.device, tmp_path: Path, background: bool) -> None:
    def manager() -> streamxf.CheckpointManager:
        options: dict[str, Any] = {"save": Schedule(steps=1), "keep": Retention(last=2), "async_save": background}
        return streamxf.CheckpointManager(tmp_path, "floatzip+checksum+encrypt", keys=KEY, **options)

    state = {"w": weights(7, device), "b": weights(0.01, device), "step": 0}
    with manager() as made:
        for step in range(1, 5):
            state["w"] += 0.5
            state["step"] = step
            made.save(step, state)
            wanted = on_host(state)
    state["w"] += 1
    found = blank(state)
    with manager() as made:
        assert made.resume(found) == 4
    assert_kept(found, wanted)


@pytest.mark.slow
def test_a_save_by_another_process(device: torch.device, tmp_path: Path) -> None:
    done = preloaded.module("tests.gpu.by_process", device.type, tmp_path / "checkpoint")
    assert done.stdout.strip().endswith("same"), done.stdout + done.stderr


def test_a_failed_save_leaves_the_next_one_intact(device: torch.device, checkpoint: Path) -> None:
    class Failing(dcp.DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            if write_item.index.fqn == "3":
                raise RuntimeError("no more")
            return super().resolve_data(write_item)

    state = {str(number): weights(6, device) for number in range(5)}
    for _ in range(3):
        with pytest.raises(BaseException, match="no more"):
            dcp.save(state, storage_writer=writer(checkpoint, thread_count=2), planner=Failing())
    save(state, checkpoint)
    assert_kept(load(state, checkpoint), state)
