"""`salvage_to`: from a damaged checkpoint a new one, of everything in it that verifies."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from streamxf.chain import ChainLike
from streamxf.checkpoint.access import Access, Require, SaveIds
from streamxf.checkpoint.opening import Wanted
from streamxf.checkpoint.storage import Storage
from streamxf.descriptor import ENCRYPT
from streamxf.errors import MetadataError, ParameterError
from streamxf.format.items import Chunk, Item, Place, TensorItem
from streamxf.keys import KeysLike, SignerLike, TrustLike
from streamxf.progress import Progress
from streamxf.proportion import MAX_EXPANSION
from streamxf.tools.convert.conversion import FILE_SIZE, Conversion, Destination, is_same
from streamxf.tools.convert.result import Converted
from streamxf.tools.convert.session import convert
from streamxf.tools.salvage.catalog import Catalog, open_catalog
from streamxf.tools.salvage.fill import Filler
from streamxf.tools.salvage.result import Salvaged


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
    max_expansion: int = MAX_EXPANSION,
    progress: Progress | None = None,
) -> tuple[Salvaged, Converted | None]:
    """Save what verifies of a checkpoint that may be damaged as a new checkpoint, and list what does not.

    The source is read twice: once to find out what is intact, and once to copy it. One or two items are in memory at a
    time. Objects are not unpickled. The new checkpoint has one metadata file, and each tensor in one piece.

    Parameters
    ----------
    source : path or str
        The checkpoint's folder, or its URL.
    target : path or str
        Likewise; without a checkpoint yet.
    chain, encrypt_to, signer
        As in `transcode`.
    keys, trust, allow_unsigned, require, expect_save_id, partial, rank, merge_ranks, without_metadata, max_expansion
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
        As `salvage`; or if an item no longer verified when it was copied. Nothing was published then.
    """
    if is_same(source, target):
        raise ParameterError("source and target are the same: a salvaged checkpoint is written to another folder")
    with open_catalog(
        Storage.of(source, storage_options),
        Access.of(
            keys,
            trust=trust,
            allow_unsigned=allow_unsigned,
            require=require,
            expect_save_id=expect_save_id,
            max_expansion=max_expansion,
        ),
        rank=rank,
        merge_ranks=merge_ranks,
        without_metadata=without_metadata,
        progress=progress,
    ) as catalog:
        to = Destination.of(
            target,
            chain,
            encrypt_to=encrypt_to,
            signer=signer,
            was_encrypted=_is_encrypted(catalog),
            storage_options=target_options,
            cure="name another target",
        )
        found = Filler(catalog, partial, progress).check()
        if not found.loaded:
            return found, None
        return found, convert(to, _conversion(os.fspath(source), catalog, found, partial), FILE_SIZE, progress)


def _conversion(source: str, catalog: Catalog, found: Salvaged, partial: bool) -> Conversion:
    identity = hashlib.sha256()
    for fact in (source, partial, *found.partial, *_places(catalog)):
        identity.update(repr(fact).encode("ascii", "backslashreplace"))
    filler = Filler(catalog, partial)

    def read(wanted: Wanted) -> torch.Tensor | io.BytesIO:
        data = filler.read(wanted.item.name)
        if data is None:
            raise MetadataError(
                "the item verified a moment ago, and no longer does: the storage is failing, or another process writes "
                "to it. Copy the files to a sound disk, and salvage the copy",
                item=wanted.item.name,
            )
        return io.BytesIO(data) if isinstance(data, bytes) else data

    return Conversion([_in_one_piece(catalog, name) for name in found.loaded], None, identity.hexdigest(), read)


def _in_one_piece(catalog: Catalog, name: str) -> Item:
    item = replace(catalog.items[name], path=catalog.paths.get(name))
    if not isinstance(item, TensorItem):
        return item
    first = item.places[0] if item.chunks else Place("", 0, 0, ())
    return replace(item, chunks=(Chunk((0,) * len(item.shape), item.shape, first, False),))


def _places(catalog: Catalog) -> Iterator[tuple[object, ...]]:
    """Where the items are, which tells this checkpoint from another one at the same place. A name may be as long as
    everything else, and many shards have it, so it comes once.
    """
    for source in catalog.sources:
        for name, item in sorted(source.items.items()):
            yield (name, *(place[:3] for place in item.places))


def _is_encrypted(catalog: Catalog) -> bool:
    descriptors = {
        text
        for source in catalog.sources
        for item in source.items.values()
        for place in item.places
        for text in place.descriptors
    }
    return any(text.partition("/")[0] == ENCRYPT for text in descriptors)
