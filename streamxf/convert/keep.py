"""What `pack` keeps of files besides their tensors and objects."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch

from streamxf.convert.identity import place_of, version_of
from streamxf.convert.origin import Origin, Pickled, View
from streamxf.errors import ContainerError, located
from streamxf.formats.contents import Contents, Format
from streamxf.formats.location import Location
from streamxf.formats.raw import RawSource
from streamxf.formats.safetensors import LENGTH_BYTES, MAX_HEADER
from streamxf.formats.torchfile import TorchFile

MAX_KEPT = 64 * 2**20
"""Bytes of all other files of a folder together."""


def origin_of(location: Location, source: RawSource) -> Origin:
    """Read what is to be kept of what `source` reads at a location."""
    contents = source.contents
    alone = contents.format is not Format.HUGGING_FACE
    pickled = {name: _pickled_of(shard) for name, shard in source.shards.items() if isinstance(shard, TorchFile)}
    heads = {name: _head(location, "" if alone else name) for name in source.shards if name not in pickled}
    files: dict[str, bytes] = {}
    left_out: dict[str, int] = {}
    room = MAX_KEPT
    for name, size in sorted(contents.files.items(), key=lambda each: (each[1], each[0])):
        if name in source.shards:
            continue
        if size > room:
            left_out[name] = size
            continue
        with location.open(name) as file:
            files[name] = file.read()
        room -= size
    return Origin(contents.format, location.name, heads, pickled, files, left_out)


def identity_of(location: Location, contents: Contents, origin: Origin) -> str:
    """A digest of what tells these files from others: names, sizes, times and headers."""
    alone = contents.format is not Format.HUGGING_FACE
    facts: list[object] = [place_of(location)]
    facts += [[name, version_of(location, "" if alone else name)] for name in sorted(contents.files)]
    facts += [[name, hashlib.sha256(head).hexdigest()] for name, head in sorted(origin.heads.items())]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _head(location: Location, name: str) -> bytes:
    with located(file=location.full(name)), location.open(name) as file:
        length = file.read(LENGTH_BYTES)
        size = int.from_bytes(length, "little")
        head = length + (file.read(size) if size <= MAX_HEADER else b"")
        if len(head) != LENGTH_BYTES + size:
            raise ContainerError("the header of the file has changed since it was read first: is somebody writing it?")
    return head


def _pickled_of(file: TorchFile) -> Pickled:
    storages: dict[int, tuple[int, int]] = {}  # of each one its number and its bytes
    views: dict[str, View] = {}

    def skeleton(value: Any, path: tuple[str | int, ...]) -> Any:
        if isinstance(value, Mapping):
            kind = OrderedDict if isinstance(value, OrderedDict) else dict
            return kind((key, skeleton(inner, (*path, str(key)))) for key, inner in value.items())
        name = ".".join(map(str, path))
        if isinstance(value, list) and file.paths.get(name) != path:
            return [skeleton(inner, (*path, number)) for number, inner in enumerate(value)]
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            number, _ = storages.setdefault(storage._cdata, (len(storages), storage.nbytes()))
            parameter = isinstance(value, torch.nn.Parameter)
            views[name] = View(number, int(value.storage_offset()), value.stride(), value.requires_grad, parameter)
        return name

    root = skeleton(file.root, ())
    return Pickled(root, views, tuple(size for _, size in storages.values()))
