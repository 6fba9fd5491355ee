"""DCP's ``Metadata`` as bytes and back: unpickled only after the trailer has vouched for it."""

from __future__ import annotations

import io
import pickle
from dataclasses import fields
from typing import IO, Any, NoReturn

from torch.distributed.checkpoint.metadata import Metadata

from streamxf.collector import collector_paused
from streamxf.dcp.metadata.limits import MAX_METADATA
from streamxf.dcp.metadata.manifest import Manifest, Parts, append_trailer, split
from streamxf.dcp.metadata.unpickle import load_metadata
from streamxf.dcp.metadata.whole import check_items, check_places
from streamxf.descriptor import ENCRYPT, Descriptor, Parameters
from streamxf.errors import KeyMissingError, MetadataError, PolicyError, StreamxfError
from streamxf.keys import KeyRing
from streamxf.keys.datakey import DataKey
from streamxf.proportion import check_whole

MANIFEST_ATTRIBUTE = "streamxf_manifest"


def dump(content: Metadata, manifest: Manifest, data_key: DataKey | None) -> bytes:
    """The bytes of a metadata file.

    Raises
    ------
    MetadataError
        If it would be too large to be read.
    """
    with collector_paused():
        pickled = pickle.dumps(content)
    data = append_trailer(pickled, manifest, data_key)
    _check_size(len(data))
    return data


def read_file(file: IO[bytes]) -> bytes:
    """The whole of a metadata file.

    Raises
    ------
    MetadataError
        If it is larger than any is, or has hardly anything but holes; then it was not read.
    """
    size = file.seek(0, io.SEEK_END)
    _check_size(size)
    check_whole(file, size, size, MetadataError)
    file.seek(0)
    return file.read()


def load(data: bytes, keys: KeyRing, *, rank: int | None = None, published: bool = False) -> Metadata:
    """Read a metadata file: trailer, key, tag, and only then the pickle.

    Parameters
    ----------
    data : bytes
        The whole file.
    keys : KeyRing
        Needed where the checkpoint is encrypted.
    rank : int, optional
        Whose rank-local metadata this is meant to be; None for the global metadata.
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
    if not data:
        raise MetadataError("the file is empty: it was cut, or never written; restore it")
    parts = split(data)
    if published:
        _check_published(parts)
    manifest: Manifest | None = None
    if parts.has_manifest:
        manifest = parts.checked(_data_key(parts.key, keys))
        check_rank(manifest, rank)
    with collector_paused():
        content = load_metadata(parts.pickled)
        check_places(content, manifest)
        check_items(content, rank)
    setattr(content, MANIFEST_ATTRIBUTE, manifest)
    return content


def _check_published(parts: Parts) -> None:
    if not parts.has_manifest:
        raise PolicyError(
            "the metadata does not end in a manifest. If streamxf's writer saved this checkpoint, the file was cut or "
            "altered: restore it. If torch's own writer did, leave keys= out if you know that it was not encrypted, "
            "and pass require='encrypted' (or 'bound', for an attached writer) where it was"
        )
    if parts.key is None:
        raise PolicyError(
            "the checkpoint is not encrypted, and keys were given; leave keys= out if you know that it "
            "was not encrypted"
        )


def check_rank(manifest: Manifest, rank: int | None) -> None:
    """Refuse another rank's metadata; raises MetadataError."""
    if manifest.rank != rank:
        names = ["the global metadata" if value is None else f"rank {value}'s" for value in (manifest.rank, rank)]
        raise MetadataError(f"this is {names[0]}, standing where {names[1]} belongs: the file was renamed or copied")


def manifest_of(content: Metadata) -> Manifest | None:
    """The manifest that `load` found with the metadata."""
    return getattr(content, MANIFEST_ATTRIBUTE, None)


def key_fragment(described: str) -> Parameters:
    """The fragment of a manifest's key, an Encrypt descriptor.

    Raises
    ------
    MetadataError
        If it is another descriptor, or has parameters.
    DescriptorError
        If it is none.
    """
    descriptor = Descriptor.parse(described)
    if descriptor.bound != f"{ENCRYPT}/1":
        raise MetadataError(f"the manifest's key is no {ENCRYPT}/1 descriptor")
    return descriptor.fragment


def _data_key(described: str | None, keys: KeyRing) -> DataKey | None:
    if described is None:
        return None
    fragment = key_fragment(described)
    try:
        return keys.unwrap(fragment)
    except KeyMissingError as error:
        raise KeyMissingError(f"this checkpoint is {error.message}") from None


def _check_size(size: int) -> None:
    if size > MAX_METADATA:
        raise MetadataError(f"the metadata has {size} bytes, {MAX_METADATA} are allowed; save fewer items or shards")


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
