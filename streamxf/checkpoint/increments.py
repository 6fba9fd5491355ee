"""`SaveMemory`: what a process knows of its own saves, by which later ones find what has not changed since then.

Each block that is coded gets a tag, a GMAC under a key that this process has drawn and never stores or sends. Blocks
with one tag are the same bit for bit, but for one pair in 2^112, and nobody who does not know the key can look for a
pair. An item all of whose blocks have the tags that they had in an earlier save, the *base*, is not coded again: the
file that has it is linked into the new checkpoint's folder, and the item's row in the index says where it is there. So
each folder is whole by itself. Where files cannot be linked, those of a base beside the folder may be named there
instead, if the caller has a way to pin them. Whatever is in doubt is saved whole.
"""

from __future__ import annotations

import hmac
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from streamxf.buffers import scratches
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.datafile import FileRecord, SavedFile
from streamxf.checkpoint.metadata import read_metadata
from streamxf.checkpoint.pins import Pin
from streamxf.checkpoint.saving import Save
from streamxf.checkpoint.sources import Chunks
from streamxf.errors import MetadataError, ParameterError, StreamxfError
from streamxf.format.header import Identity
from streamxf.format.items import Chunk, Place
from streamxf.format.names import GLOBAL, pin_name
from streamxf.lazy import aead
from streamxf.pipeline import Pipeline
from streamxf.storage.storage import BESIDE, Storage, StorageEntry
from streamxf.stream.encoder import ByteSource, Load

SMALL = 4096  # bytes; for less no file is linked, which would stay on the disk once the base is removed
_TAG_BYTES = 16
_NONCE = bytes(12)  # one for all: tags are compared, and leave this process as little as the key does
_KEPT = 4  # saves besides the base of the last one, since several may be under way before one of them is published
_OTHER = "its file in the base is not as it was written"
_Key = tuple[str, tuple[int, ...]]  # an item's name, and the offset of a shard


class _Known(NamedTuple):
    """A shard that was saved: what it is, the tags of its blocks, and where it is."""

    said: tuple[Any, ...]
    tags: bytes
    chunk: Chunk


@dataclass(frozen=True, eq=False)
class SavedPart:
    """A process's part in a save; another must have `about` alike; `records` and `marks` are those of all files."""

    save_id: str
    about: tuple[Any, ...]
    shards: Mapping[_Key, _Known]
    records: Mapping[str, FileRecord]
    marks: Mapping[str, Any]


class SaveMemory:
    """What a process knows of its own saves, by which later ones find what has not changed since.

    Whoever saves again and again holds one, and gives it to each writer: ``FileSystemWriter(path, base=last,
    memory=memory)``. For each MiB that is saved it takes some 50 bytes, for at most five saves. A pickle has nothing
    of that; in another process, such as one that saves in the background, all copies of one memory are one.

    Parameters
    ----------
    increments : bool
        Whether what has a base may be one, too. If not, only saves that store all are known, and any number of
        checkpoints on one base has the files of two saves at most.
    """

    def __init__(self, *, increments: bool = True) -> None:
        self.increments = increments
        self._name = os.urandom(16)
        self._saves: dict[str, SavedPart] = {}  # the newest last
        self._changing = threading.Lock()
        self._cipher = aead.AESGCM(os.urandom(32))  # here, and not in the first of several workers

    def tag(self, block: memoryview) -> bytes:
        return self._cipher.encrypt(_NONCE, b"", block)

    @property
    def held(self) -> tuple[str, ...]:
        """The ids of the saves that it knows, the newest last."""
        return tuple(self._saves)

    def get(self, save_id: str) -> SavedPart | None:
        return self._saves.get(save_id)

    def add(self, part: SavedPart, base: str | None) -> None:
        """Take note of a save, which counts once it is published, and forget older ones, but not its base."""
        with self._changing:
            self._saves[part.save_id] = part
            for save_id in [save_id for save_id in self._saves if save_id != base][:-_KEPT]:
                del self._saves[save_id]

    def __reduce__(self) -> Any:
        return _memory_here, (self._name, self.increments)


_here: dict[bytes, SaveMemory] = {}  # those that came to this process from others


