"""What plans say of a save: its items and their bytes, whether its index can hold them, whether it can fit, whether
their tensors change meanwhile, and what of a state dict has no item; and what ranks have under the same names, of which
DCP stores one rank's each, and nobody would hear of the others.

A save that cannot fit on its file system fails before it writes, where that is certain: tensors take at least their
bytes through a chain that cannot shrink them. A wrong refusal would be worse than an error while data is written, so
anything uncertain counts as zero.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from itertools import chain
from types import MappingProxyType
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType

from streamxf.buffers import collector_paused
from streamxf.chain import Chains
from streamxf.checkpoint.datafile import check_bare
from streamxf.checkpoint.saving import Entry, Extensions, Save
from streamxf.checkpoint.sources import Content, Staging, check_memory, content_of, dtype_name, flat_bytes, has_elements
from streamxf.dcp.base import is_own, keys_by_text, ranks_here
from streamxf.dcp.columns import Merged, PlannedItems, Shared, extra_of, is_grid, packed, paths_of, unpacked
from streamxf.errors import ChainError, MetadataError, UnsupportedError, located
from streamxf.format import limits
from streamxf.format.header import Identity, Kind
from streamxf.format.items import check_limits, check_name
from streamxf.format.tiling import MAX_CORNERS, MAX_GROUP
from streamxf.format.values import pack_value
from streamxf.storage.abilities import Volume
from streamxf.storage.storage import Storage
from streamxf.stream.encoder import MemorySource
from streamxf.torch_private import StoragePrefix, counted_changes, planner_of_the_save
from streamxf.torchsave.writing import Saved, alike_pickle, saved_plain
from streamxf.wording import some


def planned_bytes(items: Sequence[WriteItem]) -> int:
    """The bytes of tensors' elements, as plans have them; an object counts nothing, nor do elements without a size."""
    return int(PlannedItems.of(items).sizes.sum())


def part_of(item: WriteItem) -> Identity:
    """What an item is, without its writer."""
    data = item.tensor_data
    if item.type == WriteItemType.BYTE_IO or data is None:
        return Identity(b"", Kind.OBJECT, item.index.fqn)
    offset, shape, whole = map(tuple, (data.chunk.offsets, data.chunk.sizes, data.size))
    return Identity(b"", Kind.TENSOR, item.index.fqn, dtype_name(data.properties.dtype), offset, shape, whole)


def plain_values(items: Iterable[WriteItem], planner: Any, extensions: Extensions) -> dict[str, bytes]:
    """The objects of a plan that are stored as values, by name, as they are stored."""
    objects = [item.index for item in items if item.type == WriteItemType.BYTE_IO] if gives_data_again(planner) else []
    kept = (index for index in objects if extensions.hold_value(index.fqn))
    found = ((index.fqn, planner.lookup_object(index)) for index in kept)
    packed = ((name, each.packed if isinstance(each, Saved) else pack_value(each)) for name, each in found)
    return {name: data for name, data in packed if data is not None}


def entries_of(items: Iterable[WriteItem], planner: SavePlanner, staging: Staging) -> Iterator[Entry]:
    """What is to be written to one file; each item's data is asked for in turn, in a thread that makes nothing else."""
    staging.adopt()
    lookup = getattr(planner, "lookup_object", None) if gives_data_again(planner) else None
    for item in items:
        yield part_of(item), partial(_content, item, planner, lookup, staging)


def _content(item: WriteItem, planner: Any, lookup: Callable[[MetadataIndex], Any] | None, staging: Staging) -> Content:
    if item.type == WriteItemType.BYTE_IO:  # for a small object torch.save takes more than twice as long
        pickled = saved_plain(lookup(item.index)) if lookup is not None else None
        memory = memoryview(pickled) if pickled is not None else planner.resolve_data(item).getbuffer()
        return Content(MemorySource(memory), Kind.OBJECT)
    data = planner.resolve_data(item)
    with located(item=item.index.fqn):
        _check_planned(item, data, planner)
        return content_of(data.detach(), staging)


