"""`Whole`: a file or a folder as `pack` stores it: every tensor, every object, and all bytes around them.

The tensors of the model in a Hugging Face folder have their own names. Those of any other file have its path before
them, as in ``optimizer.pt/state.0.exp_avg``. What cannot be told apart is among the file's other bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch

from streamxf.convert.identity import place_of, version_of
from streamxf.convert.origin import ITEM, Origin, PackedFile, is_kept, placed, rest_of
from streamxf.convert.tree import Tree, is_inside
from streamxf.convert.within import Within
from streamxf.errors import (
    NoCheckpointError,
    ParameterError,
    PolicyError,
    StreamxfError,
    UnsupportedError,
    located,
)
from streamxf.formats import huggingface
from streamxf.formats.contents import Contents, Entry, Format, Part
from streamxf.formats.extents import Extent, Pieces
from streamxf.formats.location import Location
from streamxf.formats.opening import BEGINNING, LOOKED_FOR, format_of, open_source, read_shard, scanned
from streamxf.formats.raw import RawSource, extents_of
from streamxf.wording import many, printable

_OF_TENSORS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
_METADATA = "/.metadata"
_UNNAMED = "the tensors of the model have the names of their files before them"
_SHOWN = 3


class Whole(RawSource):
    """Everything that is packed. Its entry `ITEM` is the `Origin` as an object, and `rest_of` names the bytes of a file
    around its tensors.

    Attributes
    ----------
    origin : Origin
    excluded : set of str
        As in `Tree`.
    """

    def __init__(
        self,
        contents: Contents,
        location: Location,
        main: RawSource | None,
        extents: Mapping[str, Extent | Pieces],
        origin: Origin,
        excluded: set[str],
    ) -> None:
        super().__init__(contents, location, main.shards if main is not None else {})
        self.origin = origin
        self.excluded = excluded
        self._extents.update(extents)

    def load_object(self, entry: Entry) -> Any:
        return self.origin.to_plain() if entry.name == ITEM else super().load_object(entry)


def open_whole(location: Location, exclude: Sequence[str] = (), *, follow_links: bool = False) -> Whole:
    """Open a file or a folder, but no DCP checkpoint.

    Parameters
    ----------
    exclude, follow_links
        As in `Tree.of`.

    Raises
    ------
    NoCheckpointError
        If no file in it is one of a checkpoint.
    UnsupportedError
        If a file, or something in the folder, cannot be packed.
    StreamxfError, OSError
        If the checkpoint is damaged.
    """
    if location.is_folder():
        tree = Tree.of(location, exclude, follow_links=follow_links)
        main, notes = _main(location, tree)
        kind = Format.FOLDER if main is None else Format.HUGGING_FACE
    else:
        opened = open_source(location.given, storage_options=location.storage_options)
        assert isinstance(opened, RawSource)  # a file is never a DCP checkpoint
        if not is_inside(location.name):
            raise UnsupportedError("the name of the file cannot be kept: rename it", file=location.given)
        main, notes, kind = opened, [], opened.contents.format
        tree = Tree(files=dict(opened.contents.files))
    found = _Files(location, main)
    for path in tree.files:
        if path.endswith(_METADATA):
            found.add_checkpoint(path.removesuffix(_METADATA))
    for path, size in tree.files.items():
        found.add(path, size, tree.modes.get(path))
    if not found.is_checkpoint:
        raise NoCheckpointError(f"the folder holds no checkpoint; looked for {LOOKED_FOR}", file=location.given)
    folders = {path: tree.modes.get(path) for path in ("", *tree.folders)}
    origin = Origin(kind, found.files, folders, dict(tree.links), tuple(exclude))
    entries = {ITEM: Entry(ITEM, None, (), None, (Part((), (), "", 0, 0),)), **found.entries, **found.rests}
    contents = Contents(location.given, kind, entries, tree.files, notes=(*notes, *found.notes()))
    return Whole(contents, location, main, found.extents, origin, tree.excluded)


def identity_of(location: Location, exclude: Sequence[str] = (), *, follow_links: bool = False) -> str:
    """A digest of what tells these files from others: paths, sizes, times, permissions, links."""
    facts: list[object] = [place_of(location)]
    if location.is_folder():
        tree = Tree.of(location, exclude, follow_links=follow_links)
        facts += [sorted(tree.modes.items()), tree.folders, sorted(tree.links.items()), sorted(exclude)]
        facts += [[path, version_of(location, path)] for path in tree.files]
    else:
        facts.append(version_of(location))
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _main(location: Location, tree: Tree) -> tuple[RawSource | None, list[str]]:
    """The model of a Hugging Face folder, if it is one whose tensors can be read."""
    try:
        layout = huggingface.layout_of(name for name in tree.files if "/" not in name)
        if layout is None:
            return None, []
        contents, shards = scanned(location, layout)
    except (UnsupportedError, PolicyError) as error:
        return None, [f"{_UNNAMED}: {error.message}"]
    if elsewhere := shards.keys() - tree.files.keys():
        return None, [f"{_UNNAMED}: {printable(min(elsewhere))} is a link, or was excluded"]
    return RawSource(contents, location, shards), []


class _Files:
    """Collects what is in files, one after the other.

    Parameters
    ----------
    location : Location
    main : RawSource or None
        Those of its files that were read already.
    """

    def __init__(self, location: Location, main: RawSource | None) -> None:
        self.files: dict[str, PackedFile] = {}
        self.entries: dict[str, Entry] = dict(main.contents.entries) if main is not None else {}
        self.rests: dict[str, Entry] = {}
        self.extents: dict[str, Extent | Pieces] = {}
        self.is_checkpoint = main is not None
        self._within: dict[str, Within] = {}
        self._location = location
        self._main = main
        self._unread: list[str] = []
        for name in self.entries:
            if is_kept(name):
                raise ParameterError(
                    f"the checkpoint has an item {printable(name)!r}, a name that pack uses for what it keeps"
                )

    def add_checkpoint(self, folder: str) -> None:
        """Take note of a DCP checkpoint; its files are added like any others."""
        inner = Within.of(self._location, folder)
        self._within |= dict.fromkeys(inner.parts, inner)

    def add(self, path: str, size: int, mode: int | None) -> None:
        """Add a file; all its bytes are in its tensors or in its rest."""
        if self._main is not None and path in self._main.shards:
            shard = self._main.shards[path]
            entries: Iterable[Entry] = shard.entries.values()
            extents = extents_of(shard)
        else:
            entries, extents = self._read(path, size)
            self._take(entries, extents)
        tensors = placed([entry for entry in entries if entry.is_tensor], extents)
        names = {tensor.name for tensor in tensors}
        others = tuple(entry.name for entry in entries if entry.name not in names)
        self.files[path] = PackedFile(tuple(tensors), others, mode)
        gaps = _gaps([(tensor.start, self.entries[tensor.name].raw_bytes or 0) for tensor in tensors], size)
        if gaps:
            rest = rest_of(path)
            length = sum(stop - start for start, stop in gaps)
            self.rests[rest] = Entry(
                rest, "uint8", (length,), length, (Part((0,), (length,), path, gaps[0][0], length),)
            )
            self.extents[rest] = _row(gaps)

    def notes(self) -> list[str]:
        """What a caller should know."""
        if not self._unread:
            return []
        shown = ", ".join(map(printable, self._unread[:_SHOWN])) + (", ..." if len(self._unread) > _SHOWN else "")
        verb = "is" if len(self._unread) == 1 else "are"
        return [
            f"{many(len(self._unread), 'file')} {verb} packed as bytes, since no tensors can be read there: {shown}"
        ]

    def _read(self, path: str, size: int) -> tuple[list[Entry], dict[str, Extent]]:
        """The tensors of a file that can be told apart, by names with its path before them."""
        with self._location.open(path, random=True) as file:
            beginning = file.read(BEGINNING)
        if len(beginning) > size:
            raise UnsupportedError(
                "the file has more bytes than its size says, so nothing tells where it ends",
                file=self._location.full(path),
            )
        kind = format_of(beginning, size, path)
        try:
            if path in self._within:
                entries, extents = self._within[path].read(self._location, path, size)
            elif kind is not None:
                entries, extents = self._shard(path, kind)
            else:
                return [], {}
        except StreamxfError:
            if path.endswith(_OF_TENSORS):
                self.is_checkpoint = True
                self._unread.append(path)
            return [], {}
        own = {tensor.name for tensor in placed(entries, extents)}
        self.is_checkpoint = True
        return [entry for entry in entries if entry.name in own or not entry.raw_bytes], extents

    def _shard(self, path: str, kind: Format) -> tuple[list[Entry], dict[str, Extent]]:
        with located(file=self._location.full(path)):
            shard = read_shard(self._location, path, alone=False, torchs=kind is Format.TORCH)
        entries = [replace(entry, name=f"{path}/{entry.name}") for entry in shard.entries.values() if entry.is_tensor]
        return entries, {f"{path}/{name}": extent for name, extent in extents_of(shard).items()}

    def _take(self, entries: Iterable[Entry], extents: Mapping[str, Extent]) -> None:
        for entry in entries:
            if entry.name in self.entries or is_kept(entry.name):
                raise UnsupportedError(
                    f"two tensors would have the name {printable(entry.name)!r}: rename the file, or leave it out "
                    "(exclude=)",
                    file=self._location.given,
                )
            self.entries[entry.name] = entry
            self.extents[entry.name] = extents[entry.name]


def _gaps(tensors: Sequence[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Where a file's bytes begin and end that are no tensor's; those have their beginnings and sizes in `tensors`."""
    found = []
    at = 0
    for start, length in (*tensors, (size, 0)):
        if start > at:
            found.append((at, start))
        at = start + length
    return found


def _row(gaps: Sequence[tuple[int, int]]) -> Extent | Pieces:
    stops = tuple(accumulate(stop - start for start, stop in gaps))
    if len(gaps) == 1:
        return Extent(gaps[0][0], torch.uint8, (stops[0],), (1,))
    return Pieces(tuple(start for start, _ in gaps), stops)
