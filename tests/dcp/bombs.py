"""Metadata that would take memory or time if it could. Run as a program, it reads each and says what that took."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import resource
import struct
import time
from collections.abc import Callable

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from streamxf.container.limits import METADATA_MAGIC
from streamxf.dcp.metadata.file import load
from streamxf.errors import StreamxfError
from streamxf.keys import KeyRing

MIB = 2**20
ADDRESS_SPACE = 8 * 2**30  # with torch's libraries in it
PROTO = b"\x80\x04"


def text(value: str) -> bytes:
    """BINUNICODE."""
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def name(cls: type) -> bytes:
    """GLOBAL."""
    return f"c{cls.__module__}\n{cls.__qualname__}\n".encode()


def number(value: int) -> bytes:
    """LONG1."""
    return b"\x8a\x09" + value.to_bytes(9, "little", signed=True)


SIZE = b"ctorch\nSize\n"
PATH = b"cpathlib\nPurePosixPath\n"


def nested_keys() -> bytes:
    """A tuple of a tuple of a tuple..., each twice in the next, for a key: 2^64 steps to hash."""
    tower = b"K\x01" + b"".join(b"q" + bytes([level]) + b"h" + bytes([level]) + b"\x86" for level in range(64))
    return PROTO + b"}" + tower + b"Ns."


def wide_keys() -> bytes:
    """The same, flat: a thousand times the same one, three levels deep."""
    out = b"K\x01"
    for level in range(3):
        out += b"q" + bytes([level]) + b"(" + (b"h" + bytes([level])) * 1000 + b"t"
    return PROTO + out + b"q\x03}h\x03Ns."


def shared_path() -> bytes:
    """A path of many parts that are one long text."""
    return PROTO + text("x" * 60_000) + b"\x94" + PATH + b"(" + b"h\x00" * 60_000 + b"tR."


def paths_of_a_shared_text() -> bytes:
    return PROTO + text("x" * 60_000) + b"\x94" + PATH + b"\x94" + b"(" + b"h\x01h\x00\x85R" * 100_000 + b"t."


def shared_shape() -> bytes:
    """Many shapes of 64 dimensions out of one tuple."""
    return PROTO + b"(" + b"K\x01" * 64 + b"t\x85\x94" + SIZE + b"\x94" + b"(" + b"h\x01h\x00R" * 300_000 + b"t."


def shared_chunks() -> bytes:
    """Many tensors that have one long list of chunks in common."""
    shape = SIZE + b"K\x01\x85\x85R\x94"  # 0
    chunk = name(ChunkStorageMetadata) + b")\x81}(" + text("offsets") + b"h\x00" + text("sizes") + b"h\x00ub\x94"  # 1
    chunks = b"](" + b"h\x01" * 50_000 + b"e\x94"  # 2
    properties = name(TensorProperties) + b")\x81" + properties_state() + b"b\x94"  # 3
    keys = b"".join(text(key) + b"\x94" for key in ("properties", "size", "chunks"))  # 4, 5, 6
    cls = name(TensorStorageMetadata) + b"\x94"  # 7
    tensor = b"h\x07)\x81}(h\x04h\x03h\x05h\x00h\x06h\x02ub"
    return PROTO + shape + chunk + chunks + properties + keys + cls + b"(" + tensor * 20_000 + b"t."


def properties_state() -> bytes:
    encoding = b"ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\nK\x00\x85R"
    layout = b"ctorch.serialization\n_get_layout\n" + text("torch.strided") + b"\x85R"
    return b"(ctorch\nfloat32\n" + layout + b"\x89" + encoding + b"\x89t"


def shared_attributes() -> bytes:
    """Many instances that get one long table of unknown attributes."""
    many = b"".join(text(f"a{at}") + b"N" for at in range(20_000))
    table = b"}(" + many + b"u\x94"
    return PROTO + table + name(BytesStorageMetadata) + b"\x94(" + b"h\x01)\x81h\x00b" * 50_000 + b"t."


def same_hashes() -> bytes:
    """Places of items whose offsets were chosen to share one hash: every new key is compared with all the others."""
    out = PROTO + text("w") + b"\x94" + name(MetadataIndex) + b"\x94" + SIZE + b"\x94"
    out += text("fqn") + b"\x94" + text("offset") + b"\x94}"
    for first, second in colliding(20_000):
        out += b"h\x01)\x81}(h\x03h\x00h\x04h\x02" + number(first) + number(second) + b"\x86\x85RubNs"
    return out + b"."


def colliding(count: int) -> list[tuple[int, int]]:
    """Pairs of numbers that hash alike; CPython's hash of tuples can be run backwards."""
    one, two, mask = 11400714785074694791, 14029467366897019727, 2**64 - 1
    start = 2870177450012600261
    inverse = pow(two, -1, 2**64)
    target = 0x0123456789ABCDEF
    found: list[tuple[int, int]] = []
    first = 0
    while len(found) < count:
        first += 1
        lane = (start + first * two) & mask
        lane = (((lane << 31) | (lane >> 33)) & mask) * one & mask
        second = (target - lane) * inverse & mask
        if second < 2**61 - 1:
            found.append((first, second))
    assert len({hash(pair) for pair in found[:100]}) == 1
    return found


