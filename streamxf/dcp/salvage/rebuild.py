"""A catalog made of data files alone, where no metadata can be used.

Containers of streamxf's writer say themselves which item they hold, at which place of it, and who wrote them; the
decoded stream says dtype and shape. What nothing says is how large a tensor was of which the last chunk is missing, and
which processes saved together. So nothing is guessed of the former where something is known to be missing, and the
latter is asked.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from streamxf.container.header import Kind
from streamxf.dcp.compat import metadata_name
from streamxf.dcp.load.items import Expected, ItemOpener
from streamxf.dcp.metadata.limits import MAX_INT, MAX_METADATA
from streamxf.dcp.publish.listing import OWN_FILE
from streamxf.dcp.salvage.catalog import Catalog
from streamxf.dcp.salvage.descriptors import WrappedKeys
from streamxf.dcp.salvage.result import Lost
from streamxf.dcp.salvage.scan import Found, Gap, scan
from streamxf.dcp.salvage.session import Session
from streamxf.dcp.salvage.writers import choose
from streamxf.descriptor import ENCRYPT
from streamxf.errors import AuthenticationError, IdentityError, KeyServiceError, MetadataError, StreamxfError
from streamxf.fileio.blocks import BlockReader
from streamxf.fileio.counted import Counted
from streamxf.fileio.reader import StreamReader
from streamxf.fileio.source import FileSlice, access_to
from streamxf.progress import Progress, Share, Shares

_STEP = 16 * 2**20
_MAX_REMAINS = 4 * MAX_METADATA
_ZIP = b"PK\x03\x04"
_VOUCHED = (
    "no metadata could be used: that no data file of the save is missing, and that all files are of one save, is what "
    "you vouched for"
)


@dataclass(frozen=True)
class _Piece:
    """An item, or a chunk of one, that verified."""

    place: _StorageInfo
    dtype: torch.dtype | None
    shape: tuple[int, ...]


@dataclass
class _Remains:
    """What was found in all files."""

    pieces: dict[tuple[str, tuple[int, ...] | None], _Piece] = field(default_factory=dict)
    damaged: list[Lost] = field(default_factory=list)
    cut: set[str] = field(default_factory=set)
    twice: set[str] = field(default_factory=set)
    gaps: bool = False

    def keep(self, found: Found, piece: _Piece) -> None:
        """Take in an item that verified."""
        identity = found.identity
        at = identity.name, identity.offsets if identity.kind is Kind.TENSOR else None
        if at in self.pieces:
            self.twice.add(identity.name)
        self.pieces[at] = piece

    def gap(self, error: BaseException, file: str) -> None:
        """Take down a piece of a file that nobody can name."""
        self.gaps = True
        self.damaged.append(Lost.of(error, None, file))

    def lose(self, error: BaseException, found: Found, file: str) -> None:
        """Take down an item that did not verify."""
        name = found.identity.name
        offset = found.identity.offsets if found.identity.kind is Kind.TENSOR else None
        self.damaged.append(Lost.of(error, name, file, offset))
        self.cut.add(name)


def rebuild(
    session: Session,
    files: Mapping[str, int | None],
    chosen: bool | Collection[str],
    damaged: Collection[Lost],
    progress: Progress | None = None,
) -> Catalog:
    """Find everything that verifies in the data files of one save.

    Parameters
    ----------
    session : Session
        Reads the items afterwards.
    files : mapping of str to int
        All that is in the folder, with sizes.
    chosen : True or collection of str
        The writer ids that belong to the save; True where what is left shows it.
    damaged : collection of Lost
        What is wrong with the metadata.
    progress : Progress, optional
        Is told of the data files' bytes.

    Raises
    ------
    PolicyError
        If nothing shows which files belong together.
    MetadataError, KeyMissingError, WrongKeyError
        If there is nothing, or nothing that can be decrypted.
    """
    save = choose(
        [name for name in files if OWN_FILE.fullmatch(name)], b"".join(_read(session, metadata_name(None))), chosen
    )
    kept = _Remains(damaged=list(damaged))
    for name in save.missing:
        kept.gap(MetadataError("the file is missing, and nothing says what was in it"), session._full(name))
    reader = _Files(session, _remains(session, files), kept)
    shares = None if progress is None else Shares(progress, {name: files[name] or 0 for name in save.files})
    for name, writer in sorted(save.files.items()):
        reader.read(name, writer, None if shares is None else shares.begin(name))
    if shares is not None:
        shares.finish()
    if reader.bare and not reader.containers:
        raise MetadataError(
            "no metadata can be used, and the data files have no containers: items that were saved without a codec do "
            "not say what they are. Restore .metadata from a copy"
        )
    session.begin_without(_metadata_of(kept), save.files)
    made = Catalog.of([session], kept.damaged)
    made.guessed = True
    made.unchecked.append(_VOUCHED)
    for name, item in made.items.items():
        if isinstance(item, TensorStorageMetadata) and len(item.size) and (kept.gaps or name in kept.cut):
            wrong = (
                "a chunk of it is lost, or may be, and without the metadata nothing says how large the tensor was: "
                "pass a state_dict that has its shape, or partial=True"
            )
            made.unsure[name] = Lost(name, None, None, None, MetadataError.__name__, wrong)
    return made


class _Files:
    """Reads data files, container by container.

    Attributes
    ----------
    containers : int
        How many there were.
    bare : bool
        Whether a file begins as ``torch.save`` begins.
    """

    def __init__(self, session: Session, remains: Iterable[bytes], kept: _Remains) -> None:
        self._session = session
        self._keys = WrappedKeys(remains, session._registry.keys)
        self._kept = kept
        self._opener = ItemOpener(session._registry, session._require, sees_trailer=False)
        self._by_writer: dict[str, str] = {}
        self.containers = 0
        self.bare = False

    def read(self, name: str, writer: str, share: Share | None = None) -> None:
        """Verify everything in a file; `share` is told what was read.

        Raises
        ------
        StreamxfError
            If it is encrypted, and no key opens what is left of the wrapped data keys.
        """
        full = self._session._full(name)
        with ExitStack() as stack:
            try:
                file, size = stack.enter_context(self._session._open_file(name))
                access = access_to(file)
                if share is not None:
                    access = Counted(access, share.advance)
                whole = FileSlice(access, 0, size)
                self.bare |= whole.read_at(0, min(size, len(_ZIP))) == _ZIP
                everything = list(scan(whole, bytes.fromhex(writer)))
            except (StreamxfError, OSError) as error:
                self._kept.gap(error, full)
                return
            for found in everything:
                if isinstance(found, Gap):
                    message = f"{found.length} bytes at {found.offset} are damaged, and nothing says what was there"
                    self._kept.gap(MetadataError(message), full)
                    continue
                self.containers += 1
                if found.header.keyed:
                    self._keys.check()
                try:
                    self._take(name, writer, found, FileSlice(access, found.offset, found.length))
                except KeyServiceError:
                    raise
                except Exception as error:  # torch raises anything
                    self._kept.lose(error, found, full)

    def _take(self, name: str, writer: str, found: Found, source: FileSlice) -> None:
        identity = found.identity
        opened, descriptors = self._open(found, source, writer)
        stream: Any = StreamReader(opened) if isinstance(opened, BlockReader) else opened
        size = opened.size if isinstance(opened, BlockReader) else stream.seek(0, io.SEEK_END)
        stream.seek(0)
        place = _StorageInfo(name, found.offset, found.length, transform_descriptors=descriptors)
        if identity.kind is Kind.BYTES:
            while stream.read(_STEP):
                """Reading verifies each block."""
            piece = _Piece(place, None, ())
        else:
            tensor = self._session._objects.load_tensor(stream, size, found.length)
            piece = _Piece(place, tensor.dtype, tuple(tensor.shape))
            reach = [at + length for at, length in zip(identity.offsets, tensor.shape, strict=False)]
            if len(identity.offsets) != tensor.ndim or max(reach, default=0) > MAX_INT:
                raise IdentityError(
                    f"it says that it stands at {list(identity.offsets)} in its tensor, and has the shape "
                    f"{list(tensor.shape)}"
                )
        self._kept.keep(found, piece)

    def _open(self, found: Found, source: FileSlice, writer: str) -> tuple[Any, list[str]]:
        identity, header = found.identity, found.header
        tensor = identity.kind is Kind.TENSOR
        index = MetadataIndex(identity.name, torch.Size(identity.offsets) if tensor else None)
        limit = None if tensor else self._session._objects.limit(found.length)
        expected = Expected(index, identity.kind, limit, writer)
        known = self._by_writer.get(writer)
        last: StreamxfError | None = None
        for key in [known] if known is not None else self._keys if header.keyed else [""]:
            descriptors = [
                key if text.partition("/")[0] == ENCRYPT and key else text for text in reversed(header.chain)
            ]
            try:
                opened = self._opener.open(source, descriptors, expected)
            except AuthenticationError as error:  # another writer's data key
                last = error
                continue
            if header.keyed:
                self._by_writer[writer] = key
            return opened, descriptors
        raise last or AuthenticationError("none of the data keys that are left belongs to the process that wrote it")


def _remains(session: Session, files: Collection[str]) -> Iterator[bytes]:
    """What is left of metadata, and copies of it, one file after the other; together no more than a few could have."""
    room = _MAX_REMAINS
    own = metadata_name(None)
    for name in sorted((name for name in files if "metadata" in name), key=lambda name: (name != own, name)):
        for data in _read(session, name):
            room -= len(data)
            if room < 0:
                return
            yield data


def _read(session: Session, name: str) -> list[bytes]:
    """What is left of a metadata file."""
    try:
        return [session._read_file(session.fs.concat_path(session.path, name))]
    except (StreamxfError, OSError):
        return []


def _metadata_of(kept: _Remains) -> Metadata:
    items: dict[str, Any] = {}
    places: dict[MetadataIndex, _StorageInfo] = {}
    by_name: dict[str, list[tuple[tuple[int, ...] | None, _Piece]]] = {}
    for (name, offsets), piece in kept.pieces.items():
        by_name.setdefault(name, []).append((offsets, piece))
    for name, pieces in by_name.items():
        kinds = {(piece.dtype, None if offsets is None else len(offsets)) for offsets, piece in pieces}
        if len(kinds) > 1 or name in kept.twice:
            wrong = "it is there twice, or its chunks are of several kinds: they cannot all be of one save"
            kept.damaged.append(Lost(name, None, None, None, IdentityError.__name__, wrong))
            continue
        for offsets, piece in pieces:
            places[MetadataIndex(name, None if offsets is None else torch.Size(offsets))] = piece.place
        items[name] = _described(pieces)
    return Metadata(state_dict_metadata=items, storage_data=places)


def _described(pieces: Sequence[tuple[tuple[int, ...] | None, _Piece]]) -> Any:
    offsets, first = pieces[0]
    if offsets is None or first.dtype is None:
        return BytesStorageMetadata()
    chunks = [
        ChunkStorageMetadata(torch.Size(at or ()), torch.Size(piece.shape)) for at, piece in sorted(pieces, key=_at)
    ]
    size = torch.Size(max(chunk.offsets[dim] + chunk.sizes[dim] for chunk in chunks) for dim in range(len(offsets)))
    return TensorStorageMetadata(TensorProperties(dtype=first.dtype), size, chunks)


def _at(entry: tuple[tuple[int, ...] | None, _Piece]) -> tuple[int, ...]:
    return entry[0] or ()
