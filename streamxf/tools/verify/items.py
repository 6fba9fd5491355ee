"""`FileCheck`: one data file, its items one after the other, and the digest of the whole where there is one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import crc32c

from streamxf.chain import StreamCoder
from streamxf.checkpoint.opening import ItemOpener, Wanted
from streamxf.checkpoint.scan import Found, scan
from streamxf.descriptor import Descriptor, shorten
from streamxf.engine import Pipeline
from streamxf.errors import (
    ContainerError,
    KeyMissingError,
    KeyServiceError,
    MetadataError,
    StreamxfError,
    UnsupportedError,
    WrongKeyError,
)
from streamxf.format.header import Header, Kind
from streamxf.format.index import File
from streamxf.format.items import TensorItem
from streamxf.proportion import Budget
from streamxf.registry import NOT_AT_HAND
from streamxf.storage.reading import StoredFile
from streamxf.stream.container import ChainOpener, read_header
from streamxf.stream.reader import MemoryBlocks, StreamReader
from streamxf.tools.verify.reading import Call, Outcome, check_blocks, note, pieces_of
from streamxf.tools.verify.report import KEYED, TRANSFORMED, UNBOUND, WITHOUT_CRC, Notes
from streamxf.torchsave.framed import check_records, find_framed, load_framed
from streamxf.wording import many, some


class FileCheck:
    """A check of one data file of about `size` bytes. Metadata gives what opens its items, these in the order of their
    places, what is known of the file itself, and the budget that pays for a tensor which torch has to load; what no
    metadata describes is scanned.
    """

    def __init__(
        self,
        call: Call,
        name: str,
        size: int,
        opener: ItemOpener | None = None,
        items: Sequence[Wanted] = (),
        facts: File | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.findings = call.findings(name)
        self._call = call
        self._opener = opener
        self._items = items
        self._facts = facts
        self._budget = budget
        self._share = call.share(size)
        self._pipeline: Pipeline[Outcome] = Pipeline()

    def run(self) -> None:
        """Make the check; damage goes to the findings."""
        findings = self.findings
        try:
            with self._call.open(findings.file, share=self._share) as file:
                findings.files = 1
                try:
                    if self._opener is None:
                        self._scan(file)
                    else:
                        self._check(file, self._opener)
                finally:
                    self._pipeline.cancel()
        except FileNotFoundError:
            self._lose_all("the file is missing from the checkpoint")
        except (StreamxfError, OSError) as error:
            findings.damage(error)
            if not findings.files and self._items:
                self._lose_all("the file cannot be read")
        self._share.finish()

    def _lose_all(self, text: str) -> None:
        self.findings.items += len(self._items)
        items = some(shorten(wanted.item.name) for wanted in self._items)
        lost = f", and with it {many(len(self._items), 'item')}: {items}" if self._items else ""
        self.findings.damage(MetadataError(f"{text}{lost}"))

    def _check(self, file: StoredFile, opener: ItemOpener) -> None:
        facts = self._facts
        if facts is not None and facts.size != file.size:
            text = f"the file has {file.size} bytes, the metadata says {facts.size}: it was cut or continued"
            self.findings.damage(ContainerError(text))
        later = [
            (wanted, notes)
            for wanted in self._in_place(file.size)
            if (notes := self._check_stored(file, wanted, opener)) is not None
        ]
        note(self._pipeline.results())
        unreadable, whole = None, False
        if facts is not None and facts.crc is not None and facts.size == file.size:
            try:
                pieces = pieces_of(file.slice(0, file.size))
                whole = reduce(lambda crc, piece: crc32c.crc32c(piece, crc), pieces, 0) == facts.crc
            except (StreamxfError, OSError) as error:
                unreadable = error
        for wanted, notes in later:
            if not notes.damaged:
                self._check_content(file, wanted, notes, opener, whole)
        if facts is not None and facts.crc is not None and not whole and not self.findings.damaged:
            text = "the CRC of the whole file is not the one in the metadata, though no item is damaged"
            self.findings.damage(unreadable or ContainerError(f"{text}: it was altered"))

    def _in_place(self, size: int) -> Iterator[Wanted]:
        """Those of the items that can be checked; what lies between them is noted."""
        at = 0
        for wanted in self._items:
            place = wanted.place
            if place.size and place.at < at:
                # otherwise little metadata could have the same bytes read without end
                self._lose(wanted, "the metadata places the item over another one; it was not checked")
                continue
            if place.at > at:
                self.findings.damage(ContainerError(f"nothing accounts for the {place.at - at} bytes from {at} on"))
            at = max(at, place.at + place.size)
            if place.at > size or (place.size and place.at == size):
                self._lose(wanted, "the metadata places the item beyond the end of its file: the file was cut")
                continue
            self.findings.items += 1
            self.findings.bytes_read += min(place.size, size - place.at)
            yield wanted
        if at < size:
            text = f"{size - at} bytes follow the last item, and nothing accounts for them: the file was continued"
            self.findings.damage(ContainerError(text))

    def _lose(self, wanted: Wanted, text: str) -> None:
        self.findings.items += 1
        self._notes(wanted).error(MetadataError(text))

    def _notes(self, wanted: Wanted) -> Notes:
        return Notes(self.findings, wanted.item.name, wanted.chunk.offset if wanted.chunk is not None else None)

    # -- one item: on the way through the file, and once its blocks were found intact ----------------

    def _check_stored(self, file: StoredFile, wanted: Wanted, opener: ItemOpener) -> Notes | None:
        """Check the container of an item that begins inside of the file. Returns its notes if what it holds remains to
        be checked.
        """
        notes, place = self._notes(wanted), wanted.place
        length = min(place.size, file.size - place.at)
        if length < place.size:
            notes.error(ContainerError("the metadata places the item beyond the end of its file: the file was cut"))
        try:
            source = file.slice(place.at, length)
            if not opener.in_container(source, place):
                return notes
            header = read_header(source)
        except (StreamxfError, OSError) as error:
            notes.error(error)
            return None
        self.findings.skipped[UNBOUND] += header.identity is None
        coder = None
        try:
            opener.check_header(header, wanted)
        except StreamxfError as error:
            notes.error(error)
        else:
            coder = self._coder(header, notes, wanted, opener)
        transformed = header.chain != header.block_chain
        check_size = None if transformed else opener.size_check(wanted)
        check_blocks(source, header, coder, notes, self._pipeline, place.sha256, check_size)
        return notes if coder is not None and (transformed or wanted.kind is Kind.FRAMED) else None

    def _coder(
        self, header: Header, notes: Notes, wanted: Wanted | None = None, opener: ItemOpener | None = None
    ) -> StreamCoder | None:
        """What decodes the blocks; None where a key or a codec is missing, or the chain cannot be rebuilt."""
        access, findings = self._call.access, self.findings
        if header.keyed and (wanted is None or not len(access.keys)):  # the wrapped keys stood in the metadata
            findings.skipped[KEYED] += 1
            return None
        try:
            with self._call.lock:
                if opener is not None and wanted is not None:
                    coder = opener.coder(header, wanted.place)
                else:
                    coder = ChainOpener([Descriptor.parse(text) for text in header.block_chain], access.codecs).coder(
                        header
                    )
        except NOT_AT_HAND as error:
            findings.missing.append(error)
            return None
        except StreamxfError as error:
            if isinstance(error, KeyMissingError | WrongKeyError | KeyServiceError):
                findings.refused.append(error)
            notes.error(error)
            return None
        findings.opened += header.keyed
        return coder

    def _check_content(self, file: StoredFile, wanted: Wanted, notes: Notes, opener: ItemOpener, whole: bool) -> None:
        """Check that an item holds what the metadata says; `whole` if the CRC of its file matches."""
        item, chunk, skipped = wanted.item, wanted.chunk, self.findings.skipped
        try:
            source = file.slice(wanted.place.at, wanted.place.size)
            contained = opener.in_container(source, wanted.place)
            blocks = opener.open_source(source, wanted)
            stream = StreamReader(blocks)
            skipped[TRANSFORMED] += isinstance(blocks, MemoryBlocks)
            if not contained and not whole:
                skipped[UNBOUND] += 1
                skipped[WITHOUT_CRC] += check_records(stream, blocks.size) is None
            if chunk is None or not isinstance(item, TensorItem):
                return
            try:
                find_framed(stream, blocks.size, item.dtype, chunk.shape)
            except UnsupportedError:  # only torch can tell what it is
                assert self._budget is not None
                self._budget.renewed().spend(blocks.size, "the tensor, which torch has to load whole,")
                load_framed(self._call.access.objects, stream, blocks.size, item, chunk)
        except NOT_AT_HAND as error:
            self.findings.missing.append(error)
        except (StreamxfError, OSError) as error:
            notes.error(error)

    # -- a file of which no metadata says what is in it ----------------------------------------------

    def _scan(self, file: StoredFile) -> None:
        findings = self.findings
        for found in scan(file.slice(0, file.size)):
            if isinstance(found, Found):
                findings.items += 1
                findings.bytes_read += found.size
                header, identity = found.header, found.header.identity
                notes = Notes(findings, f"(at byte {found.at})")
                if identity is not None:
                    notes = Notes(findings, identity.name, identity.offset)
                source = file.slice(found.at, found.size)
                check_blocks(source, header, self._coder(header, notes), notes, self._pipeline)
            elif found.size == file.size:
                findings.unchecked.append(
                    f"the content of {findings.file}, which has no containers, so that without metadata nothing tells "
                    "what it holds"
                )
            else:
                text = f"bytes {found.at} to {found.at + found.size} are not a container"
                findings.damage(ContainerError(text))
        note(self._pipeline.results())
