"""A save that cannot fit on its file system fails before it writes, where that is certain: tensors take at least their
bytes through a chain that cannot shrink them. A wrong refusal would be worse than an error while data is written, so
anything uncertain counts as zero.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, replace

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner

from streamxf.checkpoint.destination import Extensions
from streamxf.checkpoint.saving import is_exact, refuse
from streamxf.checkpoint.sources import has_elements
from streamxf.dcp.save.items import planned_bytes
from streamxf.storage.disk import Volume
from streamxf.storage.storage import Storage


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


def check_room(folder: Storage, plan: SavePlan, planner: SavePlanner, extensions: Extensions, save: bytes) -> None:
    """Refuse to begin what cannot fit; raises NoSpaceError."""
    volume = folder.volume()
    if volume is None or not is_exact(extensions, volume) or not _gives_data_again(planner):
        return
    note = plan.storage_data if isinstance(plan.storage_data, RoomNote) and plan.storage_data.save == save else None
    together = note is not None and note.planned > note.volume.free
    planned = sum(map(planned_bytes, plan.items))
    if planned <= volume.free and not together:
        return
    size = _size_of_tensors(plan, planner)
    if note is not None and together and size == planned:
        refuse(folder.given, note.planned, note.volume.free, f" by {note.ranks} ranks together")
    if size > volume.free:
        refuse(folder.given, size, volume.free)


def _gives_data_again(planner: SavePlanner) -> bool:
    """Whether the planner can be asked for an item once more: another one's ``resolve_data`` may do anything."""
    own, methods = DefaultSavePlanner, ("resolve_data", "lookup_object", "transform_object")
    return isinstance(planner, own) and all(getattr(type(planner), name) is getattr(own, name) for name in methods)


def _size_of_tensors(plan: SavePlan, planner: SavePlanner) -> int:
    """The bytes of tensors that take their bytes as they are. Objects and subclasses are not among them."""
    found = (planner.resolve_data(item) for item in plan.items if item.tensor_data is not None)
    return sum(data.nbytes for data in found if isinstance(data, torch.Tensor) and has_elements(data.detach()))
