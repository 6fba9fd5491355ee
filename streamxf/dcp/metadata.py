"""DCP's ``Metadata`` as bytes and back: unpickled through an exact list of classes, only after the trailer has vouched
for it.

A pickle can call anything. The list here holds the classes that DCP's own writers put into ``.metadata`` and nothing
else; whatever is not on it is refused by name.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from dataclasses import fields
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, NoReturn

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.metadata import Metadata

from streamxf.dcp.manifest import Manifest, append_trailer, check_path, split
from streamxf.descriptor import ENCRYPT, Descriptor
from streamxf.errors import KeyMissingError, MetadataError, PolicyError, StreamxfError
from streamxf.keys import KeyRing
from streamxf.keys.datakey import DataKey, unwrap

MANIFEST_ATTRIBUTE = "streamxf_manifest"
NO_KEYS = KeyRing()


_KNOWN_PROPERTIES = len(metadata.TensorProperties().__getstate__())  # type: ignore[no-untyped-call]


class _Properties(metadata.TensorProperties):
    """Reads what newer versions of torch append to these properties (2.15: strides), which this one would not take."""

    def __setstate__(self, state: Any) -> None:
        self.__class__ = metadata.TensorProperties  # type: ignore[assignment]
        self.__setstate__(tuple(state)[:_KNOWN_PROPERTIES])


_DCP_CLASSES: tuple[Any, ...] = (
    metadata.BytesStorageMetadata,
    metadata.ChunkStorageMetadata,
    metadata.Metadata,
    metadata.MetadataIndex,
    metadata.StorageMeta,
    metadata.TensorProperties,
    metadata.TensorStorageMetadata,
    metadata._MEM_FORMAT_ENCODING,
    filesystem._StorageInfo,
)
_ALLOWED: dict[tuple[str, str], Any] = {
    **{(cls.__module__, cls.__qualname__): cls for cls in _DCP_CLASSES},
    (metadata.TensorProperties.__module__, "TensorProperties"): _Properties,
    ("collections", "OrderedDict"): OrderedDict,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    # the folder's name, which torch's own writers store as a path; read as text that touches no file system
    ("pathlib", "PosixPath"): PurePosixPath,
    ("pathlib", "PurePosixPath"): PurePosixPath,
    ("pathlib", "WindowsPath"): PureWindowsPath,
    ("pathlib", "PureWindowsPath"): PureWindowsPath,
    ("pathlib._local", "PosixPath"): PurePosixPath,
    ("pathlib._local", "WindowsPath"): PureWindowsPath,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = _ALLOWED.get((module, name))
        if found is None and module == "torch":
            value = getattr(torch, name, None) if name.isidentifier() else None
            found = value if isinstance(value, torch.dtype) else None
        if found is None:
            raise MetadataError(
                f"the metadata wants {module}.{name}, which does not belong into a checkpoint's metadata; it was "
                "refused and nothing was run"
            )
        return found

    def persistent_load(self, pid: Any) -> NoReturn:
        raise MetadataError("the metadata refers to something outside of itself; it was refused")


def dump(content: Metadata, manifest: Manifest, data_key: DataKey | None) -> bytes:
    """The bytes of a metadata file."""
    return append_trailer(pickle.dumps(content), manifest, data_key)


def load(data: bytes, keys: KeyRing, *, published: bool = False) -> Metadata:
    """Read a metadata file: trailer, key, tag, and only then the pickle.

    Parameters
    ----------
    data : bytes
        The whole file.
    keys : KeyRing
        Needed where the checkpoint is encrypted.
    published : bool
        Whether only metadata with a manifest and a MAC is acceptable; anything else is then not even unpickled.

    Returns
    -------
    Metadata
        With its `Manifest`, or None for a stock checkpoint, in the attribute `MANIFEST_ATTRIBUTE`.

    Raises
    ------
    MetadataError
        If the file is damaged, hostile or inconsistent.
    AuthenticationError
        If it was altered.
    KeyMissingError, WrongKeyError
        If it is encrypted and none of `keys` opens it.
    PolicyError
        If it is not `published` and has to be.
    """
    parts = split(data)
    if published:
        _check_published(parts.manifest)
    if parts.manifest is not None:
        parts.check_tag(_data_key(parts.manifest, keys))
    content = _unpickle(parts.pickled)
    try:
        _check_files(content, parts.manifest)
    except AttributeError as error:  # a pickle fills its objects as it likes, and may leave something out
        raise MetadataError(f"the metadata is not complete: {error}") from error
    setattr(content, MANIFEST_ATTRIBUTE, parts.manifest)
    return content


def _check_published(manifest: Manifest | None) -> None:
    if manifest is None:
        raise PolicyError(
            "the checkpoint has no manifest: torch's own writer made it, or its trailer was removed; with keys given "
            "that is refused. require='bound' or require='encrypted' accept it"
        )
    if manifest.key is None:
        raise PolicyError(
            "the checkpoint is not encrypted, and keys were given; to read a checkpoint that is not encrypted, leave "
            "keys= out"
        )


def manifest_of(content: Metadata) -> Manifest | None:
    """The manifest that `load` found with the metadata."""
    return getattr(content, MANIFEST_ATTRIBUTE, None)


def _data_key(manifest: Manifest, keys: KeyRing) -> DataKey | None:
    if manifest.key is None:
        return None
    descriptor = Descriptor.parse(manifest.key)
    if descriptor.name != ENCRYPT or descriptor.version != 1:
        raise MetadataError(f"the manifest's key is no {ENCRYPT}/1 descriptor")
    try:
        return unwrap(descriptor.fragment, keys)
    except KeyMissingError as error:
        raise KeyMissingError(f"this checkpoint is {error.message}") from None


def _unpickle(pickled: memoryview) -> Metadata:
    stream = io.BytesIO(pickled)
    try:
        content = _Unpickler(stream).load()
    except StreamxfError:
        raise
    except Exception as error:  # a damaged pickle raises nearly anything
        raise MetadataError(f"the metadata is damaged: {type(error).__name__}: {error}") from error
    if not isinstance(content, Metadata):
        raise MetadataError(f"the metadata holds a {type(content).__name__}, not DCP's Metadata")
    if stream.tell() != len(pickled):
        raise MetadataError(
            "something follows the metadata that is no trailer: the file is damaged, or it was cut or continued"
        )
    return content


def _check_files(content: Metadata, manifest: Manifest | None) -> None:
    if content.storage_data is None:
        return
    if not isinstance(content.storage_data, dict):
        raise MetadataError("the metadata's storage data is no table")
    for index, info in content.storage_data.items():
        if not isinstance(info, filesystem._StorageInfo) or not isinstance(index, metadata.MetadataIndex):
            raise MetadataError("the metadata's storage data holds something other than places of items")
        path = check_path(info.relative_path)
        if manifest is not None and path not in manifest.files:
            raise MetadataError(
                f"the metadata places an item in {path!r}, which the manifest does not list", item=str(index.fqn)
            )
        if type(info.offset) is not int or type(info.length) is not int or info.offset < 0 or info.length < 0:
            raise MetadataError("the metadata gives an item an impossible place", item=str(index.fqn))


class UnreadableMetadata(Metadata):
    """Stands in for metadata that could not be read, and raises why as soon as anybody looks at it.

    DCP takes any exception of ``read_metadata`` for a missing file, logs it and looks for rank-local metadata, so that
    the reason would be lost. This gets past that point and raises the reason where DCP hands it to all ranks.
    """

    def __init__(self, error: StreamxfError) -> None:
        object.__setattr__(self, "_error", error)

    def raise_error(self) -> NoReturn:
        """Raise what went wrong."""
        raise object.__getattribute__(self, "_error")

    def __getattribute__(self, name: str) -> Any:
        if name in _METADATA_FIELDS:
            raise object.__getattribute__(self, "_error")
        return object.__getattribute__(self, name)


_METADATA_FIELDS = frozenset(field.name for field in fields(Metadata))
