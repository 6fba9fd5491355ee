"""What torch, NumPy and safetensors write goes through `streamxf.open`, and their loaders read from it directly."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load, save

import streamxf
from tests.samples import BLOCK, FULL, KEY

CHAINS = pytest.mark.parametrize("chain", [(), "zstd+checksum", "lz4:level=9", FULL], ids=str)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.sxf"


@CHAINS
def test_torch(path, chain):
    state = {"w": torch.randn(300, 100), "half": torch.ones(7, dtype=torch.bfloat16), "step": 3}
    with streamxf.open(path, "wb", chain=chain, block_size=BLOCK) as file:
        torch.save(state, file)
    with streamxf.open(path, keys=KEY if chain == FULL else None) as file:
        loaded = torch.load(file, weights_only=True)
    assert loaded["step"] == 3
    assert all(torch.equal(loaded[name], state[name]) for name in ("w", "half"))


@CHAINS
@pytest.mark.parametrize("dtype", ["f4", ">f8", "c16", "?", "u2", "M8[s]"])
def test_numpy(path, chain, dtype):
    array = np.arange(50_000).astype(dtype).reshape(100, 500)
    with streamxf.open(path, "wb", chain=chain, block_size=BLOCK) as file:
        np.save(file, array)
        np.save(file, array.T)
    with streamxf.open(path, keys=KEY if chain == FULL else None) as file:
        first, second = np.load(file), np.load(file)
    assert first.dtype == array.dtype
    np.testing.assert_array_equal(first, array)
    np.testing.assert_array_equal(second, array.T)


@CHAINS
def test_safetensors(path, tmp_path, chain):
    state = {"a": torch.randn(64, 64), "b": torch.arange(10, dtype=torch.int16)}
    with streamxf.open(path, "wb", chain=chain) as file:
        file.write(save(state))
    with streamxf.open(path, keys=KEY if chain == FULL else None) as file:
        data = file.read()
    assert all(torch.equal(value, state[name]) for name, value in load(data).items())
    plain = tmp_path / "plain.safetensors"
    plain.write_bytes(data)
    with safe_open(plain, "pt") as tensors:
        assert set(tensors.keys()) == set(state)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype="f2"),
        np.arange(6, dtype=">i4"),
        np.arange(6, dtype="c16").reshape(2, 3),
        np.array(2.5),
        np.zeros((3, 0)),
        np.zeros(3, dtype=[("a", "i4"), ("b", "f8")]),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_arrays_are_taken_as_their_bytes(array):
    assert streamxf.decode(streamxf.encode(array)) == array.tobytes()
    target = np.empty_like(array)
    with streamxf.open(io.BytesIO(streamxf.encode(array))) as file:
        assert file.readinto(target) == array.nbytes
    assert target.tobytes() == array.tobytes()


def test_arrays_with_gaps_are_refused():
    with pytest.raises(TypeError, match="contiguous"):
        streamxf.encode(np.arange(10)[::2])


def test_text_layers_and_buffers_of_the_standard_library(path):
    with io.TextIOWrapper(io.BufferedWriter(streamxf.open(path, "wb")), encoding="utf-8") as file:
        file.write("übung\n" * 100)
    with io.TextIOWrapper(io.BufferedReader(streamxf.open(path)), encoding="utf-8") as file:
        assert sum(line == "übung\n" for line in file) == 100
