"""What changes from one version of weights to the next: found by reading the new one, kept until it is applied."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.errors import ParameterError
from streamxf.lazy import numpy as np
from streamxf.lazy import torch
from streamxf.publishing.version import Version
from streamxf.reading import Box, TensorItem

if TYPE_CHECKING:
    import numpy.typing as npt

Flat: TypeAlias = "npt.NDArray[Any]"
"""The elements of a tensor in row-major order, as unsigned numbers of at most eight bytes."""

_DENSE = 4  # of so many elements one has changed: from then on all are kept, and no positions


class Part(NamedTuple):
    """What a stretch of a tensor becomes.

    - `start`, `size`: which, in elements of `Flat`.
    - `where`: which of these change, from `start` on; None for all.
    - `values`: what they become.
    """

    name: str
    start: int
    size: int
    where: Flat | None
    values: Flat

    def put(self, flat: Flat, values: Flat) -> None:
        """Give the elements that change these values."""
        stretch = flat[self.start : self.start + self.size]
        stretch[slice(None) if self.where is None else self.where] = values

    def taken(self, flat: Flat) -> Flat:
        """A copy of the elements that change, as they are now."""
        stretch = flat[self.start : self.start + self.size]
        found: Flat = stretch.copy() if self.where is None else stretch[self.where]
        return found


def flat_of(array: Any) -> Flat:
    """The elements of a contiguous array, in its memory."""
    found: Flat = array.reshape(-1).view(f"u{min(array.itemsize, 8)}")
    return found


def zeros_for(item: TensorItem) -> Flat:
    """Memory for a tensor's elements."""
    return np.zeros(item.size // min(item.itemsize, 8), f"u{min(item.itemsize, 8)}")


def tensor_of(item: TensorItem, flat: Flat) -> torch.Tensor:
    """A tensor in the memory of its elements."""
    whole = Box(item, (0,) * len(item.shape), item.shape)
    return whole.as_torch(flat.view("c16" if item.itemsize == 16 else flat.dtype).reshape(item.shape))


def changes(checkpoint: Checkpoint, items: Iterable[TensorItem], held: Mapping[str, Flat]) -> Iterator[Part]:
    """What differs in tensors of a checkpoint from what is `held`; all of what is not. Blocks are decoded in parallel;
    a few are in memory at a time. Raises as `Checkpoint`.
    """
    coming = deque[tuple[str, int]]()

    def boxes() -> Iterator[Box]:
        for item in items:
            at = 0
            for box in Box.of(item):
                coming.append((item.name, at))
                at += math.prod(box.lengths) * item.itemsize // min(item.itemsize, 8)
                yield box

    for array in checkpoint.read_boxes(boxes()):
        name, start = coming.popleft()
        new = flat_of(array)
        old = held[name][start : start + new.size] if name in held else None
        if (part := difference(name, start, old, new)) is not None:
            yield part


def difference(name: str, start: int, old: Flat | None, new: Flat) -> Part | None:
    """What makes `new` of `old`, a stretch of a tensor; None if nothing does."""
    if old is not None:
        differs = new != old
        if not (count := int(np.count_nonzero(differs))):
            return None
        if count * _DENSE <= new.size:
            where = np.flatnonzero(differs).astype(np.uint32)  # a box has fewer elements
            return Part(name, start, new.size, where, new[where])
    return Part(name, start, new.size, None, new)


class WeightPatch(NamedTuple):
    """What changes in one tensor, in the form of vLLM's ``CheckpointWeightPatch``.

    - `values`: of the elements at `indices`, or of the whole tensor, flat; in its dtype.
    - `indices`: which these are, in row-major order, int64; None for all.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    values: torch.Tensor
    indices: torch.Tensor | None = None


class WeightStore(ABC):
    """Where weights are kept.

    - `held`: what is there.
    - `places`: of each tensor that is, which containers it came from; `digests`: of each of these H, in hex.
    """

    folder: Path | None = None
    held: Version | None = None
    places: Mapping[str, str] = {}
    digests: Mapping[str, str] = {}

    @abstractmethod
    def wanted(self, items: Mapping[str, TensorItem]) -> dict[str, TensorItem]:
        """Those of a version that are kept here; raises MetadataError, UnsupportedError if they do not fit."""

    @abstractmethod
    def update(self, checkpoint: Checkpoint, coming: Coming) -> Update:
        """Download what changes; raises as `Checkpoint`."""

    @abstractmethod
    def flats(self, items: Mapping[str, TensorItem]) -> Mapping[str, Flat]:
        """What is there, in its memory or in files."""

    def close(self) -> None:  # noqa: B027 - memory needs none
        """Let go of it."""

    def begin(self) -> None:  # noqa: B027 - memory has nothing that tells what is there
        """What is there is about to change."""

    def settle(self, coming: Coming | None, flats: Mapping[str, Flat]) -> None:
        """What is there is this version by now, or the one before if None; `flats` are its elements."""
        if coming is not None:
            self.held, self.places, self.digests = coming[0], *coming[2:]


class Coming(NamedTuple):
    """A version that is about to be kept."""

    version: Version
    items: Mapping[str, TensorItem]
    places: Mapping[str, str]
    digests: dict[str, str]

    def opened(self, checkpoint: Checkpoint, store: WeightStore, flats: Mapping[str, Flat]) -> list[TensorItem]:
        """The tensors that do not come from the same containers. Of those that are differences from what is held,
        nothing else is read.
        """

        regions: dict[str, dict[tuple[int, ...], memoryview]] = {}  # of one tensor, of whose shards boxes come in turn

        def known(part: Any, header: Any) -> memoryview | None:
            key = f"{part.item.name} {part.chunk.offset}"
            self.digests.setdefault(key, header.digest.hex())  # of the uppermost
            if not header.base or store.digests.get(key) != header.base.hex() or part.item.name not in flats:
                return None
            item, chunk = part.item, part.chunk
            if item.name not in regions:
                regions.clear()
            shards = regions.setdefault(item.name, {})
            if chunk.offset not in shards:
                array = flats[item.name].reshape((*item.shape, *[-1] * (item.itemsize > 8)))
                begins = zip(chunk.offset, chunk.shape, strict=True)
                region = np.ascontiguousarray(array[tuple(slice(at, at + size) for at, size in begins)])
                shards[chunk.offset] = region.reshape(-1).view("u1").data
            return shards[chunk.offset]

        checkpoint.known = known
        changed = [item for name, item in self.items.items() if store.places.get(name) != self.places[name]]
        names = {item.name for item in changed}
        self.digests.update({key: h for key, h in store.digests.items() if key.rpartition(" (")[0] not in names})
        return changed


class Update:
    """A version that was downloaded and checked; `Follower.prepare` makes it.

    Attributes
    ----------
    version : Version
        What will be there.
    since : Version or None
        What is there until it is applied.
    changed : tuple of str
        The tensors in which something changes.
    """

    def __init__(self, target: WeightStore, coming: Coming, held: Mapping[str, Flat], parts: Iterable[Part]) -> None:
        self.version, self.since = coming.version, target.held
        self._target, self.coming, self.flats = target, coming, held
        self._parts = dict[str, list[Part]]()
        for part in parts:
            self._parts.setdefault(part.name, []).append(part)
        self.changed = tuple(self._parts)
        self._applied = False

    def apply(self) -> None:
        """Change what is there. After any error it is as it was, and the update can be applied again.

        Raises ParameterError if this one was applied, or another since it was prepared.
        """
        if self._applied:
            raise ParameterError(f"this update was applied already, to {self.version}: prepare the next one")
        if self._target.held != self.since:
            raise ParameterError(f"another update was applied since: {self._target.held} is there")
        self._apply()
        self._applied = True

    def _apply(self) -> None:
        undo = list[tuple[Part, Flat]]()
        try:
            self._target.begin()
            for name, parts in self._parts.items():
                for part in parts:
                    if part.values is not self.flats[name]:
                        undo.append((part, part.taken(self.flats[name])))
                        part.put(self.flats[name], part.values)
            self._target.settle(self.coming, self.flats)
        except BaseException:
            for part, values in reversed(undo):
                part.put(self.flats[part.name], values)
            self._target.settle(None, self.flats)
            raise

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors that change, each by its name and as it will be, one at a time in memory of its own."""
        for name in self.changed:
            yield name, self._whole(name)

    def patches(self) -> Iterator[WeightPatch]:
        """What changes, tensor by tensor, for engines that take positions and values: by bits, so that -0.0 comes as it
        is. A tensor comes whole, without indices, if a quarter of some part of it changes, if it is not of floats, or
        if something becomes NaN, which vLLM takes for "unchanged". It takes patches of the two kinds in two calls.
        """
        for name in self.changed:
            item, parts = self.coming.items[name], self._parts_of(name)
            if parts and all(part.where is not None for part in parts):
                values = np.concatenate([part.values for part in parts])
                where = [part.where.astype(np.int64) + part.start for part in parts if part.where is not None]
                made = tensor_of(replace(item, shape=values.shape), values)
                if made.is_floating_point() and not made.isnan().any():
                    yield WeightPatch(name, item.shape, made.dtype, made, torch.from_numpy(np.concatenate(where)))
                    continue
            if parts:
                whole = self._whole(name)
                yield WeightPatch(name, item.shape, whole.dtype, whole.reshape(-1))

    def _parts_of(self, name: str) -> Sequence[Part]:
        return self._parts[name]

    def _whole(self, name: str) -> torch.Tensor:
        flat = self.flats[name].copy()
        for part in self._parts[name]:
            part.put(flat, part.values)
        return tensor_of(self.coming.items[name], flat)
