"""The conventions of docs/format.md, with what docs/format/codecs.md, floatzip.md and differences.md specify.

A part of reference_decoder.py, whose head says how rules are named.
"""

import base64
import re
import struct
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from math import ceil
from typing import Any

import crc32c
import lz4.block
import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM


class Refused(Exception):
    """The data breaks a rule of the format, or what the caller requires. The text begins with the rule."""

    rule = property(lambda self: str(self).partition(":")[0])


def check(holds: object, rule: str) -> None:
    if not holds:
        raise Refused(rule)


@contextmanager
def refusing(rule: str, *errors: type[Exception]) -> Iterator[None]:
    """Errors of the libraries below, as refusals."""
    try:
        yield
    except errors as error:
        raise Refused(f"{rule}: {error}") from None


class Fields:
    """Takes fields from the front of some bytes."""

    def __init__(self, data: bytes, where: str) -> None:
        self.data, self.at, self.where = data, 0, where

    def take(self, size: int) -> bytes:
        check(size <= len(self.data) - self.at, f"{self.where}: it ends too early")
        self.at += size
        return self.data[self.at - size : self.at]

    def unpack(self, form: str) -> tuple[Any, ...]:
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))

    def rest(self) -> bytes:
        return self.take(len(self.data) - self.at)


def crc(data: bytes) -> bytes:
    return struct.pack("<I", crc32c.crc32c(data))


def unbase64(text: str, rule: str) -> bytes:
    """The bytes of b64url in its one spelling."""
    with refusing(rule, ValueError):
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    check(base64.urlsafe_b64encode(data).decode().rstrip("=") == text, f"{rule}: base64url in its one spelling")
    return data


def matched(pattern: str, text: str, rule: str) -> list[str]:
    """The groups of a pattern that all of the text matches; a group that took no part is empty."""
    match = re.fullmatch(pattern, text)
    check(match, rule)
    return [group or "" for group in match.groups()] if match else []


# -- Descriptors


Descriptor = namedtuple("Descriptor", "text name version params fragment")  # the text is that without the fragment
PARAMS = r"[a-z][a-z0-9_]*=[A-Za-z0-9._~:-]*(?:&[a-z][a-z0-9_]*=[A-Za-z0-9._~:-]*)*"
DESCRIPTOR = rf"(([a-z][a-z0-9_-]*(?:\.[a-z][a-z0-9_-]*)+)/([1-9][0-9]{{0,4}})(?:\?({PARAMS}))?)(?:#({PARAMS}))?"
NOT_DEFAULT = {("streamxf.checksum", "algorithm"): "sha256"}  # the only parameter that decoding needs
LEVELS = {"streamxf.zstd": range(-7, 23), "streamxf.lz4": range(-64, 13)}


def parse_descriptor(text: str) -> Descriptor:
    head, name, version, *sides = matched(DESCRIPTOR, text, "descriptor: the grammar")
    check(len(head) <= 1024 and len(sides[1]) <= 65536, "D1")
    check(len(name) <= 64 and int(version) <= 65535, "descriptor: the name's length, or the version")
    params, fragment = ([pair.split("=") for pair in side.split("&") if pair] for side in sides)
    check(params == sorted(params), "D2: the order of parameters")
    for pairs in (params, fragment):
        keys = [key for key, _ in pairs if (name, key) != ("streamxf.encrypt", "w")]
        check(len(keys) == len(set(keys)), "descriptor: a key stands twice")
    return Descriptor(head, name, int(version), params, fragment)


def look_up(chain: list[Descriptor]) -> None:
    """What is found out about codecs when they are looked up."""
    for codec in chain:
        if codec.name.startswith("streamxf."):
            check(codec.name in CODECS and codec.version == 1, "D4")
            check(all(NOT_DEFAULT.get((codec.name, key)) == value for key, value in codec.params), "D2: a parameter")
            for key, value in codec.fragment:
                check(key == "level" and codec.name in LEVELS, "D2: a parameter in the fragment")
                check(re.fullmatch("0|-?[1-9][0-9]{0,2}", value), "D3")
                check(int(value) in LEVELS[codec.name], f"{codec.name[9:]}: level")
        check(codec.name in CODECS, "D4: a third party's codec, which is not here")
    names = [codec.name for codec in chain]
    if "streamxf.encrypt" in names:
        check(set(names[names.index("streamxf.encrypt") + 1 :]) <= {"streamxf.checksum"}, "D6")


