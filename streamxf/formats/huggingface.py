"""Folders as on the Hugging Face hub: shards, and an index that says which tensor is in which.

The index of ``.safetensors`` shards takes precedence over one of ``.bin`` shards, as where such folders are loaded.
Without an index the shards are all files of the one kind, or else of the other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from operator import add
from typing import Any

from streamxf.budget import Steps, check_whole
from streamxf.buffers import collector_paused
from streamxf.errors import ContainerError, MetadataError, UnsupportedError, located, shorten
from streamxf.format.items import check_path
from streamxf.format.tiling import check_tiles, work_for
from streamxf.formats import safetensors, torchfile
from streamxf.formats.contents import Contents, Format, Shard, sizes_of
from streamxf.places import Storage
from streamxf.reading import Chunk, Item, TensorItem
from streamxf.wording import many, some

MAX_INDEX = 100_000_000  # bytes
_MAX_OBJECTS = 2**20  # lists and objects in the index; each takes twenty times its text in memory

SAFETENSORS, BIN = ".safetensors", ".bin"
INDEX = ".index.json"
_LONE_BIN = "pytorch_model.bin"


@dataclass(frozen=True)
class HubLayout:
    """Which files of a folder are the checkpoint."""

    suffix: str  # of its shards
    index: str | None  # the file that says which tensor is in which shard
    shards: tuple[str, ...]  # if there is no index


def layout_of(names: Iterable[str]) -> HubLayout | None:
    """Find shards among the names of a folder; None if there are none."""
    names = sorted(names)
    for suffix in (SAFETENSORS, BIN):
        indices = [name for name in names if name.endswith(suffix + INDEX)]
        usual = [name for name in indices if name in (f"model{suffix}{INDEX}", f"pytorch_model{suffix}{INDEX}")]
        if len(usual or indices) > 1:
            raise UnsupportedError(
                f"the folder has several indices, {', '.join(indices[:4])}: it holds several checkpoints. Give each a "
                "folder of its own"
            )
        if indices:
            return HubLayout(suffix, (usual or indices)[0], ())
        shards = tuple(name for name in names if name.endswith(suffix) and (suffix != BIN or name == _LONE_BIN))
        if shards:
            return HubLayout(suffix, None, shards)
    return None


def is_weights(name: str, layout: HubLayout) -> bool:
    """Whether a file may be one of a layout's shards."""
    return name.endswith(layout.suffix) and (layout.suffix != BIN or name.startswith("pytorch_model"))


def shards_of(storage: Storage, layout: HubLayout) -> tuple[str, ...]:
    """The names of a folder's shards; raises as `read` if there is an index and it cannot be used."""
    return tuple(dict.fromkeys(_read_index(storage, layout)[0].values())) or layout.shards


@collector_paused()
def read(storage: Storage, layout: HubLayout) -> tuple[Contents, dict[str, Shard]]:
    """What a folder and each of its shards hold. Raises ContainerError if the index is bad, or does not fit them."""
    read_shard = torchfile.read if layout.suffix == BIN else safetensors.read
    placed, extra = _read_index(storage, layout)
    shards: dict[str, Shard] = {}
    found: dict[str, Item] = {}
    strays: list[str] = []
    slices: dict[str, list[Chunk]] = {}
    work = work_for(0)
    for name in dict.fromkeys(placed.values()) or layout.shards:
        with located(file=storage.label(name)):
            try:
                with storage.child(name).open() as file:
                    shards[name] = read_shard(file, name)
            except FileNotFoundError:
                raise ContainerError(
                    f"the index {layout.index} names this shard, and it is not there: fetch it, or restore it"
                ) from None
            strays += _add(found, name, shards[name], placed, slices)
            extra = {**shards[name].metadata, **extra}
    found |= {name: _joined(found[name], chunks, work) for name, chunks in slices.items()}
    if missing := placed.keys() - found.keys():
        one = min(missing)
        raise ContainerError(
            f"no shard contains {many(len(missing), 'tensor')} of the index, such as {shorten(one)!r}, which it places "
            f"in {shorten(placed[one])}",
            file=storage.label(layout.index or ""),
        )
    found = {name: found[name] for name in dict.fromkeys([*placed, *found])}
    notes = []
    if sliced := [name for name, chunks in slices.items() if len(chunks) > 1]:
        notes.append(
            f"Slices of DCP's writer, joined: {many(len(sliced), 'tensor')}. Nothing says how many shards there were, "
            "so tensors end where the last slice does."
        )
    if strays:
        notes.append(f"Not in the index: {many(len(strays), 'tensor')} of the shards, such as {shorten(strays[0])}.")
    notes += notes_of_links(storage, filter(None, (layout.index, *shards)))
    listed = storage.names()
    sizes = sizes_of(sorted({*listed, *shards}), listed, lambda name: storage.child(name).open())
    return Contents(storage.label(), Format.HUGGING_FACE, found, sizes, notes=tuple(notes), extra=extra), shards


