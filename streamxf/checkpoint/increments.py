"""`Increment`: one save that is compared with an earlier one, its *base*.

An item all of whose blocks have the tags that they had in the base is not coded again: the files that have it are
linked into the new checkpoint's folder, and the item's row in the index says where it is there. So each folder is whole
by itself. Where files cannot be linked, those of a base beside the folder may be named there instead, if the caller has
a way to pin them. What has changed is stored as its differences from the base, where that pays, and whatever is in
doubt whole.
"""

from __future__ import annotations

import hmac
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from streamxf.buffers import scratches
from streamxf.chain import Chain
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.datafile import FileRecord, SavedFile
from streamxf.checkpoint.memory import SMALL, TAG_BYTES, Key, Known, SavedPart, SaveMemory
from streamxf.checkpoint.metadata import read_metadata
from streamxf.checkpoint.publish import Pin
from streamxf.checkpoint.saving import Save
from streamxf.checkpoint.sources import Chunks
from streamxf.errors import MetadataError, StreamxfError, escaped
from streamxf.format.header import Identity
from streamxf.format.items import Chunk, Place
from streamxf.format.limits import DIGEST_BYTES, MAX_BENEATH
from streamxf.format.names import GLOBAL, pin_name
from streamxf.pipeline import Pipeline
from streamxf.storage.storage import BESIDE, Storage, StorageEntry
from streamxf.stream.encoder import ByteSource, ContainerEncoder, Load

if TYPE_CHECKING:
    from streamxf.checkpoint.beneath import Beneath

_log = logging.getLogger(__name__)
_OTHER = "its file in the base is not as it was written"


def saves_in(folder: Storage, name: str) -> tuple[tuple[str, ...], Collection[bytes]]:
    """The ids of the saves whose files a base has, its own first, and the ids of their writers; nothing, with a
    warning, if there is none. Nothing vouches for them: what is not as a process knows it is not used.
    """
    with suppress(StreamxfError, OSError):
        if (index := read_metadata(folder, name, Access(), listing="root").index) is not None:
            return (index.save_id, *dict(index.bases or ())), {file.writer for file in index.files.values()}
    text = "%s: no checkpoint of streamxf can be read there, so this save shares nothing with it"
    _log.warning(text, escaped(folder.label()))
    return (), ()


