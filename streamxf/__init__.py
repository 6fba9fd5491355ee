"""streamxf: a chain of codecs for PyTorch Distributed Checkpoint.

    writer = streamxf.FileSystemWriter(path, chain=[ZStandard(level=3), Checksum(), Encrypt(key)])
    dcp.save(state_dict, storage_writer=writer)
    dcp.load(state_dict, storage_reader=streamxf.FileSystemReader(path, keys=key))

Names are imported when they are first used, so ``import streamxf`` costs nothing and only the DCP parts import torch.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from streamxf.extension import TorchExtension
from streamxf.lazy import imported

if TYPE_CHECKING:
    from streamxf import errors as errors, keys as keys
    from streamxf.checkpoint.checkpoint import Checkpoint as Checkpoint
    from streamxf.checkpoint.memory import SaveMemory as SaveMemory
    from streamxf.codec import Codec as Codec
    from streamxf.checkpoint.writer import CheckpointWriter as CheckpointWriter
    from streamxf.codecs.checksum import Checksum as Checksum
    from streamxf.codecs.encrypt import Encrypt as Encrypt
    from streamxf.codecs.floatzip import FloatZip as FloatZip
    from streamxf.codecs.lz4 import LZ4 as LZ4
    from streamxf.codecs.zstd import ZStandard as ZStandard
    from streamxf.dcp.attach import attach as attach
    from streamxf.dcp.fsspec import FsspecReader as FsspecReader, FsspecWriter as FsspecWriter
    from streamxf.dcp.install import install as install, installed as installed
    from streamxf.dcp.planner import LoadPlanner as LoadPlanner, SavePlanner as SavePlanner
    from streamxf.dcp.reader import FileSystemReader as FileSystemReader
    from streamxf.dcp.extensions import Registry as Registry
    from streamxf.dcp.writer import FileSystemWriter as FileSystemWriter
    from streamxf.errors import StreamxfError as StreamxfError
    from streamxf.keys import Key as Key, PrivateKey as PrivateKey, PublicKey as PublicKey
    from streamxf.keys import SigningKey as SigningKey, VerifyKey as VerifyKey
    from streamxf.manager.forget import forget as forget
    from streamxf.manager.holds import hold as hold
    from streamxf.manager.latest import latest as latest
    from streamxf.manager.listing import list_checkpoints as list_checkpoints
    from streamxf.manager.manager import CheckpointManager as CheckpointManager
    from streamxf.manager.retention import Retention as Retention
    from streamxf.manager.schedule import Schedule as Schedule
    from streamxf.publishing.follower import Follower as Follower
    from streamxf.publishing.publisher import Publisher as Publisher
    from streamxf.codec import CodecRegistry as CodecRegistry
    from streamxf.storage.opening import open_storage as open_storage
    from streamxf.storage.storage import Storage as Storage
    from streamxf.stream.plain import decode as decode, encode as encode, open as open
    from streamxf.tools.clean import clean as clean
    from streamxf.tools.convert.consolidate import consolidate as consolidate
    from streamxf.tools.convert.pack import pack as pack, transcode as transcode
    from streamxf.tools.convert.unpack import unpack as unpack
    from streamxf.tools.diff.diff import diff as diff
    from streamxf.tools.inspect.inspect import inspect as inspect, unsafe_globals as unsafe_globals
    from streamxf.tools.rekey.rekey import add_recipient as add_recipient, recipients as recipients, rekey as rekey
    from streamxf.tools.rekey.rekey import remove_recipient as remove_recipient, rename as rename
    from streamxf.tools.rekey.sign import sign as sign
    from streamxf.tools.salvage.salvage import load_intact as load_intact, salvage as salvage
    from streamxf.tools.verify.verify import verify as verify
    from streamxf.version import __version__ as __version__

_NAMES = {
    "checkpoint.checkpoint": "Checkpoint",
    "checkpoint.memory": "SaveMemory",
    "codec": "Codec CodecRegistry",
    "checkpoint.writer": "CheckpointWriter",
    "codecs.checksum": "Checksum",
    "codecs.encrypt": "Encrypt",
    "codecs.floatzip": "FloatZip",
    "codecs.lz4": "LZ4",
    "codecs.zstd": "ZStandard",
    "dcp.attach": "attach",
    "dcp.fsspec": "FsspecReader FsspecWriter",
    "dcp.install": "install installed",
    "dcp.planner": "LoadPlanner SavePlanner",
    "dcp.reader": "FileSystemReader",
    "dcp.extensions": "Registry",
    "dcp.writer": "FileSystemWriter",
    "errors": "StreamxfError",
    "keys": "Key PrivateKey PublicKey SigningKey VerifyKey",
    "manager.forget": "forget",
    "manager.holds": "hold",
    "manager.latest": "latest",
    "manager.listing": "list_checkpoints",
    "manager.manager": "CheckpointManager",
    "manager.retention": "Retention",
    "manager.schedule": "Schedule",
    "publishing.follower": "Follower",
    "publishing.publisher": "Publisher",
    "storage.opening": "open_storage",
    "storage.storage": "Storage",
    "stream.plain": "decode encode open",
    "tools.clean": "clean",
    "tools.convert.consolidate": "consolidate",
    "tools.convert.pack": "pack transcode",
    "tools.convert.unpack": "unpack",
    "tools.diff.diff": "diff",
    "tools.inspect.inspect": "inspect unsafe_globals",
    "tools.rekey.rekey": "add_recipient recipients rekey remove_recipient rename",
    "tools.rekey.sign": "sign",
    "tools.salvage.salvage": "load_intact salvage",
    "tools.verify.verify": "verify",
    "version": "__version__",
}
_HOME = {name: f"streamxf.{module}" for module, names in _NAMES.items() for name in names.split()}

# without `open` and packages: a star import would replace the builtin function, and variables named `keys`
__all__ = sorted({*_HOME} - {"open", "__version__"})


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return globals().setdefault(name, getattr(imported(_HOME[name]), name))
    if name in ("errors", "keys", "testing"):
        return import_module(f"streamxf.{name}")
    raise AttributeError(f"module 'streamxf' has no attribute {name!r}")


# a codec can be given to torch's own writers, and none of its code knows of torch
TorchExtension._answers = lambda: import_module("streamxf.dcp.extensions")


def __dir__() -> list[str]:
    return sorted([*_HOME, "errors", "keys", "testing"])


def _warn_of_an_idle_chain() -> None:
    """Warn if ``STREAMXF_CHAIN`` is set, and torch will never install it."""
    import warnings
    from importlib.metadata import entry_points

    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        why = "TORCH_DEVICE_BACKEND_AUTOLOAD keeps torch from installing it: unset that"
    elif not any(point.value.startswith("streamxf_autoload:") for point in entry_points(group="torch.backends")):
        why = "streamxf is on the path, but not installed as a package: pip install it"
    else:
        return
    warnings.warn(f"STREAMXF_CHAIN is set, and nothing is installed: {why}, or call streamxf.install", stacklevel=3)


if os.environ.get("STREAMXF_CHAIN"):
    _warn_of_an_idle_chain()
