"""What `pack` makes of a file or a folder: all tensors, all objects, and all bytes around them (`PackedReader`), and a
record of the files (`PackManifest`), so that `unpack` can write the same bytes again.

A file is its tensors, each an item of its own, and the bytes around them, which are one more item. The manifest says
where in the file each tensor belongs. It is stored as an object, `ITEM`, of dicts, lists, strings and numbers only.

The tensors of the model in a Hugging Face folder have their own names, and those of any other file its path before
them, as in ``optimizer.pt/state.0.exp_avg``. A file without readable tensors is stored as bytes.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, Self

from streamxf import errors
from streamxf.budget import MAX_EXPANSION
from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.format.items import Chunk, ObjectItem, Place
from streamxf.formats import huggingface, torchfile
from streamxf.formats.contents import FOLDERS, SUFFIXES, Contents, FileReader, Format, Shard, whole_tensor
from streamxf.formats.opening import LOOKED_FOR, format_of, kind_of, open_layout, open_source
from streamxf.places import GLOBAL, Storage
from streamxf.reading import Access, BareBlocks, BoxReader, Elements, Item, StoredFile, StreamReader, TensorItem
from streamxf.storage.storage import StorageEntry
from streamxf.wording import many, printable, some

ITEM = "streamxf.source"
"""The item's name in the state dict."""

_VERSION = 1
_EMPTY = "an empty folder"
_SPECIAL = "not a regular file of known size"
_STRANGE = "a name that cannot be restored everywhere"
_REASONS = 3  # that are told
_LONGEST = 4096  # characters of a path: as many bytes Linux takes


def rest_of(path: str) -> str:
    """The name of the item that holds a file's bytes around its tensors."""
    return f"{ITEM}/{path}"


def is_kept(name: str) -> bool:
    """Whether an item is one that pack adds to the tensors and objects of the files."""
    return name == ITEM or name.startswith(f"{ITEM}/")


class Placed(NamedTuple):
    """A tensor whose elements begin at `start` in a file, without gaps; `order` has its dimensions, the slowest in the
    file first. With an `offset` it is a slice of the item from there on.
    """

    name: str
    start: int
    dtype: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    offset: tuple[int, ...] = ()

    def to_plain(self) -> list[Any]:
        return [*self[:3], *map(list, self[3:5]), *filter(None, [list(self.offset)])]


class PackedFile(NamedTuple):
    """A file's tensors, in the order of their places, and items without bytes of their own: objects, shared tensors."""

    tensors: tuple[Placed, ...]
    others: tuple[str, ...]


@dataclass(frozen=True)
class PackManifest:
    """What was packed: `SAFETENSORS` or `TORCH`, one file, by its name; `HUGGING_FACE` or `FOLDER`, the files in a
    folder, by relative paths. `left_out` is that of `FileTree`.
    """

    format: Format
    files: Mapping[str, PackedFile]
    left_out: tuple[str, ...] = ()

    @property
    def is_folder(self) -> bool:
        """Whether a folder was packed."""
        return self.format in FOLDERS

    def items(self) -> Iterator[str]:
        """The names of all items from which the files are made."""
        yield ITEM
        for path, file in self.files.items():
            yield from (rest_of(path), *(tensor.name for tensor in file.tensors), *file.others)

    def kept_as_bytes(self, stored: Collection[str]) -> list[str]:
        """Objects that are only in the bytes of their files: they have no items among those that are `stored`."""
        return [name for file in self.files.values() for name in file.others if name not in stored]

    def to_plain(self) -> Any:
        """The value that is stored."""
        return {
            "version": _VERSION,
            "format": self.format.name,
            "files": {
                path: [[tensor.to_plain() for tensor in file.tensors], list(file.others)]
                for path, file in self.files.items()
            },
            "left_out": list(self.left_out),
        }

    @classmethod
    def from_plain(cls, value: Any) -> Self:
        """Read a stored value; raises MetadataError if pack does not store such, or if it leads out of the folder."""
        try:
            if value["version"] != _VERSION:
                raise errors.MetadataError(
                    f"the item has version {value['version']!r:.20}; this streamxf reads version {_VERSION}", item=ITEM
                )
            made = cls(
                Format[value["format"]],
                {_text(path): _file(*file) for path, file in value["files"].items()},
                tuple(map(_text, value["left_out"])),
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            raise errors.MetadataError(f"the item is not what pack stores: {error!r:.100}", item=ITEM) from None
        whole = (tensor.name for file in made.files.values() for tensor in file.tensors if not tensor.offset)
        names = [ITEM, *map(rest_of, made.files), *whole]
        above = (path[:at] for path in made.files for at, char in enumerate(path) if char == "/")
        if not (made.is_folder or (made.format in (Format.SAFETENSORS, Format.TORCH) and len(made.files) == 1)):
            raise errors.MetadataError("it does not describe a single file, as its format requires", item=ITEM)
        if not all(map(is_inside, made.files)) or not made.files.keys().isdisjoint(above):
            raise errors.MetadataError("it has a path that is below a file, or outside of the folder", item=ITEM)
        if len(set(names)) < len(names):
            raise errors.MetadataError("it has an item in two places", item=ITEM)
        return made


def manifest_of(reader: BoxReader) -> PackManifest | None:
    """The manifest of a checkpoint; None if `pack` did not make it. Raises as `PackManifest.from_plain`."""
    return PackManifest.from_plain(reader.load_object(ITEM)) if ITEM in reader.stored else None


def _file(tensors: Any, others: Any) -> PackedFile:
    made = tuple(
        Placed(_text(name), _count(start), _text(dtype), *(tuple(map(_count, numbers)) for numbers in (shape, *rest)))
        for name, start, dtype, shape, *rest in tensors
    )
    for tensor in made:
        if len(tensor.offset) not in (0, len(tensor.shape)):
            raise ValueError(f"{tensor.offset!r:.40} is not where a slice begins")
        if sorted(tensor.order) != list(range(len(tensor.shape))):
            raise ValueError(f"{tensor.order!r:.40} is not an order of dimensions")
    return PackedFile(made, tuple(map(_text, others)))


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r:.40} is not a size")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is not a string")
    return value


