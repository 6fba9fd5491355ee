"""What the container adds to what the compressor made: bytes per item, and as a share of a large one."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

import streamxf
from benchmarks.dcp_sides import KEY, DcpSide
from benchmarks.harness import MIB, Settings
from benchmarks.result import Result, Row, Table

HEADER_FIXED, SEAL, CRC, BLOCK_HEAD, FOOTER = 48, 32, 4, 8, 32
CHECKSUM, TAG = 4, 16
NAME = "w"

SIDE = DcpSide(
    "streamxf, ZStandard + Checksum + Encrypt",
    False,
    lambda: [streamxf.ZStandard(level=3), streamxf.Checksum(), streamxf.Encrypt(KEY)],
    keyed=True,
)

LIMIT_SMALL_BYTES = 300
LIMIT_LARGE_SHARE = 0.0005


def run(settings: Settings) -> Result:
    """Measure."""
    large = settings.pick(settings.mib, 1) * MIB
    shapes = {"4 KiB, 1 dimension": (4096,), "4 KiB, 4 dimensions": (8, 8, 8, 8), f"{large // MIB} MiB": (large,)}
    rows = [_measure(settings.folder / "overhead", label, shape) for label, shape in shapes.items()]
    note = (
        "One tensor under `[ZStandard(level=3), Checksum(), Encrypt(key)]`. *Added* is everything in the container "
        "that is not a Zstandard frame: header, checksums, tags, index, footer; the item's name is not counted. To be "
        f"kept: at most {LIMIT_SMALL_BYTES} bytes for 4 KiB, at most {LIMIT_LARGE_SHARE:.2%} for the large tensor."
    )
    return Result("overhead", "Container overhead", note, [Table(rows)])


def _measure(folder: Path, label: str, shape: tuple[int, ...]) -> Row:
    size = torch.Size(shape).numel()
    tensor = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    dcp.save({NAME: tensor}, storage_writer=SIDE.writer(folder, 1))
    ((_, place),) = SIDE.reader(folder).read_metadata().storage_data.items()
    frames, blocks = _frames(folder / place.relative_path, place.offset, place.length)
    added = place.length - frames - len(NAME)
    shutil.rmtree(folder)
    good = added <= LIMIT_SMALL_BYTES if size <= 4096 else added / size <= LIMIT_LARGE_SHARE
    return {
        "tensor": label,
        "blocks": blocks,
        "stored, bytes": place.length,
        "added, bytes": added,
        "added, share": f"{added / size:.4%}",
        "kept": "yes" if good else "**no**",
    }


def _frames(file: Path, offset: int, length: int) -> tuple[int, int]:
    """Bytes of all Zstandard frames in a container, and its blocks; read from its header, index and footer."""
    with file.open("rb") as stream:
        stream.seek(offset)
        chain_size, identity_size = struct.unpack("<12xHH", stream.read(16))
        stream.seek(offset + length - FOOTER)
        _, container_size, blocks = struct.unpack("<QQI", stream.read(20))
    if container_size != length:
        raise AssertionError("the container's size is not that of the item")
    header = HEADER_FIXED + chain_size + identity_size + SEAL + CRC
    payloads = length - header - blocks * (BLOCK_HEAD + 8) - FOOTER
    return payloads - blocks * (CHECKSUM + TAG), blocks
