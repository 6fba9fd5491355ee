"""The framing of a plain tensor is a function of its geometry: the bytes that torch's own zip writer would write."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamxf.dcp.extensions import SaveStream
from streamxf.dcp.tensors import framing
from streamxf.dcp.tensors.framing import frame_of, is_framed, save_tensor
from streamxf.dcp.tensors.payload import Payload, dense_order

from .helpers import assert_same

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support", "ignore:torch.quantize_per_tensor")


def savable(dtype: torch.dtype) -> bool:
    """Whether torch.save itself takes a plain tensor of this dtype; it refuses those of less than a byte."""
    if dtype in (torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4):
        return False
    try:
        torch.save(torch.empty(3, dtype=dtype), io.BytesIO())
    except KeyError:
        return False
    return True


def copyable(dtype: torch.dtype) -> bool:
    """Whether torch has the kernel that makes a view contiguous."""
    try:
        torch.empty(6, dtype=dtype)[::2].contiguous()
    except NotImplementedError:
        return False
    return True


DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype) and savable(value)}, key=str)
COPYABLE = list(filter(copyable, DTYPES))


def written(save: Callable[[SaveStream], int]) -> bytes:
    target = io.BytesIO()
    size = save(SaveStream(cast("Any", target), None))
    assert size == len(target.getvalue())
    return target.getvalue()


def as_torch_frames(tensor: torch.Tensor) -> bytes:
    """What the general path writes, where torch runs for this very tensor."""
    return written(lambda target: framing._save_through_zip_writer(Payload.of(tensor), target))


def as_saved(tensor: torch.Tensor) -> bytes:
    return written(lambda target: save_tensor(tensor, target))


def filled(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """A tensor of any dtype with any bytes in it."""
    made = torch.empty(shape, dtype=dtype)
    raw = torch.empty(0, dtype=torch.uint8).set_(made.untyped_storage())
    raw.random_(0, 2 if dtype == torch.bool else 256, generator=torch.Generator().manual_seed(seed))
    return made


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Tensors of any dtype, and views of them: permuted, narrowed, strided, expanded, reshaped, empty, 0-dim."""
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    tensor = filled(draw(st.sampled_from(COPYABLE)), shape, draw(st.integers(0, 9)))
    if tensor.ndim and draw(st.booleans()):
        tensor = tensor.permute(draw(st.permutations(range(tensor.ndim))))
    if tensor.ndim and draw(st.booleans()):
        dim = draw(st.integers(0, tensor.ndim - 1))
        begin = draw(st.integers(0, tensor.shape[dim]))
        tensor = tensor.narrow(dim, begin, draw(st.integers(0, tensor.shape[dim] - begin)))
    if tensor.ndim and draw(st.booleans()):
        tensor = tensor[:: draw(st.integers(1, 3))]
    if draw(st.booleans()):
        tensor = tensor.unsqueeze(0).expand(draw(st.integers(1, 3)), *tensor.shape)
    return tensor.detach()


