"""What the tests of GPUs share: tensors of any kind, streams that are late, saves and loads of them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Checksum, Encrypt, FloatZip
from streamxf.format.items import ITEMSIZES
from tests.dcp.helpers import KEY, assert_same, blank

DTYPES = [getattr(torch, name) for name in ITEMSIZES if hasattr(torch, name)]
MIB = 2**20
LATE = 400_000_000  # cycles of a GPU, some 0.2 s


def chain() -> list[Any]:
    return [FloatZip(), Checksum(), Encrypt(KEY)]


def writer(path: Path, **options: Any) -> streamxf.FileSystemWriter:
    options = {"_extensions": chain(), "block_size": MIB if torch.cuda.is_available() else MIB // 4} | options
    return streamxf.FileSystemWriter(path, sync_files=False, **options)


def reader(path: Path) -> streamxf.FileSystemReader:
    return streamxf.FileSystemReader(path, keys=KEY)


def save(state: dict[str, Any], path: Path, **options: Any) -> None:
    dcp.save(state, storage_writer=writer(path, **options))


def load_into(target: dict[str, Any], path: Path) -> dict[str, Any]:
    dcp.load(target, storage_reader=reader(path))
    return target


def load(state: dict[str, Any], path: Path) -> dict[str, Any]:
    """Load into a copy that differs in every byte."""
    return load_into(blank(state), path)


def assert_kept(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Compare bit for bit, wherever the tensors are."""
    assert_same(on_host(found), on_host(wanted))


def on_host(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {name: on_host(item) for name, item in value.items()}
    return value


def of_random_bytes(dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    size = torch.Size(shape).numel() * dtype.itemsize
    data = torch.randint(0, 2 if dtype == torch.bool else 256, (size,), dtype=torch.uint8, device=device)
    return data.view(dtype).reshape(shape)


def weights(mib: float, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Gaussian weights in rows that are no divisor of a block; a quarter, in smaller blocks, without a GPU."""
    rows = max(1, int(mib * MIB / (1000 * dtype.itemsize)) // (1 if device.type == "cuda" else 4))
    return (torch.randn(rows, 1000, device=device) * 0.02).to(dtype)


def late(device: torch.device) -> None:
    """Keep the current stream busy."""
    if device.type == "cuda":
        torch.cuda._sleep(LATE)


def side_stream(device: torch.device) -> tuple[AbstractContextManager[Any], Callable[[], None]]:
    """Another current stream, and what lets the one that is current now wait for all that was begun there."""
    if device.type != "cuda":
        return nullcontext(), lambda: None
    stream = torch.cuda.Stream(device)
    return torch.cuda.stream(stream), lambda: torch.cuda.current_stream(device).wait_stream(stream)
