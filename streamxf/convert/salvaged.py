"""`salvage_to`: from a damaged checkpoint a new one, of everything in it that verifies."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from streamxf.chain import ChainLike
from streamxf.container.limits import DEFAULT_BLOCK_LOG2
from streamxf.convert.encryption import chain_for
from streamxf.convert.job import FILE_SIZE, Item, Job, Resolve
from streamxf.convert.places import is_same
from streamxf.convert.result import Converted
from streamxf.convert.session import check_target, write_job, writer_to
from streamxf.dcp.load.items import Require
from streamxf.dcp.metadata.save_ids import SaveIds
from streamxf.dcp.salvage.catalog import Catalog
from streamxf.dcp.salvage.fill import Filler
from streamxf.dcp.salvage.result import Salvaged
from streamxf.dcp.salvage.salvage import open_catalog
from streamxf.descriptor import ENCRYPT
from streamxf.errors import MetadataError, ParameterError
from streamxf.keys import KeyRing, KeysLike, SignerLike, TrustLike
from streamxf.objects.policy import AsStored
from streamxf.progress import Progress


def salvage_to(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    chain: ChainLike | None = None,
    *,
    encrypt_to: KeysLike = None,
    signer: SignerLike | None = None,
    keys: KeysLike = None,
    trust: TrustLike = None,
    allow_unsigned: bool = False,
    require: Require | None = None,
    expect_save_id: SaveIds = None,
    partial: bool = False,
    rank: int | None = None,
    merge_ranks: bool = False,
    without_metadata: bool | Collection[str] = False,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> tuple[Salvaged, Converted | None]:
    """Save what verifies of a checkpoint that may be damaged as a new checkpoint, and say what does not.

    The source is read twice: first to see what is whole, then to copy that. One item at a time is in memory, or two.
    Objects are not unpickled. The new checkpoint has one metadata file, and each tensor in one piece.

    Parameters
    ----------
    source : path or str
        The checkpoint's folder, or its URL.
    target : path or str
        Likewise; without a checkpoint yet.
    chain, encrypt_to, signer
        As in `transcode`.
    keys, trust, allow_unsigned, require, expect_save_id, partial, rank, merge_ranks, without_metadata
        As in `salvage`.
    storage_options, target_options : mapping, optional
        fsspec's, for URLs.
    progress : Progress, optional
        Is told of stored bytes while the source is checked, and of those of items while these are copied.

    Returns
    -------
    salvaged : Salvaged
        Its state dict is empty; `loaded` names what is in the new checkpoint.
    converted : Converted or None
        What was written; None if there was nothing to write.

    Raises
    ------
    FileExistsError
        If there is a checkpoint in the target.
    ParameterError, ChainError, KeyMissingError
        If the arguments cannot work together.
    StreamxfError, OSError
        As `salvage`; or if something verified no longer when it was copied. Nothing was published then.
    """
    if is_same(source, target):
        raise ParameterError("what is salvaged goes to another folder than the damaged checkpoint's")
    with open_catalog(
        source,
        keys=KeyRing.of(keys, trust, allow_unsigned),
        require=require,
        objects=AsStored(),
        expect_save_id=expect_save_id,
        rank=rank,
        merge_ranks=merge_ranks,
        without_metadata=without_metadata,
        storage_options=storage_options,
        progress=progress,
    ) as catalog:
        made = chain_for(chain, encrypt_to, signer, was_encrypted=_is_encrypted(catalog))
        writer = writer_to(target, made, 1 << DEFAULT_BLOCK_LOG2, target_options, overwrite=False)
        check_target(writer, overwrite=None)
        found = Filler(catalog, partial, progress).check()
        if not found.loaded:
            return found, None
        return found, write_job(writer, _job(os.fspath(source), catalog, found, partial), FILE_SIZE, progress)


def _job(source: str, catalog: Catalog, found: Salvaged, partial: bool) -> Job:
    described = {name: _in_one_piece(catalog.items[name]) for name in found.loaded}
    paths = {name: catalog.paths.get(name) or (name,) for name in found.loaded}
    items = sorted((_item(name, described[name], catalog) for name in found.loaded), key=lambda item: item.file)
    facts = f"{source} {partial} {found.partial} {sorted(_places(catalog))}"
    identity = hashlib.sha256(facts.encode("utf-8", "surrogatepass")).hexdigest()  # names need not be texts
    opened = _Reading(catalog, partial).opened
    return Job(Metadata(described, paths), items, None, identity, opened)


def _in_one_piece(item: Any) -> Any:
    if not isinstance(item, TensorStorageMetadata):
        return BytesStorageMetadata()
    whole = ChunkStorageMetadata(torch.Size([0] * len(item.size)), item.size)
    return TensorStorageMetadata(item.properties, item.size, [whole])


def _item(name: str, item: Any, catalog: Catalog) -> Item:
    was = catalog.items[name]
    stored = MetadataIndex(name, was.chunks[0].offsets if isinstance(was, TensorStorageMetadata) else None)
    place = next(session.place_of(stored) for session in catalog.readers_of(stored))
    file = place.relative_path if place is not None else ""
    if not isinstance(item, TensorStorageMetadata):
        return Item(WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO), place.length if place else 0, file)
    chunk = item.chunks[0]
    data = TensorWriteData(chunk, item.properties, item.size)
    return Item.of_tensor(WriteItem(MetadataIndex(name, chunk.offsets), WriteItemType.TENSOR, tensor_data=data), file)


def _places(catalog: Catalog) -> Iterator[str]:
    """What tells this checkpoint from another one at the same place."""
    for session in catalog.sessions:
        for index, place in session.storage_data.items():
            yield f"{index.fqn} {index.offset} {place.relative_path} {place.offset} {place.length}"


class _Reading:
    """Reads items of a catalog once more, one at a time, though several threads ask for them.

    Parameters
    ----------
    catalog : Catalog
    partial : bool
    """

    def __init__(self, catalog: Catalog, partial: bool) -> None:
        self._filler = Filler(catalog, partial)
        self._lock = threading.Lock()

    @contextmanager
    def opened(self, items: Sequence[Item]) -> Iterator[Resolve]:
        yield self._read

    def _read(self, write: WriteItem) -> torch.Tensor | io.BytesIO:
        with self._lock:
            found = self._filler.read(write.index.fqn)
        if found is None:
            raise MetadataError(
                "it verified a moment ago, and does not any more: the storage is failing, or somebody writes to it. "
                "Copy the files to a sound disk, and salvage the copy",
                item=write.index.fqn,
            )
        return io.BytesIO(found) if isinstance(found, bytes) else found


def _is_encrypted(catalog: Catalog) -> bool:
    return any(
        text.partition("/")[0] == ENCRYPT
        for session in catalog.sessions
        for place in session.storage_data.values()
        for text in place.transform_descriptors or ()
    )
