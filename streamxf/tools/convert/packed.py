"""`PackedReader`: a file or a folder as `pack` stores it: all tensors, all objects, and all bytes around them.

The tensors of the model in a Hugging Face folder have their own names, and those of any other file its path before
them, as in ``optimizer.pt/state.0.exp_avg``. A file without readable tensors is stored as bytes.
"""

from __future__ import annotations

import bisect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

from streamxf import errors
from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.checkpoint.elements import Elements
from streamxf.format.items import beyond_limits, contiguous_strides, elements_size
from streamxf.formats import huggingface, torchfile
from streamxf.formats.contents import SUFFIXES, Contents, FileReader, Format, Shard, whole_tensor
from streamxf.formats.opening import LOOKED_FOR, format_of, kind_of, open_layout, open_source
from streamxf.reading import MAX_EXPANSION, Access, Chunk, Item, ObjectItem, Place, StoredFile, TensorItem
from streamxf.storage.reading import FileSlice, PositionalFile
from streamxf.stream.reader import BareBlocks, StreamReader
from streamxf.tools.convert import manifest
from streamxf.torchsave.objects import find_framed
from streamxf.wording import many, printable, some

_METADATA = "/.metadata"
_REASONS = 3  # that are told

Gaps = Sequence[tuple[int, int]]
"""Where bytes that belong to no tensor begin and end in a file."""


class PackedReader(FileReader):
    """Everything that is packed; the item `ITEM` is the `manifest` as an object, and that of `rest_of` a file's bytes
    around its tensors, its `gaps`. What `beside` has loaded is used again. Other arguments are `FileReader`'s.
    """

    def __init__(
        self, *files: Any, gaps: Mapping[str, Gaps], described: Any = None, beside: FileReader | None = None, **how: Any
    ) -> None:
        super().__init__(*files, **how)
        self._loaded = beside._loaded if beside is not None else None
        self.manifest: manifest.PackManifest = described
        self._gaps = gaps

    def part(self, items: Mapping[str, Item]) -> Callable[[Access], PackedReader]:
        gaps = {item.name: self._gaps[item.name] for item in items.values() if item.name in self._gaps}
        made: Any = super().part(items)
        return partial(made, gaps=gaps, described=self.manifest if manifest.ITEM in items else None)

    def elements(self, item: TensorItem, chunk: Chunk) -> Elements:
        if item.name not in self._gaps:
            return super().elements(item, chunk)
        pieces = _Pieces(self._files[chunk.place.file].access, self._gaps[item.name])
        return Elements(BareBlocks(FileSlice(pieces, 0, item.size)), 0, 1, item.shape)

    def load_object(self, name: str) -> Any:
        """An object, which is written by itself, with what it shares with others."""
        if name == manifest.ITEM:
            return self.manifest.to_plain()
        for place in self.stored[name].places:
            weight = self.shards[place.file].weights.get(name, 0)
            self.budget.spend_once(name, weight, "the object", file=self.label(place.file), item=name)
        return super().load_object(name)


class _Pieces:
    """Parts of a file, joined, as a file."""

    def __init__(self, access: PositionalFile, gaps: Gaps) -> None:
        self.parallel = access.parallel
        self._access = access
        self._starts = [start for start, _ in gaps]
        self._stops = list(accumulate(stop - start for start, stop in gaps))

    def read_into(self, position: int, out: memoryview) -> int:
        done, number = 0, bisect.bisect_right(self._stops, position)
        while done < len(out):
            left = self._stops[number] - position - done
            at = self._starts[number] + position + done - (self._stops[number - 1] if number else 0)
            part = out[done : done + left]
            count = self._access.read_into(at, part)
            done, number = done + count, number + 1
            if count < len(part):
                break
        return done

    def expect(self, *spans: tuple[int, int]) -> None:
        """What is between the gaps is small."""


