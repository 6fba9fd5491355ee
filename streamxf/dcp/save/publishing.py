"""From what all ranks wrote to a metadata file: index, keys, vouchers, and the pickle for torch's readers."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.storage import WriteResult

from streamxf.collector import collector_paused
from streamxf.dcp.extensions import Extensions
from streamxf.dcp.metadata import Stored, extra_of, items_of, of_index
from streamxf.dcp.save.session import RECORD_ATTRIBUTE, FileRecord
from streamxf.descriptor import ENCRYPT
from streamxf.errors import ChainError, MetadataError, UnsupportedError
from streamxf.format import trailer
from streamxf.format.index import File, Index, Writer
from streamxf.format.items import Item, TensorItem
from streamxf.format.tiling import check_apart, check_tiles
from streamxf.keys.envelope import Envelope
from streamxf.version import __version__


@dataclass(frozen=True)
class Publication:
    """What is about to be published.

    Attributes
    ----------
    index : Index
    content : Metadata
        The same for torch's readers.
    data : bytes
        Of the metadata file.
    records : tuple of FileRecord
        Of all data files.
    """

    index: Index
    content: Metadata
    data: bytes
    records: tuple[FileRecord, ...]


@collector_paused()
def prepare(
    content: Metadata,
    results: Iterable[WriteResult],
    extensions: Extensions,
    save_id: str,
    rank: int | None,
    checkpoint_id: str | os.PathLike[str],
) -> Publication:
    """Put a metadata file together.

    Parameters
    ----------
    content : Metadata
        As the planner made it.
    results : iterable of WriteResult
        Of all ranks whose items it has.
    extensions : Extensions
        Of the process that publishes.
    rank : int or None
        Whose own metadata it is; None for that of all ranks.

    Raises
    ------
    ChainError
        If the ranks saved with different chains or keys.
    UnsupportedError
        If the checkpoint would not be whole, or something has no place in the index.
    KeyServiceError
        If a service that vouches for it cannot be asked.
    """
    flat = list(results)
    found = (getattr(result.storage_data, RECORD_ATTRIBUTE, None) for result in flat)
    records = tuple(record for record in found if record is not None)
    _check_agreement(records)
    encryption = extensions.encryption
    own = encryption.wrapped if encryption is not None else ""
    writers = {record.writer_id: record.wrapped for record in records}
    numbers = {writer_id: number for number, writer_id in enumerate(writers)}
    transforms = tuple(extension.get_descriptor() for extension in extensions.foreign)
    chain = tuple(map(str, extensions.chain.descriptors))
    usual = Stored(framed=not extensions.in_blocks)
    items = items_of(content, flat, (*(f"!{text}" for text in transforms), *chain), usual)
    _check_whole(items.values(), rank)
    index = Index(
        save_id,
        rank,
        transforms,
        chain,
        _dek(own),
        tuple(Writer(writer_id, _dek(wrapped)) for writer_id, wrapped in writers.items()),
        {record.path: File(record.size, numbers[record.writer_id], record.crc) for record in records},
        items,
        tuple(sorted({module for record in records for module in record.modules})),
        {"streamxf": __version__, "torch": torch.__version__},
        extra_of(content),
    )
    packed = index.pack()
    keys = b""
    if encryption is not None:
        digest = trailer.Sections(memoryview(packed), memoryview(b"")).digest
        others = [wrapped for wrapped in dict.fromkeys(writers.values()) if wrapped != own]
        keys = trailer.pack_keys(own, encryption.vouch(digest), others)
    made = of_index(index, descriptors_of(index, writers), checkpoint_id)
    return Publication(index, made, trailer.pack(pickle.dumps(made), packed, keys), records)


def descriptors_of(index: Index, wrapped: dict[bytes, str]) -> dict[str, list[str]]:
    """For each file, what torch's readers need to read its items, in the order in which they apply it.

    Parameters
    ----------
    wrapped : dict of bytes to str
        The wrapped data key of each writer, by its id.
    """
    by_writer = {}
    for writer in index.writers:
        texts = [*index.transforms]
        texts += [f"{text}#{wrapped[writer.id]}" if text.startswith(f"{ENCRYPT}/") else text for text in index.chain]
        by_writer[writer.id] = texts[::-1]
    if not index.transforms and not index.chain:
        return {}
    return {path: by_writer[index.writers[file.writer].id] for path, file in index.files.items()}


def _dek(wrapped: str) -> bytes | None:
    return Envelope.parse(wrapped).dek_id if wrapped else None


def _check_whole(items: Iterable[Item], rank: int | None) -> None:
    """Refuse to publish tensors of which parts are missing: who loads them would keep old values there, unnoticed."""
    check = check_tiles if rank is None else check_apart
    for item in items:
        if isinstance(item, TensorItem):
            try:
                check(item.shape, [(chunk.offset, chunk.shape) for chunk in item.chunks])
            except MetadataError as error:
                raise UnsupportedError(
                    f"the checkpoint would not be whole, so it was not published: {error.message}. Save shards "
                    "together with all other ranks (no_dist=False), or each rank for itself with use_collectives=False",
                    item=item.name,
                ) from error


def _check_agreement(records: Iterable[FileRecord]) -> None:
    """Refuse to publish what no single reader could load: every rank drew a key of its own, say."""
    chains = {record.chain for record in records}
    if len(chains) > 1:
        raise ChainError(
            "the ranks saved with different chains or keys, so nothing was published: "
            + "; ".join(sorted(chains))
            + ". Give every rank the same extensions and the same key"
        )
