"""The metadata of torch's own writers, a pickle: what comes of it is what any checkpoint has, and nothing is run."""

import pickle
from collections.abc import Iterable

import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo

from streamxf.errors import MetadataError
from streamxf.format.items import ObjectItem, Place, check_name, is_dtype_name
from streamxf.torchsave.unpickler import StockMetadata, read_stock
from tests.fuzz.oracle import agree, attempt
from tests.fuzz.pickles import change_pickle
from tests.fuzz.target import Target

_FILE = "__0_0_" + "0123456789abcdef" * 2 + ".distcp"


def run(data: bytes) -> None:
    for rank in (None, 0):
        found, _ = attempt(lambda rank=rank: _read(data, rank))
        if found is not None:
            _check(found)


def _read(data: bytes, rank: int | None) -> StockMetadata | None:
    """As readers do; None where the pickle asks for more memory than there is, which docs/security.md allows."""
    try:
        return read_stock(data, rank)
    except MetadataError as error:
        if not isinstance(error.__context__, MemoryError):
            raise
    return None


def _check(found: StockMetadata) -> None:
    """What readers rely on."""
    agree(all(type(module) is str for module in found.modules), "a module that is not a string")
    for name, item in found.items.items():
        agree(name == item.name == check_name(name), "an item under another name")
        for place in item.places:
            Place.check_path(place.file)
            agree(type(place.at) is type(place.size) is int and min(place.at, place.size) >= 0, "an odd place")
            agree(all(type(text) is str for text in place.descriptors), "a descriptor that is not a string")
        if isinstance(item, ObjectItem):
            continue
        agree(is_dtype_name(item.dtype), "an odd dtype")
        agree(all(chunk.framed for chunk in item.chunks), "a chunk that says it is elements")
        agree(all(len(chunk.offset) == len(chunk.shape) == len(item.shape) for chunk in item.chunks), "odd chunks")


def seeds() -> Iterable[bytes]:
    for protocol in (2, 4):
        yield example(protocol)
    yield example(4, ("acme.delta/1", "streamxf.zstd/1"), parts=6)


def example(protocol: int, chain: tuple[str, ...] = (), parts: int = 2) -> bytes:
    """The metadata of a small checkpoint."""
    offsets = [torch.Size([2 * part, 0]) for part in range(parts)]
    chunks = [dcp.ChunkStorageMetadata(offset, torch.Size([2, 3])) for offset in offsets]
    properties = dcp.TensorProperties(dtype=torch.float32)
    size = torch.Size([2 * parts, 3])
    items = {"w": dcp.TensorStorageMetadata(properties, size, chunks), "o": dcp.BytesStorageMetadata()}
    indices = [dcp.MetadataIndex("w", offset, part) for part, offset in enumerate(offsets)]
    places = {
        index: _StorageInfo(_FILE, 100 * number, 100, list(chain) or None)
        for number, index in enumerate([*indices, dcp.MetadataIndex("o")])
    }
    paths = {"w": ("model", 0, "w"), "o": ("o",)}
    content = dcp.Metadata(items, paths, storage_data=places, storage_meta=dcp.StorageMeta(save_id="x", modules=["m"]))
    return pickle.dumps(content, protocol)


TARGET = Target(run, seeds, change_pickle, max_len=8192)
