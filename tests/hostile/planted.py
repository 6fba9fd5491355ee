"""Checkpoints with bytes of somebody else's in the place of an item, written through any writer."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._extension import ZStandard as StockZStandard
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import WriteItem

import streamxf
from streamxf import Encrypt, ZStandard
from streamxf.keys import Key

KEY = Key(bytes(range(32)))
WRITERS: dict[str, Callable[[Path], Any]] = {
    "own": lambda path: streamxf.FileSystemWriter(path, _extensions=[ZStandard()], sync_files=False),
    "own, encrypted": lambda path: streamxf.FileSystemWriter(path, _extensions=[Encrypt(KEY)], sync_files=False),
    "own, bare": lambda path: streamxf.FileSystemWriter(path, _extensions=[], sync_files=False),
    "attached": lambda path: streamxf.attach(dcp.FileSystemWriter(path, sync_files=False), [ZStandard()]),
    "stock": lambda path: dcp.FileSystemWriter(path, sync_files=False),
    "stock ZStandard": lambda path: dcp.FileSystemWriter(path, _extensions=[StockZStandard()], sync_files=False),
    "stock with a codec": lambda path: dcp.FileSystemWriter(path, _extensions=[ZStandard()], sync_files=False),
}
OF_TORCH = ("attached", "stock", "stock ZStandard", "stock with a codec")  # those whose tensors torch saves


def keys_of(writer: str) -> dict[str, Any]:
    """What a reader of its checkpoints is given."""
    return {"keys": KEY} if "encrypted" in writer else {}


class _Planting(DefaultSavePlanner):
    """Has other bytes for an object."""

    def __init__(self, name: str, data: bytes) -> None:
        super().__init__()
        self._name = name
        self._planted = data

    def resolve_data(self, write_item: WriteItem) -> Any:
        found = super().resolve_data(write_item)
        return io.BytesIO(self._planted) if write_item.index.fqn == self._name else found


def with_object(state: dict[str, Any], name: str, data: bytes, path: Path, writer: str) -> None:
    """Save `state`, with `data` for the object `name`."""
    dcp.save(state, storage_writer=WRITERS[writer](path), planner=_Planting(name, data))


def with_tensor(state: dict[str, Any], name: str, data: bytes, path: Path, writer: str) -> None:
    """Save `state`, with `data` for the tensor `name`, whose values no other has; through one of `OF_TORCH`."""
    save = torch.save

    def plant(value: Any, file: Any, *rest: Any, **options: Any) -> None:
        if isinstance(value, torch.Tensor) and torch.equal(value, state[name]):
            file.write(data)
        else:
            save(value, file, *rest, **options)

    with mock.patch.object(torch, "save", plant):
        dcp.save(state, storage_writer=WRITERS[writer](path))
