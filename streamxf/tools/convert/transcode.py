"""`transcode`: a checkpoint once more, through another chain."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from streamxf.chain import ChainLike
from streamxf.checkpoint.access import Access, Require
from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.checkpoint.framed import Framed, find_framed
from streamxf.checkpoint.metadata import Metadata, metadata_files
from streamxf.checkpoint.opening import ItemOpener, Wanted
from streamxf.checkpoint.storage import Storage, StoredFile
from streamxf.dcp.save.sources import Streamed
from streamxf.errors import MetadataError, ParameterError, UnsupportedError, located
from streamxf.format.dtypes import ITEMSIZES, elements_size
from streamxf.format.header import Kind
from streamxf.format.items import TensorItem
from streamxf.format.limits import DEFAULT_BLOCK_LOG2
from streamxf.keys import KeysLike, SignerLike, TrustLike
from streamxf.progress import Progress
from streamxf.stream.reader import StreamReader
from streamxf.tools.convert.chains import chain_for
from streamxf.tools.convert.conversion import FILE_SIZE, Conversion
from streamxf.tools.convert.destination import Destination, check_same, is_same
from streamxf.tools.convert.result import Converted
from streamxf.tools.convert.session import convert
from streamxf.tools.convert.sources import Ends, Reads, checked, reads_of, reads_once


def transcode(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    chain: ChainLike | None = None,
    *,
    in_place: bool = False,
    overwrite: bool = False,
    encrypt_to: KeysLike = None,
    signer: SignerLike | None = None,
    keys: KeysLike = None,
    trust: TrustLike = None,
    allow_unsigned: bool = False,
    require: Require | None = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    block_size: int = 1 << DEFAULT_BLOCK_LOG2,
    file_size: int = FILE_SIZE,
    progress: Progress | None = None,
) -> Converted:
    """Write a DCP checkpoint, streamxf's or another's, once more through another chain.

    Items are copied as streams: workers decode and encode block by block, with all checks of a load, and no tensor is
    held whole, except one that a third party's stream transform made and that is more than its elements. Objects are
    not unpickled. Names, shards and what planners recorded stay as they are; where ranks have metadata of their own,
    each keeps its own.

    Data files that are finished stay when the call fails or the process is killed, and the same call resumes from
    there. Where the chain encrypts, that needs a recipient's key that opens, too: with public keys alone it starts
    over.

    Parameters
    ----------
    source : path or str
        The checkpoint's folder, or its URL.
    target : path or str, optional
        Likewise; not there yet, or without a checkpoint.
    chain : Chain, str or codecs, optional
        As in `streamxf.open`; by default that of `FileSystemWriter`. Empty for none: torch's own reader loads that.
        Unlike torch's writer this leaves out the CRC-32 of tensors, as ``torch.serialization.set_crc32_options(False)``
        does; the metadata has a CRC of each file.
    in_place : bool
        Write into the source's folder and replace it there, in one step for each metadata file. Whenever the process
        is killed, the old checkpoint loads, or the new one. Needs room for both.
    overwrite : bool
        Whether a checkpoint in the target may be replaced.
    encrypt_to : Key, bytes, location or several, optional
        Who may read the copy, for the word ``encrypt`` in the chain's text form, or for the default chain.
    signer : SigningKey or location, optional
        Shows who wrote the copy, as in `Encrypt`.
    keys, trust, allow_unsigned, require
        To read the source, as in `FileSystemReader`.
    storage_options, target_options : mapping, optional
        fsspec's, for URLs.
    block_size : int
        As in `FileSystemWriter`.
    file_size : int
        Bytes of items, before the chain, that go into one data file; more where there would be too many.
    progress : Progress, optional

    Returns
    -------
    Converted

    Raises
    ------
    FileExistsError
        If there is a checkpoint in the target, and `overwrite` is False.
    ParameterError, ChainError, KeyMissingError
        If the arguments cannot work together.
    NoSpaceError
        If the copy surely does not fit on the disk.
    MetadataError
        If the source was replaced while it was read, with `in_place`.
    StreamxfError
        If anything about the source is not as it was saved. Nothing was published then.
    """
    if in_place == (target is not None):
        raise ParameterError("give a target, or in_place=True to replace the source: one of the two")
    if target is not None and is_same(source, target):
        raise ParameterError("source and target are the same; to replace the source is what in_place is for")
    access = Access.of(keys, trust=trust, allow_unsigned=allow_unsigned, require=require)
    made = chain_for(chain, encrypt_to, signer, was_encrypted=len(access.keys) > 0)
    place, options = (source, storage_options) if target is None else (target, target_options)
    to = Destination.of(place, made, block_size, options, overwrite=in_place or overwrite)
    to.check()
    storage = Storage.of(source, storage_options)
    if in_place and storage.is_cached:
        raise UnsupportedError(
            "this URL leads through a cache, which may remember the metadata of an older save; use that of the "
            "storage itself. Nothing was changed",
            file=storage.given,
        )
    versions = {name: storage.version(name) for name in metadata_files(storage)}
    with Checkpoint.at(storage, access) as checkpoint:
        copies = [_copy_of(checkpoint, each, versions.get(each.name), in_place) for each in checkpoint.metadata]
        return Converted.together([convert(to, copy, file_size, progress) for copy in copies])


def _copy_of(checkpoint: Checkpoint, metadata: Metadata, version: object, in_place: bool) -> Conversion:
    """What there is to copy under one metadata file, which had `version` before it was read."""
    storage, index = checkpoint.storage, metadata.index
    # which another save may write over; those of streamxf's writers have names that none uses again
    data = () if index is not None else {place.file for item in metadata.items.values() for place in item.places}

    def versions() -> list[object]:
        return [storage.version(file) for file in sorted(data)]

    before = versions()

    def check() -> None:
        if in_place and storage.version(metadata.name) != version:
            raise MetadataError(
                "the metadata was replaced meanwhile: another process saves to this folder, or changes its "
                "recipients. It was left as it is; try again when that is over",
                file=storage.full(metadata.name),
            )
        check_same(storage, before, versions())

    return Conversion(
        tuple(metadata.items.values()),
        metadata.rank,
        json.dumps([storage.given, [version, before] if index is None else index.save_id]),
        partial(_read, checkpoint),
        index.extra if index is not None else {},
        check,
    )


def _read(checkpoint: Checkpoint, wanted: Wanted) -> Streamed:
    """An object as it is stored, or a shard: its elements, where they can be found."""
    item, chunk, place = wanted.item, wanted.chunk, wanted.place
    file, opener = checkpoint.file(place.file), checkpoint.opener(place)
    dtype, shape = item.dtype if isinstance(item, TensorItem) else "", chunk.shape if chunk is not None else ()
    with located(file=file.name, item=item.name):
        if wanted.kind is Kind.FRAMED and dtype in ITEMSIZES:
            elements = _plain_elements(opener, file, wanted, dtype, shape)
            if elements is not None:
                return Streamed(elements, Kind.TENSOR, dtype, shape)
        return Streamed(reads_of(opener.open(file, wanted), file.name, item.name), wanted.kind, dtype, shape)


def _plain_elements(
    opener: ItemOpener, file: StoredFile, wanted: Wanted, dtype: str, shape: tuple[int, ...]
) -> Reads | None:
    """The elements of a tensor that torch saved, if it is no more than these, row-major."""
    size, name = elements_size(dtype, shape), wanted.item.name

    def found_in(stream: Any, length: int) -> Framed | None:
        try:
            found = find_framed(stream, length, dtype, shape)
        except UnsupportedError:
            return None
        return found if found.tensor.is_row_major else None

    once = opener.open_once(file, wanted)
    if once is not None:
        ends = Ends(once(), opener.limit(wanted))
        with suppress(MetadataError):  # what is not known of it may be needed
            if (found := found_in(ends, ends.size)) is not None:
                return checked(reads_once(once(), found.start, size, file.name, name), found.crc)
    blocks = opener.open(file, wanted)
    found = found_in(StreamReader(blocks), blocks.size)
    return checked(reads_of(blocks, file.name, name, found.start, size), found.crc) if found is not None else None
