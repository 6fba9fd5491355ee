"""What the tests of `CheckpointManager` share: states, a run that saved some, and damage."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf.manager.listing import list_checkpoints
from streamxf.manager.manager import CheckpointManager
from streamxf.storage.storage import Storage


def state_at(step: int) -> dict[str, Any]:
    return {"weight": torch.arange(1000.0) + step, "step": step}


def blank() -> dict[str, Any]:
    return {"weight": torch.full((1000,), torch.nan), "step": None}


def is_at(state: dict[str, Any], step: int) -> bool:
    return state["step"] == step and torch.equal(state["weight"], state_at(step)["weight"])


def unsaveable() -> dict[str, Any]:
    """A state whose save fails when its data is written."""
    return {**state_at(0), "step": lambda: 0}


def saved_run(run: Path | str, *steps: int, **options: Any) -> None:
    with CheckpointManager(run, **options) as manager:
        for step in steps:
            manager.save(step, state_at(step), metrics={"loss": 1 / step})


def resumed(run: Path | str, **options: Any) -> int | None:
    """The step that a new job resumes from; what it loads must be of that step."""
    with CheckpointManager(run, **options) as manager:
        return resumed_by(manager)


def resumed_by(manager: CheckpointManager) -> int | None:
    state = blank()
    step = manager.resume(state)
    assert step is None or is_at(state, step)
    return step


def complete(run: Path | str, **options: Any) -> list[str]:
    return [record.name for record in list_checkpoints(run, **options) if record.complete]


def replace_by_larger(checkpoint: Path | str | Storage) -> None:
    """Save another state there, whose step is 22; its metadata is larger."""
    state = state_at(22) | {f"more-{number}": number for number in range(30)}
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(checkpoint, chain="zstd"), no_dist=True)


def damage(checkpoint: Path) -> None:
    """Truncate the checkpoint's largest data file."""
    largest = max(checkpoint.glob("*.distcp"), key=lambda file: file.stat().st_size)
    with largest.open("r+b") as file:
        file.truncate(largest.stat().st_size // 2)
