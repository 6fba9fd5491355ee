"""`unsafe_globals`: what a checkpoint's objects need before they load, all of it at once."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint._extension import ExtensionRegistry
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

from streamxf.dcp.folder import Folder, rank_of
from streamxf.dcp.load.items import Require
from streamxf.dcp.objects.needs import needs_of, shown
from streamxf.dcp.objects.policy import Objects
from streamxf.dcp.reader import FileSystemReader
from streamxf.keys import KeyRing, KeysLike, TrustLike


@dataclass(frozen=True)
class UnsafeGlobals:
    """What a checkpoint's objects need beyond what readers allow. False if that is nothing.

    Attributes
    ----------
    names : dict of str to tuple of str
        Each class and function that ``safe_globals=`` has to hold, and the items that need it. They stand in the
        checkpoint: name only what you know.
    refused : dict of str to tuple of str
        Each reason for which items do not load, whatever of `names` is allowed, and those items.
    """

    names: dict[str, tuple[str, ...]]
    refused: dict[str, tuple[str, ...]]

    def __bool__(self) -> bool:
        return bool(self.names or self.refused)

    def __str__(self) -> str:
        lines = [f"{shown([name])}: {shown(items)}" for name, items in self.names.items()]
        lines += [f"refused, {reason}: {shown(items)}" for reason, items in self.refused.items()]
        return "\n".join(lines) or "nothing"


def unsafe_globals(
    path: str | os.PathLike[str],
    keys: KeysLike = None,
    *,
    trust: TrustLike = None,
    allow_unsigned: bool = False,
    require: Require | None = None,
    registry: ExtensionRegistry | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> UnsafeGlobals:
    """List what the objects of a checkpoint need before they load. None of them is unpickled: their opcodes are read.

    Parameters
    ----------
    path : path or str
        The checkpoint's folder, or its URL.
    keys, trust, allow_unsigned, require
        As in `FileSystemReader`.
    registry : ExtensionRegistry, optional
        The reader's ``_extension_registry``.
    storage_options : mapping, optional
        fsspec's, for a URL.

    Returns
    -------
    UnsafeGlobals
        What neither torch, nor ``torch.serialization.add_safe_globals`` in this process, nor streamxf allows.

    Raises
    ------
    StreamxfError
        If the checkpoint cannot be read.
    """
    ring = KeyRing.of(keys, trust, allow_unsigned)
    text = os.fspath(path)
    reader: Any
    if "://" in text or "::" in text or storage_options:
        from streamxf.dcp.fsspec import FsspecReader

        reader = FsspecReader(text, registry, keys=ring, require=require, **(storage_options or {}))
    else:
        reader = FileSystemReader(text, registry, keys=ring, require=require)
    reader._objects = _Unopened()
    looking = _Looking()
    names = Folder(path, storage_options).names()
    for name in [".metadata"] if ".metadata" in names else names:
        rank = rank_of(name)
        metadata = reader.read_metadata() if rank is None else reader.read_metadata(rank=rank)
        reader.set_up_storage_reader(metadata, is_coordinator=True)
        items = [
            _request(item)
            for item, kind in metadata.state_dict_metadata.items()
            if isinstance(kind, BytesStorageMetadata)
        ]
        reader.read_data(LoadPlan(items), looking)
    return UnsafeGlobals(_sorted(looking.names), _sorted(looking.refused))


class _Unopened(Objects):
    """Hands on what is stored, within the limits that hold for any object."""

    def renew(self, data: bytes, stored: int) -> bytes:
        return data


class _Looking(DefaultLoadPlanner):
    """Looks at objects instead of unpickling them."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, list[str]] = {}
        self.refused: dict[str, list[str]] = {}

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        names, reason = needs_of(value.getvalue())
        for name in names:
            self.names.setdefault(name, []).append(read_item.storage_index.fqn)
        if reason:
            self.refused.setdefault(reason, []).append(read_item.storage_index.fqn)


def _request(item: str) -> ReadItem:
    index = MetadataIndex(item)
    nothing = torch.Size([0])
    return ReadItem(LoadItemType.BYTE_IO, index, nothing, index, nothing, nothing)


def _sorted(found: dict[str, list[str]]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(sorted(items)) for name, items in sorted(found.items())}
