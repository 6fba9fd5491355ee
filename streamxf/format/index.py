"""A metadata file: its index, which holds everything that a reader needs to know of a checkpoint, keys and trailer;
docs/format.md, "Metadata".

Reading an index is one pass over the result of `json.loads`. Whatever breaks the format raises `MetadataError`, so an
`Index` needs no further checks.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import operator
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from streamxf.budget import Steps
from streamxf.buffers import collector_paused
from streamxf.descriptor import ENCRYPT, Descriptor
from streamxf.errors import DescriptorError, MetadataError
from streamxf.format import fields, limits
from streamxf.format.header import format_fault
from streamxf.format.items import (
    ITEMSIZES,
    Chunk,
    Item,
    ObjectItem,
    Path,
    Place,
    TensorItem,
    check_apart,
    check_name,
    check_offsets,
    check_path,
    check_text,
    check_tiles,
    is_dtype_name,
)
from streamxf.format.run import RunFacts

_SHOWN = 200

_MEMBERS = {
    "save_id", "rank", "transforms", "chain", "dek", "writers", "files", "items", "modules", "packages", "extra",
}  # fmt: skip


class Writer(NamedTuple):
    """A writing process: 16 random bytes, and the id of its data key, None if the chain does not encrypt."""

    id: bytes
    dek: bytes | None


class File(NamedTuple):
    """A data file: `writer` is an index of the writers, `crc` the CRC-32C of the whole file, where the chain has no
    block codec.
    """

    size: int
    writer: int
    crc: int | None = None


@dataclass(frozen=True)
class Index:
    """The contents of a published checkpoint.

    - `save_id`: random for each save, 32 hexadecimal digits.
    - `rank`: whose rank-local metadata it stands in; None in ``.metadata``.
    - `transforms`: descriptors of the stream transforms that the data passed before the codecs, in save order.
    - `chain`: descriptors of the codecs in save order, that of `streamxf.encrypt` without its wrapped keys.
    - `dek`: the id of the data key of the process that published.
    - `modules`: third-party packages that provide codecs.
    - `packages`: versions of the packages that wrote the checkpoint.
    - `extra`: values that planners added to DCP's metadata, as `to_json` writes them.
    - `run`: the facts about its run; None if it belongs to no run.
    """

    save_id: str
    rank: int | None
    transforms: tuple[str, ...]
    chain: tuple[str, ...]
    dek: bytes | None
    writers: tuple[Writer, ...]
    files: Mapping[str, File]
    items: Mapping[str, Item]
    modules: tuple[str, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    run: RunFacts | None = None

    @collector_paused()
    def pack(self) -> bytes:
        """The index as it is stored: JSON in a Zstandard frame. Raises MetadataError if readers would refuse it."""
        numbers = {path: number for number, path in enumerate(self.files)}
        content = {
            "save_id": self.save_id,
            "rank": self.rank,
            "transforms": self.transforms,
            "chain": self.chain,
            "dek": self.dek and self.dek.hex(),
            "writers": [{"id": writer.id.hex(), "dek": writer.dek and writer.dek.hex()} for writer in self.writers],
            "files": [_file_content(path, file) for path, file in self.files.items()],
            "items": {name: _item_content(item, numbers) for name, item in self.items.items()},
            "modules": self.modules,
            "packages": self.packages,
            "extra": self.extra,
        }
        if self.run is not None:
            if self.rank is not None:
                raise MetadataError("metadata of a single rank cannot name a run; only that of all ranks can")
            content["run"] = self.run.to_json()
        return fields.pack_json(content, "the index", "save fewer items or shards, or put less into DCP's metadata")

    @classmethod
    def parse(cls, packed: memoryview) -> Index:
        with collector_paused():
            return _Reader(fields.parse_json(packed, "the index"), steps_of(packed)).index()

    @property
    def keyed(self) -> bool:
        return self.dek is not None

    @property
    def hashed(self) -> bool | None:
        """Whether the containers carry a SHA-256 for each block; None if there are none."""
        return next((place.sha256 is not None for item in self.items.values() for place in item.places), None)


# -- writing -----------------------------------------------------------------------------------------------


def _file_content(path: str, file: File) -> dict[str, Any]:
    content = {"path": path, "size": file.size, "writer": file.writer}
    return content if file.crc is None else content | {"crc32c": f"{file.crc:08x}"}


def _item_content(item: Item, numbers: Mapping[str, int]) -> dict[str, Any]:
    content: dict[str, Any]
    if isinstance(item, ObjectItem):
        content = _place_content(item.place, numbers)
    else:
        chunks = []
        for offset, shape, place, framed in item.chunks:
            made = _place_content(place, numbers)
            made["offset"], made["shape"] = offset, shape
            if framed:
                made["framed"] = True
            chunks.append(made)
        content = {"dtype": item.dtype, "shape": item.shape, "chunks": chunks}
        if item.properties:
            content["properties"] = dict(item.properties)
    if item.path is not None:
        content["path"] = item.path
    return content


def _place_content(place: Place, numbers: Mapping[str, int]) -> dict[str, Any]:
    content: dict[str, Any] = {"file": numbers[place.file], "at": place.at, "bytes": place.size}
    if place.number is not None:
        content["number"] = place.number
    if place.sha256 is not None:
        content["sha256"] = place.sha256.hex()
    return content


# -- reading -----------------------------------------------------------------------------------------------


_NONE: frozenset[str] = frozenset()
_PLACE = {"file", "at", "bytes"}
_CHUNK_OPTIONS = frozenset({"framed", "sha256"})
_TENSOR = {"dtype", "shape", "chunks"}
_TENSOR_OPTIONS = frozenset({"properties", "path"})
_OBJECT_OPTIONS = frozenset({"sha256", "path"})


def steps_of(packed: memoryview) -> Steps:
    """The budget for comparing the chunks of an index, where tensors are not cut along each dimension as a whole."""
    return Steps(len(packed) // 4)


class _Reader:
    def __init__(self, content: Any, steps: Steps) -> None:
        self._steps = steps
        self._content = fields.exact(content, _MEMBERS, frozenset({"run"}), "it")

    def index(self) -> Index:
        content = self._content
        save_id = fields.digits(content["save_id"], 32, "save_id")
        rank = None if content["rank"] is None else fields.integer(content["rank"], "rank", limits.MAX_RANK)
        self._keyed = False  # unless a descriptor says so
        self._transforms, self._chain = self._read_descriptors("transforms"), self._read_descriptors("chain")
        self._descriptors = (*(f"!{text}" for text in self._transforms), *self._chain)
        if len(self._descriptors) > limits.MAX_CODECS:
            fields.bad("there are too many descriptors")
        self._framed = bool(self._transforms) or not self._chain
        self._object = _PLACE | {"number"} if self._chain else _PLACE
        self._parts = self._object | {"offset", "shape"}
        dek = self._dek(content["dek"])
        self._writers = tuple(self._writer(entry) for entry in fields.array(content["writers"], "writers"))
        numbers: dict[bytes, list[int]] = {writer.id: [] for writer in self._writers}
        self._paths: list[str] = []
        files = self._files(fields.array(content["files"], "files"))
        self._numbers = [numbers[self._writers[file.writer].id] for file in files.values()]
        self._check: Callable[..., None] = check_tiles if rank is None else check_apart
        modules = tuple(fields.string(entry, "modules") for entry in fields.array(content["modules"], "modules"))
        packages, extra = fields.mapping(content["packages"], "packages"), fields.mapping(content["extra"], "extra")
        for name, version in packages.items():
            fields.string(name, "packages"), fields.string(version, "packages")
        fields.check_plain(extra, "extra")
        self._hashed: bool | None = None
        items = self._items()
        for each in map(sorted, numbers.values()):  # hostile ones would all have one place in a set
            if any(map(operator.eq, each, each[1:])):
                fields.bad("two items, or chunks, have one writer and number")
        run = RunFacts.of_json(content["run"]) if "run" in content else None
        if run is not None and rank is not None:
            fields.bad("a rank's own metadata has a run")
        places = self._transforms, self._chain, dek, self._writers, files, items
        return Index(save_id, rank, *places, modules, packages, extra, run)

    def _read_descriptors(self, member: str) -> tuple[str, ...]:
        texts = fields.array(self._content[member], member)
        for text in texts:
            try:
                descriptor = Descriptor.parse(fields.string(text, member))
            except DescriptorError as error:
                fields.bad(f"{member}: {error.message}")
            if member == "transforms" and descriptor.name.startswith("streamxf."):
                fields.bad(f"{member}: {descriptor.name} is not a stream transform")
            if descriptor.name == ENCRYPT:
                if descriptor.fragment:
                    fields.bad(f"{member}: wrapped keys do not belong there")
                self._keyed = True
        return tuple(texts)

    def _dek(self, value: Any) -> bytes | None:
        if (value is None) == self._keyed:
            fields.bad("dek contradicts the chain")
        return None if value is None else bytes.fromhex(fields.digits(value, 64, "dek"))

    def _writer(self, entry: Any) -> Writer:
        fields.exact(entry, {"id", "dek"}, _NONE, "a writer")
        return Writer(bytes.fromhex(fields.digits(entry["id"], 32, "a writer's id")), self._dek(entry["dek"]))

    def _files(self, entries: list[Any]) -> dict[str, File]:
        files: dict[str, File] = {}
        members = {"path", "size", "writer"} if self._chain else {"path", "size", "writer", "crc32c"}
        for entry in entries:
            fields.exact(entry, members, _NONE, "a file")
            path = check_path(entry["path"])
            if path in files:
                fields.bad("a file is named twice")
            number = None if self._chain else int(fields.digits(entry["crc32c"], 8, "a file's crc32c"), 16)
            writer = fields.integer(entry["writer"], "a file's writer", len(self._writers) - 1)
            files[path] = File(fields.integer(entry["size"], "a file's size"), writer, number)
            self._paths.append(path)
        self._sizes = [file.size for file in files.values()]
        return files

    def _items(self) -> dict[str, Item]:
        made: dict[str, Item] = {}
        for name, entry in fields.mapping(self._content["items"], "items").items():
            try:
                made[check_name(name)] = self._item(name, entry)
            except MetadataError as error:
                raise error.locate(item=name[:_SHOWN]) from None
        return made

    def _item(self, name: str, entry: Any) -> Item:
        path = _path(fields.mapping(entry, "it is not an object"))
        if "dtype" not in entry:
            fields.exact(entry, self._object, _OBJECT_OPTIONS, "it")
            return ObjectItem(name, self._place(entry), path)
        fields.exact(entry, _TENSOR, _TENSOR_OPTIONS, "it")
        dtype = entry["dtype"]
        if not is_dtype_name(dtype):
            fields.bad("dtype")
        shape = fields.integers(entry["shape"], "shape")
        entries = fields.array(entry["chunks"], "chunks")
        chunks = tuple(map(self._chunk, entries))
        if dtype not in ITEMSIZES and not all(chunk.framed for chunk in chunks):
            fields.bad(f"the elements of {dtype} have no size")
        check_offsets(chunks)
        self._check(shape, [(chunk.offset, chunk.shape) for chunk in chunks], self._steps)
        properties = fields.mapping(entry.get("properties", {}), "properties")
        for member, value in properties.items():
            fields.string(member, "properties"), type(value) is bool or fields.string(value, "properties")
        return TensorItem(name, dtype, shape, chunks, path, properties)

    def _chunk(self, entry: Any) -> Chunk:
        fields.exact(entry, self._parts, _CHUNK_OPTIONS, "a chunk")
        framed = "framed" in entry
        if (framed and entry["framed"] is not True) or (self._framed and not framed):
            fields.bad("framed")
        offset, shape = (fields.integers(entry[each], f"a chunk's {each}") for each in ("offset", "shape"))
        return Chunk(offset, shape, self._place(entry), framed)

    def _place(self, entry: dict[str, Any]) -> Place:
        file = fields.integer(entry["file"], "file", len(self._paths) - 1)
        at, size = fields.integer(entry["at"], "at"), fields.integer(entry["bytes"], "bytes")
        if at + size > self._sizes[file]:
            fields.bad(f"it reaches beyond the end of {self._paths[file]}")
        sha256 = bytes.fromhex(fields.digits(entry["sha256"], 64, "sha256")) if "sha256" in entry else None
        if self._hashed is None:
            self._hashed = sha256 is not None
        if self._hashed != (sha256 is not None):
            fields.bad("some items have a sha256, and others do not")
        number = fields.integer(entry["number"], "number") if self._chain else None
        if number is not None:
            self._numbers[file].append(number)
        return Place(self._paths[file], at, size, self._descriptors, sha256, number)


def _path(entry: dict[str, Any]) -> Path | None:
    if "path" not in entry:
        return None
    steps = fields.array(entry["path"], "path")
    if not 1 <= len(steps) <= limits.MAX_STEPS:
        fields.bad("path")
    most = limits.MAX_STEP
    return tuple(
        fields.string(step, "path") if type(step) is str else fields.integer(step, "path", most) for step in steps
    )


# -- extra -------------------------------------------------------------------------------------------------
# The index has no tuples, bytes, fractions, negative numbers or keys that are not strings, so each of these is an
# object with one member that names its kind: {"tuple": [...]}, {"bytes": "00ff"}, {"number": "-1.5"},
# {"dict": [[key, value], ...]}.

_MAX_DEPTH = 32


def to_json(value: Any, depth: int = _MAX_DEPTH) -> Any:
    """Plain data as JSON has it. Raises MetadataError if it is not plain data, or nested too deep."""
    if depth < 0:
        raise MetadataError("it is nested too deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return check_text(value)
    if isinstance(value, int) and abs(value) < 2**63:
        return int(value) if 0 <= value <= limits.MAX_NUMBER else {"number": repr(int(value))}
    if isinstance(value, float) and math.isfinite(value):
        return {"number": repr(float(value))}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, tuple):
        return {"tuple": [to_json(each, depth - 1) for each in value]}
    if isinstance(value, list):
        return [to_json(each, depth - 1) for each in value]
    if isinstance(value, dict):
        return {"dict": [[to_json(key, depth - 1), to_json(each, depth - 1)] for key, each in value.items()]}
    raise MetadataError(f"a {type(value).__name__} is not plain data")


def from_json(value: Any) -> Any:
    try:
        return _plain(value, Steps(0))
    except (TypeError, ValueError, RecursionError):
        raise MetadataError("the metadata's extra data is malformed") from None


def _plain(value: Any, steps: Steps) -> Any:
    if isinstance(value, list):
        return [_plain(each, steps) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "number":
        return _number(content)
    if kind == "tuple":
        return tuple(_plain(each, steps) for each in content)
    if kind == "dict":
        made: dict[Any, Any] = {}
        for key, each in content:
            key = _plain(key, steps)
            steps.charge_key(made, key)
            made[key] = _plain(each, steps)
        return made
    raise ValueError(kind)


def _number(text: str) -> int | float:
    made = float(text) if len(text) > 20 or not text.removeprefix("-").isdigit() else int(text)
    if repr(made) != text or not math.isfinite(made):
        raise ValueError(text)
    return made


# -- trailer and keys ---------------------------------------------------------------------------------------

_LENGTHS = struct.Struct("<II4s4x")
_TRAILER = struct.Struct("<II4sI32s32s8x")
INDEX_LABEL, NOTE_LABEL = b"streamxf/1 index", b"streamxf/1 note"
_NO_PICKLE_DIGEST = hashlib.sha256(limits.NO_PICKLE).digest()
_SIGNED_BYTES = _LENGTHS.size + limits.DIGEST_BYTES  # of the trailer, covered by its second digest


@dataclass(frozen=True, slots=True)
class Trailer:
    """The last 88 bytes of a metadata file: sizes of the index and the keys before it, format bytes, and digests."""

    index_size: int
    keys_size: int
    format_bytes: bytes
    head_digest: bytes
    digest: bytes

    @property
    def size(self) -> int:
        return self.index_size + self.keys_size + limits.TRAILER_BYTES

    @classmethod
    def parse(cls, end: bytes, file_size: int) -> Trailer | None:
        """Read the trailer from the last 88 bytes of a file, or all of it if it is smaller; None if it does not end in
        one. Raises MetadataError if it ends in one that cannot be.
        """
        if end[-len(limits.METADATA_MAGIC) :] != limits.METADATA_MAGIC:
            return None
        if len(end) < limits.TRAILER_BYTES:
            raise MetadataError("the metadata is truncated: only a part of its trailer is there")
        index_size, keys_size, format_bytes, zeros, *digests = _TRAILER.unpack(end[-limits.TRAILER_BYTES :])
        if fault := format_fault(format_bytes):
            raise MetadataError(f"the metadata {fault}")
        if zeros:
            raise MetadataError("the metadata's trailer has a byte that is not zero where version 1 has zeros")
        trailer = cls(index_size, keys_size, format_bytes, *digests)
        if not 1 <= index_size <= limits.MAX_INDEX or keys_size > limits.MAX_KEYS or trailer.size > file_size:
            raise MetadataError("the metadata's trailer has impossible sizes: the file is damaged")
        return trailer

    def split(self, tail: bytes, label: bytes = INDEX_LABEL) -> Sections:
        """Index (or other contents vouched for under `label`) and keys out of the file's last `size` bytes; raises
        MetadataError if their digest does not match.
        """
        view = memoryview(tail)
        signed = view[: self.index_size + self.keys_size + _SIGNED_BYTES]
        if not hmac.compare_digest(hashlib.sha256(signed).digest(), self.digest):
            raise MetadataError("the digest of the metadata does not match: the file is damaged")
        keys = view[self.index_size : self.index_size + self.keys_size]
        pickled = self.head_digest != _NO_PICKLE_DIGEST
        return Sections(view[: self.index_size], keys, label, self.format_bytes, pickled)


@dataclass(frozen=True, slots=True)
class Sections:
    """Index (a Zstandard frame) and keys (lines of ASCII, empty if not encrypted) of a metadata file, as they are
    stored, and its format bytes; `label` separates kinds of vouched contents. `pickled` says that the file begins with
    a pickle for torch's own readers.
    """

    index: memoryview
    keys: memoryview
    label: bytes = INDEX_LABEL
    format_bytes: bytes = limits.FORMAT
    pickled: bool = False

    @property
    def digest(self) -> bytes:
        """D of the format: the digest that vouchers cover."""
        made = hashlib.sha256(self.label + self.format_bytes)
        made.update(self.index)
        return made.digest()

    def key_lines(self) -> tuple[str, str] | None:
        """The wrapped data key and the vouchers of the process that published; None if there are no keys. Raises
        MetadataError if there are other bytes.
        """
        if not self.keys:
            return None
        start = bytes(self.keys[: 2 * limits.MAX_KEY_LINE + 2])
        lines = start.split(b"\n", 2)
        if len(lines) < 2 or len(lines[0]) > limits.MAX_KEY_LINE or len(lines[1]) > limits.MAX_KEY_LINE:
            raise MetadataError("the metadata's keys are malformed")
        return _text(lines[0]), _text(lines[1])

    def other_key_lines(self) -> list[str]:
        return [_text(line) for line in bytes(self.keys).split(b"\n")[2:]]


def pack(head: bytes, index: bytes, keys: bytes, format_bytes: bytes = limits.FORMAT) -> bytes:
    """A metadata file; raises MetadataError if it would be too large to be read."""
    if len(index) > limits.MAX_INDEX or len(keys) > limits.MAX_KEYS:
        raise MetadataError(
            f"the metadata would be too large: {len(index)} bytes of index ({limits.MAX_INDEX} are allowed) and "
            f"{len(keys)} of keys ({limits.MAX_KEYS}); save fewer items, or with fewer recipients"
        )
    lengths = _LENGTHS.pack(len(index), len(keys), format_bytes)
    signed = index + keys + lengths + hashlib.sha256(head).digest()
    return head + signed + hashlib.sha256(signed).digest() + limits.METADATA_MAGIC


def pack_keys(wrapped: str, vouchers: str, others: list[str]) -> bytes:
    return "\n".join([wrapped, vouchers, *others]).encode("ascii")


def _text(line: bytes) -> str:
    try:
        return line.decode("ascii")
    except UnicodeDecodeError:
        raise MetadataError("the metadata's keys are not ASCII") from None
