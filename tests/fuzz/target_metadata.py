"""A metadata file with an index: keys, vouchers and everything that the index says, by both decoders."""

from collections.abc import Iterable
from typing import Any

from streamxf.checkpoint.access import Access
from streamxf.checkpoint.metadata import Metadata
from streamxf.errors import MetadataError
from streamxf.format.header import Kind
from streamxf.format.items import ObjectItem, coded_dtype
from streamxf.format.sections import Trailer
from tests.fuzz import held, metadata_files, second
from tests.fuzz.oracle import attempt
from tests.fuzz.target import Target
from tests.reference_decoder import VALUE, Index, read_index
from tests.samples import KEY

_RANKS = {None: ".metadata", 0: "__0.metadata"}
_READERS = ((Access.of(KEY), second.HOLDER), (Access(), second.ANYONE))


def run(data: bytes) -> None:
    for access, reader in _READERS:
        for rank, name in _RANKS.items():
            found, error = attempt(lambda access=access, name=name: _facts(_read(data, name, access)))
            second.compare(
                found, error, lambda reader=reader, rank=rank: _facts_of_reference(read_index(data, rank, reader))
            )


def _read(data: bytes, name: str, access: Access) -> Metadata:
    trailer = Trailer.parse(data[-104:], len(data))
    if trailer is None:
        raise MetadataError("it does not end in a trailer")
    sections = trailer.split(data[-trailer.size :], read=lambda at, size: data[at : at + size])
    metadata = Metadata.of(sections, name, access, listing=True)
    if metadata.index is not None and metadata.index.digests is not None:
        b"".join(metadata.index.digests)  # which are read with the blocks
    return metadata


def _facts(metadata: Metadata) -> dict[str, Any]:
    """What both decoders know of each item, and of the run."""
    run = metadata.index.run if metadata.index is not None else None
    found: dict[str, Any] = {"": run and run.to_json() | {"time": 0}}  # of times in the far future not all bits stay
    for name, item in metadata.items.items():
        if isinstance(item, ObjectItem):
            place = item.place
            kind = Kind.OBJECT if place.span is None else Kind.VALUE
            found[name] = None, [(place.file, place.at, place.size, place.digest, kind, place.span, (), ())]
            continue
        places = []
        for chunk in item.chunks:
            kind = Kind.FRAMED if chunk.framed else Kind.TENSOR
            stored = chunk.place
            box = chunk.offset, chunk.shape
            places.append((stored.file, stored.at, stored.size, stored.digest, kind, None, *box))
        found[name] = (coded_dtype(item.dtype), item.shape), places
    return found


def _facts_of_reference(index: Index) -> dict[str, Any]:
    found: dict[str, Any] = {"": index.run and index.run | {"time": 0}}
    for name, parts in index.parts.items():
        places = []
        for part in parts:
            kind, box = part.identity.kind, (part.identity.offset, part.identity.shard)
            span = part.span or (0, part.size) if kind == VALUE else None
            places.append((part.file.path, part.at, part.size, part.first, kind, span, *box))
        found[name] = index.shapes.get(name), places
    return found


def seeds() -> Iterable[bytes]:
    for files in held.checkpoints():
        for name, data in files.items():
            if name.endswith(".metadata") and len(data) < TARGET.max_len // 2:
                yield data


TARGET = Target(run, seeds, metadata_files.mutate, max_len=16_384)
