"""New ``torch.save`` files: torch lays them out around tensors without values, and says where those belong.

Nobody computes a CRC-32 of the tensors, which ``torch.load`` does not check: that could only be written in front of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from streamxf.convert.files.layout import File, Run, Segment, dtype_of
from streamxf.dcp.salvage.nest import nested
from streamxf.dcp.tensors.boxes import contiguous_strides
from streamxf.dcp.tensors.framing import layout_of
from streamxf.dcp.tensors.payload import untouched_storage
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
    storages = _Storages()
    flat = {key: storages.tensor(entry) if entry.is_tensor else load(entry) for key, entry in entries.items()}
    return _file(name, nested(flat, paths), storages)


def _file(name: str, value: Any, storages: _Storages) -> File:
    data, gaps = layout_of(value, storages.has)
    segments: list[Segment] = []
    at = 0
    for place, storage in gaps:
        segments += [data[at:place], storages.run(storage)]
        at = place
    return File(name, (*segments, data[at:]))


class _Storages:
    """Makes tensors whose memory nobody touches, so that it takes none."""

    def __init__(self) -> None:
        self._runs: dict[int, Run] = {}
        self._kept: list[torch.UntypedStorage] = []  # or another one could get its address

    def has(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage is one of these."""
        return storage._cdata in self._runs

    def run(self, storage: torch.UntypedStorage) -> Run:
        """What belongs in one of these."""
        return self._runs[storage._cdata]

    def tensor(self, entry: Entry) -> torch.Tensor:
        """A tensor with a storage of its own."""
        run = Run.of(entry)
        storage = untouched_storage(run.size)
        self._runs[storage._cdata] = run
        self._kept.append(storage)
        made = torch.empty(0, dtype=dtype_of(entry), device="cpu")
        return made.set_(storage, 0, entry.shape, contiguous_strides(entry.shape))
