"""What belongs to one save of one process: its writer id, its renewed chain, and the data files that it writes."""

from __future__ import annotations

import errno
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import IO, Any, NamedTuple, NoReturn

import crc32c
from typing_extensions import Buffer

from streamxf.buffers import flat_view, write_all
from streamxf.checkpoint.destination import Extensions
from streamxf.checkpoint.sources import Content
from streamxf.engine import Pipeline, side_by_side
from streamxf.errors import AbortedError, NoSpaceError, StreamxfError, escaped, located
from streamxf.format.header import Identity, Kind
from streamxf.format.items import ITEMSIZES, Place, elements_size
from streamxf.format.limits import WRITER_ID_BYTES
from streamxf.format.names import data_name
from streamxf.progress import Progress, Share
from streamxf.report import Meter
from streamxf.storage.disk import Mount, Volume
from streamxf.storage.storage import Storage
from streamxf.storage.synced import SyncedFile
from streamxf.stream.encoder import ContainerEncoder, Encoded, MemorySource
from streamxf.torchsave.check import quick_needs
from streamxf.torchsave.writing import prefix_of, suffix_of
from streamxf.wording import some

# Bytes; a block below this is encoded on the spot: a worker would spend longer on waking up than on the block.
ON_THE_SPOT = 64 * 1024

_PIECE = 2**20  # bytes that a stream without blocks is given at a time


class Written(NamedTuple):
    """An item as it stands in a data file; `sha256` as in `Place`."""

    part: Identity
    at: int
    size: int
    sha256: bytes | None = None

    def place(self, path: str, descriptors: tuple[str, ...]) -> Place:
        return Place(path, self.at, self.size, descriptors, self.sha256)


@dataclass(eq=False, slots=True)
class _InFlight:
    """An item whose blocks are on their way."""

    encoder: ContainerEncoder
    part: Identity
    share: Share | None


class DataFile:
    """Writes items into `raw`, in the order in which they come; it is known where one stands when its bytes have left.

    The blocks of all items go through one pipeline: while those of one item are still being encoded or written, the
    next item is under way. So memory that is handed over stays in use until `settle` or `finish`.

    - `written`: the items that have left, in order.
    - `size`, `crc`: bytes that were written and, where items have no containers, their CRC-32C.
    """

    def __init__(self, raw: IO[bytes], path: str, save: Save) -> None:
        self.path = path
        self._raw = raw
        self._synced = SyncedFile(raw) if save.sync else None
        self._save = save
        self._pipeline: Pipeline[Encoded] = Pipeline()
        self._leaving: deque[tuple[_InFlight, int]] = deque()  # of each block in the pipeline, and the block's bytes
        self._in_blocks = save.extensions.in_blocks
        self._hashed = save.extensions.hashed
        self.written: list[Written] = []
        self.size = 0
        self.crc = None if len(save.extensions.chain) else 0

    def add(self, part: Identity, content: Content) -> None:
        """Write an item, or a shard of one; the writer's id is added. Raises whatever went wrong, with this item or
        one before it; then the file is spoiled.
        """
        part = part._replace(writer_id=self._save.writer_id, kind=content.kind)
        try:
            self._add_blocks(part, content) if self._in_blocks else self._add_framed(part, content)
        except StreamxfError as error:
            error.locate(item=part.name)
            raise

    def settle(self) -> None:
        """Wait until no memory that was handed over is in use any more; raises as `add`."""
        self._store(self._pipeline.results())

    def finish(self) -> None:
        """Wait until all items have left for the operating system, and if the save syncs for the disk; raises as
        `add`.
        """
        self.settle()
        meter = self._save.meter
        meter.blocks(self._pipeline.peak_jobs)
        begin = perf_counter()
        if self._synced is not None:
            self._synced.sync()
        else:
            self._raw.flush()
        meter.io(perf_counter() - begin)

    def cancel(self) -> None:
        """Give the file up. Returns when no memory of any item is in use any more."""
        self._pipeline.cancel()

    # -- the file, as streams see it -------------------------------------------------------------------

    def write(self, data: Buffer, /) -> int:
        """Write all of `data`, however little `raw` takes at a time."""
        view = flat_view(data)
        begin = perf_counter()
        write_all(self._synced or self._raw, view)
        self._save.meter.io(perf_counter() - begin)
        if self.crc is not None:
            self.crc = crc32c.crc32c(view, self.crc)
        self.size += len(view)
        return len(view)

    # -- blocks ------------------------------------------------------------------------------------------

    def _add_blocks(self, part: Identity, content: Content) -> None:
        save = self._save
        encoder = ContainerEncoder(
            save.extensions.chain,
            identity=part,
            published=True,
            hashed=self._hashed,
            block_log2=save.block_log2,
            meter=save.meter,
        )
        leaving = _InFlight(encoder, part, self._share_of(part, content.source.size))
        for job, size in encoder.jobs(content.source):
            self._leaving.append((leaving, size))
            small = size <= ON_THE_SPOT
            self._store(self._pipeline.put(job(), size) if small else self._pipeline.submit(job, size))

    def _store(self, blocks: Iterable[Encoded]) -> None:
        """Write finished blocks, which come in the order in which they were submitted."""
        for block in blocks:
            leaving, size = self._leaving.popleft()
            encoder = leaving.encoder
            for part in encoder.framed(block):
                self.write(part)
            block.release()
            if leaving.share is not None:
                leaving.share.advance(size)
            if block.last:
                sha256 = encoder.table_digest if self._hashed else None
                self._note(leaving.part, encoder.raw_size, encoder.stored_size, leaving.share, sha256)

    # -- without a container, or behind stream transforms ------------------------------------------------

    def _add_framed(self, part: Identity, content: Content) -> None:
        if part.kind is Kind.TENSOR:
            part = part._replace(kind=Kind.FRAMED)
        save = self._save
        target = save.extensions.open(self, part, published=True, block_log2=save.block_log2, meter=save.meter)
        start, raw_size = self.size, 0
        share = self._share_of(part, content.source.size)
        try:
            for piece in _pieces(part, content):
                if target.stream.write(piece) not in (len(piece), None):  # some streams return nothing
                    raise OSError("a stream transform accepted only part of what was written to it")
                raw_size += len(piece)
                if share is not None:
                    share.advance(len(piece))
            target.close()
        except BaseException:
            target.abort()
            raise
        self._note(part, raw_size, self.size - start, share)

    # -- what was written ------------------------------------------------------------------------------

    def _share_of(self, part: Identity, size: int) -> Share | None:
        """The share of an item in the progress, where only those that have a `planned_size` are expected already."""
        progress = self._save.progress
        if progress is None:
            return None
        if not (planned := planned_size(part)):
            progress.expect(size)
        return Share(progress, planned or size)

    def _note(self, part: Identity, raw_size: int, size: int, share: Share | None, sha256: bytes | None = None) -> None:
        self.written.append(Written(part, self.size - size, size, sha256))
        self._save.meter.item(raw_size, size)
        if share is not None:
            share.finish()


