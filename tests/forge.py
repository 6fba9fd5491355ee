"""An attacker's tool: takes files apart by docs/format.md, and packs them again with every CRC and digest right.

Only what needs no key is made again: CRCs, lengths, hashes and digests. Seals, payloads and vouchers stay as they are;
sealing.py has what a key holder can make.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, islice, pairwise
from typing import Any

import zstandard
from crc32c import crc32c

from streamxf.codecs.zstd import compress_to

CONTAINER_MAGIC, FOOTER_MAGIC = b"\xd3SXF\r\n\x1a\n", b"\n\x1a\r\nFXS\xd3"
PLAIN_MAGIC, SEAL_MAGIC = b"\xd3SXK\r\n\x1a\n", b"\n\x1a\r\nKXS\xd3"
METADATA_MAGIC = b"\n\x1a\r\nMXS\xd3"
KEYED, BOUND, PUBLISHED = 1, 2, 4
LAST = 1 << 31
FORMAT = bytes([1, 1, 0, 0])

_FIXED = struct.Struct("<8sBBBBBHH16s")


@dataclass(frozen=True)
class Parts:
    """A container in pieces, and what stands around it in a plain file. A block is (last, payload).

    What is None is computed when it is packed.
    """

    version: int = 1
    suite: int = 1
    flags: int = 0
    informative: int = 0
    block_log2: int = 16
    chain: bytes = b""
    identity: bytes = b""
    salt: bytes = bytes(16)
    base: bytes = b""
    seal: bytes = b""
    blocks: tuple[tuple[bool, bytes], ...] = ((True, b""),)
    raw_size: int = 0
    lengths: tuple[int, ...] | None = None
    """What the table says of the blocks' payloads."""
    crcs: tuple[bytes, ...] | None = None
    """Of the blocks, where they are to be those of other blocks or places."""
    prefix: bytes = b""
    tail: bytes = b""

    def change(self, **fields: object) -> Parts:
        return replace(self, **fields)

    @property
    def body(self) -> bytes:
        """The header before the seal."""
        format_bytes = self.version, self.suite, self.flags, self.informative
        sizes = self.block_log2, len(self.chain), len(self.identity)
        return _FIXED.pack(CONTAINER_MAGIC, *format_bytes, *sizes, self.salt) + self.chain + self.identity + self.base

    @property
    def digest(self) -> bytes:
        """H."""
        return hashlib.sha256(self.body).digest()

    @property
    def digests(self) -> list[bytes]:
        """The first is that of header, table and footer."""
        edges = with_crc(self.body + self.seal) + self._end()
        return [hashlib.sha256(each).digest() for each in (edges, *self._stored())]

    def pack(self) -> bytes:
        """The plain file, with all its CRCs."""
        return self.prefix + self.container() + self.tail

    def container(self) -> bytes:
        """The container alone."""
        return with_crc(self.body + self.seal) + b"".join(self._stored()) + self._end()

    def _stored(self) -> list[bytes]:
        """The blocks with their heads."""
        bind, made = self.digest[:16], []
        for index, (last, payload) in enumerate(self.blocks):
            word = struct.pack("<I", (LAST if last else 0) | len(payload))
            crc = crc_of(bind + struct.pack("<I", index) + word + payload) if self.crcs is None else self.crcs[index]
            made.append(word + crc + payload)
        return made

    def _end(self) -> bytes:
        """Table and footer."""
        lengths = [len(block) - 8 for block in self._stored()] if self.lengths is None else self.lengths
        tail = struct.pack(f"<{len(lengths)}IQ", *lengths, self.raw_size)
        return tail + crc_of(self.digest[:16] + tail) + FOOTER_MAGIC


def take_apart(file: bytes) -> Parts:
    """The pieces of an intact plain file."""
    start = 20 + int.from_bytes(file[12:16], "little")
    stop = len(file)
    if file[start + 10] & KEYED:
        stop -= 20 + int.from_bytes(file[-16:-12], "little") + 32 * int.from_bytes(file[-20:-16], "little")
    return take_container_apart(file[start:stop]).change(prefix=file[:start], tail=file[stop:])


