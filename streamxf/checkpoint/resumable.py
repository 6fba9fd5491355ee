"""`ResumableSave`: a save of one process, data file by data file, each of which is kept if the process is killed.

Until it is published, each finished file has a slip beside it, by which the next call recognizes it. A slip is a
metadata file of a rank that no process has, without a pickle. So it is read as metadata is, with all checks, and where
the data is encrypted, only who has a key can have made it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from streamxf.checkpoint.access import Access
from streamxf.checkpoint.datafile import FileRecord, SavedFile, write_file
from streamxf.checkpoint.metadata import SLIP_RANK, read_metadata
from streamxf.checkpoint.opening import ItemPart
from streamxf.checkpoint.publish import assemble, placed, publish
from streamxf.checkpoint.saving import Extensions, Save
from streamxf.checkpoint.sources import Content
from streamxf.errors import KeyMissingError, ParameterError, StreamxfError
from streamxf.format.items import Chunk, Item, TensorItem
from streamxf.format.names import OWN_FILE, OWN_SLIP, SLIP
from streamxf.format.tiling import MAX_GROUP
from streamxf.version import __version__

Read = Callable[[ItemPart], Content]
"""Gives the data of an object or a shard."""

MAX_FILES = 128


class ResumableSave:
    """Saves items to numbered data files of about `file_size` bytes. What an earlier call finished with the same
    `identity`, which tells contents of the source apart unread, is found again.

    - `files`: the objects and shards of each file, in the order of their places in the source, or more than
      `file_size` bytes if there would be too many files. The same source always gives the same files.
    - `finished`: what is there of them, by number. `discarded`: how many slips of earlier calls are others', or
      unusable. Both are known once `find_finished` has looked.

    Raises ParameterError, UnsupportedError if items cannot be saved.
    """

    def __init__(self, to: Save, items: Sequence[Item], identity: str, file_size: int, rank: int | None = None) -> None:
        if file_size < 1:
            raise ParameterError(f"file_size {file_size}: it must be a number of bytes, at least 1")
        for item in items:
            if isinstance(item, TensorItem):
                item.check_limits()
        self._items, self._rank = items, rank
        self.files = _split(items, file_size)
        recorded = [*map(to.extensions.recorded, to.extensions.chains)]
        facts = [identity, rank, recorded, to.extensions.summary(), to.block_log2, file_size]
        self._job = _job_id(__version__, *facts)
        self.save = to.renew()
        self.save.place = to.storage.mount()
        self._access = Access.for_chain(self.save.extensions.chains.default)  # for slips: as authentic as the save
        if (signer := self.save.extensions.own_signer) is not None:
            self._access = replace(self._access, trust=(signer.verify_key,))
        self.finished: dict[int, SavedFile] = {}
        self.discarded = 0

    @property
    def number(self) -> int:
        """That of the rank, in names of files."""
        return self._rank or 0

    def find_finished(self, names: Collection[str] | None = None) -> None:
        """Look for data files of earlier calls, or those of these `names` alone."""
        storage, access = self.save.storage, self._access
        named = {each for name in names or () if OWN_FILE.fullmatch(name) for each in (name, f"{name}{SLIP}")}
        listed = storage.names(named or None)
        encryption = self.save.extensions.encryption
        who = {(key.kind, key.id) for key in encryption.recipients} if encryption is not None else set()
        signer = self.save.extensions.signer
        signers = () if signer is None else (signer.id,)
        self.discarded = 0
        for name in sorted(listed):
            match = OWN_SLIP.fullmatch(name)
            if match is None or int(match["rank"]) != self.number:
                continue
            path, number = name.removesuffix(SLIP), int(match["number"])
            try:  # of all that is read of it: the items of a large one are checked only where they are read
                slip = read_metadata(storage, name, access)
                index, parts = slip.index, [part for item in slip.each() for part in ItemPart.of(item)]
                facts = slip.files.get(path)
                secret = slip.data_key(facts.key, access.keys).secret if facts and facts.key is not None else b""
                keys = slip.keys
                theirs = set() if keys is None else {*keys.readers[0]}, slip.signers
                digests = b"" if index is None or index.digests is None else b"".join(index.digests)
            except (StreamxfError, FileNotFoundError):  # damaged, a link, or not authenticated by a key of this call
                self.discarded += 1
                continue
            own = index is not None and (index.save_id, *index.files) == (self._job, path) and number < len(self.files)
            own = own and theirs == (who, signers)  # a worker may have opened an older key at the same location
            if facts is None or not own or set(map(_said_of, parts)) != set(map(_said_of, self.files[number])):
                self.discarded += 1
            elif number not in self.finished and listed.get(path) == facts.size:
                about = self.save.modules, self.save.extensions.summary(), self.save.place
                record = FileRecord(path, facts.size, facts.writer, slip.wrapped, *about, secret, digests)
                self.finished[number] = SavedFile(record, [*map(_written, parts)])

    @property
    def left(self) -> dict[int, Sequence[ItemPart]]:
        """The files that are not finished, by number."""
        return {number: parts for number, parts in enumerate(self.files) if number not in self.finished}

    def plan(self) -> int:
        """How many bytes of elements are to be written. Raises NoSpaceError if they surely cannot fit."""
        planned = sum(part.planned for parts in self.left.values() for part in parts)
        self.save.check_space(planned)
        return planned

    def write(self, number: int, read: Read) -> None:
        """Write a data file, with its slip."""
        self.finished[number] = _write(self.save, (self.number, number), self.files[number], read, self._job)

    def items_in(self, number: int) -> dict[str, Item]:
        """The items of a data file, with the chunks that it has of them."""
        parts = self.files[number]
        return placed({part.item.name: part.item for part in parts}.values(), [map(_written, parts)])

    def write_apart(self, number: int) -> Callable[[Extensions, Iterable[Item], Read], tuple[str, int]]:
        """What writes a data file in another process, by a writer id and data key of its own, and can be pickled. It
        takes extensions, the `items_in` the file, and `read`, and returns the name and the items' bytes.
        """
        make = partial(Save, self.save.storage, block_log2=self.save.block_log2, sync=True, overwrite=True)
        return partial(_write_apart, make, (self.number, number), self._job)

    def check_opens(self) -> None:
        """Raise KeyMissingError unless what others write is recognized here: a slip must be opened for that."""
        if (encryption := self.save.extensions.encryption) is not None:
            if not len(self._access.keys):
                raise KeyMissingError("executor= needs a recipient's key that decrypts, and these can only encrypt")
            self._access.keys.open(encryption.wrapped, encryption.vouch(bytes(32)), bytes(32))

    def publish(self, check: Callable[[], None] | None, **about: Any) -> str:
        """Publish what is finished, unless `check` raises, and return the save's id; the files stay if that fails."""
        done = [self.finished[number] for number in sorted(self.finished)]
        save_id = os.urandom(16).hex()
        items, records = placed(self._items, [file.written for file in done]), [file.record for file in done]
        publish(self.save, items, records, save_id, rank=self._rank, keep=True, check=check, **about)
        return save_id

    def paths(self) -> list[str]:
        """The names of finished data files."""
        return [file.record.path for file in self.finished.values()]

    def stored_bytes(self) -> int:
        """Of all items, in storage."""
        places = (chunk.place for file in self.finished.values() for _, chunk in file.written)
        return sum({place.container: place.size for place in places}.values())