def open_packed(tree: manifest.FileTree, max_expansion: int = MAX_EXPANSION) -> PackedReader:
    """Open a file or a folder that is not a DCP checkpoint; raises as `pack`."""
    storage = tree.storage
    notes = [*tree.notes()]
    if tree.is_folder:
        notes += huggingface.notes_of_links(storage, tree.files)
        main = _model(tree, notes)
        kind = Format.FOLDER if main is None else Format.HUGGING_FACE
    else:
        opened = open_source(storage)
        assert isinstance(opened, FileReader)  # a DCP checkpoint is a folder
        if not manifest.is_inside(storage.name):
            raise errors.UnsupportedError("the name of the file could not be restored: rename it", file=storage.label())
        main, kind = opened, opened.contents.format
    refused = _refused(main) if main is not None else {}
    if refused:
        reasons = list(dict.fromkeys(refused.values()))[:_REASONS]
        objects = f"{many(len(refused), 'item')} only as bytes of the file, from which unpack restores it"
        notes.append(f"kept {objects}: {some(map(errors.shorten, refused))}; {'; '.join(reasons)}")
    packing = _Packing(tree, main, refused)
    for path in tree.files:
        packing.add(path)
    if not packing.of_checkpoint:
        kind_of(storage)  # raises what names the checkpoints in the folders of a run
        raise errors.NoCheckpointError(f"the folder holds no checkpoint; looked for {LOOKED_FOR}", file=storage.label())
    if packing.unread:
        files = many(len(packing.unread), "file")
        notes.append(f"no tensors could be read from {files}, packed as bytes: {some(packing.unread)}")
    packed: dict[str, manifest.PackedFile] = {}
    rests: dict[str, Item] = {}
    gaps: dict[str, Gaps] = {}
    joined = {name for name, item in packing.items.items() if len(item.places) > 1}
    for path, size in tree.files.items():
        shard, rest = packing.shards[path], manifest.rest_of(path)
        tensors = _placed(shard, joined)
        others = shard.items.keys() - {tensor.name for tensor in tensors}
        packed[path] = manifest.PackedFile(tuple(tensors), tuple(filter(others.__contains__, shard.items)))
        if around := _gaps(tensors, size):
            length = sum(stop - start for start, stop in around)
            rests[rest] = whole_tensor(rest, "uint8", (length,), path, around[0][0], length, (rest,))
            gaps[rest] = around
    items = {manifest.ITEM: ObjectItem(manifest.ITEM, Place("", 0, 0, ()), (manifest.ITEM,)), **packing.items, **rests}
    contents = Contents(storage.label(), kind, items, tree.files, notes=tuple(notes))
    described = manifest.PackManifest(kind, packed, tree.left_out)
    access = Access.of(max_expansion=max_expansion)
    whole = PackedReader(storage, contents, packing.shards, access, gaps=gaps, described=described, beside=main)
    for rest, (place,) in ((rest, item.places) for rest, item in rests.items()):  # a file may be one hole
        whole.budget.spend_once(rest, place.size, "the file", file=whole.label(place.file))
    return whole


def _model(tree: manifest.FileTree, notes: list[str]) -> FileReader | None:
    """The model of a Hugging Face folder, if it is one whose tensors can be read."""
    try:
        layout = huggingface.layout_of(name for name in tree.files if "/" not in name)
        found = open_layout(tree.storage, layout) if layout is not None else None
        if found is None or not (elsewhere := found.shards.keys() - tree.files.keys()):
            return found
        reason = f"{printable(min(elsewhere))} is not in the folder itself"
    except (errors.UnsupportedError, errors.PolicyError) as error:
        reason = error.message
    notes.append(f"names of the model's tensors begin with the names of their files: {reason}")
    return None


def _refused(main: FileReader) -> dict[str, str]:
    """The items of a model that cannot be made here, or that the format has no place for, and why."""
    refused: dict[str, str] = {}
    for name, item in main.stored.items():
        if isinstance(item, TensorItem):
            refused |= {name: text} if (text := beyond_limits(item.shape)) else {}
        else:
            try:
                value = main.load_object(name)
                if isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ())):
                    refused[name] = "only torch can make a tensor that is more than its elements"
            except (errors.PolicyError, errors.MetadataError, errors.ObjectError) as error:
                refused[name] = error.message
    return refused


