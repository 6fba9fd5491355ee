"""What the metadata of a DCP checkpoint says besides its items."""

from __future__ import annotations

from collections.abc import Iterator

from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.checkpoint.publish.names import made_by_writers
from streamxf.collector import collector_paused
from streamxf.descriptor import ENCRYPT
from streamxf.errors import MetadataError
from streamxf.formats.contents import Contents, Format
from streamxf.keys.envelope import Envelope
from streamxf.keys.vouchers import Vouchers
from streamxf.wording import many

_OWN = "streamxf."


@collector_paused()
def contents_of_checkpoint(checkpoint: Checkpoint) -> Contents:
    """All that is told of a checkpoint; of its data files, only sizes are asked for."""
    packages: dict[str, str] = {}
    for metadata in checkpoint.metadata:
        packages |= metadata.index.packages if metadata.index is not None else {}
    descriptors = {place.descriptors for item in checkpoint.items.values() for place in item.places}
    indexed = any(metadata.index is not None for metadata in checkpoint.metadata)
    own = indexed or any(text.startswith(_OWN) for texts in descriptors for text in texts)
    signers = _signers(checkpoint)
    sizes, notes = _files(checkpoint)
    return Contents(
        checkpoint.storage.given,
        Format.STREAMXF if own else Format.DCP,
        checkpoint.items,
        sizes,
        packages,
        checkpoint.save_ids,
        tuple(dict.fromkeys(_key_ids(checkpoint, descriptors))),
        tuple(signers),
        (*_notes(checkpoint, indexed, bool(signers)), *notes),
    )


def _key_ids(checkpoint: Checkpoint, descriptors: set[tuple[str, ...]]) -> Iterator[str]:
    lines = [metadata.key_line for metadata in checkpoint.metadata if metadata.key_line]
    fragments = (text.partition("#") for texts in descriptors for text in texts)
    lines += sorted({fragment for name, _, fragment in fragments if fragment and name.startswith(f"{ENCRYPT}/")})
    for line in lines:
        for entry in Envelope.parse(line).recipients:
            yield f"{entry.kind}:{entry.key_id}"


def _signers(checkpoint: Checkpoint) -> dict[str, None]:
    vouchers = [Vouchers.parse(metadata.vouchers) for metadata in checkpoint.metadata if metadata.vouchers]
    return {each.signature[0]: None for each in vouchers if each.signature is not None}


def _files(checkpoint: Checkpoint) -> tuple[dict[str, int], list[str]]:
    """Sizes of the files that the metadata names, and what there is to say of the folder's files."""
    storage = checkpoint.storage
    named = dict.fromkeys(metadata.name for metadata in checkpoint.metadata)
    for metadata in checkpoint.metadata:
        named.update(dict.fromkeys(metadata.files))
    named.update((place.file, None) for item in checkpoint.items.values() for place in item.places)
    listed = storage.names(named)
    sizes: dict[str, int] = {}
    missing: list[str] = []
    for name in named:
        size = listed.get(name)
        if size is None:  # it is in a folder below, a link, or not there
            try:
                with storage.open(name) as file:
                    size = file.size
            except (FileNotFoundError, MetadataError):
                missing.append(name)
                continue
        sizes[name] = size
    notes = []
    if missing:
        notes.append(
            f"{many(len(missing), 'data file')} that the metadata names, such as {missing[0]}, "
            f"{'are' if len(missing) > 1 else 'is'} missing."
        )
    if beside := [name for name in listed if name not in named and made_by_writers(name)]:
        notes.append(
            f"{many(len(beside), 'file')} of other saves, such as {min(beside)}, "
            f"{'lie' if len(beside) > 1 else 'lies'} beside it; `streamxf clean` removes what is left over."
        )
    return sizes, notes


def _notes(checkpoint: Checkpoint, indexed: bool, signed: bool) -> Iterator[str]:
    files = checkpoint.metadata
    if any(metadata.index is not None and not metadata.authenticated for metadata in files):
        yield "It is encrypted, and no key was given: what its metadata says here is not authenticated."
    if signed and not len(checkpoint.access.keys):
        yield "The signatures were not checked."
    if not indexed:
        yield "Its metadata names no versions, and nothing shows whether it was damaged or altered."
    if files[0].rank is not None:
        yield (
            f"It was saved without collectives: {many(len(files), 'rank')} with metadata of "
            f"{'their' if len(files) > 1 else 'its'} own."
        )
    if copies := sum(name != item.name for name, item in checkpoint.items.items()):
        yield f"{many(copies, 'item')} of a name that lower ranks use, too: the rank stands behind these names."
