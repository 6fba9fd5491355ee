"""`DataFile`: items on their way into one file, and what they pass: stream transforms, then the codecs of a chain."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import crc32c
from typing_extensions import Buffer

from streamxf.buffers import Writable, flat_view, write_all
from streamxf.chain import Chain
from streamxf.checkpoint.sources import Content
from streamxf.codecs.encrypt import Encrypt
from streamxf.engine import Pipeline
from streamxf.errors import StreamxfError
from streamxf.format.header import Identity, Kind
from streamxf.format.items import ITEMSIZES, Place, elements_size
from streamxf.format.limits import DEFAULT_BLOCK_LOG2
from streamxf.progress import Share
from streamxf.registry import CodecRegistry
from streamxf.report import Meter
from streamxf.storage.disk import Mount
from streamxf.storage.files import SyncedFile
from streamxf.stream.encoder import ContainerEncoder, Encoded, MemorySource
from streamxf.stream.writer import StreamWriter
from streamxf.torchsave.writing import prefix_of, suffix_of

if TYPE_CHECKING:
    from streamxf.checkpoint.saving import Save

# Bytes; a block below this is encoded on the spot: a worker would spend longer on waking up than on the block.
ON_THE_SPOT = 64 * 1024

_PIECE = 2**20  # bytes that a stream without blocks is given at a time


@dataclass(frozen=True)
class Extensions:
    """What the data passes on save: foreign extensions as streams, then the codecs of the chain as blocks."""

    foreign: tuple[Any, ...]  # torch's stream extensions, which have get_descriptor and transform_to
    chain: Chain

    def renew(self) -> Extensions:
        return Extensions(self.foreign, self.chain.renew())

    def providers(self) -> list[str]:
        """The third-party packages that the codecs come from, as ``StorageMeta.modules`` records them."""
        registry = CodecRegistry()
        return [str(provider) for provider in map(registry.provider, self.chain) if provider is not None]

    def summary(self) -> str:
        """The extensions in save order, without what differs from process to process, and the ids of the keys."""
        names = [extension.get_descriptor() for extension in self.foreign] + list(self.chain.bound)
        text = " > ".join(names or ["no extension"])
        if (encryption := self.encryption) is not None:
            signer = [f"signed by {encryption.signer.id}"] if encryption.signer is not None else []
            text += f" under key {', '.join([*encryption.key_ids, *signer])}"
        return text

    @property
    def recorded(self) -> tuple[str, ...]:
        """The descriptors of a `Place`, in save order."""
        foreign = (f"!{extension.get_descriptor()}" for extension in self.foreign)
        return (*foreign, *map(str, self.chain.descriptors))

    @property
    def in_blocks(self) -> bool:
        """Whether data goes through codecs alone, so that it need not be a stream."""
        return len(self.chain) > 0 and not self.foreign

    @property
    def encryption(self) -> Encrypt | None:
        return self.chain.encryption

    @property
    def hashed(self) -> bool:
        """Whether containers carry a SHA-256 of each block, because the save is signed."""
        return self.encryption is not None and self.encryption.hashed

    def open(
        self,
        raw: Writable,
        identity: Identity,
        *,
        published: bool = False,
        block_log2: int = DEFAULT_BLOCK_LOG2,
        meter: Meter | None = None,
    ) -> tuple[Any, StreamWriter | None]:
        """Open the streams for one item: the one that takes its bytes, and the container by which blocks leave."""
        container = None
        if len(self.chain):
            encoder = ContainerEncoder(
                self.chain,
                transforms=tuple(f"!{extension.get_descriptor()}" for extension in self.foreign),
                identity=identity,
                published=published,
                hashed=self.hashed and published,
                block_log2=block_log2,
                meter=meter,
            )
            container = StreamWriter(raw, encoder, meter=meter)
        stream: Any = container if container is not None else _Unclosable(raw)
        for extension in reversed(self.foreign):
            stream = extension.transform_to(stream)
        return stream, container


class _Unclosable:
    """What a foreign stream writes to when no container follows: items share the file, which is flushed and closed once
    all of them are written.
    """

    def __init__(self, raw: Writable) -> None:
        self.write = raw.write

    def flush(self) -> None:
        """As the class says."""

    close = flush


class Written(NamedTuple):
    """An item as it stands in a data file; `sha256` and `number` as in `Place`."""

    part: Identity
    at: int
    size: int
    sha256: bytes | None = None
    number: int | None = None

    def place(self, path: str, descriptors: tuple[str, ...]) -> Place:
        return Place(path, self.at, self.size, descriptors, self.sha256, self.number)


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
        """Write an item, or a shard of one; the writer's id and a number are added. Raises whatever went wrong, with
        this item or one before it; then the file is spoiled.
        """
        part = part._replace(writer_id=self._save.writer_id, kind=content.kind, number=next(self._save.numbers))
        if content.kind is Kind.OBJECT and isinstance(content.source, MemorySource):
            self._save.note_needs(part.name, content.source.data)
        try:
            self._add_blocks(part, content) if self._in_blocks else self._add_framed(part, content)
        except StreamxfError as error:
            error.locate(item=part.name)
            raise

    def settle(self) -> None:
        """Wait until no memory that was handed over is in use any more; raises as `add`."""
        self._store(self._pipeline.results())

    def finish(self) -> SavedFile:
        """Wait until all items have left for the operating system, and if the save syncs for the disk; returns what is
        to be published. Raises as `add`.
        """
        self.settle()
        save, meter = self._save, self._save.meter
        meter.blocks(self._pipeline.peak_jobs)
        begin = perf_counter()
        if self._synced is not None:
            self._synced.sync()
        else:
            self._raw.flush()
        meter.io(perf_counter() - begin)
        encryption = save.extensions.encryption
        wrapped = encryption.wrapped if encryption is not None else ""
        about = save.modules, save.extensions.summary(), save.place
        return SavedFile(FileRecord(self.path, self.size, self.crc, save.writer_id, wrapped, *about), self.written)

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
        stream, container = save.extensions.open(
            self, part, published=True, block_log2=save.block_log2, meter=save.meter
        )
        start, raw_size = self.size, 0
        share = self._share_of(part, content.source.size)
        try:
            for piece in _pieces(part, content):
                if stream.write(piece) not in (len(piece), None):  # some streams return nothing
                    raise OSError("a stream transform accepted only part of what was written to it")
                raw_size += len(piece)
                if share is not None:
                    share.advance(len(piece))
            stream.close()
            if container is not None:
                container.close()  # a foreign stream need not close what it wraps; closing twice is fine
        except BaseException:
            if container is not None:
                container.abort()
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
        number = part.number if self.crc is None else None
        self.written.append(Written(part, self.size - size, size, sha256, number))
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
        if load.release is not None:
            load.release()
    if is_elements:
        yield suffix_of(part.dtype, part.shape, crc)


def _own_memory(size: int) -> memoryview:
    return memoryview(bytearray(size))
