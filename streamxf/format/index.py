"""The index of a checkpoint, all that a reader needs to know: a root, and the parts that it names; docs/format.md.

The root and the files are read at once, items when they are asked for. Whatever breaks the format raises
`MetadataError`, so what an `Index` gives needs no further checks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, pairwise
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple

from streamxf.buffers import collector_paused
from streamxf.descriptor import ENCRYPT, Descriptor
from streamxf.errors import DescriptorError, MetadataError
from streamxf.format import columns as col
from streamxf.format import limits
from streamxf.format.columns import Array, Column, IndexPart, ItemRules, PartEntry, TooLarge, pack_part
from streamxf.format.digests import Digests
from streamxf.format.header import Kind
from streamxf.format.items import Chunk, Item, Place, TensorItem, coded_dtype, known_dtype
from streamxf.format.run import RunFacts
from streamxf.format.sections import (
    array,
    bad,
    check_plain,
    digits,
    exact,
    integer,
    mapping,
    pack_json,
    parse_json,
    string,
)
from streamxf.format.table import Band, ItemParts, ItemTable
from streamxf.format.tiling import Boxes
from streamxf.lazy import numpy

_MEMBERS = {
    "save_id", "rank", "transforms", "chains", "dtypes", "files", "items", "modules", "packages", "extra",
}  # fmt: skip
_NONE: frozenset[str] = frozenset()
_FILES_IN_A_PART = 16_384
_SMALL = 2**20  # bytes of parts, decompressed, that are read and checked as a whole at once
Read = Callable[[int, int], bytes]  # gives bytes of the parts: from a position, so many
_JSON = json.JSONEncoder(separators=(",", ":"))
_ROWS = 16_384  # chunks in a part, or items with one chunk each
_ITEMS = 64  # in a band, where they have many chunks
_BYTES = 2**20  # of what each part of a band has of its items


class File(NamedTuple):
    """A data file.

    - `writer`: the id of the process that wrote it, 16 random bytes.
    - `key`: its data key, wrapped under the publisher's, whose own files have zeros there; None without encryption.
    """

    size: int
    writer: bytes
    key: bytes | None = None


@dataclass(frozen=True)
class Index:
    """The contents of a published checkpoint.

    - `save_id`: random for each save, 32 hexadecimal digits.
    - `rank`: whose rank-local metadata it stands in; None in ``.metadata``.
    - `transforms`: descriptors of the stream transforms that the data passed before the codecs, in save order.
    - `chains`: each the descriptors of its codecs in save order, that of `streamxf.encrypt` without its wrapped keys.
      An item has one of them, behind the transforms, in its places.
    - `files`: by path, in the order of paths.
    - `items`: by name, in the order of names. Those of a large index are read and checked when they are asked for.
    - `digests`: of all that is stored, where it is signed.
    - `modules`: third-party packages that provide codecs.
    - `packages`: versions of the packages that wrote the checkpoint.
    - `extra`: values that planners added to DCP's metadata, as `to_json` writes them.
    - `run`: the facts about its run; None if it belongs to no run.
    - `bases`: of an increment, ids and folders of the saves that have its other files.
    - `group`, `ranks`: of rank-local metadata what all ranks of its save have alike, 32 hexadecimal digits, and how
      many there are; None where that is not known.
    """

    save_id: str
    rank: int | None
    transforms: tuple[str, ...]
    chains: tuple[tuple[str, ...], ...]
    files: Mapping[str, File]
    items: Mapping[str, Item]
    digests: Digests | None = None
    modules: tuple[str, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    run: RunFacts | None = None
    group: str | None = None
    ranks: int | None = None
    bases: tuple[tuple[str, str], ...] | None = None

    @property
    def beside(self) -> set[str]:
        """The folders beside its own in which an increment has files."""
        return {path.split("/")[1] for path in self.files if path.startswith("../")} if self.bases else set()

    @property
    def version(self) -> tuple[int, str] | None:
        """The number of published weights, and the id of their run; None of all else."""
        with suppress(TypeError, KeyError, ValueError):
            said: Any = self.extra["published"]
            found = dict(said["dict"])
            if type(found["number"]) is int and re.fullmatch("[0-9a-f]{32}", found["run"]):
                return found["number"], found["run"]
        return None

    @collector_paused()
    def pack(self) -> tuple[bytes, bytes]:
        """Root and parts as they are stored. Raises MetadataError if readers would refuse them."""
        files = dict(sorted(self.files.items()))
        numbers = {path: number for number, path in enumerate(files)}
        dtypes = sorted({item.dtype for item in self.items.values() if isinstance(item, TensorItem)})
        left_out = {*(col.INCREMENT_COLUMNS if self.bases is None else ())}
        left_out |= {col.FIRST_DIGEST} if self.digests is None else set()
        marked = [f"!{text}" for text in self.transforms]  # before a chain as items through it have it
        recorded = {(*marked, *chain): number for number, chain in enumerate(self.chains)}
        parts: list[bytes] = []
        plain = "save_id", "rank", "transforms", "chains", "modules", "packages", "extra"
        content: dict[str, Any] = {name: getattr(self, name) for name in plain}
        content["dtypes"] = [*map(coded_dtype, dtypes)]
        content["files"] = [*self._packed_files(files, parts)]
        content["items"] = [*packed_bands(self.items, numbers, dtypes, recorded, left_out, self.digests, parts)]
        content |= {name: each for name in ("group", "ranks") if (each := getattr(self, name)) is not None}
        if self.digests is not None:
            content["digests"] = [*self.digests.packed(parts)]
        if self.bases is not None:
            content["bases"] = [{"save_id": save_id, "folder": folder} for save_id, folder in self.bases]
        if len(dtypes) > limits.MAX_DTYPES:
            raise MetadataError(f"there are {len(dtypes)} dtypes, {limits.MAX_DTYPES} are allowed")
        if self.run is not None:
            if self.rank is not None:
                raise MetadataError("metadata of a single rank cannot name a run; only that of all ranks can")
            content["run"] = self.run.to_json()
        cure = "save fewer items or shards, or put less into DCP's metadata"
        return pack_json(content, "the index", cure), b"".join(parts)

    def _packed_files(self, files: Mapping[str, File], parts: list[bytes]) -> Iterator[dict[str, Any]]:
        paths, rows = [path.encode() for path in files], [*files.values()]
        for begin in range(0, len(rows), _FILES_IN_A_PART):
            some, names = rows[begin : begin + _FILES_IN_A_PART], paths[begin : begin + _FILES_IN_A_PART]
            columns: dict[Column, Any] = {
                col.PATH_ENDS: [*accumulate(map(len, names))],
                col.PATHS: b"".join(names),
                col.FILE_SIZE: [file.size for file in some],
                col.WRITER: b"".join(file.writer for file in some),
            }
            if self.keyed:
                columns[col.KEY] = b"".join(file.key or bytes(limits.WRAPPED_KEY_BYTES) for file in some)
            packed, entry = pack_part(len(some), 0, columns, begin)
            parts.append(packed)
            yield entry

    @classmethod
    def parse(cls, root: memoryview, read: Read, size: int, *, lazy: bool = False, increment: bool = False) -> Index:
        """Read an index whose parts `read` gives, `size` bytes together; `lazy` says that `items` shall be an
        `ItemTable` even of a small one, of whose parts only the digests are compared at once.
        """
        with collector_paused():
            return _Root(parse_json(root, "the index"), read, size, increment).index(lazy)

    @property
    def keyed(self) -> bool:
        return any(text.partition("/")[0] == ENCRYPT for chain in self.chains for text in chain)


class _Root:
    def __init__(self, content: Any, read: Read, size: int, increment: bool) -> None:
        self._read = read
        self._size = size
        needed = {*_MEMBERS, "bases"} if increment else _MEMBERS
        self._content = exact(content, needed, frozenset({"run", "digests", "group", "ranks"}), "it")
        self._bases = tuple(map(_base, array(content["bases"], "bases"))) if increment else None
        self._at = 0  # where the next part begins

    def index(self, lazy: bool) -> Index:
        content = self._content
        save_id = digits(content["save_id"], 32, "save_id")
        rank = None if content["rank"] is None else integer(content["rank"], "rank", limits.NO_RANK)
        transforms = self._read_descriptors(content["transforms"], "transforms")
        lists = array(content["chains"], "chains")
        if len(lists) > limits.MAX_CHAINS:
            bad("chains")
        chains = tuple(self._read_descriptors(each, "chains") for each in lists)
        keyed = [any(text.partition("/")[0] == ENCRYPT for text in chain) for chain in chains]
        self._keyed = any(keyed)
        if self._keyed and not all(keyed):
            bad("some chains encrypt, and others do not")
        recorded = [(*(f"!{text}" for text in transforms), *chain) for chain in chains]
        for descriptors in recorded or [transforms]:
            bound = sum(len(text.partition("#")[0]) + 1 for text in descriptors) - 1  # joined, as in headers
            if len(descriptors) > limits.MAX_CODECS or bound > limits.MAX_CHAIN:
                bad("there are too many descriptors, or they are too long")
        dtypes = [known_dtype(text) or bad("dtypes") for text in array(content["dtypes"], "dtypes")]
        if len(dtypes) > limits.MAX_DTYPES:
            bad("dtypes")
        modules = tuple(string(entry, "modules") for entry in array(content["modules"], "modules"))
        packages, extra = mapping(content["packages"], "packages"), mapping(content["extra"], "extra")
        for name, version in packages.items():
            string(name, "packages"), string(version, "packages")
        check_plain(extra, "extra")
        run = RunFacts.of_json(content["run"]) if "run" in content else None
        if run is not None and rank is not None:
            bad("a rank's own metadata has a run")
        group = digits(content["group"], 32, "group") if "group" in content else None
        ranks = integer(content["ranks"], "ranks", limits.MAX_RANK + 1) if "ranks" in content else None
        if (rank is None and content.keys() & {"group", "ranks"}) or (ranks is not None and ranks <= (rank or 0)):
            bad("group and ranks are those of a rank, which is one of them")
        entries = self._parts(content["files"])
        bands = [self._band(entry) for entry in array(content["items"], "items")]
        parts = [part for band in bands for part in band.parts]
        signed = self._parts(content["digests"]) if "digests" in content else None
        most = limits.PARTS_EXPANSION * self._size + limits.FREE_PARTS
        if self._at != self._size or sum(part.raw for part in (*entries, *parts, *(signed or ()))) > most:
            bad("the parts are not those that it names, or more than they can hold")
        files = self._files(entries)
        if any(one.last >= two.first for one, two in pairwise(bands)):
            bad("bands of items do not rise")
        digests = None if signed is None else Digests(signed, self._read)
        about = bool(transforms), digests is not None, tuple(dtypes), [file.size for file in files.values()]
        rules = ItemRules(rank, tuple(recorded), [*map(bool, chains)], *about, self._bases is not None)
        table = ItemTable(ItemParts(rules, bands, files, self._read))
        small = sum(part.raw for part in parts) <= _SMALL
        for part in parts if lazy and small else ():
            part.check(self._read(part.at, part.size))
        items: Mapping[str, Item] = table.whole() if small and not lazy else table
        facts = digests, modules, packages, extra, run, group, ranks, self._bases
        return Index(save_id, rank, transforms, chains, files, items, *facts)

    def _read_descriptors(self, texts: Any, member: str) -> tuple[str, ...]:
        for text in array(texts, member):
            try:
                descriptor = Descriptor.parse(string(text, member))
            except DescriptorError as error:
                bad(f"{member}: {error.message}")
            if member == "transforms" and descriptor.name.startswith("streamxf."):
                bad(f"{member}: {descriptor.name} is not a stream transform")
            if descriptor.name == ENCRYPT and descriptor.fragment:
                bad(f"{member}: wrapped keys do not belong there")
        return tuple(texts)

    def _parts(self, value: Any) -> tuple[PartEntry, ...]:
        made: list[PartEntry] = []
        for entry in array(value, "parts"):
            exact(entry, {"from", "bytes", "raw", "sha256"}, _NONE, "a part")
            begin, size, raw = (integer(entry[name], "a part") for name in ("from", "bytes", "raw"))
            if max(raw, size) > limits.MAX_PART or (begin <= made[-1].begin if made else begin):
                bad("the size of a part, or where it begins")
            digest = bytes.fromhex(digits(entry["sha256"], 64, "a part"))
            made.append(PartEntry(begin, self._at, size, raw, digest))
            self._at += size
        return tuple(made)

    def _band(self, entry: Any) -> Band:
        exact(entry, {"first", "last", "items", "parts"}, _NONE, "a band")
        first, last = (string(entry[name], "a band") for name in ("first", "last"))
        parts = self._parts(entry["parts"])
        if not parts or first > last:  # names are found by those of bands
            bad("a band")
        return Band(first, last, integer(entry["items"], "a band"), parts)

    def _files(self, entries: Iterable[PartEntry]) -> dict[str, File]:
        columns = [column for column in col.FILE_COLUMNS if self._keyed or column is not col.KEY]
        files: dict[str, File] = {}
        known: dict[bytes, bytes | None] = {}
        last, folders = "", {folder for _, folder in self._bases or ()}
        for entry in entries:
            part = IndexPart.parse(self._read(entry.at, entry.size), entry, columns)
            if entry.begin != len(files) or part.chunks or not part.names or part.names[0] <= last:
                bad("files do not rise")
            last = part.names[-1]
            for row, (path, size) in enumerate(zip(part.names, part[col.FILE_SIZE].tolist(), strict=True)):
                writer = part.value(col.WRITER, row)
                key = part.value(col.KEY, row) if self._keyed else None
                if known.setdefault(writer, key) != key:
                    bad("a writer has two data keys")
                folder, _, name = path.removeprefix("../").partition("/")
                beside = path.startswith("../") and "/" not in name and folder in folders
                Place.check_path(name if beside else path)
                files[path] = File(size, writer, key)
        return files


def _base(entry: Any) -> tuple[str, str]:
    """The id and the folder of a save whose files an increment has."""
    exact(entry, {"save_id", "folder"}, _NONE, "a base")
    folder = string(entry["folder"], "a base")
    if "/" in Place.check_path(folder):
        bad("a base's folder is not beside this one")
    return digits(entry["save_id"], 32, "a base"), folder


@dataclass(frozen=True, eq=False)
class ChunkColumns(Sequence[Chunk]):
    """Chunks of a tensor as columns, by their offsets; or an object, by its `kind`.

    - `places`: with a column for each chunk, and rows of file, position, bytes, number, and whether it is framed.
    - `paths`: those of all files of the save, in order. `descriptors`: as in `Place`.
    """

    boxes: Boxes
    places: Array
    paths: list[str]
    descriptors: tuple[str, ...]
    kind: Kind

    def __len__(self) -> int:
        return len(self.boxes.offsets)

    def __getitem__(self, key: Any) -> Any:
        rows = key if isinstance(key, slice) else slice(at := range(len(self))[key], at + 1)
        boxes = Boxes(self.boxes.offsets[rows], self.boxes.sizes[rows])
        some = replace(self, boxes=boxes, places=self.places[:, rows])
        return some if isinstance(key, slice) else next(iter(some))

    def __iter__(self) -> Iterator[Chunk]:
        for box, (file, at, size, number, framed) in zip(self.boxes.spans(), self.places.T.tolist(), strict=True):
            yield Chunk(*box, Place(self.paths[file], at, size, self.descriptors, None, number), bool(framed))

    def columns(self) -> dict[Column, Any]:
        """As a part has them."""
        kinds = numpy.where(self.places[4], Kind.FRAMED, self.kind)
        made = dict(zip(_NUMBERS, (*(side.ravel() for side in self.boxes), kinds, *self.places[:4]), strict=True))
        return {**made, col.BENEATH: numpy.zeros(len(self), "u1")}


_Files = Mapping[str, tuple[int, int]]  # their ordinals, and those of their first digests
_Coded = tuple[Item, Sequence[Chunk], bytes]  # an item, its chunks by their offsets, and what else there is to say


def packed_bands(
    items: Mapping[str, Item],
    files: Mapping[str, int],
    dtypes: list[str],
    chains: Mapping[tuple[str, ...], int],
    left_out: set[Column],
    digests: Digests | None,
    parts: list[bytes],
) -> Iterator[dict[str, Any]]:
    """What the root says of bands; their parts are added to `parts`. `files` and `chains` are ordinals."""
    kinds = {dtype: number for number, dtype in enumerate(dtypes, 1)}
    places = {path: (number, digests.bases.get(path, 0) if digests else 0) for path, number in files.items()}
    for band in _bands(map(items.__getitem__, sorted(items))):
        about = _about(band, kinds, chains)
        step = max(1, _ROWS // len(band))
        while True:
            try:
                found = [*_parts(band, about, places, left_out, step)]
                break
            except TooLarge:
                if step == 1:
                    raise
                step //= 2
        parts += [packed for packed, _ in found]
        ends = {"first": band[0][0].name, "last": band[-1][0].name}
        yield {**ends, "items": len(band), "parts": [entry for _, entry in found]}


def _bands(items: Iterable[Item]) -> Iterator[list[_Coded]]:
    band: list[_Coded] = []
    most = size = 0
    for item in items:
        chunks = _chunks(item)
        more = _more(item)
        crcs = () if isinstance(chunks, ChunkColumns) else (len(each.place.crcs or b"") for each in chunks)
        own = max(crcs, default=0)
        own += len(item.name.encode()) + len(more) + 64
        if isinstance(item, TensorItem):
            own += 24 * len(item.shape)  # with one chunk
        widest = max(most, len(chunks))
        full = len(band) >= _ITEMS and (len(band) + 1) * widest > _ROWS
        if band and (full or size + own > _BYTES):
            yield band
            band, size, widest = [], 0, len(chunks)
        band.append((item, chunks, more))
        most, size = widest, size + own
    if band:
        yield band


def _chunks(item: Item) -> Sequence[Chunk]:
    if isinstance(item, TensorItem) and isinstance(item.chunks, ChunkColumns):
        return item.chunks
    if isinstance(item, TensorItem):
        return sorted(item.chunks)
    return [Chunk((), (), item.place, False)]


def _descriptors(chunks: Sequence[Chunk]) -> tuple[str, ...]:
    return chunks.descriptors if isinstance(chunks, ChunkColumns) else chunks[0].place.descriptors


def _more(item: Item) -> bytes:
    properties = item.properties if isinstance(item, TensorItem) else None
    members = [] if item.path is None else [f'"path":[{",".join(map(_step, item.path))}]']
    members += [f'"properties":{_JSON.encode(dict(properties))}'] if properties else []
    return f"{{{','.join(members)}}}".encode("ascii") if members else b""


def _step(step: str | int) -> str:
    return encode_basestring_ascii(step) if isinstance(step, str) else str(step)


def _about(band: list[_Coded], dtypes: Mapping[str, int], chains: Mapping[tuple[str, ...], int]) -> dict[Column, Any]:
    """The columns of a band's items."""
    names = [item.name.encode() for item, _, _ in band]
    if max(map(len, names)) > limits.MAX_IDENTITY:
        raise MetadataError(f"an item has a name of more than {limits.MAX_IDENTITY} bytes, which is the most")
    shapes = [item.shape if isinstance(item, TensorItem) else () for item, _, _ in band]
    mores = [more for _, _, more in band]
    return {
        col.NAME_ENDS: [*accumulate(map(len, names))],
        col.NAMES: b"".join(names),
        col.MORE_ENDS: [*accumulate(map(len, mores))],
        col.MORE: b"".join(mores),
        col.DTYPE: [dtypes[item.dtype] if isinstance(item, TensorItem) else 0 for item, _, _ in band],
        col.NDIM: [*map(len, shapes)],
        col.SHAPE: [*chain.from_iterable(shapes)],
        col.COUNT: [len(chunks) for _, chunks, _ in band],
        col.CHAIN: [chains[_descriptors(chunks)] if len(chunks) else 0 for _, chunks, _ in band],
    }


