"""Conversions: items written under one metadata file, data file by data file, each of which is kept if the process is
killed; in the end they are published as a save is.

Until then each finished file has a slip beside it, by which the next call recognizes it. A slip is a metadata file of a
rank that no process has, without a pickle. So it is read as metadata is, with all checks, and where the data is
encrypted, only who has a key can have made it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

from streamxf.checkpoint.access import access_for
from streamxf.checkpoint.datafile import FileRecord, SavedFile, planned_size, write_file
from streamxf.checkpoint.metadata import SLIP_RANK
from streamxf.checkpoint.opening import ItemPart, streams_of
from streamxf.checkpoint.publish import assemble, placed, publish
from streamxf.checkpoint.saving import Extensions, Save, check_space
from streamxf.checkpoint.sources import Content
from streamxf.errors import ContainerError, KeyMissingError, ParameterError, StreamxfError
from streamxf.format.items import check_limits
from streamxf.format.names import OWN_FILE, OWN_SLIP, SLIP
from streamxf.format.run import RunFacts
from streamxf.format.tiling import MAX_GROUP
from streamxf.keys.envelope import Envelope, Vouchers
from streamxf.places import Location, Storage
from streamxf.reading import BoxReader, Chunk, Item, Metadata, Progress, Share, TensorItem, read_metadata
from streamxf.storage.opening import are_same
from streamxf.tools.fleet import Fleet, Items
from streamxf.version import __version__
from streamxf.wording import listed, many, size_text

_NOT_THERE = "the target has not all that workers wrote, as it is seen here, for these recipients and by this signer"
_ADDED_UP = ("save_ids", "items", "files", "kept_files", "discarded_files", "raw_bytes", "stored_bytes", "seconds")
FILE_SIZE = 256 * 2**20
"""Bytes of items, before the chain, in one data file: what is lost of the work when the process is killed."""
MAX_FILES = 128


@dataclass(frozen=True)
class Converted:
    """The result of `pack` and `transcode`.

    - `chain`: in its text form.
    - `key_ids`, `signers`: kinds and ids of keys that open it (``"aeskw:0123456789abcdef"``), ids of those that sign.
    - `save_ids`: one for each metadata file.
    - `items`, `files`: tensors, shards and objects; data files.
    - `kept_files`: data files that an interrupted call had finished.
    - `discarded_files`: finished files of earlier calls that had another source or chain, or cannot be shown not to.
    - `raw_bytes`, `stored_bytes`: of the items that this call wrote, before the chain; of all items, in storage.
    - `notes`: remarks, in sentences.
    """

    chain: str
    key_ids: tuple[str, ...]
    signers: tuple[str, ...]
    save_ids: tuple[str, ...]
    items: int
    files: int
    kept_files: int
    discarded_files: int
    raw_bytes: int
    stored_bytes: int
    seconds: float
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        files = f"{many(self.items, 'item')} in {many(self.files, 'file')}, {size_text(self.stored_bytes)} stored"
        ids = [text.rpartition(":")[2] for text in self.key_ids] + [f"signed by {signer}" for signer in self.signers]
        readers = f" under key {', '.join(ids)}" if ids else ""
        lines = [f"wrote {files} in {self.seconds:.1f} s", f"chain {self.chain or 'none'}{readers}"]
        lines += [f"save {save_id}" for save_id in self.save_ids]
        if self.kept_files:
            lines.append(f"resumed: an earlier call had finished {many(self.kept_files, 'file')}")
        if self.discarded_files:
            lines.append(
                f"started over: {many(self.discarded_files, 'finished file')} had another source, chain or key and "
                "could not be used"
            )
        return "\n".join([*lines, *listed("note", self.notes)])

    @classmethod
    def together(cls, parts: Sequence[Converted]) -> Converted:
        """What several conversions did for one checkpoint."""
        done = parts[-1]
        for part in reversed(parts[:-1]):
            done = replace(done, **{name: getattr(part, name) + getattr(done, name) for name in _ADDED_UP})
        return done


@dataclass(frozen=True)
class Conversion:
    """Items, and where their contents come from.

    - `items`: those of the new checkpoint, with their places in the source.
    - `rank`: of the metadata that will name them; None for that of all ranks.
    - `identity`: tells contents of the source apart unread. What an earlier call finished is reused if it had the same.
    - `read`: returns the data of an object or a shard, from `reader`; called in their order within each data file.
    - `extra`, `run`: as in the index.
    - `check`: called just before publishing; raises to prevent it.
    """

    items: Sequence[Item]
    rank: int | None
    identity: str
    reader: BoxReader | None
    read: Callable[[Any, ItemPart], Content]
    extra: Mapping[str, Any] = field(default_factory=dict)
    check: Callable[[], None] | None = None
    run: RunFacts | None = None

    def files(self, size: int) -> list[list[ItemPart]]:
        """The objects and shards of each data file, in the order of their places in the source: about `size` bytes, or
        more if there would be too many files. The same source always gives the same files.
        """
        parts = sorted((each for item in self.items for each in streams_of(item)), key=lambda each: each.place[:2])
        sizes = [planned_size(each.identity(b"")) or each.place.size for each in parts]
        size = max(size, sum(sizes) // MAX_FILES)
        files: list[list[ItemPart]] = []
        filled, shards = 0, Counter[str]()
        for part, length in zip(parts, sizes, strict=True):
            name = part.item.name
            if not files or (filled and filled + length > size) or shards[name] == MAX_GROUP:
                files.append([])
                filled, shards = 0, Counter()
            files[-1].append(part)
            filled += length
            shards[name] += 1
        return files

    def id(self, to: Save, file_size: int) -> str:
        """32 hexadecimal digits, by which a later call recognizes what this conversion finished."""
        facts = [__version__, self.identity, self.rank, *to.extensions.recorded, to.extensions.summary()]
        return hashlib.sha256(json.dumps([*facts, to.block_log2, file_size]).encode()).hexdigest()[:32]


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
            file=source.label(),
        )


def convert(
    to: Save, conversion: Conversion, file_size: int, progress: Progress | None = None, fleet: Fleet | None = None
) -> Converted:
    """Write a conversion's items to data files of about `file_size` bytes, or have a fleet do it, and publish them.

    Whatever it raises, nothing was published then, and finished files stay for the next call.
    """
    if file_size < 1:
        raise ParameterError(f"file_size {file_size}: it must be a number of bytes, at least 1")
    for item in conversion.items:
        check_limits(item.name, item.shape if isinstance(item, TensorItem) else ())
    begin = perf_counter()
    made = to.storage.make_folder()
    try:
        return replace(_Writing(to, conversion, file_size).run(progress, fleet), seconds=perf_counter() - begin)
    except BaseException:
        with suppress(OSError):  # it is not empty, or was removed
            for folder in made:
                folder.rmdir()
        raise


class _Writing:
    def __init__(self, to: Save, conversion: Conversion, file_size: int) -> None:
        self._to = to
        self._storage = to.storage
        self._conversion = conversion
        self._files = conversion.files(file_size)
        self._job = conversion.id(to, file_size)
        self._rank = conversion.rank or 0
        self._save = to.renew()
        self._save.place = to.storage.mount()
        self._done: list[SavedFile] = []
        self._told: list[tuple[str, int]] = []  # names of files that workers wrote, and bytes of the items in them
        self._raw = 0
        self._access = access_for(self._save.extensions.chain)  # for slips, which must be authentic where it encrypts

    def run(self, progress: Progress | None, fleet: Fleet | None) -> Converted:
        save = self._save
        with save.beside(save.file_name(self._rank, len(self._files))):
            kept, discarded = self._finished()
            left = {number: parts for number, parts in enumerate(self._files) if number not in kept}
            expected = sum(planned_size(part.identity(b"")) for parts in left.values() for part in parts)
            check_space(self._storage, save.extensions, expected, lambda: expected)
            if progress is not None:
                save.progress = progress
                progress.expect(expected)
            self._done += [kept[number] for number in sorted(kept)]
            save_id = os.urandom(16).hex()
            self._write_all(left, fleet)
            self._publish(save_id)
        items = sum(map(len, self._files))
        stored = sum(chunk.place.size for file in self._done for _, chunk in file.written)
        chain = self._to.extensions.chain
        recipients, signer = (chain.encryption.recipients, chain.encryption.signer) if chain.encryption else ((), None)
        who = tuple(f"{key.kind}:{key.id}" for key in recipients), (signer.id,) if signer is not None else ()
        counts = items, len(self._files), len(kept), discarded, self._raw + save.meter.total().raw_bytes, stored
        return Converted(str(chain), *who, (save_id,), *counts, 0.0, tuple(fleet.notes) if fleet else ())

    def _write_all(self, files: Mapping[int, Sequence[ItemPart]], fleet: Fleet | None) -> None:
        save, conversion = self._save, self._conversion
        try:
            there = self._hand_out(files, fleet) if fleet is not None and files else {}
            self._done += there.values()
            self._told.clear()
            read = partial(conversion.read, conversion.reader)
            for number in (number for number in files if number not in there):
                self._done.append(_write_file(save, (self._rank, number), files[number], read, self._job))
        except BaseException as error:
            more = " or more" if fleet is not None else ""  # workers go on with what they have begun
            interrupted = isinstance(error, KeyboardInterrupt)
            if (finished := len(self._done) + len(self._told)) or (more and interrupted):
                error.add_note(
                    f"nothing was published; finished data files, which stay: {finished}{more} of {len(self._files)}; "
                    "repeat it to resume"
                )
            elif interrupted:
                error.add_note("nothing was published, and no data file is finished: repeating it starts over")
            raise

    def _hand_out(self, files: Mapping[int, Sequence[ItemPart]], fleet: Fleet) -> dict[int, SavedFile]:
        """Have a fleet write files; returns those that are there, by the slips that say so."""
        save, conversion = self._save, self._conversion
        if (encryption := save.extensions.encryption) is not None:  # where a slip cannot be opened, nothing is begun
            if not len(self._access.keys):
                raise KeyMissingError("executor= needs a recipient's key that decrypts, and these can only encrypt")
            self._access.keys.open(encryption.wrapped, encryption.vouch(bytes(32)), bytes(32))
        make: Any = partial(Save, self._storage, block_log2=save.block_log2, sync=True, overwrite=True)
        with fleet:
            for number, parts in files.items():
                own = placed({part.item.name: part.item for part in parts}.values(), [map(_written, parts)])
                items = {name: (own[name],) for name in own}
                share = Share(save.progress, sum(planned_size(part.identity(b"")) for part in parts))
                task = _write_there, conversion.read, make, fleet.chain, (self._rank, number), self._job
                assert conversion.reader is not None
                fleet.read([conversion.reader], items, share, self._told.append, *task)
        found = {number: file for number, file in self._finished(self._told)[0].items() if number in files}
        fleet.missed += [_NOT_THERE] * (len(files) - len(found))
        self._raw = sum(size for _, size in self._told)
        return found

    def _publish(self, save_id: str) -> None:
        conversion, save = self._conversion, self._save
        try:
            items = placed(conversion.items, [file.written for file in self._done])
            about: Any = {"rank": conversion.rank, "extra": conversion.extra, "run": conversion.run}
            records = [file.record for file in self._done]
            # the files are kept, since another call may have found and published them
            publish(save, items, records, save_id, keep=True, check=conversion.check, **about)
        except BaseException as error:
            paths = [file.record.path for file in self._done]
            with suppress(Exception):  # or all of them are taken to be there
                paths = [*filter(self._storage.names(paths).__contains__, paths)]
            if paths:  # else whoever published to the same place has removed them
                error.add_note(
                    f"{many(len(paths), 'finished data file')} left: repeat it to resume while source and "
                    "target are as they were, and `streamxf clean` removes what no checkpoint needs"
                )
            raise

    # -- what earlier calls and workers finished -----------------------------------------------------

    def _finished(self, told: Collection[tuple[str, int]] = ()) -> tuple[dict[int, SavedFile], int]:
        """Data files of earlier calls, or of these names, by number; and how many slips are others' or unusable."""
        storage, save, access = self._storage, self._save, self._access
        named = {each for name, _ in told if OWN_FILE.fullmatch(name) for each in (name, f"{name}{SLIP}")}
        listed = storage.names(named or None)
        encryption = save.extensions.encryption
        who = {(key.kind, key.id) for key in encryption.recipients} if encryption is not None else set()
        signer = encryption.signer.id if encryption is not None and encryption.signer is not None else None
        found: dict[int, SavedFile] = {}
        others = 0
        for name in sorted(listed):
            match = OWN_SLIP.fullmatch(name)
            if match is None or int(match["rank"]) != self._rank:
                continue
            path, number = name.removesuffix(SLIP), int(match["number"])
            try:  # of all that is read of it: the items of a large one are checked only where they are read
                slip = read_metadata(storage, name, access)
                index, parts = slip.index, [part for item in slip.each() for part in streams_of(item)]
                facts = slip.files.get(path)
                secret = slip.data_key(facts.key, access.keys).secret if facts and facts.key is not None else b""
                theirs = _readers_of(slip)
            except (StreamxfError, FileNotFoundError):  # damaged, a link, or not authenticated by a key of this call
                others += 1
                continue
            own = index is not None and (index.save_id, *index.files) == (self._job, path) and number < len(self._files)
            own = own and theirs == (who, signer)  # a worker may have opened an older key at the same location
            if facts is None or not own or set(map(_said_of, parts)) != set(map(_said_of, self._files[number])):
                others += 1
            elif number not in found and listed.get(path) == facts.size:
                about = save.modules, save.extensions.summary(), save.place
                record = FileRecord(path, facts.size, facts.writer, slip.wrapped, *about, secret)
                found[number] = SavedFile(record, [*map(_written, parts)])
        return found, others


