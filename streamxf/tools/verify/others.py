"""What is not a checkpoint of DCP: files of `streamxf.open`, and of other formats as far as they can be checked."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from streamxf.checkpoint.storage import Storage, StoredFile, storage_errors
from streamxf.errors import (
    ChecksumError,
    ContainerError,
    ForeignError,
    MetadataError,
    NoCheckpointError,
    PolicyError,
    UnsupportedError,
)
from streamxf.format.items import Item, TensorItem
from streamxf.formats import huggingface, safetensors, torchfile
from streamxf.formats.contents import Format
from streamxf.formats.opening import format_of, open_layout
from streamxf.stream.reader import StreamReader
from streamxf.stream.source import BareBlocks
from streamxf.tools.verify.file import Call, guarded, pieces_of
from streamxf.tools.verify.findings import Findings
from streamxf.tools.verify.plain import check_plain
from streamxf.torchsave.archive import Archive, NotSavedByTorch
from streamxf.wording import many


def check_file(call: Call) -> None:
    """Check a file of any format; raises UnsupportedError, NoCheckpointError, and as `check_plain`."""
    storage = call.storage
    with storage_errors(storage.given), storage.open() as file:
        found = format_of(file, storage.name)
    if found is Format.PLAIN:
        _check(call, storage, storage.name, lambda file, findings: check_plain(file, call.access, findings))
        return
    _refuse_keys(call)
    if found is None:
        raise NoCheckpointError(
            "the file is not a checkpoint: it begins neither as one of streamxf.open, nor as a .safetensors file, nor "
            "as one of torch.save"
        )
    _check(call, storage, storage.name, check_torch if found is Format.TORCH else check_safetensors)


def check_folder(call: Call, layout: huggingface.HubLayout) -> None:
    """Check a Hugging Face folder: each shard by itself and then, if all are intact, whether index and shards fit each
    other. Raises as `check_file`.
    """
    _refuse_keys(call)
    storage, findings, index = call.storage, call.findings, layout.index or ""
    try:
        shards = huggingface.shards_of(storage, layout)
    except (ContainerError, MetadataError) as error:
        findings.damage(error, index)
        shards = tuple(sorted(name for name in storage.names() if name.endswith(layout.suffix)))
    for shard in shards:
        _check(
            call, storage.child(shard), shard, check_torch if layout.suffix == huggingface.BIN else check_safetensors
        )
    if not any(map(findings.damages_in, (*shards, index))):
        try:
            open_layout(storage, layout)
        except ContainerError as error:
            findings.damage(error, index, error.item)


def _check(call: Call, storage: Storage, name: str, check: Callable[[StoredFile, Findings], None]) -> None:
    findings = Findings()
    try:
        with storage_errors(name), storage.open() as opened:
            share = call.share(opened.size)
        with guarded(storage, name, call.max_expansion, share=share) as file:
            findings.files, findings.bytes_read = 1, file.size
            check(file, findings)
        if share is not None:
            share.finish()
    except FileNotFoundError:
        findings.damage(ContainerError("the index names this file, which is missing"), name)
    except (OSError, ForeignError) as error:
        findings.damage(error, name)
    call.findings.add(findings)


def _refuse_keys(call: Call) -> None:
    if len(call.access.keys):
        raise PolicyError("this is not encrypted, and keys were given; leave the keys out if you know that it was not")


def check_safetensors(file: StoredFile, findings: Findings) -> None:
    """Check a ``.safetensors`` file: each rule of its header, and that every byte can be read. Raises OSError and
    StreamxfError if it cannot be read, or has a dtype that torch does not know.
    """
    try:
        shard = safetensors.read(file, file.name)
    except ContainerError as error:
        findings.damage(error, file.name, error.item)
        return
    findings.items += len(shard.items)
    crc32_of(file, 0, file.size)
    if shard.items:
        findings.not_checked(f"the bytes of {many(len(shard.items), 'tensor')}: the format has no checksums")


def check_torch(file: StoredFile, findings: Findings) -> None:
    """Check a ``torch.save`` file: its directory and pickle, and the CRC-32 of every record; raises as
    `check_safetensors`.
    """
    items: Mapping[str, Item] = {}
    unsupported: UnsupportedError | None = None
    stream: Any = StreamReader(BareBlocks(file.slice(0, file.size)))
    try:
        items = torchfile.read(file, file.name).items
    except UnsupportedError as error:
        unsupported = error
        findings.not_checked(f"what the pickle makes: {error.message}")
    except ContainerError as error:
        findings.damage(error, file.name, error.item)
    try:
        archive = Archive(stream, file.size, torchfile.MAX_RECORDS)
        places = {record: (*archive.find(record), size) for record, size in archive.sizes.items()}
        _let_others_open(stream, {record: begin for record, (begin, *_) in places.items()})
    except NotSavedByTorch as error:
        if unsupported is not None:
            raise unsupported from None
        if not findings.damages_in(file.name):
            findings.damage(ContainerError(f"this is not an intact file of torch.save: {error}"), file.name)
        return
    findings.items += len(items)
    if not any(crc for _, crc, _ in places.values()):
        crc32_of(file, 0, file.size)
        findings.not_checked("the bytes of all records: torch was told to write no checksums")
        return
    for record, (begin, crc, size) in places.items():
        if crc32_of(file, begin, size) != crc:
            wrong = ChecksumError(f"the CRC-32 of the record {record} does not match: its stored bytes are damaged")
            inside: list[str | None] = [*_inside(items, begin, begin + size)]
            for item in inside or [None]:
                findings.damage(wrong, file.name, item)


def crc32_of(file: StoredFile, begin: int, size: int) -> int:
    """The CRC-32 of `size` bytes from `begin`; raises as reading does."""
    crc = 0
    for piece in pieces_of(file.slice(begin, size)):
        crc = zlib.crc32(piece, crc)
    return crc


def _let_others_open(stream: Any, begins: Mapping[str, int]) -> None:
    """Have Python and torch read the directory, too, since each checks other parts of it; `begins` says where each
    record's bytes are.
    """
    import torch

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


def _inside(items: Mapping[str, Item], begin: int, stop: int) -> Iterator[str]:
    """The tensors that lie in a record."""
    for item in items.values():
        if isinstance(item, TensorItem) and begin <= item.chunks[0].place.at < stop:
            yield item.name
