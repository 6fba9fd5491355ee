"""``torch.save`` files that were packed, and come back: the same tensors, objects, nesting, order, shared memory."""

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.distributed.checkpoint import DefaultSavePlanner, save

import streamxf
from streamxf.errors import MetadataError
from streamxf.formats.opening import open_source
from streamxf.storage.opening import open_storage
from streamxf.tools.convert.pack import pack
from streamxf.tools.convert.packed import ITEM
from streamxf.tools.convert.unpack import unpack
from tests.tools.convert.states import loaded

REST = f"{ITEM}/a.pt"

PLAIN = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=3)


def tensors() -> st.SearchStrategy[torch.Tensor]:
    shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
    dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
    made = st.builds(lambda shape, dtype: torch.randint(0, 2, shape).to(dtype), shapes, dtypes)
    turned = made.map(lambda tensor: tensor.permute(tuple(reversed(range(tensor.ndim)))))
    sliced = made.map(lambda tensor: tensor[..., ::2] if tensor.ndim else tensor)
    return made | turned | sliced


def states() -> st.SearchStrategy[dict[str, Any]]:
    leaves = PLAIN | tensors()
    inner = st.recursive(
        leaves, lambda node: st.lists(node, max_size=3) | st.dictionaries(st.text(max_size=3), node, max_size=3)
    )
    return st.dictionaries(st.text(min_size=1, max_size=4), inner, min_size=1, max_size=4)


def geometry(value: Any, seen: dict[int, int]) -> Any:
    """Everything about a value that has to come back; storages by the order in which they are met."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().flatten().clone(memory_format=torch.contiguous_format)
        storage = seen.setdefault(value.untyped_storage().data_ptr(), len(seen)) if value.numel() else -1
        return (
            type(value).__name__,
            value.dtype,
            tuple(value.shape),
            value.requires_grad,
            storage,
            flat.view(torch.uint8).tolist() if flat.numel() else [],
        )
    if isinstance(value, dict):
        return type(value).__name__, [(key, geometry(child, seen)) for key, child in value.items()]
    if isinstance(value, list | tuple):
        return type(value).__name__, [geometry(child, seen) for child in value]
    return type(value).__name__, value


def around(folder: Path, value: Any, chain: str = "zstd") -> Any:
    """`value` saved, packed, unpacked and loaded."""
    torch.save(value, folder / "a.pt")
    pack(folder / "a.pt", folder / "packed", chain)
    done = unpack(folder / "packed", folder / "b.pt")
    assert done.restored
    assert (folder / "b.pt").read_bytes() == (folder / "a.pt").read_bytes()
    return torch.load(folder / "b.pt", weights_only=True)


@settings(settings.get_profile("disk"))
@given(states(), st.sampled_from(["", "zstd", "floatzip+checksum"]))
def test_any_state_dict_comes_back(tmp_path_factory, state, chain):
    folder = tmp_path_factory.mktemp("torch")
    assert geometry(around(folder, state, chain), {}) == geometry(state, {})


def test_what_shares_memory_shares_it_again(tmp_path):
    base = torch.arange(100.0)
    weight = torch.nn.Parameter(torch.ones(4, 3))
    state = OrderedDict(tied=weight, same=weight, head=base[:50], tail=base[50:], across=base[25:75])
    state |= {"turned": base[:12].view(3, 4).T, "every": base[::3], "alone": torch.arange(100.0)[::7]}
    state |= {"list": [base[99], {"deep": base[1:3]}], "one": 7}
    found = around(tmp_path, state)
    assert geometry(found, {}) == geometry(state, {})
    found["head"][1] = 1000
    assert found["list"][1]["deep"][0] == 1000
    assert found["tied"].data_ptr() == found["same"].data_ptr()


def test_a_model_and_its_optimizer_load_from_it(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    found = around(tmp_path, state)
    other = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))
    other.load_state_dict(found["model"])
    torch.optim.AdamW(other.parameters()).load_state_dict(found["optimizer"])
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_another_format_than_the_packed_one(tmp_path):
    torch.save({"a": {"w": torch.arange(4.0)}}, tmp_path / "a.pt")
    pack(tmp_path / "a.pt", tmp_path / "packed")
    done = unpack(tmp_path / "packed", tmp_path / "x.safetensors")
    assert (done.restored, done.tensors, done.left_out) == (False, 1, ())
    assert torch.equal(load_file(tmp_path / "x.safetensors")["a.w"], torch.arange(4.0))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"w": torch.arange(5.0)}, "another dtype or shape"),
        ({"w": torch.arange(4)}, "another dtype or shape"),
        ({"w": 5}, "another dtype or shape"),
        ({"w": None}, "missing"),
        ({"more": 1}, "were not in the files"),
        ({REST: torch.zeros(10, dtype=torch.uint8)}, "do not fit where they were"),
        ({REST: None}, "do not fit where they were"),
        ({REST: torch.zeros(1500)}, "not one-dimensional uint8"),
        ({REST: 7}, "not one-dimensional uint8"),
    ],
    ids=["smaller", "another dtype", "an object", "gone", "more", "a short rest", "no rest", "numbers", "no tensor"],
)
def test_a_checkpoint_that_is_not_what_was_packed(tmp_path, change, words):
    """Somebody saved it again with other items, and kept the one that tells about the file."""
    torch.save({"w": torch.arange(6.0)[:4]}, tmp_path / "a.pt")
    pack(tmp_path / "a.pt", tmp_path / "packed")
    with open_source(open_storage(tmp_path / "packed")) as source:
        kept = source.load_object(ITEM)
    state = {**loaded(tmp_path / "packed"), ITEM: kept, **change}
    state = {name: value for name, value in state.items() if value is not None}
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    save(state, storage_writer=streamxf.FileSystemWriter(tmp_path / "again"), planner=planner)
    with pytest.raises(MetadataError, match=words):
        unpack(tmp_path / "again", tmp_path / "x.pt")
    assert not (tmp_path / "x.pt").exists()


@pytest.mark.parametrize("kept", [5, {"a": 1}, {"version": 2}, {"version": 1, "format": "TORCH"}], ids=str)
def test_an_item_that_is_none_of_packs(tmp_path, kept):
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    save({"w": torch.zeros(1), ITEM: kept}, storage_writer=streamxf.FileSystemWriter(tmp_path / "x"), planner=planner)
    with pytest.raises(MetadataError):
        unpack(tmp_path / "x", tmp_path / "x.pt")