@dataclass(frozen=True)
class FileTree:
    """A folder, or a single file.

    - `files`: sizes by relative paths, sorted; a link to a regular file counts as that file.
    - `left_out`: what else there is, each path with the reason why it is not packed.
    """

    storage: Storage
    is_folder: bool
    files: Mapping[str, int]
    left_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, storage: Storage) -> FileTree:
        """List a folder or a file."""
        if not storage.is_folder():
            with storage.open() as file:
                return cls(storage, False, {storage.name: file.size})
        found = {each.name: _what(storage, each) for each in storage.below(folders=True)}
        full = {path.rpartition("/")[0] for path in found}
        files: dict[str, int] = {}
        left_out = []
        for path, what in sorted(found.items()):
            if isinstance(what, int) and path not in full:
                files[path] = what
            elif isinstance(what, int) or path not in full:  # an object may have a name that others have as a folder
                if what == _EMPTY and storage.near and any(storage.entries(path)):  # or it may not be read
                    raise errors.UnsupportedError("the folder lies too deep to be packed", file=storage.label(path))
                left_out.append(f"{printable(path, 200)} ({_STRANGE if isinstance(what, int) else what})")
        return cls(storage, True, files, tuple(left_out))

    def notes(self) -> tuple[str, ...]:
        """What a report says of `left_out`, if there is any."""
        return (f"only regular files are packed; left out: {some(self.left_out)}",) if self.left_out else ()

    def place(self, path: str) -> Storage:
        """Where a file is."""
        return self.storage.child(path) if self.is_folder else self.storage

    def identity(self) -> str:
        """A digest of the paths, sizes and times of all files, to recognize them by."""
        versions = [[path, self.place(path).version()] for path in self.files]
        return hashlib.sha256(json.dumps([self.storage.real(), self.left_out, versions]).encode()).hexdigest()


def _what(storage: Storage, entry: StorageEntry) -> int | str:
    """The size of a file; of anything else what it is, if nothing is in it."""
    if not is_inside(entry.name):
        return _STRANGE
    if entry.kind == "link":
        with suppress(OSError):  # it leads nowhere, or in circles
            entry = storage.child(entry.name).info()
        if entry.kind != "file":
            return "a link, but not to a regular file"
    if entry.kind == "folder":
        return _EMPTY
    return _SPECIAL if entry.size is None else entry.size


def is_inside(path: str) -> bool:
    """Whether a relative path stays in its folder on every system, and is printable."""
    if len(path) > _LONGEST or not path.isprintable() or "\\" in path:
        return False
    return all(part not in ("", ".", "..") for part in path.split("/"))


Gaps = Sequence[tuple[int, int]]
"""Where bytes that belong to no tensor begin and end in a file."""


class PackedReader(FileReader):
    """Everything that is packed; the item `ITEM` is the manifest as an object, and that of `rest_of` a file's bytes
    around its tensors, its `gaps`. What `beside` has loaded is used again. Other arguments are `FileReader`'s.
    """

    def __init__(
        self, *files: Any, gaps: Mapping[str, Gaps], described: Any = None, beside: FileReader | None = None, **how: Any
    ) -> None:
        super().__init__(*files, **how)
        self._loaded = beside._loaded if beside is not None else None
        self.manifest: PackManifest = described
        self._gaps = gaps

    def part(self, items: Mapping[str, Item]) -> Callable[[Access], PackedReader]:
        gaps = {item.name: self._gaps[item.name] for item in items.values() if item.name in self._gaps}
        made: Any = super().part(items)
        return partial(made, gaps=gaps, described=self.manifest if ITEM in items else None)

    def elements(self, item: TensorItem, chunk: Chunk) -> Elements:
        if item.name not in self._gaps:
            return super().elements(item, chunk)
        file = self._files[chunk.place.file]
        around = file.through(_Pieces(file, self._gaps[item.name]))
        return Elements(BareBlocks(around.slice(0, item.size)), 0, 1, item.shape)

    def load_object(self, name: str) -> Any:
        """An object, which is written by itself, with what it shares with others."""
        if name == ITEM:
            return self.manifest.to_plain()
        for place in self.stored[name].places:
            weight = self.shards[place.file].weights.get(name, 0)
            self.budget.spend_once(name, weight, "the object", file=self.label(place.file), item=name)
        return super().load_object(name)