class _Packing:
    """Collects the items in files, one by one, but for those of the model, `main`, and those that are `refused`.

    - `of_checkpoint`: whether a file is one of a checkpoint.
    - `unread`: files that were expected to have tensors, and are packed as bytes.
    """

    def __init__(self, tree: manifest.FileTree, main: FileReader | None, refused: Collection[str]) -> None:
        self.items: dict[str, Item] = {}
        self.shards: dict[str, Shard] = dict(main.shards) if main is not None else {}
        self.of_checkpoint = main is not None
        self.unread: list[str] = []
        self._tree = tree
        self._stored: dict[str, list[tuple[TensorItem, Chunk]]] = {}  # of DCP checkpoints within the folder, as of FSDP
        stored = main.stored if main is not None else {}
        self._take({name: item for name, item in stored.items() if name not in refused})
        for folder in (path.removesuffix(_METADATA) for path in tree.files if path.endswith(_METADATA)):
            with suppress(errors.StreamxfError, OSError):  # then its files are packed as bytes
                checkpoint = Checkpoint.at(tree.storage.child(folder), Access(), listing=True)
                for item in checkpoint.stored.values():
                    for chunk in item.chunks if isinstance(item, TensorItem) else ():
                        if isinstance(item, TensorItem) and chunk.framed and not chunk.place.descriptors:
                            self._stored.setdefault(f"{folder}/{chunk.place.file}", []).append((item, chunk))

    def add(self, path: str) -> None:
        """Add a file's tensors that can be read, by names with its path before them."""
        if path in self.shards:
            return
        place = self._tree.place(path)
        self.shards[path] = Shard({})
        with errors.located(file=place.label()), place.open(random=True) as file:
            found: Shard | None = None
            try:
                kind = None if path in self._stored else format_of(file, path)
                if path in self._stored:
                    found = _shards_in(file, path, self._stored[path])
                elif kind is Format.TORCH:
                    found = torchfile.read(file, path)
                elif kind is Format.SAFETENSORS:
                    found = huggingface.read_file(file, path)
            except errors.StreamxfError:
                if path.endswith(tuple(SUFFIXES)):
                    self.unread.append(path)
                    self.of_checkpoint = True
        if found is None:
            return
        self.of_checkpoint = True
        own = {tensor.name for tensor in _placed(found, ())}
        labels = {
            name: f"{path}/{name}"
            for name, item in found.items.items()
            if isinstance(item, TensorItem) and (name in own or not (item.size or beyond_limits(item.shape)))
        }
        items = {label: replace(found.items[name], name=label, path=(label,)) for name, label in labels.items()}
        strides = {labels[name]: strides for name, strides in found.strides.items() if name in labels}
        self.shards[path] = Shard(items, strides)
        self._take(items)

    def _take(self, items: Mapping[str, Item]) -> None:
        for name in items:
            if manifest.is_kept(name):
                raise errors.ParameterError(
                    f"the checkpoint has an item {printable(name)!r}, a name that is reserved for pack"
                )
            if name in self.items:
                raise errors.UnsupportedError(
                    f"two tensors would have the name {printable(name)!r}: rename the file",
                    file=self._tree.storage.label(),
                )
        self.items.update(items)


def _shards_in(file: StoredFile, path: str, stored: Iterable[tuple[TensorItem, Chunk]]) -> Shard:
    """The shards of a DCP checkpoint that are in one of its files without any codec, row-major."""
    items: dict[str, Item] = {}
    for item, chunk in stored:
        with suppress(errors.StreamxfError):
            blocks = BareBlocks(file.slice(chunk.place.at, chunk.place.size))
            found = find_framed(StreamReader(blocks), blocks.size, item.dtype, chunk.shape)
            if found.tensor.is_row_major:
                name = item.name if chunk.shape == item.shape else f"{item.name}{list(chunk.offset)}"
                at, size = chunk.place.at + found.start, found.tensor.extent
                items[name] = whole_tensor(name, item.dtype, chunk.shape, path, at, size, (name,))
    return Shard(items)


def _placed(shard: Shard, joined: Collection[str]) -> list[manifest.Placed]:
    """The tensors of a file that have bytes of their own, in order: one of those that overlap, and none whose elements
    have gaps between them. Those that are `joined` are slices.
    """
    every = (item for item in shard.items.values() if isinstance(item, TensorItem) and item.size)
    tensors = [item for item in every if not beyond_limits(item.shape)]
    found: list[manifest.Placed] = []
    stop = 0
    for item in sorted(tensors, key=lambda item: (item.chunks[0].place.at, -item.size)):
        start = item.chunks[0].place.at
        order = _dense_order(item.shape, shard.strides.get(item.name, contiguous_strides(item.shape)))
        if order is not None and start >= stop:
            offset = shard.offsets[item.name] if item.name in joined else ()
            found.append(manifest.Placed(item.name, start, item.dtype, item.shape, order, offset))
            stop = start + item.size
    return found


def _gaps(tensors: Iterable[manifest.Placed], size: int) -> Gaps:
    """The bytes around tensors in a file of `size` bytes."""
    gaps, at = [], 0
    for start, stop in (*((each.start, each.start + elements_size(*each[2:4])) for each in tensors), (size, size)):
        if start > at:
            gaps.append((at, start))
        at = stop
    return gaps


def _dense_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The dimensions, the slowest first, in whose order the elements have no gaps; None if there is no such order."""
    order = tuple(sorted(range(len(shape)), key=lambda dim: (-strides[dim], -shape[dim])))
    expected = 1
    for dim in reversed(order):
        if shape[dim] != 1 and strides[dim] != expected:
            return None
        expected *= shape[dim]
    return order
