"""State dicts of every kind come back bit for bit."""

from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import streamxf
from streamxf.checkpoint.sources import Staging, source_of
from streamxf.errors import MetadataError
from streamxf.torchsave.writing import frame_of

from .helpers import KEY, assert_same, blank, load, load_into, load_with, noise, raw_bytes, refused, save

FLOATS = "float16 bfloat16 float32 float64 complex32 complex64 complex128"
FP8 = "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu"
INTEGERS = "bool uint8 int8 int16 uint16 int32 uint32 int64 uint64"
DTYPES = [getattr(torch, name) for name in f"{FLOATS} {FP8} {INTEGERS}".split()]
OTHERS = {value for value in vars(torch).values() if isinstance(value, torch.dtype)} - set(DTYPES)


def stock_can(dtype: torch.dtype, folder: Path) -> bool:
    """Whether torch's own writer and reader bring the dtype back."""
    try:
        state = {"t": noise(dtype, 6, 5)}
        dcp.save(state, storage_writer=dcp.FileSystemWriter(folder, sync_files=False))
        assert_same(load_into(blank(state), dcp.FileSystemReader(folder)), state)
    except BaseException:  # whatever stock DCP ends in, CheckpointException among them
        return False
    return True


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
def test_every_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    check_dtype(tmp_path, dtype)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_other_dtypes_stock_dcp_can_save(tmp_path: Path) -> None:
    """Packed and quantized ones, most of which no state dict can hold."""
    for dtype in OTHERS:
        if stock_can(dtype, tmp_path / f"stock {dtype}"):
            check_dtype(tmp_path / str(dtype), dtype)


def check_dtype(folder: Path, dtype: torch.dtype) -> None:
    base = noise(dtype, 6, 8)
    state = {"t": base, "scalar": base[0, 0].clone(), "view": base[2], "columns": base[:, 1:3], "empty": base[:0]}
    save(state, folder)
    assert_same(load(state, folder), state)
    assert_same(load_with(state, dcp.FileSystemReader(folder, streamxf.Registry(keys=KEY))), state)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_quantized_tensors(checkpoint: Path) -> None:
    values = torch.randn(5, 6)
    state = {
        "tensor": torch.quantize_per_tensor(values, 0.1, 3, torch.qint8),
        "channel": torch.quantize_per_channel(
            values, torch.rand(6) + 0.1, torch.zeros(6, dtype=torch.int64), 1, torch.quint8
        ),
    }
    save(state, checkpoint)
    found = {name: torch.empty_like(tensor) for name, tensor in state.items()}
    dcp.load(found, storage_reader=streamxf.FileSystemReader(checkpoint, keys=KEY))
    for name, tensor in state.items():
        assert torch.equal(found[name].int_repr(), tensor.int_repr())
        assert torch.equal(found[name].dequantize(), tensor.dequantize())