def _job_id(*facts: Any) -> str:
    """32 hexadecimal digits, by which a later call recognizes what this one finished."""
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _split(items: Sequence[Item], size: int) -> list[list[ItemPart]]:
    # values come last and stay together, as a writer has one container for all of them
    found = [each for item in items for each in ItemPart.of(item)]
    parts = sorted(found, key=lambda each: (each.place.span is not None, each.place[:2]))
    sizes = [each.planned or each.place.share for each in parts]
    size = max(size, sum(sizes) // MAX_FILES)
    files: list[list[ItemPart]] = []
    filled, shards = 0, Counter[str]()
    for part, length in zip(parts, sizes, strict=True):
        name = part.item.name
        begun = filled and part.place.span is not None and files[-1][-1].place.span is not None
        if not files or (filled and filled + length > size and not begun) or shards[name] == MAX_GROUP:
            files.append([])
            filled, shards = 0, Counter()
        files[-1].append(part)
        filled += length
        shards[name] += 1
    return files


def _write(save: Save, at: tuple[int, int], parts: Sequence[ItemPart], read: Read, job: str) -> SavedFile:
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


def _write_apart(
    make: Callable[..., Save], at: tuple[int, int], job: str, extensions: Extensions, items: Iterable[Item], read: Read
) -> tuple[str, int]:
    save = make(extensions=extensions.renew())
    parts = [part for item in items for part in ItemPart.of(item)]
    return _write(save, at, parts, read, job).record.path, save.meter.total().raw_bytes


def _written(part: ItemPart) -> tuple[str, Chunk]:
    return part.item.name, part.chunk or Chunk((), (), part.place, False)


def _said_of(part: ItemPart) -> tuple[Any, ...]:
    return *part.said, part.chunk and (part.chunk.offset, part.chunk.shape)
