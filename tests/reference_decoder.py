"""A second decoder for the format of streamxf, written from docs/format.md and from nothing else.

It is slow, holds everything in memory and shares no code with the package. It is there to show that the page is
enough, and to be read next to the page by somebody who writes a decoder in another language. In order: descriptors,
keys, header, codecs, index and footer with the container as a whole, plain file, metadata.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import hashlib
import hmac
import io
import itertools
import json
import pickletools
import re
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import lz4.block
import zstandard
from crc32c import crc32c
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap

CONTAINER_MAGIC = bytes.fromhex("d35358460d0a1a0a")
FOOTER_MAGIC = bytes.fromhex("0a1a0d0a465853d3")
PLAIN_MAGIC = bytes.fromhex("d353584b0d0a1a0a")
METADATA_MAGIC = bytes.fromhex("0a1a0d0a4d5853d3")
ZSTD_MAGIC = bytes.fromhex("28b52ffd")

KEYED, BOUND, PUBLISHED = 1, 2, 4
BYTES_OBJECT, TENSOR_SHARD = 1, 2

HEADER_FIXED = struct.Struct("<8sBBBBHH32s")
BLOCK_HEAD = struct.Struct("<II")
FOOTER = struct.Struct("<QQII8s")
METADATA_TAIL = struct.Struct("<I32s8s")
U32 = struct.Struct("<I")

MAX_CHAIN_LEN = 1024
MAX_CHAIN_ITEMS = 8
MAX_IDENT_LEN = 4096
MAX_NDIM = 64
MAX_RAW_SIZE = 1 << 48
MAX_NAME = 64
MAX_DESCRIPTOR = 4096
MAX_FRAGMENT = 32768
MAX_WRAPPED_KEYS = 16
MAX_PREFIX_LEN = 65536
MAX_MANIFEST_LEN = 64 << 20
MAX_WINDOW = 1 << 27
MAX_PERIOD = 65536

ENCRYPT = "streamxf.encrypt"
CHECKSUM = "streamxf.checksum"
FLOATZIP = "streamxf.floatzip"
LEVELS = {"streamxf.zstd": (-7, 22), "streamxf.lz4": (-64, 12)}
CODECS = {*LEVELS, FLOATZIP, CHECKSUM, ENCRYPT}


class FormatError(Exception):
    """The bytes break a rule of the page; `layer` names the part of the format to which the rule belongs."""

    def __init__(self, layer: str, message: str) -> None:
        super().__init__(f"{layer}: {message}")
        self.layer = layer


def _refuse(layer: str, message: str) -> NoReturn:
    raise FormatError(layer, message)


def _require(condition: bool, layer: str, message: str) -> None:
    if not condition:
        raise FormatError(layer, message)


@dataclasses.dataclass(frozen=True)
class Identity:
    """Which item of a checkpoint a container holds."""

    writer_id: bytes
    kind: int
    offsets: tuple[int, ...]
    name: str


@dataclasses.dataclass
class Container:
    """What a container holds. `payload` is the stream with all block codecs undone, but no foreign stream transform."""

    payload: bytes
    chain: list[str]
    flags: int
    block_log2: int
    identity: Identity | None


# --- Descriptors ----------------------------------------------------------------------------------------------------

_PART = r"[a-z][a-z0-9_-]*"
_HEAD = re.compile(rf"({_PART}(?:\.{_PART})+)/([1-9][0-9]{{0,4}})")
_PAIR = re.compile(r"([a-z][a-z0-9_]*)=([A-Za-z0-9._~:-]*)")
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,3}")

Pairs = list[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Descriptor:
    """One transform of a chain. `text` has no fragment in it; `fragment` is None where there is no `#`."""

    text: str
    name: str
    params: Pairs
    fragment: str | None

    @property
    def foreign(self) -> bool:
        """True for a stream transform from elsewhere, which is no block codec."""
        return self.name not in CODECS


def _parse_pairs(text: str, layer: str, repeatable: str | None = None) -> Pairs:
    """Split `a=1&b=2`. No key may come twice, except `repeatable`."""
    pairs: Pairs = []
    seen: set[str] = set()
    for item in text.split("&"):
        match = _PAIR.fullmatch(item)
        if match is None:
            _refuse(layer, f"{item!r} is not key=value")
        key, value = match.groups()
        _require(key not in seen or key == repeatable, layer, f"{key!r} comes twice")
        seen.add(key)
        pairs.append((key, value))
    return pairs


def _parse_descriptor(text: str, layer: str) -> Descriptor:
    """Take one descriptor apart and check all that can be checked without a key."""
    before, hash_sign, fragment = text.partition("#")
    _require(len(before) <= MAX_DESCRIPTOR, layer, "a descriptor is too long")
    _require(len(fragment) <= MAX_FRAGMENT, layer, "a fragment is too long")
    head, question_mark, query = before.partition("?")
    match = _HEAD.fullmatch(head)
    if match is None:
        _refuse(layer, f"{head!r} is not name/version")
    name, version = match.groups()
    _require(len(name) <= MAX_NAME, layer, f"the name {name!r} is too long")
    _require(int(version) <= 65535, layer, f"{head!r}: the version is above 65535")
    params = _parse_pairs(query, layer) if question_mark else []
    _require(params == sorted(params), layer, f"the parameters of {before!r} are not sorted")
    found = Descriptor(before, name, params, fragment if hash_sign else None)
    _check_codec(found, version, layer)
    if found.fragment is not None:
        _check_fragment(found, found.fragment, layer)
    return found


def _check_codec(item: Descriptor, version: str, layer: str) -> None:
    """Check version and parameters of a codec. A name under `streamxf.` that is no codec is unknown, not foreign."""
    if item.foreign:
        _require(not item.name.startswith("streamxf."), layer, f"unknown codec {item.name!r}")
        return
    _require(version == "1", layer, f"{item.name!r}: unknown version {version}")
    allowed: list[Pairs] = [[]]
    if item.name == CHECKSUM:
        allowed.append([("algorithm", "sha256")])  # the default, crc32c, is never spelt out
    _require(item.params in allowed, layer, f"{item.text!r}: unknown parameter, or one that is the default")


def _check_fragment(item: Descriptor, fragment: str, layer: str) -> None:
    """Check what stands after `#`."""
    if item.name == ENCRYPT:
        _parse_key_fragment(fragment)
        return
    pairs = _parse_pairs(fragment, layer)
    if item.foreign:
        return
    low, high = LEVELS.get(item.name, (0, -1))
    for key, value in pairs:
        _require(key == "level" and item.name in LEVELS, layer, f"{item.name!r}: unknown {key!r} after '#'")
        _require(_INTEGER.fullmatch(value) is not None, layer, f"level {value!r} is no integer")
        _require(low <= int(value) <= high, layer, f"level {value} is out of range")


def _parse_chain(raw: bytes) -> list[Descriptor]:
    """Parse the header's chain, which stands in the order of saving, and check the rules between its items."""
    _require(raw.isascii(), "chain", "the chain is not ASCII")
    _require(b"#" not in raw, "chain", "a fragment stands in a header")
    if not raw:
        return []
    texts = raw.decode("ascii").split("\n")
    _require(len(texts) <= MAX_CHAIN_ITEMS, "chain", f"{len(texts)} descriptors are too many")
    chain = [_parse_descriptor(text, "chain") for text in texts]
    _check_order(chain)
    return chain


