"""What was written in a format is read box by box: the slices of the original, bit for bit."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamxf.checkpoint.reading import Box, boxes_of
from streamxf.errors import ParameterError
from streamxf.formats.opening import contents_of
from tests.dcp.helpers import assert_same, raw_bytes

from .samples import (
    WRITERS,
    boxes,
    contents_at,
    contiguous,
    in_pieces,
    keys_of,
    noise,
    open_at,
    part_of,
    read_boxes,
    states,
    tensor_item,
    whole,
    written,
)


@pytest.mark.parametrize("kind", WRITERS)
@given(state=states(), data=st.data())
@settings(max_examples=12)
def test_random_boxes(kind: str, state: dict[str, Any], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = written(kind, state, Path(folder))
        with open_at(path, **keys_of(kind)) as reader:
            assert set(reader.stored) == set(state)
            assert contents_of(reader) == contents_at(path, **keys_of(kind))
            items = [tensor_item(reader, data.draw(st.sampled_from(sorted(state)))) for _ in range(6)]
            wanted = [data.draw(boxes(item)) for item in items]
            found = list(read_boxes(reader, wanted))
    assert len(found) == len(wanted)
    for box, tensor in zip(wanted, found, strict=True):
        assert_same(tensor, part_of(state[box.item.name], box))


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
    with open_at(path, **keys_of(kind)) as reader:
        for name, tensor in state.items():
            item = tensor_item(reader, name)
            assert (item.dtype, item.shape) == (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            assert item.size == tensor.numel() * tensor.dtype.itemsize
            assert torch.equal(raw_bytes(in_pieces(reader, name, 100_000)), raw_bytes(tensor)), name


@pytest.mark.parametrize("kind", WRITERS)
def test_a_box_outlives_the_reader(tmp_path: Path, kind: str) -> None:
    state = {"a": noise(torch.float32, 300, 400), "b": noise(torch.float32, 300, 400)}
    path = written(kind, state, tmp_path)
    with open_at(path, **keys_of(kind)) as reader:
        items = [tensor_item(reader, name) for name in ("a", "b", "a")]
        found = list(read_boxes(reader, [Box(item, (0, 0), item.shape) for item in items]))
    for name, tensor in zip("aba", found, strict=True):
        assert_same(tensor, state[name])


@pytest.mark.parametrize("kind", WRITERS)
def test_reading_may_stop_and_begin_again(tmp_path: Path, kind: str) -> None:
    state = {"a": noise(torch.int32, 300, 1000)}
    path = written(kind, state, tmp_path)
    with open_at(path, **keys_of(kind)) as reader:
        for _ in range(3):
            reading = read_boxes(reader, boxes_of(tensor_item(reader, "a"), 10_000))
            assert_same(next(reading), state["a"][:2])
            reading.close()
        assert_same(whole(reader, "a"), state["a"])


@pytest.mark.parametrize("kind", ["safetensors", "stock", "compressed"])
@pytest.mark.parametrize(("offset", "lengths"), [((0,), (3,)), ((0, 2), (3, 4)), ((0, -1), (3, 2)), ((0, 0), (-1, 2))])
def test_a_box_outside_of_its_tensor(
    tmp_path: Path, kind: str, offset: tuple[int, ...], lengths: tuple[int, ...]
) -> None:
    path = written(kind, contiguous({"a": noise(torch.int32, 3, 5)}), tmp_path)
    with open_at(path) as reader, pytest.raises(ParameterError, match="not inside"):
        list(reader.read_boxes([Box(tensor_item(reader, "a"), offset, lengths)]))
