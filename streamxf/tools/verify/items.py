"""One item of a data file: its container block by block, and whether it holds what the metadata says."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from streamxf.checkpoint.access import Access
from streamxf.checkpoint.framed import find_framed
from streamxf.checkpoint.opening import ItemOpener, Wanted
from streamxf.checkpoint.storage import StoredFile
from streamxf.coder import StreamCoder
from streamxf.descriptor import Descriptor
from streamxf.engine import Pipeline
from streamxf.errors import (
    ContainerError,
    KeyMissingError,
    KeyServiceError,
    StreamxfError,
    UnsupportedError,
    WrongKeyError,
)
from streamxf.format.header import Header, Kind
from streamxf.format.items import TensorItem
from streamxf.proportion import Budget
from streamxf.registry import NOT_AT_HAND
from streamxf.stream.container import ChainOpener, read_header
from streamxf.stream.reader import StreamReader
from streamxf.stream.source import Blocks, MemoryBlocks
from streamxf.tools.framed import check_records, load_framed
from streamxf.tools.verify.blocks import Then, check_blocks
from streamxf.tools.verify.findings import KEYED, TRANSFORMED, UNBOUND, WITHOUT_CRC, Findings, Notes


@dataclass
class Opening:
    """How the items of one metadata file are opened, in any thread; without an opener no metadata names the items.

    `budget` pays for tensors that torch has to load. `lock` is held while a chain is rebuilt, which may ask a service
    for its key.
    """

    access: Access
    opener: ItemOpener | None
    budget: Budget
    lock: threading.Lock = field(default_factory=threading.Lock)


class ItemChecker:
    """Checks the items of one data file; what the pipeline gives is for `run`."""

    def __init__(self, file: StoredFile, opening: Opening, findings: Findings, pipeline: Pipeline[Then]) -> None:
        self._file = file
        self._opening = opening
        self._findings = findings
        self._pipeline = pipeline

    # -- on the way through the file ---------------------------------------------------------------

    def check(self, wanted: Wanted) -> Notes | None:
        """Check an item that begins inside of the file; its blocks are done when the pipeline has settled.

        Returns its notes if its content remains to be checked then.
        """
        opener, place = self._opening.opener, wanted.place
        assert opener is not None
        offset = wanted.chunk.offset if wanted.chunk is not None else None
        notes = Notes(self._findings, self._file.name, wanted.item.name, offset)
        length = min(place.size, self._file.size - place.at)
        if length < place.size:
            notes.error(ContainerError("the metadata places the item beyond the end of its file: the file was cut"))
        try:
            source = self._file.slice(place.at, length)
            if not opener.in_container(source, place):
                return notes
            header = read_header(source)
        except (StreamxfError, OSError) as error:
            notes.error(error)
            return None
        self._findings.skipped[UNBOUND] += header.identity is None
        coder = None
        try:
            opener.check_header(header, wanted)
        except StreamxfError as error:
            notes.error(error)
        else:
            coder = self._coder(header, notes, wanted)
        transformed = header.chain != header.block_chain
        check_size = None if transformed else opener.size_check(wanted)
        check_blocks(source, header, coder, notes, self._pipeline, place.sha256, check_size)
        return notes if coder is not None and (transformed or wanted.kind is Kind.FRAMED) else None

    def check_found(self, at: int, size: int, header: Header) -> None:
        """Check a container that no metadata speaks of."""
        identity = header.identity
        label, offset = (f"(at byte {at})", None) if identity is None else (identity.name, identity.offset)
        notes = Notes(self._findings, self._file.name, label, offset)
        try:
            source = self._file.slice(at, size)
        except (StreamxfError, OSError) as error:
            notes.error(error)
            return
        check_blocks(source, header, self._coder(header, notes), notes, self._pipeline)

    def _coder(self, header: Header, notes: Notes, wanted: Wanted | None = None) -> StreamCoder | None:
        """What decodes the blocks; None where a key or a codec is missing, or the chain cannot be rebuilt."""
        access, opener = self._opening.access, self._opening.opener
        if header.keyed and (wanted is None or not len(access.keys)):  # the wrapped keys stood in the metadata
            self._findings.skipped[KEYED] += 1
            return None
        try:
            with self._opening.lock:
                if opener is not None and wanted is not None:
                    coder = opener.coder(header, wanted.place)
                else:
                    descriptors = [Descriptor.parse(text) for text in header.block_chain]
                    coder = ChainOpener(descriptors, access.codecs).coder(header)
        except NOT_AT_HAND as error:
            self._findings.missing.append(error)
            return None
        except StreamxfError as error:
            if isinstance(error, KeyMissingError | WrongKeyError | KeyServiceError):
                self._findings.refused.append(error)
            notes.error(error)
            return None
        self._findings.opened += header.keyed
        return coder

    # -- what an item holds, once its blocks were found intact -------------------------------------

    def check_content(self, wanted: Wanted, notes: Notes, whole: bool) -> None:
        """Check that an item holds what the metadata says; `whole` if the CRC of its file matches."""
        opener, place = self._opening.opener, wanted.place
        if notes.damaged or opener is None:
            return
        skipped = self._findings.skipped
        try:
            source = self._file.slice(place.at, place.size)
            contained = opener.in_container(source, place)
            blocks = opener.open_source(source, wanted)
            stream = StreamReader(blocks)
            skipped[TRANSFORMED] += isinstance(blocks, MemoryBlocks)
            if not contained and not whole:
                skipped[UNBOUND] += 1
                skipped[WITHOUT_CRC] += check_records(stream, blocks.size) is None
            if wanted.chunk is not None:
                self._check_tensor(stream, blocks, wanted)
        except NOT_AT_HAND as error:
            self._findings.missing.append(error)
        except (StreamxfError, OSError) as error:
            notes.error(error)

    def _check_tensor(self, stream: Any, blocks: Blocks, wanted: Wanted) -> None:
        """Compare a framed tensor with what the metadata says of it."""
        item, chunk = wanted.item, wanted.chunk
        assert isinstance(item, TensorItem)
        assert chunk is not None
        try:
            find_framed(stream, blocks.size, item.dtype, chunk.shape)
            return
        except UnsupportedError:
            """Only torch can tell what it is."""
        from streamxf.objects.policy import Objects

        self._opening.budget.renewed().spend(blocks.size, "the tensor, which torch has to load whole,")
        load_framed(Objects(), stream, blocks.size, item, chunk)
