"""`Conversion`: items to write under one metadata file, divided among data files; `Destination`: where they go."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from streamxf.chain import Chain, ChainLike
from streamxf.checkpoint.opening import Wanted
from streamxf.codec import Codec
from streamxf.codecs.encrypt import Encrypt
from streamxf.dcp.extensions import Extensions
from streamxf.dcp.metadata import torch_properties
from streamxf.dcp.save.datafile import planned_bytes
from streamxf.dcp.save.publishing import warn_unless_in_one_step
from streamxf.dcp.save.sources import Streamed
from streamxf.dcp.writer import DEFAULT_CHAIN
from streamxf.errors import ContainerError, KeyMissingError, ParameterError, redacted
from streamxf.format.items import MAX_RANK_CHUNKS, Item, TensorItem
from streamxf.format.limits import DEFAULT_BLOCK_LOG2
from streamxf.format.names import is_metadata_name
from streamxf.format.run import RunFacts
from streamxf.keys import KeysLike, SignerLike
from streamxf.storage.opening import Location, are_same, open_storage
from streamxf.storage.storage import Storage
from streamxf.stream.encoder import block_log2_of
from streamxf.version import __version__

FILE_SIZE = 256 * 2**20
"""Bytes of items, before the chain, in one data file: what is lost of the work when the process is killed."""

MAX_FILES = 128
_ENCRYPT = "encrypt"

Data = Streamed | torch.Tensor | io.BytesIO
Part = tuple[Wanted, WriteItem]
"""An object, or one shard of a tensor: as it is in the source, and as a planner describes it."""


@dataclass(frozen=True)
class Destination:
    """A folder, and how a checkpoint is written to it.

    - `overwrite`: whether a checkpoint that is there may be replaced, even one that is published later.
    """

    storage: Storage
    extensions: Extensions
    block_log2: int
    overwrite: bool

    @classmethod
    def of(
        cls,
        path: Location,
        chain: ChainLike | None,
        *,
        encrypt_to: KeysLike = None,
        signer: SignerLike | None = None,
        was_encrypted: bool = False,
        overwrite: bool = False,
        block_size: int = 1 << DEFAULT_BLOCK_LOG2,
        storage_options: Mapping[str, Any] | None = None,
        cure: str = "name another target, or replace it (overwrite)",
    ) -> Self:
        """Make one of the arguments of public functions; raises what is wrong with them, and FileExistsError, with the
        advice `cure`, if there is a checkpoint that may not be replaced.
        """
        made = _chain_of(chain, encrypt_to, signer, was_encrypted)
        storage = open_storage(path, storage_options)
        warn_unless_in_one_step(storage, stacklevel=4)
        to = cls(storage, Extensions.of(made), block_log2_of(block_size), overwrite)
        if storage.near and os.path.lexists(storage.path) and not os.path.isdir(storage.path):
            text = "this is a file, and a checkpoint is a folder: name another target"
            raise NotADirectoryError(errno.ENOTDIR, text, storage.path)
        if not overwrite and any(map(is_metadata_name, storage.names())):
            raise FileExistsError(errno.EEXIST, f"there is a checkpoint already; {cure}", redacted(storage.given))
        return to


def _chain_of(chain: ChainLike | None, encrypt_to: KeysLike, signer: SignerLike | None, was_encrypted: bool) -> Chain:
    """The chain to write with; by default that of writers, and `Encrypt` if there are keys for it. The keys belong to
    the word ``encrypt`` of a chain in text form.
    """
    if encrypt_to is None and signer is not None:
        raise ParameterError("signer signs what is encrypted; it needs encrypt_to, the keys of those who may read")
    if chain is None:
        if encrypt_to is not None:
            return Chain([*DEFAULT_CHAIN, Encrypt(encrypt_to, signer=signer)])
        if was_encrypted:
            raise ParameterError(
                "the source is encrypted, and the default chain does not encrypt: give the keys of those who may read "
                "the copy (encrypt_to), or a chain without encrypt to write it unencrypted"
            )
        return Chain(DEFAULT_CHAIN)
    if not isinstance(chain, str):
        if encrypt_to is not None:
            raise ParameterError("encrypt_to= goes with a chain in text form; put Encrypt(...) into this one")
        return Chain.of(chain)
    words = [word.strip() for word in chain.split("+")] if chain.strip() else []
    if _ENCRYPT in words and encrypt_to is None:
        raise KeyMissingError(
            "the chain encrypts, and no key to encrypt to was given: give the keys of those who may read (encrypt_to)"
        )
    if encrypt_to is not None and _ENCRYPT not in words:
        raise ParameterError("keys to encrypt to were given, and the chain does not encrypt: add '+encrypt' to it")
    codecs: list[Codec] = []
    for word in words:
        codecs += [Encrypt(encrypt_to, signer=signer)] if word == _ENCRYPT else list(Chain.parse(word))
    return Chain(codecs)


@dataclass(frozen=True)
class Conversion:
    """Items, and where their contents come from.

    - `items`: those of the new checkpoint, with their places in the source.
    - `rank`: of the metadata that will name them; None for that of all ranks.
    - `identity`: tells contents of the source apart without reading them. What an earlier call finished is reused if it
      had the same.
    - `read`: returns the data of an object or a shard; called in the order of their places within each data file.
    - `extra`, `run`: as in the index.
    - `check`: called just before publishing; raises to prevent it.
    """

    items: Sequence[Item]
    rank: int | None
    identity: str
    read: Callable[[Wanted], Data]
    extra: Mapping[str, Any] = field(default_factory=dict)
    check: Callable[[], None] | None = None
    run: RunFacts | None = None

    @cached_property
    def _parts(self) -> list[Part]:
        """Everything, in the order of the places in the source."""
        ordered = sorted(wanted_of(self.items), key=lambda each: each.place[:2])
        return [(each, _write_item(each)) for each in ordered]

    def files(self, size: int) -> list[list[Part]]:
        """The parts of each data file: about `size` bytes, or more if there would be too many files. The same source
        always gives the same parts.
        """
        sizes = [planned_bytes(write) or wanted.place.size for wanted, write in self._parts]
        size = max(size, sum(sizes) // MAX_FILES)
        files: list[list[Part]] = []
        filled, shards = 0, Counter[str]()
        for part, length in zip(self._parts, sizes, strict=True):
            name = part[0].item.name
            if not files or (filled and filled + length > size) or shards[name] == MAX_RANK_CHUNKS:
                files.append([])
                filled, shards = 0, Counter()
            files[-1].append(part)
            filled += length
            shards[name] += 1
        return files

    def id(self, to: Destination, file_size: int) -> str:
        """32 hexadecimal digits, by which a later call recognizes what this conversion finished."""
        facts = [__version__, self.identity, self.rank, *to.extensions.recorded, to.extensions.summary()]
        return hashlib.sha256(json.dumps([*facts, to.block_log2, file_size]).encode()).hexdigest()[:32]


def wanted_of(items: Iterable[Item]) -> list[Wanted]:
    """All objects and shards."""
    return [
        Wanted(item, chunk) for item in items for chunk in (item.chunks if isinstance(item, TensorItem) else (None,))
    ]


def _write_item(wanted: Wanted) -> WriteItem:
    item, chunk = wanted.item, wanted.chunk
    if chunk is None or not isinstance(item, TensorItem):
        return WriteItem(MetadataIndex(item.name), WriteItemType.BYTE_IO)
    size = torch.Size
    shard = ChunkStorageMetadata(size(chunk.offset), size(chunk.shape))
    data = TensorWriteData(shard, torch_properties(item), size(item.shape))
    return WriteItem(MetadataIndex(item.name, shard.offsets), WriteItemType.SHARD, tensor_data=data)


def refuse_same(source: Location, target: Location, cure: str = "; in_place replaces the source") -> None:
    """Raise ParameterError, with the advice `cure`, if two paths or URLs are known to lead to the same place."""
    if are_same(source, target):
        raise ParameterError(f"source and target are the same{cure}")


def check_same(source: Storage, before: object, now: object) -> None:
    """Raise ContainerError if the source was changed: the copy may be of both versions, in part."""
    if now != before:
        raise ContainerError(
            "the source was changed while it was read, so the copy was not published; call again when no other process "
            "writes to it",
            file=source.given,
        )
