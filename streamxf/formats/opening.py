"""`contents_of` and `open_source`: what format a path holds is found out, and the fitting reader asked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from streamxf.container.limits import PLAIN_MAGIC
from streamxf.errors import NoCheckpointError, UnsupportedError, located
from streamxf.formats import huggingface, safetensors
from streamxf.formats.contents import Contents, Format
from streamxf.formats.location import Location
from streamxf.keys import KeyRing, KeysLike, TrustLike

if TYPE_CHECKING:  # torch takes a second to import, and not every format needs it
    from streamxf.formats.source import Source
    from streamxf.formats.torchfile import TorchFile

    Shard = safetensors.Header | TorchFile

LOOKED_FOR = (
    "a checkpoint of DCP (.metadata, or __0.metadata and so on), *.safetensors, model.safetensors.index.json, "
    "pytorch_model.bin.index.json and pytorch_model.bin"
)
BEGINNING = 16
"""Bytes by which a file's format is known."""

_OF_DCP = (".distcp", ".metadata")
_OF_TORCH = (b"PK\x03\x04", b"\x80\x02\x8a\x0al\xfc\x9cF\xf9")  # a zip file; or the older form's magic number


def contents_of(
    path: str | os.PathLike[str],
    *,
    keys: KeysLike = None,
    trust: TrustLike = None,
    allow_unsigned: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Contents:
    """What is in a checkpoint, of whatever format, by its own metadata; no tensor is read.

    Parameters
    ----------
    path : path or str
        A folder, a file, or the URL of one.
    keys, trust, allow_unsigned
        As in `FileSystemReader`. An encrypted checkpoint tells its contents without keys, too; then nobody vouches for
        them.
    storage_options : mapping, optional
        fsspec's, for a URL.

    Raises
    ------
    FileNotFoundError
        If there is nothing.
    NoCheckpointError
        If it is no checkpoint.
    UnsupportedError
        If it is one of a kind that cannot be read here.
    MetadataError, ContainerError
        If it is damaged, or half a checkpoint.
    WrongKeyError, KeyMissingError, PolicyError
        If there are keys, and they do not open it.
    OSError, ForeignError
        If the storage cannot be read.
    """
    location = Location.of(path, storage_options)
    ring = KeyRing.of(keys, trust, allow_unsigned)
    kind = kind_of(location)
    if kind is Format.DCP:
        from streamxf.formats import dcp

        return dcp.read_contents(location, ring)
    return scanned(location, kind)[0]


def open_source(
    path: str | os.PathLike[str],
    *,
    keys: KeysLike = None,
    trust: TrustLike = None,
    allow_unsigned: bool = False,
    require: Literal["published", "bound", "encrypted"] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Source:
    """Open a checkpoint, of whatever format, to read its tensors box by box.

    Parameters
    ----------
    path, keys, trust, allow_unsigned, storage_options
        As in `contents_of`, but for what is encrypted there have to be keys.
    require
        As in `FileSystemReader`.

    Raises
    ------
    FileNotFoundError, NoCheckpointError, UnsupportedError, MetadataError, ContainerError, WrongKeyError
        As `contents_of`.
    KeyMissingError, PolicyError
        If it is encrypted and there are no keys, or is weaker than the caller requires.
    """
    location = Location.of(path, storage_options)
    ring = KeyRing.of(keys, trust, allow_unsigned)
    kind = kind_of(location)
    if kind is Format.DCP:
        from streamxf.formats.dcp_source import DcpSource

        return DcpSource(location, ring, require)
    from streamxf.formats.raw import RawSource

    contents, shards = scanned(location, kind)
    return RawSource(contents, location, shards)


def kind_of(location: Location) -> huggingface.Layout | Format:
    """What a path holds; of a Hugging Face folder, which files.

    Raises
    ------
    NoCheckpointError
        If it is no checkpoint.
    UnsupportedError
    """
    if is_checkpoint(location):
        return Format.DCP
    if not location.is_folder():
        return _format_of_file(location)
    names = location.names()
    with located(file=location.given):
        layout = huggingface.layout_of(names)
    if layout is None:
        raise NoCheckpointError(f"the folder holds no checkpoint; looked for {LOOKED_FOR}", file=location.given)
    return layout


def is_checkpoint(location: Location) -> bool:
    """Whether a path is the folder of a DCP checkpoint, or what is left of one; raises as `Location.is_folder`."""
    return location.is_folder() and any(name.endswith(_OF_DCP) for name in location.names())


def _format_of_file(location: Location) -> Format:
    with location.open() as file:
        beginning = file.read(BEGINNING)
    if beginning.startswith(PLAIN_MAGIC):
        return Format.PLAIN
    found = format_of(beginning, location.size() or 0, location.name)
    if found is not None:
        return found
    raise NoCheckpointError(
        "the file is no checkpoint: it begins neither as a .safetensors file nor as one of torch.save",
        file=location.given,
    )


def format_of(beginning: bytes, size: int, name: str) -> Format | None:
    """The format of a file of `size` bytes that begins so; None if it is neither ``torch.save``'s nor safetensors'."""
    if beginning.startswith(_OF_TORCH):
        return Format.TORCH
    if name.endswith(".safetensors") or safetensors.looks_like_one(beginning, size):
        return Format.SAFETENSORS
    return None


def scanned(location: Location, kind: huggingface.Layout | Format) -> tuple[Contents, dict[str, Shard]]:
    """What the files of a checkpoint hold, all together and each."""
    if kind is Format.PLAIN:
        raise UnsupportedError(
            "this is a file that streamxf.open wrote, one stream of bytes and no checkpoint: streamxf.open reads it, "
            "and streamxf cat on the terminal",
            file=location.given,
        )
    if isinstance(kind, Format):
        name = location.name
        with located(file=location.given):
            shard = read_shard(location, name, alone=True, torchs=kind is Format.TORCH)
        sizes = {name: location.size() or 0}
        return Contents(location.given, kind, shard.entries, sizes, extra=shard.metadata), {name: shard}
    shards: dict[str, Shard] = {}

    def read(name: str) -> Shard:
        shards[name] = read_shard(location, name, alone=False, torchs=kind.suffix == huggingface.BIN)
        return shards[name]

    return huggingface.contents_of(location, kind, read), shards


def read_shard(location: Location, name: str, *, alone: bool, torchs: bool) -> Shard:
    """What a file holds; of ``torch.save``, or of safetensors. Raises as `contents_of`."""
    if torchs:
        from streamxf.formats import torchfile

        return torchfile.read(location, name, alone=alone)
    return safetensors.read(location, name, alone=alone)