def _memory_here(name: bytes, increments: bool) -> SaveMemory:
    memory = _here.setdefault(name, SaveMemory(increments=increments))
    memory._name = name
    return memory


def check_memory(memory: Any, base: Any) -> SaveMemory | None:
    """The argument `memory` of a writer; raises ParameterError."""
    if memory is None and base is not None:
        raise ParameterError(
            "base= goes with memory=, the SaveMemory that the writer of the base was given, too: without it nothing is "
            "known of what was saved there"
        )
    if not isinstance(memory, SaveMemory | None):
        raise ParameterError(f"memory= takes a streamxf.SaveMemory, not {type(memory).__name__}")
    return memory


def saves_in(folder: Storage, name: str) -> tuple[tuple[str, ...], Collection[bytes]]:
    """The ids of the saves whose files a published checkpoint has, its own first, and the ids of their writers; nothing
    if there is none. Nothing vouches for them: what is not as a process knows it is not used.
    """
    index = None
    with suppress(StreamxfError, OSError):
        index = read_metadata(folder, name, Access(), listing="root").index
    if index is None:
        return (), ()
    return (index.save_id, *dict(index.bases or ())), {file.writer for file in index.files.values()}


class Increment:
    """One save of a process: compares what it is given with a base, if it has one, and takes note of what it writes.

    - `save_id`: that which the save will have.
    - `folder`: where the base's files lie; None if nobody asked for a base.
    - `linked`: the files that were linked into the checkpoint's folder. `pins`: those put into bases' folders.
    - `may_share`: whether there is a base, so that nobody knows yet how much will be written.
    """

    def __init__(
        self, memory: SaveMemory, save: Save, save_id: str, base_id: str, folder: Storage | None, pin: Pin | None = None
    ) -> None:
        self.memory, self._save, self._folder, self._pin = memory, save, folder, pin
        self.linked, self.pins = list[str](), dict[str, str]()
        self.owner = save_id, "elsewhere"
        with suppress(MetadataError):  # of a name that an index cannot have
            self.owner = save_id, Place.check_path(save.storage.name)
        self._about = save.extensions.summary(), save.extensions.readers, save.block_log2, save.sync
        self._base = memory.get(base_id)
        self._refused = "" if folder is None else self._refuse(folder)
        self.may_share = folder is not None and not self._refused
        self._tagged: dict[_Key, tuple[tuple[Any, ...], bytes]] = {}
        self._links: dict[str, str] = {}
        self._named: dict[str, FileRecord] = {}  # files of the base that this save has, by their paths there
        self._paths: dict[str, str] = {}  # by the paths in the base those here
        self._linking = threading.Lock()

    def _refuse(self, folder: Storage) -> str:
        """Why there is no base; "" if there is one."""
        if self._base is None:
            return "there is no base that all processes know"
        if self._base.about != self._about:
            return "the base has another chain, other recipients, another signer, other blocks, or other syncs"
        return "the base is what this save replaces" if folder.real() == self._save.storage.real() else ""

    def unchanged(self, part: Identity, source: ByteSource) -> Chunk | None:
        """Where the base has a shard, if it is the same there, and the file could be linked; else it is to be saved."""
        if self._folder is None:
            return None
        cell, shards = self._save.meter.cell, self._base.shards if self._base is not None else {}
        known = shards.get((part.name, part.offset))
        if reason := self._refused or self._changed(part, source, known):
            cell.whole[reason] += 1
            return None
        assert known is not None
        cell.unchanged += 1
        cell.unchanged_bytes += source.size
        self._tagged[part.name, part.offset] = known[:2]
        place = known.chunk.place
        return known.chunk._replace(place=place._replace(file=self._paths[place.file]))

    @property
    def mark(self) -> Callable[[memoryview], bytes] | None:
        """What gives blocks their tags, if the memory is to have these."""
        return self.memory.tag if self._base is None or self.memory.increments else None

    def note(self, part: Identity, tags: bytes) -> None:
        """Take note of a shard that was coded."""
        self._tagged[part.name, part.offset] = self._said(part), tags

    def record(self, path: str) -> FileRecord:
        """That of a file of the base, as this save has it."""
        return self._named[path]

    def remember(self, files: Iterable[SavedFile]) -> None:
        """Have the memory take note of what this process wrote, and of what it need not write."""
        if self.mark is None:
            return
        shards, records, marks = dict[_Key, _Known](), dict[str, FileRecord](), dict[str, Any]()
        for file in files:
            records |= {each.path: each for each in (file.record, *file.kept)}
            pairs = (((name, chunk.offset), chunk) for name, chunk in file.written)
            shards |= {key: _Known(*self._tagged[key], chunk) for key, chunk in pairs if key in self._tagged}
        base, known = (self._base.save_id, self._base.marks) if self._base is not None else (None, {})
        marks |= {here: known[path] for path, here in self._paths.items() if path in known}
        for path in records.keys() - marks.keys():
            with suppress(OSError, StreamxfError):  # then it is never linked
                marks[path] = _mark_of(self._save.storage.info(path))
        self.memory.add(SavedPart(self.owner[0], self._about, shards, records, marks), base)

    def unpin(self) -> None:
        """Take back the pins of a save that failed; else they count for a day."""
        with suppress(Exception):
            run = self._save.storage.beside("")[0]
            run.remove([f"{name}/{pin_name(*self.owner)}" for name in self.pins])

    def _said(self, part: Identity) -> tuple[Any, ...]:
        return part.kind, part.dtype, part.shape, part.tensor_shape, self._save.extensions.recorded_for(part.name)

    def _changed(self, part: Identity, source: ByteSource, known: _Known | None) -> str:
        """Why a shard has to be saved; "" if it need not be."""
        if known is None or known.said != self._said(part):
            return "the base has no such shard, or has it with another dtype, shape or chain"
        if isinstance(source, Chunks):
            return "its bytes come one after the other, once"
        path = known.chunk.place.file
        if source.size < SMALL and self._links.get(path) != "":
            return f"it has less than {SMALL} bytes, for which no file is linked"
        return self._link(path) if self._is_same(source, known.tags) else "changed"

    def _is_same(self, source: ByteSource, tags: bytes) -> bool:
        """Whether all blocks have these tags. What has changed mostly shows in the first one."""
        starts = range(0, source.size or 1, 1 << self._save.block_log2)
        if len(tags) != _TAG_BYTES * len(starts):
            return False
        with Pipeline[bool]() as blocks:
            for number, start in enumerate(starts):
                stop = min(start + starts.step, source.size)
                job = partial(self._has_tag, source.load(start, stop), tags[_TAG_BYTES * number :][:_TAG_BYTES])
                if not all(blocks.submit(job, stop - start) if number else [job()]):
                    return False
            return all(blocks.results())

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
        assert self._folder is not None
        try:
            storage.link(path, self._folder)
            self.linked.append(path)
            reason = self._take(path, path, storage.info(path))
        except (OSError, StreamxfError) as error:
            return f"its file cannot be linked: {_text_of(error)}"
        if reason:
            storage.remove([path])
        return reason

    def _refer(self, path: str, reason: str) -> str:
        """Name a file of the base where it lies, in a folder beside this one; why that cannot be done, or ""."""
        assert self._folder is not None
        assert self._base is not None
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
            assert self._pin is not None
            base = run.child(name)
            reason = self._pin(base, *self.owner)
            self.pins[name] = reason or ("" if saves_in(base, GLOBAL)[0][:1] == (save_id,) else "the base was replaced")
        return self.pins[name]

    def _take(self, path: str, here: str, found: StorageEntry, saved: tuple[str, str] | None = None) -> str:
        """Have a file of the base by its path `here`, if it is as it was written; else why not."""
        assert self._base is not None
        record = self._base.records[path]
        if (found.size, _mark_of(found)) != (record.size, self._base.marks.get(path)):
            return _OTHER
        self._paths[path] = here
        self._named[here] = replace(record, path=here, place=self._save.place, saved=saved or record.saved)
        return ""


def _mark_of(found: StorageEntry) -> Any:
    """What changes when a file is replaced."""
    return found.mark or found.tag or found.written


def _text_of(error: OSError | StreamxfError) -> str:
    return error.message if isinstance(error, StreamxfError) else str(error.strerror or error)
