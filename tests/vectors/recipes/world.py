"""Whole checkpoints, made piece by piece, in which anything can be changed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from crc32c import crc32c

from tests.forge import BOUND, HASHED, KEYED, PUBLISHED, MetadataParts, Parts, frame_of, identity_of, pack_index
from tests.sealing import (
    DEK,
    ENCRYPT,
    OTHER_DEK,
    SIGNER,
    Vouching,
    aes_wrap,
    container,
    dek_id,
    encrypted,
    index_digest,
    secret,
    wrapped,
    zstd,
)
from tests.vectors.recipes.data import payload
from tests.vectors.recipes.vector import digest_of

ZSTD, CHECKSUM = "streamxf.zstd/1", "streamxf.checksum/1"
FILE = "__0_0.distcp"
SAVE_ID = secret("save id").hex()[:32]
WRITERS = [secret(f"writer {number}")[:16] for number in range(2)]
PICKLE = b"what torch's readers read; these are not asked to"
NOTHING_STORED, OBJECT, TENSOR, FRAMED = range(4)

Change = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class Piece:
    """A container: of a chunk of a tensor, or of an object.

    `header` and `stored` are what its container has, where that is not what the index says.
    """

    name: str
    kind: int
    data: bytes
    dtype: str = ""
    offset: tuple[int, ...] = ()
    shard: tuple[int, ...] = ()
    tensor: tuple[int, ...] = ()
    writer: int = 0
    header: dict[str, Any] | None = None
    stored: Callable[[Parts], Parts] | None = None


def tensor(name: str, dtype: str, shape: Sequence[int], data: bytes, **more: Any) -> Piece:
    """A tensor of one chunk."""
    whole = tuple(shape)
    return Piece(name, TENSOR, data, dtype, (0,) * len(whole), whole, whole, **more)


WEIGHT = [
    Piece("weight", TENSOR, payload(24), "float32", (0, 0), (2, 3), (4, 3)),
    Piece("weight", TENSOR, payload(48)[24:], "float32", (2, 0), (2, 3), (4, 3)),
]
STEP = Piece("step", OBJECT, b"what torch.save writes for an object")
PIECES = (*WEIGHT, STEP)


@dataclass(frozen=True)
class World:
    """A checkpoint that is right.

    Attributes
    ----------
    data : dict of str to bytes
        The data files.
    index : dict
    vouching : Vouching or None
    lines : tuple of str
        Wrapped data keys of other writers.
    """

    data: dict[str, bytes]
    index: dict[str, Any]
    vouching: Vouching | None = None
    lines: tuple[str, ...] = ()

    def metadata(self, index: dict[str, Any] | bytes) -> MetadataParts:
        """The metadata with another index, for which the keys vouch."""
        packed = index if isinstance(index, bytes) else pack_index(index)
        keys = ""
        if self.vouching is not None:
            keys = "\n".join([self.vouching.wrapped, self.vouching.vouchers(index_digest(packed)), *self.lines])
        return MetadataParts(PICKLE, packed, keys.encode())

    def files(
        self,
        change: Change | None = None,
        *,
        text: Callable[[str], str] | None = None,
        packed: Callable[[bytes], bytes] | None = None,
        around: Callable[[MetadataParts], MetadataParts] | None = None,
        data: dict[str, bytes] | None = None,
        rank: int | None = None,
    ) -> dict[str, bytes]:
        """The files, after changes to the index, its JSON, its frame, or to what stands around it."""
        index = copy.deepcopy(self.index)
        if change is not None:
            change(index)
        written = json.dumps(index, separators=(",", ":"))
        frame = frame_of((text(written) if text is not None else written).encode("latin-1"))
        made = self.metadata(packed(frame) if packed is not None else frame)
        name = ".metadata" if rank is None else f"__{rank}.metadata"
        return {name: (around(made) if around is not None else made).pack(), **(self.data if data is None else data)}


def world(
    pieces: Sequence[Piece] = PIECES,
    chain: Sequence[str] = (ZSTD,),
    *,
    transforms: Sequence[str] = (),
    vouching: Vouching | None = None,
    deks: Sequence[bytes] = (DEK, OTHER_DEK),
    gap: bytes = b"",
) -> World:
    """A checkpoint of `pieces`; those of writer 1 are in a file of their own."""
    keyed = ENCRYPT in chain
    if keyed and vouching is None:
        vouching = Vouching()
    signed = vouching is not None and vouching.signer is not None
    count = 1 + max(piece.writer for piece in pieces) if pieces else 1
    names = [FILE, "__1_0.distcp"][:count]
    data = dict.fromkeys(names, b"")
    items: dict[str, Any] = {}
    for number, piece in enumerate(pieces):
        name, texts = names[piece.writer], [*(f"!{text}" for text in transforms), *chain]
        stored, digest = _stored(piece, number, texts, signed, deks[piece.writer])
        data[name] += gap
        place: dict[str, Any] = {"file": piece.writer, "at": len(data[name]), "bytes": len(stored)}
        if chain:
            place["number"] = number
        if signed:
            place["sha256"] = digest.hex()
        data[name] += stored
        if piece.kind == OBJECT:
            items[piece.name] = place
            continue
        place |= {"offset": list(piece.offset), "shape": list(piece.shard)}
        if piece.kind == FRAMED:
            place["framed"] = True
        usual = {"dtype": piece.dtype, "shape": list(piece.tensor), "chunks": []}
        items.setdefault(piece.name, usual)["chunks"].append(place)
    ids = [dek_id(dek).hex() if keyed else None for dek in deks[:count]]
    index = {
        "save_id": SAVE_ID,
        "rank": None,
        "transforms": list(transforms),
        "chain": list(chain),
        "dek": ids[0],
        "writers": [{"id": id_.hex(), "dek": dek} for id_, dek in zip(WRITERS[:count], ids, strict=True)],
        "files": [
            {"path": name, "size": len(data[name]), "writer": number}
            | ({} if chain else {"crc32c": f"{crc32c(data[name]):08x}"})
            for number, name in enumerate(names)
        ],
        "items": items,
        "modules": [],
        "packages": {"streamxf": "1", "torch": "2"},
        "extra": {},
    }
    others = tuple(wrapped([aes_wrap(dek=dek)], dek) for dek in deks[1:count]) if keyed else ()
    return World(data, index, vouching, others)


def _stored(piece: Piece, number: int, chain: Sequence[str], signed: bool, dek: bytes) -> tuple[bytes, bytes]:
    """The bytes of a piece in its file, and T."""
    if not [text for text in chain if not text.startswith("!")]:
        return piece.data, b""
    payload = piece.data
    for text in chain:
        payload = zstd(payload) if text.startswith("streamxf.zstd/") else payload
        payload = payload + crc32c(payload).to_bytes(4, "little") if text.startswith(CHECKSUM) else payload
    bound = (piece.name, piece.kind, piece.dtype, piece.offset, piece.shard, piece.tensor)
    flags = BOUND | PUBLISHED | (KEYED if ENCRYPT in chain else 0) | (HASHED if signed else 0)
    texts = [text.partition("#")[0] for text in chain]
    identity = identity_of(*bound, writer=WRITERS[piece.writer], number=number)
    usual = {"flags": flags, "identity": identity, "salt": secret(str(bound))[:16]}
    made = container(texts, [payload], len(piece.data), **(usual | (piece.header or {})))
    if made.flags & KEYED:
        made = encrypted(made, dek)
    if piece.stored is not None:
        made = piece.stored(made)
    return made.container(), made.table_digest


BASE = world()
FULL = world(chain=(ZSTD, CHECKSUM, ENCRYPT))
SIGNED = world(chain=(ZSTD, ENCRYPT), vouching=Vouching(signer=SIGNER))
TWO = world([replace(WEIGHT[0]), replace(WEIGHT[1], writer=1), STEP], chain=(ENCRYPT,))


def content_of(pieces: Sequence[Piece]) -> dict[str, Any]:
    """What comes of items: an object's stream, or a tensor's chunks."""
    found: dict[str, Any] = {}
    for piece in pieces:
        if piece.kind == OBJECT:
            found[piece.name] = digest_of(piece.data)
            continue
        usual: dict[str, Any] = {"dtype": piece.dtype, "shape": list(piece.tensor), "chunks": []}
        chunks = found.setdefault(piece.name, usual)["chunks"]
        if piece.kind != NOTHING_STORED:
            chunk = {"offset": list(piece.offset), "shape": list(piece.shard), **digest_of(piece.data)}
            chunks.append(chunk | ({"framed": True} if piece.kind == FRAMED else {}))
    return found


def put(*path: str | int, value: Any) -> Change:
    """A change that puts a value into the index, at the place that `path` leads to."""

    def change(index: dict[str, Any]) -> None:
        inner: Any = index
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = value

    return change
