"""Checkpoints that torch's own writers made, and what else such a pickle can say."""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import torch
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

from tests.forge import BOUND, KEYED, PUBLISHED, identity_of
from tests.sealing import ENCRYPT, HYBRID, container, encrypted, entry, hpke_wrap, wrapped, zstd
from tests.vectors.recipes.vector import Made, under
from tests.vectors.recipes.world import FILE, FRAMED, OBJECT, PIECES, ZSTD, Piece

Change = Callable[[Metadata], object]
FRAMES = tuple(piece if piece.kind == OBJECT else replace(piece, kind=FRAMED) for piece in PIECES)
TRANSFORM = "stream.zstd/1"
FIRST = MetadataIndex("weight", torch.Size((0, 0)), 0)
STEP, STRAY = MetadataIndex("step"), MetadataIndex("stray")


def vectors() -> Made:
    """All of them."""
    return {**_right(), **_pickles(), **_places(), **_policy()}


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


def _sealed(chain: tuple[str, ...] = (ZSTD,), **changes: Any) -> Callable[[Piece], bytes]:
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


def _attribute(name: str, value: Any) -> Change:
    return lambda content: setattr(content, name, value)


def _zstd(piece: Piece) -> bytes:
    return zstd(piece.data)


UNBOUND = {"flags": KEYED, "identity": b""}


def _right() -> Made:
    def first(data: bytes) -> bytes:
        return data.replace(b"ctorch.distributed.checkpoint.", b"ctorch.distributed._shard.checkpoint.")

    def ignored(content: Metadata) -> None:
        content.planner_data = {"weight": ("a", 1), "step": ["a"], "other": ("b",), 7: 7}
        content.storage_data[MetadataIndex("gone", torch.Size((0,)))] = _StorageInfo("gone", 0, 1)
        form = TensorProperties(torch.int7, memory_format=torch.channels_last)
        content.later = [PurePosixPath("/a"), OrderedDict(a=1.5), form]

    meta = StorageMeta("a", "b", "c")
    return {
        **{f"stock-{number}": stored(protocol=number) for number in (2, 3, 4, 5)},
        "stock-ignored": stored(ignored),
        "stock-storage-meta": stored(_attribute("storage_meta", meta)),
        "stock-1.13": stored(protocol=2, mend=first),
        "stock-transform": stored(texts=(TRANSFORM,), pack=_zstd),
        "stock-container": stored(texts=(f"{ZSTD}#level=3",), pack=_sealed()),
        "stock-unbound": stored(texts=(ZSTD,), pack=_sealed(header={"flags": 0, "identity": b""})),
    }


def _pickles() -> Made:
    """F1: the pickle itself."""

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
        return stored(_attribute("extra", value))

    mended = {
        "continued": lambda data: data + b".",
        "cut": lambda data: data[:-1],
        "persistent": lambda data: data[:-1] + b"0Nq\0" + b"Q.",
        "extension": lambda data: data[:-1] + b"\x82\x010.",
        "protocol-0": lambda data: b"\x80\0" + data[2:],
        "protocol-6": lambda data: b"\x80\6" + data[2:],
        "dict": lambda data: pickle.dumps({}, 4),
        "list": lambda data: data[:11] + b"]" + data[11:-1] + b"a.",
        "stateless": lambda data: data[: data.index(b"}")] + b".",
    }
    return {
        **under("F1-stock", {name: stored(mend=mend) for name, mend in mended.items()}),
        "F1-stock-function": extra(os.getpid),
        "F1-stock-call": extra(Calls(os.system, "true")),
        "F1-stock-class-with-argument": extra(Calls(BytesStorageMetadata, 1)),
        "F1-stock-dtype-called": extra(Calls(torch.Size, 1)),
        "F1-stock-module": stored(mend=replaced(b"filesystem", b"filesystex")),
    }


def _places() -> Made:
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

    cases = {
        "F1-stock-no-items": _attribute("state_dict_metadata", []),
        "F1-stock-no-places": _attribute("storage_data", None),
        "F1-stock-place-missing": lambda content: content.storage_data.pop(FIRST),
        "F1-stock-name-empty": renamed("step", ""),
        "F1-stock-name-surrogate": renamed("step", "\ud800"),
        "F1-stock-name-number": renamed("step", 7),
        "F1-stock-stray": lambda c: c.storage_data.update({STEP: 5}),
        "F1-stock-offset-negative": info(STEP, offset=-1),
        "F1-stock-offset-true": info(STEP, offset=True),
        "F1-stock-offset-2-63": info(STEP, offset=2**63),
        "F1-stock-length-text": info(STEP, length="7"),
        "F1-stock-descriptors-text": info(STEP, transform_descriptors=TRANSFORM),
        "F1-stock-descriptors-nine": info(STEP, transform_descriptors=[TRANSFORM] * 9),
        "F1-stock-properties": tensor(properties=None),
        "F1-stock-size": tensor(size=(4, 3)),
        "F1-stock-chunks": tensor(chunks=()),
        "M4-stock-path": info(STEP, relative_path="../" + FILE),
        "M5-stock-gap": chunks(((0, 0), (2, 3))),
        "M5-stock-beyond": chunks(((0, 0), (2, 3)), ((2, 0), (3, 3))),
        "M5-stock-overlap": chunks(((0, 0), (3, 3)), ((2, 0), (2, 3))),
        "F2-stock-beyond": lambda c: _longer(c.storage_data[STEP]),
        "F2-stock-codec": info(STEP, transform_descriptors=[ZSTD]),
    }
    sealed = _sealed()
    published = {"flags": BOUND | PUBLISHED}
    other = {"name": "other", "dtype": "int32", "offset": (1, 0), "shard": (1, 3), "tensor": (5, 3)}
    return {
        **{name: stored(change) for name, change in cases.items()},
        "F2-stock-no-descriptors": stored(pack=sealed),
        "F2-stock-chain": stored(texts=("streamxf.lz4/1",), pack=sealed),
        "F2-stock-chain-longer": stored(texts=(ZSTD, ZSTD), pack=sealed),
        "F3-stock-published": stored(texts=(ZSTD,), pack=_sealed(header=published)),
        **{
            f"F3-stock-{member}": stored(texts=(ZSTD,), pack=_sealed(identity={member: value}))
            for member, value in other.items()
        },
    }


def _longer(info: _StorageInfo) -> None:
    info.length += 1


def _policy() -> Made:
    """K7 and K8."""
    private = wrapped([entry(*hpke_wrap(HYBRID))])
    shared, public = (stored(texts=(f"{ENCRYPT}#{text}",), pack=_sealed((ENCRYPT,))) for text in (wrapped(), private))
    unbound = stored(texts=(f"{ENCRYPT}#{wrapped()}",), pack=_sealed((ENCRYPT,), header=UNBOUND))
    return {
        "stock-bound": shared,
        "stock-encrypted": unbound,
        "stock-unsigned": public,
        "K7-stock-index": shared,
        "K7-stock-bound": unbound,
        "K7-stock-bare": stored(),
        "K3-stock-none": shared,
        "K8-stock-private": public,
        "K8-stock-signers": shared,
    }