class _Pieces:
    """Parts of a file, joined, as a file."""

    def __init__(self, file: StoredFile, gaps: Gaps) -> None:
        self._access = file.access
        self.parallel = file.access.parallel
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


def open_packed(tree: FileTree, max_expansion: int = MAX_EXPANSION) -> PackedReader:
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
        if not is_inside(storage.name):
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
    packed: dict[str, PackedFile] = {}
    rests: dict[str, Item] = {}
    gaps: dict[str, Gaps] = {}
    joined = {name for name, item in packing.items.items() if len(item.places) > 1}
    for path, size in tree.files.items():
        shard, rest = packing.shards[path], rest_of(path)
        tensors = _placed(shard, joined)
        others = shard.items.keys() - {tensor.name for tensor in tensors}
        packed[path] = PackedFile(tuple(tensors), tuple(filter(others.__contains__, shard.items)))
        if around := _gaps(tensors, size):
            length = sum(stop - start for start, stop in around)
            rests[rest] = whole_tensor(rest, "uint8", (length,), path, around[0][0], length, (rest,))
            gaps[rest] = around
    items = {ITEM: ObjectItem(ITEM, Place("", 0, 0, ()), (ITEM,)), **packing.items, **rests}
    contents = Contents(storage.label(), kind, items, tree.files, notes=tuple(notes))
    described = PackManifest(kind, packed, tree.left_out)
    access = Access.of(max_expansion=max_expansion)
    whole = PackedReader(storage, contents, packing.shards, access, gaps=gaps, described=described, beside=main)
    for rest, (place,) in ((rest, item.places) for rest, item in rests.items()):  # a file may be one hole
        whole.budget.spend_once(rest, place.size, "the file", file=whole.label(place.file))
    return whole


def _model(tree: FileTree, notes: list[str]) -> FileReader | None:
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
            refused |= {name: text} if (text := item.beyond_limits) else {}
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

    def __init__(self, tree: FileTree, main: FileReader | None, refused: Collection[str]) -> None:
        self.items: dict[str, Item] = {}
        self.shards: dict[str, Shard] = dict(main.shards) if main is not None else {}
        self.of_checkpoint = main is not None
        self.unread: list[str] = []
        self._tree = tree
        self._stored: dict[str, list[tuple[TensorItem, Chunk]]] = {}  # of DCP checkpoints within the folder, as of FSDP
        stored = main.stored if main is not None else {}
        self._take({name: item for name, item in stored.items() if name not in refused})
        for folder in (path.removesuffix(f"/{GLOBAL}") for path in tree.files if path.endswith(f"/{GLOBAL}")):
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
            if isinstance(item, TensorItem) and (name in own or not (item.size or item.beyond_limits))
        }
        items = {label: replace(found.items[name], name=label, path=(label,)) for name, label in labels.items()}
        strides = {labels[name]: strides for name, strides in found.strides.items() if name in labels}
        self.shards[path] = Shard(items, strides)
        self._take(items)

    def _take(self, items: Mapping[str, Item]) -> None:
        for name in items:
            if is_kept(name):
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
            found = StreamReader(blocks).framed(item.dtype, chunk.shape)
            if found.tensor.is_row_major:
                name = item.name if chunk.shape == item.shape else f"{item.name}{list(chunk.offset)}"
                at, size = chunk.place.at + found.start, found.tensor.extent
                items[name] = whole_tensor(name, item.dtype, chunk.shape, path, at, size, (name,))
    return Shard(items)


def _placed(shard: Shard, joined: Collection[str]) -> list[Placed]:
    """The tensors of a file that have bytes of their own, in order: one of those that overlap, and none whose elements
    have gaps between them. Those that are `joined` are slices.
    """
    every = (item for item in shard.items.values() if isinstance(item, TensorItem) and item.size)
    tensors = [item for item in every if not item.beyond_limits]
    found: list[Placed] = []
    stop = 0
    for item in sorted(tensors, key=lambda item: (item.chunks[0].place.at, -item.size)):
        start = item.chunks[0].place.at
        strides = shard.strides.get(item.name)
        order = tuple(range(len(item.shape))) if strides is None else _dense_order(item.shape, strides)
        if order is not None and start >= stop:
            offset = shard.offsets[item.name] if item.name in joined else ()
            found.append(Placed(item.name, start, item.dtype, item.shape, order, offset))
            stop = start + item.size
    return found


def _gaps(tensors: Iterable[Placed], size: int) -> Gaps:
    """The bytes around tensors in a file of `size` bytes."""
    gaps, at = [], 0
    placed = ((each.start, TensorItem(each.name, each.dtype, each.shape, ()).size) for each in tensors)
    for start, stop in (*((start, start + length) for start, length in placed), (size, size)):
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