def take_container_apart(data: bytes) -> Parts:
    """The pieces of an intact container."""
    _, *format_bytes, block_log2, chain_len, ident_len, salt = _FIXED.unpack_from(data)
    flags = format_bytes[2]
    chain_at = _FIXED.size
    at = chain_at + chain_len + ident_len
    chain, identity = data[chain_at : chain_at + chain_len], data[chain_at + chain_len : at]
    seal = data[at : at + 32] if flags & KEYED else b""
    at += len(seal) + 4
    (raw_size,) = struct.unpack_from("<Q", data, len(data) - 20)
    blocks: list[tuple[bool, bytes]] = []
    while not blocks or not blocks[-1][0]:
        (word,) = struct.unpack_from("<I", data, at)
        size = word & ~LAST
        blocks.append((bool(word & LAST), data[at + 8 : at + 8 + size]))
        at += 8 + size
    return Parts(*format_bytes, block_log2, chain, identity, salt, b"", seal, tuple(blocks), raw_size)


def _count(raw_size: int, block_log2: int) -> int:
    """The number of blocks of a stream."""
    return max(1, (raw_size + (1 << block_log2) - 1) >> block_log2)


def identity_of(
    name: str | bytes,
    kind: int = 1,
    dtype: str | bytes = b"",
    offset: tuple[int, ...] = (),
    shard: tuple[int, ...] = (),
    tensor: tuple[int, ...] = (),
    *,
    writer: bytes = bytes(range(16)),
    number: int = 0,
    ndim: int | None = None,
    dtype_len: int | None = None,
    width: int | None = None,
) -> bytes:
    """An identity; `ndim`, `dtype_len` and `width` are what it says of itself, if that is not what it has."""
    dtype, name = (text.encode() if isinstance(text, str) else text for text in (with_bits(dtype), name))
    counts = len(offset) if ndim is None else ndim, len(dtype) if dtype_len is None else dtype_len
    numbers = (*offset, *shard, *tensor)
    least = next(size for size in (1, 2, 4, 8) if max(numbers, default=0) < 1 << 8 * size)
    used = least if width is None else width
    packed = b"".join(each.to_bytes(used if used in (1, 2, 4, 8) else least, "little") for each in numbers)
    return writer + struct.pack("<Q", number) + bytes([kind, *counts, used]) + dtype + packed + name


BITS = {"bool": 8, "bfloat16": 16}


def with_bits(dtype: Any) -> Any:
    """A dtype as it is stored, with the bits of an element, if it has none."""
    if not dtype or isinstance(dtype, bytes) or ":" in dtype:
        return dtype
    found = re.fullmatch(r"u?(?:int|float|complex)(8|16|32|64|128)(_.*)?", dtype)
    return f"{dtype}:{int(found[1]) if found else BITS.get(dtype, 8)}"


def with_crc(data: bytes) -> bytes:
    """`data`, then its CRC, as prefix and header end."""
    return data + crc_of(data)


def prefix_of(wrapped: str | bytes = b"", format_bytes: bytes = FORMAT) -> bytes:
    """The prefix of a plain file, with a wrapped data key."""
    text = wrapped.encode("ascii") if isinstance(wrapped, str) else wrapped
    return with_crc(PLAIN_MAGIC + format_bytes + struct.pack("<I", len(text)) + text)


def seal_of(
    vouchers: str | bytes, size: int | None = None, digests: Iterable[bytes] = (), count: int | None = None
) -> bytes:
    """Digests and seal of a plain file; `size` and `count` are what it says of itself."""
    text, before = vouchers.encode("ascii") if isinstance(vouchers, str) else vouchers, b"".join(digests)
    sizes = len(before) // 32 if count is None else count, len(text) if size is None else size
    return before + with_crc(text + struct.pack("<II", *sizes)) + SEAL_MAGIC


def crc_of(data: bytes) -> bytes:
    """A CRC as it is stored."""
    return struct.pack("<I", crc32c(data))


# -- faults at a place, and what they break made right again ---------------------------------------------------------


