"""Checkpoints that streamxf itself wrote, at the time when the format was new; salts, ids and data keys were drawn at
random.
"""

from __future__ import annotations

import io
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import LZ4, Checksum, Encrypt, FloatZip, ZStandard
from tests.sealing import HYBRID, KEY, READER, SIGNER
from tests.vectors.recipes.data import numbers
from tests.vectors.recipes.vector import HELD, NOTHING, Reader, Vector, digest_of, holding
from tests.vectors.recipes.world import FRAMED, Piece, world

_BF16 = torch.frombuffer(bytearray(numbers(2 * 128 * 64, 2, 7)), dtype=torch.bfloat16).reshape(128, 64)
STATE: dict[str, Any] = {
    "model": {"weight": _BF16, "turned": _BF16[:6, :4].t(), "empty": torch.empty(0, 3), "scalar": torch.tensor(7)},
    "optimizer": [torch.arange(12, dtype=torch.float32).reshape(4, 3), torch.tensor([True, False])],
    "step": 1000,
    "name": "größe",
}


def _signer() -> streamxf.SigningKey:
    return streamxf.SigningKey(SIGNER.private_bytes_raw())


def _public() -> streamxf.PublicKey:
    return streamxf.PrivateKey(READER, HYBRID).public


def _cases() -> list[tuple[str, str, list[streamxf.Codec] | str, Reader]]:
    return [
        ("default", "the default chain", [FloatZip()], NOTHING),
        ("bare", "an empty chain", [], NOTHING),
        ("raw", "bare elements", "raw", NOTHING),
        ("zstd", "one codec", [ZStandard()], NOTHING),
        ("full", "three codecs", [FloatZip(), Checksum(), Encrypt(KEY)], HELD),
        ("signed", "signed", [LZ4(), Encrypt(KEY, signer=_signer()), Checksum("sha256")], holding("aeskw")),
        ("hybrid", "for a private key, signed", [Encrypt(_public(), signer=_signer())], holding(HYBRID)),
    ]


def _save(codecs: list[streamxf.Codec] | str) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        dcp.save(STATE, storage_writer=streamxf.FileSystemWriter(folder, _extensions=codecs))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def _content(framed: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in sorted(_flat("", STATE).items()):
        if not isinstance(value, torch.Tensor):
            found[name] = {"loads": value}
            continue
        data = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
        shape, dtype = list(value.shape), str(value.dtype).removeprefix("torch.")
        chunk: dict[str, Any] = {"offset": [0] * len(shape), "shape": shape}
        chunk |= {"framed": True, "elements": digest_of(data)} if framed else digest_of(data)
        found[name] = {"dtype": dtype, "shape": shape, "chunks": [chunk]}
    return found


def _flat(prefix: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict | list):
        return {prefix.removeprefix("."): value}
    steps = value.items() if isinstance(value, dict) else enumerate(value)
    return {name: leaf for step, inner in steps for name, leaf in _flat(f"{prefix}.{step}", inner).items()}


def _framed(tensor: torch.Tensor) -> dict[str, bytes]:
    """A framed tensor of four float32, by what the index says; `tensor` is what its stream holds."""
    stream = io.BytesIO()
    torch.save(tensor, stream)
    piece = Piece("weight", FRAMED, stream.getvalue(), "float32", (0,), (4,), (4,))
    return world([piece], ("streamxf.zstd/1",)).files()


def _streams() -> list[Vector]:
    """C6, for readers that take elements out of streams."""
    right = torch.arange(4.0)
    others = [
        ("dtype", "another dtype of the same size", right.to(torch.int32)),
        ("shape", "another shape", right.reshape(2, 2)),
        ("elements", "an element more", torch.arange(5.0)),
    ]
    data = right.numpy().tobytes()
    chunk = {"offset": [0], "shape": [4], "framed": True, "elements": digest_of(data)}
    holds = {"weight": {"dtype": "float32", "shape": [4], "chunks": [chunk]}}
    facts = {"elements": True}
    return [
        Vector("framed-elements", "elements in a stream", partial(_framed, right), {"holds": holds}, facts=facts),
        *(
            Vector(f"C6-stream-{name}", f"a stream of {about}", partial(_framed, tensor), {"breaks": "C6"}, facts=facts)
            for name, about, tensor in others
        ),
    ]


def vectors() -> list[Vector]:
    """All of them."""
    return [
        *_streams(),
        *(
            Vector(
                f"saved-{name}",
                f"saved by streamxf: {about}",
                partial(_save, codecs),
                {"holds": _content(not codecs)},
                reader,
            )
            for name, about, codecs, reader in _cases()
        ),
    ]
