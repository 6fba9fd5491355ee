"""Vectors as their JSON describes them, and what comes of them in streamxf and in the reference decoder."""

import base64
import io
import json
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import zstandard

import streamxf
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.checkpoint.notes import Note
from streamxf.checkpoint.reading import Box
from streamxf.codec import CodecRegistry
from streamxf.descriptor import Descriptor
from streamxf.format import values
from streamxf.format.items import ObjectItem, TensorItem
from streamxf.format.values import pack_value
from streamxf.keys import Key, KeyRing, PrivateKey, VerifyKey
from streamxf.keys.envelope import DataKey
from streamxf.notes import Commit, Saving, Supplement
from streamxf.storage.reading import FileSlice
from streamxf.stream.container import ChainOpener, StoredStream, read_header
from streamxf.stream.reader import StreamReader
from tests.forge import METADATA_MAGIC
from tests.reference_codecs import TRANSFORMS, check
from tests.reference_decoder import Tensor, Value, load, read_container, read_note, read_plain
from tests.reference_keys import Key as ReferenceKey
from tests.reference_keys import Reader, aes_key, hpke_key
from tests.reference_values import ORDERED, TUPLE, parse_value
from tests.vectors.stock_files import load_stock

V1 = Path(__file__).parent / "v1"
SUBJECTS = ("plain", "container", "checkpoint", "note", "value", "key")

Entry = dict[str, Any]

TRANSFORMS["stream.zstd"] = lambda stream: zstandard.ZstdDecompressor().decompressobj().decompress(stream)


@cache
def vectors(subject: str) -> dict[str, Entry]:
    """The vectors of a subject, by name."""
    return {entry["name"]: entry for entry in json.loads((V1 / f"{subject}.json").read_text())}


def bytes_of(file: dict[str, str]) -> bytes:
    """A file, which stands in the JSON or beside it."""
    return base64.b64decode(file["base64"]) if "base64" in file else (V1 / file["path"]).read_bytes()


def notation(value: Any) -> str:
    """A value in CBOR's diagnostic notation (RFC 8949, section 8)."""
    if type(value) is bytes:
        return f"h'{value.hex()}'"
    if type(value) is float:
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(text := repr(value), text)
    if type(value) is tuple:
        return f"{TUPLE}({notation([*value])})"
    if type(value) is list:
        return f"[{', '.join(map(notation, value))}]"
    if type(value) is not dict:
        return json.dumps(value)
    if not value or pack_value(value)[0] >> 5 == 5:  # type: ignore[index]
        return f"{{{', '.join(f'{notation(key)}: {notation(each)}' for key, each in value.items())}}}"
    return f"{ORDERED}({notation([part for pair in value.items() for part in pair])})"


def unpack(entry: Entry, folder: Path) -> Path:
    """Put a checkpoint into a folder."""
    for name, file in entry["files"].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes_of(file))
    return folder


def is_stock(metadata: bytes) -> bool:
    """Whether a metadata file is one of torch's own writers."""
    return metadata[:1] == b"\x80" and not metadata.endswith(METADATA_MAGIC)


def profile_of(subject: str, entry: Entry) -> str:
    """The least profile that reads it, of those in docs/format/implementing.md; or the page beside the core."""
    if subject in ("key", "note"):
        return "notes" if subject == "note" else "key files"
    metadata = next((bytes_of(file) for name, file in entry.get("files", {}).items() if name.endswith("metadata")), b"")
    if is_stock(metadata):
        return "stock"
    if entry.keys() & {"keys", "trust", "dek", "allow_unsigned"}:
        return "full"
    if "run" in entry or entry.get("breaks") in ("M13", "M14"):
        return "notes"
    return "compressed" if subject in ("plain", "container") or has_codecs(metadata) else "bare"


def has_codecs(metadata: bytes) -> bool:
    """Whether an index names a codec, as far as its root can be read."""
    try:
        head, parts, root, _ = struct.unpack_from("<QQII", metadata, len(metadata) - 104)
        found = json.loads(zstandard.ZstdDecompressor().decompress(metadata[head + parts : head + parts + root]))
        return any(found["chains"])
    except (struct.error, zstandard.ZstdError, ValueError, LookupError, TypeError, RecursionError):
        return False


# -- streamxf --------------------------------------------------------------------------------------------------------


def trusted_by(entry: Entry) -> list[bytes]:
    """The public keys of signers."""
    return [bytes.fromhex(public) for public in entry.get("trust", ())]


def keyring_of(entry: Entry) -> KeyRing:
    """What a reader is given."""
    held = [
        Key(bytes.fromhex(key["secret"]))
        if key["kind"] == "aeskw"
        else PrivateKey(bytes.fromhex(key["secret"]), key["kind"])
        for key in entry.get("keys", ())
    ]
    trust = [VerifyKey(key, "ed25519" if len(key) == 32 else "ed25519+mldsa65") for key in trusted_by(entry)]
    return KeyRing(held or None, trust=trust or None, allow_unsigned=entry.get("allow_unsigned", False))