def planned_size(part: Identity) -> int:
    """The bytes of a shard's elements; 0 for an object, and where an element has no size."""
    return elements_size(part.dtype, part.shape) if part.dtype in ITEMSIZES else 0


def _pieces(part: Identity, content: Content) -> Iterator[bytes | memoryview]:
    """What torch's own writer would write: elements with ``torch.save``'s frame around them."""
    source, is_elements, crc = content.source, content.kind is Kind.TENSOR, 0
    if is_elements:
        yield prefix_of(part.dtype, part.shape)
    for start in range(0, source.size or 1, _PIECE):
        load = source.load(start, min(start + _PIECE, source.size))
        data = load.take(_own_memory)
        crc = zlib.crc32(data, crc) if is_elements else 0
        yield data
        load.release()
    if is_elements:
        yield suffix_of(part.dtype, part.shape, crc)


def _own_memory(size: int) -> memoryview:
    return memoryview(bytearray(size))


Entry = tuple[Identity, Callable[[], Content]]
"""An item, or a shard of one, without its writer's id; and what gives its bytes when it is its turn."""

_REASONS = 3  # in a warning


@dataclass(frozen=True)
class FileRecord:
    """What the process that publishes has to know of a data file.

    - `path`: relative to the checkpoint.
    - `crc`: CRC-32C of the whole file, where its items have no containers.
    - `wrapped`: the wrapped data key of the process, as text; empty where the chain does not encrypt.
    - `modules`: the third-party packages that provided its codecs.
    - `chain`: the extensions and the ids of the keys, for people; all ranks must have the same.
    - `place`: where the process found the checkpoint's folder, if that is a local or mounted one.
    """

    path: str
    size: int
    crc: int | None
    writer_id: bytes
    wrapped: str
    modules: tuple[str, ...]
    chain: str
    place: Mount | None


class SavedFile(NamedTuple):
    """A data file that is finished, and the items in it, in their order."""

    record: FileRecord
    written: list[Written]