class Increment:
    """One save of a process: compares what it is given with a base, if it has one, and takes note of what it writes.

    - `save_id`: that which the save will have.
    - `folder`: where the base's files lie; None if nobody asked for a base.
    - `linked`: the files that were linked into the checkpoint's folder. `pins`: those put into bases' folders. `named`:
      files of the base that this save has, by their paths in it.
    - `may_share`: whether there is a base, so that nobody knows yet how much will be written.
    """

    def __init__(
        self, memory: SaveMemory, save: Save, save_id: str, base_id: str, folder: Storage | None, pin: Pin | None = None
    ) -> None:
        self.memory, self._save = memory, save
        self._folder: Any = folder
        self._pin: Any = pin
        self.linked, self.pins, self.named = list[str](), dict[str, str](), dict[str, FileRecord]()
        self.owner = save_id, "elsewhere"
        with suppress(MetadataError):  # of a name that an index cannot have
            self.owner = save_id, Place.check_path(save.storage.resolved().name)
        self._about = save.extensions.summary(), save.extensions.readers, save.block_log2, save.sync
        self._base: Any = memory.get(base_id)
        self._refused = "" if folder is None else self._refuse(folder)
        self.may_share = folder is not None and not self._refused
        self._tagged: dict[Key, tuple[tuple[Any, ...], bytes, bytes]] = {}
        self._files: Any = None if folder is None else folder.open_files()
        self._links: dict[str, str] = {}
        self._paths: dict[str, str] = {}  # by the paths in the base those here
        self._linking = threading.Lock()

    def _refuse(self, folder: Storage) -> str:
        """Why there is no base; "" if there is one."""
        if self._base is None:
            return "there is no base that all processes know"
        if self._base.about != self._about:
            return "the base has another chain, other recipients, another signer, other blocks, or other syncs"
        return "the base is what this save replaces" if folder.real() == self._save.storage.real() else ""

    def compare(self, part: Identity, source: ByteSource, chain: Chain) -> Chunk | Beneath | None:
        """Where the base has a shard, if it is the same there, and the files could be linked; else what it is to be
        saved as differences from, if that pays.
        """
        if self._folder is None:
            return None
        cell, key = self._save.meter.cell, (part.name, part.offset)
        known: Any = None if self._base is None else self._base.shards.get(key)
        reason, made = (self._refused, None) if self._refused else self._compared(part, source, chain, known)
        if reason:
            cell.whole[reason] += 1
        elif made is not None:
            made.places = self._here(known.chunk.place)
        else:
            cell.unchanged += 1
            cell.unchanged_bytes += source.size
            self._tagged[key] = known[:3]
            (file, at, size), *beneath = self._here(known.chunk.place)
            place = known.chunk.place._replace(file=file, at=at, size=size, beneath=tuple(beneath))
            return Chunk(known.chunk.offset, known.chunk.shape, place, known.chunk.framed)
        return made

    @property
    def mark(self) -> Callable[[memoryview], bytes] | None:
        """What gives blocks their tags, if the memory is to have these."""
        return self.memory.tag if self._base is None or self.memory.increments else None

    def note(self, part: Identity, made: ContainerEncoder) -> None:
        """Take note of a shard that was coded."""
        self._tagged[part.name, part.offset] = self._said(part), bytes(made.tags), made.header_digest
        if made.beneath is not None:
            cell = self._save.meter.cell
            cell.differences += 1
            cell.differences_bytes += made.raw_size
            cell.differences_stored += made.stored_size

    def remember(self, files: Iterable[SavedFile]) -> None:
        """Have the memory take note of what this process wrote, and of what it need not write."""
        self.close()
        if self.mark is None:
            return
        shards, records, marks = dict[Key, Known](), dict[str, FileRecord](), dict[str, Any]()
        for file in files:
            records |= {each.path: each for each in (file.record, *file.kept)}
            pairs = (((name, chunk.offset), chunk) for name, chunk in file.written)
            shards |= {key: Known(*self._tagged[key], chunk) for key, chunk in pairs if key in self._tagged}
        base, known = (self._base.save_id, self._base.marks) if self._base is not None else (None, {})
        marks |= {here: known[path] for path, here in self._paths.items() if path in known}
        for path in records.keys() - marks.keys():
            with suppress(OSError, StreamxfError):  # then it is never linked
                marks[path] = _mark_of(self._save.storage.info(path))
        self.memory.add(SavedPart(self.owner[0], self._about, shards, records, marks), base)

    def close(self) -> None:
        """Close the base's files."""
        if self._files is not None:
            self._files.close()

    def unpin(self) -> None:
        """Take back the pins of a save that failed; else they count for a day."""
        with suppress(Exception):
            run = self._save.storage.beside("")[0]
            run.remove([f"{name}/{pin_name(*self.owner)}" for name in self.pins])

    def _here(self, place: Place) -> tuple[tuple[str, int, int], ...]:
        """A place in the base, and what lies beneath it, by the paths that its files have here."""
        return tuple((self._paths[file], at, size) for file, at, size in (place[:3], *place.beneath))

    def _said(self, part: Identity) -> tuple[Any, ...]:
        return part.kind, part.dtype, part.shape, part.tensor_shape, self._save.extensions.recorded_for(part.name)

    def _compared(
        self, part: Identity, source: ByteSource, chain: Chain, known: Known | None
    ) -> tuple[str, Beneath | None]:
        """Why a shard has to be saved, or "", and what lies beneath it if differences from that are saved."""
        if known is None or known.said != self._said(part):
            return "the base has no such shard, or has it with another dtype, shape or chain", None
        if isinstance(source, Chunks):
            return "its bytes come one after the other, once", None
        place = known.chunk.place
        if source.size < SMALL and any(self._links.get(path) != "" for path in place.files):
            return f"it has less than {SMALL} bytes, for which no file is linked", None
        with Pipeline[bool]() as blocks:  # what has changed mostly shows in the first one
            each = enumerate(self._same(source, known.tags, blocks))
            changed, made = next((number for number, same in each if not same), None), None
        if changed is not None:
            if not chain.differs:
                return "changed", None
            if len(place.beneath) == MAX_BENEATH:
                return f"it would be the difference of a difference, {MAX_BENEATH + 1} times", None
            if (made := self._beneath(part, source, chain, known, changed)) is None:
                return "changed", None
        reason = next(filter(None, map(self._link, place.files)), "")
        return reason, None if reason else made

    def _beneath(self, part: Identity, source: ByteSource, chain: Chain, known: Known, changed: int) -> Beneath | None:
        """What is beneath a shard, if it pays to store differences from that, for which one block stands for all."""
        from streamxf.checkpoint.beneath import Beneath  # what reads containers, which few saves do

        size, records, key = 1 << self._save.block_log2, self._base.records, (part.name, part.offset)
        made = Beneath(self.memory, key, known, chain, lambda path: records[path].data_key, self._files.__getitem__)
        start, stop = changed * size, min((changed + 1) * size, source.size)
        if not made.pays(part, changed, source.load(start, stop), stop - start, size):
            return None
        if self._save.extensions.signer is not None:
            place = known.chunk.place
            begin = DIGEST_BYTES * (place.digest or 0)
            count = (1 + len(known.tags) // TAG_BYTES) * len(made.places)
            made.digests = records[place.file].digests[begin : begin + DIGEST_BYTES * count]
        return made

    def _same(self, source: ByteSource, tags: bytes, blocks: Pipeline[bool]) -> Iterator[bool]:
        """Whether each block has its tag."""
        for number, start in enumerate(range(0, source.size or 1, 1 << self._save.block_log2)):
            stop = min(start + (1 << self._save.block_log2), source.size)
            job = partial(self._has_tag, source.load(start, stop), tags[TAG_BYTES * number :][:TAG_BYTES])
            yield from blocks.submit(job, stop - start) if number else [job()]
        yield from blocks.results()

    def _has_tag(self, load: Load, tag: bytes) -> bool:
        scratch = scratches.take()
        try:
            return hmac.compare_digest(self.memory.tag(load.take(partial(scratch.take, 0))), tag)
        finally:
            if load.release is not None:
                load.release()
            scratches.give(scratch)

    def _link(self, path: str) -> str:
        """Have a file of the base, once; why that cannot be done, or ""."""
        with self._linking:
            if path not in self._links:
                reason = self._try_link(path)
                refers = self._pin is not None and reason not in ("", _OTHER)
                self._links[path] = self._refer(path, reason) if refers else reason
            return self._links[path]

    def _try_link(self, path: str) -> str:
        """Link a file of the base into the checkpoint's folder; why that cannot be done, or ""."""
        storage = self._save.storage
        try:
            with suppress(FileExistsError):  # of the save that this one replaces
                storage.link(path, self._folder)
                self.linked.append(path)
            reason = self._take(path, path, storage.info(path))
        except (OSError, StreamxfError) as error:
            reason = f"its file cannot be linked: {_text_of(error)}"
        if reason and path in self.linked:
            storage.remove([path])
        return reason

    def _refer(self, path: str, reason: str) -> str:
        """Name a file of the base where it lies, in a folder beside this one; why that cannot be done, or ""."""
        storage, saved = self._save.storage, self._base.records[path].saved
        run, where = storage.beside(path)
        if not path.startswith(BESIDE):
            base, folder = self._folder.resolved().parent()
            saved, where = (self._base.save_id, folder), f"{folder}/{path}"
            if base.real() != run.real():
                return reason
        try:
            if reason := self._pinned(run, saved):
                return reason
            return self._take(path, f"{BESIDE}{where}", run.info(where), saved)
        except (OSError, StreamxfError) as error:
            return f"its file cannot be shared: {_text_of(error)}"

    def _pinned(self, run: Storage, saved: tuple[str, str] | None) -> str:
        """Pin what a save has in its folder, once; why that cannot be done, or ""."""
        save_id, name = saved or ("", "elsewhere")
        if "elsewhere" in (name, self.owner[1]) or "/" in Place.check_path(name):
            return "an index cannot name the folder of its file"
        if name not in self.pins:
            base = run.child(name)
            reason = self._pin(base, *self.owner)
            self.pins[name] = reason or ("" if saves_in(base, GLOBAL)[0][:1] == (save_id,) else "the base was replaced")
        return self.pins[name]

    def _take(self, path: str, here: str, found: StorageEntry, saved: tuple[str, str] | None = None) -> str:
        """Have a file of the base by its path `here`, if it is as it was written; else why not."""
        record = self._base.records[path]
        if (found.size, _mark_of(found)) != (record.size, self._base.marks.get(path)):
            return _OTHER
        self._paths[path] = here
        self.named[here] = replace(record, path=here, place=self._save.place, saved=saved or record.saved)
        return ""


def _mark_of(found: StorageEntry) -> Any:
    """What changes when a file is replaced."""
    return found.mark or found.tag or found.written


def _text_of(error: OSError | StreamxfError) -> str:
    return error.message if isinstance(error, StreamxfError) else str(error.strerror or error)