def _check_order(chain: Sequence[Descriptor]) -> None:
    """Foreign transforms come first; there is one `streamxf.encrypt` at most, and only checksums come after it."""
    codec_seen = encrypt_seen = False
    for item in chain:
        _require(not (item.foreign and codec_seen), "chain", f"{item.text!r} stands after a codec")
        _require(not encrypt_seen or item.name == CHECKSUM, "chain", f"{item.text!r} stands after {ENCRYPT}")
        codec_seen = codec_seen or not item.foreign
        encrypt_seen = encrypt_seen or item.name == ENCRYPT


def _match_descriptors(descriptors: Sequence[str], chain: Sequence[Descriptor]) -> str | None:
    """Compare the metadata's list (order of reading, with fragments) with the chain; give the keys' fragment."""
    listed = [_parse_descriptor(text, "chain") for text in descriptors]
    same = [item.text for item in reversed(listed)] == [item.text for item in chain]
    _require(same, "chain", "the metadata lists another chain than the header")
    return next((item.fragment for item in listed if item.name == ENCRYPT), None)


# --- Keys -----------------------------------------------------------------------------------------------------------

_WRAPPED = re.compile(r"([a-z0-9-]+):([0-9a-f]{16}):([A-Za-z0-9_-]+)")


@dataclasses.dataclass(frozen=True)
class KeyFragment:
    """The fragment of `streamxf.encrypt`: which data key it is, and the `aeskw` wrappings as (key_id, wrapped key)."""

    dek_id: bytes
    wrapped: list[tuple[bytes, bytes]]


def _hkdf(secret: bytes, info: bytes, length: int, salt: bytes = b"") -> bytes:
    return HKDF(algorithm=SHA256(), length=length, salt=salt, info=info).derive(secret)


def _b64url(text: str) -> bytes:
    """Decode base64url without padding; only the one canonical spelling of the bytes is taken."""
    if not re.fullmatch(r"[A-Za-z0-9_-]*", text) or len(text) % 4 == 1:
        _refuse("key", "not base64url without padding")
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    canonical = base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")
    _require(canonical == text, "key", "base64url with stray bits at its end")
    return raw


def _parse_key_fragment(text: str) -> KeyFragment:
    """Parse `dek=...&w=...&w=...`. Wrappings of a kind other than `aeskw` are skipped if their form is right."""
    _require(len(text) <= MAX_FRAGMENT, "key", "the fragment is too long")
    (first, dek), *rest = _parse_pairs(text, "key", repeatable="w")
    _require(first == "dek", "key", "the fragment does not begin with dek=")
    dek_id = _b64url(dek)
    _require(len(dek_id) == 32, "key", "dek_id is not 32 bytes")
    _require(all(key == "w" for key, _ in rest), "key", "unknown key in the fragment")
    _require(1 <= len(rest) <= MAX_WRAPPED_KEYS, "key", f"{len(rest)} wrapped keys instead of 1 to {MAX_WRAPPED_KEYS}")
    parsed = [_parse_wrapped(value) for _, value in rest]
    return KeyFragment(dek_id, [item for item in parsed if item is not None])


