"""What stands in files that are written: every byte where it belongs, from wherever the writing goes on."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import pytest
import torch
from compare.memory import Memory
from hypothesis import given
from hypothesis import strategies as st

from streamxf.convert.files import layout, torchfile
from streamxf.convert.files.layout import File, Run, Zeros, pieces
from streamxf.convert.origin import Pickled, View
from streamxf.errors import MetadataError
from streamxf.formats import source as formats_source

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.complex128, torch.float8_e4m3fn]


def filled(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-9, 9, shape, generator=generator).to(dtype)


@st.composite
def storages(draw: st.DrawFn) -> list[torch.Tensor]:
    """Views into one storage: dense ones, transposed ones, ones with gaps, ones that overlap."""
    dtype = draw(st.sampled_from(DTYPES))
    base = filled((draw(st.integers(1, 120)),), dtype, 1)
    views = []
    for _ in range(draw(st.integers(1, 4))):
        shape = draw(st.lists(st.integers(0, 4), max_size=3).map(tuple))
        strides = draw(st.tuples(*[st.integers(0, 6)] * len(shape)))
        if draw(st.booleans()):  # dense, in some order of dimensions
            order = draw(st.permutations(range(len(shape))))
            step, made = 1, [0] * len(shape)
            for dim in order:
                made[dim], step = step, step * max(1, shape[dim])
            strides = tuple(made)
        last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if 0 not in shape else -1
        if last < len(base):
            views.append(base.as_strided(shape, strides, draw(st.integers(0, len(base) - 1 - max(0, last)))))
    return views


def kept_of(value: Any, flat: dict[str, torch.Tensor]) -> Pickled:
    """What pack keeps of a file with these tensors."""
    numbers: dict[int, int] = {}
    sizes: list[int] = []
    views = {}
    for name, tensor in flat.items():
        storage = tensor.untyped_storage()
        number = numbers.setdefault(storage.data_ptr(), len(numbers))
        if number == len(sizes):
            sizes.append(storage.nbytes())
        parameter = isinstance(tensor, torch.nn.Parameter)
        views[name] = View(number, tensor.storage_offset(), tensor.stride(), tensor.requires_grad, parameter)
    return Pickled(value, views, tuple(sizes))


def written(source: Memory, file: File, start: int = 0) -> bytes:
    return b"".join(bytes(piece) for piece in pieces(source, file, start))


def as_bytes(tensor: torch.Tensor) -> bytes:
    return bytes(layout.bytes_of(tensor.detach().contiguous()))


@given(st.lists(storages(), min_size=1, max_size=3), st.integers(1, 64), st.data())
def test_a_file_of_torch_has_the_same_tensors_again_and_what_shared_memory_shares_it(groups, limit, data):
    flat = {f"{group}.{number}": view for group, views in enumerate(groups) for number, view in enumerate(views)}
    source = Memory(flat)
    kept = kept_of({name: name for name in flat}, flat)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "boxes_of", lambda entry, size: formats_source.boxes_of(entry, size, limit))
        file = torchfile.restored("x.pt", kept, source.contents.entries, source.load_object)
        whole = written(source, file)
        start = data.draw(st.integers(0, len(whole)))
        assert written(source, file, start) == whole[start:]
    assert len(whole) == file.size
    loaded = torch.load(io.BytesIO(whole), weights_only=True)
    assert list(loaded) == list(flat)
    for name, tensor in flat.items():
        found = loaded[name]
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
        assert as_bytes(found) == as_bytes(tensor)
    for group, views in enumerate(groups):
        solid = [loaded[f"{group}.{number}"] for number, view in enumerate(views) if view.numel()]
        assert len({tensor.untyped_storage().data_ptr() for tensor in solid}) <= 1


def test_nesting_order_and_kinds_of_tensors_come_back():
    weight = torch.nn.Parameter(torch.arange(6.0).view(2, 3))
    grown = torch.ones(2, requires_grad=True)
    flat = {"m.z": weight, "m.a": weight.detach(), "list.0": grown, "tuple": torch.zeros(0, 3)}
    objects = {"step": 7, "name": "x"}
    skeleton = {"m": OrderedDict(z="m.z", a="m.a"), "list": ["list.0", "step"], "t": ("tuple", "name"), 5: {}}
    source = Memory({**flat, **objects})
    file = torchfile.restored("x.pt", kept_of(skeleton, flat), source.contents.entries, source.load_object)
    loaded = torch.load(io.BytesIO(written(source, file)), weights_only=True)
    assert list(loaded) == ["m", "list", "t", 5]
    assert (type(loaded["m"]), list(loaded["m"])) == (OrderedDict, ["z", "a"])
    assert isinstance(loaded["m"]["z"], torch.nn.Parameter)
    assert not isinstance(loaded["m"]["a"], torch.nn.Parameter)
    assert loaded["m"]["z"].data_ptr() == loaded["m"]["a"].data_ptr()
    assert loaded["list"][0].requires_grad
    assert (loaded["list"][1], loaded["t"][1], loaded["t"][0].shape) == (7, "x", (0, 3))


def test_tensors_inside_of_objects_are_written_with_their_values():
    state = {"rng": [torch.arange(5), torch.ones(3)], "w": torch.zeros(4)}
    source = Memory(state)
    file = torchfile.fresh("x.pt", source.contents.entries, {}, source.load_object)
    loaded = torch.load(io.BytesIO(written(source, file)), weights_only=True)
    assert torch.equal(loaded["rng"][0], torch.arange(5))
    assert torch.equal(loaded["rng"][1], torch.ones(3))
    assert torch.equal(loaded["w"], torch.zeros(4))


def test_torch_reads_it_by_mapping_it_into_memory(tmp_path):
    source = Memory({"a": torch.arange(1000.0), "b": torch.arange(7)})
    file = torchfile.fresh("x.pt", source.contents.entries, {}, source.load_object)
    (tmp_path / "x.pt").write_bytes(written(source, file))
    loaded = torch.load(tmp_path / "x.pt", mmap=True, weights_only=True)
    assert torch.equal(loaded["a"], torch.arange(1000.0))
    assert torch.equal(loaded["b"], torch.arange(7))


def test_it_takes_no_memory_to_lay_out_a_large_file():
    """A tensor of 64 GiB, which no memory could hold here, is laid out in front of its bytes."""
    large = torch.zeros(1).expand(2**30, 16)
    source = Memory({"large": large})
    file = torchfile.fresh("x.pt", source.contents.entries, {}, source.load_object)
    assert file.size > large.numel() * 4
    assert len(file.segments) == 3


def test_zeros_between_tensors_are_written_piece_by_piece():
    file = File("x", (b"ab", Zeros(3 * 2**20 + 5), b"cd"))
    source = Memory({})
    assert max(len(piece) for piece in pieces(source, file, 0)) <= 2**20
    assert written(source, file) == b"ab" + bytes(3 * 2**20 + 5) + b"cd"
    assert written(source, file, 2**20) == bytes(2 * 2**20 + 7) + b"cd"
    assert written(source, file, file.size) == b""


def test_what_comes_before_a_start_is_not_read():
    source = Memory({"a": torch.arange(100), "b": torch.arange(50)})
    entries = source.contents.entries
    file = File("x", (Run.of(entries["a"]), Run.of(entries["b"])))
    assert written(source, file, 800) == as_bytes(torch.arange(50))
    assert source.largest == 400


VIEW = View(0, 0, (3, 1))
BAD = {
    "more strides than dimensions": {"strides": (3, 1, 1)},
    "negative strides": {"strides": (-3, 1)},
    "a negative beginning": {"offset": -1},
    "behind the storage's end": {"offset": 1},
    "another storage": {"storage": 1},
    "before the first storage": {"storage": -1},
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD)
def test_what_was_kept_has_to_fit(change):
    source = Memory({"x": torch.zeros(2, 3), "i": torch.zeros(2, 3, dtype=torch.int32)})
    entries, load = source.contents.entries, source.load_object
    torchfile.restored("x.pt", Pickled("x", {"x": VIEW}, (24,)), entries, load)
    with pytest.raises(MetadataError, match="does not lie in its storage"):
        torchfile.restored("x.pt", Pickled("x", {"x": replace(VIEW, **change)}, (24,)), entries, load)


def test_other_things_that_do_not_fit():
    source = Memory({"x": torch.zeros(2, 3), "i": torch.zeros(2, 3, dtype=torch.int32), "o": 5})
    entries, load = source.contents.entries, source.load_object
    for kept in (
        Pickled("x", {"x": VIEW, "i": VIEW}, (24,)),
        Pickled("i", {"i": replace(VIEW, requires_grad=True)}, (24,)),
        Pickled("o", {"o": VIEW}, (24,)),
        Pickled("gone", {"gone": VIEW}, (24,)),
        Pickled(["gone"], {}, ()),
        Pickled([7], {}, ()),
    ):
        with pytest.raises(MetadataError):
            torchfile.restored("x.pt", kept, entries, load)


def test_what_is_nested_too_deeply_is_refused():
    source = Memory({"x": 5})
    skeleton: Any = "x"
    for _ in range(100_000):
        skeleton = [skeleton]
    with pytest.raises(MetadataError, match="too deeply"):
        torchfile.restored("x.pt", Pickled(skeleton, {}, ()), source.contents.entries, source.load_object)
    with pytest.raises(RecursionError):
        pickle.dumps(skeleton)
