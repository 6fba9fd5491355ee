"""`salvage`: from a damaged checkpoint every item that verifies, and a list of those that do not."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch.distributed.checkpoint._extension import ExtensionRegistry

from streamxf.checkpoint.access import Require, SaveIds
from streamxf.checkpoint.storage import Storage
from streamxf.dcp.extensions import access_with
from streamxf.keys import KeyRing, KeysLike, TrustLike
from streamxf.progress import Progress
from streamxf.proportion import MAX_EXPANSION
from streamxf.tools.salvage.catalog import open_catalog
from streamxf.tools.salvage.fill import Filler
from streamxf.tools.salvage.result import Salvaged


def salvage(
    path: str | os.PathLike[str],
    state_dict: dict[str, Any] | None = None,
    *,
    keys: KeysLike = None,
    trust: TrustLike = None,
    allow_unsigned: bool = False,
    require: Require | None = None,
    registry: ExtensionRegistry | None = None,
    weights_only: bool = True,
    safe_globals: Sequence[Any] = (),
    expect_save_id: SaveIds = None,
    partial: bool = False,
    rank: int | None = None,
    merge_ranks: bool = False,
    without_metadata: bool | Collection[str] = False,
    storage_options: Mapping[str, Any] | None = None,
    max_expansion: int = MAX_EXPANSION,
    progress: Progress | None = None,
) -> Salvaged:
    """Load the items of a damaged checkpoint that verify, in one process, and list the others.

    All checks of the reader apply to each item by itself. An item that does not verify is not in the result, and its
    target keeps its values.

    Parameters
    ----------
    path : path or str
        The checkpoint's folder, or its URL.
    state_dict : dict, optional
        Is filled in place, as by ``dcp.load``. Without it everything is loaded into a new one: whole tensors on the
        CPU, and objects.
    keys, trust, allow_unsigned, require, weights_only, safe_globals
        As in `FileSystemReader`.
    registry : ExtensionRegistry, optional
        The reader's ``_extension_registry``.
    expect_save_id : str or several, optional
        The only saves that are acceptable, as ``writer.save_id`` gave them: one, or those of the ranks whose metadata
        is their own.
    partial : bool
        Whether tensors of which only some chunks verified are taken: the rest is zero, or keeps what the state dict
        had. `Salvaged.partial` names them, and `Salvaged.damaged` the boxes that are lost.
    rank : int, optional
        Whose metadata to use, where each rank has its own.
    merge_ranks : bool
        Where each rank has metadata of its own, nothing shows that all belong to one save. True says that you know it,
        and merges them; so does `expect_save_id`.
    without_metadata : bool or collection of str
        Where the metadata cannot be used, look for the items in the data files of streamxf's writers. You then vouch
        that no data file of the save is missing, and that no one else could add others: nothing else can show it.
        For a private key that needs ``allow_unsigned=True``, since the signature was in the metadata.
        Files of several processes are taken together only if what is left of the metadata names them all; if not, name
        the writer ids (the 32 digits in their names) that belong to one save.
    storage_options : mapping, optional
        fsspec's, for a URL.
    max_expansion : int
        How many times what the checkpoint's storage holds may be made of it; 256 MiB may be in any case. More counts as
        damage: a checkpoint that is nearly all zeros may need a larger factor. Tensors of `state_dict`, for which there
        is memory, do not count.
    progress : Progress, optional
        Is told how many stored bytes there are to read, and as they are read, by any thread. Without metadata all files
        are read twice.

    Raises
    ------
    FileNotFoundError
        If there is no checkpoint.
    MetadataError, AuthenticationError, KeyMissingError, WrongKeyError, PolicyError
        If no metadata can be used, and `without_metadata` is not given or does not help either.
    UnknownCodecError, CodecNotAllowedError, DuplicateCodecError
        If a codec is not installed, and nothing can be loaded without it.
    ParameterError
        If an argument is not what it should be.
    """
    ring = KeyRing.of(keys, trust, allow_unsigned)
    with open_catalog(
        Storage.of(path, storage_options),
        access_with(
            registry,
            ring,
            require=require,
            expect_save_id=expect_save_id,
            weights_only=weights_only,
            safe_globals=safe_globals,
            max_expansion=max_expansion,
        ),
        rank=rank,
        merge_ranks=merge_ranks,
        without_metadata=without_metadata,
        progress=progress,
    ) as catalog:
        filler = Filler(catalog, partial, progress)
        return filler.whole() if state_dict is None else filler.into(state_dict)
