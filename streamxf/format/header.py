"""A container's header, and the identity that binds a stream to its item; docs/format.md, "Header"."""

from __future__ import annotations

import hashlib
import math
import operator
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import crc32c

from streamxf.descriptor import ENCRYPT, Descriptor
from streamxf.errors import ContainerError, DescriptorError, shorten
from streamxf.format import limits
from streamxf.format.items import coded_dtype, elements_size, known_dtype, stored_width

KEYED, BOUND, PUBLISHED, BASED = 1, 2, 4, 8

_FIXED = struct.Struct("<8s4sBHH16s")
_IDENTITY = struct.Struct("<16sQBBBB")
_CRC = struct.Struct("<I")
_INTEGERS = {1: "B", 2: "H", 4: "I", 8: "Q"}


def format_fault(format_bytes: bytes, known: int = 0) -> str | None:
    """Why something with these format bytes cannot be read by who knows these critical flags; its name goes before."""
    version, suite, critical, _ = format_bytes
    if (version, suite) == (limits.VERSION, limits.SUITE) and not critical & ~known:
        return None
    ours = f"version {limits.VERSION}, suite {limits.SUITE}, flags {known}. Upgrade streamxf if it is newer"
    return f"has format version {version}, suite {suite} and critical flags {critical}; this streamxf reads {ours}"


class Kind(IntEnum):
    OBJECT = 1
    TENSOR = 2
    FRAMED = 3
    VALUE = 4

    def __str__(self) -> str:
        return "framed tensor" if self is Kind.FRAMED else self.name.lower()


class Identity(NamedTuple):
    """Which item a stream is; for an object `dtype` and the shapes are empty. That of values, which share one, has no
    name in the header.

    - `writer_id`: 16 random bytes of the process and save that wrote it.
    - `dtype`: as torch names it; with the bits of an element, ``"float6:8"``, if that is not known here.
    - `offset`, `shape`: of the shard, in elements.
    - `number`: another for each container of the writer.
    """

    writer_id: bytes
    kind: Kind
    name: str
    dtype: str = ""
    offset: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    tensor_shape: tuple[int, ...] = ()
    number: int = 0

    @property
    def size(self) -> int:
        """The bytes of a shard's elements; 0 for an object, and where an element has no size."""
        if self.kind is Kind.TENSOR:
            return math.prod(self.shape) * stored_width(self.dtype)
        return elements_size(self.dtype, self.shape)

    def pack(self) -> bytes:
        try:
            name = self.name.encode("utf-8") if self.kind is not Kind.VALUE else b""
        except UnicodeEncodeError:
            raise ContainerError("the item's name is not valid Unicode", item=ascii(self.name)) from None
        ndim = len(self.offset)
        width, geometry = self._geometry()
        spare = limits.MAX_IDENTITY - _IDENTITY.size - len(geometry)
        if not (self.kind is not Kind.VALUE) <= len(name) <= spare or ndim > limits.MAX_NDIM:
            text = f"a name of {len(name):,} bytes, and 1 to {spare:,} fit beside its dtype and shape. Rename it"
            if ndim > limits.MAX_NDIM:
                text = f"{ndim} dimensions, and {limits.MAX_NDIM} are the most. Reshape it"
            raise ContainerError(f"the item has {text}", item=shorten(self.name))
        start = _IDENTITY.pack(self.writer_id, self.number, self.kind, ndim, len(coded_dtype(self.dtype)), width)
        return start + geometry + name

    @classmethod
    def parse(cls, data: bytes) -> Identity:
        if len(data) < _IDENTITY.size:
            raise ContainerError("the header's identity is too short")
        writer_id, number, kind, ndim, dtype_len, width = _IDENTITY.unpack_from(data)
        numbers_at = _IDENTITY.size + dtype_len
        name_at = numbers_at + 3 * ndim * width
        fits = kind in tuple(Kind) and width in _INTEGERS
        if not fits or ndim > limits.MAX_NDIM or dtype_len > limits.MAX_DTYPE or name_at > len(data):
            raise ContainerError("the header's identity is malformed")
        numbers = struct.unpack_from(f"<{3 * ndim}{_INTEGERS[width]}", data, numbers_at)
        try:
            dtype = data[_IDENTITY.size : numbers_at].decode("ascii")
            name = data[name_at:].decode("utf-8")
        except UnicodeDecodeError:
            raise ContainerError("the item's name or dtype in the header is not text") from None
        offset, shape, tensor_shape = numbers[:ndim], numbers[ndim : 2 * ndim], numbers[2 * ndim :]
        known = known_dtype(dtype) if dtype else ""
        if known is None:
            raise ContainerError(f"the header's identity has a dtype that cannot be, {shorten(dtype)!r}")
        identity = cls(writer_id, Kind(kind), name, known, offset, shape, tensor_shape, number)
        if identity._geometry() != (width, data[_IDENTITY.size : name_at]):
            raise ContainerError("the header's identity has wider integers than it needs")
        if (kind == Kind.VALUE) == bool(name):
            raise ContainerError("the header's identity has no name, or one for the values of many items")
        return identity

    def _geometry(self) -> tuple[int, bytes]:
        if self.number > limits.MAX_NUMBER:
            raise ContainerError("the header's identity has a number that is too large")
        return _geometry(self.kind, self.dtype, self.offset, self.shape, self.tensor_shape)


