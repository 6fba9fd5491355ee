"""Checkpoints that streamxf wrote when the format was new; salts, ids and data keys were drawn at random."""

import io
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

import streamxf
from tests.vectors.recipes.data import numbers
from tests.vectors.recipes.world import FRAMED, Piece, world

_BF16 = torch.frombuffer(bytearray(numbers(2 * 128 * 64, 2, 7)), dtype=torch.bfloat16).reshape(128, 64)
STATE: dict[str, Any] = {
    "model": {"weight": _BF16, "turned": _BF16[:6, :4].t(), "empty": torch.empty(0, 3), "scalar": torch.tensor(7)},
    "optimizer": [torch.arange(12, dtype=torch.float32).reshape(4, 3), torch.tensor([True, False])],
    "step": 1000,
    "name": "größe",
}


def save(codecs: list[streamxf.Codec] | str) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        dcp.save(STATE, storage_writer=streamxf.FileSystemWriter(folder, _extensions=codecs))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def framed(tensor: torch.Tensor) -> dict[str, bytes]:
    """A framed tensor of four float32, by what the index says; `tensor` is what its stream holds."""
    stream = io.BytesIO()
    torch.save(tensor, stream)
    piece = Piece("weight", FRAMED, stream.getvalue(), "float32", (0,), (4,), (4,))
    return world([piece], ("streamxf.zstd/1",)).files()
