"""Other ways to store a state dict, in the same run: ZipNN, blosc2, safetensors, tensorizer and ``torch.save``.

All write one file, fsync it as DCP does, and end with the values in tensors that existed before, as DCP's do: what only
returns new tensors pays for one more copy. ZipNN and blosc2 compress bytes and have no checkpoint of their own, so
their compressed tensors stand one after the other, and their sizes are kept in memory: a file format would only add.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tensorizer import TensorDeserializer, TensorSerializer
from zipnn import ZipNN

from benchmarks.dcp_sides import State

_ZIPNN_DTYPES = {
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.float32: "float32",
    torch.float8_e4m3fn: "float8_e4m3fn",
    torch.float8_e5m2: "float8_e5m2",
}
FILE = "state"


def flat_bytes(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a contiguous tensor, without a copy."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def zipnn_compress(tensor: torch.Tensor, threads: int) -> bytes:
    """Compress one tensor with ZipNN.

    It gets a copy, because ZipNN rotates bf16 and fp32 data in place and leaves it so: the state that is being saved
    would be destroyed. It knows no integers; those stay as they are, as do empty tensors.
    """
    data = bytearray(flat_bytes(tensor))
    return zipnn_coder(tensor.dtype, threads).compress(data) if _zipnn_takes(tensor) else bytes(data)


def zipnn_coder(dtype: torch.dtype, threads: int) -> Any:
    """ZipNN as its authors would set it up for the dtype."""
    return ZipNN(input_format="byte", bytearray_dtype=_ZIPNN_DTYPES[dtype], threads=threads)


def _zipnn_takes(tensor: torch.Tensor) -> bool:
    return tensor.dtype in _ZIPNN_DTYPES and tensor.numel() > 0


def _zipnn_decompress(data: memoryview, target: torch.Tensor, threads: int) -> None:
    raw = zipnn_coder(target.dtype, threads).decompress(bytes(data)) if _zipnn_takes(target) else data
    flat_bytes(target)[:] = np.frombuffer(raw, np.uint8)


def blosc2_compress(tensor: torch.Tensor, threads: int) -> bytes:
    """Compress one tensor with blosc2: byte shuffle and zstd at level 1, which is faster *and* smaller on weights than
    its default level 5.
    """
    return blosc2.compress2(
        flat_bytes(tensor),
        typesize=tensor.element_size(),
        codec=blosc2.Codec.ZSTD,
        clevel=1,
        filters=[blosc2.Filter.SHUFFLE],
        nthreads=threads,
    )


def _blosc2_decompress(data: memoryview, target: torch.Tensor, threads: int) -> None:
    if target.numel():  # it refuses to decompress into nothing
        blosc2.decompress2(data, dst=flat_bytes(target), nthreads=threads)


@dataclass(frozen=True)
class CompressorSide:
    """A compressor of bytes, tensor by tensor into one file."""

    name: str
    compress: Callable[[torch.Tensor, int], bytes]
    decompress: Callable[[memoryview, torch.Tensor, int], None]
    _sizes: dict[Path, list[int]] = field(default_factory=dict)

    def save(self, state: State, path: Path, threads: int) -> None:
        path.mkdir(parents=True, exist_ok=True)
        with (path / FILE).open("wb", buffering=0) as file:
            self._sizes[path] = [_write(file, self.compress(tensor, threads)) for tensor in state.values()]
            os.fsync(file.fileno())

    def load(self, target: State, path: Path, threads: int) -> None:
        with (path / FILE).open("rb", buffering=0) as file:
            for tensor, size in zip(target.values(), self._sizes[path], strict=True):
                data = bytearray(size)
                if file.readinto(data) != size:
                    raise OSError(f"{path / FILE} ends in the middle of a tensor")
                self.decompress(memoryview(data), tensor, threads)


def _write(file: Any, data: bytes) -> int:
    if file.write(data) != len(data):
        raise OSError("the file took only a part of a tensor")
    return len(data)


@dataclass(frozen=True)
class FileSide:
    """A library that saves a whole state dict to a file, and loads it into new tensors."""

    name: str
    write: Callable[[State, Path], Any]
    read: Callable[[Path], State]

    def save(self, state: State, path: Path, threads: int) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.write(state, path / FILE)
        with (path / FILE).open("rb") as file:
            os.fsync(file.fileno())

    def load(self, target: State, path: Path, threads: int) -> None:
        for name, tensor in self.read(path / FILE).items():
            target[name].copy_(tensor)


def write_tensorizer(state: State, file: Path) -> None:
    serializer = TensorSerializer(str(file))
    serializer.write_state_dict(state)
    serializer.close()


def read_tensorizer(file: Path, verified: bool = False) -> State:
    return dict(TensorDeserializer(str(file), device="cpu", verify_hash=verified).items())


ZIPNN = CompressorSide("ZipNN", zipnn_compress, _zipnn_decompress)
BLOSC2 = CompressorSide("blosc2, shuffle + zstd", blosc2_compress, _blosc2_decompress)
SAFETENSORS = FileSide("safetensors", save_file, load_file)
TORCH_SAVE = FileSide("torch.save", torch.save, lambda path: torch.load(path, weights_only=True))
TENSORIZER = FileSide("tensorizer", write_tensorizer, read_tensorizer)
TENSORIZER_VERIFIED = FileSide("tensorizer, verify_hash", write_tensorizer, partial(read_tensorizer, verified=True))

PEERS = (ZIPNN, BLOSC2, SAFETENSORS, TENSORIZER, TORCH_SAVE)