def _readers_of(slip: Metadata) -> tuple[set[tuple[str, str]], str | None]:
    """The recipients of a slip's file, by kind and id, and who signed it; nothing where it is not encrypted."""
    if not slip.wrapped:
        return set(), None
    signature = Vouchers.parse(slip.vouchers).signature
    return {entry.key for entry in Envelope.parse(slip.wrapped).recipients}, signature and signature[0]


def _write_file(save: Save, at: tuple[int, int], parts: Sequence[ItemPart], read: Any, job: str) -> SavedFile:
    """Write a data file, `at` a rank and a number, and its slip, which says that it is there."""
    name = save.file_name(*at)
    try:
        file = write_file(save, name, ((part.identity(b""), partial(read, part)) for part in parts))
        items = placed({part.item.name: part.item for part in parts}.values(), [file.written])
        _, slip = assemble(items, [file.record], save.extensions, job, None, rank=SLIP_RANK)
        # not synced: one that a crash damages is ignored, and the data file is on the disk already
        save.storage.put(f"{name}{SLIP}", slip, sync=False)
    except BaseException as error:
        save.discard([name], error)
        raise
    return file


def _write_there(
    readers: Sequence[BoxReader], items: Items, _: None, read: Any, make: Any, chain: Any, at: tuple[int, int], job: str
) -> tuple[str, int]:
    """A worker's task: write a data file, by a writer id and data key of its own. Its name, and the items' bytes."""
    save: Save = make(extensions=Extensions((), chain().renew()))
    parts = [each for (item,) in items.values() for each in streams_of(item)]
    file = _write_file(save, at, parts, partial(read, readers[0]), job)
    return file.record.path, save.meter.total().raw_bytes


def _written(part: ItemPart) -> tuple[str, Chunk]:
    return part.item.name, part.chunk or Chunk((), (), part.place, False)


def _said_of(part: ItemPart) -> tuple[Any, ...]:
    return *part.said, part.chunk and (part.chunk.offset, part.chunk.shape)
