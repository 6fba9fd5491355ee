"""`DataFile`: items on their way into one file; and the data files of a save, written in parallel."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from types import MappingProxyType
from typing import IO, Any, NamedTuple

from typing_extensions import Buffer

from streamxf.buffers import collector_paused, flat_view, write_all
from streamxf.chain import Chain
from streamxf.checkpoint.saving import Entry, Save
from streamxf.checkpoint.sources import Content
from streamxf.engine import side_by_side
from streamxf.errors import AbortedError, MetadataError, located
from streamxf.format import limits
from streamxf.format.bare import MAX_BARE, PieceCrcs, alignment
from streamxf.format.digests import digest_of
from streamxf.format.header import Identity, Kind
from streamxf.format.items import Chunk, Place
from streamxf.format.limits import DIGEST_BYTES
from streamxf.format.values import pack_name, parse_value
from streamxf.pipeline import Pipeline, SinkPipeline
from streamxf.progress import Share
from streamxf.storage.abilities import Mount
from streamxf.stream.encoder import ContainerEncoder, Encoded, Lower, MemorySource
from streamxf.torchsave.writing import prefix_of, saved, suffix_of

ON_THE_SPOT = 64 * 1024  # bytes; a worker would spend longer on waking up than on a block of less
_FAST = 2**28  # bytes per second: a folder that takes a block more slowly waits, for a network or a disk
_SLOW = 1e-3  # seconds
_PIECE = 2**20  # bytes that a stream without blocks is given at a time


@dataclass(frozen=True)
class FileRecord:
    """What the process that publishes has to know of a data file.

    - `path`: relative to the checkpoint.
    - `wrapped`: the wrapped data key of the process, as text; empty where the chain does not encrypt.
    - `data_key`: the same bare, for the process that publishes: records cross the group of processes that save, as the
      weights do, and are neither written nor kept.
    - `modules`: the third-party packages that provided its codecs.
    - `chain`: all extensions and the ids of the keys, for people; all ranks must have the same.
    - `place`: where the process found the checkpoint's folder, if that is a local or mounted one.
    - `digests`: of what was written, in its order, where the save is signed.
    - `saved`: the id of the save that wrote it, and the name of its folder, where that is known.
    """

    path: str
    size: int
    writer_id: bytes
    wrapped: str
    modules: tuple[str, ...]
    chain: str
    place: Mount | None
    data_key: bytes = field(default=b"", repr=False)
    digests: bytes = field(default=b"", repr=False)
    saved: tuple[str, str] | None = None

    def is_of(self, save_id: str) -> bool:
        """Whether the save with this id wrote it, and not an earlier one."""
        return self.saved is None or self.saved[0] == save_id


class SavedFile(NamedTuple):
    """A data file that is finished, and in its order what was to be written: names, each with a shard or an object.

    - `kept`: the files of earlier saves that have some of it.
    """

    record: FileRecord
    written: list[tuple[str, Chunk]]
    kept: Sequence[FileRecord] = ()


# Of an item: name, offset, shape, whether it is framed, and its place. Python's garbage collector need not look into
# such a tuple; three objects for each of many small items would have it go through all of the process.
_Span = tuple[int, int] | None
_Packed = tuple[str, bytes, bytes]  # a value: its name, that as it is stored, and the value
_Note = tuple[str, tuple[int, ...], tuple[int, ...], bool, int, int, int | None, int | None, bytes | None, _Span]


@dataclass(eq=False, slots=True)
class _InFlight:
    """An item whose blocks are on their way."""

    encoder: ContainerEncoder
    part: Identity
    place: located
    share: Share | None


class DataFile:
    """Writes items into `raw`, in the order in which they come; it is known where one stands when its bytes have left.

    The blocks of all items go through one pipeline: while those of one item are still being encoded or written, the
    next item is under way. So memory that is handed over stays in use until `settle` or `finish`.

    - `size`: bytes that were written.
    """

    def __init__(self, raw: IO[bytes], path: str, save: Save) -> None:
        self.path = path
        self._raw = raw
        self._synced = save.storage.synced(raw) if save.sync else None
        self._save = save
        self._chains = save.extensions.chains
        self._pipeline = SinkPipeline(self._leave, waits=not save.storage.near)
        self._leaving: deque[tuple[_InFlight, int]] = deque()  # of each block in the pipeline, and the block's bytes
        self._done: deque[tuple[Share, int, bool]] = deque()  # of blocks that have left, for the progress
        self._digests = None if save.extensions.signer is None else bytearray()
        self._notes: list[_Note] = []  # of the items that have left, in order
        self.size = 0
        self._seconds = 0.0  # that writing took so far
        self._crcs: PieceCrcs | None = None  # of the item that is written, if it is bare
        self._values: dict[Any, tuple[Chain, list[_Packed]]] = {}  # which leave together, by the descriptors of chains
        self._shared: deque[list[_Packed]] = deque()  # those that are leaving
        self._room = limits.MAX_VALUES
        self._order: dict[Any, int] = {}  # of values, and of all else where some is kept, by name and offset
        self._kept: list[tuple[str, Chunk]] = []  # what an earlier save has
        self._lower: dict[Any, Any] = {}  # what lies beneath differences, by name and offset

    def add(self, part: Identity, take: Callable[[], Content]) -> None:
        """Write an item, or a shard of one, that `take` gives; the writer's id and a number are added. Raises whatever
        went wrong, with this item or one before it; then the file is spoiled.
        """
        place = located(file=self.path, item=part.name, doing="writing")
        with place:
            content = take()
            if content.kind is Kind.VALUE:
                self.add_value(part.name, bytes(content.source.load(0, content.source.size).take(_memory)))
                return
            extensions, chain = self._save.extensions, self._chains.for_item(part.name)
            found = self._compared(part, content, chain)
            if isinstance(found, Chunk):
                self._keep(part, content, found)
                return
            part = Identity(self._save.writer_id, content.kind, *part[2:7], next(self._save.numbers))
            if content.kind is Kind.OBJECT and isinstance(content.source, MemorySource):
                self._save.note_needs(part.name, content.source.data)
            if len(chain) and not extensions.foreign:
                self._add_blocks(part, content, chain, place, found)
            else:  # data has to be a stream
                self._add_framed(part, content, chain)

    def _compared(self, part: Identity, content: Content, chain: Chain) -> Chunk | Lower | None:
        """Where an earlier save has a shard, so that it is not written, or what is written as its differences from."""
        if (increment := self._save.increment) is None:
            return None
        self._order.setdefault((part.name, part.offset), len(self._order))
        if content.kind is not Kind.TENSOR or not len(chain) or self._save.extensions.foreign:
            return None
        compared: Chunk | Lower | None = increment.compare(part, content.source, chain)
        return compared

    def _keep(self, part: Identity, content: Content, found: Chunk) -> None:
        """Take note of a shard that an earlier save has."""
        self._kept.append((part.name, found))
        self._save.meter.item(content.source.size, 0, self._chains.pattern_for(part.name))
        if (share := self._share_of(part, content.source.size)) is not None:
            share.advance(content.source.size)
            share.finish()

    def add_value(self, name: str, packed: bytes) -> None:
        """Write a value: with others of its chain at the end, by itself, or as an object; raises as `add`."""
        chain = self._chains.for_item(name)
        self._order[name, ()] = limits.MAX_NUMBER + len(self._order)  # behind all else
        holds = self._save.extensions.hold_value(name)
        if holds and len(chain) and self._takes(name, packed, chain):
            return
        part = Identity(self._save.writer_id, Kind.VALUE, name, number=next(self._save.numbers))
        if holds and not len(chain):
            self._add_framed(part, Content(MemorySource(memoryview(packed)), Kind.VALUE), chain)
            return
        content = Content(MemorySource(memoryview(saved(parse_value(packed)[0]))), Kind.OBJECT)
        self.add(part._replace(kind=Kind.OBJECT), lambda: content)

    def settle(self) -> None:
        """Wait until no memory that was handed over is in use any more; raises as `add`."""
        self._pipeline.narrow(0)
        self._tell_progress()

    def finish(self) -> SavedFile:
        """Wait until all items are written, and synced if the save is; returns what is published. Raises as `add`."""
        self._add_values()
        self.settle()
        save, meter = self._save, self._save.meter
        meter.blocks(self._pipeline.peak_jobs)
        begin = perf_counter()
        with located(file=self.path, doing="ending"):
            self._raw.flush() if self._synced is None else self._synced.sync()
        meter.io(self._seconds + perf_counter() - begin)
        encryption = save.extensions.encryption
        wrapped = encryption.wrapped if encryption is not None else ""
        secret = encryption.data_key.secret if encryption is not None else b""
        about = save.modules, save.extensions.summary(), save.place, secret, bytes(self._digests or b"")
        record = FileRecord(self.path, self.size, save.writer_id, wrapped, *about)
        if (increment := save.increment) is None:
            return SavedFile(record, self._written())
        written = self._written()
        paths = dict.fromkeys(path for _, chunk in written for path in chunk.place.files if path != self.path)
        kept = [*map(increment.named.__getitem__, paths)]
        return SavedFile(replace(record, saved=increment.owner), written, kept)

    @property
    def failure(self) -> BaseException | None:
        """What a worker met that wrote, if nobody has been told yet."""
        return self._pipeline.failure

    def cancel(self) -> None:
        """Give the file up. Returns when no memory of any item is in use any more."""
        self._pipeline.cancel()

    def write(self, data: Buffer, /) -> int:
        """Write all of `data`, however little `raw` takes at a time."""
        begin = perf_counter()
        size = write_all(self._synced or self._raw, data)
        self._seconds += perf_counter() - begin
        if self._crcs is not None:
            self._crcs.add(flat_view(data))
        self.size += size
        return size

    def _takes(self, name: str, packed: bytes, chain: Chain) -> bool:
        """Whether a value leaves together with others of its chain: as long as there is room."""
        before = pack_name(name)
        self._room -= len(before) + len(packed)
        if self._room >= 0:
            known = self._values.setdefault(self._save.extensions.recorded(chain), (chain, []))
            known[1].append((name, before, packed))
            if self._save.progress is not None:  # now, so that a save that fails has told of it
                self._save.progress.expect(len(before) + len(packed))
        return self._room >= 0

    def _add_values(self) -> None:
        for chain, values in self._values.values():
            part = Identity(self._save.writer_id, Kind.VALUE, "", number=next(self._save.numbers))
            stream = memoryview(b"".join([each for _, *both in values for each in both]))
            self._shared.append(values)
            place = located(file=self.path, doing="writing")
            with place:
                self._add_blocks(part, Content(MemorySource(stream), Kind.VALUE), chain, place)

    def _add_blocks(
        self, part: Identity, content: Content, chain: Chain, place: located, beneath: Lower | None = None
    ) -> None:
        save = self._save
        how: dict[str, Any] = {"published": True, "block_log2": save.block_log2, "meter": save.meter}
        if save.increment is not None and part.kind is Kind.TENSOR:
            how["mark"] = save.increment.memory.tag if beneath is not None else save.increment.mark
            how["beneath"] = beneath
        encoder = save.extensions.encoder(part, chain, **how)
        leaving = _InFlight(encoder, part, place, self._share_of(part, content.source.size))
        for job, size in encoder.jobs(content.source):
            self._leaving.append((leaving, size))
            if size > ON_THE_SPOT:
                self._pipeline.submit(partial(place.run, job), size)  # which is raised by a later item's
            else:
                for block in self._pipeline.put(job(), size):
                    self._leave(block)
            self._tell_progress()

    def _leave(self, block: Encoded) -> None:
        """Write a finished block: the next one, and in one thread at a time."""
        leaving, size = self._leaving.popleft()
        encoder, before = leaving.encoder, self._seconds
        with leaving.place:
            for part in encoder.framed(block):
                self.write(part)
        if self._save.storage.near:
            self._pipeline.waits = self._seconds - before > _SLOW + len(block.payload) / _FAST
        block.release()
        if leaving.share is not None:
            self._done.append((leaving.share, size, block.last))
        if block.last:
            self._note(leaving.part, encoder.raw_size, encoder.stored_size, encoder)

    def _tell_progress(self) -> None:
        """In this thread: it may hold a lock of the progress's, on which a worker would wait for ever."""
        while self._done:
            share, size, last = self._done.popleft()
            share.advance(size)
            if last:
                share.finish()

    def _add_framed(self, part: Identity, content: Content, chain: Chain) -> None:
        save, raw = self._save, chain.raw and part.kind is Kind.TENSOR
        if not len(chain):
            check_bare(part)
        if part.kind is Kind.TENSOR and not raw:
            part = part._replace(kind=Kind.FRAMED)
        self.settle()  # blocks of items before it may be on their way
        if raw and content.source.size:
            self.write(bytes(-self.size % alignment(content.source.size)))
        framed, hashed = content.kind is Kind.TENSOR and not raw, list[bytes]()
        signed = self._digests is not None and not len(chain)
        apart = signed and not framed and not save.extensions.foreign  # pieces come as they have digests
        self._crcs = None if len(chain) else PieceCrcs(signed=signed and not apart)
        how = {"published": True, "block_log2": save.block_log2, "meter": save.meter}
        stream, container = save.extensions.open(self, part, chain, **how)
        start, raw_size = self.size, 0
        share = self._share_of(part, content.source.size)
        try:
            with Pipeline[bytes]() as hashes:
                for piece in _pieces(part, content, framed=framed):
                    if apart and 0 < len(piece) <= ON_THE_SPOT:
                        hashed += hashes.put(digest_of(piece), len(piece))
                    elif apart and len(piece):  # by a worker, while it is written
                        stays = isinstance(content.source, MemorySource)
                        hashed += hashes.submit(partial(digest_of, piece if stays else bytes(piece)), len(piece))
                    if stream.write(piece) not in (len(piece), None):  # some streams return nothing
                        raise OSError("a stream transform accepted only part of what was written to it")
                    raw_size += len(piece)
                    if share is not None:
                        share.advance(len(piece))
                hashed += hashes.results()
            stream.close()
            if container is not None:
                container.close()  # a foreign stream need not close what it wraps; closing twice is fine
        except BaseException:
            if container is not None:
                container.abort()
            raise
        if apart and self._crcs is not None:
            self._crcs.digests = b"".join(hashed)
        self._note(part, raw_size, self.size - start, self._crcs if container is None else container.encoder)
        self._crcs = None
        if share is not None:
            share.finish()

    def _share_of(self, part: Identity, size: int) -> Share | None:
        """The share of an item in the progress, where only those that have a `Identity.size` are expected already."""
        progress = self._save.progress
        if progress is None:
            return None
        if not (planned := part.size) and part.name:
            progress.expect(size)
        return Share(progress, planned or size)

    def _note(self, part: Identity, raw_size: int, size: int, made: ContainerEncoder | PieceCrcs | None) -> None:
        number, crcs = (part.number, None) if self._crcs is None else (None, self._crcs.finish())
        first = None
        if self._digests is not None and made is not None:
            first = len(self._digests) // DIGEST_BYTES
            self._digests += made.digests
        place = self.size - size, size, first, number, crcs
        if part.kind is Kind.VALUE and number is not None:
            at, left = 0, size
            for name, before, packed in self._shared.popleft():
                at += len(before)
                self._notes.append((name, (), (), False, *place, (at, at + len(packed))))
                self._save.meter.item(len(packed), left, self._chains.pattern_for(name))
                at, left = at + len(packed), 0
            return
        if self._save.increment is not None and isinstance(made, ContainerEncoder) and part.kind is Kind.TENSOR:
            self._save.increment.note(part, made)
            self._lower |= {(part.name, part.offset): made.beneath.places} if made.beneath is not None else {}
        span = (0, size) if part.kind is Kind.VALUE else None
        self._notes.append((part.name, part.offset, part.shape, part.kind is Kind.FRAMED, *place, span))
        self._save.meter.item(raw_size, size, self._chains.pattern_for(part.name))

    @collector_paused()
    def _written(self) -> list[tuple[str, Chunk]]:
        made, path, recorded = list[tuple[str, Chunk]](), self.path, self._save.extensions.recorded_for
        for name, offset, shape, framed, at, size, first, number, crcs, span in self._notes:
            beneath = self._lower.get((name, offset), ())
            place = Place(path, at, size, recorded(name), first, number, crcs, beneath, span)
            made.append((name, Chunk(offset, shape, place, framed)))
        made += self._kept
        if self._order:  # values leave after all others, or when they come
            made.sort(key=lambda pair: self._order.get((pair[0], pair[1].offset), -1))
        return made