@dataclass(frozen=True)
class Places:
    """Where the pieces of an intact container stand, counted from its first byte."""

    body: int
    """Where the header's bytes before the seal end."""
    header_crc: int
    blocks: tuple[tuple[int, int], ...]
    """Each block's head, and the end of its payload."""
    table: int
    end: int

    @classmethod
    def of(cls, container: bytes) -> Places:
        _, _, _, flags, _, block_log2, chain_len, ident_len, _ = _FIXED.unpack_from(container)
        body = _FIXED.size + chain_len + ident_len
        header_crc = body + (32 if flags & KEYED else 0)
        count = _count(struct.unpack_from("<Q", container, len(container) - 20)[0], block_log2)
        table = len(container) - 20 - 4 * count
        sizes = [8 + length for length in struct.unpack_from(f"<{count}I", container, table)]
        blocks = tuple(pairwise(accumulate(sizes, initial=header_crc + 4)))
        return cls(body, header_crc, blocks, table, len(container))

    @property
    def crcs(self) -> set[int]:
        """The bytes that hold CRCs."""
        starts = [self.header_crc, *(head + 4 for head, _ in self.blocks), self.end - 12]
        return {byte for start in starts for byte in range(start, start + 4)}

    def mend(self, container: bytes) -> bytes:
        """`container`, in which bytes were altered where they stand, with all CRCs right again."""
        out = bytearray(container)
        out[self.header_crc : self.header_crc + 4] = crc_of(out[: self.header_crc])
        bind = hashlib.sha256(out[: self.body]).digest()[:16]
        for number, (head, end) in enumerate(self.blocks):
            covered = bind + struct.pack("<I", number) + out[head : head + 4] + out[head + 8 : end]
            out[head + 4 : head + 8] = crc_of(covered)
        out[self.end - 12 : self.end - 8] = crc_of(bind + out[self.table : self.end - 12])
        return bytes(out)


# -- metadata --------------------------------------------------------------------------------------------------------

Columns = dict[int, "list[int] | bytes"]  # the values of columns by their ids

WIDTHS = {2: 1, 4: 1, 18: 4, 33: 1, 35: 16, 36: 40, 40: 32}  # of columns that do not have integers


@dataclass(frozen=True)
class Band:
    """Some items of an index, and how they are cut into parts.

    `first`, `last` and `items` are what the root says of it, and `starts` where its parts begin; what is None is as it
    should be. `change` may alter the columns of each part.
    """

    names: list[str]
    starts: tuple[int, ...] = (0,)
    first: str | None = None
    last: str | None = None
    items: int | None = None
    change: Callable[[Columns], object] | None = None


@dataclass(frozen=True)
class MetadataParts:
    """A metadata file in pieces. `index` says what root and parts say, as one JSON document, or is the root's frame as
    it is stored, with `parts`; what is None is computed.
    """

    pickled: bytes
    index: dict[str, Any] | bytes
    keys: bytes = b""
    parts: bytes = b""
    root: bytes = b""
    """As it is stored, with `parts`, where `index` says what these do."""
    head_size: int | None = None
    parts_size: int | None = None
    index_size: int | None = None
    keys_size: int | None = None
    format_bytes: bytes = FORMAT
    reserved: bytes = bytes(4)
    head_digest: bytes | None = None

    def change(self, **fields: object) -> MetadataParts:
        return replace(self, **({"root": b""} if "index" in fields else {}), **fields)

    def stored(self) -> tuple[bytes, bytes]:
        """Root and parts, as they are stored."""
        if isinstance(self.index, bytes):
            return self.index, self.parts
        return (self.root, self.parts) if self.root else pack_index(self.index)

    @property
    def packed_index(self) -> bytes:
        """The root as it is stored."""
        return self.stored()[0]

    def raw_parts(self) -> list[bytes]:
        """What the parts decompress to."""
        return [zstandard.ZstdDecompressor().decompress(packed) for packed, _ in self._each_part()[1]]

    def with_part(self, number: int, raw: bytes) -> MetadataParts:
        """The same with another part, the digest and sizes of which are right."""
        content, parts = self._each_part()
        made = b""
        for place, (packed, entry) in enumerate(parts):
            if place == number:
                packed = part_frame(raw)
                entry |= entry_of(packed, len(raw), entry["from"])
            made += packed
        return self.change(index=frame_of(json.dumps(content, separators=(",", ":")).encode("ascii")), parts=made)

    def _each_part(self) -> tuple[Any, list[tuple[bytes, Any]]]:
        root, parts = self.stored()
        content = json.loads(zstandard.ZstdDecompressor().decompress(root))
        entries = [*content["files"], *(entry for band in content["items"] for entry in band["parts"])]
        entries += content.get("digests", [])
        ends = list(accumulate((entry["bytes"] for entry in entries), initial=0))
        return content, [(parts[begin:end], entry) for (begin, end), entry in zip(pairwise(ends), entries, strict=True)]

    def pack(self) -> bytes:
        """The file, with its digests."""
        root, parts = self.stored()
        sizes = self.head_size, self.parts_size, self.index_size, self.keys_size
        lengths = struct.pack(
            "<QQII4s4s",
            *(
                len(found) if size is None else size
                for found, size in zip((self.pickled, parts, root, self.keys), sizes, strict=True)
            ),
            self.format_bytes,
            self.reserved,
        )
        head_digest = hashlib.sha256(self.pickled).digest() if self.head_digest is None else self.head_digest
        covered = root + self.keys + lengths + head_digest
        return self.pickled + parts + covered + hashlib.sha256(covered).digest() + METADATA_MAGIC