# -- Codecs: each takes a payload, its parameters, the limit for what it gives, and the facts about the block


# The key is the stream key, and empty if the container is not keyed; `base` gives the block beneath, if there is one.
Block = namedtuple("Block", "number last key base", defaults=[None])


def decode(payload: bytes, chain: list[Descriptor], block_size: int, block: Block) -> bytes:
    look_up(chain)
    for place, codec in reversed(list(enumerate(chain))):
        limit = block_size if place == 0 else block_size + block_size // 16 + 1024
        payload = CODECS[codec.name](payload, codec.params, limit, block)
        check(len(payload) <= limit, "C8")
    return payload


def undo(stream: bytes, transforms: list[Descriptor]) -> bytes:
    for transform in reversed(transforms):
        check(transform.name in TRANSFORMS, f"D5: nothing here undoes {transform.name}")
        stream = TRANSFORMS[transform.name](stream)
    return stream


def unzstd(data: bytes, limit: int, exact: bool = False) -> bytes:
    """The content of one Zstandard frame that declares at most `limit` bytes, or exactly as many."""
    rule = "floatzip: a frame declares another size" if exact else "zstd: the size is not declared, or above the limit"
    check(data[:4] == bytes.fromhex("28B52FFD"), "zstd: no frame, or a skippable one")
    with refusing("zstd", zstandard.ZstdError):
        frame = zstandard.get_frame_parameters(data)
        check(frame.content_size <= limit, rule)
        check(frame.window_size <= 1 << 27 and frame.dict_id == 0, "zstd: the window, or a dictionary")
        decoder = zstandard.ZstdDecompressor(max_window_size=1 << 27)
        content = decoder.stream_reader(data).read(frame.content_size + 1)
        check(len(content) == frame.content_size, "zstd: not the size that is declared")
        whole = decoder.decompressobj()
        whole.decompress(data)  # once more, now that its size is known
        check(whole.eof and not whole.unused_data, "zstd: bytes are missing, or follow the frame")
    check(frame.content_size == limit or not exact, rule)
    return content


def decode_lz4(payload: bytes, params: list[list[str]], limit: int, block: Block) -> bytes:
    check(payload, "lz4: an empty payload")
    with refusing("lz4", lz4.block.LZ4BlockError):
        return bytes(lz4.block.decompress(payload, uncompressed_size=limit))


def decode_checksum(payload: bytes, params: list[list[str]], limit: int, block: Block) -> bytes:
    size = 32 if params else 4
    check(size <= len(payload) <= limit + size, "checksum: too short, or above the limit")
    data, digest = payload[:-size], payload[-size:]
    check(digest == (sha256(data).digest() if params else crc(data)), "checksum: the digest")
    return data


def decode_encrypt(payload: bytes, params: list[list[str]], limit: int, block: Block) -> bytes:
    check(16 <= len(payload) <= limit + 16, "encrypt: too short, or above the limit")
    with refusing("encrypt: the tag", InvalidTag):
        return AESGCM(block.key).decrypt(block.number.to_bytes(11, "big") + bytes([block.last]), payload, None)