def _parse_wrapped(value: str) -> tuple[bytes, bytes] | None:
    """Parse `kind:key_id:b64url`; None for a kind that this decoder does not know."""
    match = _WRAPPED.fullmatch(value)
    if match is None:
        _refuse("key", f"{value!r} is not kind:key_id:b64url")
    kind, key_id, encoded = match.groups()
    blob = _b64url(encoded)
    if kind != "aeskw":
        return None
    _require(len(blob) == 40, "key", "an aeskw wrapping is not 40 bytes")
    return bytes.fromhex(key_id), blob


def _unwrap_dek(fragment: str, key: bytes | None) -> bytes:
    """Find the data key: the wrapping for this user's key which yields a DEK of the dek_id that was announced."""
    parsed = _parse_key_fragment(fragment)
    if key is None:
        _refuse("key", "a key is needed")
    _require(len(key) == 32, "key", "the key is not 32 bytes")
    key_id = _hkdf(key, b"streamxf/1 key id", 8)
    wrap = _hkdf(key, b"streamxf/1 wrap", 32)
    for wrapped_id, blob in parsed.wrapped:
        if wrapped_id != key_id:
            continue
        try:
            dek = aes_key_unwrap(wrap, blob)
        except InvalidUnwrap:
            continue
        if hmac.compare_digest(_hkdf(dek, b"streamxf/1 dek id", 32), parsed.dek_id):
            return dek
    _refuse("key", "no wrapped key opens with this key")


def _stream_key(dek: bytes, header: Header) -> bytes:
    """Derive the stream's AES key, which is good once the seal has shown the header to be untouched."""
    derived = _hkdf(dek, b"streamxf/1 stream" + header.digest, 64, salt=header.salt)
    _require(hmac.compare_digest(derived[32:], header.seal), "seal", "the header or the key is not the one sealed")
    return derived[:32]


# --- Header ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Header:
    """A container's header. `digest` is the page's H; `size` is the offset of block 0."""

    block_log2: int
    flags: int
    salt: bytes
    chain: list[Descriptor]
    identity: Identity | None
    seal: bytes
    digest: bytes
    size: int

    @property
    def keyed(self) -> bool:
        return bool(self.flags & KEYED)

    @property
    def block_size(self) -> int:
        """The page's b."""
        return 1 << self.block_log2

    @property
    def limit(self) -> int:
        """The page's E(b): the most that any codec may give or take for one block."""
        return self.block_size + self.block_size // 16 + 1024


def _parse_header(data: bytes) -> Header:
    """Read and check the header: limits, then the CRC, then what the fields say."""
    _require(len(data) >= HEADER_FIXED.size, "header", "too short for a header")
    magic, version, block_log2, flags, zero, chain_len, ident_len, salt = HEADER_FIXED.unpack_from(data)
    _require(magic == CONTAINER_MAGIC, "header", "wrong magic")
    _require(version == 1, "header", f"unknown version {version}")
    _require(16 <= block_log2 <= 24, "header", f"block_log2 {block_log2} is out of range")
    _require(zero == 0, "header", "the reserved byte is not 0")
    _check_flags(flags, chain_len, ident_len)

    chain_end = HEADER_FIXED.size + chain_len
    hashed = chain_end + ident_len
    checked = hashed + (32 if flags & KEYED else 0)
    _require(len(data) >= checked + 4, "header", "the header is cut off")
    _require(U32.unpack_from(data, checked)[0] == crc32c(data[:checked]), "header", "wrong CRC")

    chain = _parse_chain(data[HEADER_FIXED.size : chain_end])
    keyed_chain = any(item.name == ENCRYPT for item in chain)
    _require(keyed_chain == bool(flags & KEYED), "header", "the flag 'keyed' does not agree with the chain")
    identity = _parse_identity(data[chain_end:hashed]) if flags & BOUND else None
    digest = hashlib.sha256(data[:hashed]).digest()
    return Header(block_log2, flags, salt, chain, identity, data[hashed:checked], digest, checked + 4)


def _check_flags(flags: int, chain_len: int, ident_len: int) -> None:
    """Check the flags, and the two lengths, one of which depends on a flag."""
    _require(flags & ~(KEYED | BOUND | PUBLISHED) == 0, "header", f"unknown flags {flags:#04x}")
    _require(bool(flags & BOUND) or not flags & PUBLISHED, "header", "published, but not bound")
    _require(chain_len <= MAX_CHAIN_LEN, "header", f"chain_len {chain_len} is out of range")
    _require(ident_len <= MAX_IDENT_LEN, "header", f"ident_len {ident_len} is out of range")
    _require((ident_len > 0) == bool(flags & BOUND), "header", "ident_len does not agree with the flag 'bound'")


