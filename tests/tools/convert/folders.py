"""Folders as training leaves them, and the files in a folder, to the last bit."""

import random
from pathlib import Path

import torch
from safetensors.torch import save_file


class Arguments:
    """What ``training_args.bin`` holds: an object of a class that no reader may unpickle."""

    learning_rate = 1e-4


def model() -> torch.nn.Module:
    torch.manual_seed(1)
    layers = [torch.nn.Conv2d(3, 16, 3), torch.nn.Linear(64, 100), torch.nn.Linear(100, 64)]
    return torch.nn.Sequential(*layers).to(memory_format=torch.channels_last)


def trainer(path: Path) -> Path:
    """A checkpoint as the Trainer of transformers writes it."""
    path.mkdir()
    network = model()
    optimizer = torch.optim.AdamW(network.parameters())
    for parameter in network.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    weights = {name: value.contiguous() for name, value in network.state_dict().items()}
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    torch.save(optimizer.state_dict(), path / "optimizer.pt")
    torch.save({"base_lrs": [1e-4], "last_epoch": 3}, path / "scheduler.pt")
    torch.save({"python": random.Random(1).getstate(), "cpu": torch.get_rng_state()}, path / "rng_state.pth")
    torch.save(Arguments(), path / "training_args.bin")
    (path / "trainer_state.json").write_text('{"global_step": 3}')
    (path / "tokenizer.model").write_bytes(random.Random(2).randbytes(100_000))
    return path


def folder_of_all_kinds(path: Path) -> Path:
    """A folder with a model and whatever else there may be."""
    trainer(path)
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text('{"pooling": "mean"}')
    (path / "1_Pooling" / "up.json").symlink_to("../trainer_state.json")
    (path / "latest").symlink_to("1_Pooling")
    (path / "logs" / "deep" / "empty").mkdir(parents=True)
    (path / "logs" / ".hidden").touch()
    (path / "run 1.sh").write_text("#!/bin/sh\n")
    return path


LEFT_OUT = ("latest (a link, but not to a regular file)", "logs/deep/empty (an empty folder)")
"""What `pack` leaves out of this folder."""


def contents(path: Path) -> dict[str, bytes]:
    """The regular files below a folder, links to them among them."""
    return {str(inner.relative_to(path)): inner.read_bytes() for inner in path.rglob("*") if inner.is_file()}