def split_metadata(data: bytes) -> MetadataParts:
    """The pieces of an intact metadata file."""
    head_size, parts_size, root_size, _ = struct.unpack_from("<QQII", data, len(data) - 104)
    parts_at, root_at = head_size, head_size + parts_size
    root, keys = data[root_at : root_at + root_size], data[root_at + root_size : len(data) - 104]
    content = json.loads(zstandard.ZstdDecompressor().decompress(root))
    parts = data[parts_at:root_at]
    if "items" in content:  # a note has none
        content = unpack_index(content, parts)
    return MetadataParts(data[:head_size], content, keys, parts, root)


def pack_index(index: dict[str, Any], bands: list[Band] | None = None) -> tuple[bytes, bytes]:
    """Root and parts of an index, as they are stored."""
    root, parts = encode(index, bands)
    return frame_of(json.dumps(root, separators=(",", ":")).encode("ascii")), b"".join(parts)


def encode(
    index: dict[str, Any],
    bands: list[Band] | None = None,
    files: Callable[[Columns], object] | None = None,
    width: int | None = None,
    raw: Callable[[bytes], bytes] | None = None,
) -> tuple[dict[str, Any], list[bytes]]:
    """The root's JSON, and the parts. `files` may alter the columns of the files, `raw` each part of items before it is
    compressed; `width` is that of integers.
    """
    root = copy.deepcopy({name: value for name, value in index.items() if name not in ("files", "items", "digests")})
    tensors = [item for item in index["items"].values() if "dtype" in item]
    root["dtypes"] = (
        sorted({with_bits(item["dtype"]) for item in tensors}) if "dtypes" not in index else index["dtypes"]
    )
    parts: list[bytes] = []

    def part(columns: Columns, rows: int, chunks: int, begin: int) -> dict[str, Any]:
        data = pack_columns(columns, rows, chunks, width)
        data = raw(data) if raw is not None and 1 in columns else data
        parts.append(part_frame(data))
        return entry_of(parts[-1], len(data), begin)

    rows = index["files"]
    root["files"] = []
    if rows:
        columns = file_columns(rows)
        if files is not None:
            files(columns)
        root["files"].append(part(columns, len(rows), 0, 0))
    root["items"] = []
    names = sorted(index["items"])
    for band in ([Band(names)] if names else []) if bands is None else bands:
        items = {name: index["items"][name] for name in band.names}
        entries = []
        for number, begin in enumerate(band.starts):
            stop = band.starts[number + 1] if number + 1 < len(band.starts) else None
            columns, chunks = item_columns(items, root["dtypes"], begin, stop)
            if band.change is not None:
                band.change(columns)
            entries.append(part(columns, len(items), chunks, begin))
        ends = {"first": band.names[0], "last": band.names[-1], "items": len(items)}
        said = {"first": band.first, "last": band.last, "items": band.items}
        root["items"].append(
            ends | {key: value for key, value in said.items() if value is not None} | {"parts": entries}
        )
    if "digests" in index:
        each = {40: b"".join(map(bytes.fromhex, index["digests"]))}
        root["digests"] = [part(each, len(index["digests"]), 0, 0)] if index["digests"] else []
    return root, parts


def entry_of(packed: bytes, raw: int, begin: int = 0) -> dict[str, Any]:
    """What a root says of a part."""
    return {"from": begin, "bytes": len(packed), "raw": raw, "sha256": hashlib.sha256(packed).hexdigest()}


