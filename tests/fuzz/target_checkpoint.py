"""A whole checkpoint, of a metadata file and one data file, by `streamxf.Checkpoint`, the reference decoder, and DCP.

An input is the length of the metadata (4 bytes, little-endian), the metadata, and the data file.
"""

import atexit
import random
import re
import shutil
import struct
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf.errors import StreamxfError
from streamxf.format.items import ITEMSIZES, ObjectItem, coded_dtype
from streamxf.stream.reader import read_all
from tests.forge import MetadataParts, prefix_of, split_metadata, take_container_apart
from tests.fuzz import containers, held, metadata_files, second
from tests.fuzz.oracle import Finding, agree, attempt
from tests.fuzz.target import Havoc, Target
from tests.reference_codecs import Refused
from tests.reference_decoder import Tensor, load
from tests.samples import KEY
from tests.surroundings import in_memory

warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)

_NAME = re.compile(r"[0-9A-Za-z_]{1,80}\.distcp")
_MAX_LOADED = 1 << 20
_UNPARSED = (*containers.UNPARSED, *metadata_files.UNPARSED)


@cache
def scratch_folder() -> Path:
    made = Path(tempfile.mkdtemp(prefix="streamxf-fuzz-", dir=in_memory(2**26)))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def run(data: bytes) -> None:
    with unpacked(data) as folder:
        for keys, reader in (KEY, second.HOLDER), (None, second.ANYONE):
            found, error = attempt(lambda keys=keys: streams_of(folder, keys))
            second.compare(found, error, lambda reader=reader: _by_reference(folder, reader))
            _load(folder, keys, found)


@contextmanager
def unpacked(data: bytes) -> Iterator[Path]:
    """The folder that an input makes: the data file has all names that the index gives to one."""
    metadata, content = _split(data)
    folder = scratch_folder()
    names = _names(metadata)
    (folder / ".metadata").write_bytes(metadata)
    for name in names:
        (folder / name).write_bytes(content)
    try:
        yield folder
    finally:
        for name in names:
            (folder / name).unlink()


def _split(data: bytes) -> tuple[bytes, bytes]:
    size = int.from_bytes(data[:4], "little")
    return data[4 : 4 + size], data[4 + size :]


def _names(metadata: bytes) -> set[str]:
    try:
        return {file["path"] for file in split_metadata(metadata).index["files"] if _NAME.fullmatch(file["path"])}
    except _UNPARSED:
        return set()


def streams_of(folder: Path, keys: streamxf.Key | None) -> dict[str, Any]:
    """All streams of a checkpoint."""
    found: dict[str, Any] = {}
    with streamxf.Checkpoint(folder, keys=keys, framework="numpy") as checkpoint:
        for name, item in checkpoint.stored.items():
            if isinstance(item, ObjectItem):
                found[name] = read_all(checkpoint.blocks(item))
            else:
                dtype = coded_dtype(item.dtype)
                found[name] = dtype, item.shape, [read_all(checkpoint.blocks(item, one)) for one in item.chunks]
    return found


def _by_reference(folder: Path, reader: Any) -> dict[str, Any]:
    try:
        found = load(folder, reader)
    except OSError as error:
        raise Refused("M3: there is no such file") from error
    return {
        name: (coded_dtype(item.dtype), item.shape, [stream for _, stream in item.chunks])
        if isinstance(item, Tensor)
        else getattr(item, "data", item)
        for name, item in found.items()
    }


def _load(folder: Path, keys: streamxf.Key | None, streams: dict[str, Any] | None) -> None:
    """Load through DCP what the checkpoint says it has."""
    try:
        with streamxf.Checkpoint(folder, keys=keys) as checkpoint:
            items = dict(checkpoint.stored)
    except StreamxfError:
        items = {}
    if sum(getattr(item, "size", 0) for item in items.values()) > _MAX_LOADED:
        return
    # but for items of a dtype that torch does not have, or cannot fill
    target = {name: _blank(item) for name, item in items.items() if getattr(item, "dtype", "bool") in ITEMSIZES}
    loaded, _ = attempt(lambda: loaded_into(target, folder, keys))
    if streams is None:
        agree(loaded is None or len(target) < len(items), "DCP loads a checkpoint of which not all streams can be read")
        return
    for name in target if loaded is not None else ():
        item = items[name]
        if not isinstance(item, ObjectItem) and not any(chunk.framed for chunk in item.chunks) and item.size:
            whole = streams[name][2][0] if len(item.chunks) == 1 else None
            elements = target[name].reshape(-1).view(torch.uint8).numpy().tobytes()
            agree(whole in (None, elements), "DCP loads other elements")


def _blank(item: Any) -> Any:
    dtype = getattr(torch, getattr(item, "dtype", ""), None)
    with warnings.catch_warnings(action="ignore"):  # torch calls complex32 experimental
        return torch.zeros(item.shape, dtype=dtype) if isinstance(dtype, torch.dtype) else None


def loaded_into(target: dict[str, Any], folder: Path, keys: streamxf.Key | None) -> dict[str, Any]:
    """Load, and raise what streamxf raises; anything else is a finding."""
    try:
        dcp.load(target, storage_reader=streamxf.FileSystemReader(folder, keys=keys), no_dist=True)
    except CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        if not isinstance(first, StreamxfError):
            raise Finding(f"{type(first).__name__} inside DCP's exception") from first
        raise first from None
    return target


def seeds() -> Iterable[bytes]:
    for files in held.checkpoints():
        metadata = files.pop(".metadata", b"")
        if len(files) == 1 and all(map(_NAME.fullmatch, files)):
            made = _pack(metadata, *files.values())
            if len(made) < TARGET.max_len // 2:
                yield made


def _pack(metadata: bytes, content: bytes) -> bytes:
    return struct.pack("<I", len(metadata)) + metadata + content


def mutate(data: bytes, choose: random.Random, havoc: Havoc) -> bytes:
    """Change the metadata, or a container whose new place the metadata then gives."""
    metadata, content = _split(data)
    if choose.random() > 0.4:
        try:
            return _changed(split_metadata(metadata), content, choose, havoc)
        except _UNPARSED:
            pass
    return _pack(metadata_files.mutate(metadata, choose, havoc), content)


def _changed(parts: MetadataParts, content: bytes, choose: random.Random, havoc: Havoc) -> bytes:
    """Another container in the place of one."""
    index: Any = parts.index
    places = [place for item in index["items"].values() for place in item.get("chunks", [item])]
    place = choose.choice(places)
    start, stop = place["at"], place["at"] + place["bytes"]
    container = take_container_apart(content[start:stop]).change(prefix=prefix_of(parts.keys.partition(b"\n")[0]))
    changed = containers.change(container, choose, havoc)
    stored = changed.container()
    more = len(stored) - (stop - start)
    for other in places:
        other["at"] += more if other["at"] > start else 0
    place["bytes"] = len(stored)
    if "digest" in place:
        place["digest"] = len(index["digests"])
        index["digests"] += [digest.hex() for digest in changed.digests]
    for file in index["files"]:
        file["size"] += more
    return _pack(metadata_files.vouched(parts).pack(), content[:start] + stored + content[stop:])


TARGET = Target(run, seeds, mutate, max_len=16_384)