def notes_of_links(storage: Storage, names: Iterable[str]) -> list[str]:
    away = links_out(storage, names)
    return [f"Links lead out of the folder for {many(len(away), 'file')}: {some(away)}."] if away else []


def links_out(storage: Storage, names: Iterable[str]) -> list[str]:
    """Links out of the folder and their targets, but those of the hub's cache, whose snapshots link ``../../blobs``."""
    folder = storage.real()
    homes = tuple(f"{home.rstrip('/')}/" for home in (folder, os.path.normpath(f"{folder}/../../blobs")))
    real = {name: storage.real(name) for name in names}
    return [f"{name}, which is {path}" for name, path in real.items() if not path.startswith(homes)]


def _add(
    found: dict[str, Item], shard: str, read: Shard, placed: Mapping[str, str], slices: dict[str, list[Chunk]]
) -> list[str]:
    """Add what is in a shard, slices of tensors to `slices`, too; returns the tensors that the index does not know."""
    strays = []
    for name, item in read.items.items():
        known = found.get(name)
        alike = known is None or (name in slices and _are_alike(known, item))
        if alike and name in read.offsets and isinstance(item, TensorItem):
            slices.setdefault(name, []).append(item.chunks[0]._replace(offset=read.offsets[name]))
        elif known is not None:
            raise ContainerError(
                f"the tensor is in this file and in {known.places[0].file}; one of them does not belong here",
                item=shorten(name),
            )
        found[name] = item
        if not placed or not isinstance(item, TensorItem):
            continue
        if name not in placed:
            strays.append(name)
        elif placed[name] != shard:
            raise ContainerError(
                f"the tensor is in this file, and the index places it in {shorten(placed[name])}", item=shorten(name)
            )
    return strays


def _are_alike(item: Item, other: Item) -> bool:
    are_tensors = isinstance(item, TensorItem) and isinstance(other, TensorItem)
    return are_tensors and (item.dtype, len(item.shape)) == (other.dtype, len(other.shape))  # type: ignore[union-attr]


def _joined(item: Any, chunks: list[Chunk], work: Steps) -> TensorItem:
    """The tensor of which these are the slices, as large as they are together, without those that have no elements.
    Raises ContainerError if they overlap, or leave a part out.
    """
    shape = tuple(map(max, zip(*(map(add, chunk.offset, chunk.shape) for chunk in chunks), strict=True)))
    chunks = [chunk for chunk in chunks if 0 not in chunk.shape] or chunks[:1]
    made: TensorItem = replace(item, shape=shape, chunks=tuple(chunks))
    try:
        check_tiles(shape, [chunk[:2] for chunk in chunks], work)
    except MetadataError as error:
        raise ContainerError(
            f"the slices of the tensor do not make one ({error.message}): a shard is missing, or does not belong here",
            item=shorten(made.name),
        ) from None
    return made


def _read_index(storage: Storage, layout: HubLayout) -> tuple[dict[str, str], dict[str, str]]:
    """The shard of each tensor, and the index's metadata; both are empty if there is no index."""
    if layout.index is None:
        return {}, {}
    with located(file=storage.label(layout.index)):
        with storage.child(layout.index).open() as file:
            if file.size > MAX_INDEX:
                raise ContainerError(f"the index has {file.size:,} bytes, {MAX_INDEX:,} are allowed")
            check_whole(file.raw, file.size, file.size, ContainerError)
            data = file.read()
        if data.count(b"{") + data.count(b"[") > _MAX_OBJECTS:
            raise ContainerError("the index has more lists and objects than any model needs; it was not read")
        try:
            content = json.loads(data.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise ContainerError(f"the index is not JSON: {error}") from None
        placed = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(placed, dict) or not placed:
            raise ContainerError("the index has no 'weight_map', which says in which shard each tensor is")
        if not all(isinstance(shard, str) for shard in placed.values()):
            raise ContainerError("the index places a tensor in something that is not a file's name")
        for shard in dict.fromkeys(placed.values()):
            check_path(shard)
        about = content.get("metadata")
        facts = about.items() if isinstance(about, dict) else ()
        try:
            return placed, {key: value if isinstance(value, str) else json.dumps(value) for key, value in facts}
        except RecursionError:
            raise ContainerError("the index's 'metadata' is nested too deeply") from None
