"""What was written in a format is read box by box: the slices of the original, bit for bit."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from dcp.helpers import assert_same, raw_bytes
from hypothesis import given, settings
from hypothesis import strategies as st

from streamxf.errors import ParameterError
from streamxf.formats.opening import contents_of, open_source
from streamxf.formats.source import Box, boxes_of

from .samples import WRITERS, boxes, contiguous, keys_of, noise, part_of, states, written


@pytest.mark.parametrize("kind", WRITERS)
@given(state=states(), data=st.data())
@settings(max_examples=12)
def test_random_boxes(kind: str, state: dict[str, Any], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = written(kind, state, Path(folder))
        with open_source(path, **keys_of(kind)) as source:
            contents = source.contents
            assert set(contents.entries) == set(state)
            assert contents == contents_of(path, **keys_of(kind))
            entries = [contents.entries[data.draw(st.sampled_from(sorted(state)))] for _ in range(6)]
            wanted = [data.draw(boxes(entry)) for entry in entries]
            found = list(source.read(wanted))
    assert len(found) == len(wanted)
    for box, tensor in zip(wanted, found, strict=True):
        assert tensor.is_contiguous()
        assert tensor.device.type == "cpu"
        assert_same(tensor, part_of(state[box.entry.name], box))


@pytest.mark.parametrize("kind", WRITERS)
def test_all_boxes_of_all_tensors_are_the_tensors(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(3)
    state = {
        "large": noise(torch.bfloat16, 900, 1000),
        "turned": noise(torch.float32, 400, 700).t(),
        "row": noise(torch.float64, 1, 5, 60_000),
        "small": noise(torch.int8, 7),
        "scalar": noise(torch.float32),
        "empty": noise(torch.int64, 0, 4),
    }
    path = written(kind, state, tmp_path)
    with open_source(path, **keys_of(kind)) as source:
        for name, tensor in state.items():
            entry = source.contents.entries[name]
            assert (entry.dtype, entry.shape) == (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            assert entry.raw_bytes == tensor.numel() * tensor.dtype.itemsize
            found = list(source.read(boxes_of(entry, tensor.dtype.itemsize, 100_000)))
            joined = torch.cat([torch.empty(0, dtype=torch.uint8), *map(raw_bytes, found)])
            assert torch.equal(joined, raw_bytes(tensor)), name


@pytest.mark.parametrize("kind", WRITERS)
def test_a_box_outlives_the_source(tmp_path: Path, kind: str) -> None:
    state = {"a": noise(torch.float32, 300, 400), "b": noise(torch.float32, 300, 400)}
    path = written(kind, state, tmp_path)
    with open_source(path, **keys_of(kind)) as source:
        entries = [source.contents.entries[name] for name in ("a", "b", "a")]
        found = list(source.read(Box(entry, (0, 0), entry.shape) for entry in entries))
    for name, tensor in zip("aba", found, strict=True):
        assert_same(tensor, state[name])


@pytest.mark.parametrize("kind", WRITERS)
def test_reading_may_stop_and_begin_again(tmp_path: Path, kind: str) -> None:
    state = {"a": noise(torch.int32, 300, 1000)}
    path = written(kind, state, tmp_path)
    with open_source(path, **keys_of(kind)) as source:
        entry = source.contents.entries["a"]
        for _ in range(3):
            reading = source.read(boxes_of(entry, 4, 10_000))
            assert_same(next(reading), state["a"][:2])
            reading.close()
        assert_same(next(source.read([Box(entry, (0, 0), entry.shape)])), state["a"])


@pytest.mark.parametrize("kind", ["safetensors", "stock", "compressed"])
@pytest.mark.parametrize(("offsets", "lengths"), [((0,), (3,)), ((0, 2), (3, 4)), ((0, -1), (3, 2)), ((0, 0), (-1, 2))])
def test_a_box_outside_of_its_tensor(
    tmp_path: Path, kind: str, offsets: tuple[int, ...], lengths: tuple[int, ...]
) -> None:
    path = written(kind, contiguous({"a": noise(torch.int32, 3, 5)}), tmp_path)
    with open_source(path) as source, pytest.raises(ParameterError, match="not inside"):
        list(source.read([Box(source.contents.entries["a"], offsets, lengths)]))
