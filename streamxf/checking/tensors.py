"""Files of other formats, checked as far as these tell what was written: structure, and CRCs where there are any."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import torch

from streamxf.dcp.objects.archive import Archive, NotSavedByTorch
from streamxf.dcp.verify.datafile import DataFile
from streamxf.dcp.verify.report import Findings
from streamxf.errors import ChecksumError, ContainerError, PolicyError, UnsupportedError
from streamxf.fileio.slicefile import SliceFile
from streamxf.fileio.source import FileSlice
from streamxf.formats import safetensors, torchfile
from streamxf.formats.contents import Entry
from streamxf.formats.location import Location
from streamxf.wording import many

_STEP = 8 * 2**20


def check_safetensors(location: Location, file: DataFile, alone: bool, findings: Findings) -> None:
    """Check a ``.safetensors`` file: each rule of its header, and that every byte can be read.

    Raises
    ------
    OSError, ForeignError
        If it cannot be read.
    UnsupportedError
        If it has a dtype that torch does not know.
    """
    try:
        header = safetensors.read(location, file.name, alone=alone)
    except ContainerError as error:
        findings.damage(error, file.name, error.item)
        return
    findings.items += len(header.entries)
    _crc_of(file, 0, file.size)
    if header.entries:
        findings.not_checked(f"the bytes of {many(len(header.entries), 'tensor')}: the format has no checksums")


def check_torch(location: Location, file: DataFile, alone: bool, findings: Findings) -> None:
    """Check a ``torch.save`` file: its directory and pickle, and the CRC-32 of every record; raises as
    `check_safetensors`.
    """
    entries: Mapping[str, Entry] = {}
    unsupported: UnsupportedError | None = None
    try:
        entries = torchfile.read(location, file.name, alone=alone).entries
    except UnsupportedError as error:
        unsupported = error
        findings.not_checked(f"what the pickle makes: {error.message}")
    except PolicyError as error:
        findings.not_checked(f"what the pickle makes, since torch.load(weights_only=True) refuses it: {error.message}")
    except ContainerError as error:
        findings.damage(error, file.name, error.item)
    stream = SliceFile(FileSlice(file, 0, file.size))
    try:
        archive = Archive.read(stream, file.size, torchfile.MAX_RECORDS)
        places = {record: (*archive.find(stream, record), size) for record, size in archive.sizes.items()}
        _let_others_open(stream, {record: begin for record, (begin, *_) in places.items()})
    except NotSavedByTorch as error:
        if unsupported is not None:
            raise unsupported from None
        if not findings.damages_in(file.name):
            findings.damage(ContainerError(f"this is no whole file of torch.save: {error}"), file.name)
        return
    findings.items += len(entries)
    if not any(crc for _, crc, _ in places.values()):
        _crc_of(file, 0, file.size)
        findings.not_checked("the bytes of all records: torch was told to write no checksums")
        return
    for record, (begin, crc, size) in places.items():
        if _crc_of(file, begin, size) != crc:
            _damage(findings, file.name, record, entries, begin, begin + size)


def _let_others_open(stream: Any, begins: Mapping[str, int]) -> None:
    """Have Python and torch read the directory, too: each looks at parts of it that the others pass over.

    Parameters
    ----------
    begins : mapping of str to int
        Where each record's bytes are.
    """
    try:
        with zipfile.ZipFile(stream) as archive:
            for entry in archive.infolist():
                archive.open(entry).close()  # compares the names before the records with those in the directory
        stream.seek(0)
        reader: Any = torch._C.PyTorchFileReader(stream)
        if any(reader.get_record_offset(record) != begin for record, begin in begins.items()):
            raise NotSavedByTorch("torch finds a record of it elsewhere")
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise NotSavedByTorch(str(error).partition(". This is")[0]) from None


def _damage(findings: Findings, name: str, record: str, entries: Mapping[str, Entry], begin: int, stop: int) -> None:
    """Record a damaged record by the names of the tensors that lie in it."""
    error = ChecksumError(f"the CRC-32 of the record {record} does not match: its stored bytes are damaged")
    inside = [entry.name for entry in entries.values() if entry.is_tensor and begin <= entry.parts[0].start < stop]
    for item in inside:
        findings.damage(error, name, item)
    if not inside:
        findings.damage(error, name)


def _crc_of(file: DataFile, begin: int, size: int) -> int:
    """The CRC-32 of `size` bytes from `begin`.

    Raises
    ------
    ContainerError
        If the file ends before.
    """
    buffer = memoryview(bytearray(min(size, _STEP)))
    crc = 0
    while size:
        piece = buffer[: min(size, len(buffer))]
        if file.read_into(begin, piece) < len(piece):
            raise ContainerError("the file ended while it was read: somebody writes to it")
        crc = zlib.crc32(piece, crc)
        begin += len(piece)
        size -= len(piece)
    return crc