@given(tensor=tensors())
def test_a_frame_is_what_torch_writes_for_the_tensor_itself(tensor: torch.Tensor) -> None:
    saved = as_saved(tensor)
    assert saved == as_torch_frames(tensor)
    shell = Payload.of(tensor).shell
    if dense_order(shell) is not None and not shell.storage_offset():  # an empty view keeps the offset of its cut
        frame = frame_of(shell.dtype, shell.shape, shell.stride())
        payload = b"".join(Payload.of(tensor).pieces(shell.untyped_storage()))
        assert saved == frame.prefix + payload + frame.suffix


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 0, 2), (2, 3, 4)], ids=str)
def test_every_dtype_and_torch_reads_it(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = filled(dtype, shape, 1)
    saved = as_saved(tensor)
    assert saved == as_torch_frames(tensor)
    found = torch.load(io.BytesIO(saved), weights_only=True)
    assert (found.dtype, found.shape, found.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert bytes(found.untyped_storage()) == bytes(tensor.untyped_storage())


def test_values_and_addresses_do_not_matter() -> None:
    tensors = [torch.full((50, 3), float(number)) for number in range(4)]
    frame = frame_of(torch.float32, (50, 3), (3, 1))
    assert {as_torch_frames(tensor)[: len(frame.prefix)] for tensor in tensors} == {frame.prefix}
    assert {as_torch_frames(tensor)[-len(frame.suffix) :] for tensor in tensors} == {frame.suffix}


GEOMETRIES: list[tuple[torch.dtype, tuple[int, ...], tuple[int, ...], bool]] = [
    (torch.float32, (4, 6), (6, 1), False),
    (torch.float32, (4, 6), (1, 4), False),
    (torch.float32, (6, 4), (4, 1), False),
    (torch.float32, (24,), (1,), False),
    (torch.float32, (4, 6), (6, 1), True),
    (torch.int32, (4, 6), (6, 1), False),
    (torch.float32, (1, 24), (24, 1), False),
    (torch.float32, (1, 24), (99, 1), False),
]


def test_each_geometry_has_a_frame_of_its_own() -> None:
    frames = [frame_of(*geometry) for geometry in GEOMETRIES]
    assert len(set(frames)) == len(frames)
    assert [frame_of(*geometry) for geometry in GEOMETRIES] == frames


def test_a_frame_beyond_four_gibibytes() -> None:
    """Zip files have other fields there. The memory is asked for and never touched."""
    size = 2**32 + 5
    frame = frame_of(torch.uint8, (size,), (1,))
    assert size.to_bytes(8, "little") in frame.suffix


@pytest.mark.parametrize(("shape", "stride"), [((3,), (2,)), ((3,), (0,)), ((2, 2), (1, 1)), ((2, 3), (4, 1))])
def test_a_tensor_with_gaps_has_no_frame(shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="gaps or overlaps"):
        frame_of(torch.float32, shape, stride)


class Sub(torch.Tensor):
    pass


def with_attribute() -> torch.Tensor:
    tensor = torch.ones(3)
    tensor.note = "kept by torch.save"
    return tensor


def with_a_storage_that_repeats() -> torch.Tensor:
    """As many bytes in the storage as in the tensor, and still not the same ones."""
    return torch.arange(4.0).as_strided((4,), (0,), 2)


GENERAL: dict[str, Callable[[], torch.Tensor]] = {
    "attribute": with_attribute,
    "conj": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "neg": lambda: torch.randn(3, dtype=torch.complex64).conj().imag,
    "parameter": lambda: torch.nn.Parameter(torch.ones(3)),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.qint8),
    "subclass": lambda: torch.ones(3).as_subclass(Sub),
}


@pytest.mark.parametrize("kind", GENERAL)
def test_what_is_not_plain_goes_the_general_way(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = GENERAL[kind]()
    assert not is_framed(tensor)
    with torch.serialization.safe_globals([Sub]):
        wanted = torch.load(io.BytesIO(as_torch_frames(tensor)), weights_only=kind != "attribute")
        found = torch.load(io.BytesIO(as_saved(tensor)), weights_only=kind != "attribute")
    assert type(found) is type(wanted)
    assert found.__dict__ == wanted.__dict__
    assert (found.is_conj(), found.is_neg()) == (wanted.is_conj(), wanted.is_neg())
    if kind != "quantized":
        assert_same(found.detach().as_subclass(torch.Tensor), wanted.detach().as_subclass(torch.Tensor))


def test_a_storage_of_the_same_size_that_is_not_filled() -> None:
    tensor = with_a_storage_that_repeats()
    assert as_saved(tensor) == as_torch_frames(tensor)
    assert torch.equal(torch.load(io.BytesIO(as_saved(tensor))), tensor)


def test_frames_are_kept_and_bounded() -> None:
    frame_of.cache_clear()
    for _ in range(3):
        as_saved(torch.randn(11, 7))
    info = frame_of.cache_info()
    assert (info.misses, info.hits, info.maxsize) == (1, 2, framing.FRAMES_KEPT)


def test_a_torch_that_writes_otherwise_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_record(self: Any, name: str, data: Any, size: int) -> None:
        self._zip.write_record_metadata(name, size)

    monkeypatch.setattr(framing._Records, "write_record", write_record)
    with pytest.raises(framing.StreamxfError, match="seeks where it did not before"):
        frame_of(torch.float32, (5, 5, 5), (25, 5, 1))
