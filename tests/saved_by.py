"""What frameworks leave on the disk, as far as it matters to commands: their folders, with little in them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict_saver import save

import streamxf

MODEL = {f"layers.{n}.weight": torch.arange(400.0).reshape(20, 20) + n for n in range(3)} | {"head.bias": torch.ones(7)}
MOMENTS = {name: {"exp_avg": torch.zeros_like(tensor)} for name, tensor in MODEL.items()}


def dcp(state: dict[str, Any], path: Path, **options: Any) -> None:
    save(state, storage_writer=streamxf.FileSystemWriter(path, **options))


def _beside(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    torch.save({"last_lr": [0.1], "step": 12}, path / "scheduler.pt")
    torch.save({"cpu": torch.zeros(5000, dtype=torch.uint8)}, path / "rng_state_0.pth")
    (path / "trainer_state.json").write_text("{}")


def trainer(path: Path) -> None:
    _beside(path)
    save_file(MODEL, path / "model.safetensors", {"format": "pt"})
    torch.save({"state": {0: {"exp_avg": torch.zeros(20, 20)}}, "param_groups": []}, path / "optimizer.pt")


def trainer_with_fsdp(path: Path) -> None:
    _beside(path)
    dcp({"model": MODEL}, path / "pytorch_model_fsdp_0")
    dcp({"optimizer": {"state": MOMENTS}}, path / "optimizer_0")


def lightning_with_fsdp(path: Path) -> None:
    dcp({"state_dict": MODEL, "optimizer_0": {"state": MOMENTS}}, path)
    torch.save({"epoch": 1, "loops": {}}, path / "meta.pt")


def lightning(path: Path) -> None:
    """Its plug-in's file, of a compiled model under DistributedDataParallel."""
    state = {f"module._orig_mod.{name}": tensor for name, tensor in MODEL.items()}
    moments = [{"state": {0: {"exp_avg": torch.zeros(20, 20)}}, "param_groups": []}]
    with streamxf.open(path, "wb", chain="zstd") as file:
        torch.save({"epoch": 1, "state_dict": state, "optimizer_states": moments, "lr_schedulers": []}, file)


def torchtitan(path: Path) -> None:
    moments = {f"state.{name}.exp_avg": tensor["exp_avg"] for name, tensor in MOMENTS.items()}
    beside = {"optimizer": moments, "lr_scheduler": {"last_epoch": 3}, "train_state": {"step": torch.tensor(3)}}
    dcp(MODEL | beside, path)


def application(path: Path) -> None:
    dcp({"app": {"model": MODEL, "optim": {"state": MOMENTS}}}, path)


FOLDERS: dict[str, Callable[[Path], None]] = {
    "checkpoint-12": trainer,
    "fsdp/checkpoint-12": trainer_with_fsdp,
    "step-6": lightning_with_fsdp,
    "last.ckpt": lightning,
    "step-10": torchtitan,
    "app": application,
}
