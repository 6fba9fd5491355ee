"""A reader of checkpoints that torch's own writers made, written from docs/format/stock.md alone."""

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

from tests.reference_codecs import check, parse_descriptor, refusing, undo
from tests.reference_decoder import (
    BOUND,
    ELEMENT_SIZE,
    FRAMED,
    KEYED,
    OBJECT,
    PUBLISHED,
    Identity,
    Tensor,
    check_chunks,
    check_file_path,
    decode_blocks,
    parse_header,
    parse_table,
    unseal,
)
from tests.reference_keys import Reader, parse_wrapped, unwrap

CONTAINER = bytes.fromhex("D35358460D0A1A0A")


class Record:
    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class Size(tuple[int, ...]):
    pass


class Dtype(str):
    pass


def size_of(numbers: Any = ()) -> Size:
    check(type(numbers) in (tuple, list), "F1: a Size")
    return Size(numbers)


def called_with(kind: type) -> Any:
    def make(value: Any) -> Record:
        check(type(value) is kind, "F1: a call")
        return Record()

    return make


NAMES = "Metadata TensorStorageMetadata BytesStorageMetadata ChunkStorageMetadata MetadataIndex StorageMeta"
PLANNER = "torch.distributed.checkpoint.planner"
SHARDED = "torch.distributed._shard.sharded_tensor.metadata"
RECORDS = {
    name: type(name, (Record,), {})
    for name in (*NAMES.split(), "TensorProperties", "_StorageInfo", "SavePlan", "WriteItem", "TensorWriteData")
}
KNOWN: dict[tuple[str, str], Any] = {
    **{("torch.distributed.checkpoint.metadata", name): RECORDS[name] for name in [*NAMES.split(), "TensorProperties"]},
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): RECORDS["_StorageInfo"],
    **{(PLANNER, name): RECORDS[name] for name in ("SavePlan", "WriteItem", "TensorWriteData")},
    (SHARDED, "TensorProperties"): RECORDS["TensorProperties"],
    ("torch", "Size"): size_of,
    ("collections", "OrderedDict"): lambda: {},
    ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"): called_with(int),
    **dict.fromkeys([(SHARDED, "MEM_FORMAT_ENCODING"), (PLANNER, "WriteItemType")], called_with(int)),
    ("torch.serialization", "_get_layout"): called_with(str),
    **{
        (module, name): lambda *arguments: Record()
        for module in ("pathlib", "pathlib._local")
        for name in ["Path", "PurePath", "PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"]
    },
}
OTHERS = "quint8 qint8 qint32 quint4x2 quint2x4 bits1x8 bits2x4 bits4x2 bits8 bits16 bcomplex32"
DTYPES = {*ELEMENT_SIZE, *OTHERS.split(), *(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8))}
REFUSED = {"PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER"}


def reduce_(unpickler: Any) -> None:
    check(type(unpickler.stack[-1]) is tuple, "F1: a call")
    pickle._Unpickler.dispatch[pickle.REDUCE[0]](unpickler)  # type: ignore[attr-defined]


def frame(unpickler: Any) -> None:
    size, left = int.from_bytes(unpickler.read(8), "little"), len(unpickler.file.getbuffer()) - unpickler.file.tell()
    check(size <= left, "F1: a frame that is longer than what follows")


class Unpickler(pickle._Unpickler):  # type: ignore[misc, name-defined]
    dispatch = {  # noqa: RUF012
        **pickle._Unpickler.dispatch,  # type: ignore[attr-defined]
        **{pickle.REDUCE[0]: reduce_, pickle.FRAME[0]: frame},
    }

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.file = file

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("torch.distributed._shard.checkpoint.", "torch.distributed.checkpoint.")
        if module == "torch" and name in DTYPES:
            return Dtype(name)
        check((module, name) in KNOWN, "F1: a name that does not belong there")
        return KNOWN[module, name]


def unpickled(data: bytes) -> Any:
    with refusing("F1", Exception):
        opcodes = [opcode.name for opcode, _, _ in pickletools.genops(data)]
        file = io.BytesIO(data)
        found = Unpickler(file).load()
    check(not REFUSED & {*opcodes} and opcodes[0] == "PROTO" and 2 <= data[1] <= 5, "F1: an opcode, or the protocol")
    check(file.tell() == len(data), "F1: something follows the pickle")
    return found


def state(record: Any, name: str, kind: type = dict) -> Any:
    check(type(record) is RECORDS[name] and type(record.state) is kind, f"F1: {name}")
    return record.state


def name_of(value: Any) -> str:
    check(type(value) is str and value, "F1: a name")
    with refusing("F1", UnicodeEncodeError):
        value.encode()
    return value


def sizes_of(value: Any) -> tuple[int, ...]:
    check(type(value) is Size and len(value) <= 64, "F1: a Size")
    return tuple(integer(each) for each in value)


