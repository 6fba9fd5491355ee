"""One item of a data file: its container block by block, and whether it holds what the metadata says."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field, fields
from typing import Any

import crc32c

from streamxf.container.header import Header, Kind
from streamxf.container.limits import MAGIC
from streamxf.dcp.load.items import ItemOpener
from streamxf.dcp.verify.archive import check_records, check_tensor
from streamxf.dcp.verify.container import Then, check_blocks
from streamxf.dcp.verify.coverage import Coverage
from streamxf.dcp.verify.datafile import DataFile
from streamxf.dcp.verify.digest import Digest
from streamxf.dcp.verify.metadata import Entry
from streamxf.dcp.verify.report import Findings
from streamxf.engine import Pipeline
from streamxf.errors import (
    CodecError,
    ContainerError,
    KeyMissingError,
    KeyServiceError,
    MetadataError,
    StreamxfError,
    WrongKeyError,
)
from streamxf.fileio.blocks import BlockReader, read_header
from streamxf.fileio.reader import StreamReader
from streamxf.fileio.slicefile import SliceFile
from streamxf.fileio.source import READ_WHOLE, FileSlice
from streamxf.registry import NOT_AT_HAND


@dataclass
class Unproved:
    """Items for which something could not be checked, counted."""

    keyed: int = 0
    missing: list[StreamxfError] = field(default_factory=list)
    unbound: int = 0
    without_crc: int = 0
    foreign: int = 0
    refused: list[StreamxfError] = field(default_factory=list)
    opened: int = 0

    def add(self, other: Unproved) -> None:
        """Count those of another file, too."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass(slots=True)
class ItemNotes:
    """What is found about one item."""

    findings: Findings
    file: str
    entry: Entry
    digest: Digest | None = None
    framed: bool = False
    damaged: bool = False

    @property
    def counts_crcs(self) -> bool:
        return self.digest is not None

    def error(self, error: Exception, block: int | None = None) -> None:
        self.damaged = True
        self.findings.damage(error, self.file, self.entry.name, self.entry.offset, block)

    def unreadable(self, error: Exception) -> None:
        """Record that a piece of it cannot be read; once, for there may be as many as there are pieces."""
        if not self.damaged:
            self.error(error)

    def block(self) -> None:
        self.findings.blocks += 1

    def crc(self, start: int, size: int, crc: int) -> None:
        if self.digest is not None:
            self.digest.add(int(self.entry.place.offset) + start, size, crc)


@dataclass
class Opening:
    """How items of one checkpoint are opened, in any thread.

    Attributes
    ----------
    opener : ItemOpener
        Knows manifest, codecs, keys and policy.
    lock : Lock
        Held while a chain is rebuilt, which may ask a service for its key.
    """

    opener: ItemOpener
    lock: threading.Lock = field(default_factory=threading.Lock)