def decode_floatzip(payload: bytes, params: list[list[str]], limit: int, block: Block) -> bytes:
    if payload[:1] >= b"\x80":
        check(block.base, "floatzip: a difference, and no block beneath")
        return decode_difference(block.base(block.number), payload)
    f = Fields(payload, "floatzip")
    [layout] = f.unpack("B")
    if layout == 0:
        check(len(payload) - 1 <= limit, "Z1")
        return f.rest()
    check(layout >> 6 == 1, "floatzip: bits 6 and 7 of the layout")
    width, rotated, phase, [raw_size] = 1 << (layout & 3), layout & 4, layout >> 3 & 7, f.unpack("I")
    check(phase < width and not (rotated and width == 1) and raw_size <= limit, "Z1")
    n = (raw_size - phase) // width
    check(n >= 1, "Z2")
    planes: list[tuple[int, int, int]] = []  # coding, lane, stored size
    while sum(lane for _, lane, _ in planes) < width:
        kind, size = f.unpack("BI")
        check(kind in (0, 1, 2, 3, 4, 5, 8), "floatzip: a kind of plane")
        planes.append((5, 1, size) if kind == 5 else (kind & 3, 1 << (kind >> 2), size))
    check(sum(lane for _, lane, _ in planes) == width, "Z3")
    check(width > 1 or planes[0][0] in (1, 2), "Z3: of one byte")
    check(not any(f.take(-f.at % 8)), "floatzip: zeros before the planes")
    raw_first = sorted(range(len(planes)), key=lambda i: planes[i][0] != 0)
    stored = {i: f.take(planes[i][2]) for i in raw_first}
    edges = f.rest()
    check(len(edges) == raw_size - n * width, "Z4")
    numbers, low = bytearray(n * width), 0
    for i, (coding, lane, _) in enumerate(planes):
        plane = decode_plane(stored[i], coding, lane, n)
        for byte in range(lane):
            numbers[low + byte :: width] = plane[byte::lane]
        low += lane
    if rotated:
        form, top = f"<{n}{'BHIQ'[layout & 3]}", 8 * width - 1
        numbers[:] = struct.pack(form, *(y >> 1 | (y & 1) << top for y in struct.unpack(form, numbers)))
    return edges[:phase] + bytes(numbers) + edges[phase:]