def _memory(size: int) -> memoryview:
    return memoryview(bytearray(size))


def check_bare(part: Identity) -> None:
    """Refuse a shard without a container that the index could not hold, before it is written; raises MetadataError."""
    if (size := part.size) > MAX_BARE:
        text = f"a shard has {size:,} bytes, and {MAX_BARE:,} can be stored raw; nothing of it was written"
        raise MetadataError(f"{text}. Cut it into more shards, or save it with a codec", item=part.name)


def _pieces(part: Identity, content: Content, framed: bool) -> Iterator[bytes | memoryview]:
    """The bytes of an item; elements to be `framed` stand in ``torch.save``'s frame, as torch's writer makes it."""
    source, crc = content.source, 0
    if framed:
        yield prefix_of(part.dtype, part.shape)
    for start in range(0, source.size or 1, _PIECE):
        load = source.load(start, min(start + _PIECE, source.size))
        data = load.take(_memory)
        crc = zlib.crc32(data, crc) if framed else 0
        yield data
        if load.release is not None:
            load.release()
    if framed:
        yield suffix_of(part.dtype, part.shape, crc)


def write_files(
    save: Save, files: Mapping[str, Iterable[Entry]], threads: int, values: Mapping[str, bytes]
) -> list[SavedFile]:
    """Write files, each with its items, and the first with all `values`, in up to `threads` threads, this one among
    them. Returns when all have stopped, or raises the first failure in any; an interrupt of this thread is one, too.
    """
    stored: dict[str, SavedFile] = {}

    def write(path: str, entries: Iterable[Entry], values: Mapping[str, bytes]) -> None:
        stored[path] = write_file(save, path, entries, values)

    writes = [partial(write, *file, {} if number else values) for number, file in enumerate(files.items())]
    side_by_side(writes, min(threads, len(files)), save.failures)
    return [stored[path] for path in files]


def write_file(
    save: Save, path: str, entries: Iterable[Entry], values: Mapping[str, bytes] = MappingProxyType({})
) -> SavedFile:
    """Write items into a new file; after any error all other files of this save stop, too."""
    with located(file=path, doing="storing"):
        with save.create(path) as raw:
            file = DataFile(raw, path, save)
            try:
                for name, packed in values.items():
                    file.add_value(name, packed)
                for part, content in entries:
                    if save.failures:
                        raise AbortedError("another file of this save failed")
                    file.add(part, content)
                stored = file.finish()
            except BaseException as error:
                cause = file.failure or error if isinstance(error, Exception) else error
                try:
                    save.failures.append(cause)
                    file.cancel()
                    raise cause
                finally:
                    del cause  # whose traceback refers back to here
            begin = perf_counter()
        save.meter.io(perf_counter() - begin)  # an object store uploads when the file is closed
        return stored