_Ints = tuple[int, ...]


@lru_cache(1024)
def _geometry(kind: Kind, dtype: str, offset: _Ints, shape: _Ints, tensor_shape: _Ints) -> tuple[int, bytes]:
    """Bytes of the narrowest integers for a shard, and its dtype and these as they are stored: layers are alike."""
    plain = kind in (Kind.OBJECT, Kind.VALUE)
    if plain and (dtype or offset):
        raise ContainerError("the header's identity gives an object a dtype or a shape")
    if not plain and not dtype:
        raise ContainerError("the header's identity has no dtype")
    alike = len(offset) == len(shape) == len(tensor_shape)
    inside = alike and all(map(operator.le, map(operator.add, offset, shape), tensor_shape))
    if not inside or math.prod(filter(None, tensor_shape)) > limits.MAX_NUMBER:
        raise ContainerError("the header's identity has a shard that is not inside its tensor, or is too large")

    numbers = (*offset, *shape, *tensor_shape)
    width = next(width for width in _INTEGERS if max(numbers, default=0) < 1 << 8 * width)
    return width, coded_dtype(dtype).encode("ascii") + struct.pack(f"<{len(numbers)}{_INTEGERS[width]}", *numbers)


@dataclass(slots=True)
class Header:
    """A container's header; nothing changes one. There is one for each item, and frozen classes are slow to make.

    - `chain`: descriptors in save order, without fragments; stream transforms, which come first, begin with ``!``.
    - `published`: whether streamxf's own DCP writer made it as part of a checkpoint; then it is bound, too.
    - `informative`: flags that readers ignore.
    - `base`: H of the container beneath, 32 bytes, in one that holds a difference.
    - `seal`: 32 bytes, in a keyed stream, that is one whose chain encrypts.
    - `keyed`, `size`, `body`, `digest`: whether its chain encrypts, its bytes, those before the seal, the format's H.
    """

    block_log2: int
    chain: tuple[str, ...]
    salt: bytes
    identity: Identity | None = None
    published: bool = False
    informative: int = 0
    seal: bytes | None = None
    base: bytes = b""
    keyed: bool = field(init=False, repr=False, compare=False)
    size: int = field(init=False, repr=False, compare=False)
    body: bytes = field(init=False, repr=False, compare=False)
    digest: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not limits.MIN_BLOCK_LOG2 <= self.block_log2 <= limits.MAX_BLOCK_LOG2:
            raise ContainerError(f"block_log2 is {self.block_log2}; 16 to 24 are allowed (64 KiB to 16 MiB)")
        if len(self.salt) != limits.SALT_BYTES:
            raise ContainerError(f"a salt has {limits.SALT_BYTES} bytes, not {len(self.salt)}")
        if self.published and self.identity is None:
            raise ContainerError("a stream cannot be published without being bound to its item")
        text, transforms, self.keyed = _Chain.of(self.chain)
        kind = self.identity.kind if self.identity is not None else None
        if kind in (Kind.TENSOR, Kind.VALUE) and (not self.published or transforms):
            raise ContainerError(
                "only a published container without stream transforms holds a tensor's elements, or values"
            )
        identity = self.identity.pack() if self.identity is not None else b""
        flags = KEYED * self.keyed | BOUND * bool(identity) | PUBLISHED * self.published | BASED * bool(self.base)
        format_bytes = bytes((limits.VERSION, limits.SUITE, flags, self.informative))
        fields = format_bytes, self.block_log2, len(text), len(identity), self.salt
        self.body = _FIXED.pack(limits.CONTAINER_MAGIC, *fields) + text + identity + self.base
        self.size = len(self.body) + limits.SEAL_BYTES * self.keyed + _CRC.size
        self.digest = hashlib.sha256(self.body).digest()

    @property
    def block_size(self) -> int:
        return 1 << self.block_log2

    @property
    def block_chain(self) -> tuple[str, ...]:
        return self.chain[_Chain.of(self.chain).transforms :]

    @classmethod
    def expected(cls, data: bytes, chain: tuple[str, ...], identity: Identity) -> Header | None:
        """The header at the start of `data`, if it is the one that a published container of this item must have; else
        None. All but its block size, salt, seal and informative flags is known, so nothing has to be parsed.
        """
        try:
            _, format_bytes, block_log2, _, _, salt = _FIXED.unpack_from(data)
            header = cls(block_log2, chain, salt, identity, True, format_bytes[-1])
        except (ContainerError, struct.error):  # of which `parse` says what it is
            return None
        stored = data[: header.size]
        header.seal = _seal_in(stored, header.keyed)
        return header if header.pack() == stored else None

    def pack(self, seal: bytes | None = None) -> bytes:
        """The whole header; `seal` stands in place of its own, which follows from the digest."""
        seal = self.seal if seal is None else seal
        if self.keyed != (seal is not None):
            raise ContainerError("a header has a seal exactly if its chain encrypts")
        data = self.body + (seal or b"")
        return data + _CRC.pack(crc32c.crc32c(data))

    @classmethod
    def parse(cls, data: bytes) -> Header:
        """Read a header that is exactly `data`, of `header_size`. Raises ContainerError if not as the format says."""
        size = header_size(data)
        if len(data) != size:
            raise ContainerError(f"the header should have {size} bytes, and has {len(data)}")
        if _CRC.unpack_from(data, size - _CRC.size)[0] != crc32c.crc32c(data[: size - _CRC.size]):
            raise ContainerError("the header's CRC does not match: it is damaged")
        _, (_, _, flags, informative), block_log2, chain_len, ident_len, salt = _FIXED.unpack_from(data)
        identity_at = limits.HEADER_FIXED_BYTES + chain_len
        try:
            text = data[limits.HEADER_FIXED_BYTES : identity_at].decode("ascii")
        except UnicodeDecodeError:
            raise ContainerError("the header's chain is not ASCII") from None
        chain = tuple(text.split("\n")) if text else ()
        identity = Identity.parse(data[identity_at : identity_at + ident_len]) if ident_len else None
        based = data[identity_at + ident_len :][: limits.DIGEST_BYTES] if flags & BASED else b""
        about = identity, bool(flags & PUBLISHED), informative, _seal_in(data, flags), based
        header = cls(block_log2, chain, salt, *about)
        if header.keyed != bool(flags & KEYED):
            raise ContainerError("the header's flag for encryption contradicts its chain")
        return header


