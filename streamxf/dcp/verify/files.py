"""Data files: items one behind the other, and the digest of the whole, for which each byte is read once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from streamxf.dcp.metadata.manifest import FileFacts
from streamxf.dcp.verify.container import Then
from streamxf.dcp.verify.coverage import Coverage
from streamxf.dcp.verify.datafile import DataFile, opened
from streamxf.dcp.verify.items import ItemChecker, ItemNotes, Opening, Unproved
from streamxf.dcp.verify.metadata import Entry
from streamxf.dcp.verify.report import Findings
from streamxf.dcp.verify.scan import find_entries
from streamxf.engine import Pipeline
from streamxf.errors import ContainerError, MetadataError, StreamxfError
from streamxf.progress import Share


class FileCheck:
    """A check of one data file.

    Parameters
    ----------
    reader : FileSystemReader or FsspecReader
        Knows where the files are.
    opening : Opening
    name : str
        The file's, relative to the checkpoint.
    stopped : callable
        Whether nobody wants to know any more.
    max_expansion : int
        As `verify` takes it.
    share : Share, optional
        Is told what was read.

    Attributes
    ----------
    findings : Findings
    unproved : Unproved
    """

    def __init__(
        self,
        reader: Any,
        opening: Opening,
        name: str,
        stopped: Callable[[], bool],
        max_expansion: int,
        share: Share | None = None,
    ) -> None:
        self.findings = Findings()
        self.unproved = Unproved()
        self._reader = reader
        self._opening = opening
        self._name = name
        self._stopped = stopped
        self._max_expansion = max_expansion
        self._share = share
        self._pipeline: Pipeline[Then] = Pipeline(_do)

    def run(self, entries: Sequence[Entry], facts: FileFacts | None) -> None:
        """Check the items that the metadata places in the file, which are sorted by their places."""
        with self._open() as file:
            if file is None:
                for entry in entries:
                    self._lost(entry, "the item lies in a file that cannot be read")
                return
            if facts is not None and facts.size != file.size:
                text = f"the file has {file.size} bytes, the manifest says {facts.size}: it was cut or continued"
                self.findings.damage(ContainerError(text), self._name)
            self._check_all(file, entries, facts)

    def scan(self) -> None:
        """Check a file of which no metadata tells what is in it."""
        with self._open() as file:
            if file is not None:
                self._check_all(file, list(find_entries(file, self.findings)), None, gaps=False)

    @contextmanager
    def _open(self) -> Iterator[DataFile | None]:
        """The file, or None where it cannot be opened; what goes wrong with it later ends its check."""
        with ExitStack() as stack:
            stack.push(self._told)
            try:
                options = self._stopped, self._max_expansion, self._share
                file = stack.enter_context(opened(self._reader, self._name, *options))
            except FileNotFoundError:
                self.findings.damage(MetadataError("the file is missing from the checkpoint"), self._name)
                yield None
                return
            except (StreamxfError, OSError) as error:
                self.findings.damage(error, self._name)
                yield None
                return
            self.findings.files += 1
            try:
                yield file
            except (StreamxfError, OSError) as error:
                self.findings.damage(error, self._name)
            finally:
                self._pipeline.cancel()

    def _told(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._share is not None and kind is None:
            self._share.finish()

    def _lost(self, entry: Entry, text: str) -> None:
        self.findings.items += 1
        self.findings.damage(MetadataError(text), self._name, entry.name, entry.offset)

    def _check_all(
        self, file: DataFile, entries: Sequence[Entry], facts: FileFacts | None, *, gaps: bool = True
    ) -> None:
        """Check items, and what is left of the file; `gaps` says that bytes between items are to be recorded."""
        right_size = facts is not None and facts.size == file.size  # else no digest can be right, and none is computed
        coverage = Coverage(file, self._pipeline) if right_size else None
        items = ItemChecker(file, self._opening, self.findings, self.unproved, self._pipeline, coverage)
        later: list[ItemNotes] = []
        at = size = 0
        for entry in entries:
            if entry.place.length and entry.place.offset < at:
                # otherwise little metadata could have the same bytes read without end
                self._lost(entry, "the metadata places the item over another one; it was not looked at")
                continue
            if gaps and entry.place.offset > at:
                text = f"nothing accounts for the {entry.place.offset - at} bytes from {at} on"
                self.findings.damage(ContainerError(text), self._name)
            at = max(at, entry.stop)
            if entry.place.offset > file.size or (entry.place.length and entry.place.offset == file.size):
                self._lost(entry, "the metadata places the item beyond the end of its file: the file was cut")
                continue
            self.findings.items += 1
            size += min(entry.place.length, file.size - entry.place.offset)
            notes = items.check(entry)
            if notes.entry.expected is not None:
                later.append(notes)
        if gaps and at < file.size:
            text = f"{file.size - at} bytes follow the last item, and nothing accounts for them: the file was continued"
            self.findings.damage(ContainerError(text), self._name)
        self._pipeline.settle()
        whole = False
        if coverage is not None and facts is not None:
            whole = coverage.finish(self._unreadable) == facts.digest
            size = file.size
        self.findings.bytes_read += size
        for notes in later:
            items.check_content(notes, whole)
        if coverage is not None and not whole and not self._is_damaged():
            text = "the digest of the whole file is not the manifest's, though no item is damaged: it was altered"
            self.findings.damage(ContainerError(text), self._name)

    def _is_damaged(self) -> bool:
        return self.findings.damages_in(self._name) > 0

    def _unreadable(self, error: Exception) -> None:
        if not self._is_damaged():
            self.findings.damage(error, self._name)


def _do(then: Then) -> None:
    then()
