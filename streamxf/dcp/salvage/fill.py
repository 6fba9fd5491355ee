"""From a catalog into a state dict: an item arrives whole and verified, or not at all."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem
from torch.distributed.checkpoint.planner_helpers import _create_chunk_list, _create_read_items
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.tensor import DTensor

from streamxf.dcp.metadata.tiling import Chunk, check_tiles
from streamxf.dcp.salvage.catalog import Catalog
from streamxf.dcp.salvage.nest import nested
from streamxf.dcp.salvage.result import Lost, Salvaged
from streamxf.dcp.salvage.session import memory_for, zeros_for
from streamxf.errors import IdentityError, MetadataError, StreamxfError, UnsupportedError
from streamxf.progress import Progress
from streamxf.registry import NOT_AT_HAND

_NOTHING = torch.Size([])


class Filler:
    """Reads what a catalog has.

    Parameters
    ----------
    catalog : Catalog
    partial : bool
        Whether tensors of which only a part verified are taken.
    progress : Progress, optional
        Is told of stored bytes.
    """

    def __init__(self, catalog: Catalog, partial: bool, progress: Progress | None = None) -> None:
        self._catalog = catalog
        self._partial = partial
        self._progress = progress
        self._damaged = list(catalog.damaged)
        self._loaded: dict[str, Any] = {}
        self._in_part: list[str] = []
        self._missing: list[str] = []

    def whole(self) -> Salvaged:
        """Everything, as whole tensors on the CPU, and objects."""
        self._expect(self._catalog.items)
        for name in self._in_order(self._catalog.items):
            item = self._catalog.items[name]
            with self._by_itself(name):
                if isinstance(item, TensorStorageMetadata):
                    self._load_whole(name, item)
                else:
                    self._load_object(name, DefaultLoadPlanner(flatten_state_dict=False))
        loaded = {name: self._loaded[name] for name in self._catalog.items if name in self._loaded}
        return self._result(nested(loaded, self._catalog.paths), loaded)

    def check(self) -> Salvaged:
        """Everything is read and nothing kept: the result has an empty state dict."""
        self._expect(self._catalog.items)
        found = {name for name in self._in_order(self._catalog.items) if self.read(name) is not None}
        return self._result({}, [name for name in self._catalog.items if name in found])

    def read(self, name: str) -> torch.Tensor | bytes | None:
        """An item by itself: a whole tensor on the CPU, or an object's bytes; None if it did not verify."""
        item = self._catalog.items[name]
        with self._by_itself(name):
            if not isinstance(item, TensorStorageMetadata):
                return self._object(name)
            self._load_whole(name, item)
        found: torch.Tensor | None = self._loaded.pop(name, None)
        return found

    def into(self, state_dict: dict[str, Any]) -> Salvaged:
        """What `state_dict` asks for, in place, as ``dcp.load`` does it; the rest keeps its values."""
        plain = {name: item.state_dict() if isinstance(item, Stateful) else item for name, item in state_dict.items()}
        planner = DefaultLoadPlanner(allow_partial_load=True)
        planner.set_up_planner(plain, self._catalog.as_metadata(), True)
        known = {entry.item for entry in self._damaged}
        present = [name for name in planner.state_dict if name in self._catalog.items]
        self._missing = [name for name in planner.state_dict if name not in self._catalog.items and name not in known]
        self._expect(set(present))
        for name in self._in_order(present):
            item = self._catalog.items[name]
            with self._by_itself(name):
                if isinstance(item, TensorStorageMetadata):
                    self._load_into(name, item, planner.state_dict[name], planner)
                else:
                    self._load_object(name, planner)
        for name, item in list(state_dict.items()):
            if isinstance(item, Stateful):
                item.load_state_dict(plain[name])
            else:
                state_dict[name] = plain[name]
        return self._result(state_dict, [name for name in planner.state_dict if name in self._loaded])

    # -- one item ----------------------------------------------------------------------------------

    @contextmanager
    def _by_itself(self, name: str) -> Iterator[None]:
        """Record what goes wrong with an item, whatever it is, so that the others are given."""
        try:
            yield
        except Exception as error:
            self._damaged.append(Lost.of(error, name))

    def _load_whole(self, name: str, item: TensorStorageMetadata) -> None:
        unsure = self._catalog.unsure.get(name)
        complete = unsure is None and self._covers(name, item.size, _chunks_of(item))
        if unsure is not None:
            self._damaged.append(unsure)
        if not complete and not self._partial:
            return
        # what is lost of one that is returned in part takes no memory, whatever the metadata says of its size
        in_part = self._partial and not (complete and len(item.chunks) == 1)
        good = 0
        whole = (zeros_for if in_part else memory_for)(item.size, item.properties.dtype)
        for number, chunk in enumerate(item.chunks):
            box = whole[tuple(slice(at, at + size) for at, size in zip(chunk.offsets, chunk.sizes, strict=True))]
            target = memory_for(chunk.sizes, item.properties.dtype) if in_part else box
            if self._read(_chunk_request(name, number, chunk), item, target):
                good += 1
                if in_part:
                    box.copy_(target)
        self._take(name, whole, good, len(item.chunks), complete)

    def _load_into(self, name: str, item: TensorStorageMetadata, target: Any, planner: DefaultLoadPlanner) -> None:
        if isinstance(target, DTensor) and target.device_mesh.get_coordinate() is None:
            return  # it lies on other ranks
        try:
            wanted = {chunk.offsets: chunk.sizes for chunk in _create_chunk_list(target)}
        except ValueError:
            wrong = UnsupportedError(f"the checkpoint has a tensor, and the state dict a {type(target).__name__}")
            self._damaged.append(Lost.of(wrong, name))
            return
        item = self._sized(name, item, target)
        if item.size != target.size():
            wrong = UnsupportedError(
                f"the checkpoint has a tensor of shape {tuple(item.size)}, the state dict one of {tuple(target.size())}"
            )
            self._damaged.append(Lost.of(wrong, name))
            return
        requests = _create_read_items(name, item, target)
        parts: dict[Any, list[Chunk]] = {}
        for request in requests:
            parts.setdefault(request.dest_index.offset, []).append((request.dest_offsets, request.lengths))
        complete = True
        for offset, size in wanted.items():
            complete = complete and self._covers(name, size, parts.get(offset, []))
        if not complete and not self._partial:
            return
        good = []
        for request in requests:
            scratch = memory_for(request.lengths, item.properties.dtype)
            if self._read(request, item, scratch):
                good.append((request, scratch))
        if len(good) == len(requests) or self._partial:
            for request, scratch in good:
                place = planner.resolve_tensor(request).detach()
                place.copy_(scratch)
                planner.commit_tensor(request, place)
        self._take(name, target, len(good), len(requests), complete)

    def _load_object(self, name: str, planner: DefaultLoadPlanner) -> None:
        found = self._object(name)
        if found is None:
            return
        if not hasattr(planner, "state_dict"):
            planner.set_up_planner({})
        try:
            planner.load_bytes(_object_request(name), io.BytesIO(found))
        except Exception as error:  # with weights_only=False it is any pickle, which can fail in any way
            self._damaged.append(Lost.of(_no_object(error), name))
            return
        self._loaded[name] = planner.state_dict.get(name)

    def _object(self, name: str) -> bytes | None:
        """The bytes of an object, if it verified and all copies of it are the same."""
        request = _object_request(name)
        found: bytes | None = None
        for session in self._catalog.readers_of(request.storage_index):
            try:
                data = session.read_object(request)
            except Exception as error:  # torch and foreign extensions raise anything
                self._damaged.append(Lost.of(error, name, session.file_of(request.storage_index)))
                continue
            if found is not None and data != found:
                self._damaged.append(_differ(name))
                return None
            found = data
        return found

    # -- a chunk -----------------------------------------------------------------------------------

    def _read(self, request: ReadItem, item: TensorStorageMetadata, target: torch.Tensor) -> bool:
        """Fill `target` with what is wanted of a chunk; False if that did not verify, and `target` holds anything.

        All copies are read that several ranks have of it: nothing says that they are of one save.
        """
        index = request.storage_index
        found = False
        for session in self._catalog.readers_of(index):
            try:
                if not found:
                    session.read_tensor(request, item.properties.dtype, target)
                    found = True
                elif not _same_bits(target, session.read_tensor(request, item.properties.dtype)):
                    self._damaged.append(_differ(index.fqn, *_box(item, index)))
                    return False
            except Exception as error:  # torch and foreign extensions raise anything
                self._damaged.append(Lost.of(error, index.fqn, session.file_of(index), *_box(item, index)))
        return found

    def _covers(self, name: str, shape: Sequence[int], chunks: Sequence[Chunk]) -> bool:
        try:
            check_tiles(shape, chunks)
        except MetadataError:
            message = "a part of it is not in any metadata or file that could be read, or is there twice"
            self._damaged.append(Lost(name, None, None, None, MetadataError.__name__, message))
            return False
        return True

    def _sized(self, name: str, item: TensorStorageMetadata, target: Any) -> TensorStorageMetadata:
        """Where nobody knows how large the tensor was, the target does."""
        size = target.size()
        fits = len(size) == len(item.size) and all(map(int.__le__, item.size, size))
        if not self._catalog.guessed or not fits:
            return item
        return TensorStorageMetadata(item.properties, size, item.chunks)

    def _take(self, name: str, value: Any, good: int, count: int, complete: bool) -> None:
        if good == count and complete:
            self._loaded[name] = value
        elif good and self._partial:
            self._loaded[name] = value
            self._in_part.append(name)

    # -- all of them -------------------------------------------------------------------------------

    def _expect(self, names: Collection[str]) -> None:
        if self._progress is not None:
            for session in self._catalog.sessions:
                session.expect(names, self._progress)

    def _in_order(self, names: Iterable[str]) -> list[str]:
        """By their places, so that files are read from front to back."""

        def key(name: str) -> tuple[str, int]:
            item = self._catalog.items[name]
            chunk = item.chunks[0].offsets if isinstance(item, TensorStorageMetadata) and item.chunks else None
            session = next(self._catalog.readers_of(MetadataIndex(name, chunk)), None)
            place = session.place_of(MetadataIndex(name, chunk)) if session is not None else None
            return (place.relative_path, place.offset) if place is not None else ("", 0)

        return sorted(names, key=key)

    def _check_codecs(self) -> None:
        """Raise the reason if items are lost for want of a codec, which the caller can install."""
        classes = {cls.__name__: cls for cls in NOT_AT_HAND}
        missing = [entry for entry in self._damaged if entry.error in classes]
        if missing:
            reasons = "; ".join(dict.fromkeys(entry.message for entry in missing))
            raise classes[missing[0].error](
                f"{reasons}. Without it nothing can be salvaged; streamxf.verify tells whether the CRCs match all the "
                "same"
            )

    def _result(self, state_dict: dict[str, Any], loaded: Iterable[str]) -> Salvaged:
        for session in self._catalog.sessions:
            session.finish()
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


