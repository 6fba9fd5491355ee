"""Checkpoints that torch's own writers made, and what else such a pickle can say."""

import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from tests.forge import BOUND, KEYED, identity_of
from tests.sealing import ENCRYPT, HYBRID, container, encrypted, entry, hpke_wrap, wrapped, zstd
from tests.vectors.recipes.world import FILE, FRAMED, OBJECT, PIECES, ZSTD, Piece

Change = Callable[[Metadata], object]
FRAMES = tuple(piece if piece.kind == OBJECT else replace(piece, kind=FRAMED) for piece in PIECES)
TRANSFORM = "stream.zstd/1"
FIRST = MetadataIndex("weight", torch.Size((0, 0)), 0)
STEP, STRAY = MetadataIndex("step"), MetadataIndex("stray")


def _key(piece: Piece) -> MetadataIndex:
    return MetadataIndex(piece.name, None if piece.kind == OBJECT else torch.Size(piece.offset))


def stored(
    change: Change | None = None,
    texts: tuple[str, ...] | None = None,
    pack: Callable[[Piece], bytes] = lambda piece: piece.data,
    *,
    protocol: int = 4,
    mend: Callable[[bytes], bytes] = lambda data: data,
) -> dict[str, bytes]:
    """The files; `texts` are the descriptors of all items, `pack` makes what is stored, `mend` alters the pickle."""
    data, places = b"", dict[Any, Any]()
    for piece in FRAMES:
        made = pack(piece)
        info = _StorageInfo(FILE, len(data), len(made))
        info.transform_descriptors = None if texts is None else list(texts)
        places[_key(piece)] = info
        data += made
    tensor = TensorStorageMetadata(
        TensorProperties(torch.float32),
        torch.Size((4, 3)),
        [ChunkStorageMetadata(torch.Size(p.offset), torch.Size(p.shard)) for p in FRAMES if p.kind == FRAMED],
    )
    content = Metadata({"step": BytesStorageMetadata(), "weight": tensor}, storage_data=places)
    if change is not None:
        change(content)
    return {".metadata": mend(pickle.dumps(content, protocol)), FILE: data}


def in_containers(chain: tuple[str, ...] = (ZSTD,), **changes: Any) -> Callable[[Piece], bytes]:
    """Containers, as an attached writer makes them; their identity may be of another item."""

    def pack(piece: Piece) -> bytes:
        flags = BOUND | (KEYED if ENCRYPT in chain else 0)
        moved = replace(piece, **changes.get("identity", {})) if piece.kind == FRAMED else piece
        about = moved.name, moved.kind, moved.dtype, moved.offset, moved.shard, moved.tensor
        usual = {"flags": flags, "identity": identity_of(*about)} | changes.get("header", {})
        payload = zstd(piece.data) if ZSTD in chain else piece.data
        made = container(chain, [payload], len(piece.data), **usual)
        return (encrypted(made) if ENCRYPT in chain else made).container()

    return pack


def attribute(name: str, value: Any) -> Change:
    return lambda content: setattr(content, name, value)


UNBOUND = {"flags": KEYED, "identity": b""}


def right() -> dict[str, Any]:
    def first(data: bytes) -> bytes:
        return data.replace(b"ctorch.distributed.checkpoint.", b"ctorch.distributed._shard.checkpoint.")

    def ignored(content: Metadata) -> None:
        content.planner_data = {"weight": ("a", 1), "step": ["a"], "other": ("b",), 7: 7}
        content.storage_data[MetadataIndex("gone", torch.Size((0,)))] = _StorageInfo("gone", 0, 1)
        form = TensorProperties(torch.int7, memory_format=torch.channels_last)
        content.later = [PurePosixPath("/a"), OrderedDict(a=1.5), form]

    meta = StorageMeta("a", "b", "c")
    return locals()


def pickles() -> dict[str, Any]:
    """F1: the pickle itself."""

    getpid, system = os.getpid, os.system
    memory_format, layout = metadata._MEM_FORMAT_ENCODING, torch.serialization._get_layout

    class Calls:
        def __init__(self, function: Any, *arguments: Any) -> None:
            self.made = function, arguments

        def __reduce__(self) -> Any:
            return self.made

    def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
        def change(data: bytes) -> bytes:
            assert data.count(old) >= 1
            return data.replace(old, new, 1)

        return change

    def extra(value: Any) -> dict[str, bytes]:
        return stored(attribute("extra", value))

    return locals()


def places() -> dict[str, Any]:
    """What the records say."""

    def info(key: MetadataIndex, **values: Any) -> Change:
        return lambda content: content.storage_data[key].__dict__.update(values)

    def tensor(**values: Any) -> Change:
        return lambda content: content.state_dict_metadata["weight"].__dict__.update(values)

    def chunks(*boxes: tuple[tuple[int, ...], tuple[int, ...]]) -> Change:
        made = [ChunkStorageMetadata(torch.Size(at), torch.Size(size)) for at, size in boxes]
        return tensor(chunks=made)

    def renamed(old: str, new: Any) -> Change:
        def change(content: Metadata) -> None:
            content.state_dict_metadata[new] = content.state_dict_metadata.pop(old)
            for key in [key for key in content.storage_data if key.fqn == old]:
                content.storage_data[replace(key, fqn=new)] = content.storage_data.pop(key)

        return change

    sealed = in_containers()
    return locals()


def longer(info: _StorageInfo) -> None:
    info.length += 1


def policy() -> dict[str, Any]:
    """K7 and K8."""
    private = wrapped([entry(*hpke_wrap(HYBRID))])
    shared, public = (
        stored(texts=(f"{ENCRYPT}#{text}",), pack=in_containers((ENCRYPT,))) for text in (wrapped(), private)
    )
    unbound = stored(texts=(f"{ENCRYPT}#{wrapped()}",), pack=in_containers((ENCRYPT,), header=UNBOUND))
    return locals()
