"""A container's header, and the identity that binds a stream to its item; docs/format.md, "Header"."""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import crc32c

from streamxf.descriptor import ENCRYPT, Descriptor, shorten
from streamxf.errors import ContainerError, DescriptorError
from streamxf.format.items import ITEMSIZES, is_dtype_name
from streamxf.format.limits import (
    CONTAINER_MAGIC,
    HEADER_FIXED_BYTES,
    MAX_BLOCK_LOG2,
    MAX_CHAIN,
    MAX_CODECS,
    MAX_DTYPE,
    MAX_IDENTITY,
    MAX_INT,
    MAX_NDIM,
    MIN_BLOCK_LOG2,
    SALT_BYTES,
    SEAL_BYTES,
    VERSION,
)

KEYED, BOUND, PUBLISHED, HASHED = 1, 2, 4, 8

_FIXED = struct.Struct("<8sBBBBHH32s")
_IDENTITY = struct.Struct("<16sBBBB")
_CRC = struct.Struct("<I")


class Kind(IntEnum):
    OBJECT = 1
    TENSOR = 2
    FRAMED = 3

    def __str__(self) -> str:
        return "framed tensor" if self is Kind.FRAMED else self.name.lower()


class Identity(NamedTuple):
    """Which item a stream is; for an object all but the first three are empty.

    - `writer_id`: 16 random bytes of the process and save that wrote it.
    - `dtype`: as torch names it.
    - `offset`, `shape`: of the shard, in elements.
    """

    writer_id: bytes
    kind: Kind
    name: str
    dtype: str = ""
    offset: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    tensor_shape: tuple[int, ...] = ()

    def pack(self) -> bytes:
        try:
            name = self.name.encode("utf-8")
        except UnicodeEncodeError:
            raise ContainerError("the item's name is not valid Unicode", item=ascii(self.name)) from None
        ndim = len(self.offset)
        dtype = self.dtype.encode("ascii")
        size = _IDENTITY.size + len(dtype) + 24 * ndim + len(name)
        if not name or size > MAX_IDENTITY or ndim > MAX_NDIM:
            raise ContainerError(
                f"an item has a name, at most {MAX_NDIM} dimensions, and both take at most {MAX_IDENTITY} bytes; this "
                f"one has {ndim} dimensions and takes {size} bytes",
                item=shorten(self.name),
            )
        self._check()
        numbers = struct.pack(f"<{3 * ndim}Q", *self.offset, *self.shape, *self.tensor_shape)
        return _IDENTITY.pack(self.writer_id, self.kind, ndim, len(dtype), 0) + dtype + numbers + name

    @classmethod
    def parse(cls, data: bytes) -> Identity:
        if len(data) < _IDENTITY.size:
            raise ContainerError("the header's identity is too short")
        writer_id, kind, ndim, dtype_len, reserved = _IDENTITY.unpack_from(data)
        numbers_at = _IDENTITY.size + dtype_len
        name_at = numbers_at + 24 * ndim
        if kind not in tuple(Kind) or ndim > MAX_NDIM or dtype_len > MAX_DTYPE or reserved or name_at >= len(data):
            raise ContainerError("the header's identity is malformed")
        numbers = struct.unpack_from(f"<{3 * ndim}Q", data, numbers_at)
        try:
            dtype = data[_IDENTITY.size : numbers_at].decode("ascii")
            name = data[name_at:].decode("utf-8")
        except UnicodeDecodeError:
            raise ContainerError("the item's name or dtype in the header is not text") from None
        offset, shape, tensor_shape = numbers[:ndim], numbers[ndim : 2 * ndim], numbers[2 * ndim :]
        identity = cls(writer_id, Kind(kind), name, dtype, offset, shape, tensor_shape)
        identity._check()
        return identity

    def _check(self) -> None:
        if self.kind is Kind.OBJECT:
            if self.dtype or self.offset:
                raise ContainerError("the header's identity gives an object a dtype or a shape")
            return
        known = self.dtype in ITEMSIZES if self.kind is Kind.TENSOR else is_dtype_name(self.dtype)
        if not known:
            raise ContainerError(f"the header's identity has an unknown dtype, {shorten(self.dtype)!r}")
        triples = zip(self.offset, self.shape, self.tensor_shape, strict=True)
        inside = all(begin + size <= whole <= MAX_INT for begin, size, whole in triples)
        if not inside or math.prod(size or 1 for size in self.tensor_shape) > MAX_INT:
            raise ContainerError("the header's identity has a shard that is not inside its tensor, or is too large")


