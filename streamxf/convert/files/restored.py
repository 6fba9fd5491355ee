"""Files as they were when they were packed: tensors at their places, and between them what was kept of the file."""

from __future__ import annotations

from collections.abc import Mapping

from streamxf.convert.files.layout import Cut, File, Run, Segment
from streamxf.convert.origin import ITEM, Origin, PackedFile, rest_of
from streamxf.descriptor import shorten
from streamxf.errors import MetadataError
from streamxf.formats.contents import Entry
from streamxf.wording import many


def restored(origin: Origin, entries: Mapping[str, Entry]) -> list[File]:
    """All files that were packed, by their paths.

    Parameters
    ----------
    entries : mapping of str to Entry
        The checkpoint's.

    Raises
    ------
    MetadataError
        If the checkpoint does not hold what was packed.
    """
    known = set(origin.items())
    if added := [name for name in entries if name not in known]:
        raise MetadataError(
            f"{many(len(added), 'item')} of the checkpoint, {shorten(added[0])} first, were not in the files that were "
            "packed; ask for another format",
            item=ITEM,
        )
    return [_file(path, file, entries) for path, file in origin.files.items()]


def _file(path: str, file: PackedFile, entries: Mapping[str, Entry]) -> File:
    segments: list[Segment] = []
    rest = entries.get(rest_of(path))
    length = 0
    if rest is not None:
        if rest.dtype != "uint8" or len(rest.shape) != 1:
            raise MetadataError("the item is not a row of bytes, as pack stores it", item=rest.name)
        length = rest.shape[0]
    at = taken = 0
    for tensor in file.tensors:
        entry = entries.get(tensor.name)
        if entry is None or (entry.dtype, entry.shape) != (tensor.dtype, tensor.shape):
            raise MetadataError(
                f"the tensor is gone, or has another dtype or shape than when {shorten(path)} was packed; ask for "
                "another format",
                item=shorten(tensor.name),
            )
        gap = tensor.start - at
        if gap:
            segments.append(_cut(path, rest, taken, gap, length))
            taken += gap
        run = Run(entry, tensor.order)
        segments.append(run)
        at = tensor.start + run.size
    if taken < length:
        segments.append(_cut(path, rest, taken, length - taken, length))
    return File(path, tuple(segments), file.mode)


def _cut(path: str, rest: Entry | None, start: int, size: int, length: int) -> Cut:
    if rest is None or size < 0 or start + size > length:
        raise MetadataError(
            f"the tensors of {shorten(path)} do not stand where they stood when it was packed", item=ITEM
        )
    return Cut(rest, start, size)
