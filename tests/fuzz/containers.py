"""Mutations of a plain file, or of a container alone, by someone who has the key: all that is computed is right again.

A file is taken apart, its encryption is taken off, a few things are changed, and it is packed again with new CRCs,
seal, tags and vouchers. Blocks are changed at any depth of their chain: as they are stored, or within their
compression.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass

from streamxf.buffers import Scratch
from streamxf.chain import Chain, StreamCoder
from streamxf.codec import Codec, CodecRegistry, StreamInfo
from streamxf.descriptor import ENCRYPT, Descriptor
from streamxf.errors import StreamxfError
from streamxf.keys import KeyRing
from streamxf.keys.envelope import DataKey
from tests.forge import KEYED, Parts, prefix_of, seal_of, take_apart
from tests.fuzz.target import Havoc
from tests.samples import KEY
from tests.sealing import SIGNER, Vouching, plain_digest

CHAINS = (
    *("", "streamxf.zstd/1", "streamxf.lz4/1", "streamxf.floatzip/1", "streamxf.checksum/1"),
    *("streamxf.checksum/1?algorithm=sha256", "streamxf.encrypt/1", "streamxf.zstd/2", "acme.delta/1"),
)
EXTREMES = (0, 1, 2, 7, 8, 15, 16, 17, 24, 31, 32, 255, 256, 65535, 65536, 65537, 1 << 20, 1 << 31, 1 << 32, 1 << 48)
UNPARSED = (struct.error, IndexError, ValueError, OverflowError, StreamxfError)

_REGISTRY = CodecRegistry()

Blocks = list[tuple[bool, bytes]]


@dataclass(frozen=True)
class _Coding:
    """The codecs of a file: those within the encryption, and the encryption with what follows it."""

    inner: tuple[Codec, ...]
    outer: tuple[Codec, ...]

    @classmethod
    def of(cls, parts: Parts) -> _Coding:
        texts = parts.chain.decode("ascii").split("\n") if parts.chain else []
        key = data_key_of(parts)
        codecs = tuple(_REGISTRY.build(one, key) for one in map(Descriptor.parse, texts))
        at = next((at for at, codec in enumerate(codecs) if codec.name == ENCRYPT), len(codecs))
        return cls(codecs[:at], codecs[at:])


def mutate(data: bytes, choose: random.Random, havoc: Havoc) -> bytes:
    """Change a plain file."""
    if choose.random() < 0.05:
        return havoc(data)
    try:
        return _vouched(change(take_apart(data), choose, havoc)).pack()
    except UNPARSED:
        return havoc(data)


def change(parts: Parts, choose: random.Random, havoc: Havoc) -> Parts:
    """Change a container; its prefix has the wrapped data key. Raises one of `UNPARSED` if it is not intact."""
    if not parts.blocks or choose.random() < 0.05:
        return _change_fields(parts, choose, havoc)
    return _change(parts, choose, havoc)


def data_key_of(parts: Parts) -> DataKey | None:
    """The data key that is wrapped in the prefix."""
    text = parts.prefix[16:-4].decode("ascii")
    return KeyRing.of(KEY).unwrap(text) if text else None


def _vouched(parts: Parts) -> Parts:
    """With vouchers that are right, and digests exactly if there is a signature."""
    try:
        key = data_key_of(parts) if parts.flags & KEYED else None
    except UNPARSED:
        return parts
    if key is None:
        return parts
    signed = b"&sig=" in parts.tail
    signer = SIGNER if signed else None
    vouching = Vouching(parts.prefix[16:-4].decode("ascii"), (KEY.reveal(),), signer, key.secret)
    vouchers = vouching.vouchers(plain_digest(parts, signed=signed))
    return parts.change(tail=seal_of(vouchers, digests=parts.digests * signed))


def keyless(data: bytes, choose: random.Random, havoc: Havoc) -> bytes:
    """Change a plain file without its key: CRCs are right again, seal and tags stay."""
    try:
        parts = take_apart(data)
        for _ in range(choose.choice((1, 1, 2, 3))):
            if choose.random() < 0.6:
                parts = parts.change(blocks=tuple(_change_blocks(list(parts.blocks), choose, havoc)))
            else:
                parts = _change_fields(parts, choose, havoc)
        return parts.pack()
    except UNPARSED:
        return havoc(data)


def _change(parts: Parts, choose: random.Random, havoc: Havoc) -> Parts:
    coding = _Coding.of(parts)
    blocks = _each(_coder(parts, coding.outer).decode, parts.blocks)
    for _ in range(choose.choice((1, 1, 1, 2, 3))):
        kind = choose.random()
        if kind < 0.25:
            parts = _change_fields(parts, choose, havoc)
        elif kind < 0.45:
            blocks = _change_blocks(blocks, choose, havoc)
        else:
            blocks = _change_within(parts, coding, blocks, choose, havoc)
    if choose.random() < 0.8:
        parts = _with_size(parts, coding, blocks)
    outer = _coder(parts, coding.outer)
    return parts.change(blocks=tuple(_each(outer.encode, blocks)), seal=outer.seal or parts.seal)


def _change_within(parts: Parts, coding: _Coding, blocks: Blocks, choose: random.Random, havoc: Havoc) -> Blocks:
    """Change what a block holds at some depth of its chain."""
    at = choose.randrange(len(blocks))
    last, stored = blocks[at]
    depth = choose.randint(0, len(coding.inner))
    coder = _coder(parts, coding.inner[len(coding.inner) - depth :])
    found = bytes(coder.decode(memoryview(stored), at, last, Scratch()))
    changed = bytes(coder.encode(memoryview(havoc(found)), at, last, Scratch()))
    return [*blocks[:at], (last, changed), *blocks[at + 1 :]]


def _change_blocks(blocks: Blocks, choose: random.Random, havoc: Havoc) -> Blocks:
    """Change the order of blocks, which one is last, or one as it is stored."""
    blocks = list(blocks)
    at = choose.randrange(len(blocks))
    last, stored = blocks[at]
    match choose.randrange(5):
        case 0 if len(blocks) > 1:
            del blocks[at]
        case 1:
            blocks.insert(choose.randint(0, len(blocks)), blocks[at])
        case 2:
            choose.shuffle(blocks)
        case 3:
            blocks[at] = (not last, stored)
        case _:
            blocks[at] = (last, havoc(stored))
    return blocks


def _change_fields(parts: Parts, choose: random.Random, havoc: Havoc) -> Parts:
    """Change one field of header, table, footer, prefix or seal."""
    match choose.randrange(14):
        case 0:
            return parts.change(version=choose.choice((0, 1, 2, 255)))
        case 1:
            return parts.change(block_log2=choose.choice((0, 15, 16, 16, 17, 20, 24, 25, 255)))
        case 2:
            return parts.change(flags=parts.flags ^ 1 << choose.randrange(8))
        case 3:
            return parts.change(suite=choose.randrange(256), informative=choose.randrange(256))
        case 4:
            return parts.change(chain=havoc(parts.chain)[:1100])
        case 5:
            texts = [text for text in parts.chain.decode("ascii").split("\n") if text]
            texts.insert(choose.randint(0, len(texts)), choose.choice(CHAINS))
            if choose.random() < 0.5:
                del texts[choose.randrange(len(texts))]
            return parts.change(chain="\n".join(filter(None, texts)).encode())
        case 6:
            identity = havoc(parts.identity)[:5000]
            return parts.change(identity=identity, flags=parts.flags & ~2 | 2 * bool(identity))
        case 7:
            return parts.change(raw_size=_near(parts.raw_size, choose))
        case 8:
            lengths = [len(payload) for _, payload in parts.blocks]
            at = choose.randrange(len(lengths) + 1)
            lengths[at : at + choose.randrange(2)] = [_near(at and lengths[at - 1], choose) % (1 << 32)]
            return parts.change(lengths=tuple(lengths))
        case 9:
            return parts.change(informative=choose.randrange(256))
        case 10:
            format_bytes = havoc(parts.prefix[8:12])[:4].ljust(4, b"\1")
            return parts.change(prefix=prefix_of(parts.prefix[16:-4], format_bytes))
        case 11:
            return parts.change(prefix=prefix_of(havoc(parts.prefix[16:-4])[:40000], parts.prefix[8:12]))
        case 12:
            return parts.change(tail=seal_of(havoc(parts.tail[:-20])[:70000]))
        case _:
            return parts.change(tail=parts.tail[32 * choose.randrange(3) :])


def _near(value: int, choose: random.Random) -> int:
    changed = choose.choice((value + choose.randint(-9, 9), value ^ 1 << choose.randrange(64), choose.choice(EXTREMES)))
    return changed % (1 << 64)


def _with_size(parts: Parts, coding: _Coding, blocks: Blocks) -> Parts:
    """The footer's size as it would be if the blocks are right."""
    try:
        return parts.change(raw_size=sum(len(data) for _, data in _each(_coder(parts, coding.inner).decode, blocks)))
    except StreamxfError:
        return parts


def _coder(parts: Parts, codecs: tuple[Codec, ...]) -> StreamCoder:
    # a block size beyond the real one: what is too long is for the reader to find
    return StreamCoder(Chain(codecs), StreamInfo(4 << max(16, min(parts.block_log2, 18)), parts.salt, parts.digest))


def _each(step: Callable[[memoryview, int, bool, Scratch], memoryview], blocks: Blocks | tuple[()]) -> Blocks:
    return [(last, bytes(step(memoryview(data), at, last, Scratch()))) for at, (last, data) in enumerate(blocks)]