def decode_plane(data: bytes, coding: int, lane: int, n: int) -> bytes:
    if coding == 0:
        check(len(data) == n * lane, "floatzip: the stored size of a raw plane")
        return data
    if coding == 1:
        return unzstd(data, n, exact=True)
    if coding == 2:
        return decode_packed(data, n)
    if coding == 5:
        return decode_fixed(data, n)
    f = Fields(data, "floatzip")
    check(f.take(4) == b"\6\0\0\0", "floatzip: the first four bytes of a levelled plane")
    period, size = f.unpack("II")
    check(1 <= period <= 65536, "floatzip: P")
    rows = ceil(n / 64)
    levels = unzstd(f.take(size), rows + period, exact=True)
    plane = decode_packed(f.rest(), n)
    return bytes((x + levels[i // 64] + levels[rows + i % period]) & 255 for i, x in enumerate(plane))


def decode_packed(data: bytes, n: int) -> bytes:
    f = Fields(data, "floatzip")
    base, zeros, m = f.unpack("B3sI")
    check(not any(zeros) and m <= n, "floatzip: three zeros, or more places than elements")
    places, values = f.unpack(f"{m}I"), f.take(m)
    check(sorted({*places, n}) == [*places, n], "floatzip: the places rise strictly and are below n")
    frame = unzstd(f.rest(), ceil(n / 2), exact=True)
    check(n % 2 == 0 or frame[-1] >> 4 == 0, "floatzip: the last four bits")
    plane = bytearray(2 * len(frame))
    plane[0::2] = bytes((base + (byte & 15)) & 255 for byte in frame)
    plane[1::2] = bytes((base + (byte >> 4)) & 255 for byte in frame)
    for place, value in zip(places, values, strict=True):
        plane[place] = value
    return bytes(plane[:n])


def decode_fixed(data: bytes, n: int) -> bytes:
    f = Fields(data, "floatzip")
    base, bits, zeros, m = f.unpack("BB2sI")
    check(1 <= bits <= 7 and not any(zeros) and m <= n, "floatzip: bits, two zeros, or more gaps than elements")
    codes: list[int] = []
    for _ in range(ceil(n / 512)):
        group = f.take(64 * bits)
        numbers = [int.from_bytes(group[k::64], "little") for k in range(64)]
        codes += [number >> bits * place & (1 << bits) - 1 for place in range(8) for number in numbers]
    check(not any(codes[n:]), "floatzip: codes of elements that are not there")
    plane, gaps, values = bytearray((base + code) & 255 for code in codes[:n]), f.take(m), f.take(m)
    check(f.rest() == b"", "floatzip: bytes behind a fixed plane")
    place = -1
    for gap, value in zip(gaps, values, strict=True):
        place += gap + 1
        check(place < n, "floatzip: an exception behind the last element")
        plane[place] = value
    return bytes(plane)


class Bits:
    """Takes bits, of which the first is the lowest of the first byte."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> int:
        begin, self.at = self.at, self.at + count
        check(self.at <= 8 * len(self.data), "difference: it ends too early")
        number = int.from_bytes(self.data[begin // 8 : (self.at + 7) // 8], "little")
        return number >> begin % 8 & (1 << count) - 1

    def count(self) -> int:
        return self.take(self.take(5))

    def members(self, contexts: dict[int, int], most: int) -> list[int]:
        """Which elements, whose contexts are given by their places, belong to the next set, of so many bands."""
        members, low, bands, more = set(), 0, 0, 1
        while more:
            more = self.take(1)
            cut = self.take(8) if more else 255
            bands += 1
            check(low <= cut and not (more and cut == 255) and bands <= most, "difference: bands")
            places = [place for place, context in contexts.items() if low <= context <= cut]
            low, inverted, listed, at = cut + 1, self.take(1), set(), 0
            held = self.count()
            k = self.take(5) if held else 0
            for _ in range(held):
                while not self.take(1):
                    at += 1 << k
                at += self.take(k)
                check(at < len(places), "difference: an element that its band does not have")
                listed.add(places[at])
                at += 1
            members |= set(places) - listed if inverted else listed
        return sorted(members)


def decode_difference(base: bytes, payload: bytes) -> bytes:
    f = Fields(payload, "difference")
    layout, expected, levels = f.unpack("B4sB")
    width, most = 1 << (layout & 3), 6 if layout & 4 else 1
    check(len(payload) <= len(base) // 2 + 64, "difference: too long")
    check(layout >> 3 == 16 and width <= 4 and levels <= 8 * width, "difference: layout or L")
    check(len(base) % width == 0, "difference: the size of the block")
    bits, form = Bits(f.rest()), f"<{len(base) // width}{'BHI'[layout & 3]}"
    elements = list(struct.unpack(form, base))
    live = {place: (x << 1 >> 8 * width - 8) & 255 if layout & 4 else 0 for place, x in enumerate(elements)}
    if levels:
        if bits.take(1):
            row, before = bits.count(), bits.count()
            check(before < row <= len(elements), "difference: rows")
            rows = set(bits.members(dict.fromkeys(range(-(-(before + len(elements)) // row)), 0), 1))
            live = {place: context for place, context in live.items() if (place + before) // row in rows}
        changed = left = bits.members(live, most)
        level = dict.fromkeys(changed, 0)
        for _ in range(levels - 1):
            left = bits.members({place: live[place] for place in left}, most)
            for place in left:
                level[place] += 1
        for place in changed:
            sign = 1 - 2 * bits.take(1)
            elements[place] += sign * ((1 << level[place]) + bits.take(level[place]))
    rest = 8 * len(bits.data) - bits.at
    check(rest < 8 and bits.take(rest) == 0, "difference: bits behind the last element")
    block = struct.pack(form, *(x % (1 << 8 * width) for x in elements))
    check(crc(block) == expected, "difference: the CRC")
    return block


# A codec of a third party is registered by adding it to CODECS; stream transforms are undone by what is in TRANSFORMS.
CODECS = {
    "streamxf.zstd": lambda payload, params, limit, block: unzstd(payload, limit),
    "streamxf.lz4": decode_lz4,
    "streamxf.checksum": decode_checksum,
    "streamxf.encrypt": decode_encrypt,
    "streamxf.floatzip": decode_floatzip,
}
TRANSFORMS: dict[str, Any] = {}
