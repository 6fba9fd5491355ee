"""What is not a checkpoint of DCP: files of `streamxf.open`, and of other formats as far as they can be checked."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import reduce
from typing import Any

from streamxf import errors
from streamxf.format.items import TensorItem
from streamxf.formats import huggingface, torchfile
from streamxf.formats.contents import PLAIN, SUFFIXES, Format
from streamxf.formats.opening import format_of, no_checkpoint, open_layout
from streamxf.places import Storage
from streamxf.reading import Access, BareBlocks, Item, PlainParts, StoredFile, StreamReader, TorchFile
from streamxf.tools.verify.reading import AnyCheck, BlockChecks, Plan, Verification, pieces_of
from streamxf.tools.verify.report import OF_SAFETENSORS, Findings, Notes
from streamxf.wording import some

_CheckOf = Callable[[StoredFile, Access, Findings], None]


def plan_file(call: Verification) -> Plan:
    """Check a file of any format; raises UnsupportedError, NoCheckpointError, and as `_check_plain`. One that has lost
    its beginning is damaged if its name tells what it was.
    """
    storage = call.storage
    with storage.open() as file:
        size, found = file.size, format_of(file, storage.name)
    if found is not Format.PLAIN:
        call.access.refuse_bare("this")
    if found is None:
        beginnings = "neither as one of streamxf.open, nor as a .safetensors file, nor as one of torch.save"
        error = no_checkpoint(storage, beginnings)
        if storage.name.endswith(PLAIN) or (not size and storage.name.endswith(tuple(SUFFIXES))):
            text = "does not begin as those of streamxf.open do" if size else "is empty"
            call.findings(storage.name).damage(errors.ContainerError(f"the file {text}: its beginning was lost"))
            return [], tuple
        raise error  # others have files of such names, too
    return [FormatCheck(call, storage.name, _CHECKS[found])], tuple


def plan_folder(call: Verification, layout: huggingface.HubLayout) -> Plan:
    """Check a Hugging Face folder: its shards and, if they are intact, their index. Raises as `plan_file`."""
    call.access.refuse_bare("this")
    storage, findings = call.storage, call.findings(layout.index or "")
    try:
        shards = huggingface.shards_of(storage, layout)
    except (errors.ContainerError, errors.MetadataError) as error:
        findings.damage(error)
        shards = tuple(sorted(name for name in storage.names() if name.endswith(layout.suffix)))
    check = _check_torch if layout.suffix == huggingface.BIN else _check_safetensors

    def conclude() -> tuple[()]:
        if away := huggingface.links_out(storage, filter(None, (layout.index, *shards))):
            findings.unchecked.append(f"whether files belong here that are links out of the folder: {some(away)}")
        if not any(each.damaged for each in call.found):
            try:
                open_layout(storage, layout)
            except errors.ContainerError as error:
                findings.damage(error, error.item)
        return ()

    return [FormatCheck(call, shard, check, storage.child(shard)) for shard in shards], conclude


class FormatCheck(AnyCheck):
    """A check of the file that `storage` is, by default that of `call`, by what its format allows."""

    def __init__(self, call: Verification, name: str, check: _CheckOf, storage: Storage | None = None) -> None:
        super().__init__(call, name)
        self._check, self.storage = check, storage or call.storage

    def parts(self) -> list[tuple[Any, ...]]:
        return [(self._check,)]

    def run(self) -> None:
        findings = self.findings
        try:
            with self.call.open(findings.file, self.storage) as file:
                findings.files, findings.bytes_read = 1, file.size
                self._check(file, self.call.access, findings)
        except FileNotFoundError:
            findings.damage(errors.ContainerError("the index names this file, which is missing"))
        except (OSError, errors.ForeignError, errors.NotFetchedError) as error:
            findings.damage(error)


def _check_plain(file: StoredFile, access: Access, findings: Findings) -> None:
    """Check prefix, header, seal, table and every block. Raises `NOT_DAMAGE` if there are keys, and they do not fit."""
    notes, findings.items = Notes(findings), 1
    try:
        parts = PlainParts.of(file.slice(0, file.size))
    except errors.UnsupportedError:
        raise
    except (errors.StreamxfError, OSError) as error:
        notes.error(error)
        with suppress(errors.StreamxfError, OSError), BlockChecks() as checks:  # as is noted already
            checks.add(PlainParts.stream_in(file.slice(0, file.size)), notes)
        return
    if not parts.header.keyed:
        access.refuse_bare("the file")
    stream, is_open = parts.stream, not parts.header.keyed or len(access.keys) > 0
    if not is_open:
        findings.unchecked.append("seals, tags, vouchers and content, which need a key")
    try:
        stream.examine(parts.chain(access.keys, access.codecs) if is_open else None)
        if is_open and (keys := parts.keys) is not None:
            findings.signed("the file", keys.signers, access.trust)
    except errors.NOT_DAMAGE:
        raise
    except (errors.StreamxfError, OSError) as error:
        if not isinstance(error, errors.ContainerError):  # of the table, which is found again
            notes.error(error)
        stream.examine(None)
    with BlockChecks() as checks:
        checks.add(stream, notes)
        checks.note()


def _check_safetensors(file: StoredFile, access: Access, findings: Findings) -> None:
    """Check the header, and that all bytes can be read; raises OSError, StreamxfError for a dtype not known here."""
    try:
        shard = huggingface.read_file(file, file.name)
    except errors.ContainerError as error:
        findings.damage(error, error.item)
        return
    findings.items += len(shard.items)
    _crc32_of(file, 0, file.size)
    findings.skipped[OF_SAFETENSORS] += len(shard.items)


def _check_torch(file: StoredFile, access: Access, findings: Findings) -> None:
    """Check directory, pickle and records' CRC-32; raises as `_check_safetensors`, NoCheckpointError for other zips."""
    items: Mapping[str, Item] = {}
    unsupported: errors.StreamxfError | None = None
    try:
        items = torchfile.read(file, file.name).items
    except errors.UnsupportedError as error:
        unsupported = error
        findings.unchecked.append(f"what the pickle makes: {error.message}")
    except errors.ContainerError as error:
        findings.damage(error, error.item)
    try:
        opened = TorchFile(file)
        places = {record: (*opened.find(record), size) for record, size in opened.sizes.items()}
        if file.read(0, 2) == b"PK":
            _let_python_open(StreamReader(BareBlocks(file.slice(0, file.size))))
    except errors.ContainerError as error:
        if unsupported is not None:
            raise unsupported from None
        if not findings.damaged:
            findings.damage(errors.ContainerError(f"this is not an intact file of torch.save: {error.message}"))
        return
    findings.items += len(items)
    if not any(crc for _, crc, _ in places.values()):
        _crc32_of(file, 0, file.size)
        findings.unchecked.append("the bytes of all records: they were saved without checksums")
        return
    for record, (begin, crc, size) in places.items():
        if _crc32_of(file, begin, size) != crc:
            wrong = errors.ChecksumError(
                f"the CRC-32 of the record {record} does not match: its stored bytes are damaged"
            )
            tensors = (item for item in items.values() if isinstance(item, TensorItem))
            inside = [item.name for item in tensors if begin <= item.chunks[0].place.at < begin + size]
            for name in (*inside,) or (None,):
                findings.damage(wrong, name)


_CHECKS = {Format.PLAIN: _check_plain, Format.TORCH: _check_torch, Format.SAFETENSORS: _check_safetensors}


def _crc32_of(file: StoredFile, begin: int, size: int) -> int:
    return reduce(lambda crc, piece: zlib.crc32(piece, crc), pieces_of(file, begin, size), 0)


def _let_python_open(stream: Any) -> None:
    """Have Python read the directory, too, since it checks other parts of it."""
    try:
        with zipfile.ZipFile(stream) as archive:
            for entry in archive.infolist():
                archive.open(entry).close()  # compares the names before the records with those in the directory
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise errors.ContainerError(str(error)) from None
