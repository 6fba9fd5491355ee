"""streamxf: a chain of codecs for PyTorch Distributed Checkpoint.

    writer = streamxf.FileSystemWriter(path, chain=[ZStandard(level=3), Checksum(), Encrypt(key)])
    dcp.save(state_dict, storage_writer=writer)
    dcp.load(state_dict, storage_reader=streamxf.FileSystemReader(path, keys=key))

Names are imported when they are first used, so ``import streamxf`` costs nothing and only the DCP parts import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamxf import errors, keys
    from streamxf.bar import ProgressBar
    from streamxf.chain import Chain
    from streamxf.checkpoint.checkpoint import Checkpoint
    from streamxf.checkpoint.handles import ObjectHandle, TensorHandle
    from streamxf.codec import BlockInfo, Codec, StreamInfo
    from streamxf.codecs.checksum import Checksum
    from streamxf.codecs.encrypt import Encrypt
    from streamxf.codecs.floatzip import FloatZip
    from streamxf.codecs.lz4 import LZ4
    from streamxf.codecs.zstd import ZStandard
    from streamxf.dcp.attach import attach
    from streamxf.dcp.fsspec import FsspecReader, FsspecWriter
    from streamxf.dcp.reader import FileSystemReader
    from streamxf.dcp.registry import Registry
    from streamxf.dcp.writer import FileSystemWriter
    from streamxf.errors import StreamxfError
    from streamxf.format.items import Chunk, ObjectItem, Place, TensorItem
    from streamxf.formats.complete import is_complete, latest
    from streamxf.formats.contents import Contents, Format
    from streamxf.keys import (
        AwsKms,
        Key,
        KeyProvider,
        KeyRing,
        PrivateKey,
        PublicKey,
        SigningKey,
        VerifyKey,
        public_id,
        read_environment,
        read_key,
        write_key,
    )
    from streamxf.progress import Progress
    from streamxf.registry import CodecRegistry
    from streamxf.report import LoadReport, Report, SaveReport
    from streamxf.stream import decode, encode
    from streamxf.stream import open as open  # exported by its name alone
    from streamxf.tools.clean import CleanReport, clean
    from streamxf.tools.convert.pack import pack
    from streamxf.tools.convert.result import Converted, Unpacked
    from streamxf.tools.convert.transcode import transcode
    from streamxf.tools.convert.unpack import unpack
    from streamxf.tools.diff.diff import diff
    from streamxf.tools.diff.difference import Change, Difference
    from streamxf.tools.diff.distance import Distance
    from streamxf.tools.inspect.inspect import inspect
    from streamxf.tools.inspect.page.page import page_of
    from streamxf.tools.inspect.summary import Summary, Tally, Values
    from streamxf.tools.rekey.recipients import Recipient, Recipients
    from streamxf.tools.rekey.rekey import add_recipient, recipients, rekey, remove_recipient
    from streamxf.tools.salvage.result import Lost, Salvaged
    from streamxf.tools.salvage.salvage import salvage
    from streamxf.tools.unsafe_globals import UnsafeGlobals, unsafe_globals
    from streamxf.tools.values.histogram import Histogram
    from streamxf.tools.values.statistics import Statistics
    from streamxf.tools.verify.report import Damage, VerifyReport
    from streamxf.tuning.estimate import Estimate, Recommendation
    from streamxf.tuning.tuner import tune
    from streamxf.version import __version__

_HOME = {
    "AwsKms": "streamxf.keys",
    "BlockInfo": "streamxf.codec",
    "Chain": "streamxf.chain",
    "Change": "streamxf.tools.diff.difference",
    "Checkpoint": "streamxf.checkpoint.checkpoint",
    "Checksum": "streamxf.codecs.checksum",
    "Chunk": "streamxf.format.items",
    "CleanReport": "streamxf.tools.clean",
    "Codec": "streamxf.codec",
    "CodecRegistry": "streamxf.registry",
    "Contents": "streamxf.formats.contents",
    "Converted": "streamxf.tools.convert.result",
    "Damage": "streamxf.tools.verify.report",
    "Difference": "streamxf.tools.diff.difference",
    "Distance": "streamxf.tools.diff.distance",
    "Encrypt": "streamxf.codecs.encrypt",
    "Estimate": "streamxf.tuning.estimate",
    "FileSystemReader": "streamxf.dcp.reader",
    "FileSystemWriter": "streamxf.dcp.writer",
    "FloatZip": "streamxf.codecs.floatzip",
    "Format": "streamxf.formats.contents",
    "FsspecReader": "streamxf.dcp.fsspec",
    "FsspecWriter": "streamxf.dcp.fsspec",
    "Histogram": "streamxf.tools.values.histogram",
    "Key": "streamxf.keys",
    "KeyProvider": "streamxf.keys",
    "KeyRing": "streamxf.keys",
    "LZ4": "streamxf.codecs.lz4",
    "LoadReport": "streamxf.report",
    "Lost": "streamxf.tools.salvage.result",
    "ObjectHandle": "streamxf.checkpoint.handles",
    "ObjectItem": "streamxf.format.items",
    "Place": "streamxf.format.items",
    "PrivateKey": "streamxf.keys",
    "Progress": "streamxf.progress",
    "ProgressBar": "streamxf.bar",
    "PublicKey": "streamxf.keys",
    "Recipient": "streamxf.tools.rekey.recipients",
    "Recipients": "streamxf.tools.rekey.recipients",
    "Recommendation": "streamxf.tuning.estimate",
    "Registry": "streamxf.dcp.registry",
    "Report": "streamxf.report",
    "Salvaged": "streamxf.tools.salvage.result",
    "SaveReport": "streamxf.report",
    "SigningKey": "streamxf.keys",
    "Statistics": "streamxf.tools.values.statistics",
    "StreamInfo": "streamxf.codec",
    "StreamxfError": "streamxf.errors",
    "Summary": "streamxf.tools.inspect.summary",
    "Tally": "streamxf.tools.inspect.summary",
    "TensorHandle": "streamxf.checkpoint.handles",
    "TensorItem": "streamxf.format.items",
    "Unpacked": "streamxf.tools.convert.result",
    "UnsafeGlobals": "streamxf.tools.unsafe_globals",
    "Values": "streamxf.tools.inspect.summary",
    "VerifyKey": "streamxf.keys",
    "VerifyReport": "streamxf.tools.verify.report",
    "ZStandard": "streamxf.codecs.zstd",
    "__version__": "streamxf.version",
    "add_recipient": "streamxf.tools.rekey.rekey",
    "attach": "streamxf.dcp.attach",
    "clean": "streamxf.tools.clean",
    "decode": "streamxf.stream",
    "diff": "streamxf.tools.diff.diff",
    "encode": "streamxf.stream",
    "inspect": "streamxf.tools.inspect.inspect",
    "is_complete": "streamxf.formats.complete",
    "latest": "streamxf.formats.complete",
    "open": "streamxf.stream",
    "pack": "streamxf.tools.convert.pack",
    "page_of": "streamxf.tools.inspect.page.page",
    "public_id": "streamxf.keys",
    "read_environment": "streamxf.keys",
    "read_key": "streamxf.keys",
    "recipients": "streamxf.tools.rekey.rekey",
    "rekey": "streamxf.tools.rekey.rekey",
    "remove_recipient": "streamxf.tools.rekey.rekey",
    "salvage": "streamxf.tools.salvage.salvage",
    "transcode": "streamxf.tools.convert.transcode",
    "tune": "streamxf.tuning.tuner",
    "unpack": "streamxf.tools.convert.unpack",
    "unsafe_globals": "streamxf.tools.unsafe_globals",
    "verify": "streamxf.tools.verify.verify",
    "write_key": "streamxf.keys",
}

# without `open`: a star import would replace the builtin function
__all__ = [
    "AwsKms",
    "BlockInfo",
    "Chain",
    "Change",
    "Checkpoint",
    "Checksum",
    "Chunk",
    "CleanReport",
    "Codec",
    "CodecRegistry",
    "Contents",
    "Converted",
    "Damage",
    "Difference",
    "Distance",
    "Encrypt",
    "Estimate",
    "FileSystemReader",
    "FileSystemWriter",
    "FloatZip",
    "Format",
    "FsspecReader",
    "FsspecWriter",
    "Histogram",
    "Key",
    "KeyProvider",
    "KeyRing",
    "LZ4",
    "LoadReport",
    "Lost",
    "ObjectHandle",
    "ObjectItem",
    "Place",
    "PrivateKey",
    "Progress",
    "ProgressBar",
    "PublicKey",
    "Recipient",
    "Recipients",
    "Recommendation",
    "Registry",
    "Report",
    "Salvaged",
    "SaveReport",
    "SigningKey",
    "Statistics",
    "StreamInfo",
    "StreamxfError",
    "Summary",
    "Tally",
    "TensorHandle",
    "TensorItem",
    "Unpacked",
    "UnsafeGlobals",
    "Values",
    "VerifyKey",
    "VerifyReport",
    "ZStandard",
    "__version__",
    "add_recipient",
    "attach",
    "clean",
    "decode",
    "diff",
    "encode",
    "errors",
    "inspect",
    "is_complete",
    "keys",
    "latest",
    "pack",
    "page_of",
    "public_id",
    "read_environment",
    "read_key",
    "recipients",
    "rekey",
    "remove_recipient",
    "salvage",
    "transcode",
    "tune",
    "unpack",
    "unsafe_globals",
    "verify",
    "write_key",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in ("errors", "keys", "testing"):
        return import_module(f"streamxf.{name}")
    raise AttributeError(f"module 'streamxf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "open"])
