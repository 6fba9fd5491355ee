"""Whole checkpoints, made piece by piece, in which anything can be changed."""

import copy
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from crc32c import crc32c
from cryptography.hazmat.primitives.keywrap import aes_key_wrap

from tests.forge import BOUND, FORMAT, KEYED, PUBLISHED, MetadataParts, Parts, encode, frame_of, identity_of
from tests.sealing import (
    DEK,
    ENCRYPT,
    OTHER_DEK,
    SIGNER,
    Signer,
    Vouching,
    container,
    encrypted,
    hkdf,
    index_digest,
    secret,
    signature,
    zstd,
)
from tests.vectors.recipes.data import payload

ZSTD, CHECKSUM = "streamxf.zstd/1", "streamxf.checksum/1"
FILE = "__0_0.distcp"
SAVE_ID = secret("save id").hex()[:32]
WRITERS = [secret(f"writer {number}")[:16] for number in range(2)]
PICKLE = b"what torch's readers read; these are not asked to"
NOTHING_STORED, OBJECT, TENSOR, FRAMED, VALUE = range(5)

Change = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class Piece:
    """A container: of a chunk of a tensor, or of an object; or a value, which is in one with those of its writer.

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
    chain: int = 0
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
        What root and parts say, as one JSON document; tests/forge.py has its form.
    vouching : Vouching or None
    signers : tuple of Signer
        Of one that is not encrypted.
    format_bytes : bytes
        For which they vouch.
    """

    data: dict[str, bytes]
    index: dict[str, Any]
    vouching: Vouching | None = None
    signers: tuple[Signer, ...] = ()
    format_bytes: bytes = FORMAT

    def metadata(self, root: bytes, parts: bytes) -> MetadataParts:
        """The metadata with another root, for which the keys vouch."""
        keys, digest = "", index_digest(root, self.format_bytes)
        if self.vouching is not None:
            keys = "\n".join([self.vouching.wrapped, self.vouching.vouchers(digest)])
        elif self.signers:
            keys = "\n" + "&".join(signature(digest, signer) for signer in self.signers)
        return MetadataParts(PICKLE, root, keys.encode(), parts, format_bytes=self.format_bytes)

    def files(
        self,
        change: Change | None = None,
        *,
        text: Callable[[str], str] | None = None,
        packed: Callable[[bytes], bytes] | None = None,
        around: Callable[[MetadataParts], MetadataParts] | None = None,
        data: dict[str, bytes] | None = None,
        rank: int | None = None,
        root: Change | None = None,
        parts: Callable[[bytes], bytes] | None = None,
        **coded: Any,
    ) -> dict[str, bytes]:
        """The files, after changes to the index, the root, its JSON, its frame, the parts as they are stored, or to
        what stands around these; `coded` goes to `encode`.
        """
        index = copy.deepcopy(self.index)
        if change is not None:
            change(index)
        content, stored = encode(index, **coded)
        if root is not None:
            root(content)
        written = json.dumps(content, separators=(",", ":"))
        frame = frame_of((text(written) if text is not None else written).encode("latin-1"))
        joined = b"".join(stored)
        made = self.metadata(packed(frame) if packed is not None else frame, parts(joined) if parts else joined)
        name = ".metadata" if rank is None else f"__{rank}.metadata"
        return {name: (around(made) if around is not None else made).pack(), **(self.data if data is None else data)}


