"""The files of two small checkpoints, and what may happen to them."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path

import torch
from torch.distributed.checkpoint.state_dict_saver import save

import streamxf
from manager.model import METADATA

EVERY_CHECK = {"none", "sample", "whole"}


@functools.cache
def contents(number: int) -> dict[str, bytes]:
    """The files of a checkpoint, one of two."""
    with tempfile.TemporaryDirectory() as folder:
        save({"w": torch.arange(300.0) + number}, storage_writer=streamxf.FileSystemWriter(folder))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def data_file(number: int) -> str:
    (found,) = (name for name in contents(number) if name.endswith(".distcp"))
    return found


KINDS = ("flip", "cut", "data", "garbled", "emptied", METADATA)


def damage(kind: str, metadata: Path, data: Path) -> set[str]:
    """Damage a checkpoint; returns which ways of checking find it."""
    written = metadata.stat().st_mtime
    if kind == "flip":
        flip(data, data.stat().st_size // 2)
        return EVERY_CHECK - {"none"}
    if kind == "cut":
        os.truncate(data, data.stat().st_size // 2)
    elif kind == "data":
        data.unlink()
    elif kind == "garbled":
        flip(metadata, metadata.stat().st_size - 300)  # in the index, and not what the catalog's mark covers
        os.utime(metadata, (written, written))
    elif kind == "emptied":
        os.truncate(metadata, 0)
        os.utime(metadata, (written, written))
    else:
        metadata.unlink()
        return EVERY_CHECK | {METADATA}
    return EVERY_CHECK


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
