"""Tensors whose storage was freed or cut, as by FSDP and offloading: NumPy, and torch, give other memory for them."""

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf.errors import UnsupportedError
from tests.dcp.helpers import assert_same, error_of, load, save

SIZES = [0, 4096, 4 * 100_000 - 1]


def with_storage(size: int, *, turned: bool = False) -> torch.Tensor:
    tensor = torch.ones(100, 1000).t() if turned else torch.ones(100_000)
    tensor.untyped_storage().resize_(size)
    return tensor


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("turned", [False, True])
def test_it_is_not_saved(tmp_path: Path, size: int, turned: bool) -> None:
    tensor = with_storage(size, turned=turned)
    error = error_of(lambda: save({"kept": torch.ones(3), "w": tensor}, tmp_path / "c"))
    assert isinstance(error, UnsupportedError)
    assert error.item == "w"
    assert f"it has {size:,} bytes" in str(error)
    assert not [*(tmp_path / "c").iterdir()]
    with pytest.raises(UnsupportedError, match="freed or cut"), streamxf.CheckpointWriter(tmp_path / "d") as writer:
        writer["w"] = tensor
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("chain", [[], [streamxf.FloatZip()]])
def test_nothing_is_loaded_into_it(tmp_path: Path, size: int, chain: list[streamxf.Codec]) -> None:
    save({"w": torch.ones(100_000)}, tmp_path, chain)
    target = {"w": with_storage(size)}
    error = error_of(lambda: dcp.load(target, storage_reader=streamxf.FileSystemReader(tmp_path)))
    assert isinstance(error, UnsupportedError)
    assert error.item == "w"


def test_what_a_storage_holds_is_saved_and_loaded(tmp_path: Path) -> None:
    whole = torch.arange(1000.0)
    freed = torch.ones(7, 0)
    freed.untyped_storage().resize_(0)
    state = {
        "the end": whole[990:],
        "every tenth": whole[9::10],
        "one, many times": whole[999:].expand(50),
        "nothing, of nothing": freed,
        "a quarter": whole.view(torch.uint8)[3000:].view(torch.float32),
        "turned": whole.view(10, 100).t(),
    }
    save(state, tmp_path)
    assert_same(load(state, tmp_path), state)
