"""A ``.safetensors`` file: described, compared, packed and unpacked; and read as the safetensors library reads it."""

from __future__ import annotations

import atexit
import json
import random
import shutil
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

import streamxf
from fuzz.oracle import agree, attempt
from fuzz.target import Havoc, Target
from streamxf.formats.opening import open_source
from streamxf.formats.source import boxes_of

_VALUES = (None, True, 0, 1, -1, 2**31, 2**62, 2**64, 1.5, "", "F32", "F4", "\ud800", [], {}, [0] * 65, [[]])


def run(data: bytes) -> None:
    folder = _folder()
    path = folder / "model.safetensors"
    path.write_bytes(data)
    attempt(lambda: streamxf.inspect(path).as_dict(items=True))
    attempt(lambda: str(streamxf.diff(path, path)))
    attempt(lambda: _round_trip(path))
    found, _ = attempt(lambda: _read(path))
    if found is None:
        return
    try:
        theirs = safetensors.torch.load(data)
    except Exception:  # of any kind; what only streamxf reads has no second opinion
        return
    agree(found.keys() == theirs.keys(), "the library finds other tensors")
    agree(all(_bits(found[name]) == _bits(theirs[name]) for name in found), "the library finds other elements")


def _round_trip(path: Path) -> None:
    for name in ("packed", "again.safetensors"):
        made = path.with_name(name)
        shutil.rmtree(made) if made.is_dir() else made.unlink(missing_ok=True)
    streamxf.pack(path, path.with_name("packed"), "")
    streamxf.unpack(path.with_name("packed"), path.with_name("again.safetensors"))
    agree(path.with_name("again.safetensors").read_bytes() == path.read_bytes(), "another file comes back")


def _read(path: Path) -> dict[str, torch.Tensor]:
    found = {}
    with open_source(path) as source:
        for name, entry in source.contents.entries.items():
            dtype = getattr(torch, str(entry.dtype))
            parts = [part.reshape(-1) for part in source.read(boxes_of(entry, dtype.itemsize))]
            found[name] = torch.cat([torch.empty(0, dtype=dtype), *parts]).reshape(entry.shape)
    return found


def _bits(tensor: torch.Tensor) -> Any:
    raw = tensor.contiguous().reshape(-1).view(torch.uint8)
    return tensor.dtype, tensor.shape, bytes(raw.numpy())


@cache
def _folder() -> Path:
    made = Path(tempfile.mkdtemp(prefix="streamxf-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def seeds() -> Iterable[bytes]:
    yield safetensors.torch.save({"w": torch.arange(6.0).reshape(2, 3), "half": torch.ones(5, dtype=torch.bfloat16)})
    yield safetensors.torch.save({"w": torch.zeros(0, 3), "scalar": torch.tensor(7)}, {"format": "pt"})


def mutate(data: bytes, choose: random.Random, havoc: Havoc) -> bytes:
    """Change the header's JSON, and its length with it, or any bytes."""
    length = int.from_bytes(data[:8], "little")
    header, body = data[8 : 8 + length], data[8 + length :]
    if choose.random() < 0.6:
        try:
            content = json.loads(header)
            _change(content, choose)
            header = json.dumps(content).encode("utf-8", "surrogatepass")
        except (ValueError, RecursionError):
            header = havoc(header)
    elif choose.random() < 0.5:
        header = havoc(header)
    else:
        return havoc(data)
    return len(header).to_bytes(8, "little") + header + body


def _change(content: Any, choose: random.Random) -> None:
    """Put something else somewhere into a table or list, at any depth."""
    while isinstance(content, dict | list) and content:
        key = choose.choice(list(content)) if isinstance(content, dict) else choose.randrange(len(content))
        inner = content[key]
        if not isinstance(inner, dict | list) or not inner or choose.random() < 0.2:
            content[key] = choose.choice(_VALUES)
            return
        content = inner


TARGET = Target(run, seeds, mutate)
