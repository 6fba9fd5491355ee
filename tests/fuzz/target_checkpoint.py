"""A whole checkpoint: ``.metadata`` and one data file, loaded by `streamxf.FileSystemReader` through DCP.

An input is the length of the metadata (4 bytes, little-endian), the metadata, and the data file.
"""

from __future__ import annotations

import atexit
import pickle
import random
import re
import shutil
import struct
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from forge import prefix_of
from samples import KEY
from streamxf.container.limits import MAGIC
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from fuzz import containers, metadata_files
from fuzz.oracle import Finding, agree, attempt
from fuzz.target import Havoc, Target
from streamxf import Checksum, Encrypt, ZStandard
from streamxf.dcp.metadata import file as metadata_file
from streamxf.errors import StreamxfError
from streamxf.keys import KeyRing

warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)

# What DCP's own planner says of a checkpoint that is another than the caller asks for.
_PLANNER = ("Missing key in checkpoint state_dict", "Size mismatch between saved")
_NAME = re.compile(rb"__0_0[0-9a-z_]*\.distcp")
_CHAINS: tuple[list[streamxf.Codec], ...] = ([], [ZStandard()], [ZStandard(), Checksum(), Encrypt(KEY)])


def state() -> dict[str, Any]:
    """What the seeds hold."""
    matrix = torch.arange(12, dtype=torch.float32).reshape(4, 3)
    return {"w": matrix, "half": torch.ones(5, dtype=torch.bfloat16), "object": {"step": 17, "names": ["a", b"b"]}}


@cache
def _folder() -> Path:
    made = Path(tempfile.mkdtemp(prefix="streamxf-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def run(data: bytes) -> None:
    with unpacked(data) as folder:
        for keys in (KEY, None) if folder is not None else ():
            attempt(lambda keys=keys: _load(folder, keys))


@contextmanager
def unpacked(data: bytes) -> Iterator[Path | None]:
    """The folder that an input makes; None if it makes none."""
    size = int.from_bytes(data[:4], "little")
    metadata, content = data[4 : 4 + size], data[4 + size :]
    name = _NAME.search(metadata)
    if len(data) < 4 or name is None:
        yield None
        return
    folder = _folder()
    (folder / ".metadata").write_bytes(metadata)
    file = folder / name.group().decode("ascii")
    file.write_bytes(content)
    try:
        yield folder
    finally:
        file.unlink()


def _load(folder: Path, keys: streamxf.Key | None) -> None:
    target = blank()
    loaded_into(target, folder, keys)
    for name, value in blank().items():
        if isinstance(value, torch.Tensor):
            agree((target[name].dtype, target[name].shape) == (value.dtype, value.shape), "a target is another one now")


def loaded_into(target: dict[str, Any], folder: Path, keys: streamxf.Key | None) -> None:
    """Load, and raise what streamxf raises; anything else is a finding."""
    try:
        dcp.load(target, storage_reader=streamxf.FileSystemReader(folder, keys=keys), no_dist=True)
    except CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        if isinstance(first, StreamxfError):
            raise first from None
        if not str(first).startswith(_PLANNER):
            raise Finding(f"{type(first).__name__} inside DCP's exception") from first


def blank() -> dict[str, Any]:
    """What to load into."""
    return {
        name: torch.zeros_like(value) if isinstance(value, torch.Tensor) else None for name, value in state().items()
    }


def seeds() -> Iterable[bytes]:
    for chain in _CHAINS:
        with tempfile.TemporaryDirectory() as folder:
            writer = streamxf.FileSystemWriter(folder, _extensions=chain, sync_files=False)
            dcp.save(state(), storage_writer=writer, no_dist=True)
            yield _pack((Path(folder) / ".metadata").read_bytes(), next(Path(folder).glob("*.distcp")).read_bytes())


def _pack(metadata: bytes, content: bytes) -> bytes:
    return struct.pack("<I", len(metadata)) + metadata + content


def mutate(data: bytes, choose: random.Random, havoc: Havoc) -> bytes:
    """Change the metadata, or a container whose new place the metadata then gives."""
    size = int.from_bytes(data[:4], "little")
    metadata, content = data[4 : 4 + size], data[4 + size :]
    starts = [found.start() for found in re.finditer(re.escape(MAGIC), content)]
    if not starts or choose.random() < 0.35:
        return _pack(metadata_files.mutate(metadata, choose, havoc), content)
    at = choose.randrange(len(starts))
    start, end = starts[at], [*starts[1:], len(content)][at]
    prefix = _prefix(metadata)
    changed = containers.mutate(prefix + content[start:end], choose, havoc).removeprefix(prefix)
    moved = _moved(metadata, start, len(changed) - (end - start))
    return _pack(moved, content[:start] + changed + content[end:])


def _prefix(metadata: bytes) -> bytes:
    """What would stand before the containers in a plain file."""
    found = re.search(rb'"key":"streamxf\.encrypt/1#([^"]*)"', metadata)
    return prefix_of(found[1] if found else b"")


def _moved(metadata: bytes, start: int, more: int) -> bytes:
    """The metadata once the item at `start` has `more` bytes, with a tag that is right again."""
    try:
        content = metadata_file.load(metadata, KeyRing.of(KEY))
        manifest = metadata_file.manifest_of(content)
        if manifest is None:
            return metadata
        for index, place in list(content.storage_data.items()):
            if place.offset >= start:
                longer = more if place.offset == start else 0
                offset = place.offset if longer or not more else place.offset + more
                content.storage_data[index] = replace(place, offset=offset, length=place.length + longer)
        files = {path: replace(facts, size=facts.size + more) for path, facts in manifest.files.items()}
        vars(content).pop(metadata_file.MANIFEST_ATTRIBUTE)
        return metadata_files.tagged(pickle.dumps(content), replace(manifest, files=files).pack())
    except (StreamxfError, OverflowError):
        return metadata


TARGET = Target(run, seeds, mutate, max_len=16_384)
