"""Data files, item by item: each is read once, front to back, and its items are checked on the way."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO, Any

from streamxf.container.header import Header, Kind
from streamxf.container.limits import MAGIC
from streamxf.dcp.load.items import ItemOpener
from streamxf.dcp.metadata.manifest import FileFacts, check_path
from streamxf.dcp.verify.archive import SliceFile, check_records, check_tensor
from streamxf.dcp.verify.container import Then, check_blocks
from streamxf.dcp.verify.metadata import Entry
from streamxf.dcp.verify.report import Findings
from streamxf.dcp.verify.scan import find_entries
from streamxf.dcp.verify.tape import Tape
from streamxf.engine import Pipeline
from streamxf.errors import (
    CodecError,
    ContainerError,
    KeyMissingError,
    MetadataError,
    StreamxfError,
    WrongKeyError,
)
from streamxf.fileio.blocks import BlockReader, read_header
from streamxf.fileio.reader import StreamReader
from streamxf.fileio.source import FileSlice


@dataclass
class ItemNotes:
    """What is found about one item."""

    findings: Findings
    file: str
    entry: Entry
    framed: bool = False
    damaged: bool = False

    def error(self, error: Exception, block: int | None = None) -> None:
        self.damaged = True
        self.findings.damage(error, self.file, self.entry.name, self.entry.offset, block)

    def block(self) -> None:
        self.findings.blocks += 1


@dataclass
class Unproved:
    """Items of a checkpoint for which something could not be checked, counted."""

    keyed: int = 0
    unbound: int = 0
    objects: int = 0
    without_crc: int = 0
    foreign: int = 0
    undescribed: int = 0
    refused: list[StreamxfError] = field(default_factory=list)
    opened: int = 0


class FileChecker:
    """Checks the data files of one checkpoint.

    Parameters
    ----------
    reader : FileSystemReader or FsspecReader
        Knows where the files are.
    opener : ItemOpener
        Knows manifest, codecs, keys and policy.
    findings : Findings
    unproved : Unproved
    """

    def __init__(self, reader: Any, opener: ItemOpener, findings: Findings, unproved: Unproved) -> None:
        self._reader = reader
        self._opener = opener
        self._findings = findings
        self._unproved = unproved
        self._pipeline: Pipeline[Then] = Pipeline(_do)

    def check(self, name: str, entries: Sequence[Entry], facts: FileFacts | None) -> None:
        """Check a file and the items that the metadata places in it, which are sorted by their places."""
        with ExitStack() as stack:
            opened = self._open(name, stack)
            if opened is None:
                for entry in entries:
                    self._lost(name, entry, "the item lies in a file that cannot be read")
                return
            file, size = opened
            if facts is not None and facts.size != size:
                text = f"the file has {size} bytes, the manifest says {facts.size}: it was cut or continued"
                self._findings.damage(ContainerError(text), name)
            tape = Tape(file, size)
            try:
                self._check_all(name, tape, entries, facts)
                self._pipeline.settle()
            except OSError as error:
                self._findings.damage(error, name)
            finally:
                self._pipeline.cancel()

    def scan(self, name: str) -> None:
        """Check a file of which no metadata tells what is in it."""
        with ExitStack() as stack:
            opened = self._open(name, stack)
            if opened is None:
                return
            file, size = opened
            tape = Tape(file, size)
            try:
                entries = list(find_entries(tape, name, self._findings))
                self._check_all(name, tape, entries, None)
                self._pipeline.settle()
            except OSError as error:
                self._findings.damage(error, name)
            finally:
                self._pipeline.cancel()

    def _open(self, name: str, stack: ExitStack) -> tuple[IO[bytes], int] | None:
        reader = self._reader
        path = reader.fs.concat_path(reader.path, check_path(name))
        try:
            reader._check_local(path)
            file = stack.enter_context(reader.fs.create_stream(path, "rb"))
            size = file.seek(0, io.SEEK_END)
        except FileNotFoundError:
            self._findings.damage(MetadataError("the file is missing from the checkpoint"), name)
            return None
        except (StreamxfError, OSError) as error:
            self._findings.damage(error, name)
            return None
        self._findings.files += 1
        return file, size

    def _lost(self, name: str, entry: Entry, text: str) -> None:
        self._findings.items += 1
        self._findings.damage(MetadataError(text), name, entry.name, entry.offset)

    def _check_all(self, name: str, tape: Tape, entries: Sequence[Entry], facts: FileFacts | None) -> None:
        later: list[ItemNotes] = []
        at = 0
        for entry in entries:
            self._check_place(name, entry, at)
            at = max(at, entry.stop)
            if entry.place.offset >= tape.size and entry.place.length:
                self._lost(name, entry, "the metadata places the item beyond the end of its file: the file was cut")
                continue
            if facts is not None:
                tape.advance(entry.place.offset)
            notes = ItemNotes(self._findings, name, entry)
            self._findings.items += 1
            self._check_item(tape, notes)
            if notes.entry.expected is not None:
                later.append(notes)
        if at < tape.size:
            text = f"{tape.size - at} bytes follow the last item, and nothing accounts for them: the file was continued"
            self._findings.damage(ContainerError(text), name)
        self._pipeline.settle()
        whole = False
        if facts is not None:
            self._findings.bytes_read += tape.size
            whole = tape.digest() == facts.digest
        else:
            self._findings.bytes_read += sum(entry.place.length for entry in entries)
        for notes in later:
            if not notes.damaged:
                self._check_content(tape, notes, whole)
        if facts is not None and not whole and not self._findings.damages_in(name):
            text = "the digest of the whole file is not the manifest's, though no item is damaged: it was altered"
            self._findings.damage(ContainerError(text), name)

    def _check_place(self, name: str, entry: Entry, at: int) -> None:
        """Compare where an item begins with where those before it end."""
        begin = entry.place.offset
        if begin > at:
            text = f"nothing accounts for the {begin - at} bytes from {at} on"
            self._findings.damage(ContainerError(text), name)
        elif begin < at and entry.place.length:
            text = "the metadata places the item over another one"
            self._findings.damage(MetadataError(text), name, entry.name, entry.offset)

    # -- one item, on the way through its file -----------------------------------------------------

    def _check_item(self, tape: Tape, notes: ItemNotes) -> None:
        entry = notes.entry
        length = min(entry.place.length, tape.size - entry.place.offset)
        if length < entry.place.length:
            notes.error(ContainerError("the metadata places the item beyond the end of its file: the file was cut"))
        if entry.expected is None and self._opener.manifest is not None:
            notes.error(MetadataError("the metadata gives the item a place, and does not say what it is"))
        try:
            source = FileSlice(tape, entry.place.offset, length)
            known = self._is_known(notes)
            if not (self._opener.in_container(entry.descriptors) if known else _begins_as_container(source)):
                return
            header = read_header(source)
            coder = self._coder(header, notes) if known and self._is_the_one(header, notes) else None
        except (StreamxfError, OSError) as error:
            notes.error(error)
            return
        described = entry.expected is not None and coder is not None
        foreign = known and self._opener.is_foreign(entry.descriptors)
        check_size = entry.expected.check_size if entry.expected is not None and not foreign else None
        geometry = entry.geometry if described and not foreign else None
        check_blocks(source, header, coder, geometry, notes, self._pipeline, check_size)
        if not described:
            notes.entry = _without_content(entry)

    def _is_known(self, notes: ItemNotes) -> bool:
        """Whether the chain can be rebuilt, as far as its names tell."""
        try:
            self._opener.in_container(notes.entry.descriptors)
        except StreamxfError as error:
            notes.error(error)
            return False
        return True

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

    def _coder(self, header: Header, notes: ItemNotes) -> Any:
        """What decodes the blocks; None where a key is missing, or the chain cannot be rebuilt."""
        if header.keyed and not len(self._opener.registry.keys):
            self._unproved.keyed += 1
            return None
        if header.keyed and notes.entry.expected is None:
            self._unproved.keyed += 1
            return None  # the wrapped keys stood in the metadata
        try:
            coder = self._opener.coder(header, notes.entry.descriptors)
        except (KeyMissingError, WrongKeyError) as error:
            self._unproved.refused.append(error)
            notes.error(error)
            return None
        except StreamxfError as error:
            notes.error(error)
            return None
        self._unproved.opened += header.keyed
        return coder

    # -- what an item holds, once its blocks were found intact -------------------------------------

    def _check_content(self, tape: Tape, notes: ItemNotes, whole: bool) -> None:
        """Check that an item holds what the metadata says.

        Parameters
        ----------
        whole : bool
            Whether the digest of its file has shown that the bytes are those that were saved.
        """
        entry = notes.entry
        expected = entry.expected
        if expected is None or notes.framed:
            return
        contained = self._opener.in_container(entry.descriptors)
        foreign = self._opener.is_foreign(entry.descriptors)
        if expected.kind is Kind.BYTES and contained and not foreign:
            self._unproved.objects += 1
            return
        try:
            source = FileSlice(tape, entry.place.offset, entry.place.length)
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
            else:
                self._unproved.objects += 1
        except (StreamxfError, OSError) as error:
            notes.error(error)
        except Exception as error:  # a foreign extension raises anything
            notes.error(CodecError(f"the item cannot be decoded: {type(error).__name__}: {error}"))


def _begins_as_container(source: FileSlice) -> bool:
    return source.length >= len(MAGIC) and source.read_at(0, len(MAGIC)) == MAGIC


def _without_content(entry: Entry) -> Entry:
    return Entry(entry.name, entry.offset, entry.place, None, None)


def _do(then: Then) -> None:
    then()