def _parts(
    band: list[_Coded], about: Mapping[Column, Any], files: _Files, left_out: set[Column], step: int
) -> Iterator[tuple[bytes, dict[str, Any]]]:
    for begin in range(0, max(len(chunks) for _, chunks, _ in band) or 1, step):
        found = [(all_[begin : begin + step], isinstance(item, TensorItem)) for item, all_, _ in band]
        columns = {column: values for column, values in about.items() if not begin or column not in _FIRST}
        columns |= _of_chunks(found, files)
        count = sum(len(some) for some, _ in found)
        yield pack_part(len(band), count, {c: values for c, values in columns.items() if c not in left_out}, begin)


_FIRST = {col.MORE_ENDS, col.MORE}
_NUMBERS = (col.OFFSET, col.SIZES, col.KIND, col.FILE, col.AT, col.BYTES, col.NUMBER)
_ALL_NUMBERS = *_NUMBERS, col.BEGIN, col.END, col.BENEATH


def _of_chunks(found: list[tuple[Sequence[Chunk], bool]], files: _Files) -> dict[Column, Any]:
    """The columns of chunks of several items, each with whether it is a tensor."""
    if any(isinstance(some, ChunkColumns) for some, _ in found):
        each = [
            some.columns() if isinstance(some, ChunkColumns) else _of_objects([*some], [tensor] * len(some), files)
            for some, tensor in found
        ]
        made = {c: numpy.concatenate([numpy.asarray(own.get(c, ()), "i8") for own in each]) for c in _ALL_NUMBERS}
        return {**made, col.CRCS: b"", col.LOWER: []}
    chunks, tensors = [chunk for some, _ in found for chunk in some], [tensor for some, tensor in found for _ in some]
    return _of_objects(chunks, tensors, files)