def integer(value: Any) -> int:
    check(type(value) is int and 0 <= value < 1 << 63, "F1: an integer")
    return value


def load_stock(folder: Path, data: bytes, rank: int | None, reader: Reader, require: str = "published") -> Any:
    """As `load`, of a folder whose metadata is a pickle."""
    check(not reader.trust, "K8: nobody can have signed it")
    check(not reader.keys or require != "published", "K7: there is no index")
    content = state(unpickled(data), "Metadata")
    items, stored = content.get("state_dict_metadata"), content.get("storage_data")
    check(type(items) is dict and type(stored) is dict, "F1: the attributes of Metadata")
    places: dict[tuple[str, Any], Any] = {}
    for index, info in stored.items():
        where = state(index, "MetadataIndex")
        offset = where.get("offset")
        key = name_of(where.get("fqn")), offset if offset is None else sizes_of(offset)
        check(key not in places, "F1: two places")
        places[key] = place_of(state(info, "_StorageInfo"))
    result: dict[str, Any] = {}
    for name, item in items.items():
        name_of(name)
        if type(item) is RECORDS["BytesStorageMetadata"]:
            check((name, None) in places, "F1: no place")
            box = Identity(b"", 0, OBJECT, "", (), (), (), name)
            result[name] = read(folder, places[name, None], box, reader, require)
            continue
        about = state(item, "TensorStorageMetadata")
        properties = state(about.get("properties"), "TensorProperties", tuple)
        check(len(properties) >= 5 and type(properties[0]) is Dtype, "F1: TensorProperties")
        shape, chunks = sizes_of(about.get("size")), about.get("chunks")
        check(type(chunks) is list, "F1: chunks")
        boxes = [
            tuple(sizes_of(state(chunk, "ChunkStorageMetadata").get(side)) for side in ("offsets", "sizes"))
            for chunk in chunks
        ]
        check_chunks(shape, boxes, rank is None)
        streams = []
        for offset, shard in boxes:
            check((name, offset) in places, "F1: no place")
            identity = Identity(b"", 0, FRAMED, str(properties[0]), offset, shard, shape, name)
            streams.append((identity, read(folder, places[name, offset], identity, reader, require)))
        result[name] = Tensor(str(properties[0]), shape, streams, None)
    return result


def place_of(info: dict[str, Any]) -> tuple[str, int, int, list[Any]]:
    path, texts = info.get("relative_path"), info.get("transform_descriptors")
    check(type(path) is str, "F1: a path")
    check_file_path(str(path))
    texts = [] if texts is None else texts
    check(type(texts) is list and len(texts) <= 8 and all(type(text) is str for text in texts), "F1: descriptors")
    descriptors = [parse_descriptor(text) for text in texts[::-1]]
    return str(path), integer(info.get("offset")), integer(info.get("length")), descriptors


def read(folder: Path, place: tuple[str, int, int, list[Any]], item: Identity, reader: Reader, require: str) -> bytes:
    """F2 and F3."""
    path, at, size, descriptors = place
    with refusing("F2", OSError, ValueError):
        file = (folder / path).read_bytes()
    check(at + size <= len(file), "F2: not within the file")
    stream = file[at : at + size]
    if not stream.startswith(CONTAINER):
        check(not any(d.name.startswith("streamxf.") for d in descriptors), "F2: codecs, and no container")
        check(not reader.keys, "K7: not encrypted")
        return undo(stream, descriptors)
    header = parse_header(stream)
    chain = [text.removeprefix("!") for text in header.chain]
    check(chain and chain == [d.text for d in descriptors], "F2: another chain")
    check(not header.flags & PUBLISHED, "F3: published")
    if header.identity:
        dtype = header.identity.dtype.partition(":")[0]
        check(header.identity._replace(writer=b"", number=0, dtype=dtype) == item, "F3: another item")
    data_key = None
    if header.flags & KEYED:
        wrapped = "&".join("=".join(pair) for d in descriptors if d.name == "streamxf.encrypt" for pair in d.fragment)
        check(reader.keys, "K3: no key")
        data_key, opener = unwrap(parse_wrapped(wrapped), reader.keys)
        check(reader.allow_unsigned or (opener.vouched and not reader.trust), "K8: nothing vouches for it")
    check(not reader.keys or header.flags & KEYED, "K7: not encrypted")
    check(not reader.keys or header.flags & BOUND or require == "encrypted", "K7: not bound")
    stream_key = unseal(header, data_key)
    begin = len(header.chain) - len(header.codecs)
    codecs = [d._replace(fragment=[]) if d.name == "streamxf.encrypt" else d for d in descriptors[begin:]]
    stream = decode_blocks(stream, header._replace(codecs=codecs), parse_table(stream, header), stream_key)
    return undo(stream, descriptors[:begin])