@dataclass
class Save:
    """One save by one process.

    The writer id is minted here, for each save, rather than taken from DCP: every rank draws its own ``save_id``, it
    survives into the next save, and cached plans bring back the file names of the first.

    - `storage`: the checkpoint's folder, held open from `enter` to `leave`.
    - `extensions`: renewed for this save.
    - `sync`: whether each file must be on the disk before the save goes on.
    - `place`: where the checkpoint's folder is, once it is there; None if it is not local.
    - `meter`: what all threads of the save count in.
    """

    storage: Storage
    extensions: Extensions
    block_log2: int
    sync: bool
    writer_id: bytes = field(default_factory=lambda: os.urandom(WRITER_ID_BYTES))
    place: Mount | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        self.modules = tuple(self.extensions.providers())
        self.meter = Meter()
        self._needs: dict[str, tuple[tuple[str, ...], str]] = {}
        self._failures: list[BaseException] = []

    def enter(self, *, links: bool = True) -> Storage:
        """Hold a local folder open, whatever is put in its place; AbortedError for a link that is not followed."""
        self.storage = self.storage.hold(links=links)
        return self.storage

    def leave(self) -> None:
        self.storage = self.storage.let_go()

    def file_name(self, rank: int, number: int) -> str:
        """A name that no other save or process uses."""
        return data_name(rank, number, self.writer_id)

    def refused_objects(self) -> tuple[frozenset[str], str]:
        """What readers refuse by default of the objects that were saved: the names that they need, and a text that says
        so, or "" if there is nothing.
        """
        needs = sorted(self._needs.items())
        names = sorted({name for _, (names, _) in needs for name in names})
        reasons = {item: reason for item, (_, reason) in needs if reason}
        if not needs:
            return frozenset(), ""
        text = f"readers will refuse objects of this checkpoint by default: {some([item for item, _ in needs])}."
        if names:
            text += f" They need {some(names, most=20)}; pass the reader safe_globals=[{some(names, most=20)}]."
        for item, reason in list(reasons.items())[:_REASONS]:
            text += f" {some([item])} does not load then either: {reason}; store a list, a dict or a string instead."
        return frozenset([*names, *reasons.values()]), text

    def write_files(
        self,
        files: Mapping[str, Iterable[Entry]],
        threads: int,
        opening: Callable[[str], AbstractContextManager[Any]],
    ) -> list[SavedFile]:
        """Write files, each with its items, in up to `threads` threads, this one among them. Returns when all have
        stopped, or raises the first failure in any; an interrupt of this thread is one, too.
        """
        stored: dict[str, SavedFile] = {}

        def write(name: str, entries: Iterable[Entry]) -> None:
            with opening(name) as raw:
                stored[name] = self.write_file(raw, name, entries)
                begin = perf_counter()
            self.meter.io(perf_counter() - begin)  # an object store uploads when the file is closed

        try:
            writes = [partial(write, *file) for file in files.items()]
            side_by_side(writes, min(threads, len(files)), self._failures)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                error.add_note(f"the disk is too full for this save. {_ROOM}")
            raise
        return [stored[name] for name in files]

    def write_file(self, raw: IO[bytes], path: str, entries: Iterable[Entry]) -> SavedFile:
        """Write items into one file; after any error all other files of this save stop, too."""
        file = DataFile(raw, path, self)
        place = "nothing yet"
        try:
            with located(file=path):
                for part, content in entries:
                    if self._failures:
                        raise AbortedError("another file of this save failed")
                    place = f"item {part.name}"
                    self.add(file, part, content())
                place = "the end"
                file.finish()
        except BaseException as error:
            if not isinstance(error, StreamxfError):
                error.add_note(escaped(f"while {place} was written to file {path}"))
            self._failures.append(error)
            file.cancel()
            raise
        return self.stored(file)

    def add(self, file: DataFile, part: Identity, content: Content) -> None:
        """Write an item into a file, and take note of what an object needs."""
        if content.kind is Kind.OBJECT and isinstance(content.source, MemorySource):
            names, reason = quick_needs(content.source.data)
            if names or reason:
                self._needs[part.name] = names, reason
        file.add(part, content)

    def stored(self, file: DataFile) -> SavedFile:
        """What is to be published of a finished file."""
        encryption = self.extensions.encryption
        wrapped = encryption.wrapped if encryption is not None else ""
        about = self.modules, self.extensions.summary(), self.place
        return SavedFile(FileRecord(file.path, file.size, file.crc, self.writer_id, wrapped, *about), file.written)


def check_space(storage: Storage, needed: int, extensions: Extensions) -> None:
    """Raise NoSpaceError if tensors of `needed` bytes cannot fit."""
    volume = storage.volume()
    if volume is not None and needed > volume.free and is_exact(extensions, volume):
        refuse(storage.given, needed, volume.free)


def is_exact(extensions: Extensions, volume: Volume) -> bool:
    """Whether tensors surely take their bytes."""
    roles = {codec.role for codec in extensions.chain}
    if extensions.foreign or roles - {"checksum", "encryption"}:
        return False
    return volume.plain or "encryption" in roles  # of which no file system makes less


_ROOM = (
    "Make room (`streamxf forget` removes checkpoints by rules, "
    "`streamxf clean` what failed saves left), or save elsewhere"
)


def refuse(folder: str, needed: int, free: int, whose: str = "") -> NoReturn:
    sizes = [_shown(size) if _shown(needed) != _shown(free) else f"{size:,} bytes" for size in (needed, free)]
    raise NoSpaceError(
        f"the disk is too full for this save: at least {sizes[0]} are to be written to it{whose}, and "
        f"{sizes[1]} are free. A checkpoint that is there stays until the new one is published, so both need "
        f"space. Nothing was written. {_ROOM}",
        file=folder,
    )


def _shown(size: int) -> str:
    return f"{size / 2**30:,.2f} GiB" if size >= 2**30 else f"{size / 2**20:,.2f} MiB"