def file_columns(rows: list[dict[str, Any]]) -> Columns:
    paths = [row["path"].encode("utf-8", "surrogatepass") for row in rows]
    columns: Columns = {
        32: list(accumulate(map(len, paths))),
        33: b"".join(paths),
        34: [row["size"] for row in rows],
        35: b"".join(bytes.fromhex(row["writer"]) for row in rows),
    }
    if any("key" in row for row in rows):
        columns[36] = b"".join(bytes.fromhex(row["key"]) for row in rows if "key" in row)
    return columns


def item_columns(items: dict[str, Any], dtypes: list[str], begin: int, stop: int | None) -> tuple[Columns, int]:
    """The columns of a part of a band, and the number of chunks in it."""
    names = [name.encode("utf-8", "surrogatepass") for name in items]
    tensors = ["dtype" in item for item in items.values()]
    coded = {"file", "at", "bytes", "number", "digest", "crc32c", "dtype", "shape", "chunks", "chain", "span"}
    more = [{name: value for name, value in item.items() if name not in coded} for item in items.values()]
    texts = [json.dumps(each, separators=(",", ":")).encode() if each else b"" for each in more]
    shapes = [item.get("shape", []) for item in items.values()]
    chunks = [item["chunks"] if is_tensor else [item] for item, is_tensor in zip(items.values(), tensors, strict=True)]
    own = [(chunk, is_tensor) for all_, is_tensor in zip(chunks, tensors, strict=True) for chunk in all_[begin:stop]]
    boxes = [(chunk["offset"], chunk["shape"]) for chunk, is_tensor in own if is_tensor]
    kinds = [chunk.get("kind", _kind_of(chunk, is_tensor)) for chunk, is_tensor in own]
    columns: Columns = {1: list(accumulate(map(len, names))), 2: b"".join(names)}
    if not begin:
        columns |= {3: list(accumulate(map(len, texts))), 4: b"".join(texts)}
    columns |= {
        5: [dtypes.index(with_bits(item["dtype"])) + 1 if "dtype" in item else 0 for item in items.values()],
        6: [len(shape) for shape in shapes],
        7: [size for shape in shapes for size in shape],
        8: [len(all_) for all_ in chunks],
        9: [item.get("chain", 0) for item in items.values()],
        10: [number for offset, _ in boxes for number in offset],
        11: [number for _, shape in boxes for number in shape],
        12: kinds,
    }
    columns |= {number: [chunk[name] for chunk, _ in own] for number, name in ((13, "file"), (14, "at"), (15, "bytes"))}
    known = {name for all_ in chunks for chunk in all_ for name in chunk}
    columns[16] = [chunk["number"] for chunk, _ in own if "number" in chunk]
    if "digest" in known:
        columns[17] = [chunk["digest"] for chunk, _ in own if "digest" in chunk]
    columns[18] = b"".join(bytes.fromhex(chunk["crc32c"]) for chunk, _ in own if "crc32c" in chunk)
    spans = [chunk["span"] for chunk, _ in own if "number" in chunk and "span" in chunk]
    columns |= {19: [begin for begin, _ in spans], 20: [end for _, end in spans]}
    return columns, len(own)


def _kind_of(chunk: dict[str, Any], is_tensor: bool) -> int:
    if is_tensor:
        return 3 if "framed" in chunk else 2
    return 4 if "span" in chunk else 1