def _check_planned(item: WriteItem, data: torch.Tensor, planner: SavePlanner) -> None:
    plan = item.tensor_data
    if plan is not None and (data.dtype != plan.properties.dtype or data.size() != plan.chunk.sizes):
        cure = _CACHE if is_caching(planner) else "change the tensor in the state dict, before it is planned"
        raise UnsupportedError(
            f"the planner returned a tensor of {data.dtype} and shape {tuple(data.size())} to save, and had announced "
            f"{plan.properties.dtype} and shape {tuple(plan.chunk.sizes)}, which is what readers look for: {cure}"
        )


_CACHE = (
    "the plan is that of an earlier save, since torch's enable_plan_caching compares neither dtypes nor nesting: use "
    "streamxf.SavePlanner, which does, or do without"
)


def is_caching(planner: Any) -> bool:
    """Whether a planner of torch's, or derived from that, keeps plans of earlier saves."""
    return bool(getattr(planner, "_enable_plan_caching", False))


@collector_paused()
def check_index(plans: Sequence[SavePlan], chains: Chains | None = None) -> list[str]:
    """Refuse a save that its index cannot hold; raises MetadataError. What planners add later is not known yet. Returns
    names in the order of the ranks' states, as far as planners say it.
    """
    paths: dict[str, Any] = {}
    for data in {id(plan.planner_data): plan.planner_data for plan in plans}.values():
        paths |= data if isinstance(data, dict) else {}
    ranks = [PlannedItems.of(plan.items) for plan in plans]
    names: dict[str, None] = {}
    for layout in {id(items.layout): items.layout for items in ranks}.values():  # what is alike is looked at once
        names |= dict.fromkeys(layout["names"])
        for name, data in zip(layout["names"], layout["about"], strict=True):
            if data:
                check_limits(name, data[1])
            if data and chains is not None and not len(chains.for_item(name)):
                check_bare(Identity(b"", Kind.TENSOR, name, dtype_name(data[0].dtype), (), data[2]))
    longest = max(map(check_name, names), key=lambda name: len(name.encode()), default="")
    together = _size_of([*paths.values()])
    long = max(map(_size_of, paths.values())) if together > limits.MAX_PART // 2 else together
    most = {"a name": len(longest.encode()), "a path": long}
    with suppress(UnsupportedError):  # the planner may leave it out
        content = Metadata(names, paths)  # type: ignore[arg-type]
        most["planner data"] = _size_of(extra_of(content, paths_of(content)))
    for what, allowed in (("a name", limits.MAX_IDENTITY), ("a path", limits.MAX_PART // 2), ("planner data", _EXTRA)):
        if most.get(what, 0) > allowed:
            raise MetadataError(
                f"the index would have {what} of {most[what]:,} bytes, and {allowed:,} are allowed; nothing was "
                "written. Save with shorter names, or put less into DCP's metadata"
            )
    others = [items for items, plan in zip(ranks, plans, strict=True) if not isinstance(plan.items, PlannedItems)]
    counts = Counter(chain.from_iterable(items.layout["names"] for items in others))  # the rest their planner checked
    for name, data, boxes, _ in Merged.of(others).spans() if max(counts.values(), default=0) > MAX_GROUP else ():
        if data and boxes.corners(data[1]) > MAX_CORNERS and not is_grid(boxes, data[1]):
            text = f"its {len(boxes.offsets):,} shards are no grid, and have more than {MAX_CORNERS:,} corners"
            raise MetadataError(f"{text}; nothing was written", item=name)
    return [*paths]


_EXTRA = limits.MAX_ROOT // 2


def _size_of(content: Any) -> int:
    return len(json.dumps(content, default=str))


@dataclass(frozen=True)
class RoomNote:
    """What a rank tells the others in its plan's ``storage_data``; ranks of one file system share its room.

    - `save`: the rank's writer id, since plans that are cached bring notes of earlier saves.
    - `volume`: before anything was written.
    - `ranks`, `planned`: how many write to it, and the bytes of all their tensors; 0 until the coordinator knows.
    - `nesting`: what names and paths do not say of the rank's state dict.
    - `seen`: whether a coordinator has read it, as torch's own writers do not.
    - `values`: what it has, for the coordinator to compare; None if no other rank saves.
    - `held`: the ids of the saves that its process knows, the newest last.
    - `save_id`, `base`: what the coordinator says of the save: its id, and that of its base; "" without one.
    """

    save: bytes
    volume: Volume
    ranks: int = 0
    planned: int = 0
    nesting: Mapping[str, list[Any]] = field(default_factory=dict)
    seen: bool = False
    values: Values | None = None
    held: tuple[str, ...] = ()
    save_id: str = ""
    base: str = ""


_ENDLESS = Volume((), sys.maxsize, plain=False)  # for all that cannot tell its room


def note_room(
    plan: SavePlan, folder: Storage, save: bytes, nesting: Any = None, held: tuple[str, ...] = ()
) -> SavePlan:
    """Put a note into a rank's plan, if the plan has nothing there."""
    if plan.storage_data is not None:
        return plan
    values, planner = None, planner_of_the_save()
    if ranks_here() > 1 and is_usable(plan):
        values = Values.of(plan, planner if gives_data_again(planner) else None)
    note = RoomNote(save, folder.volume() or _ENDLESS, nesting=nesting or {}, values=values, held=held)
    return replace(plan, storage_data=note)


def is_usable(plan: SavePlan) -> bool:
    """Whether this is a plan, and does not stand for one that was kept since an earlier save."""
    return getattr(plan, "usable", True)  # which torch before 2.8 has not


def kept_plans(planner: Any, plans: Sequence[SavePlan]) -> Sequence[SavePlan]:
    """The whole plans of all ranks, where `plans` may stand for these; UnsupportedError if they are of other ranks."""
    kept: Sequence[SavePlan] = getattr(planner, "global_plan", plans) if is_caching(planner) else plans
    if len(kept) != len(plans):
        raise UnsupportedError(
            f"the planner has kept plans of ranks (enable_plan_caching) whose number is {len(kept)}, and {len(plans)} "
            "is that of those that save: save with as many, or by a planner without the cache"
        )
    return kept


def all_notes(plans: Sequence[SavePlan]) -> list[RoomNote | None]:
    """Each rank's note, also of a plan that was kept."""
    pairs = zip(plans, kept_plans(planner_of_the_save(), plans), strict=True)
    found = (plan.storage_data if is_usable(plan) else old.storage_data for plan, old in pairs)
    return [note if isinstance(note, RoomNote) else None for note in found]


def compare_ranks(notes: Sequence[RoomNote | None]) -> tuple[bool, str]:
    """Whether the values of all ranks were compared, and a warning of those that differ; raises as `check_alike`."""
    values = [None if note is None else note.values for note in notes]
    check_alike(values)
    known = [each for each in values if each is not None and each.digests is not None]
    names = differing(known) if len(known) == len(notes) else []
    for each in known:
        each.digests = None  # or a note that a planner keeps would be compared with values of later saves
    warning = (
        f"ranks have different values under the same names: {some(names, most=5)}. Of each, the checkpoint has one "
        f"rank's, and every rank loads that. {WAY_OUT}, or make the values equal before the save"
    )
    return len(known) == len(notes), warning if names else ""


def share_room(plans: list[SavePlan], save_id: str = "", base: str = "") -> list[SavePlan]:
    """Complete the notes of all ranks' plans."""
    noted = [(plan.storage_data, plan) for plan in plans if isinstance(plan.storage_data, RoomNote)]
    ranks = Counter(note.volume.name for note, _ in noted)
    planned: Counter[tuple[str, ...]] = Counter()
    for note, plan in noted if len(ranks) < len(noted) else ():  # or what each of them plans is all
        planned[note.volume.name] += planned_bytes(plan.items)

    def complete(note: Any) -> Any:
        if not isinstance(note, RoomNote):
            return note
        about = ranks[note.volume.name], planned[note.volume.name]
        made = RoomNote(note.save, note.volume, *about, note.nesting, seen=True)  # values are for nobody else
        return replace(made, save_id=save_id, base=base)

    return [replace(plan, storage_data=complete(plan.storage_data)) for plan in plans]


REACH = (
    "Give every rank the chain: STREAMXF_CHAIN, which a launcher may not pass on to other hosts, streamxf.install, or "
    "streamxf's writer"
)


def check_all_noted(plans: Sequence[SavePlan], own: bytes) -> None:
    """Raise ChainError if some ranks save by torch's own writer, which leaves no note where the one whose id is `own`
    does. A planner that makes new plans drops all notes, and what it has kept comes back as no plan that is usable.
    """
    if any(isinstance(plan.storage_data, RoomNote) and plan.storage_data.save == own for plan in plans):
        found = [n for n, plan in enumerate(plans) if plan.storage_data is None and is_usable(plan)]
        if found:
            whom = some((f"rank {rank}" for rank in found), most=16)
            raise ChainError(
                f"these save by torch's own writer, and rank 0 by streamxf's: {whom}. Nothing was written. {REACH}"
            )


_PLANS = {"create_local_plan": DefaultSavePlanner.create_local_plan}


def check_seen(plan: SavePlan, folder: Storage, planner: Any) -> None:
    """Raise ChainError if the rank that plans this save does so by torch's own writer: nothing could load it; and
    UnsupportedError for a cached plan of a state that was nested otherwise.
    """
    if is_caching(planner) and is_own(planner, _PLANS) and plan.planner_data not in (None, planner.mappings):
        raise UnsupportedError(f"the state dict is nested otherwise than its plan says: {_CACHE}")
    note = plan.storage_data
    if isinstance(note, StoragePrefix) or (isinstance(note, RoomNote) and not note.seen):
        raise ChainError(
            "rank 0 saves by torch's own writer, and this rank by streamxf's: nothing could load the checkpoint, and "
            f"no codec, such as encrypt, sees what rank 0 writes. Remove its data files from {folder.label()}. {REACH}"
        )


def check_room(save: Save, plan: SavePlan, planner: SavePlanner) -> None:
    """Refuse to begin what cannot fit; raises NoSpaceError."""
    shares = save.increment is not None and save.increment.may_share
    if save.extensions.may_shrink or shares or not gives_data_again(planner):
        return
    note, planned = plan.storage_data, planned_bytes(plan.items)
    own = isinstance(note, RoomNote) and note.save == save.writer_id
    shared = (note.planned, note.volume.free, note.ranks) if own else (0, 0, 0)
    save.check_space(planned, partial(_size_of_tensors, plan, planner), shared)


_OWN = {name: getattr(DefaultSavePlanner, name) for name in ("resolve_data", "lookup_object", "transform_object")}


def gives_data_again(planner: Any) -> bool:
    """Whether the planner can be asked for an item once more."""
    return isinstance(planner, DefaultSavePlanner) and is_own(planner, _OWN)


def _size_of_tensors(plan: SavePlan, planner: SavePlanner) -> int:
    """The bytes of tensors that take their bytes as they are. Objects and subclasses are not among them."""
    found = (planner.resolve_data(item) for item in plan.items if item.tensor_data is not None)
    return sum(data.nbytes for data in found if isinstance(data, torch.Tensor) and has_elements(data.detach()))


def is_flattened(value: list[Any]) -> bool:
    """Whether DCP makes items of a list's elements, and not an object of the whole."""
    return any(
        isinstance(it, Mapping | torch.Tensor | Saved) or (isinstance(it, list) and is_flattened(it)) for it in value
    )


def _below(value: Any, path: str = "") -> Iterator[tuple[Any, str]]:
    """A state, and all that DCP flattens in it, each with its path."""
    yield value, path
    for key, inner in flattened_entries(value):
        yield from _below(inner, f"{path}.{key}".removeprefix("."))


def check_keys(state: Any) -> None:
    """Raise UnsupportedError for a dict of which two keys have the same text."""
    for value, path in _below(state):
        if isinstance(value, Mapping):
            with located(item=path or None):
                keys_by_text(value.keys())  # other questions a TensorDict answers in its own way


def texts_about(state: Any, for_torch: bool) -> Iterator[str]:
    """Warnings that name what a load would not bring back, or not everywhere; the last only if `for_torch`."""
    for find, text in [*_TEXTS.items()][: None if for_torch else -1]:
        if names := [*find(state)]:
            yield text.format(some(names, most=20))


def _unstored(state: Any) -> Iterator[str]:
    for value, path in ((value, path) for value, path in _below(state) if isinstance(value, Mapping)):
        if not isinstance(value, dict | UserDict | MappingProxyType) and not [*value.keys()]:
            yield f"{path} ({type(value).__name__})"
        facts = getattr(value, "_metadata", None)
        for name, fact in facts.items() if isinstance(facts, Mapping) else ():  # of a TensorDict's state_dict()
            if not isinstance(fact, Mapping) or "batch_size" not in fact:
                continue
            place, kind = f"{path}.{name}".rstrip("."), fact.get("_type")
            if kind not in (None, "NonTensorData"):  # a TensorClass, whose fields these are
                yield from (f"{place}.{each}" for each in fact.get("_non_tensor", ()))
            elif not value if not name else not any(key == name or key.startswith(f"{name}.") for key in value):
                yield place


def flattened_entries(value: Any) -> Iterable[tuple[Any, Any]]:
    """What DCP makes items of, one by one, with keys or indices; nothing for what is an item itself."""
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value) if isinstance(value, list) and is_flattened(value) else ()


def _unfilled(value: Any, path: str = "") -> Iterator[str]:
    if path and isinstance(value, Mapping) and not isinstance(value, dict) and [*value.keys()]:
        yield f"{path} ({type(value).__name__})"
        return
    for key, inner in flattened_entries(value):
        yield from _unfilled(inner, f"{path}.{key}".removeprefix("."))


def _unsorted(state: Any) -> Iterator[str]:
    try:
        sorted(state or ())
    except TypeError:
        yield from (f"{key!r} ({type(key).__name__})" for key in state if not isinstance(key, str))


def _unasked(state: Any) -> Iterator[str]:
    """Empty dictionaries in lists for which torch puts None, or without which it takes the list for an object."""
    for value, path in ((value, path) for value, path in _below(state) if isinstance(value, list)):
        entries = [inner for _, inner in flattened_entries(value)]
        stored = [at for at, inner in enumerate(entries) if not _has_no_items(inner)]
        last = len(entries) if stored and not is_flattened([entries[at] for at in stored]) else max(stored, default=0)
        yield from (f"{path}.{at}".removeprefix(".") for at in range(len(entries)) if at < last and at not in stored)


def _has_no_items(value: Any) -> bool:
    """Whether DCP makes no item of a dictionary or list, nor of what is in it."""
    is_nested = isinstance(value, Mapping) or (isinstance(value, list) and is_flattened(value))
    return is_nested and all(_has_no_items(inner) for _, inner in flattened_entries(value))


def _renamed(value: Any, path: str = "", renamed: bool = False) -> Iterator[str]:
    if renamed and not isinstance(value, Mapping | torch.Tensor) and not [*flattened_entries(value)]:
        yield path
    for key, inner in flattened_entries(value):
        other = renamed or (isinstance(value, Mapping) and not isinstance(key, str))
        yield from _renamed(inner, f"{path}.{key}".removeprefix("."), other)


_TEXTS: dict[Callable[[Any], Iterator[str]], str] = {
    _unstored: "not stored: {}. DCP takes the class for a dictionary, and these values are not among its items: after "
    "a load they are what the target had. Save them under keys of their own, as plain values",
    _unfilled: "not loaded by torch's planner: {}. It makes None of mappings that are no dict, and asks for that: load "
    "with planner=streamxf.LoadPlanner(), or save and load a dict of the same items",
    _unsorted: "keys at the top that cannot be sorted, as dcp.load does before it loads: {}. Use strings; "
    "streamxf.load_intact loads this checkpoint nevertheless",
    _unasked: "empty dictionaries in lists, beside what is not empty: {}. They have no items, and torch's load planner "
    "asks for others than were saved: load with planner=streamxf.LoadPlanner(), or leave them out",
    _renamed: "not resumed by torch's own readers: {}. They put what is no tensor under the string of its key, such as "
    "'0', and leave what the target has under 0; streamxf's readers follow the target's keys",
}


def tensor_versions(names: Iterable[str], planner: SavePlanner) -> dict[str, int]:
    """How often each of these items, if it is a tensor, has been changed in place so far, as torch counts it."""
    state = getattr(planner, "state_dict", None)
    if not isinstance(state, Mapping):  # a planner that is not derived from torch's default
        return {}
    found = ((name, state.get(name)) for name in names)
    return {name: counted_changes(tensor) for name, tensor in found if isinstance(tensor, torch.Tensor)}


def changed_text(before: dict[str, int], after: dict[str, int]) -> str:
    """A warning that names the tensors which changed in between; "" if there are none."""
    changed = sorted(name for name, version in before.items() if after.get(name) != version)
    if not changed:
        return ""
    return (
        f"tensors changed while they were saved: {some(changed, most=3)}. This checkpoint mixes "
        "old and new values. Do not train during the save, or save a copy: dcp.async_save makes one, unless it is "
        "given an async_stager that does not"
    )


SMALL = 2**16
"""Bytes up to which a tensor is compared as a whole, and an object at all."""
_SAMPLE = 2**12  # of a larger one, from its beginning
_MOST = 2**24  # of all tensors of a rank
_NOTHING = bytes(4)


@dataclass
class Values:
    """What one rank has.

    - `about`: by name, dtype and whole shape of a tensor, and None for an object; those that ranks have alike are one.
    - `digests`: 4 bytes for each name, zeros where nothing can be compared; None if the planner cannot be asked.
    """

    about: Shared
    digests: bytes | None

    @classmethod
    def of(cls, plan: SavePlan, planner: SavePlanner | None) -> Values:
        """Those of a rank's own plan; without a planner only what this has."""
        columns = isinstance(plan.items, PlannedItems)  # whose planner compares shards
        items = PlannedItems.of(plan.items).objects() if columns else plan.items
        about = Shared({item.index.fqn: _about(item) for item in items if not columns or _is_whole(item)})
        if planner is None:
            return cls(about, None)
        found = dict(_digests(filter(_is_whole, items), planner))
        return cls(about, packed(b"".join(found.get(name, _NOTHING) for name in about)))


def _about(item: WriteItem) -> Any:
    data = item.tensor_data
    return None if data is None else (dtype_name(data.properties.dtype), tuple(data.size))


def _is_whole(item: WriteItem) -> bool:
    return item.tensor_data is None or item.tensor_data.chunk.sizes == item.tensor_data.size


def _digests(items: Iterable[WriteItem], planner: Any) -> Iterator[tuple[str, bytes]]:
    left = _MOST
    for item in items:
        data: Any = b""
        if item.tensor_data is None:
            with suppress(Exception):  # that an object's own code raises: if it cannot be saved, the save says so
                data = alike_pickle(planner.lookup_object(item.index))
        elif left > 0 and (sample := _sample(planner.resolve_data(item))) is not None:
            left -= len(sample)
            data = sample.cpu().numpy().data
        if 0 < len(data) <= SMALL:
            yield item.index.fqn, blake2b(data, digest_size=len(_NOTHING)).digest()


def _sample(tensor: torch.Tensor) -> torch.Tensor | None:
    """Bytes of a tensor, where it is; None if it has no elements that can be read."""
    tensor = tensor.detach()
    if not has_elements(tensor) or tensor.is_meta or not tensor.numel():
        return None
    with suppress(UnsupportedError):  # which the save raises when it comes to it
        check_memory(tensor)
        if tensor.nbytes > SMALL:
            if not tensor.is_contiguous():
                return None
            tensor = tensor.reshape(-1)[: _SAMPLE // tensor.itemsize]
        return flat_bytes(tensor.resolve_conj().resolve_neg().contiguous())
    return None


def check_alike(ranks: Sequence[Values | None]) -> None:
    """Raise MetadataError if ranks have tensors of other dtypes or shapes under one name."""
    first: dict[str, tuple[int, Any]] = {}
    seen: set[int] = set()
    for rank, values in enumerate(ranks):
        if values is None or id(values.about) in seen:
            continue
        seen.add(id(values.about))
        for name, own in values.about.items():
            other, theirs = first.setdefault(name, (rank, own))
            if own != theirs:
                raise MetadataError(
                    f"it is {_text(theirs)} on rank {other}, and {_text(own)} on rank {rank}; DCP would store one of "
                    f"them. Nothing was written. {WAY_OUT}",
                    item=name,
                )


WAY_OUT = 'Save what belongs to a rank under a name of its own, such as f"rng.{rank}"'


def _text(about: Any) -> str:
    return "an object" if about is None else f"{about[0]} {about[1]}"


def differing(ranks: Iterable[Values]) -> list[str]:
    """The names under which ranks have different values, as far as they are compared."""
    first: dict[str, bytes] = {}
    names: dict[str, None] = {}
    for values in {(id(values.about), values.digests): values for values in ranks}.values():
        digests = unpacked(values.digests) if values.digests is not None else b""
        for name, at in zip(values.about, range(0, len(digests), len(_NOTHING)), strict=False):
            own = digests[at : at + len(_NOTHING)]
            if own != _NOTHING and first.setdefault(name, own) != own:
                names[name] = None
    return [*names]