def world(
    pieces: Sequence[Piece] = PIECES,
    chain: Sequence[str] = (ZSTD,),
    *,
    transforms: Sequence[str] = (),
    vouching: Vouching | None = None,
    signers: tuple[Signer, ...] = (),
    deks: Sequence[bytes] = (DEK, OTHER_DEK),
    gap: bytes = b"",
    others: Sequence[Sequence[str]] = (),
) -> World:
    """A checkpoint of `pieces`; those of writer 1 are in a file of their own, those of chain 1 passed the other."""
    keyed, chains = ENCRYPT in chain, [chain, *others]
    if keyed and vouching is None:
        vouching = Vouching()
    signed = bool(signers) or (vouching is not None and vouching.signer is not None)
    digests: list[str] = []
    count = 1 + max(piece.writer for piece in pieces) if pieces else 1
    names = [FILE, "__1_0.distcp"][:count]
    data = dict.fromkeys(names, b"")
    items: dict[str, Any] = {}
    for number, piece in enumerate(pieces):
        name, texts = names[piece.writer], [*(f"!{text}" for text in transforms), *chains[piece.chain]]
        shared = [each for each in pieces if (each.kind, each.writer, each.chain) == (VALUE, piece.writer, piece.chain)]
        if piece.kind == VALUE and chains[piece.chain]:
            streams = [text_of(each.name) + each.data for each in shared]
            end = sum(map(len, streams[: shared.index(piece) + 1]))
            span = [end - len(piece.data), end]
            if piece is not shared[0]:
                items[piece.name] = items[shared[0].name] | {"span": span}
                continue
            first = replace(piece, name="", data=b"".join(streams))
            stored, own = _stored(first, number, texts, deks[piece.writer])
        else:
            stored, own = _stored(piece, number, texts, deks[piece.writer])
            span = [0, len(stored)]
        data[name] += gap
        place: dict[str, Any] = {"file": piece.writer, "at": len(data[name]), "bytes": len(stored)}
        if chains[piece.chain]:
            place["number"] = number
        else:
            place["crc32c"] = crcs_of(stored)
        if signed:
            place["digest"] = len(digests)
            digests += [digest.hex() for digest in own]
        data[name] += stored
        about = {"chain": piece.chain} if piece.chain else {}
        if piece.kind == OBJECT:
            items[piece.name] = place | about
            continue
        if piece.kind == VALUE:
            items[piece.name] = place | {"span": span} | about
            continue
        place |= {"offset": list(piece.offset), "shape": list(piece.shard)}
        if piece.kind == FRAMED:
            place["framed"] = True
        usual = {"dtype": piece.dtype, "shape": list(piece.tensor), "chunks": [], **about}
        items.setdefault(piece.name, usual)["chunks"].append(place)
        items[piece.name]["chunks"].sort(key=lambda chunk: chunk["offset"])
    keys = [bytes(40), *(aes_key_wrap(hkdf(deks[0], b"streamxf/1 keys"), dek) for dek in deks[1:count])]
    index = {
        "save_id": SAVE_ID,
        "rank": None,
        "transforms": list(transforms),
        "chains": [*map(list, chains)],
        "files": [
            {"path": name, "size": len(data[name]), "writer": WRITERS[number].hex()}
            | ({"key": keys[number].hex()} if keyed else {})
            for number, name in enumerate(names)
        ],
        "items": items,
        "modules": [],
        "packages": {"streamxf": "1", "torch": "2"},
        "extra": {},
    } | ({"digests": digests} if signed else {})
    return World(data, index, vouching, signers)


def text_of(text: str) -> bytes:
    """A text of less than 256 bytes, as CBOR has it."""
    data = text.encode()
    return (bytes([0x60 + len(data)]) if len(data) < 24 else bytes([0x78, len(data)])) + data


def crcs_of(data: bytes) -> str:
    """The CRC of each MiB, in hex as an index has them."""
    return b"".join(crc32c(data[at : at + 2**20]).to_bytes(4, "little") for at in range(0, len(data), 2**20)).hex()


def _stored(piece: Piece, number: int, chain: Sequence[str], dek: bytes) -> tuple[bytes, list[bytes]]:
    """The bytes of a piece in its file, and their digests."""
    if not [text for text in chain if not text.startswith("!")]:
        return piece.data, [
            hashlib.sha256(piece.data[at : at + 2**20]).digest() for at in range(0, len(piece.data), 2**20)
        ]
    payload = piece.data
    for text in chain:
        payload = zstd(payload) if text.startswith("streamxf.zstd/") else payload
        payload = payload + crc32c(payload).to_bytes(4, "little") if text.startswith(CHECKSUM) else payload
    bound = (piece.name, piece.kind, piece.dtype, piece.offset, piece.shard, piece.tensor)
    flags = BOUND | PUBLISHED | (KEYED if ENCRYPT in chain else 0)
    texts = [text.partition("#")[0] for text in chain]
    identity = identity_of(*bound, writer=WRITERS[piece.writer], number=number)
    usual = {"flags": flags, "identity": identity, "salt": secret(str(bound))[:16]}
    made = container(texts, [payload], len(piece.data), **(usual | (piece.header or {})))
    if made.flags & KEYED:
        made = encrypted(made, dek)
    if piece.stored is not None:
        made = piece.stored(made)
    return made.container(), made.digests


BASE = world()
FULL = world(chain=(ZSTD, CHECKSUM, ENCRYPT))
SIGNED = world(chain=(ZSTD, ENCRYPT), vouching=Vouching(signer=SIGNER))
OPEN = world(signers=(SIGNER,))
RAW = world(chain=(), signers=(SIGNER,))
TWO = world([replace(WEIGHT[0]), replace(WEIGHT[1], writer=1), STEP], chain=(ENCRYPT,))


def put(*path: str | int, value: Any) -> Change:
    """A change that puts a value into the index, at the place that `path` leads to."""

    def change(index: dict[str, Any]) -> None:
        inner: Any = index
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = value

    return change