def _chunks_of(item: TensorStorageMetadata) -> list[Chunk]:
    return [(chunk.offsets, chunk.sizes) for chunk in item.chunks]


def _box(item: TensorStorageMetadata, index: MetadataIndex) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """A chunk's offset and size."""
    size = next((tuple(chunk.sizes) for chunk in item.chunks if chunk.offsets == index.offset), None)
    return tuple(index.offset or ()), size


def _chunk_request(name: str, number: int, chunk: ChunkStorageMetadata) -> ReadItem:
    begin = torch.Size([0] * len(chunk.sizes))
    index = MetadataIndex(name, chunk.offsets, number)
    return ReadItem(LoadItemType.TENSOR, index, begin, index, begin, chunk.sizes)


def _object_request(name: str) -> ReadItem:
    index = MetadataIndex(name)
    return ReadItem(LoadItemType.BYTE_IO, index, _NOTHING, index, _NOTHING, _NOTHING)


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    raw = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return torch.equal(*raw)


def _differ(name: str, offset: tuple[int, ...] | None = None, size: tuple[int, ...] | None = None) -> Lost:
    message = (
        "several ranks have it, each with another value: it is each rank's own, or they are of different saves; pass "
        "rank= to choose one"
    )
    return Lost(name, None, offset, size, IdentityError.__name__, message)


def _no_object(error: Exception) -> StreamxfError:
    if isinstance(error, StreamxfError):
        return error
    return MetadataError(f"the object cannot be unpickled: {type(error).__name__}: {error}")