def _parse_identity(raw: bytes) -> Identity:
    """Read writer id, kind, offsets and name."""
    _require(len(raw) >= 18, "identity", "too short")
    writer_id, kind, ndim = raw[:16], raw[16], raw[17]
    _require(kind in (BYTES_OBJECT, TENSOR_SHARD), "identity", f"unknown kind {kind}")
    _require(ndim <= MAX_NDIM, "identity", f"ndim {ndim} is out of range")
    _require(kind == TENSOR_SHARD or ndim == 0, "identity", "a bytes object has no offsets")
    name_at = 18 + 8 * ndim
    _require(len(raw) > name_at, "identity", "no name, or offsets cut off")
    offsets = struct.unpack_from(f"<{ndim}Q", raw, 18)
    try:
        name = raw[name_at:].decode("utf-8")
    except UnicodeDecodeError:
        _refuse("identity", "the name is not UTF-8")
    return Identity(writer_id, kind, offsets, name)


# --- Codecs ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Block:
    """Where a block stands and what it stores. `word` is the first field as it is stored."""

    number: int
    last: bool
    stored: bytes
    end: int


def _undo_chain(header: Header, block: Block, key: bytes) -> bytes:
    """Undo all codecs for one block, the last of the chain first, and check the size that comes out."""
    data = block.stored
    codecs = [item for item in header.chain if not item.foreign]
    for place, item in reversed(list(enumerate(codecs))):
        limit = header.limit if place else header.block_size
        data = _undo(item, data, block, limit, key)
        _require(len(data) <= limit, "codec", f"block {block.number}: {item.text} gave more than the limit")
    _check_block_size(header.block_size, block, len(data))
    return data


def _check_block_size(block_size: int, block: Block, size: int) -> None:
    where = f"block {block.number} decodes to {size} bytes"
    if not block.last:
        _require(size == block_size, "block", f"{where} instead of {block_size}")
    else:
        smallest = 0 if block.number == 0 else 1
        _require(smallest <= size <= block_size, "block", f"{where}, which the last block cannot")


def _undo(item: Descriptor, data: bytes, block: Block, limit: int, key: bytes) -> bytes:
    """Undo one codec for one block."""
    if item.name == "streamxf.zstd":
        return _undo_zstd(data, limit)
    if item.name == "streamxf.lz4":
        return _undo_lz4(data, limit)
    if item.name == FLOATZIP:
        return decode_floatzip(data, limit)
    if item.name == CHECKSUM:
        return _undo_checksum(data, dict(item.params).get("algorithm", "crc32c"))
    return _undo_encrypt(data, block, key)


def _undo_zstd(data: bytes, limit: int) -> bytes:
    """Decompress the one frame that `data` is, after looking at its header."""
    _require(data[:4] == ZSTD_MAGIC, "codec", "zstd: not a Zstandard frame")
    try:
        size = zstandard.frame_content_size(data)
        frame = zstandard.get_frame_parameters(data)
        _require(size >= 0, "codec", "zstd: the frame does not declare its size")
        _require(size <= limit, "codec", f"zstd: a frame of {size} bytes is above the limit")
        _require(frame.dict_id == 0, "codec", "zstd: the frame uses a dictionary")
        _require(frame.window_size <= MAX_WINDOW, "codec", f"zstd: a window of {frame.window_size} bytes")
        return _inflate(data, size)
    except zstandard.ZstdError as error:
        raise FormatError("codec", f"zstd: {error}") from error


def _inflate(data: bytes, size: int) -> bytes:
    """Decompress in small steps, so that a frame which holds more than it declares is caught before it has grown."""
    step = 64
    out = bytearray()
    inflater = zstandard.ZstdDecompressor().decompressobj()
    for start in range(0, len(data), step):
        out += inflater.decompress(data[start : start + step])
        _require(len(out) <= size, "codec", "zstd: the frame holds more than it declares")
        if inflater.eof:
            nothing_left = not inflater.unused_data and start + step >= len(data)
            _require(nothing_left, "codec", "zstd: bytes after the frame")
            _require(len(out) == size, "codec", "zstd: the frame holds less than it declares")
            return bytes(out)
    _refuse("codec", "zstd: the frame is cut off")


def _undo_lz4(data: bytes, limit: int) -> bytes:
    """Decompress a raw LZ4 block, whose size is known only by its limit."""
    _require(len(data) > 0, "codec", "lz4: not even a token")
    try:
        return bytes(lz4.block.decompress(data, uncompressed_size=limit))
    except lz4.block.LZ4BlockError as error:
        raise FormatError("codec", f"lz4: {error}") from error


@dataclasses.dataclass(frozen=True)
class Plane:
    """A row of a FloatZip payload's table: `lane` is in bytes, and so is `stored`, the size of the plane's data."""

    coding: int
    lane: int
    stored: int


RAW, ZSTD, PACKED, LEVELLED = 0, 1, 2, 3


