"""From a save's items and data files to its metadata file: index, keys, vouchers, a pickle for torch's readers."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from streamxf.buffers import collector_paused
from streamxf.checkpoint.destination import Extensions
from streamxf.checkpoint.pickled import pickled
from streamxf.checkpoint.saving import FileRecord, SavedFile
from streamxf.errors import ChainError, MetadataError, UnsupportedError
from streamxf.format.header import Kind
from streamxf.format.index import File, Index, Sections, Writer, pack, pack_keys, steps_of
from streamxf.format.items import Chunk, Item, ObjectItem, TensorItem, check_apart, check_tiles
from streamxf.format.run import RunFacts
from streamxf.keys.envelope import Envelope
from streamxf.proportion import Steps
from streamxf.version import __version__


def placed(items: Iterable[Item], files: Iterable[SavedFile], extensions: Extensions) -> dict[str, Item]:
    """Items by name, where `files` have them; of tensors the chunks that are there."""
    descriptors = extensions.recorded
    places = {
        (each.part.name, each.part.offset): (each.place(file.record.path, descriptors), each.part.kind is Kind.FRAMED)
        for file in files
        for each in file.written
    }
    made: dict[str, Item] = {}
    for item in items:
        if isinstance(item, ObjectItem):
            made[item.name] = replace(item, place=places[item.name, ()][0])
            continue
        stored = ((chunk, places.get((item.name, chunk.offset))) for chunk in item.chunks)
        chunks = tuple(Chunk(chunk.offset, chunk.shape, *found) for chunk, found in stored if found is not None)
        made[item.name] = replace(item, chunks=chunks)
    return made


@collector_paused()
def assemble(
    items: Mapping[str, Item],
    records: Sequence[FileRecord],
    extensions: Extensions,
    save_id: str,
    checkpoint_id: str | None,
    *,
    rank: int | None = None,
    extra: Mapping[str, Any] | None = None,
    run: RunFacts | None = None,
) -> tuple[Index, bytes]:
    """The index and the bytes of a metadata file, of items whose places are known, in the files of `records`. Without
    `checkpoint_id` it is what torch's readers never see, which needs no pickle. `extra` is as in `Index`.

    Raises ChainError if the ranks saved with different chains or keys, UnsupportedError if the checkpoint would not be
    whole, MetadataError if readers would refuse it, and KeyServiceError if a service that vouches for it cannot be
    asked.
    """
    _check_agreement(records)
    encryption = extensions.encryption
    own = encryption.wrapped if encryption is not None else ""
    writers = {record.writer_id: record.wrapped for record in records}
    numbers = {writer_id: number for number, writer_id in enumerate(writers)}
    torch: Any = sys.modules.get("torch")
    index = Index(
        save_id,
        rank,
        tuple(transform.get_descriptor() for transform in extensions.foreign),
        tuple(map(str, extensions.chain.descriptors)),
        _dek(own),
        tuple(Writer(writer_id, _dek(wrapped)) for writer_id, wrapped in writers.items()),
        {record.path: File(record.size, numbers[record.writer_id], record.crc) for record in records},
        items,
        tuple(sorted({module for record in records for module in record.modules})),
        {"streamxf": __version__, **({"torch": torch.__version__} if torch is not None else {})},
        extra or {},
        run,
    )
    packed = index.pack()
    _check_whole(items.values(), rank, steps_of(memoryview(packed)))
    keys = b""
    if encryption is not None:
        digest = Sections(memoryview(packed), memoryview(b"")).digest
        others = [wrapped for wrapped in dict.fromkeys(writers.values()) if wrapped != own]
        keys = pack_keys(own, encryption.vouch(digest), others)
    head = pickled(index, writers, checkpoint_id) if checkpoint_id is not None else b""
    return index, pack(head, packed, keys)


def _dek(wrapped: str) -> bytes | None:
    return Envelope.parse(wrapped).dek_id if wrapped else None


def _check_whole(items: Iterable[Item], rank: int | None, steps: Steps) -> None:
    """Refuse to publish tensors of which parts are missing: who loads them would keep old values there, unnoticed."""
    check = check_tiles if rank is None else check_apart
    for item in items:
        if isinstance(item, TensorItem):
            try:
                check(item.shape, [(chunk.offset, chunk.shape) for chunk in item.chunks], steps)
            except MetadataError as error:
                raise UnsupportedError(
                    f"the checkpoint would be incomplete, so it was not published: {error.message}. Save shards "
                    "together with all other ranks (no_dist=False), or each rank for itself with use_collectives=False",
                    item=item.name,
                ) from error


def _check_agreement(records: Iterable[FileRecord]) -> None:
    """Refuse to publish what no single reader could load: every rank drew a key of its own, say."""
    chains = {record.chain for record in records}
    if len(chains) > 1:
        raise ChainError(
            f"the ranks saved with different chains or keys, so nothing was published: {'; '.join(sorted(chains))}. "
            "Give every rank the same extensions and the same key"
        )