def _of_objects(chunks: list[Chunk], tensors: list[bool], files: _Files) -> dict[Column, Any]:
    offsets, shapes, places, framed = zip(*chunks, strict=True) if chunks else ((),) * 4
    paths, at, sizes, _, digests, numbers, crcs, beneath, spans = zip(*places, strict=True) if places else ((),) * 9
    of_tensors = [Kind.FRAMED if frame else Kind.TENSOR for frame in framed]
    kinds_of = zip([Kind.OBJECT if span is None else Kind.VALUE for span in spans], of_tensors, strict=True)
    inside = [span for span, number in zip(spans, numbers, strict=True) if span is not None and number is not None]
    return {
        col.OFFSET: [*chain.from_iterable(offsets)],
        col.SIZES: [*chain.from_iterable(shapes)],
        col.KIND: [kinds[tensor] for kinds, tensor in zip(kinds_of, tensors, strict=True)],
        col.FILE: [files[path][0] for path in paths],
        col.AT: at,
        col.BYTES: sizes,
        col.NUMBER: [number or 0 for number, bare in zip(numbers, crcs, strict=True) if bare is None],
        col.FIRST_DIGEST: [files[path][1] + (first or 0) for path, first in zip(paths, digests, strict=True)],
        col.CRCS: b"".join(each or b"" for each in crcs),
        col.BEGIN: [begin for begin, _ in inside],
        col.END: [end for _, end in inside],
        col.BENEATH: [*map(len, beneath)],
        col.LOWER: [each for some in beneath for path, *place in some for each in (files[path][0], *place)],
    }
