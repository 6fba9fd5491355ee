"""torch.save's frame around a tensor's elements is a function of dtype and shape, and is what torch itself writes."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.serialization import config

from streamxf.dcp import frame as frame_module
from streamxf.dcp.frame import frame_of
from streamxf.errors import StreamxfError
from streamxf.format.items import ITEMSIZES, elements_size

from .helpers import raw_bytes

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support")

DTYPES = sorted(name for name in ITEMSIZES if hasattr(torch, name))  # torch 2.7 has no four-bit numbers


def filled(dtype: str, shape: tuple[int, ...], seed: int = 1) -> torch.Tensor:
    """A tensor with any bytes in it."""
    made = torch.empty(shape, dtype=getattr(torch, dtype))
    raw = torch.empty(0, dtype=torch.uint8).set_(made.untyped_storage())
    raw.random_(0, 2 if dtype == "bool" else 256, generator=torch.Generator().manual_seed(seed))
    return made


def framed(tensor: torch.Tensor) -> bytes:
    prefix, suffix = frame_of(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
    return prefix + bytes(raw_bytes(tensor).numpy()) + suffix


def as_torch_saves(tensor: torch.Tensor) -> bytes:
    target = io.BytesIO()
    with config.patch("save.compute_crc32", False):
        torch.save(tensor, target)
    return target.getvalue()


@given(dtype=st.sampled_from(DTYPES), shape=st.lists(st.integers(0, 5), max_size=4).map(tuple), seed=st.integers(0, 9))
def test_a_frame_is_what_torch_writes_for_the_tensor_itself(dtype: str, shape: tuple[int, ...], seed: int) -> None:
    tensor = filled(dtype, shape, seed)
    assert framed(tensor) == as_torch_saves(tensor)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 0, 2), (2, 3, 4)], ids=str)
def test_every_dtype_and_torch_reads_it(dtype: str, shape: tuple[int, ...]) -> None:
    tensor = filled(dtype, shape)
    found = torch.load(io.BytesIO(framed(tensor)), weights_only=True)
    assert (found.dtype, found.shape, found.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert bytes(found.untyped_storage()) == bytes(tensor.untyped_storage())


def test_each_geometry_has_a_frame_of_its_own() -> None:
    geometries = [("float32", (4, 6)), ("float32", (6, 4)), ("float32", (24,)), ("int32", (4, 6)), ("float32", (1, 24))]
    frames = [frame_of(*geometry) for geometry in geometries]
    assert len(set(frames)) == len(frames)
    assert [frame_of(*geometry) for geometry in geometries] == frames


@pytest.mark.parametrize("size", [2**32 + 5, 2**42])
def test_a_frame_beyond_four_gibibytes(size: int) -> None:
    """Zip files have other fields there. The memory is not there, however much is asked for."""
    _, suffix = frame_of("uint8", (size,))
    assert size.to_bytes(8, "little") in suffix


def test_deterministic_algorithms_do_not_fill_the_shell() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        frame_of("uint8", (2**42 + 1,))
    finally:
        torch.use_deterministic_algorithms(False)


def test_frames_are_kept_and_bounded() -> None:
    frame_of.cache_clear()
    for _ in range(3):
        framed(torch.randn(11, 7))
    info = frame_of.cache_info()
    assert (info.misses, info.hits) == (1, 2)
    assert info.maxsize is not None


def test_a_torch_that_writes_otherwise_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_record(self: Any, name: str, data: Any, size: int) -> None:
        self.write_record_metadata(name, size)

    monkeypatch.setattr(frame_module._Records, "write_record", write_record)
    with pytest.raises(StreamxfError, match="seeks where it did not before"):
        frame_of("float32", (5, 5, 5))


def test_the_elements_size_is_torchs() -> None:
    for dtype in DTYPES:
        assert elements_size(dtype, (3, 2)) == torch.empty((3, 2), dtype=getattr(torch, dtype)).nbytes
