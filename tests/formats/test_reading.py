"""What was written in a format is read box by box: the slices of the original, bit for bit."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamxf.checkpoint.reading import Box
from streamxf.errors import ParameterError
from streamxf.formats.opening import contents_of
from tests.dcp.helpers import assert_same, raw_bytes

from . import samples


@pytest.mark.parametrize("kind", samples.WRITERS)
@given(state=samples.states(), data=st.data())
@settings(max_examples=12)
def test_random_boxes(kind: str, state: dict[str, Any], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = samples.written(kind, state, Path(folder))
        with samples.open_at(path, **samples.keys_of(kind)) as reader:
            assert set(reader.stored) == set(state)
            assert contents_of(reader) == samples.contents_at(path, **samples.keys_of(kind))
            items = [samples.tensor_item(reader, data.draw(st.sampled_from(sorted(state)))) for _ in range(6)]
            wanted = [data.draw(samples.boxes(item)) for item in items]
            found = list(samples.read_boxes(reader, wanted))
    assert len(found) == len(wanted)
    for box, tensor in zip(wanted, found, strict=True):
        assert_same(tensor, samples.part_of(state[box.item.name], box))


@pytest.mark.parametrize("kind", samples.WRITERS)
def test_all_boxes_of_all_tensors_are_the_tensors(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(3)
    state = {
        "large": samples.noise(torch.bfloat16, 900, 1000),
        "turned": samples.noise(torch.float32, 400, 700).t(),
        "row": samples.noise(torch.float64, 1, 5, 60_000),
        "small": samples.noise(torch.int8, 7),
        "scalar": samples.noise(torch.float32),
        "empty": samples.noise(torch.int64, 0, 4),
    }
    path = samples.written(kind, state, tmp_path)
    with samples.open_at(path, **samples.keys_of(kind)) as reader:
        for name, tensor in state.items():
            item = samples.tensor_item(reader, name)
            assert (item.dtype, item.shape) == (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            assert item.size == tensor.numel() * tensor.dtype.itemsize
            assert torch.equal(raw_bytes(samples.in_pieces(reader, name, 100_000)), raw_bytes(tensor)), name


@pytest.mark.parametrize("kind", samples.WRITERS)
def test_a_box_outlives_the_reader(tmp_path: Path, kind: str) -> None:
    state = {"a": samples.noise(torch.float32, 300, 400), "b": samples.noise(torch.float32, 300, 400)}
    path = samples.written(kind, state, tmp_path)
    with samples.open_at(path, **samples.keys_of(kind)) as reader:
        items = [samples.tensor_item(reader, name) for name in ("a", "b", "a")]
        found = list(samples.read_boxes(reader, [Box(item, (0, 0), item.shape) for item in items]))
    for name, tensor in zip("aba", found, strict=True):
        assert_same(tensor, state[name])


@pytest.mark.parametrize("kind", samples.WRITERS)
def test_reading_may_stop_and_begin_again(tmp_path: Path, kind: str) -> None:
    state = {"a": samples.noise(torch.int32, 300, 1000)}
    path = samples.written(kind, state, tmp_path)
    with samples.open_at(path, **samples.keys_of(kind)) as reader:
        for _ in range(3):
            reading = samples.read_boxes(reader, Box.of(samples.tensor_item(reader, "a"), 10_000))
            assert_same(next(reading), state["a"][:2])
            reading.close()
        assert_same(samples.whole(reader, "a"), state["a"])


@pytest.mark.parametrize("kind", ["safetensors", "stock", "compressed"])
@pytest.mark.parametrize(("offset", "lengths"), [((0,), (3,)), ((0, 2), (3, 4)), ((0, -1), (3, 2)), ((0, 0), (-1, 2))])
def test_a_box_outside_of_its_tensor(
    tmp_path: Path, kind: str, offset: tuple[int, ...], lengths: tuple[int, ...]
) -> None:
    path = samples.written(kind, samples.contiguous({"a": samples.noise(torch.int32, 3, 5)}), tmp_path)
    with samples.open_at(path) as reader, pytest.raises(ParameterError, match="not inside"):
        list(reader.read_boxes([Box(samples.tensor_item(reader, "a"), offset, lengths)]))