class _Chain(NamedTuple):
    """A header's view of a chain: its bytes, the number of stream transforms in front, and whether it encrypts."""

    text: bytes
    transforms: int
    keyed: bool

    @staticmethod
    @lru_cache(16)  # all items of a checkpoint have one chain
    def of(chain: tuple[str, ...]) -> _Chain:
        try:
            text = "\n".join(chain).encode("ascii")
        except UnicodeEncodeError:
            raise ContainerError("a chain's descriptors are ASCII") from None
        if len(chain) > limits.MAX_CODECS or len(text) > limits.MAX_CHAIN:
            raise ContainerError(
                f"a chain has at most {limits.MAX_CODECS} codecs and {limits.MAX_CHAIN} characters of descriptors"
            )
        marked = [each.startswith("!") for each in chain]
        count = sum(marked)
        if any(marked[count:]) or any(each.startswith("!streamxf.") for each in chain):
            raise ContainerError("the header's chain has a stream transform after a codec, or with a reserved name")
        try:
            fragments = [Descriptor.parse(each.removeprefix("!")).fragment for each in chain]
        except DescriptorError as error:
            raise ContainerError(f"the header's chain: {error.message}") from None
        if any(fragments):
            raise ContainerError("the header's chain has a descriptor with a fragment")
        return _Chain(text, count, any(each.partition("/")[0] == ENCRYPT for each in chain))


def header_size(start: bytes) -> int:
    """The whole header's bytes, from its first 33. Raises ContainerError for other than this version's containers."""
    if len(start) < limits.HEADER_FIXED_BYTES:
        raise ContainerError("this is not a streamxf container, or it is truncated inside its header")
    magic, format_bytes, _, chain_len, ident_len, _ = _FIXED.unpack_from(start)
    if magic != limits.CONTAINER_MAGIC:
        raise ContainerError("this is not a streamxf container: it begins with other bytes")
    if fault := format_fault(format_bytes, KEYED | BOUND | PUBLISHED | BASED):
        raise ContainerError(f"the container {fault}")
    flags = format_bytes[2]
    contradicts = bool(flags & BOUND) != bool(ident_len) or (flags & PUBLISHED and not ident_len)
    contradicts |= bool(flags & BASED) > bool(flags & PUBLISHED)
    if chain_len > limits.MAX_CHAIN or ident_len > limits.MAX_IDENTITY or contradicts:
        raise ContainerError("the header is malformed: lengths and flags contradict each other or the format's limits")
    more = limits.SEAL_BYTES * bool(flags & KEYED) + limits.DIGEST_BYTES * bool(flags & BASED)
    return int(limits.HEADER_FIXED_BYTES + chain_len + ident_len + more + _CRC.size)


def _seal_in(data: bytes, flags: int) -> bytes | None:
    return data[-_CRC.size - limits.SEAL_BYTES : -_CRC.size] if flags & KEYED else None