def decode_floatzip(data: bytes, limit: int) -> bytes:
    """Decode one payload of FloatZip to at most `limit` bytes: put elements together, and the edges around them."""
    _require(len(data) > 0, "codec", "floatzip: no layout")
    layout = data[0]
    if layout == 0:
        _require(len(data) - 1 <= limit, "codec", f"floatzip: {len(data) - 1} bytes are above the limit")
        return data[1:]
    width, rotated, phase = 1 << (layout & 3), bool(layout & 4), layout >> 3 & 7
    _require(layout & 0xC0 == 0x40, "codec", f"floatzip: unknown layout {layout:#04x}")
    _require(not (rotated and width == 1), "codec", "floatzip: elements of one byte are not rotated")
    _require(phase < width, "codec", f"floatzip: phase {phase} with elements of {width} bytes")
    _require(len(data) >= 5, "codec", "floatzip: cut off in raw_size")
    (raw_size,) = U32.unpack_from(data, 1)
    _require(raw_size <= limit, "codec", f"floatzip: raw_size {raw_size} is above the limit")
    _require(raw_size >= phase + width, "codec", f"floatzip: {raw_size} bytes have no element")
    count, tail = divmod(raw_size - phase, width)

    planes, at = _parse_planes(data, width)
    _require(not any(data[at : at + -at % 8]), "codec", "floatzip: filling that is not 0")
    at += -at % 8
    expected = at + sum(plane.stored for plane in planes) + phase + tail
    _require(len(data) == expected, "codec", f"floatzip: {len(data)} bytes instead of {expected}")

    elements = bytearray(count * width)
    for number, plane in sorted(enumerate(planes), key=lambda item: item[1].coding != RAW):
        column = _undo_plane(plane, data[at : at + plane.stored], count)
        first = sum(before.lane for before in planes[:number])
        for byte in range(plane.lane):
            elements[first + byte :: width] = column[byte :: plane.lane]
        at += plane.stored
    body = _rotate_right(elements, width) if rotated else bytes(elements)
    return data[at : at + phase] + body + data[at + phase :]


def _parse_planes(data: bytes, width: int) -> tuple[list[Plane], int]:
    """Read the table: as many rows as it takes for the lanes to add up to the width. Give it and where it ends."""
    planes: list[Plane] = []
    at, left = 5, width
    while left:
        _require(len(data) >= at + 5, "codec", "floatzip: cut off in the table")
        kind, stored = struct.unpack_from("<BI", data, at)
        coding, lane = kind & 3, 1 << (kind >> 2)
        _require(kind >> 2 <= 2, "codec", f"floatzip: unknown plane {kind:#04x}")
        _require(lane <= left, "codec", f"floatzip: the lanes add up to more than {width}")
        _require(coding in (RAW, ZSTD) or lane == 1, "codec", f"floatzip: a lane of {lane} bytes cannot be packed")
        planes.append(Plane(coding, lane, stored))
        at, left = at + 5, left - lane
    return planes, at


def _undo_plane(plane: Plane, stored: bytes, count: int) -> bytes:
    """Give a plane's `count` times `lane` bytes."""
    size = count * plane.lane
    if plane.coding == PACKED:
        return _undo_packed(stored, count)
    if plane.coding == LEVELLED:
        return _undo_levelled(stored, count)
    column = stored if plane.coding == RAW else _undo_zstd(stored, size)
    _require(len(column) == size, "codec", f"floatzip: a plane of {len(column)} bytes instead of {size}")
    return column


def _undo_packed(stored: bytes, count: int) -> bytes:
    """Take the halves of the frame's bytes apart, then put in the values that none of the sixteen halves stands for."""
    _require(len(stored) >= 8, "codec", "floatzip: a packed plane is cut off")
    base, zeros, exceptions = struct.unpack_from("<B3sI", stored)
    _require(zeros == bytes(3), "codec", "floatzip: reserved bytes of a packed plane are not 0")
    frame_at = 8 + 5 * exceptions
    _require(frame_at <= len(stored), "codec", f"floatzip: no room for {exceptions} places and values")
    places = struct.unpack_from(f"<{exceptions}I", stored, 8)
    rising = all(before < after for before, after in itertools.pairwise(places))
    _require(rising and all(place < count for place in places), "codec", "floatzip: places out of order or range")

    halves = (count + 1) // 2
    pairs = _undo_zstd(stored[frame_at:], halves)
    _require(len(pairs) == halves, "codec", f"floatzip: {len(pairs)} pairs instead of {halves}")
    _require(count % 2 == 0 or pairs[-1] < 16, "codec", "floatzip: the half byte that no element needs is not 0")
    column = bytearray(2 * halves)
    column[0::2] = pairs.translate(bytes((base + (pair & 15)) & 255 for pair in range(256)))
    column[1::2] = pairs.translate(bytes((base + (pair >> 4)) & 255 for pair in range(256)))
    for place, value in zip(places, stored[8 + 4 * exceptions : frame_at], strict=True):
        column[place] = value
    return bytes(column[:count])


