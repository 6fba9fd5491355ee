"""``.safetensors`` files, an eight-byte length, a header in JSON, and the tensors' bytes one by one; and folders
as on the hub: shards, and an index that says which tensor is in which.

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

from streamxf.buffers import collector_paused
from streamxf.errors import ContainerError, MetadataError, UnsupportedError, located, shorten
from streamxf.format.items import Chunk, Place
from streamxf.formats import torchfile
from streamxf.formats.contents import Contents, Format, Shard, sizes_of, whole_tensor
from streamxf.places import Storage
from streamxf.reading import BareHeader, Item, StoredFile, TensorItem
from streamxf.wording import many, some

DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "C64": "complex64", "F4": "float4_e2m1fn_x2", "F8_E4M3": "float8_e4m3fn", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
"""Torch's name for each dtype of a safetensors file."""

TWO_IN_ONE = "F4"  # the dtype of which an element of torch's has two
MAX_INDEX = 100_000_000  # bytes
_MAX_OBJECTS = 2**20  # lists and objects in the index; each takes twenty times its text in memory
SAFETENSORS, BIN = ".safetensors", ".bin"
INDEX = ".index.json"
_LONE_BIN = "pytorch_model.bin"


def looks_like_one(beginning: bytes, size: int) -> bool:
    """Whether a file of `size` bytes that begins so can be a safetensors file."""
    length = int.from_bytes(beginning[: BareHeader.LENGTH], "little")
    return length <= size - BareHeader.LENGTH and beginning[BareHeader.LENGTH :][:1] == b"{"


@collector_paused()
def read_file(file: StoredFile, name: str) -> Shard:
    """Read and check a file's header; `name` is the file's in `Place`.

    Raises ContainerError if it breaks a rule of the format, and UnsupportedError for a dtype that torch does not know.
    """
    header = BareHeader.read(file)
    tensors: dict[str, TensorItem] = {}
    for tensor, facts in header.tensors.items():
        try:
            tensors[tensor] = _tensor(tensor, facts, name, header.start)
        except (ContainerError, UnsupportedError) as error:
            raise error.locate(item=shorten(tensor)) from None
    _check_cover(tensors, header.start, file.size)
    offsets = _offsets(header.slices, tensors) if header.slices else {}
    return Shard({**tensors}, metadata=header.metadata, offsets=offsets)


def _tensor(name: str, facts: Any, file: str, start: int) -> TensorItem:
    if not isinstance(facts, dict) or not {"dtype", "shape", "data_offsets"} <= facts.keys():
        raise ContainerError("the header's entry does not have the dtype, the shape and the data_offsets of a tensor")
    if not is_text(name):
        raise ContainerError("the tensor's name is not valid Unicode")
    dtype, shape, offsets = facts["dtype"], facts["shape"], facts["data_offsets"]
    if not _are_sizes(shape):
        raise ContainerError(f"the shape {shorten(str(shape))} is not a list of sizes")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ContainerError(f"the data_offsets {shorten(str(offsets))} are not where a tensor begins and ends")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise UnsupportedError(f"torch has no dtype {shorten(str(dtype))!r}")
    if dtype == TWO_IN_ONE:
        if not shape or shape[-1] % 2:
            raise ContainerError(
                f"the shape {shape} has an odd last dimension, and {dtype} keeps two elements in a byte"
            )
        shape = [*shape[:-1], shape[-1] // 2]
    begin, end = offsets
    made = whole_tensor(name, DTYPES[dtype], tuple(shape), file, start + begin, end - begin, (name,))
    if made.size != end - begin:
        raise ContainerError(f"the tensor has {end - begin} bytes in the file, its dtype and shape give {made.size}")
    return made


def _offsets(slices: Mapping[str, Any], tensors: dict[str, TensorItem]) -> dict[str, tuple[int, ...]]:
    """Where the slices of tensors belong, by what DCP notes of them."""
    offsets: dict[str, tuple[int, ...]] = {}
    for name, item in tensors.items():
        facts = slices.get(name)
        offset: Any = facts.get("saved_offsets") if isinstance(facts, dict) else None
        if not _are_sizes(offset) or len(offset) != len(item.shape):
            raise ContainerError("the header's notes of slices do not say where this one belongs", item=shorten(name))
        offsets[name] = tuple(offset)
    return offsets


def is_text(name: str) -> bool:
    """Whether a name is valid Unicode."""
    return name.isascii() or name == name.encode("utf-8", "replace").decode("utf-8")


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 2**63 for size in value)


def _check_cover(tensors: dict[str, TensorItem], start: int, size: int) -> None:
    """Check that tensors fill the rest of the file, without overlaps, or holes where something could hide."""
    at, last = start, "the header"
    places = sorted((item.chunks[0].place.at, item.chunks[0].place.size, name) for name, item in tensors.items())
    for begin, length, name in places:
        if begin != at:
            what = "overlap" if begin < at else "leave a hole behind"
            raise ContainerError(f"the tensor's bytes {what} those of {last}", item=shorten(name))
        at, last = begin + length, shorten(repr(name))
    if at > size:
        raise ContainerError(f"the file has {size} bytes, its tensors end at {at}: it was truncated")
    if at < size:
        raise ContainerError(
            f"{size - at} bytes follow the last tensor: data was appended to the file, or its header is wrong"
        )


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
    """The names of a folder's shards; raises as `read_folder` if there is an index and it cannot be used."""
    return tuple(dict.fromkeys(_read_index(storage, layout)[0].values())) or layout.shards


@collector_paused()
def read_folder(storage: Storage, layout: HubLayout) -> tuple[Contents, dict[str, Shard]]:
    """What a folder and each of its shards hold. Raises ContainerError if the index is bad, or does not fit them."""
    read_shard = torchfile.read if layout.suffix == BIN else read_file
    placed, extra = _read_index(storage, layout)
    shards: dict[str, Shard] = {}
    found: dict[str, Item] = {}
    strays: list[str] = []
    slices: dict[str, list[Chunk]] = {}
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
    found |= {name: _joined(found[name], chunks) for name, chunks in slices.items()}
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
        alike = known is None or (
            name in slices
            and isinstance(known, TensorItem)
            and isinstance(item, TensorItem)
            and (known.dtype, len(known.shape)) == (item.dtype, len(item.shape))
        )
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


def _joined(item: Any, chunks: list[Chunk]) -> TensorItem:
    """The tensor of which these are the slices, as large as they are together, without those that have no elements.
    Raises ContainerError if they overlap, or leave a part out.
    """
    shape = tuple(map(max, zip(*(map(add, chunk.offset, chunk.shape) for chunk in chunks), strict=True)))
    chunks = [chunk for chunk in chunks if 0 not in chunk.shape] or chunks[:1]
    made: TensorItem = replace(item, shape=shape, chunks=tuple(chunks))
    try:
        made.check_tiles()
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
            file.check_whole(file.size)
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
            Place.check_path(shard)
        about = content.get("metadata")
        facts = about.items() if isinstance(about, dict) else ()
        try:
            return placed, {key: value if isinstance(value, str) else json.dumps(value) for key, value in facts}
        except RecursionError:
            raise ContainerError("the index's 'metadata' is nested too deeply") from None