def container_by_streamxf(entry: Entry, data: bytes) -> bytes:
    """The stream of a container."""
    dek = entry.get("dek")
    source = FileSlice(io.BytesIO(data))
    header = read_header(source)
    descriptors = [Descriptor.parse(text) for text in header.block_chain]
    opener = ChainOpener(descriptors, CodecRegistry(), (lambda: DataKey(bytes.fromhex(dek))) if dek else None)
    return StreamReader(StoredStream(source, header).decoded(opener)).read()


def checkpoint_by_streamxf(entry: Entry, folder: Path) -> dict[str, Any]:
    """The items of a checkpoint: streams of objects, and of each chunk of a tensor."""
    rank = entry.get("rank")
    found: dict[str, Any] = {}
    require = entry.get("require")
    with Checkpoint(folder, keys=keyring_of(entry), rank=rank, require=require, framework="numpy") as checkpoint:
        for name, item in checkpoint.stored.items():
            if isinstance(item, ObjectItem):
                found[name] = StreamReader(checkpoint.blocks(item)).read()
                if item.place.span is not None:
                    found[name] = found[name], notation(checkpoint[name].read())
                continue
            assert isinstance(item, TensorItem)
            plain = rank is None and not any(chunk.framed for chunk in item.chunks)
            if entry.get("elements") or plain:
                list(checkpoint.read_boxes([Box(item, (0,) * len(item.shape), item.shape)]))
            found[name] = [StreamReader(checkpoint.blocks(item, chunk)).read() for chunk in item.chunks]
    return found


# -- the reference decoder -------------------------------------------------------------------------------------------


def reader_of(entry: Entry) -> Reader:
    """What a reader is given."""
    held: list[ReferenceKey] = []
    for key in entry.get("keys", ()):
        secret = bytes.fromhex(key["secret"])
        held.append(aes_key(secret) if key["kind"] == "aeskw" else hpke_key(key["kind"], secret))
    return Reader(held, trusted_by(entry), entry.get("allow_unsigned", False))


def container_by_reference(entry: Entry, data: bytes) -> bytes:
    """The stream of a container."""
    return read_container(data, bytes.fromhex(entry["dek"]) if entry.get("dek") else None)[1]


def checkpoint_by_reference(entry: Entry, folder: Path) -> dict[str, Any]:
    """As `checkpoint_by_streamxf`."""
    reader, rank = reader_of(entry), entry.get("rank")
    data = (folder / (".metadata" if rank is None else f"__{rank}.metadata")).read_bytes()
    require = entry.get("require", "published")
    found = load_stock(folder, data, rank, reader, require) if is_stock(data) else load(folder, reader, rank)
    for item in found.values() if entry.get("elements") else ():
        for identity, stream in item.chunks:
            tensor = torch.load(io.BytesIO(stream), weights_only=True)
            same = tensor.dtype == getattr(torch, item.dtype) and tensor.shape == identity.shard
            check(same, "C6: another dtype or shape in the stream")
    return {name: _content(item) for name, item in found.items()}


def _content(item: bytes | Value | Tensor) -> Any:
    if isinstance(item, Value):
        return item.data, notation(item.value)
    return [stream for _, stream in item.chunks] if isinstance(item, Tensor) else item


def value_by_streamxf(entry: Entry, data: bytes) -> str:
    """A value, in diagnostic notation."""
    return notation(values.parse_value(data)[0])


def value_by_reference(entry: Entry, data: bytes) -> str:
    """The same."""
    return notation(parse_value(data))


def note_by_reference(entry: Entry, data: bytes) -> Any:
    """The content of a note."""
    return read_note(data, reader_of(entry), entry.get("form"))


FORMS: dict[str, Callable[[Any], Any]] = {
    "commit": Commit.of_json,
    "note": Supplement.of_json,
    "saving": Saving.of_json,
}


def note_by_streamxf(entry: Entry, data: bytes) -> Any:
    """The same; without keys, as a listing reads it."""
    note, access = Note.parse(data), Access.of(keyring_of(entry))
    if len(access.keys) or access.trust or not note.keyed:
        note.check(access)
    return note.content if "form" not in entry else note.said(FORMS[entry["form"]]).to_json()


def plain_by_reference(entry: Entry, data: bytes) -> bytes:
    """The stream of a plain file."""
    return read_plain(data, reader_of(entry))


def plain_by_streamxf(entry: Entry, source: Any) -> bytes:
    """The same; `source` is the file, or a stream of it."""
    source = io.BytesIO(source) if isinstance(source, bytes) else source
    with streamxf.open(source, keys=keyring_of(entry)) as file:
        return file.read()


# By streamxf and by the reference decoder; each takes a file, or the folder of a checkpoint.
READERS: dict[str, tuple[Callable[[Entry, Any], Any], Callable[[Entry, Any], Any]]] = {
    "plain": (plain_by_streamxf, plain_by_reference),
    "container": (container_by_streamxf, container_by_reference),
    "note": (note_by_streamxf, note_by_reference),
    "value": (value_by_streamxf, value_by_reference),
    "checkpoint": (checkpoint_by_streamxf, checkpoint_by_reference),
}
