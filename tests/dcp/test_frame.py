"""torch.save's frame around a tensor's elements is a function of dtype and shape, and torch reads it as its own."""

import io
import pickletools
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamxf.errors import UnsupportedError
from streamxf.format.items import ITEMSIZES, TensorItem, elements_size
from streamxf.torchsave.archive import Archive, NotSavedByTorch
from streamxf.torchsave.writing import frame_of, prefix_of, saved, suffix_of, torch_file
from tests.lots import in_lots

from .helpers import assert_same, raw_bytes

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


def summed(tensor: torch.Tensor) -> bytes:
    """The same with CRC-32s."""
    geometry = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    data = bytes(raw_bytes(tensor).numpy())
    return prefix_of(*geometry) + data + suffix_of(*geometry, zlib.crc32(data))


def opcodes(file: bytes) -> list[tuple[str, Any]]:
    """Of the pickle in a file of torch.save, without those that only remember something."""
    pickled = Archive(io.BytesIO(file), len(file)).pickled
    return [(op.name, value) for op, value, _ in pickletools.genops(pickled) if not op.name.endswith("PUT")]


@given(dtype=st.sampled_from(DTYPES), shape=st.lists(st.integers(0, 5), max_size=4).map(tuple), seed=st.integers(0, 9))
def test_a_frame_has_the_pickle_that_torch_writes(dtype: str, shape: tuple[int, ...], seed: int) -> None:
    tensor = filled(dtype, shape, seed)
    sink = io.BytesIO()
    torch.save(tensor, sink)
    assert opcodes(framed(tensor)) == opcodes(summed(tensor)) == opcodes(sink.getvalue())


@in_lots("file, dtype, shape", product([framed, summed], DTYPES, [(), (0,), (7,), (3, 0, 2), (2, 3, 4)]))
def test_torch_reads_every_dtype(dtype: str, shape: tuple[int, ...], file: Callable[[torch.Tensor], bytes]) -> None:
    tensor = filled(dtype, shape)
    found = torch.load(io.BytesIO(file(tensor)), weights_only=True)
    assert (found.dtype, found.shape, found.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert bytes(found.untyped_storage()) == bytes(tensor.untyped_storage())


def test_torch_maps_it_into_memory(tmp_path: Path) -> None:
    tensor = filled("float64", (100, 7))
    (tmp_path / "frame.pt").write_bytes(framed(tensor))
    found = torch.load(tmp_path / "frame.pt", mmap=True, weights_only=True)
    assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))


def test_elements_are_aligned_as_torch_aligns_them() -> None:
    for shape in [(), (3,), (1000, 1000, 1000), (2**31,)]:
        assert len(frame_of("int8", shape)[0]) % 64 == 0


def test_with_crcs_every_record_has_one() -> None:
    file = summed(filled("bfloat16", (50, 3)))
    assert zipfile.ZipFile(io.BytesIO(file)).testzip() is None
    assert Archive(io.BytesIO(file), len(file)).check_crcs()
    damaged = file.replace(b"little", b"liddle", 1)
    with pytest.raises(NotSavedByTorch, match="CRC-32"):
        Archive(io.BytesIO(damaged), len(damaged)).check_crcs()
    bare = framed(filled("bfloat16", (50, 3)))
    assert not Archive(io.BytesIO(bare), len(bare)).check_crcs()


def test_each_geometry_has_a_frame_of_its_own() -> None:
    geometries = [("float32", (4, 6)), ("float32", (6, 4)), ("float32", (24,)), ("int32", (4, 6)), ("float32", (1, 24))]
    frames = [frame_of(*geometry) for geometry in geometries]
    assert len(set(frames)) == len(frames)
    assert [frame_of(*geometry) for geometry in geometries] == frames


class Holed(io.RawIOBase):
    """A file with a hole of zeros between two pieces."""

    def __init__(self, before: bytes, hole: int, after: bytes) -> None:
        super().__init__()
        self._pieces = before, hole, after
        self._at = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        before, hole, after = self._pieces
        self._at = offset + (0, self._at, len(before) + hole + len(after))[whence]
        return self._at

    def readinto(self, out: Any) -> int:
        before, hole, after = self._pieces
        behind = self._at - len(before) - hole
        data = before[self._at :] if self._at < len(before) else after[behind:] if behind >= 0 else bytes(-behind)
        count = min(len(data), len(out))
        out[:count] = data[:count]
        self._at += count
        return count


