"""States of libraries that quantize weights, or bring optimizers of their own: what docs/frameworks.md says of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import streamxf

Optimizers = dict[str, Callable[[Any], Any]]
OPTIMIZERS: Optimizers = {
    "bitsandbytes": lambda weights: pytest.importorskip("bitsandbytes").optim.AdamW8bit(weights, lr=1e-2),
    "schedulefree": lambda weights: pytest.importorskip("schedulefree").AdamWScheduleFree(weights, lr=1e-2),
}


def save(state: dict[str, Any], path: Path) -> None:
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(path, chain="floatzip+checksum", sync_files=False))


def load(state: dict[str, Any], path: Path) -> None:
    dcp.load(state, storage_reader=streamxf.FileSystemReader(path))


def train(model: nn.Module, optimizer: Any, steps: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    getattr(optimizer, "train", lambda: None)()
    for _ in range(steps):
        model(torch.randn(4, 128, generator=generator)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("library", OPTIMIZERS)
def test_an_optimizer_is_resumed_to_the_last_bit(tmp_path: Path, library: str) -> None:
    def trained(steps: int) -> tuple[nn.Module, Any]:
        model = nn.Linear(128, 128)
        optimizer = OPTIMIZERS[library](model.parameters())
        train(model, optimizer, steps, seed=steps)
        return model, optimizer

    (model, optimizer), (fresh, resumed) = trained(3), trained(1)
    save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path)
    state = {"model": fresh.state_dict(), "optimizer": resumed.state_dict()}
    load(state, tmp_path)
    resumed.load_state_dict(state["optimizer"])
    for one, other in ((model, optimizer), (fresh, resumed)):
        train(one, other, 3, seed=9)
    assert torch.equal(model.weight, fresh.weight)


def test_bitsandbytes_weights_of_four_bits_are_made_anew_from_what_was_loaded(tmp_path: Path) -> None:
    """Loaded in place they give other outputs: the offset of their scales lies in a blob that each state_dict makes."""
    bnb = pytest.importorskip("bitsandbytes")

    def made(seed: int) -> Any:
        generator = torch.Generator().manual_seed(seed)
        layer = bnb.nn.Linear4bit(64, 64, bias=False, compute_dtype=torch.float32, quant_type="nf4")
        layer.weight = bnb.nn.Params4bit(
            torch.randn(64, 64, generator=generator), requires_grad=False, quant_type="nf4", compress_statistics=True
        )
        return layer.to("cpu")

    layer, fresh, given = made(1), made(2), torch.ones(2, 64)
    save(layer.state_dict(), tmp_path)
    with streamxf.Checkpoint(tmp_path) as checkpoint:
        weight = checkpoint["weight"].read()
        facts = {name.removeprefix("weight."): checkpoint[name].read() for name in checkpoint if name != "weight"}
    state = {name: value for name, value in fresh.state_dict().items() if "quant_state" not in name}
    load(state, tmp_path)  # without the blob, which may have another size there
    assert torch.equal(fresh.weight, layer.weight)
    assert not torch.equal(fresh(given), layer(given))
    fresh.weight = bnb.nn.Params4bit.from_prequantized(weight, facts, requires_grad=False, device="cpu")
    assert torch.equal(fresh(given), layer(given))
