"""A plain file that can seek, taken apart; docs/format.md, "Plain file"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from streamxf.coder import StreamCoder
from streamxf.descriptor import Descriptor
from streamxf.errors import ContainerError
from streamxf.format.header import Header
from streamxf.format.plain import (
    PREFIX_START_BYTES,
    SEAL_END_BYTES,
    contents_digest,
    parse_prefix,
    parse_seal,
    prefix_size,
    seal_size,
)
from streamxf.keys import KeyRing
from streamxf.keys.envelope import DataKey
from streamxf.keys.vouchers import Vouchers
from streamxf.registry import CodecRegistry
from streamxf.stream.container import BlockReader, read_header
from streamxf.stream.opening import ChainOpener
from streamxf.stream.source import FileSlice


@dataclass(frozen=True)
class PlainParts:
    """The parts of a plain file, which fit together; no key has opened it yet.

    - `wrapped`, `vouchers`: empty if the chain does not encrypt.
    """

    header: Header
    container: FileSlice
    wrapped: str
    vouchers: str = ""

    @classmethod
    def of(cls, whole: FileSlice) -> Self:
        """Take a file apart. Raises ContainerError, DescriptorError if it is damaged, or its parts do not belong
        together.
        """
        start = prefix_size(whole.read_at(0, min(PREFIX_START_BYTES, whole.length)))
        wrapped = parse_prefix(whole.read_at(0, start))
        header = read_header(whole.slice(start, whole.length))
        check_header(header, wrapped)
        if not wrapped:
            return cls(header, whole.slice(start, whole.length), wrapped)
        end = whole.read_at(max(0, whole.length - SEAL_END_BYTES), min(whole.length, SEAL_END_BYTES))
        stop = max(start, whole.length - seal_size(end))
        vouchers = parse_seal(whole.read_at(stop, whole.length - stop))
        check_signed(header, vouchers)
        return cls(header, whole.slice(start, stop), wrapped, vouchers)

    def digest(self) -> bytes:
        """D of the format: what the vouchers must be made for. Raises ContainerError if table or footer are damaged."""
        return contents_digest(BlockReader(self.container, self.header, None).table_digest)

    def coder(self, ring: KeyRing, registry: CodecRegistry) -> StreamCoder:
        """What decodes its blocks; raises as `streamxf.open`."""
        # the digest before any coder is made: what vouches is about the table
        data_key = ring.open(self.wrapped, self.vouchers, self.digest()) if self.wrapped else None
        return coder_for(self.header, registry, data_key)


def coder_for(header: Header, registry: CodecRegistry, data_key: DataKey | None) -> StreamCoder:
    """What decodes the blocks of a plain file that has this header, under this data key."""
    descriptors = [Descriptor.parse(text) for text in header.chain]
    return ChainOpener(descriptors, registry, (lambda: data_key) if data_key is not None else None).coder(header)


def check_header(header: Header, wrapped: str) -> None:
    """Compare the header of a plain file with the wrapped data key before it; raises ContainerError."""
    if header.identity is not None:
        raise ContainerError("the file holds an item cut out of a checkpoint")
    if bool(wrapped) != header.keyed:
        raise ContainerError("the file's prefix contradicts its header: only one of them has encryption")
    if header.hashed and not header.keyed:
        raise ContainerError("the file has hashes of its blocks and is not signed, which no writer makes")


def check_signed(header: Header, vouchers: str) -> None:
    """Compare the header of an encrypted plain file with its vouchers; raises ContainerError, DescriptorError."""
    if header.hashed != (Vouchers.parse(vouchers).signature is not None):
        raise ContainerError(
            "a file has hashes of its blocks exactly if it is signed, and this one contradicts that: its signature was "
            "removed or added"
        )