def grid() -> torch.Tensor:
    return torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "transposed": lambda: grid()[0, 0].t(),
    "permuted": lambda: grid().permute(3, 1, 0, 2),
    "channels-last": lambda: grid().contiguous(memory_format=torch.channels_last),
    "every second": lambda: grid()[:, ::2, 1::2, ::3],
    "expanded": lambda: torch.arange(4.0).reshape(4, 1).expand(4, 6),
    "expanded scalar": lambda: torch.tensor(3.5).expand(3, 2, 4),
    "expanded in front": lambda: torch.arange(4.0).expand(5, 4),
    "overlapping windows": lambda: torch.arange(10.0).unfold(0, 4, 1),
    "diagonal": lambda: torch.arange(36.0).reshape(6, 6).diagonal(),
    "slice of a big one": lambda: torch.arange(1_000_000.0)[500:900].view(20, 20),
    "column of a big one": lambda: torch.arange(1_000_000.0).view(1000, 1000)[:, 7],
    "with offset, fills the rest": lambda: torch.arange(100.0)[50:],
    "conjugate": lambda: torch.randn(4, 3, dtype=torch.complex64).conj(),
    "conjugate, transposed": lambda: torch.randn(4, 3, dtype=torch.complex64).t().conj(),
    "conjugate slice": lambda: torch.randn(40, 3, dtype=torch.complex128)[5:9].conj(),
    "negative view": lambda: torch.randn(4, 3, dtype=torch.complex64).conj().imag,
    "real part": lambda: torch.randn(4, 3, dtype=torch.complex64).real,
    "0-dim": lambda: torch.tensor(2.5),
    "0-dim of a big one": lambda: torch.arange(1000.0)[77],
    "one element": lambda: torch.ones(1, 1, 1),
    "one element, odd strides": lambda: torch.arange(24.0).reshape(2, 3, 4)[1:, 1:2, 2:3],
    "one element of a column": lambda: torch.arange(24.0).reshape(1, 24)[:, 5],
    "one element of many": lambda: torch.arange(24.0)[::7][:1],
    "none of many": lambda: torch.arange(24.0)[::7][:0],
    "row, odd strides": lambda: torch.arange(24.0).reshape(2, 3, 4)[1:, :, 2:3],
    "empty": lambda: torch.empty(0),
    "empty in front": lambda: torch.empty(0, 5),
    "empty inside": lambda: torch.empty(3, 0, 5),
    "empty slice of a big one": lambda: torch.arange(100.0)[30:30],
    "empty and transposed": lambda: torch.empty(0, 5).t(),
    "parameter": lambda: nn.Parameter(torch.randn(3, 4)),
    "parameter's view": lambda: nn.Parameter(torch.randn(3, 4)).t(),
    "requires grad": lambda: torch.randn(3, 4, requires_grad=True),
    "result with a graph": lambda: torch.randn(3, 4, requires_grad=True) * 2,
    "from numpy": lambda: torch.from_numpy(torch.arange(9).reshape(3, 3).numpy()),
    "a thousand dimensions' worth": lambda: torch.arange(2.0).reshape([1] * 40 + [2]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(checkpoint: Path, layout: str) -> None:
    tensor = LAYOUTS[layout]()
    save({"t": tensor}, checkpoint)
    assert_same(load({"t": tensor}, checkpoint), {"t": tensor})


@pytest.mark.parametrize("target", ["transposed", "channels-last", "every second", "parameter", "slice of a big one"])
def test_targets_of_every_layout(checkpoint: Path, target: str) -> None:
    """A load fills the target's own memory, whatever its strides."""
    place = LAYOUTS[target]()
    wanted = torch.randn(place.shape)
    save({"t": wanted}, checkpoint)
    found = load_into({"t": place}, streamxf.FileSystemReader(checkpoint, keys=KEY))
    assert found["t"].data_ptr() == place.data_ptr()
    assert_same(place.detach(), wanted)


def test_a_load_casts_as_stock_dcp_does(checkpoint: Path) -> None:
    save({"t": torch.arange(6)}, checkpoint)
    found = load_into({"t": torch.zeros(6, dtype=torch.bfloat16)}, streamxf.FileSystemReader(checkpoint, keys=KEY))
    assert torch.equal(found["t"], torch.arange(6).to(torch.bfloat16))


def test_views_that_share_a_storage(checkpoint: Path) -> None:
    storage = torch.arange(1000.0)
    state = {"whole": storage, "half": storage[:500], "same": storage, "matrix": storage.view(10, 100).t()}
    save(state, checkpoint)
    assert_same(load(state, checkpoint), state)


def test_a_slice_of_a_big_storage_takes_its_own_size_only(checkpoint: Path) -> None:
    save({"t": torch.zeros(10_000_000)[10:20]}, checkpoint, [])
    plain = sum(file.stat().st_size for file in checkpoint.iterdir())
    save({"t": torch.zeros(10_000_000)[10:20]}, checkpoint, [streamxf.Checksum()])
    assert sum(file.stat().st_size for file in checkpoint.iterdir()) < plain + 1000 < 10_000


def test_nested_values_of_every_kind(checkpoint: Path) -> None:
    state = {
        "dict": {"deep": {"deeper": {"t": torch.arange(3), "n": 1}}},
        "list": [torch.ones(2), [torch.zeros(1), "text"], {"t": torch.arange(2)}],
    }
    state |= {"plain list": [1, 2, 3], "tuple": (1, "two"), "empty": {}, "empty list": [], "set": {1, 2}, "none": None}
    state |= {"bytes": b"\0\1\2" * 1000, "empty bytes": b"", "big": b"x" * 3_000_000, "text": "größer ≠ 大きい"}
    state |= {"float": 1e-300, "int": 2**70, "bool": True}
    save(state, checkpoint)
    assert_same(load(state, checkpoint), state)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "old form"])
def test_an_empty_tensor_and_its_view_as_another_dtype(checkpoint: Path, zipped: bool) -> None:
    """They share a storage without bytes, which torch.save writes once, of both kinds."""
    empty = torch.empty(0)
    state = {"object": (empty, empty.view(torch.int32), 1), "a": empty, "b": empty.view(torch.int64)}
    save(state, checkpoint)
    assert_same(load(state, checkpoint), state)
    file = checkpoint.parent / "file.pt"
    torch.save(state, file, _use_new_zipfile_serialization=zipped)
    assert streamxf.verify(file).ok
    assert streamxf.pack(file, checkpoint.parent / "packed").notes == ()
    with streamxf.Checkpoint(checkpoint.parent / "packed") as packed:
        assert_same(packed["object"].read(), state["object"])


def test_a_model_and_its_optimizer_after_a_step(checkpoint: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Conv1d(1, 2, 3)).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
    model[1](model[0](torch.randn(4, 8, dtype=torch.bfloat16))).sum().backward()
    optimizer.step()
    from torch.distributed.checkpoint.state_dict import get_state_dict

    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "raw": {"model": model.state_dict()}}
    save(state, checkpoint)
    found = load(state, checkpoint)
    assert_same(found, {**state, "raw": {"model": dict(state["raw"]["model"])}})
    model.load_state_dict(found["model"])


