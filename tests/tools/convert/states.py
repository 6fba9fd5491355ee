"""What tests of conversions share: state dicts, checkpoints read back whole, comparisons bit for bit."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from torch.distributed.checkpoint import FileSystemReader as StockReader
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

import streamxf
from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.format.items import TensorItem
from streamxf.stream.reader import StreamReader

DTYPES = [torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.float32]
DTYPES += [torch.float64, torch.complex64, torch.float8_e4m3fn]


def tensor(dtype: torch.dtype, shape: tuple[int, ...], seed: int, turned: bool) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator) * 100
    made = torch.view_as_complex(torch.stack([values, values], -1)) if dtype.is_complex else values.to(dtype)
    return made.transpose(0, -1) if turned and made.ndim > 1 else made


TENSORS = st.builds(
    tensor,
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 40), max_size=3).map(tuple),
    st.integers(0, 99),
    st.booleans(),
)
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=6)
LEAVES = TENSORS | st.integers() | st.text(max_size=5) | st.lists(st.integers(0, 9), max_size=3)
NESTED = st.dictionaries(
    NAMES.filter(lambda name: "." not in name),
    st.recursive(
        LEAVES,
        lambda inner: (
            st.dictionaries(NAMES.filter(lambda name: "." not in name), inner, min_size=1, max_size=3)
            | st.lists(TENSORS, min_size=1, max_size=3)
        ),
        max_leaves=6,
    ),
    min_size=1,
    max_size=4,
)
CHAINS = ["", "floatzip", "zstd:level=1+checksum", "lz4", "floatzip+encrypt", "encrypt"]


def loaded(path: Path | str, keys: Any = None, *, stock: bool = False) -> dict[str, Any]:
    """All of a checkpoint, nested as it was saved."""
    reader = StockReader(path) if stock else streamxf.FileSystemReader(path, keys=keys)
    found: dict[str, Any] = _load_state_dict_from_keys(storage_reader=reader)
    return found


def assert_same(found: Any, wanted: Any) -> None:
    """Bit for bit; a dict may be of another kind."""
    if isinstance(wanted, torch.Tensor):
        assert isinstance(found, torch.Tensor)
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert bits(found) == bits(wanted)
    elif isinstance(wanted, Mapping):
        assert set(map(str, found)) == set(map(str, wanted))
        for key in wanted:
            assert_same(found[key], wanted[key])
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    else:
        assert (type(found), found) == (type(wanted), wanted)


def assert_whole(path: Path | str, keys: Any = None, expect_save_id: Any = None) -> None:
    """Every item can be read, with all checks."""
    with Checkpoint(path, keys=keys, expect_save_id=expect_save_id) as checkpoint:
        for metadata in checkpoint.metadata:
            for item in metadata.items.values():
                for chunk in item.chunks if isinstance(item, TensorItem) else [None]:
                    StreamReader(checkpoint.blocks(item, chunk)).read()


def bits(value: torch.Tensor) -> bytes:
    return value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def only_named(path: Path) -> None:
    assert sorted(file.name for file in path.iterdir()) == sorted([".metadata", *data_files(path)])


def digests(path: Path) -> dict[str, str]:
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def trained() -> dict[str, Any]:
    """A small training checkpoint, of some MiB."""
    generator = torch.Generator().manual_seed(3)
    return {
        "model": {f"layer.{n}": torch.randn(200, 300, generator=generator).bfloat16() for n in range(12)},
        "optimizer": {"state": [torch.randn(300, 300, generator=generator) for _ in range(6)], "lr": 0.1},
        "step": 7,
    }


def data_files(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob("*.distcp"))