class ItemChecker:
    """Checks the items of one data file.

    Parameters
    ----------
    file : DataFile
    opening : Opening
    findings : Findings
    unproved : Unproved
    pipeline : Pipeline
        Its sink makes the calls that it gets.
    coverage : Coverage or None
        None where there is no digest of the file to compare with.
    """

    def __init__(
        self,
        file: DataFile,
        opening: Opening,
        findings: Findings,
        unproved: Unproved,
        pipeline: Pipeline[Then],
        coverage: Coverage | None,
    ) -> None:
        self._file = file
        self._opener = opening.opener
        self._lock = opening.lock
        self._findings = findings
        self._unproved = unproved
        self._pipeline = pipeline
        self._coverage = coverage

    # -- on the way through the file ---------------------------------------------------------------

    def check(self, entry: Entry) -> ItemNotes:
        """Check an item that begins inside of the file; its blocks are done when the pipeline has settled."""
        notes = ItemNotes(self._findings, self._file.name, entry)
        length = min(entry.place.length, self._file.size - entry.place.offset)
        if length < entry.place.length:
            notes.error(ContainerError("the metadata places the item beyond the end of its file: the file was cut"))
        if entry.expected is None and self._opener.manifest is not None:
            notes.error(MetadataError("the metadata gives the item a place, and does not say what it is"))
        try:
            source = FileSlice(self._file, entry.place.offset, length)
            known, missing = self._is_known(notes)
            header = self._header(source, known, notes)
            if header is None:
                if missing is not None:
                    self._unproved.missing.append(missing)
                    notes.entry = _without_content(entry)
                return notes
            coder = None
            if (known or missing is not None) and self._is_the_one(header, notes):
                coder = self._coder(header, notes, missing)
        except (StreamxfError, OSError) as error:
            notes.error(error)
            return notes
        described = entry.expected is not None and coder is not None
        foreign = known and self._opener.is_foreign(entry.descriptors)
        check_size = entry.expected.check_size if entry.expected is not None and not foreign else None
        geometry = entry.geometry if described and not foreign else None
        stop = check_blocks(source, header, coder, geometry, notes, self._pipeline, check_size)
        self._cover(notes, stop, length)
        if not described:
            notes.entry = _without_content(entry)
        return notes

    def _header(self, source: FileSlice, known: bool, notes: ItemNotes) -> Header | None:
        """The header of the item's container; None if it stands in none. The digest gets what was read."""
        if self._coverage is not None:
            if 0 < source.length <= READ_WHOLE:
                crc = crc32c.crc32c(source.read_at(0, source.length))
                self._coverage.digest.add(notes.entry.place.offset, source.length, crc)
            else:
                notes.digest = self._coverage.digest
        if not self._stands_in_container(source, known, notes.entry):
            self._cover(notes, 0, source.length)
            return None
        header = read_header(source)
        self._cover(notes, 0, header.size)
        return header

    def _stands_in_container(self, source: FileSlice, known: bool, entry: Entry) -> bool:
        if known and self._opener.in_container(entry.descriptors):
            return True
        if known and entry.expected is not None:
            return False
        return source.length >= len(MAGIC) and source.read_at(0, len(MAGIC)) == MAGIC

    def _cover(self, notes: ItemNotes, start: int, stop: int) -> None:
        """Read what is no block of an item, from `start` to `stop`, for the digest of the file, which has small items
        already.
        """
        if self._coverage is not None and notes.digest is not None:
            begin = notes.entry.place.offset
            self._coverage.read(begin + start, begin + stop, notes.unreadable)

    def _is_known(self, notes: ItemNotes) -> tuple[bool, StreamxfError | None]:
        """Whether the chain can be rebuilt, as far as its names tell; and what is not at hand, if that is why."""
        try:
            with self._lock:
                self._opener.in_container(notes.entry.descriptors)
        except NOT_AT_HAND as error:
            return False, error
        except StreamxfError as error:
            notes.error(error)
            return False, None
        return True, None

    def _is_the_one(self, header: Header, notes: ItemNotes) -> bool:
        """Whether this is the item that the metadata says."""
        if notes.entry.expected is None:
            return True
        if header.identity is None:
            self._unproved.unbound += 1
        try:
            self._opener.check_header(header, notes.entry.descriptors, notes.entry.expected)
        except StreamxfError as error:
            notes.error(error)
            return False
        return True

    def _coder(self, header: Header, notes: ItemNotes, missing: StreamxfError | None) -> Any:
        """What decodes the blocks; None where a key or a codec is missing, or the chain cannot be rebuilt."""
        if header.keyed and not len(self._opener.registry.keys):
            self._unproved.keyed += 1
            return None
        if header.keyed and notes.entry.expected is None:
            self._unproved.keyed += 1
            return None  # the wrapped keys stood in the metadata
        if missing is not None:
            self._unproved.missing.append(missing)
            return None
        try:
            with self._lock:
                coder = self._opener.coder(header, notes.entry.descriptors)
        except (KeyMissingError, WrongKeyError, KeyServiceError) as error:
            self._unproved.refused.append(error)
            notes.error(error)
            return None
        except NOT_AT_HAND as error:
            self._unproved.missing.append(error)
            return None
        except StreamxfError as error:
            notes.error(error)
            return None
        self._unproved.opened += header.keyed
        return coder

    # -- what an item holds, once its blocks were found intact -------------------------------------

    def check_content(self, notes: ItemNotes, whole: bool) -> None:
        """Check that an item holds what the metadata says.

        Parameters
        ----------
        whole : bool
            Whether the digest of its file has shown that the bytes are those that were saved.
        """
        entry = notes.entry
        expected = entry.expected
        if expected is None or notes.framed or notes.damaged:
            return
        contained = self._opener.in_container(entry.descriptors)
        foreign = self._opener.is_foreign(entry.descriptors)
        if expected.kind is Kind.BYTES and contained and not foreign:
            return  # its bytes were compared, and objects are not unpickled
        try:
            source = FileSlice(self._file, entry.place.offset, entry.place.length)
            opened = self._opener.open(source, entry.descriptors, expected)
            stream: Any
            if opened is None:
                stream, size = SliceFile(source), source.length
                expected.check_size(size)
            elif isinstance(opened, BlockReader):
                stream, size = StreamReader(opened), opened.size
            else:
                stream, size = opened, opened.seek(0, os.SEEK_END)
            self._unproved.foreign += foreign
            if not contained and not whole:
                self._unproved.unbound += 1
                self._unproved.without_crc += not check_records(stream, size)
            if entry.geometry is not None:
                check_tensor(stream, size, entry.geometry, entry.place.length)
        except (StreamxfError, OSError) as error:
            notes.error(error)
        except Exception as error:  # a foreign extension raises anything
            notes.error(CodecError(f"the item cannot be decoded: {type(error).__name__}: {error}"))


def _without_content(entry: Entry) -> Entry:
    return Entry(entry.name, entry.offset, entry.place, None, None)
