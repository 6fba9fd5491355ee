"""The three writers that the demonstration compares."""

from __future__ import annotations

from torch.distributed.checkpoint._extension import ZStandard as StockZStandard
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

import streamxf
from streamxf.cli.timing import Side
from streamxf.keys import Key


def sides(key: Key) -> list[Side]:
    """Stock DCP without and with its own compression, and streamxf with the full chain."""
    return [
        Side("stock DCP", lambda path: FileSystemWriter(path), lambda path: FileSystemReader(path)),
        Side(
            "stock + zstd",
            lambda path: FileSystemWriter(path, _extensions=[StockZStandard()]),
            lambda path: FileSystemReader(path),
        ),
        Side(
            "streamxf chain",
            lambda path: streamxf.FileSystemWriter(path, _extensions=full_chain(key)),
            lambda path: streamxf.FileSystemReader(path, keys=key),
        ),
    ]


def full_chain(key: Key) -> list[streamxf.Codec]:
    """The chain that the demonstration is about: compress, then check, then encrypt."""
    return [streamxf.FloatZip(), streamxf.Checksum(), streamxf.Encrypt(key)]
