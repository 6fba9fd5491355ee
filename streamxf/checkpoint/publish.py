"""From a save's items and files to a published checkpoint: whole, one process at a time, old files removed.

*Pins*: an increment whose files cannot be linked into its folder names those in its base's, and a pin keeps them. It is
an empty file in the base's folder, whose name says which save needs something there, and its folder. Who saves puts it,
and then looks at the base once more; who removes looks at pins last, so that one of the two sees the other. It counts
as long as that save is in that folder, and for a day, since that may be under way.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any, Self

from streamxf.buffers import collector_paused
from streamxf.checkpoint.datafile import FileRecord
from streamxf.checkpoint.pickled import pickled
from streamxf.checkpoint.saving import Extensions, Save
from streamxf.errors import (
    AbortedError,
    ChainError,
    ContainerError,
    ParameterError,
    ReplacedMeanwhile,
    StreamxfError,
    UnsupportedError,
)
from streamxf.format.digests import Digests
from streamxf.format.index import File, Index
from streamxf.format.items import Chunk, Item, ObjectItem
from streamxf.format.limits import DIGEST_BYTES, FORMAT, NO_PICKLE, WRAPPED_KEY_BYTES
from streamxf.format.names import DRAFT, GLOBAL, OWN_FILE, PIN, made_by_saves, metadata_name, pin_name, rank_of
from streamxf.format.run import RunFacts
from streamxf.format.sections import INCREMENTAL, Sections, pack, slices
from streamxf.format.table import ItemTable
from streamxf.format.tiling import NotTiled
from streamxf.keys.envelope import DataKey
from streamxf.storage.lock import locked
from streamxf.storage.storage import BESIDE, Storage
from streamxf.version import __version__

_log = logging.getLogger(__name__)

_ATTEMPTS = 10  # at publishing while others do, where no lock keeps them apart


def placed(items: Iterable[Item], files: Iterable[Iterable[tuple[str, Chunk]]]) -> dict[str, Item]:
    """Items by name, where `files`, what was written to each, have them; of tensors the chunks that are there."""
    stored = {(name, chunk.offset): chunk for written in files for name, chunk in written}
    made: dict[str, Item] = {}
    for item in items:
        if isinstance(item, ObjectItem):
            made[item.name] = replace(item, place=stored[item.name, ()].place)
        else:
            found = (stored.get((item.name, chunk.offset)) for chunk in item.chunks)
            made[item.name] = replace(item, chunks=tuple(chunk for chunk in found if chunk is not None))
    return made


@collector_paused()
def assemble(
    items: Mapping[str, Item],
    records: Sequence[FileRecord],
    extensions: Extensions,
    save_id: str,
    checkpoint_id: str | None,
    rank: int | None = None,
    **about: Any,
) -> tuple[Index, bytes]:
    """The index and the bytes of a metadata file, of items whose places are known, in the files of `records`. Without
    `checkpoint_id`, where the checkpoint is, it has no pickle for torch's own readers. `about` is as in `Index`.

    Raises ChainError if the ranks saved with different chains or keys, UnsupportedError if the checkpoint would not be
    whole, MetadataError if readers would refuse it, KeyServiceError if a service that vouches for it is silent.
    """
    chains = {record.chain for record in records}
    if len(chains) > 1:  # no single reader could load it: every rank drew a key of its own, say
        raise ChainError(
            f"the ranks saved with different chains or keys, so nothing was published: {'; '.join(sorted(chains))}. "
            "Give every rank the same extensions and the same key"
        )
    encryption, bases, digests = extensions.encryption, dict[str, int](), bytearray()
    for record in records:
        bases[record.path] = len(digests) // DIGEST_BYTES
        digests += record.digests
    saves = {record.saved for record in records if record.saved is not None}
    others = tuple(sorted(saved for saved in saves if saved[0] != save_id)) or None
    torch: Any = sys.modules.get("torch")
    index = Index(
        save_id,
        rank,
        tuple(transform.get_descriptor() for transform in extensions.foreign),
        tuple(dict.fromkeys(tuple(map(str, chain.descriptors)) for chain in extensions.chains)),
        _files(records, encryption.data_key if encryption is not None else None),
        items,
        Digests.of(bytes(digests), bases) if extensions.signer is not None else None,
        tuple(sorted({module for record in records for module in record.modules})),
        {"streamxf": __version__, **({"torch": torch.__version__} if torch is not None else {})},
        bases=others,
        **about,
    )
    root, parts = index.pack()
    _check_readable(index, root, parts)
    format_bytes = FORMAT if others is None else INCREMENTAL
    keys = extensions.key_lines(Sections(memoryview(root), memoryview(b""), format_bytes=format_bytes).digest)
    wrapped = {record.writer_id: record.wrapped for record in records}
    head = pickled(index, wrapped, checkpoint_id) if checkpoint_id is not None else NO_PICKLE
    return index, pack(head, parts, root, keys, format_bytes)


def _files(records: Iterable[FileRecord], own: DataKey | None) -> dict[str, File]:
    """The files of a save, by path; `own` is the data key of this process."""
    known = dict[bytes, bytes | None]()
    for record in records:
        if record.writer_id not in known:
            others = own is not None and record.data_key != own.secret
            known[record.writer_id] = own.wrap(DataKey(record.data_key)) if own is not None and others else None
    none = bytes(WRAPPED_KEY_BYTES) if own is not None else None
    return {record.path: File(record.size, record.writer_id, known[record.writer_id] or none) for record in records}


def _check_readable(index: Index, root: bytes, parts: bytes) -> None:
    """Refuse to publish what readers refuse, above all incomplete tensors: a load would leave old values there."""
    try:
        how = {"lazy": True, "increment": index.bases is not None}
        read = Index.parse(memoryview(root), slices(parts), len(parts), **how)
        assert isinstance(read.items, ItemTable)
        read.items.check()
    except NotTiled as error:
        raise UnsupportedError(
            f"the checkpoint would be incomplete, so it was not published: {error.message}. Save shards together with "
            "all other ranks (no_dist=False), or each rank for itself with use_collectives=False",
            item=error.item,
        ) from error


def publish(
    save: Save,
    items: Mapping[str, Item],
    records: Sequence[FileRecord],
    save_id: str,
    *,
    rank: int | None = None,
    extra: Mapping[str, Any] | None = None,
    run: RunFacts | None = None,
    keep: bool = False,
    check: Callable[[], None] | None = None,
) -> Index:
    """Publish a save with the metadata that `assemble` makes, alone in its folder where there are locks, and remove
    what nothing needs any more. Raises as `assemble`, `locked`, `check_free`, `check_present` and `Storage.put`.

    - `keep`: whether the data files stay if it cannot be published: others may go on from them, and publish them.
    - `check`: called last before the step that publishes, and may raise.
    """
    storage, begun = save.storage, False
    with ExitStack() as stack:
        try:
            name = metadata_name(rank)
            about: Any = {"extra": extra or {}, "run": run, "group": save.group, "ranks": save.ranks}
            count = sum(len(getattr(item, "chunks", [item])) for item in items.values())
            # torch's own readers may not find the former, and cannot read the latter
            beside = any(record.path.startswith(BESIDE) for record in records)
            differs = (place.beneath for item in items.values() for place in item.places)
            save.pickled = save.decide_stock(count) and not (beside or any(differs))
            place = storage.label() if save.pickled else None
            index, data = assemble(items, records, save.extensions, save_id, place, rank, **about)
            alone, own = stack.enter_context(locked(storage)), storage.mount()
            elsewhere = {each.path for each in records if own and each.place and each.place.is_other_than(own)}
            for _ in range(_ATTEMPTS):
                stamp = storage.stamp(name)
                found = storage.names(index.files)
                check_free(storage.label(), found, name, save.overwrite)
                if name in found:
                    storage.check_may_replace()
                check_present(storage, found, index.files, elsewhere)
                old = find_leftovers(storage, found, {name, *index.files}, rank, alone)
                if check is not None:
                    check()
                begun = True
                with suppress(ReplacedMeanwhile):
                    storage.put(name, data, sync=save.sync, over=stamp)
                    break
                begun = False
            else:
                raise AbortedError(
                    f"{_ATTEMPTS} times another process published to {storage.label()} just when this save was about "
                    "to be; it was not published. Save into a folder of its own"
                )
        except BaseException as error:
            if not keep and (not begun or _surely_unpublished(storage, name, data)):
                save.discard((record.path for record in records if record.is_of(save_id)), error)
            raise
        try:
            needed = Pins.of(storage).needed(old) if old else ()
            remove_leftovers(storage, [name for name in old if name not in needed], index.keyed)
        except Warning as warning:  # the process's filters make errors of warnings; the save stands all the same
            _log.warning("%s", warning)
    return index


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


def check_free(path: Any, found: Collection[str], name: str, overwrite: bool) -> None:
    """Refuse to publish `name`, a metadata file, beside or over what is in its folder by now. Raises UnsupportedError
    if it is metadata of a single rank, and there is global metadata; AbortedError for one that may not be replaced.
    """
    if name != GLOBAL and GLOBAL in found:
        raise UnsupportedError(
            f"{path} holds a checkpoint with global metadata, which readers prefer; save without collectives into "
            "another folder"
        )
    if name in found and not overwrite:
        raise AbortedError(
            f"{path} holds a checkpoint that another save published meanwhile, and this one may not replace it "
            "(overwrite); it was not published. Save into a folder of its own"
        )


def check_present(
    storage: Storage, found: Mapping[str, int | None], files: Mapping[str, File], elsewhere: Collection[str]
) -> None:
    """Refuse to publish a save whose folder or some of whose files have gone, which raises AbortedError, or whose files
    are not as long as they were written, which raises ContainerError.

    - `found`: what `Storage.names` found in the folder.
    - `elsewhere`: files that other hosts wrote, to folders that surely are their own, and people may copy here later.
    """
    if storage.was_swapped():
        text = "the folder was moved or removed while it was saved to; the save was not published: find out by whom"
        raise AbortedError(text, file=storage.label())
    missing = [path for path in files if path not in found]
    if missing and len(missing) < len(files) and not any(path in found for path in elsewhere):
        missing = [path for path in missing if path not in elsewhere]
    if missing:
        raise AbortedError(
            f"data files of this save are gone ({len(missing)} of {len(files)}, {missing[0]} first): another save to "
            "this folder was published meanwhile, or the folder was cleaned up. This save was not published, and the "
            "folder's checkpoint is unchanged. Save into a folder of its own",
            file=storage.label(missing[0]),
        )
    for path, facts in files.items():
        size = found.get(path, facts.size)
        if size != facts.size and (not storage.abilities.flat or size is not None):
            raise ContainerError(
                f"{facts.size} bytes were written to the file, and now it has {'none' if size is None else size}: the "
                "storage lost some of them, or another program writes to it. The save was not published, and the "
                "folder's checkpoint is unchanged",
                file=storage.label(path),
            )


_SHOWN = 5


def leftovers(files: Iterable[str], named: Collection[str], rank: int | None) -> list[str]:
    """The names among `files` that writers made, and that the save that was just published has no use for.

    - `named`: what the save consists of, its metadata among it.
    - `rank`: for rank-local metadata, whose it is: then only this rank's files count: nothing is known of others'.
    """
    if rank is None:
        found = [name for name in files if name not in named and made_by_saves(name)]
    else:  # every rank looks through the files of all, so what is surely another's goes by at a glance
        prefix = f"__{rank}"
        found = [name for name in files if name.startswith(prefix) and name not in named and rank_of(name) == rank]
    # ranks in their order, so that a save which looks for its own first file sees that they are being removed
    return sorted(found, key=lambda name: (-1 if (number := rank_of(name)) is None else number, name))


def find_leftovers(
    storage: Storage, files: Iterable[str], named: Collection[str], rank: int | None, locked: bool
) -> list[str]:
    """What a save that is about to be published will make superfluous; arguments as for `leftovers`.

    - `locked`: whether no other process can publish to the folder meanwhile. Otherwise files that no metadata names may
      belong to a save that is about to be published, too; then only files that the current metadata names are
      leftovers, which no other save will name, and those older than a day. The rest is for `streamxf.clean`.
    """
    found = leftovers(files, named, rank)
    if locked:
        return found
    replaced = files_of(storage, metadata_name(rank))
    doubtful = [name for name in found if name not in replaced and (OWN_FILE.fullmatch(name) or DRAFT.fullmatch(name))]
    kept = set(doubtful) - storage.older_than(doubtful, storage.DAY)
    return [name for name in found if name not in kept]


def remove_leftovers(storage: Storage, names: Iterable[str], encrypted: bool) -> None:
    """Remove the leftovers of a published save. Failures are warnings: the new checkpoint is the one that loads."""
    failed = storage.remove(names)
    if failed:
        shown = [storage.label(name) for name in list(failed)[:_SHOWN]]
        more = f" and {len(failed) - len(shown)} more" if len(failed) > len(shown) else ""
        plain = "; unlike the new checkpoint, they may be unencrypted" if encrypted else ""
        warnings.warn(
            f"the checkpoint is saved, but files of earlier saves could not be removed{plain}: "
            f"{', '.join(shown)}{more} ({next(iter(failed.values()))}). "
            "Once that is mended, `streamxf clean` removes them",
            stacklevel=2,
        )


def files_of(storage: Storage, name: str) -> Collection[str]:
    """The files that a metadata file names. Nothing vouches for it, so it only ever narrows what is removed."""
    try:
        index = _read(storage, name, listing=True)
    except (StreamxfError, OSError):
        return ()  # it is damaged, or there is none
    return index.files.keys() if index is not None else ()


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
        _log.warning("%s of a failed save to %s could not be removed: %s", file, storage.label(), reason)


Pin = Callable[[Storage, str, str], str]
"""What puts a pin into a base's folder, for the save with an id, to a folder of that name beside it; why it may not,
or "". Whoever gives it to a writer sees to it that nobody removes what is pinned.
"""


@dataclass(frozen=True)
class Pins:
    """The saves beside a `folder` that need files there, each by the name of its folder with its index; None while
    nothing is there that can be read, so that it may need anything.
    """

    folder: Storage
    by: Mapping[str, Index | None]

    @classmethod
    def of(cls, folder: Storage, names: Iterable[str] | None = None) -> Self:
        """Who knows the `names` in the folder need not have it listed."""
        folder, found = folder.resolved(), dict[str, Index | None]()  # indexes have its own name, and no link's
        pins = [match for name in (folder.names(()) if names is None else names) if (match := PIN.fullmatch(name))]
        for match in pins:
            index, unread = _index_of(folder, match["folder"])
            if index is not None and index.save_id == match["save"]:
                if folder.name in index.beside:
                    found.setdefault(match["folder"], index)  # but not over that of a save that is to replace it
            elif unread or not folder.older_than([match[0]], folder.DAY):
                found[match["folder"]] = None
        return cls(folder, found)

    @staticmethod
    def name(save_id: str, folder: str) -> str:
        """That of a pin of the save with this id, in the folder of that name."""
        return pin_name(save_id, folder)

    def needed(self, names: Collection[str]) -> set[str]:
        """Those among the `names` in the folder that must stay there, the pins among them."""
        if None in self.by.values():
            return {name for name in names if name.endswith(".distcp") or PIN.fullmatch(name)}
        paths = {path for index in self.by.values() if index is not None for path in index.files}
        beside = {name for name in names if f"{BESIDE}{self.folder.name}/{name}" in paths}
        return beside | {name for name in names if (pin := PIN.fullmatch(name)) and pin["folder"] in self.by}


def _index_of(folder: Storage, name: str) -> tuple[Index | None, bool]:
    """The index in a folder beside; whether there is metadata that cannot be read."""
    run = folder.beside("")[0]
    try:
        run.check_literal(name)
    except ParameterError:  # nothing was ever saved there
        return None, False
    try:
        return _read(run.child(name), GLOBAL, listing="root"), False
    except (FileNotFoundError, NotADirectoryError):
        return None, False
    except (StreamxfError, OSError):
        return None, True


def _read(storage: Storage, name: str, listing: Any) -> Index | None:
    from streamxf.checkpoint.access import Access  # what reads, which the first save to a place does not need
    from streamxf.checkpoint.metadata import read_metadata

    return read_metadata(storage, name, Access(), listing=listing).index