def pack_columns(columns: Columns, rows: int, chunks: int, width: int | None = None) -> bytes:
    """A part before it is compressed."""
    directory, stored = b"", b""
    for number, values in columns.items():
        if isinstance(values, bytes):
            used, packed = WIDTHS.get(number, 1), values
        else:
            used = width or next((size for size in (1, 2, 4) if max(values, default=0) < 1 << 8 * size), 8)
            packed = b"".join(value.to_bytes(used, "little") for value in values)
        directory += struct.pack("<BBHI", number, used, 0, len(packed) // used)
        stored += packed + bytes(-len(packed) % 8)
    return struct.pack("<4sIII", b"SXP\1", len(columns), rows, chunks) + directory + stored


def unpack_columns(raw: bytes) -> Columns:
    """Undo `pack_columns`."""
    _, count, _, _ = struct.unpack_from("<4sIII", raw)
    at, columns = 16 + 8 * count, Columns()
    for number, width, _, values in struct.iter_unpack("<BBHI", raw[16:at]):
        data = raw[at : at + width * values]
        at += len(data) + -len(data) % 8
        steps = range(0, len(data), width)
        ints = number not in WIDTHS and number < 128
        columns[number] = [int.from_bytes(data[step : step + width], "little") for step in steps] if ints else data
    return columns


def unpack_index(root: dict[str, Any], parts: bytes) -> dict[str, Any]:
    """What root and parts say, as `MetadataParts` has it."""
    at = 0

    def columns(entry: dict[str, Any]) -> Any:
        nonlocal at
        at += entry["bytes"]
        return unpack_columns(zstandard.ZstdDecompressor().decompress(parts[at - entry["bytes"] : at]))

    index = {name: value for name, value in root.items() if name not in ("files", "items", "dtypes")}
    index["files"] = [row for entry in root["files"] for row in _rows(columns(entry))]
    index["items"] = {}
    for band in root["items"]:
        begins = [entry["from"] for entry in band["parts"]] + [1 << 62]
        for number, entry in enumerate(band["parts"]):
            _add_items(index["items"], columns(entry), root, *begins[number : number + 2])
    if "digests" in root:
        found = b"".join(columns(entry)[40] for entry in root["digests"])
        index["digests"] = [found[at : at + 32].hex() for at in range(0, len(found), 32)]
    return index


def _rows(columns: Any) -> list[dict[str, Any]]:
    rows = []
    for row, (begin, end) in enumerate(pairwise([0, *columns[32]])):
        made = {"path": columns[33][begin:end].decode(), "size": columns[34][row]}
        for name, number in (("writer", 35), ("key", 36)):
            if number in columns:
                made[name] = columns[number][WIDTHS[number] * row :][: WIDTHS[number]].hex()
        rows.append(made)
    return rows


def _add_items(items: dict[str, Any], columns: Any, root: dict[str, Any], begin: int, stop: int) -> None:
    boxes, shapes, numbers = (iter(columns[10]), iter(columns[11])), iter(columns[7]), iter(columns[16])
    dtypes, chunk, crcs = root["dtypes"], 0, 0
    spans = zip(columns[19], columns[20], strict=True)
    for row, (name_at, name_end) in enumerate(pairwise([0, *columns[1]])):
        name, ndim, dtype = columns[2][name_at:name_end].decode(), columns[6][row], columns[5][row]
        shape = [*islice(shapes, ndim)]
        item = items.setdefault(name, {"dtype": dtypes[dtype - 1], "shape": shape, "chunks": []} if dtype else {})
        if 3 in columns and (text := columns[4][columns[3][row - 1] if row else 0 : columns[3][row]]):
            item |= json.loads(text)
        if columns[9][row]:
            item["chain"] = columns[9][row]
        for _ in range(max(min(columns[8][row], stop) - begin, 0)):
            made = {"file": columns[13][chunk], "at": columns[14][chunk], "bytes": columns[15][chunk]}
            if 17 in columns:
                made["digest"] = columns[17][chunk]
            if root["chains"][columns[9][row]]:
                made["number"] = next(numbers)
            else:
                size = 4 * -(-made["bytes"] // 2**20)
                made["crc32c"] = columns[18][crcs : crcs + size].hex()
                crcs += size
            if columns[12][chunk] == 4:
                made["span"] = [*next(spans)] if "number" in made else [0, made["bytes"]]
            if dtype:
                made |= {"offset": [*islice(boxes[0], ndim)], "shape": [*islice(boxes[1], ndim)]}
                if columns[12][chunk] == 3:
                    made["framed"] = True
                item["chunks"].append(made)
            else:
                item |= made
            chunk += 1


def frame_of(data: bytes) -> bytes:
    """A Zstandard frame that declares its size, of as many bytes as a root of that content must have."""
    marks = count_marks(data)
    return compress_to(data, max(-(-len(data) // 16) if len(data) > 2**20 else 0, 3 * marks if marks > 2**16 else 0))


def part_frame(raw: bytes) -> bytes:
    """The same of a part, as far as it is one."""
    least = 0
    with suppress(struct.error, ValueError, IndexError):
        _, _, rows, chunks = struct.unpack_from("<4sIII", raw)
        found = unpack_columns(raw)
        counted = 2 * rows + 4 * chunks + len(found.get(10, ())) + count_marks(bytes(found.get(4, b"")))
        least = max(least, min(counted if 10 in found else 16 * rows, len(raw)))
    return compress_to(raw, least)


def count_marks(text: bytes) -> int:
    return sum(map(text.count, (b",", b"[", b"{")))
