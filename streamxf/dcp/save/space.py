"""A save that cannot fit on its file system fails before it writes, where that is certain.

What a rank will write at the least is compared with what is free. Tensors take at least their bytes through a chain
that cannot shrink them. For one that can, a sample of blocks is encoded, if there is less room than the tensors have
bytes; so a save with room to spare costs a system call. A wrong refusal would be worse than an error while data is
written: whatever is not sure counts as nothing.
"""

from __future__ import annotations

import io
import math
import statistics
import sys
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem

from streamxf.dcp.extensions import Extensions
from streamxf.dcp.save.datafile import identity_of, planned_bytes
from streamxf.dcp.save.sources import has_elements, memory_of
from streamxf.errors import NoSpaceError
from streamxf.format.header import Kind
from streamxf.storage.disk import Volume
from streamxf.storage.storage import Storage

SAMPLE_BYTES = 1 << 24
MAX_SAMPLES, MIN_SAMPLES = 16, 8

_ERRORS = 4  # standard errors below the sample's mean: what was not looked at may be smaller
_SLACK = 0.95
_STRONGER = 0.9  # what a file system that compresses makes of a block, beside zlib at its lowest level


@dataclass(frozen=True)
class RoomNote:
    """What a rank tells the others of itself and its file system, as its plan's ``storage_data``; ranks of one file
    system share its room.

    - `save`: the rank's writer id, since plans that are cached bring notes of earlier saves.
    - `volume`: before anything was written.
    - `ranks`, `planned`: how many write to it, and the bytes of all their tensors; 0 until the coordinator has filled
      them in.
    """

    save: bytes
    volume: Volume
    ranks: int = 0
    planned: int = 0


_ENDLESS = Volume((), sys.maxsize, plain=False)  # for all that cannot tell its room


def note_room(plan: SavePlan, folder: Storage, save: bytes) -> SavePlan:
    """Put a note into a rank's plan, if the plan has nothing there."""
    if plan.storage_data is not None:
        return plan
    return replace(plan, storage_data=RoomNote(save, folder.volume() or _ENDLESS))


def share_room(plans: list[SavePlan]) -> list[SavePlan]:
    """Complete the notes of all ranks' plans."""
    ranks = Counter(plan.storage_data.volume.name for plan in plans if isinstance(plan.storage_data, RoomNote))
    if max(ranks.values(), default=0) < 2:  # what each of them plans is all
        return plans
    planned: Counter[tuple[str, ...]] = Counter()
    for plan in plans:
        if isinstance(plan.storage_data, RoomNote):
            planned[plan.storage_data.volume.name] += sum(map(planned_bytes, plan.items))

    def complete(plan: SavePlan) -> SavePlan:
        note = plan.storage_data
        if not isinstance(note, RoomNote):
            return plan
        name = note.volume.name
        return replace(plan, storage_data=replace(note, ranks=ranks[name], planned=planned[name]))

    return [complete(plan) for plan in plans]


def check_room(
    folder: Storage,
    plan: SavePlan,
    planner: SavePlanner,
    extensions: Extensions,
    block_log2: int,
    save: bytes,
) -> None:
    """Refuse to begin what cannot fit; raises NoSpaceError."""
    volume = folder.volume()
    if volume is None or extensions.foreign or not _gives_data_again(planner):
        return
    planned = sum(map(planned_bytes, plan.items))
    note = plan.storage_data if isinstance(plan.storage_data, RoomNote) and plan.storage_data.save == save else None
    together = note is not None and note.planned > note.volume.free and _is_exact(extensions, note.volume)
    if planned <= volume.free and not together:
        return
    tensors = _Tensors(plan.items, planner)
    if note is not None and together and tensors.size == planned:
        _refuse(folder.given, note.planned, note.volume.free, f" by {note.ranks} ranks together")
    if tensors.size <= volume.free:
        return
    exact = _is_exact(extensions, volume)

    def stored(place: float) -> float:
        item, tensor, share = tensors.at(place)
        return _ratio(item, _piece(tensor, share, 1 << block_log2), extensions, block_log2, volume.plain)

    needed = tensors.size if exact else _estimate(stored, tensors.size, block_log2)
    if needed > volume.free:
        _refuse(folder.given, needed, volume.free, "")


def check_copy(
    folder: Storage,
    items: Sequence[WriteItem],
    block_at: Callable[[int, float], torch.Tensor | None],
    extensions: Extensions,
    block_log2: int,
) -> None:
    """The same of tensors that are read while they are written: `block_at` reads a block of that with a number in
    `items`, at a share of its bytes, or gives None if it is not known what comes of it. Raises as `check_room`.
    """
    volume, sizes = folder.volume(), list(map(planned_bytes, items))
    if volume is None or (needed := sum(sizes)) <= volume.free or extensions.foreign:
        return
    if not _is_exact(extensions, volume):
        ends = list(accumulate(sizes))

        def stored(place: float) -> float:
            number = bisect_right(ends, place * ends[-1])
            piece = block_at(number, 1 - (ends[number] - place * ends[-1]) / sizes[number])
            return 0.0 if piece is None else _ratio(items[number], piece, extensions, block_log2, volume.plain)

        needed = _estimate(stored, needed, block_log2)
    if needed > volume.free:
        _refuse(folder.given, needed, volume.free, "")