@dataclass(frozen=True)
class Header:
    """A container's header.

    - `chain`: descriptors in save order, without fragments; stream transforms, which come first, have a ``!`` before
      them.
    - `published`: whether streamxf's own DCP writer made it as part of a checkpoint; then it is bound, too.
    - `hashed`: whether the table has a SHA-256 for each block.
    - `seal`: 32 bytes, in a keyed stream, that is one whose chain encrypts.
    - `body`: the header's bytes before the seal; `digest`, H of the format, is its SHA-256.
    - `size`: bytes of the whole header.
    """

    block_log2: int
    chain: tuple[str, ...]
    salt: bytes
    identity: Identity | None = None
    published: bool = False
    hashed: bool = False
    seal: bytes | None = None
    keyed: bool = field(init=False, repr=False)
    body: bytes = field(init=False, repr=False)
    digest: bytes = field(init=False, repr=False)
    size: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not MIN_BLOCK_LOG2 <= self.block_log2 <= MAX_BLOCK_LOG2:
            raise ContainerError(
                f"block_log2 is {self.block_log2}; {MIN_BLOCK_LOG2} to {MAX_BLOCK_LOG2} are allowed (64 KiB to 16 MiB)"
            )
        if len(self.salt) != SALT_BYTES:
            raise ContainerError(f"a salt has {SALT_BYTES} bytes, not {len(self.salt)}")
        chain = _Chain.of(self.chain)
        if self.published and self.identity is None:
            raise ContainerError("a stream cannot be published without being bound to its item")
        if self.identity is not None and self.identity.kind is Kind.TENSOR and (not self.published or chain.transforms):
            raise ContainerError("only a published container without stream transforms holds a tensor's elements")
        identity = self.identity.pack() if self.identity is not None else b""
        flags = KEYED * chain.keyed | BOUND * bool(identity) | PUBLISHED * self.published | HASHED * self.hashed
        lengths = 0, len(chain.text), len(identity)
        fixed = _FIXED.pack(CONTAINER_MAGIC, VERSION, self.block_log2, flags, *lengths, self.salt)
        body = fixed + chain.text + identity
        size = len(body) + (SEAL_BYTES if chain.keyed else 0) + _CRC.size
        self.__dict__.update(keyed=chain.keyed, body=body, digest=hashlib.sha256(body).digest(), size=size)

    @property
    def block_size(self) -> int:
        return 1 << self.block_log2

    @property
    def block_chain(self) -> tuple[str, ...]:
        return self.chain[_Chain.of(self.chain).transforms :]

    @classmethod
    def expected(cls, data: bytes, chain: tuple[str, ...], identity: Identity, hashed: bool) -> Header | None:
        """The header at the start of `data`, if it is the one that a published container of this item must have; else
        None. All but its block size, salt and seal is known, so nothing has to be parsed.
        """
        if len(data) < HEADER_FIXED_BYTES or not MIN_BLOCK_LOG2 <= data[9] <= MAX_BLOCK_LOG2:
            return None
        header = cls(data[9], chain, data[HEADER_FIXED_BYTES - SALT_BYTES : HEADER_FIXED_BYTES], identity, True, hashed)
        seal_at, crc_at = len(header.body), header.size - _CRC.size
        if data[:seal_at] != header.body or data[crc_at : header.size] != _CRC.pack(crc32c.crc32c(data[:crc_at])):
            return None
        return header.sealed(data[seal_at:crc_at]) if header.keyed else header

    def sealed(self, seal: bytes | None) -> Header:
        made = object.__new__(Header)  # the computed fields do not depend on the seal
        made.__dict__.update(self.__dict__, seal=seal)
        return made

    def pack(self) -> bytes:
        if self.keyed != (self.seal is not None):
            raise ContainerError("a header has a seal exactly if its chain encrypts")
        data = self.body + (self.seal or b"")
        return data + _CRC.pack(crc32c.crc32c(data))

    @classmethod
    def parse(cls, data: bytes) -> Header:
        """Read a header that is exactly `data`, which has `header_size`. Raises ContainerError if anything is not as
        the format says.
        """
        size = header_size(data)
        if len(data) != size:
            raise ContainerError(f"the header should have {size} bytes, and has {len(data)}")
        if _CRC.unpack_from(data, size - _CRC.size)[0] != crc32c.crc32c(data[: size - _CRC.size]):
            raise ContainerError("the header's CRC does not match: it is damaged")
        _, _, block_log2, flags, _, chain_len, ident_len, salt = _FIXED.unpack_from(data)
        identity_at = HEADER_FIXED_BYTES + chain_len
        chain = _parse_chain(data[HEADER_FIXED_BYTES:identity_at])
        identity = Identity.parse(data[identity_at : identity_at + ident_len]) if ident_len else None
        seal_at = size - _CRC.size - SEAL_BYTES
        seal = data[seal_at : seal_at + SEAL_BYTES] if flags & KEYED else None
        header = cls(block_log2, chain, salt, identity, bool(flags & PUBLISHED), bool(flags & HASHED), seal)
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
        if len(chain) > MAX_CODECS or len(text) > MAX_CHAIN:
            raise ContainerError(f"a chain has at most {MAX_CODECS} codecs and {MAX_CHAIN} characters of descriptors")
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
    """The whole header's size in bytes, from its first 48. Raises ContainerError if they do not begin a container of
    this version.
    """
    if len(start) < HEADER_FIXED_BYTES:
        raise ContainerError("this is not a streamxf container, or it is truncated inside its header")
    magic, version, block_log2, flags, reserved, chain_len, ident_len, _ = _FIXED.unpack_from(start)
    if magic != CONTAINER_MAGIC:
        raise ContainerError("this is not a streamxf container: its first bytes are others")
    if version != VERSION:
        raise ContainerError(
            f"the container has format version {version}; this streamxf reads version {VERSION}. Upgrade streamxf if "
            "it is newer"
        )
    unknown = flags & ~(KEYED | BOUND | PUBLISHED | HASHED)
    if not MIN_BLOCK_LOG2 <= block_log2 <= MAX_BLOCK_LOG2 or unknown or reserved:
        raise ContainerError("the header is malformed: a field has a value that version 1 does not define")
    contradicts = bool(flags & BOUND) != bool(ident_len) or (flags & PUBLISHED and not ident_len)
    if chain_len > MAX_CHAIN or ident_len > MAX_IDENTITY or contradicts:
        raise ContainerError("the header is malformed: lengths and flags contradict each other or the format's limits")
    return HEADER_FIXED_BYTES + int(chain_len) + int(ident_len) + (SEAL_BYTES if flags & KEYED else 0) + _CRC.size


def _parse_chain(data: bytes) -> tuple[str, ...]:
    try:
        return tuple(data.decode("ascii").split("\n")) if data else ()
    except UnicodeDecodeError:
        raise ContainerError("the header's chain is not ASCII") from None
