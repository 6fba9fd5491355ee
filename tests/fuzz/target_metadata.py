"""``.metadata``: trailer, manifest, tag and pickle, of streamxf's writer and of torch's."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable

import reference_decoder
import torch
from reference_decoder import FormatError
from samples import KEY
from streamxf.container.limits import METADATA_MAGIC
from streamxf.dcp.metadata.manifest import FileFacts, Manifest
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo

from fuzz import metadata_files
from fuzz.oracle import Finding, agree, attempt
from fuzz.target import Havoc, Target
from streamxf import Encrypt, ZStandard
from streamxf.dcp.metadata import file as metadata_file
from streamxf.dcp.metadata import records
from streamxf.keys import KeyRing

_ID = "0123456789abcdef" * 2


def run(data: bytes) -> None:
    with_key, _ = attempt(lambda: metadata_file.load(data, KeyRing.of(KEY)))
    attempt(lambda: metadata_file.load(data, KeyRing()))
    attempt(lambda: metadata_file.load(data, KeyRing.of(KEY), published=True))
    attempt(lambda: metadata_file.load(data, KeyRing.of(KEY), rank=0))
    _read_in_steps(data, with_key)
    if with_key is None:
        return
    agree(type(with_key) is dcp.Metadata, "something else than Metadata comes out")
    manifest = metadata_file.manifest_of(with_key)
    agree((manifest is None) != data.endswith(METADATA_MAGIC), "a trailer is overlooked, or comes from nowhere")
    _look_at(with_key)
    if manifest is None:
        return
    try:
        _, second = reference_decoder.split_metadata(data, key=KEY.reveal())
    except FormatError as error:
        raise Finding("only the second decoder refuses the file") from error
    agree(second["save_id"] == manifest.save_id and set(second["files"]) == set(manifest.files), "different manifests")


def _read_in_steps(data: bytes, expected: dcp.Metadata | None) -> None:
    """Instances that are read in one step, as they are where there are many, must be those of their opcodes."""
    usual, records.LEARN_AFTER = records.LEARN_AFTER, 1
    try:
        found, _ = attempt(lambda: metadata_file.load(data, KeyRing.of(KEY)))
    finally:
        records.LEARN_AFTER = usual
    agree(repr(found) == repr(expected), "instances that are read in one step are others")


def _look_at(content: dcp.Metadata) -> None:
    """What DCP looks at must be there, and of the right kind."""
    for name, item in content.state_dict_metadata.items():
        agree(type(name) is str, "an item's name is no text")
        if isinstance(item, dcp.TensorStorageMetadata):
            agree(isinstance(item.properties.dtype, torch.dtype), "a dtype that is none")
            agree(all(len(chunk.sizes) == len(chunk.offsets) == len(item.size) for chunk in item.chunks), "odd chunks")
        else:
            agree(isinstance(item, dcp.BytesStorageMetadata), "an item of an unknown kind")
    for index, place in (content.storage_data or {}).items():
        agree(type(index.fqn) is str, "the name of a place is no text")
        agree(type(place.offset) is type(place.length) is int, "a place that is none")


def example(protocol: int = 2, chain: tuple[str, ...] = (), parts: int = 2) -> tuple[bytes, Manifest]:
    """The metadata of a small checkpoint."""
    offsets = [torch.Size([2 * part, 0]) for part in range(parts)]
    chunks = [dcp.ChunkStorageMetadata(offset, torch.Size([2, 3])) for offset in offsets]
    properties = dcp.TensorProperties(dtype=torch.float32)
    size = torch.Size([2 * parts, 3])
    items = {"w": dcp.TensorStorageMetadata(properties, size, chunks), "o": dcp.BytesStorageMetadata()}
    indices = [dcp.MetadataIndex("w", offset, part) for part, offset in enumerate(offsets)]
    path = f"__0_0_{_ID}.distcp"
    places = {
        index: _StorageInfo(path, 100 * number, 100, list(chain) or None)
        for number, index in enumerate([*indices, dcp.MetadataIndex("o")])
    }
    content = dcp.Metadata(items, storage_data=places, storage_meta=dcp.StorageMeta(save_id="x"))
    facts = FileFacts(300, _ID, "crc32c:0123abcd")
    versions = {"streamxf": "1", "torch": "2"}
    return pickle.dumps(content, protocol), Manifest(_ID, None, None, versions, {path: facts})


def seeds() -> Iterable[bytes]:
    for protocol in (2, 4):
        pickled, manifest = example(protocol)
        yield pickled
        yield metadata_files.tagged(pickled, manifest.pack())
    pickled, manifest = example(4, ("a/1",), parts=6)
    yield pickled
    yield metadata_files.tagged(pickled, manifest.pack())
    chain = [ZStandard(), Encrypt(KEY)]
    texts = [str(codec.descriptor()) for codec in reversed(chain)]
    pickled, manifest = example(2, tuple(texts))
    yield metadata_files.tagged(pickled, Manifest(_ID, None, texts[0], manifest.packages, manifest.files).pack())
    yield metadata_files.tagged(pickled, Manifest(_ID, 0, texts[0], manifest.packages, manifest.files).pack())


def mutate(data: bytes, choose: random.Random, havoc: Havoc) -> bytes:
    """As somebody who has the key."""
    return metadata_files.mutate(data, choose, havoc)


TARGET = Target(run, seeds, mutate, max_len=8192)