def _refuse(folder: str, needed: int, free: int, whose: str) -> None:
    shown = [_shown(size) if _shown(needed) != _shown(free) else f"{size:,} bytes" for size in (needed, free)]
    raise NoSpaceError(
        f"the disk is too full for this save: at least {shown[0]} are to be written to it{whose}, and "
        f"{shown[1]} are free. A checkpoint that is there stays until the new one is published, so both need "
        "space. Nothing was written. Make room (`streamxf forget` removes checkpoints by rules, `streamxf clean` what "
        "failed saves left), or save elsewhere",
        file=folder,
    )


def _shown(size: int) -> str:
    return f"{size / 2**30:,.2f} GiB" if size >= 2**30 else f"{size / 2**20:,.2f} MiB"


def _is_exact(extensions: Extensions, volume: Volume) -> bool:
    """Whether tensors surely take their bytes."""
    roles = {codec.role for codec in extensions.chain}
    if extensions.foreign or roles - {"checksum", "encryption"}:
        return False
    return volume.plain or "encryption" in roles  # of which no file system makes less


def _gives_data_again(planner: SavePlanner) -> bool:
    """Whether the planner can be asked for an item once more: another one's ``resolve_data`` may do anything."""
    own, methods = DefaultSavePlanner, ("resolve_data", "lookup_object", "transform_object")
    return isinstance(planner, own) and all(getattr(type(planner), name) is getattr(own, name) for name in methods)


class _Tensors:
    """The tensors of a plan that take their bytes as they are. Objects and subclasses are not among them."""

    def __init__(self, items: Sequence[WriteItem], planner: SavePlanner) -> None:
        self.items: list[tuple[WriteItem, torch.Tensor]] = []
        for item in items:
            data = planner.resolve_data(item) if item.tensor_data is not None else None
            if isinstance(data, torch.Tensor) and has_elements(data.detach()):
                self.items.append((item, data.detach()))
        self._ends = list(accumulate(tensor.nbytes for _, tensor in self.items))
        self.size = self._ends[-1] if self._ends else 0

    def at(self, place: float) -> tuple[WriteItem, torch.Tensor, float]:
        """The tensor that has the byte at `place`, a share of all bytes, and where in that tensor it is."""
        position = place * self.size
        number = bisect_right(self._ends, position)
        item, tensor = self.items[number]
        return item, tensor, 1 - (self._ends[number] - position) / tensor.nbytes


def _estimate(ratio_at: Callable[[float], float], size: int, block_log2: int) -> int:
    """The bytes that tensors of `size` bytes will take at the least, from blocks that lie evenly among them."""
    count = min(MAX_SAMPLES, max(MIN_SAMPLES, SAMPLE_BYTES >> block_log2))
    ratios = [ratio_at((number + 0.5) / count) for number in range(count)]
    lowest = statistics.mean(ratios) - _ERRORS * statistics.stdev(ratios) / math.sqrt(count)
    return int(max(0.0, lowest) * _SLACK * size)


def _ratio(item: WriteItem, piece: torch.Tensor, extensions: Extensions, block_log2: int, plain: bool) -> float:
    return min(1.0, _stored(item, piece, extensions, block_log2, plain) / piece.nbytes)


def _piece(tensor: torch.Tensor, place: float, size: int) -> torch.Tensor:
    """Neighbouring elements of about `size` bytes, around `place`."""
    while tensor.dim() and tensor.nbytes > size:
        row = tensor[0].nbytes
        length = tensor.shape[0]
        start = min(length - 1, int(place * length))
        if row > size:
            tensor, place = tensor[start], place * length - start
            continue
        rows = size // row
        return tensor.narrow(0, min(start, length - rows), rows)
    return tensor


def _stored(item: WriteItem, piece: torch.Tensor, extensions: Extensions, block_log2: int, plain: bool) -> float:
    """The bytes that a piece takes."""
    sink = io.BytesIO()
    shape = tuple(piece.shape)
    identity = identity_of(bytes(16), item, Kind.TENSOR)
    identity = identity._replace(offset=(0,) * piece.dim(), shape=shape, tensor_shape=shape)
    stream = extensions.open(sink, identity, published=True, block_log2=block_log2)
    stream.stream.write(memory_of(piece.cpu().contiguous()))
    stream.close()
    return sink.tell() if plain else min(sink.tell(), _STRONGER * len(zlib.compress(sink.getbuffer(), 1)))
