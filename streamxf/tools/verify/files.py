"""Data files: the items in each, one after the other, and the digest of the whole where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import crc32c

from streamxf.checkpoint.opening import Wanted
from streamxf.checkpoint.scan import Gap, scan
from streamxf.checkpoint.storage import Storage, StoredFile
from streamxf.engine import Pipeline
from streamxf.errors import ContainerError, MetadataError, StreamxfError
from streamxf.format.index import File
from streamxf.format.items import Place
from streamxf.progress import Share
from streamxf.tools.verify.blocks import Then, run
from streamxf.tools.verify.file import guarded, pieces_of
from streamxf.tools.verify.findings import Findings, Notes
from streamxf.tools.verify.items import ItemChecker, Opening


class FileCheck:
    """A check of one data file, and its findings; `stopped` says whether they are no longer wanted."""

    def __init__(
        self,
        storage: Storage,
        name: str,
        opening: Opening,
        max_expansion: int,
        stopped: Callable[[], bool],
        share: Share | None = None,
    ) -> None:
        self.findings = Findings()
        self._name = name
        self._opening = opening
        self._open_file = partial(guarded, storage, name, max_expansion, stopped, share, name=name)
        self._share = share
        self._pipeline: Pipeline[Then] = Pipeline()

    def run(self, items: Sequence[Wanted], facts: File | None) -> None:
        """Check the items that the metadata places in the file, sorted by their places; `facts` is what it says of the
        file itself.
        """
        with self._opened() as file:
            if file is None:
                for wanted in items:
                    self._lose(wanted, "the item lies in a file that cannot be read")
                return
            if facts is not None and facts.size != file.size:
                text = f"the file has {file.size} bytes, the metadata says {facts.size}: it was cut or continued"
                self._damaged(ContainerError(text))
            checker = ItemChecker(file, self._opening, self.findings, self._pipeline)
            later = [(wanted, notes) for wanted in self._read(items, file) if (notes := checker.check(wanted))]
            run(self._pipeline.results())
            unreadable, whole = None, False
            if facts is not None and facts.crc is not None and facts.size == file.size:
                try:
                    whole = _crc_of(file) == facts.crc
                except (StreamxfError, OSError) as error:
                    unreadable = error
            for wanted, notes in later:
                if unreadable is not None:
                    _read_all(file, wanted.place, notes)
                checker.check_content(wanted, notes, whole)
            if facts is not None and facts.crc is not None and not whole and not self.findings.damages_in(self._name):
                text = "the CRC of the whole file is not the one in the metadata, though no item is damaged"
                self._damaged(unreadable or ContainerError(f"{text}: it was altered"))

    def scan(self) -> None:
        """Check a file of which no metadata says what is in it."""
        with self._opened() as file:
            if file is None:
                return
            checker = ItemChecker(file, self._opening, self.findings, self._pipeline)
            for found in scan(file.slice(0, file.size)):
                if isinstance(found, Gap):
                    self._note_gap(found, file.size)
                    continue
                self.findings.items += 1
                self.findings.bytes_read += found.size
                checker.check_found(found.at, found.size, found.header)
            run(self._pipeline.results())

    # -- helpers -----------------------------------------------------------------------------------

    @contextmanager
    def _opened(self) -> Iterator[StoredFile | None]:
        """The file, or None where it cannot be opened; what goes wrong with it later ends its check."""
        with ExitStack() as stack:
            try:
                file = stack.enter_context(self._open_file())
            except FileNotFoundError:
                self._damaged(MetadataError("the file is missing from the checkpoint"))
                file = None
            except (StreamxfError, OSError) as error:
                self._damaged(error)
                file = None
            self.findings.files += file is not None
            try:
                yield file
            except (StreamxfError, OSError) as error:
                self._damaged(error)
            finally:
                self._pipeline.cancel()
        if self._share is not None:
            self._share.finish()

    def _read(self, items: Sequence[Wanted], file: StoredFile) -> Iterator[Wanted]:
        """Those of the items that are to be checked; what lies between them is noted."""
        at = 0
        for wanted in items:
            place = wanted.place
            if place.size and place.at < at:
                # otherwise little metadata could have the same bytes read without end
                self._lose(wanted, "the metadata places the item over another one; it was not checked")
                continue
            self._note_between(at, place)
            at = max(at, place.at + place.size)
            if place.at > file.size or (place.size and place.at == file.size):
                self._lose(wanted, "the metadata places the item beyond the end of its file: the file was cut")
                continue
            self.findings.items += 1
            self.findings.bytes_read += min(place.size, file.size - place.at)
            yield wanted
        if at < file.size:
            text = f"{file.size - at} bytes follow the last item, and nothing accounts for them: the file was continued"
            self._damaged(ContainerError(text))

    def _note_between(self, at: int, place: Place) -> None:
        if place.at > at:
            self._damaged(ContainerError(f"nothing accounts for the {place.at - at} bytes from {at} on"))

    def _note_gap(self, gap: Gap, size: int) -> None:
        if gap.size == size:
            text = f"the content of {self._name}, which has no containers, so that without metadata nothing tells what"
            self.findings.not_checked(f"{text} it holds")
        else:
            self._damaged(ContainerError(f"bytes {gap.at} to {gap.at + gap.size} are not a container"))

    def _lose(self, wanted: Wanted, text: str) -> None:
        self.findings.items += 1
        offset = wanted.chunk.offset if wanted.chunk is not None else None
        Notes(self.findings, self._name, wanted.item.name, offset).error(MetadataError(text))

    def _damaged(self, error: Exception) -> None:
        self.findings.damage(error, self._name)


def _crc_of(file: StoredFile) -> int:
    crc = 0
    for piece in pieces_of(file.slice(0, file.size)):
        crc = crc32c.crc32c(piece, crc)
    return crc


def _read_all(file: StoredFile, place: Place, notes: Notes) -> None:
    """Find out whether it is this item that cannot be read."""
    try:
        for _ in pieces_of(file.slice(place.at, place.size)):
            """Whether all of it can be read is all that matters."""
    except (StreamxfError, OSError) as error:
        notes.error(error)