@pytest.mark.parametrize("size", [2**32 - 2, 2**32 - 1, 2**32 + 5, 2**42])
def test_a_frame_beyond_four_gibibytes(size: int) -> None:
    """Zip files have other fields there, which Python reads as we do."""
    before, after = frame_of("uint8", (size,))
    file = Holed(before, size, after)
    archive = Archive(file, file.seek(0, 2))
    assert archive.sizes["data/0"] == size
    assert archive.find("data/0") == (len(before), 0)
    records = {entry.filename.partition("/")[2]: entry.file_size for entry in zipfile.ZipFile(file).infolist()}
    assert records == archive.sizes


def test_what_has_no_elements_has_no_frame() -> None:
    with pytest.raises(UnsupportedError, match="quint8"):
        frame_of("quint8", (3,))


def test_frames_are_kept_and_bounded() -> None:
    frame_of.cache_clear()
    for _ in range(3):
        framed(torch.randn(11, 7))
    info = frame_of.cache_info()
    assert (info.misses, info.hits) == (1, 2)
    assert info.maxsize is not None


@pytest.mark.parametrize(
    "value",
    [100, None, "text", {"a": [1, (2.5, True)], "b": b"bytes"}, torch.float16, slice(1, None), OrderedDict(x=1)],
    ids=repr,
)
def test_objects_are_what_torch_saves(value: Any) -> None:
    sink = io.BytesIO()
    torch.save(value, sink)
    assert opcodes(saved(value)) == opcodes(sink.getvalue())
    assert torch.load(io.BytesIO(saved(value)), weights_only=False) == value
    assert zipfile.ZipFile(io.BytesIO(saved(value))).testzip() is None


def test_objects_with_tensors() -> None:
    value = {"state": (torch.arange(5), torch.nn.Linear(2, 2).weight)}
    found = torch.load(io.BytesIO(saved(value)), weights_only=True)
    assert torch.equal(found["state"][0], value["state"][0])
    assert torch.equal(found["state"][1], value["state"][1])


# -- files of many tensors ----------------------------------------------------------------------------------------


def test_a_file_around_tensors_that_are_not_there() -> None:
    geometries = [("float32", (3, 2)), ("int8", (0,)), ("bfloat16", (5,)), ("float8_e5m2", (2, 2))]
    tensors = {f"t{number}": TensorItem("", *geometry, ()) for number, geometry in enumerate(geometries)}
    there = [filled(*geometry) for geometry in geometries]
    real = torch.arange(6.0)
    values = {"real": (real, real[2:4], torch.nn.Parameter(torch.ones(2))), "same": [1, 2], "n": {3: None}}
    values["again"] = [values["same"], values["same"]]
    tree = {"b": "t2", "a": ["t0", "t1"], **{name: name for name in values}, "c": "t3"}
    parts, places = torch_file(tree, tensors, values)
    assert [part for part in parts if isinstance(part, str)] == ["t2", "t0", "t3"]
    elements = {f"t{number}": bytes(raw_bytes(each).numpy()) for number, each in enumerate(there)}
    frame = bytearray(b"".join(part for part in parts if isinstance(part, bytes)))
    for name, both in places.items():
        for at in both:
            frame[at : at + 4] = zlib.crc32(elements[name]).to_bytes(4, "little")
    rest = io.BytesIO(frame)
    file = b"".join(rest.read(len(part)) if isinstance(part, bytes) else elements[part] for part in parts)
    found = torch.load(io.BytesIO(file), weights_only=True)
    assert_same(found, {"b": there[2], "a": there[:2], **values, "c": there[3]})
    assert found["real"][0].untyped_storage().data_ptr() == found["real"][1].untyped_storage().data_ptr()
    assert found["again"][0] is found["again"][1]
    assert Archive(io.BytesIO(file), len(file)).check_crcs()


def test_an_object_that_holds_itself() -> None:
    value: list[Any] = [1]
    value.append(value)
    found = torch.load(io.BytesIO(saved(value)), weights_only=False)
    assert found[1] is found


def test_the_elements_size_is_torchs() -> None:
    for dtype in DTYPES:
        assert elements_size(dtype, (3, 2)) == torch.empty((3, 2), dtype=getattr(torch, dtype)).nbytes


@pytest.mark.parametrize("shape", [(1,), (0, 3), (7, 5, 3), (2**14, 2**14), (2**31, 2)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "uint16", "float8_e5m2"])
def test_a_frame_is_as_long_with_crcs_as_without(dtype: str, shape: tuple[int, ...]) -> None:
    before, after = frame_of(dtype, shape)
    assert len(prefix_of(dtype, shape)) == len(before)
    assert {len(suffix_of(dtype, shape, crc)) for crc in (0, 2**32 - 1)} == {len(after)}
