"""``torch.save`` files to be written: torch lays them out around tensors without values, and says where those belong.

Nobody computes a CRC-32 of the tensors, which ``torch.load`` does not check: that could only be written in front of
them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from streamxf.convert.files.layout import File, Segment, dtype_of
from streamxf.convert.files.storages import Place, Storages
from streamxf.convert.origin import ITEM, Pickled, View
from streamxf.dcp.objects.policy import FREE_OBJECT, MAX_EXPANSION
from streamxf.dcp.salvage.nest import nested
from streamxf.dcp.tensors.framing import layout_of
from streamxf.descriptor import shorten
from streamxf.errors import MetadataError, located
from streamxf.formats.contents import Entry

SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")

Loader = Callable[[Entry], Any]


def fresh(name: str, entries: Mapping[str, Entry], paths: Mapping[str, tuple[str | int, ...]], load: Loader) -> File:
    """A file of these tensors and objects, nested as `paths` say; each tensor has a storage of its own.

    Parameters
    ----------
    name : str
        The file's.
    entries : mapping of str to Entry
        By the names to be written.
    load : callable
        Gives an object.
    """
    storages = Storages()
    flat = {key: storages.alone(entry) if entry.is_tensor else load(entry) for key, entry in entries.items()}
    return _file(name, nested(flat, paths), storages)


def restored(name: str, kept: Pickled, entries: Mapping[str, Entry], load: Loader) -> File:
    """A file as it was packed: nesting, order of keys, storages that tensors share.

    Raises
    ------
    MetadataError
        If what was kept does not fit the checkpoint.
    """
    names_in(kept)
    storages = Storages()
    views: dict[int, list[tuple[Entry, View]]] = {}
    for tensor, view in kept.views.items():
        entry = entries.get(tensor)
        if entry is None or not entry.is_tensor:
            raise MetadataError("it was a tensor in the file that was packed, and is none here", item=shorten(tensor))
        views.setdefault(view.storage, []).append((entry, view))
    tensors: dict[str, torch.Tensor] = {}
    for group in views.values():
        _check_views(group, kept.storages)
        tensors |= storages.shared(group)

    def value_of(leaf: str) -> Any:
        if leaf not in entries:
            raise MetadataError(f"the file that was packed had {shorten(leaf)}, which is not here", item=ITEM)
        return tensors[leaf] if leaf in tensors else load(entries[leaf])

    try:
        return _file(name, _filled(kept.skeleton, value_of), storages)
    except RecursionError:
        raise MetadataError("what was kept of the packed file is nested too deeply") from None


def names_in(kept: Pickled) -> set[str]:
    """The names, in the checkpoint, of all that is in a file.

    Raises
    ------
    MetadataError
        If a name or a table stands in two places: then a small skeleton could stand for any number of them.
    """
    found: set[str] = set()
    tables: set[int] = set()
    left = [kept.skeleton]
    while left:
        value = left.pop()
        if isinstance(value, dict | list | tuple):
            if value and id(value) in tables:
                raise MetadataError("what was kept of the packed file has a table in two places", item=ITEM)
            tables.add(id(value))
            left += value.values() if isinstance(value, dict) else value
        elif isinstance(value, str) and value not in found:
            found.add(value)
        else:
            raise MetadataError(
                f"what was kept of the packed file has {shorten(repr(value))} where a name is to stand once", item=ITEM
            )
    return found


def _filled(skeleton: Any, value_of: Callable[[Any], Any]) -> Any:
    if isinstance(skeleton, dict):
        kind = OrderedDict if isinstance(skeleton, OrderedDict) else dict
        return kind((key, _filled(value, value_of)) for key, value in skeleton.items())
    if isinstance(skeleton, list | tuple):
        filled = [_filled(value, value_of) for value in skeleton]
        return filled if isinstance(skeleton, list) else tuple(filled)
    return value_of(skeleton)


def _file(name: str, value: Any, storages: Storages) -> File:
    data, gaps = layout_of(value, storages.has)
    segments: list[Segment] = []
    at = 0
    for place, storage in gaps:
        segments += [data[at:place], *storages.segments(storage)]
        at = place
    return File(name, (*segments, data[at:]))


def _check_views(group: Sequence[tuple[Entry, View]], storages: Sequence[int]) -> None:
    """Check that tensors may lie in one storage as they are said to.

    Raises
    ------
    MetadataError
    """
    first = group[0][0]
    for entry, view in group:
        with located(item=shorten(entry.name)):
            dtype = dtype_of(entry)
            size = storages[view.storage] // dtype.itemsize if 0 <= view.storage < len(storages) else -1
            strange = len(view.strides) != len(entry.shape) or min((view.offset, *view.strides)) < 0
            strange |= view.requires_grad and not (dtype.is_floating_point or dtype.is_complex)
            if strange or entry.dtype != first.dtype or Place(entry, view.offset, view.strides).stop > size:
                raise MetadataError("the tensor does not lie in its storage as was kept when it was packed")
    places = [Place(entry, view.offset, view.strides) for entry, view in group if entry.raw_bytes]
    reach = max((place.stop for place in places), default=0) - min((place.start for place in places), default=0)
    filled = sum(place.entry.raw_bytes or 0 for place in places)
    if reach * dtype_of(first).itemsize > max(FREE_OBJECT, MAX_EXPANSION * filled):
        raise MetadataError(
            "the tensors that shared a storage lie so far apart in it that the file would hold hardly anything but "
            "zeros; choose them by only=, and each gets a storage of its own",
            item=shorten(first.name),
        )
