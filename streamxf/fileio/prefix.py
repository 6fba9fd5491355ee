"""What stands before the container in a plain file: the wrapped data key; docs/format.md, "Plain file"."""

from __future__ import annotations

import struct

import crc32c

from streamxf.chain import Chain
from streamxf.container.limits import PLAIN_MAGIC
from streamxf.descriptor import Parameters, format_parameters
from streamxf.errors import ContainerError

MAX_LENGTH = 65536
ROUND_TO = 512
START_BYTES = 12


def pack_prefix(chain: Chain) -> bytes:
    """The prefix for a container that `chain` writes."""
    encryption = chain.encryption
    return pack_fragment(encryption.descriptor().fragment if encryption is not None else ())


def pack_fragment(parameters: Parameters) -> bytes:
    """The prefix that holds a fragment, or none."""
    fragment = format_parameters(parameters).encode("ascii")
    fragment += bytes(-len(fragment) % ROUND_TO)
    data = PLAIN_MAGIC + struct.pack("<I", len(fragment)) + fragment
    return data + struct.pack("<I", crc32c.crc32c(data))


def prefix_size(start: bytes) -> int:
    """The whole prefix's size in bytes, from its first 12.

    Raises
    ------
    ContainerError
        If they do not begin a plain file of streamxf.
    """
    if len(start) < START_BYTES or start[:8] != PLAIN_MAGIC:
        raise ContainerError("this is not a file that streamxf.open wrote: it does not begin as one")
    length = int.from_bytes(start[8:12], "little")
    if length > MAX_LENGTH:
        raise ContainerError(f"the file's prefix says it has {length} bytes, {MAX_LENGTH} are allowed")
    return START_BYTES + length + 4


def parse_prefix(data: bytes) -> str:
    """The fragment in a prefix that is exactly `data`.

    Raises
    ------
    ContainerError
        If the prefix is damaged or truncated.
    """
    if len(data) < START_BYTES or len(data) != prefix_size(data):
        raise ContainerError("the file is truncated inside its prefix")
    if crc32c.crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise ContainerError("the CRC of the file's prefix does not match: it is damaged")
    fragment = data[START_BYTES:-4].rstrip(b"\0")
    if len(data) > START_BYTES + 4 and not fragment:
        raise ContainerError("the file's prefix is filled up, and there is nothing in it")
    try:
        return fragment.decode("ascii")
    except UnicodeDecodeError:
        raise ContainerError("the fragment in the file's prefix is not ASCII") from None
