"""streamxf: a chain of codecs for PyTorch Distributed Checkpoint.

    writer = streamxf.FileSystemWriter(path, _extensions=[ZStandard(level=3), Checksum(), Encrypt(key)])
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
    from streamxf.codec import BlockInfo, Codec, StreamInfo
    from streamxf.codecs.checksum import Checksum
    from streamxf.codecs.encrypt import Encrypt
    from streamxf.codecs.floatzip import FloatZip
    from streamxf.codecs.lz4 import LZ4
    from streamxf.codecs.zstd import ZStandard
    from streamxf.compare.diff import diff
    from streamxf.compare.difference import Difference
    from streamxf.tools.convert.pack import pack
    from streamxf.tools.convert.result import Converted
    from streamxf.tools.convert.transcode import transcode
    from streamxf.tools.convert.unpack import unpack
    from streamxf.tools.convert.result import Unpacked
    from streamxf.dcp.attach import attach
    from streamxf.dcp.clean import CleanReport, clean
    from streamxf.dcp.fsspec import FsspecReader, FsspecWriter
    from streamxf.dcp.reader import FileSystemReader
    from streamxf.dcp.registry import Registry
    from streamxf.dcp.rekey.rekey import Recipient, Recipients, add_recipient, recipients, rekey, remove_recipient
    from streamxf.dcp.salvage.result import Lost, Salvaged
    from streamxf.dcp.salvage.salvage import salvage
    from streamxf.dcp.unsafe import UnsafeGlobals, unsafe_globals
    from streamxf.dcp.verify.report import Damage, VerifyReport
    from streamxf.dcp.verify.verify import verify
    from streamxf.dcp.writer import FileSystemWriter
    from streamxf.errors import StreamxfError
    from streamxf.keys import Key, KeyProvider, KeyRing, PrivateKey, PublicKey, SigningKey, VerifyKey
    from streamxf.progress import Progress
    from streamxf.registry import CodecRegistry
    from streamxf.report import LoadReport, SaveReport
    from streamxf.stream import decode, encode
    from streamxf.stream import open as open  # exported by its name alone
    from streamxf.summary.inspect import inspect
    from streamxf.summary.summary import Summary
    from streamxf.tuning.recommendation import Recommendation
    from streamxf.tuning.tuner import tune
    from streamxf.version import __version__

_HOME = {
    "BlockInfo": "streamxf.codec",
    "Chain": "streamxf.chain",
    "Checksum": "streamxf.codecs.checksum",
    "CleanReport": "streamxf.dcp.clean",
    "Codec": "streamxf.codec",
    "CodecRegistry": "streamxf.registry",
    "Converted": "streamxf.tools.convert.result",
    "Damage": "streamxf.dcp.verify.report",
    "Difference": "streamxf.compare.difference",
    "Encrypt": "streamxf.codecs.encrypt",
    "FileSystemReader": "streamxf.dcp.reader",
    "FileSystemWriter": "streamxf.dcp.writer",
    "FloatZip": "streamxf.codecs.floatzip",
    "FsspecReader": "streamxf.dcp.fsspec",
    "FsspecWriter": "streamxf.dcp.fsspec",
    "Key": "streamxf.keys",
    "KeyProvider": "streamxf.keys",
    "KeyRing": "streamxf.keys",
    "LZ4": "streamxf.codecs.lz4",
    "LoadReport": "streamxf.report",
    "Lost": "streamxf.dcp.salvage.result",
    "PrivateKey": "streamxf.keys",
    "Progress": "streamxf.progress",
    "ProgressBar": "streamxf.bar",
    "PublicKey": "streamxf.keys",
    "Recipient": "streamxf.dcp.rekey.rekey",
    "Recipients": "streamxf.dcp.rekey.rekey",
    "Recommendation": "streamxf.tuning.recommendation",
    "Registry": "streamxf.dcp.registry",
    "Salvaged": "streamxf.dcp.salvage.result",
    "SaveReport": "streamxf.report",
    "SigningKey": "streamxf.keys",
    "StreamInfo": "streamxf.codec",
    "StreamxfError": "streamxf.errors",
    "Summary": "streamxf.summary.summary",
    "Unpacked": "streamxf.tools.convert.result",
    "UnsafeGlobals": "streamxf.dcp.unsafe",
    "VerifyKey": "streamxf.keys",
    "VerifyReport": "streamxf.dcp.verify.report",
    "ZStandard": "streamxf.codecs.zstd",
    "__version__": "streamxf.version",
    "add_recipient": "streamxf.dcp.rekey.rekey",
    "attach": "streamxf.dcp.attach",
    "clean": "streamxf.dcp.clean",
    "decode": "streamxf.stream",
    "diff": "streamxf.compare.diff",
    "encode": "streamxf.stream",
    "inspect": "streamxf.summary.inspect",
    "open": "streamxf.stream",
    "pack": "streamxf.tools.convert.pack",
    "recipients": "streamxf.dcp.rekey.rekey",
    "rekey": "streamxf.dcp.rekey.rekey",
    "remove_recipient": "streamxf.dcp.rekey.rekey",
    "salvage": "streamxf.dcp.salvage.salvage",
    "transcode": "streamxf.tools.convert.transcode",
    "tune": "streamxf.tuning.tuner",
    "unpack": "streamxf.tools.convert.unpack",
    "unsafe_globals": "streamxf.dcp.unsafe",
    "verify": "streamxf.dcp.verify.verify",
}

# without `open`: a star import would replace the builtin function
__all__ = [
    "LZ4",
    "BlockInfo",
    "Chain",
    "Checksum",
    "CleanReport",
    "Codec",
    "CodecRegistry",
    "Converted",
    "Damage",
    "Difference",
    "Encrypt",
    "FileSystemReader",
    "FileSystemWriter",
    "FloatZip",
    "FsspecReader",
    "FsspecWriter",
    "Key",
    "KeyProvider",
    "KeyRing",
    "LoadReport",
    "Lost",
    "PrivateKey",
    "Progress",
    "ProgressBar",
    "PublicKey",
    "Recipient",
    "Recipients",
    "Recommendation",
    "Registry",
    "Salvaged",
    "SaveReport",
    "SigningKey",
    "StreamInfo",
    "StreamxfError",
    "Summary",
    "Unpacked",
    "UnsafeGlobals",
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
    "keys",
    "pack",
    "recipients",
    "rekey",
    "remove_recipient",
    "salvage",
    "transcode",
    "tune",
    "unpack",
    "unsafe_globals",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in ("errors", "keys", "testing"):
        return import_module(f"streamxf.{name}")
    raise AttributeError(f"module 'streamxf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "open"])
