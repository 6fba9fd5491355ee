"""From what all ranks wrote to a metadata file (index, keys, vouchers, a pickle for torch's readers), and that one
published.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from streamxf.checkpoint.publish import check_free, check_present, files_of, find_leftovers
from streamxf.collector import collector_paused
from streamxf.dcp.extensions import Extensions
from streamxf.dcp.metadata import extra_of, items_of, of_index, stored_properties
from streamxf.dcp.save.datafile import planned_bytes
from streamxf.dcp.save.session import RECORD_ATTRIBUTE, FileRecord
from streamxf.errors import AbortedError, ChainError, MetadataError, StreamxfError, UnsupportedError
from streamxf.format import limits
from streamxf.format.index import File, Index, Sections, Writer, pack, pack_keys, steps_of
from streamxf.format.items import Item, TensorItem, check_apart, check_tiles
from streamxf.format.names import OWN_FILE, metadata_name
from streamxf.format.run import RunFacts
from streamxf.keys.envelope import Envelope
from streamxf.proportion import Steps
from streamxf.storage.multipart import ReplacedMeanwhile
from streamxf.storage.storage import Storage
from streamxf.version import __version__

_ATTEMPTS = 10  # at publishing while others do, where no lock keeps them apart
_log = logging.getLogger(__name__)


# Bytes that the index has of each, without names, numbers and lists; and of everything else, its run among it.
_ITEM = len(':{"dtype":"","shape":,"chunks":[],"path":},')
_CHUNK = len('{"file":,"at":,"bytes":,"offset":,"shape":,"framed":true},')
_HASH = len(',"sha256":""') + 2 * limits.DIGEST_BYTES
_FILE = _WRITER = 160
_REST = limits.MAX_RUN + 2**16


def check_index(plans: Sequence[SavePlan], files: int | None, hashed: bool) -> None:
    """Refuse to begin a save whose index may be larger than readers take: raises MetadataError.

    - `files`: the most that each rank writes; None for one for each item.
    - `hashed`: whether there is a SHA-256 for each item.
    """
    most = index_bound(plans, files, hashed)
    if most > limits.MAX_INDEX:
        raise MetadataError(
            f"the index of this save may take {most:,} bytes, and {limits.MAX_INDEX:,} are allowed; nothing was "
            "written. Save fewer items or shards, or shorter names"
        )


def index_bound(plans: Sequence[SavePlan], files: int | None, hashed: bool) -> int:
    """The most bytes of JSON that the index of a save has, but for what planners put there past their plans."""
    count = [len(plan.items) if files is None else min(files, len(plan.items)) for plan in plans]
    chunk = _CHUNK + len(str(sum(count))) + _HASH * hashed
    size = _REST + _FILE * sum(count) + _WRITER * len(plans)
    paths: dict[str, Any] = {}
    for plan in plans:
        paths |= plan.planner_data if isinstance(plan.planner_data, dict) else {}
    seen: set[str] = set()
    for plan in plans:
        at = len(str(sum(map(_most_stored, plan.items))))
        for item in plan.items:
            name, data = item.index.fqn, item.tensor_data
            size += chunk + at + len(str(_most_stored(item)))
            if data is not None:
                size += len(str([*data.chunk.offsets])) + len(str([*data.chunk.sizes]))
            if name in seen:
                continue
            seen.add(name)
            size += _ITEM + len(json.dumps(name)) + len(json.dumps(paths.get(name), default=str))
            if data is not None:
                size += len(str(data.properties.dtype)) + len(str([*data.size]))
                if properties := stored_properties(data.properties):
                    size += len(',"properties":' + json.dumps(properties))
    with suppress(UnsupportedError):  # the planner may leave it out
        size += len(json.dumps(extra_of(Metadata(dict.fromkeys(seen), paths))))  # type: ignore[arg-type]
    return size


def _most_stored(item: WriteItem) -> int:
    return 2 * planned_bytes(item) + 2**16 if item.tensor_data is not None else limits.MAX_RAW_SIZE


@dataclass(frozen=True)
class Publication:
    """What is about to be published: the index, the same for torch's readers (None if they never see it), the bytes of
    the metadata file, and the records of all data files.
    """

    index: Index
    content: Metadata | None
    data: bytes
    records: tuple[FileRecord, ...]


@collector_paused()
def prepare(
    content: Metadata,
    results: Iterable[WriteResult],
    extensions: Extensions,
    save_id: str,
    rank: int | None,
    checkpoint_id: str | os.PathLike[str],
    run: RunFacts | None = None,
) -> Publication:
    """Put a metadata file together.

    Raises ChainError if the ranks saved with different chains or keys, UnsupportedError if the checkpoint would not be
    whole, or something has no place in the index, and KeyServiceError if a service that vouches for it cannot be asked.
    """
    flat = list(results)
    found = (getattr(result.storage_data, RECORD_ATTRIBUTE, None) for result in flat)
    records = tuple(record for record in found if record is not None)
    items = items_of(content, flat, extensions)
    return assemble(items, extra_of(content), records, extensions, save_id, rank, checkpoint_id, run)


def assemble(
    items: Mapping[str, Item],
    extra: Mapping[str, Any],
    records: tuple[FileRecord, ...],
    extensions: Extensions,
    save_id: str,
    rank: int | None,
    checkpoint_id: str | os.PathLike[str] | None,
    run: RunFacts | None = None,
) -> Publication:
    """The same of items whose places are known, in the files of `records`. Without `checkpoint_id` it is what torch's
    readers never see, which needs no pickle.
    """
    _check_agreement(records)
    encryption = extensions.encryption
    own = encryption.wrapped if encryption is not None else ""
    writers = {record.writer_id: record.wrapped for record in records}
    numbers = {writer_id: number for number, writer_id in enumerate(writers)}
    index = Index(
        save_id,
        rank,
        tuple(extension.get_descriptor() for extension in extensions.foreign),
        tuple(map(str, extensions.chain.descriptors)),
        _dek(own),
        tuple(Writer(writer_id, _dek(wrapped)) for writer_id, wrapped in writers.items()),
        {record.path: File(record.size, numbers[record.writer_id], record.crc) for record in records},
        items,
        tuple(sorted({module for record in records for module in record.modules})),
        {"streamxf": __version__, "torch": torch.__version__},
        extra,
        run,
    )
    packed = index.pack()
    _check_whole(items.values(), rank, steps_of(memoryview(packed)))
    keys = b""
    if encryption is not None:
        digest = Sections(memoryview(packed), memoryview(b"")).digest
        others = [wrapped for wrapped in dict.fromkeys(writers.values()) if wrapped != own]
        keys = pack_keys(own, encryption.vouch(digest), others)
    if checkpoint_id is None:
        return Publication(index, None, pack(b"", packed, keys), records)
    made = of_index(index, writers, checkpoint_id)
    return Publication(index, made, pack(pickle.dumps(made), packed, keys), records)


def warn_unless_in_one_step(storage: Storage, stacklevel: int) -> None:
    """Warn of storage on which a crash while the metadata is replaced may leave no checkpoint at all."""
    if not storage.replaces_in_one_step:
        warnings.warn(
            f"{storage.given} is not known to replace a file in one step: a crash while .metadata is written "
            "may leave neither the old checkpoint nor the new one. Save into a new folder each time, or to a local or "
            "mounted file system, or to an object store",
            stacklevel=stacklevel,
        )


def publish(
    storage: Storage,
    made: Publication,
    *,
    alone: bool,
    overwrite: bool,
    sync: bool,
    keep: bool = False,
    check: Callable[[], None] | None = None,
) -> list[str]:
    """Publish a save, while its folder is locked; returns the files that nothing needs afterwards. Raises as
    `check_free`, `check_present` and `Storage.put`.

    - `alone`: whether the lock keeps all others from publishing meanwhile.
    - `overwrite`: whether a checkpoint may be replaced.
    - `sync`: whether the disk must have it when this returns.
    - `keep`: whether the data files stay if it cannot be published: others may go on from them, and publish them as
      theirs.
    - `check`: called last before the step that publishes, and may raise.
    """
    index, name = made.index, metadata_name(made.index.rank)
    own = storage.mount()
    elsewhere = {record.path for record in made.records if own and record.place and record.place.is_other_than(own)}
    begun = False
    try:
        for _ in range(_ATTEMPTS):
            stamp = storage.stamp(name)
            found = storage.names(index.files)
            check_free(storage.given, found, name, overwrite)
            check_present(storage, found, index.files, elsewhere)
            old = find_leftovers(storage, found, {name, *index.files}, index.rank, alone)
            if check is not None:
                check()
            begun = True
            with suppress(ReplacedMeanwhile):
                storage.put(name, made.data, sync=sync, over=stamp)
                return old
            begun = False
        raise AbortedError(
            f"{_ATTEMPTS} times another process published to {storage.given} just when this save was about to be; it "
            "was not published. Save into a folder of its own"
        )
    except BaseException:
        if not keep and (not begun or _surely_unpublished(storage, name, made.data)):
            storage.remove(index.files)
        raise


def remove_unpublished(storage: Storage, own: str, others: Collection[str], rank: int | None, process: int) -> None:
    """Remove the data files of a save that will never be published, by the writer ids in their names.

    Planners may keep the notes that told the `others`, and bring those of a save that was published: what metadata
    names stays, and what metadata that cannot be read may name.
    """
    if os.getpid() != process:  # a child that was forked meanwhile
        return
    try:
        name, found = metadata_name(rank), storage.names(())
        named = files_of(storage, name) if name in found else ()
        writers = {own, *others} if named or name not in found else {own}
        made = [file for file in found if (match := OWN_FILE.fullmatch(file)) and match["writer"] in writers]
        failed = storage.remove(file for file in made if file not in named)
    except Exception as error:  # nobody could be told: what comes next has nothing to do with this save
        failed = {"data files": error}
    for file, reason in failed.items():
        _log.warning("%s of a failed save to %s could not be removed: %s", file, storage.given, reason)


def _surely_unpublished(storage: Storage, name: str, data: bytes) -> bool:
    """Whether nothing names this save's files, though publishing it failed.

    The error may have come after the step that publishes, or hide that a server did it, or will do it yet.
    """
    try:
        mount = storage.mount()
        if mount is None or not mount.of_one_machine:  # which may remember what was there before
            return False
        with storage.open(name) as file:
            return file.read() != data
    except FileNotFoundError:
        return True
    except (OSError, StreamxfError):
        return False


def _dek(wrapped: str) -> bytes | None:
    return Envelope.parse(wrapped).dek_id if wrapped else None


def _check_whole(items: Iterable[Item], rank: int | None, steps: Steps) -> None:
    """Refuse to publish tensors of which parts are missing: who loads them would keep old values there, unnoticed."""
    check = check_tiles if rank is None else check_apart
    for item in items:
        if isinstance(item, TensorItem):
            try:
                check(item.shape, [(chunk.offset, chunk.shape) for chunk in item.chunks], steps)
            except MetadataError as error:
                raise UnsupportedError(
                    f"the checkpoint would be incomplete, so it was not published: {error.message}. Save shards "
                    "together with all other ranks (no_dist=False), or each rank for itself with use_collectives=False",
                    item=item.name,
                ) from error


def _check_agreement(records: Iterable[FileRecord]) -> None:
    """Refuse to publish what no single reader could load: every rank drew a key of its own, say."""
    chains = {record.chain for record in records}
    if len(chains) > 1:
        raise ChainError(
            f"the ranks saved with different chains or keys, so nothing was published: {'; '.join(sorted(chains))}. "
            "Give every rank the same extensions and the same key"
        )
