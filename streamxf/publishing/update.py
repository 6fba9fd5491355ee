"""What changes from one version of weights to the next: found by reading the new one, kept until it is applied."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from streamxf.checkpoint.checkpoint import Checkpoint
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
        if old is None:
            yield Part(name, start, new.size, None, new)
            continue
        differs = new != old
        count = int(np.count_nonzero(differs))
        if count * _DENSE > new.size:
            yield Part(name, start, new.size, None, new)
        elif count:
            where = np.flatnonzero(differs).astype(np.uint32)  # a box has fewer elements
            yield Part(name, start, new.size, where, new[where])


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


class Update:
    """A version that was downloaded and checked, as what it changes; `Follower.prepare` makes it.

    Attributes
    ----------
    version : Version
        What will be there.
    since : Version or None
        What is there until it is applied.
    changed : tuple of str
        The tensors in which something changes.
    """

    def __init__(
        self,
        version: Version,
        since: Version | None,
        items: Mapping[str, TensorItem],
        held: Mapping[str, Flat],
        parts: Iterable[Part],
        done: Callable[[Update], None],
    ) -> None:
        self.version, self.since = version, since
        self._items, self._held, self._done = items, held, done
        self._parts = dict[str, list[Part]]()
        for part in parts:
            self._parts.setdefault(part.name, []).append(part)
        self.changed = tuple(self._parts)

    def apply(self) -> None:
        """Change the weights in place. After any error they are as they were, and it can be applied again.

        Raises ParameterError if another update was applied since this one was prepared.
        """
        undo = list[tuple[Part, Flat]]()
        try:
            for name, parts in self._parts.items():
                for part in parts:
                    undo.append((part, part.taken(self._held[name])))
                    part.put(self._held[name], part.values)
            self._done(self)
        except BaseException:
            for part, values in reversed(undo):
                part.put(self._held[part.name], values)
            raise

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors that change, each by its name and as it will be, one at a time in memory of its own."""
        for name in self._parts:
            yield name, self._whole(name)

    def patches(self) -> Iterator[WeightPatch]:
        """What changes, tensor by tensor, for engines that take positions and values: by bits, so that -0.0 comes as it
        is. A tensor comes whole, without indices, if a quarter of some part of it changes, if it is not of floats, or
        if something becomes NaN, which vLLM takes for "unchanged". It takes patches of the two kinds in two calls.
        """
        for name, parts in self._parts.items():
            item, sparse = self._items[name], all(part.where is not None for part in parts)
            if sparse:
                values = np.concatenate([part.values for part in parts])
                where = [part.where.astype(np.int64) + part.start for part in parts if part.where is not None]
                made = tensor_of(replace(item, shape=values.shape), values)
                if made.is_floating_point() and not made.isnan().any():
                    yield WeightPatch(name, item.shape, made.dtype, made, torch.from_numpy(np.concatenate(where)))
                    continue
            whole = self._whole(name)
            yield WeightPatch(name, item.shape, whole.dtype, whole.reshape(-1))

    def _whole(self, name: str) -> torch.Tensor:
        flat = self._held[name].copy()
        for part in self._parts[name]:
            part.put(flat, part.values)
        return tensor_of(self._items[name], flat)
