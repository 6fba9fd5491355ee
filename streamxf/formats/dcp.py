"""What the metadata of a DCP checkpoint says besides its items."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.checkpoint.publish import made_by_writers
from streamxf.collector import collector_paused
from streamxf.descriptor import ENCRYPT
from streamxf.formats.contents import Contents, Format, sizes_of
from streamxf.keys.envelope import Envelope
from streamxf.keys.vouchers import Vouchers
from streamxf.wording import many

_OWN = "streamxf."


@collector_paused()
def contents_of_checkpoint(checkpoint: Checkpoint) -> Contents:
    """The contents of a checkpoint; of its data files, only the sizes are read."""
    packages: dict[str, str] = {}
    for metadata in checkpoint.metadata:
        packages |= metadata.index.packages if metadata.index is not None else {}
    descriptors = {place.descriptors for item in checkpoint.items.values() for place in item.places}
    indexed = any(metadata.index is not None for metadata in checkpoint.metadata)
    own = indexed or any(text.startswith(_OWN) for chain in descriptors for text in chain)
    signers = _signers(checkpoint)
    sizes, notes, incomplete = _files(checkpoint)
    return Contents(
        checkpoint.storage.given,
        Format.STREAMXF if own else Format.DCP,
        {label: item if item.name == label else replace(item, name=label) for label, item in checkpoint.items.items()},
        sizes,
        packages,
        checkpoint.save_ids,
        tuple(dict.fromkeys(_key_ids(checkpoint, descriptors))),
        tuple(signers),
        (*_notes(checkpoint, indexed, bool(signers)), *notes),
        incomplete=incomplete,
    )


def _key_ids(checkpoint: Checkpoint, descriptors: set[tuple[str, ...]]) -> Iterator[str]:
    lines = [line for metadata in checkpoint.metadata for line in metadata.wrapped.values()]
    fragments = (text.partition("#") for chain in descriptors for text in chain)
    lines += sorted({fragment for name, _, fragment in fragments if fragment and name.startswith(f"{ENCRYPT}/")})
    for line in lines:
        for entry in Envelope.parse(line).recipients:
            yield f"{entry.kind}:{entry.key_id}"


def _signers(checkpoint: Checkpoint) -> dict[str, None]:
    vouchers = [Vouchers.parse(metadata.vouchers) for metadata in checkpoint.metadata if metadata.vouchers]
    return {each.signature[0]: None for each in vouchers if each.signature is not None}


def _files(checkpoint: Checkpoint) -> tuple[dict[str, int], list[str], tuple[str, ...]]:
    """Sizes of the files that the metadata names, notes about files, and which are missing or have the wrong size."""
    storage = checkpoint.storage
    least = dict.fromkeys((metadata.name for metadata in checkpoint.metadata), 0)
    exact = {name: file.size for metadata in checkpoint.metadata for name, file in metadata.files.items()}
    for item in checkpoint.items.values():
        for place in item.places:
            least[place.file] = max(place.at + place.size, least.get(place.file, 0))
    named = {**least, **exact}
    listed = storage.names(named)
    sizes = sizes_of(named, listed, storage.open)
    missing = [name for name in named if name not in sizes]
    wrong = [name for name, size in sizes.items() if size != exact.get(name, size) or size < least.get(name, 0)]
    beside = [name for name in listed if name not in named and made_by_writers(name)]
    return sizes, list(_file_notes(missing, wrong, beside)), (*missing, *wrong)


def _file_notes(missing: list[str], wrong: list[str], beside: list[str]) -> Iterator[str]:
    if missing:
        yield f"Missing: {many(len(missing), 'file')} that the metadata names, such as {missing[0]}."
    if wrong:
        yield f"Not of the size in the metadata: {many(len(wrong), 'file')}, such as {wrong[0]}."
    if beside:
        yield (
            f"Not part of it: {many(len(beside), 'file')} of other saves, such as {min(beside)}; `streamxf clean` "
            "removes leftovers."
        )


def _notes(checkpoint: Checkpoint, indexed: bool, signed: bool) -> Iterator[str]:
    files = checkpoint.metadata
    if any(metadata.index is not None and not metadata.authenticated for metadata in files):
        yield "It is encrypted, and no key was given: what its metadata says here is not authenticated."
    if signed and not len(checkpoint.access.keys):
        yield "The signatures were not checked."
    if not indexed:
        yield "Its metadata names no versions, and nothing shows whether it was damaged or altered."
    if files[0].rank is not None:
        yield f"It was saved without collectives: {many(len(files), 'rank')}, each with its own metadata."
    if copies := sum(name != item.name for name, item in checkpoint.items.items()):
        yield f"{many(copies, 'item')} of a name that lower ranks use, too: the rank is appended to these names."