def test_names(checkpoint: Path) -> None:
    state = {
        name: torch.full((2,), float(number))
        for number, name in enumerate(
            ["größe", "重み", "a/b\\c", "..", "with space", "\n\t", "🙂", "x" * 3000, "é" * 1500]
        )
    }
    state |= {"bytes " + "y" * 3000: 5}
    save(state, checkpoint)
    assert_same(load(state, checkpoint), state)


@pytest.mark.parametrize("name", ["n" * 5000, "é" * 2100])
@pytest.mark.parametrize("value", [torch.ones(3), "text"], ids=["tensor", "object"])
def test_a_name_that_is_too_long_is_told(checkpoint: Path, name: str, value: Any) -> None:
    with refused(MetadataError, "name", "4,096"):
        save({name: value}, checkpoint)
    assert not (checkpoint / ".metadata").exists()
    assert list(checkpoint.iterdir()) == []


def test_a_name_that_is_no_unicode_is_told(checkpoint: Path) -> None:
    with refused(MetadataError, "not valid Unicode"):
        save({"\ud800": torch.ones(3)}, checkpoint)


def test_an_empty_state_dict(checkpoint: Path) -> None:
    save({}, checkpoint)
    assert load({}, checkpoint) == {}


@pytest.mark.exhaustive
def test_a_tensor_of_one_gibibyte(big_folder: Path) -> None:
    state = {"t": torch.empty(2**29, dtype=torch.bfloat16)}
    state["t"].view(torch.int64).random_(0, 2**16)
    save(state, big_folder)
    found = load_into({"t": torch.full_like(state["t"], torch.nan)}, streamxf.FileSystemReader(big_folder, keys=KEY))
    assert torch.equal(found["t"].view(torch.int64), state["t"].view(torch.int64))


# -- any shape, any strides ----------------------------------------------------------------------


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any view of a storage: any shape, strides that leave gaps, overlap or repeat, an offset, and a flag for conj."""
    dtype = draw(st.sampled_from([torch.uint8, torch.int16, torch.float32, torch.complex64, torch.float8_e4m3fn]))
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    strides = draw(st.lists(st.integers(0, 7), min_size=len(shape), max_size=len(shape)))
    offset = draw(st.integers(0, 3))
    reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True) if size) + 1
    rest = draw(st.integers(0, 2))
    raw = torch.randint(0, 256, ((offset + reach + rest) * dtype.itemsize,), dtype=torch.uint8)
    tensor = torch.as_strided(raw.view(dtype), shape, strides, offset)
    return tensor.conj() if dtype.is_complex and draw(st.booleans()) else tensor


@given(st.lists(tensors(), min_size=1, max_size=5), st.sampled_from([0, 1, 2]))
@settings(settings.get_profile("disk"))
def test_any_view(tmp_path_factory: pytest.TempPathFactory, found: list[torch.Tensor], codecs: int) -> None:
    folder = tmp_path_factory.mktemp("views")
    state = {str(number): tensor for number, tensor in enumerate(found)}
    chain = [streamxf.ZStandard(level=1), streamxf.Checksum()][:codecs]
    save(state, folder, chain)
    assert_same(load(state, folder, None), state)


@given(tensors(), st.lists(st.integers(0, 400), max_size=3))
def test_a_source_has_the_elements_in_row_major_order(tensor: torch.Tensor, cuts: list[int]) -> None:
    source = source_of(tensor, Staging())
    wanted = bytes(raw_bytes(tensor).numpy())
    assert source.size == len(wanted)
    size = tensor.element_size()
    places = sorted({0, *(cut // size * size for cut in cuts if cut < len(wanted)), len(wanted)})
    found = b""
    for start, stop in pairwise(places):
        load = source.load(start, stop)
        found += bytes(load.take(lambda count: memoryview(bytearray(count))))
        if load.release is not None:
            load.release()
    assert found == wanted


@pytest.mark.parametrize("codecs", [0, 1])
@pytest.mark.parametrize("step", ["save", "load"])
def test_another_default_device(checkpoint: Path, step: str, codecs: int) -> None:
    """As it is in force while a model is made that takes no memory yet."""
    state = {name: LAYOUTS[name]() for name in ("permuted", "every second", "0-dim", "empty in front", "from numpy")}
    state["big"] = torch.randn(400, 1000)
    frame_of.cache_clear()
    found = blank(state)
    with torch.device("meta") if step == "save" else nullcontext():
        save(state, checkpoint, [streamxf.Checksum()][:codecs])
    frame_of.cache_clear()
    with torch.device("meta") if step == "load" else nullcontext():
        dcp.load(found, storage_reader=streamxf.FileSystemReader(checkpoint))
    assert_same(found, state)
