"""From a catalog into a state dict: an item arrives whole and verified, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner_helpers import _create_chunk_list
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.tensor import DTensor

from streamxf.checkpoint.elements import Array
from streamxf.checkpoint.handles import as_torch
from streamxf.checkpoint.nesting import nested
from streamxf.checkpoint.opening import Wanted
from streamxf.checkpoint.reading import Box, shared_part
from streamxf.errors import MetadataError, UnsupportedError
from streamxf.format.items import Chunk, Item, ObjectItem, TensorItem, check_tiles
from streamxf.progress import Progress
from streamxf.registry import NOT_AT_HAND
from streamxf.tools.salvage.catalog import Catalog
from streamxf.tools.salvage.remains import memory_for
from streamxf.tools.salvage.result import Lost, Salvaged

Ints = tuple[int, ...]


class Filler:
    """Reads what a catalog has; with `partial` also tensors of which only a part verified."""

    def __init__(self, catalog: Catalog, partial: bool, progress: Progress | None = None) -> None:
        self._catalog = catalog
        self._partial = partial
        self._progress = progress
        self._budget = catalog.budget.renewed()
        self._damaged = list(catalog.damaged)
        self._loaded: dict[str, Any] = {}
        self._in_part: list[str] = []
        self._missing: list[str] = []

    def whole(self) -> Salvaged:
        """Everything, as whole tensors on the CPU, and objects."""
        items = self._catalog.items
        self._each(items, self._load_whole)
        loaded = {name: self._loaded[name] for name in items if name in self._loaded}
        return self._result(nested(loaded, self._catalog.paths), loaded)

    def check(self) -> Salvaged:
        """Everything is read and nothing kept: the result has an empty state dict."""
        found: set[str] = set()

        def read(name: str) -> None:
            if self.read(name) is not None:
                found.add(name)

        self._each(self._catalog.items, read)
        return self._result({}, [name for name in self._catalog.items if name in found])

    def read(self, name: str) -> torch.Tensor | bytes | None:
        """An item by itself: a whole tensor on the CPU, or an object's bytes; None if it did not verify."""
        item = self._catalog.items[name]
        with self._by_itself(name):
            return self._object(item) if isinstance(item, ObjectItem) else self._whole(item)
        return None

    def into(self, state_dict: dict[str, Any]) -> Salvaged:
        """What `state_dict` asks for, in place, as ``dcp.load`` does it; the rest keeps its values."""
        plain = {name: item.state_dict() if isinstance(item, Stateful) else item for name, item in state_dict.items()}
        planner = DefaultLoadPlanner(allow_partial_load=True)
        planner.set_up_planner(plain, Metadata({}), True)
        known = {entry.item for entry in self._damaged}
        items = self._catalog.items
        self._missing = [name for name in planner.state_dict if name not in items and name not in known]

        def load(name: str) -> None:
            item = items[name]
            if isinstance(item, TensorItem):
                self._load_into(item, planner.state_dict[name], planner)
            elif (data := self._object(item)) is not None:
                self._loaded[name] = planner.state_dict[name] = self._catalog.objects.load(data, item.place.size)
                set_element(plain, planner.mappings[name], self._loaded[name])

        self._each([name for name in planner.state_dict if name in items], load)
        for name, value in list(state_dict.items()):
            if isinstance(value, Stateful):
                value.load_state_dict(plain[name])
            else:
                state_dict[name] = plain[name]
        return self._result(state_dict, [name for name in planner.state_dict if name in self._loaded])

    # -- one item ----------------------------------------------------------------------------------

    @contextmanager
    def _by_itself(self, name: str) -> Iterator[None]:
        """Note what goes wrong with an item, whatever it is, so that the others are given."""
        try:
            yield
        except Exception as error:  # torch, foreign transforms and pickles raise anything
            self._damaged.append(Lost.of(error, name))

    def _load_whole(self, name: str) -> None:
        item = self._catalog.items[name]
        if isinstance(item, TensorItem):
            if (tensor := self._whole(item)) is not None:
                self._loaded[name] = tensor
        elif (data := self._object(item)) is not None:
            self._loaded[name] = self._catalog.objects.load(data, item.place.size)

    def _whole(self, item: TensorItem) -> torch.Tensor | None:
        complete = self._covers(item.name, item.shape, item.chunks)
        if not complete and not self._partial:
            return None
        # what is lost of one that is returned in part takes no memory, whatever the metadata says of its size
        in_part = self._partial and not (complete and len(item.chunks) == 1)
        self._budget.spend(item.size, "the tensor", item=item.name)
        whole = memory_for(item.shape, item.dtype, zero=in_part)
        good = 0
        for chunk in item.chunks:
            place: Any = (*_slices(chunk.offset, chunk.shape), ...)  # with the ellipsis it is a view in any case
            box = whole[place]
            part = memory_for(chunk.shape, item.dtype) if in_part else box
            if self._read(item, chunk, chunk.offset, part):
                good += 1
                if in_part:
                    box[...] = part
        return as_torch(whole, item.dtype) if self._is_taken(item.name, good, len(item.chunks), complete) else None

    def _load_into(self, item: TensorItem, target: Any, planner: DefaultLoadPlanner) -> None:
        if isinstance(target, DTensor) and target.device_mesh.get_coordinate() is None:
            return  # it lies on other ranks
        try:
            wanted = [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in _create_chunk_list(target)]
        except ValueError:
            kind = type(target).__name__
            raise UnsupportedError(f"the checkpoint has a tensor, and the state dict a {kind}") from None
        if item.shape != tuple(target.size()):
            raise UnsupportedError(
                f"the checkpoint has a tensor of shape {item.shape}, the state dict one of {tuple(target.size())}"
            )
        complete = True
        empty = [chunk for chunk in item.chunks if 0 in chunk.shape]  # which are read, too: they may be damaged
        good: list[tuple[torch.Tensor, Array]] = []
        count = sum(not self._read(item, chunk, chunk.offset, memory_for(chunk.shape, item.dtype)) for chunk in empty)
        for offset, lengths in wanted:
            place = planner.lookup_tensor(MetadataIndex(item.name, torch.Size(offset))).detach()
            box = Box(item, offset, lengths)
            shared = [(chunk, part) for chunk in item.chunks if (part := shared_part(box, chunk)) is not None]
            complete &= self._covers(item.name, lengths, [(part[2], part[1]) for _, part in shared])
            for chunk, (inside, size, at) in shared if complete or self._partial else ():
                count += 1
                scratch = memory_for(size, item.dtype)
                if self._read(item, chunk, tuple(map(int.__add__, chunk.offset, inside)), scratch):
                    good.append((place[_slices(at, size)], scratch))
        if self._is_taken(item.name, len(good), count, complete):
            self._loaded[item.name] = target
            for into, scratch in good:
                into.copy_(as_torch(scratch, item.dtype))

    def _object(self, item: ObjectItem) -> bytes | None:
        """The bytes of an object, if it verified and all copies of it are the same."""
        found: bytes | None = None
        for source, wanted in self._catalog.copies(Wanted(item)):
            assert isinstance(wanted.item, ObjectItem)
            try:
                data = source.read_object(wanted.item)
                self._budget.spend(len(data), "the object")
            except Exception as error:  # foreign transforms raise anything
                self._damaged.append(Lost.of(error, item.name, source.full(wanted.place.file)))
                continue
            if found is not None and data != found:
                self._damaged.append(Lost.differing(item.name))
                return None
            found = data
        return found

    def _read(self, item: TensorItem, chunk: Chunk, offset: Ints, out: Array) -> bool:
        """Fill `out` with the part of a shard that begins at `offset`; False if that did not verify, and `out` holds
        anything.

        All copies are read that several ranks have of it: nothing says that they are of one save.
        """
        found = False
        for source, wanted in self._catalog.copies(Wanted(item, chunk)):
            other = memory_for(out.shape, item.dtype) if found else out
            try:
                source.fill(wanted, offset, other)
            except Exception as error:  # torch and foreign transforms raise anything
                file = source.full(wanted.place.file)
                self._damaged.append(Lost.of(error, item.name, file, chunk.offset, chunk.shape))
                continue
            if found and not _same_bits(out, other):
                self._damaged.append(Lost.differing(item.name, chunk.offset, chunk.shape))
                return False
            found = True
        return found

    def _covers(self, name: str, shape: Ints, chunks: Sequence[Any]) -> bool:
        try:
            check_tiles(shape, [chunk[:2] for chunk in chunks])
        except MetadataError:
            message = "a part of it is not in any metadata or file that could be read, or is there twice"
            self._damaged.append(Lost(name, None, None, None, MetadataError.__name__, message))
            return False
        return True

    def _is_taken(self, name: str, good: int, count: int, complete: bool) -> bool:
        if good == count and complete:
            return True
        if good and self._partial:
            self._in_part.append(name)
        return bool(good) and self._partial

    # -- all of them -------------------------------------------------------------------------------

    def _each(self, names: Collection[str], load: Callable[[str], None]) -> None:
        """Load items in the order of their places, so that files are read from front to back."""
        if self._progress is not None:
            for source in self._catalog.sources:
                source.expect(names, self._progress)
        for name in sorted(names, key=lambda name: _first(self._catalog.items[name])):
            with self._by_itself(name):
                load(name)

    def _check_codecs(self) -> None:
        """Raise the reason if items are lost for want of a codec, which the caller can install."""
        classes = {cls.__name__: cls for cls in NOT_AT_HAND}
        missing = [entry for entry in self._damaged if entry.error in classes]
        if missing:
            reasons = "; ".join(dict.fromkeys(entry.message for entry in missing))
            raise classes[missing[0].error](
                f"{reasons}. Without it nothing can be salvaged; `streamxf verify` tells whether the CRCs match all "
                "the same"
            )

    def _result(self, state_dict: dict[str, Any], loaded: Iterable[str]) -> Salvaged:
        for source in self._catalog.sources:
            source.finish()
        found = tuple(loaded)
        if not found:
            self._check_codecs()
        return Salvaged(
            state_dict=state_dict,
            loaded=found,
            damaged=tuple(self._damaged),
            partial=tuple(self._in_part),
            missing=tuple(self._missing),
            unchecked=tuple(self._catalog.unchecked),
            save_ids=self._catalog.save_ids,
        )


def _first(item: Item) -> tuple[str, int]:
    return item.places[0][:2] if item.places else ("", 0)


def _slices(offset: Ints, shape: Ints) -> tuple[slice, ...]:
    return tuple(slice(at, at + size) for at, size in zip(offset, shape, strict=True))


def _same_bits(one: Array, other: Array) -> bool:
    return _bits(one) == _bits(other)


def _bits(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