def shared_empty_parts() -> bytes:
    """Paths of many parts, none of which has a character."""
    parts = b"(" + b"h\x00" * 60_000 + b"t\x94"
    return PROTO + text("") + b"\x94" + PATH + b"\x94" + parts + b"(" + b"h\x01h\x02R" * 20_000 + b"t."


def equal_keys() -> bytes:
    """Two long texts that are equal, each for a key again and again: they are compared from end to end."""
    twins = (text("x" * MIB) + b"\x94") * 2
    return PROTO + twins + b"}" + b"h\x00Nsh\x01Ns" * (MIB // 4) + b"."


def equal_keys_at_once() -> bytes:
    """The same in one opcode."""
    twins = (text("x" * MIB) + b"\x94") * 2
    return PROTO + twins + b"}(" + b"h\x00Nh\x01N" * (MIB // 3) + b"u."


def shared_tables() -> bytes:
    """Many Metadata that are made of one table; each copies it."""
    count = 10_923  # whose table has grown just before
    items = b"".join(b"\x8c\x05" + f"{at:05}".encode() + b"h\x00" for at in range(count))
    out = PROTO + name(BytesStorageMetadata) + b")\x81\x94}(" + items + b"u\x94" + name(Metadata) + b"\x94"
    one = b"h\x02)\x81}h\x03h\x01sb" + b"C\xff" + bytes(255) + b"B" + struct.pack("<I", count) + bytes(count)
    return out + text("state_dict_metadata") + b"\x94(" + one * 300 + b"t."


def instances_in_instances() -> bytes:
    """What is looked at to find out how the next instances may be written is deeper than any of them."""
    out = PROTO + name(TensorStorageMetadata) + b"\x94" + text("chunks") + b"\x94" + b"h\x00)\x81\x94" * 47
    return out + b"h\x00)\x81\x94}\x94(h\x01]\x94(" * 5_000 + b"."


def endless_instance() -> bytes:
    """One that is written with more opcodes than any is, and looked at for the same reason."""
    names = name(TensorStorageMetadata), text("chunks"), name(BytesStorageMetadata)
    out = PROTO + b"".join(one + b"\x94" for one in names)
    out += b"h\x00)\x81\x94" * 47 + b"h\x00)\x81\x94}\x94(h\x01]\x94("
    return out + b"h\x02)\x81\x94}\x94(ub" * 100_000 + b"eub."


def long_paths() -> bytes:
    """Paths of the most steps that there may be, of which no two begin alike, and two lists that are too long."""
    ways = [b"(M" + struct.pack("<H", at) + b"K\x00" * 255 + b"t" for at in range(2000)]
    ways += [text(root) + b"J\xff\xff\x0f\x00\x86" for root in "ab"]
    paths = b"".join(text(str(at)) + way for at, way in enumerate(ways))
    content = text("state_dict_metadata") + b"}" + text("planner_data") + b"}(" + paths + b"u"
    return PROTO + name(Metadata) + b")\x81}(" + content + b"ub."


def corners() -> bytes:
    """Tensors cut along many dimensions."""
    items = {}
    places = {}
    for at in range(200):
        ones = torch.Size([1] * 16)
        chunks = [
            ChunkStorageMetadata(torch.Size([int(axis == part) for axis in range(16)]), ones) for part in range(16)
        ]
        items[str(at)] = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size([2] * 16), chunks)
        places.update({MetadataIndex(str(at), chunk.offsets): _StorageInfo("a", 0, 1) for chunk in chunks})
    return pickle.dumps(Metadata(items, None, places))


def index_of(body: bytes) -> bytes:
    """A trailer whose digest matches."""
    tagged = PROTO + b"N." + body + len(body).to_bytes(4, "little")
    return tagged + hashlib.sha256(tagged).digest() + METADATA_MAGIC


def padded(piece: bytes, size: int, every: int) -> bytes:
    """JSON of `size` bytes: `piece` again and again, with spaces so that it comes once in `every` bytes."""
    return b'{"packages":[' + piece.ljust(every) * (size // every) + b"0]}"


BOMBS: dict[str, Callable[[], bytes]] = {
    "memo index of two thousand million": lambda: PROTO + b"Nr\xff\xff\xff\x7f0.",
    "memo index of a hundred million": lambda: b"\x80\x02]r\x00\xe1\xf5\x05.",
    "text longer than the file": lambda: PROTO + b"X\xff\xff\xff\x7fabc.",
    "text of 2^40 bytes": lambda: PROTO + b"\x8d" + (2**40).to_bytes(8, "little") + b"abc.",
    "bytes object of 2 GiB": lambda: PROTO + b"B\xff\xff\xff\x7fabc.",
    "bytes object of 2^40 bytes": lambda: PROTO + b"\x8e" + (2**40).to_bytes(8, "little") + b"abc.",
    "bytearray of 2^40 bytes": lambda: b"\x80\x05\x96" + (2**40).to_bytes(8, "little") + b"abc.",
    "number of 2 GiB": lambda: PROTO + b"\x8b\xff\xff\xff\x7fabc.",
    "number of a million digits": lambda: PROTO + b"I" + b"9" * 1_000_000 + b"\n.",
    "frame of 2^60 bytes": lambda: PROTO + b"\x95" + (2**60).to_bytes(8, "little") + b"N.",
    "name without an end": lambda: b"\x80\x02c" + b"x" * MIB,
    "nested keys": nested_keys,
    "wide keys": wide_keys,
    "keys that share a hash": same_hashes,
    "marks": lambda: PROTO + b"(" * MIB,
    "tables": lambda: PROTO + b"}" * MIB,
    "lists": lambda: PROTO + b"(" + b"]" * MIB + b"t.",
    "lists in lists": lambda: PROTO + b"]" * MIB + b"a" * (MIB - 1) + b".",
    "tuples in tuples": lambda: PROTO + b")" + b"\x85" * MIB + b".",
    "instances": lambda: PROTO + name(BytesStorageMetadata) + b"\x94" + b"h\x00)\x81" * (MIB // 4) + b".",
    "nothings": lambda: PROTO + b"(" + b"N" * MIB + b"t.",
    "a shared path": shared_path,
    "paths of a shared text": paths_of_a_shared_text,
    "a shared shape": shared_shape,
    "shared chunks": shared_chunks,
    "shared attributes": shared_attributes,
    "shared empty parts of paths": shared_empty_parts,
    "OrderedDicts": lambda: PROTO + b"ccollections\nOrderedDict\n\x94(" + b"h\x00)R" * (MIB // 4) + b"t.",
    "equal keys": equal_keys,
    "equal keys at once": equal_keys_at_once,
    "shared tables": shared_tables,
    "instances in instances": instances_in_instances,
    "an instance without an end": endless_instance,
    "long paths": long_paths,
    "corners": corners,
    "manifest of lists": lambda: index_of(b"[" + b"[]," * (2 * MIB) + b"0]"),
    "manifest of tables": lambda: index_of(padded(b'{"a":0},', 8 * MIB, 8)),
    "manifest of numbers": lambda: index_of(padded(b"0,", 8 * MIB, 2)),
    "manifest as dense as is allowed": lambda: index_of(padded(b'{"":{}},', 8 * MIB, 80)),
    "manifest of nested lists": lambda: index_of(padded(b"[", 8 * MIB, 40)),
    "manifest of texts": lambda: index_of(padded(b'"abcdefghi",', 8 * MIB, 20)),
    "manifest of one long number": lambda: index_of(b"9" * (8 * MIB)),
}


def main() -> None:
    for label, build in BOMBS.items():
        data = build()
        if os.fork():  # a process of its own for each, whose peak begins where this one is now
            _, status = os.wait()
            assert status == 0, label
            continue
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        before, start = peak(), time.process_time()
        try:
            load(data, KeyRing())
            error = None
        except StreamxfError as found:
            error = f"{type(found).__name__}: {found}"
        seconds = time.process_time() - start
        print(json.dumps([label, error, len(data), peak() - before, seconds]), flush=True)
        os._exit(0)


def peak() -> int:
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