def _undo_levelled(stored: bytes, count: int) -> bytes:
    """Add to a packed plane the levels of its rows of 64 elements and of its columns."""
    _require(len(stored) >= 12, "codec", "floatzip: a levelled plane is cut off")
    row_log2, zeros, period, size = struct.unpack_from("<B3sII", stored)
    _require(row_log2 == 6 and zeros == bytes(3), "codec", "floatzip: unknown head of a levelled plane")
    _require(1 <= period <= MAX_PERIOD, "codec", f"floatzip: {period} columns")
    _require(12 + size <= len(stored), "codec", f"floatzip: no room for levels of {size} bytes")
    rows = -(-count // 64)
    levels = _undo_zstd(stored[12 : 12 + size], rows + period)
    _require(len(levels) == rows + period, "codec", f"floatzip: {len(levels)} levels instead of {rows + period}")
    column = _undo_packed(stored[12 + size :], count)
    return bytes((value + levels[i // 64] + levels[rows + i % period]) & 255 for i, value in enumerate(column))


def _rotate_right(elements: bytes | bytearray, width: int) -> bytes:
    """Rotate every element of `width` bytes right by one bit, all of them as one long integer."""
    lowest = int.from_bytes((b"\x01" + bytes(width - 1)) * (len(elements) // width), "little")
    every = int.from_bytes(elements, "little")
    bits = every & lowest
    return ((every ^ bits) >> 1 | bits << 8 * width - 1).to_bytes(len(elements), "little")


def _undo_checksum(data: bytes, algorithm: str) -> bytes:
    """Compare the digest at the end with the data before it."""
    size = 32 if algorithm == "sha256" else 4
    _require(len(data) >= size, "codec", "checksum: too short for a digest")
    body, digest = data[: len(data) - size], data[len(data) - size :]
    expected = hashlib.sha256(body).digest() if algorithm == "sha256" else U32.pack(crc32c(body))
    _require(digest == expected, "codec", "checksum: wrong digest")
    return body


def _undo_encrypt(data: bytes, block: Block, key: bytes) -> bytes:
    """Decrypt; the nonce is the block's place in the stream, the only integer of the format that is big-endian."""
    _require(len(data) >= 16, "codec", "encrypt: too short for a tag")
    nonce = block.number.to_bytes(11, "big") + (b"\x01" if block.last else b"\x00")
    try:
        return AESGCM(key).decrypt(nonce, data, None)
    except InvalidTag:
        _refuse("codec", f"encrypt: block {block.number} is not authentic")


# --- Index, footer and the container as a whole ---------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Footer:
    """What stands behind the blocks. `ends` is the index, `index_at` its offset."""

    raw_size: int
    ends: tuple[int, ...]
    index_at: int


def _parse_footer(data: bytes, header: Header) -> Footer:
    """Read footer and index from the end of the container, without having looked at a block."""
    footer_at = len(data) - FOOTER.size
    _require(footer_at >= header.size, "footer", "too short for a footer")
    raw_size, container_size, count, crc, magic = FOOTER.unpack_from(data, footer_at)
    _require(magic == FOOTER_MAGIC, "footer", "wrong magic; the container is cut off, or something follows it")
    _require(container_size == len(data), "footer", f"container_size {container_size} is not {len(data)}")
    index_at = footer_at - 8 * count
    _require(count >= 1, "footer", "no block")
    _require(index_at >= header.size + BLOCK_HEAD.size * count, "footer", f"no room for {count} blocks")
    expected = crc32c(header.digest[:16] + data[index_at : footer_at + 20])
    _require(crc == expected, "footer", "wrong CRC")
    _check_raw_size(raw_size, count, header.block_size)
    ends = struct.unpack_from(f"<{count}Q", data, index_at)
    _check_index(ends, header.size, index_at)
    return Footer(raw_size, ends, index_at)


def _check_raw_size(raw_size: int, count: int, block_size: int) -> None:
    """The size must need exactly this number of blocks; an empty stream has one."""
    _require(raw_size <= MAX_RAW_SIZE, "footer", f"raw_size {raw_size} is out of range")
    fits = (count - 1) * block_size < raw_size <= count * block_size
    _require(fits or (count == 1 and raw_size == 0), "footer", f"{raw_size} bytes are not {count} blocks")


def _check_index(ends: Sequence[int], blocks_at: int, index_at: int) -> None:
    """The index rises, leaves room for every block's head, and ends where it stands itself."""
    before = blocks_at
    for number, end in enumerate(ends):
        _require(end >= before + BLOCK_HEAD.size, "index", f"no room for block {number}")
        before = end
    _require(before == index_at, "index", "the last block does not end where the index begins")


def _read_block(data: bytes, at: int, number: int, header: Header, footer: Footer) -> Block:
    """Read the block at an offset: its word, whether index and footer agree with it, and its CRC."""
    where = f"block {number}"
    _require(at + BLOCK_HEAD.size <= footer.index_at, "block", f"{where} is cut off")
    word, crc = BLOCK_HEAD.unpack_from(data, at)
    last, stored_len = bool(word >> 31), word & 0x7FFFFFFF
    _require(stored_len <= header.limit, "block", f"{where}: stored_len {stored_len} is above the limit")
    start = at + BLOCK_HEAD.size
    end = start + stored_len
    _require(end <= footer.index_at, "block", f"{where} is cut off")
    stored = data[start:end]
    expected = crc32c(header.digest[:16] + U32.pack(number) + U32.pack(word) + stored)
    _require(crc == expected, "block", f"{where}: wrong CRC")
    _require(end == footer.ends[number], "index", f"{where} ends at {end}, not at {footer.ends[number]}")
    _require(last == (number == len(footer.ends) - 1), "block", f"{where}: 'last' does not agree with the footer")
    return Block(number, last, stored, end)


def _decode_blocks(data: bytes, header: Header, footer: Footer, key: bytes) -> bytes:
    """Decode block after block; each begins where the one before it ended."""
    out = bytearray()
    at = header.size
    for number in range(len(footer.ends)):
        block = _read_block(data, at, number, header, footer)
        out += _undo_chain(header, block, key)
        at = block.end
    _require(len(out) == footer.raw_size, "footer", f"the stream is {len(out)} bytes, not {footer.raw_size}")
    return bytes(out)


def decode_container(
    data: bytes, *, key: bytes | None = None, descriptors: Sequence[str] | None = None, fragment: str | None = None
) -> Container:
    """Decode the container that `data` is, from its first byte to its last.

    A keyed container keeps its wrapped keys elsewhere: give DCP's `descriptors` for it (the order of reading, with
    fragments; they are compared with the header's chain), or the `fragment` of `streamxf.encrypt` alone.
    """
    if descriptors is not None and fragment is not None:
        raise ValueError("give descriptors or fragment, not both")
    header = _parse_header(data)
    if descriptors is not None:
        fragment = _match_descriptors(descriptors, header.chain)
    stream_key = b""
    if header.keyed:
        if fragment is None:
            _refuse("key", f"the chain is keyed, but there is no fragment of {ENCRYPT}")
        stream_key = _stream_key(_unwrap_dek(fragment, key), header)
    footer = _parse_footer(data, header)
    payload = _decode_blocks(data, header, footer, stream_key)
    return Container(payload, [item.text for item in header.chain], header.flags, header.block_log2, header.identity)


# --- Plain file -----------------------------------------------------------------------------------------------------


def decode_plain_file(data: bytes, *, key: bytes | None = None) -> Container:
    """Decode a file as `streamxf.open` writes it: a prefix with the wrapped keys, then one container."""
    fragment, container_at = _parse_prefix(data)
    container = data[container_at:]
    header = _parse_header(container)
    _require(not header.flags & (BOUND | PUBLISHED), "header", "bound or published in a plain file")
    _require(header.keyed == (container_at > 16), "prefix", "keys without a keyed chain, or the other way round")
    return decode_container(container, key=key, fragment=fragment if header.keyed else None)


def _parse_prefix(data: bytes) -> tuple[str, int]:
    """Give the fragment in the prefix, without its filling, and the offset of the container."""
    _require(len(data) >= 12, "prefix", "too short")
    _require(data[:8] == PLAIN_MAGIC, "prefix", "wrong magic")
    (length,) = U32.unpack_from(data, 8)
    _require(length <= MAX_PREFIX_LEN, "prefix", f"len {length} is out of range")
    end = 12 + length
    _require(len(data) >= end + 4, "prefix", "cut off")
    _require(U32.unpack_from(data, end)[0] == crc32c(data[:end]), "prefix", "wrong CRC")
    fragment = data[12:end].rstrip(b"\0")
    _require(fragment.isascii(), "prefix", "the fragment is not ASCII")
    return fragment.decode("ascii"), end + 4


# --- Metadata -------------------------------------------------------------------------------------------------------


def split_metadata(data: bytes, *, key: bytes | None = None) -> tuple[bytes, dict[str, Any]]:
    """Split a `.metadata` with a trailer into the pickle's bytes, which are never unpickled here, and its manifest."""
    tail_at = len(data) - METADATA_TAIL.size
    _require(tail_at >= 0, "trailer", "too short")
    manifest_len, tag, magic = METADATA_TAIL.unpack_from(data, tail_at)
    _require(magic == METADATA_MAGIC, "trailer", "wrong magic")
    _require(manifest_len <= MAX_MANIFEST_LEN, "trailer", f"manifest_len {manifest_len} is out of range")
    _require(manifest_len <= tail_at, "trailer", "manifest_len reaches before the file")
    manifest_at = tail_at - manifest_len
    manifest = _parse_manifest(data[manifest_at:tail_at])
    expected = _tag(data[: tail_at + 4], manifest["key"], key)
    _require(hmac.compare_digest(tag, expected), "tag", "pickle or manifest are not those that were tagged")
    pickle = data[:manifest_at]
    _check_pickle_end(pickle)
    return pickle, manifest


def _tag(tagged: bytes, descriptor: str | None, key: bytes | None) -> bytes:
    """Compute the tag: keyed where the manifest names a key, a plain hash elsewhere."""
    if descriptor is None:
        return hashlib.sha256(tagged).digest()
    fragment = descriptor.partition("#")[2]
    mac = _hkdf(_unwrap_dek(fragment, key), b"streamxf/1 metadata", 32)
    return hmac.new(mac, tagged, hashlib.sha256).digest()


def _check_pickle_end(pickle: bytes) -> None:
    """Walk over the pickle's opcodes, executing none, to see that it ends where the manifest begins."""
    stream = io.BytesIO(pickle)
    try:
        for _ in pickletools.genops(stream):
            pass
    except Exception as error:  # pickletools raises whatever its readers of arguments happen to raise
        raise FormatError("trailer", f"no pickle before the manifest: {error}") from error
    _require(stream.tell() == len(pickle), "trailer", "bytes between pickle and manifest")


def _parse_manifest(raw: bytes) -> dict[str, Any]:
    """Parse the manifest and check every key and value of it."""
    _require(raw.isascii(), "manifest", "not ASCII")
    try:
        parsed = json.loads(raw.decode("ascii"), object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FormatError("manifest", f"not JSON: {error}") from error
    manifest = _object(parsed, "the manifest", {"version", "save_id", "rank", "key", "packages", "files"})
    _require(type(manifest["version"]) is int and manifest["version"] == 1, "manifest", "unknown version")
    _check_hex(manifest["save_id"], 32, "save_id")
    rank = manifest["rank"]
    _require(rank is None or (type(rank) is int and rank >= 0), "manifest", "rank is neither null nor a number")
    _check_key(manifest["key"])
    _check_packages(manifest["packages"])
    for path, entry in _object(manifest["files"], "files").items():
        _check_path(path)
        _check_file(path, entry)
    return manifest


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    _require(len(found) == len(pairs), "manifest", "a key comes twice in one object")
    return found


def _refuse_constant(text: str) -> NoReturn:
    """`NaN` and `Infinity`, which Python's parser would take, are not JSON."""
    _refuse("manifest", f"{text} is not JSON")


def _object(value: Any, what: str, keys: set[str] | None = None) -> dict[str, Any]:
    """Require an object and, where `keys` is given, exactly these keys in it."""
    if not isinstance(value, dict):
        _refuse("manifest", f"{what} is not an object")
    if keys is not None:
        _require(value.keys() == keys, "manifest", f"{what} has the keys {sorted(value)} instead of {sorted(keys)}")
    return value


def _check_hex(value: Any, digits: int, what: str) -> None:
    right = isinstance(value, str) and re.fullmatch(rf"[0-9a-f]{{{digits}}}", value) is not None
    _require(right, "manifest", f"{what} is not {digits} hexadecimal digits")


def _check_key(value: Any) -> None:
    """`key` is null, or `streamxf.encrypt` with its wrapped keys."""
    if value is None:
        return
    if not isinstance(value, str):
        _refuse("manifest", "key is not a string")
    descriptor = _parse_descriptor(value, "manifest")
    right = descriptor.name == ENCRYPT and descriptor.fragment is not None
    _require(right, "manifest", f"key is not {ENCRYPT} with a fragment")


def _check_packages(value: Any) -> None:
    packages = _object(value, "packages")
    _require(all(isinstance(version, str) for version in packages.values()), "manifest", "a version is not a string")
    _require({"streamxf", "torch"} <= packages.keys(), "manifest", "packages lacks streamxf or torch")


def _check_path(path: str) -> None:
    """A path must stay below the checkpoint, on every system."""
    _require("\\" not in path and "\0" not in path, "manifest", f"bad character in the path {path!r}")
    parts = path.split("/")
    _require(not {"", ".", ".."} & set(parts), "manifest", f"the path {path!r} has a part that is empty, . or ..")


def _check_file(path: str, value: Any) -> None:
    entry = _object(value, f"files[{path!r}]", {"size", "writer", "digest"})
    _require(type(entry["size"]) is int and entry["size"] >= 0, "manifest", f"{path!r}: size is no size")
    _check_hex(entry["writer"], 32, f"writer of {path!r}")
    digest = entry["digest"]
    right = isinstance(digest, str) and re.fullmatch(r"crc32c:[0-9a-f]{8}", digest) is not None
    _require(right, "manifest", f"{path!r}: digest is not crc32c: and 8 hexadecimal digits")


# --- Command line ---------------------------------------------------------------------------------------------------


def _describe(container: Container, what: str) -> dict[str, Any]:
    names = {KEYED: "keyed", BOUND: "bound", PUBLISHED: "published"}
    identity = dataclasses.asdict(container.identity) if container.identity else None
    if identity is not None:
        identity["writer_id"] = identity["writer_id"].hex()
    return {
        "what": what,
        "flags": [name for bit, name in names.items() if container.flags & bit],
        "block_size": 1 << container.block_log2,
        "chain": container.chain,
        "identity": identity,
        "size": len(container.payload),
        "sha256": hashlib.sha256(container.payload).hexdigest(),
    }


def _decode_any(data: bytes, key: bytes | None, fragment: str | None) -> tuple[dict[str, Any], bytes]:
    """Tell by its magic which of the three `data` is; give a description and what it holds."""
    if data.startswith(PLAIN_MAGIC):
        container = decode_plain_file(data, key=key)
        return _describe(container, "plain file"), container.payload
    if data.startswith(CONTAINER_MAGIC):
        container = decode_container(data, key=key, fragment=fragment)
        return _describe(container, "container"), container.payload
    if data.endswith(METADATA_MAGIC):
        pickle, manifest = split_metadata(data, key=key)
        return {"what": "metadata", "pickle_size": len(pickle), "manifest": manifest}, pickle
    _refuse("header", "neither a plain file, nor a container, nor metadata with a trailer")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what a file holds, as JSON, or write it to `--out`."""
    parser = argparse.ArgumentParser(description="Decode a file of streamxf, with nothing of streamxf.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--key-file", type=Path, help="file with the 32 bytes of the key")
    parser.add_argument("--fragment", help="fragment of streamxf.encrypt, for a container without its metadata")
    parser.add_argument("--out", type=Path, help="write the payload, or the pickle of metadata, here")
    given = parser.parse_args(arguments)
    key = given.key_file.read_bytes() if given.key_file else None
    try:
        description, payload = _decode_any(given.file.read_bytes(), key, given.fragment)
    except FormatError as error:
        print(f"{given.file}: {error}", file=sys.stderr)
        return 1
    if given.out:
        given.out.write_bytes(payload)
    else:
        print(json.dumps(description, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
