"""`load_intact` and `salvage`: from a damaged checkpoint every item that verifies, and a list of those that do not."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Unpack

from streamxf.buffers import flat_view
from streamxf.codecs.encrypt import Encrypt
from streamxf.errors import MetadataError
from streamxf.notes import known_run
from streamxf.places import Location, open_storage
from streamxf.reading import Access, AccessOptions, ChainsLike, ItemPart, KeysLike, Progress, SignerLike
from streamxf.tools.convert.conversion import FILE_SIZE, Conversion, Converted, convert, refuse_same
from streamxf.tools.salvage.damaged import DamagedCheckpoint, open_damaged
from streamxf.tools.salvage.fill import Filler, Salvaged
from streamxf.writing import Content, MemorySource, RunFacts, Save


def load_intact(
    path: Location,
    state_dict: dict[str, Any] | None = None,
    *,
    weights_only: bool = True,
    safe_globals: Sequence[Any] = (),
    partial: bool = False,
    rank: int | None = None,
    merge_ranks: bool = False,
    without_metadata: bool | Collection[str] = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    **options: Unpack[AccessOptions],
) -> Salvaged:
    """Load the items of a damaged checkpoint that verify, in one process, and list the others.

    Each item is checked as by a reader. One that does not verify is not in the result, and its target keeps its values.

    Parameters
    ----------
    path : path, str or Storage
        The checkpoint's folder, or its URL.
    state_dict : dict, optional
        Filled in place, as by ``dcp.load``. Without it all is loaded into a new one: whole tensors on the CPU, objects.
    keys, trust, allow_unsigned, require, expect_save_id, codecs, weights_only, safe_globals, storage_options
        As in `Checkpoint`.
    partial : bool
        Whether to return tensors of which only some chunks verified: the rest is zero, or keeps the values of the state
        dict. `Salvaged.partial` names them, and `Salvaged.damaged` the lost boxes.
    rank : int, optional
        Whose metadata to use, if each rank has its own.
    merge_ranks : bool
        If each rank has its own metadata, and that does not show that all belong to one save, True says that you know
        they do, and merges them; so does `expect_save_id`.
    without_metadata : bool or collection of str
        If the metadata is unusable, look for the items in the data files of streamxf's writers. You then vouch that no
        data file of the save is missing, and that no one else could add others: nothing else can show it. For a private
        key that needs ``allow_unsigned=True``, since the signature was in the metadata. Files of several processes are
        used together only if the rest of the metadata names them all; if not, pass the writer ids (the 32 digits in
        their names) that belong to one save.
    max_expansion : int
        Limit on what the checkpoint may expand to, as a multiple of its stored size; 256 MiB is always allowed. More
        counts as damage: a checkpoint that is nearly all zeros may need a larger factor. Tensors of `state_dict`, which
        have their memory, do not count.
    progress : Progress, optional
        Receives the stored bytes as they are read, from any thread. Without metadata all files are read twice.

    Raises
    ------
    FileNotFoundError, NoCheckpointError
        If there is no such folder, or no checkpoint.
    MetadataError, AuthenticationError, KeyMissingError, WrongKeyError, PolicyError
        If no metadata is usable, and `without_metadata` is not given or does not help either.
    UnknownCodecError, CodecNotAllowedError, DuplicateCodecError
        If a codec is not installed, and nothing can be loaded without it.
    ParameterError
        If an argument is invalid.
    """
    access = Access.of(**options, weights_only=weights_only, safe_globals=safe_globals)
    storage = open_storage(path, storage_options)
    with open_damaged(storage, access, rank, merge_ranks, without_metadata, progress) as checkpoint:
        filler = Filler(checkpoint, partial, progress)
        return filler.whole() if state_dict is None else filler.into(state_dict)


def salvage(
    source: Location,
    target: Location,
    chain: ChainsLike | None = None,
    *,
    recipients: KeysLike = None,
    signer: SignerLike | None = None,
    partial: bool = False,
    rank: int | None = None,
    merge_ranks: bool = False,
    without_metadata: bool | Collection[str] = False,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    **options: Unpack[AccessOptions],
) -> tuple[Salvaged, Converted | None]:
    """Save the intact items of a damaged checkpoint as a new checkpoint, and list the others.

    The source is read twice: once to find the intact items, and once to copy them. One or two items are in memory at a
    time. Objects are not unpickled, and tensors of subclasses are copied as they are. The new checkpoint has one
    metadata file, and each other tensor in one piece.

    Parameters
    ----------
    source, target : path, str or Storage
        The checkpoint's folder and the new one's, which must have none yet; or URLs, each with options for fsspec.
    chain, recipients, signer
        As in `transcode`.
    progress : Progress, optional
        Receives stored bytes while the source is checked, and bytes of items while these are copied.
    keys, trust, allow_unsigned, require, expect_save_id, codecs, storage_options, partial, rank
        As in `load_intact`; `merge_ranks`, `without_metadata` and `max_expansion` as well.

    Returns a `Salvaged` with an empty state dict, whose `loaded` names the items of the new checkpoint; and the result
    of writing, None if there was nothing to write.

    Raises
    ------
    FileExistsError
        If there is a checkpoint in the target.
    ParameterError, ChainError, KeyMissingError
        If the arguments cannot work together.
    StreamxfError, OSError
        As `load_intact`; or if an item no longer verified when it was copied. Then nothing is published.
    """
    refuse_same(source, target, ": a salvaged checkpoint is written to another folder")
    access = Access.of(**options)
    storage = open_storage(source, storage_options)
    with open_damaged(storage, access, rank, merge_ranks, without_metadata, progress) as checkpoint:
        items = [item for metadata in checkpoint.metadata for item in metadata.each()]
        descriptors = {text for item in items for place in item.places for text in place.descriptors}
        encrypted = any(text.startswith(f"{Encrypt.name}/") for text in descriptors)
        about: Any = {"storage_options": target_options, "cure": "name another target"}
        to = Save.to(target, chain, recipients, signer, was_encrypted=encrypted, **about)
        filler = Filler(checkpoint, partial, progress)
        found = filler.check()
        if not found.loaded:
            return found, None
        conversion = _conversion(storage.label(), checkpoint, found, filler.opaque, partial)
        return found, convert(to, conversion, FILE_SIZE, progress)


def _conversion(
    source: str, checkpoint: DamagedCheckpoint, found: Salvaged, opaque: set[str], partial: bool
) -> Conversion:
    # where items are tells this checkpoint from another one at the same place; a name comes once, however long it is
    sorted_items = (sorted(each.each(), key=lambda item: item.name) for each in checkpoint.metadata)
    places = [(item.name, *(place[:3] for place in item.places)) for items in sorted_items for item in items]
    identity = hashlib.sha256()
    for fact in (source, partial, *found.partial, *found.damaged, *found.unread, *places):
        identity.update(repr(fact).encode("ascii", "backslashreplace"))
    filler, known = Filler(checkpoint, partial), {*found.damaged, *found.unread}
    filler.opaque = opaque

    def read(_: object, wanted: ItemPart) -> Content:
        before = len(filler.damaged)
        data = filler.read(wanted)
        if data is None or not known.issuperset(filler.damaged[before:]):
            text = (
                "the item verified a moment ago, and no longer does: the storage is failing, or another process writes "
                "to it. Copy the files to a sound disk, and salvage the copy"
            )
            raise checkpoint.storage.doubted(MetadataError(text, item=wanted.item.name))
        return Content(MemorySource(flat_view(data if isinstance(data, bytes) else data.data)), wanted.kind)

    items = [checkpoint.copy_of(name, name not in opaque) for name in found.loaded]
    record, loaded = checkpoint.first.nesting, {*found.loaded}
    extra = record.with_order(filter(loaded.__contains__, record.in_saved_order(checkpoint.stored)))
    return Conversion(items, None, identity.hexdigest(), None, read, extra, run=_run_of(checkpoint))


def _run_of(checkpoint: DamagedCheckpoint) -> RunFacts | None:
    metadata = next((each for each in checkpoint.metadata if each.index is not None and each.index.run), None)
    try:
        return known_run(checkpoint.storage, metadata, checkpoint.access)[0]
    except (OSError, MetadataError):  # items are worth more than metrics
        return metadata.index.run if metadata is not None and metadata.index is not None else None
