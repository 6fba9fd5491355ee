"""Slips: what is noted of each data file that is finished, so that a process that was killed need not begin anew.

A slip stands beside its file until the whole is published, and goes with what else is left over then. It has the form
of a metadata file of one rank, that of a rank which no process has: so what reads metadata reads it, with every check,
and where the data is encrypted nobody can have made it who has no key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.storage import WriteResult

from streamxf.codecs.encrypt import Encrypt
from streamxf.convert.job import Item
from streamxf.dcp.metadata import file as metadata_file
from streamxf.dcp.metadata.manifest import Manifest
from streamxf.dcp.places import local_path
from streamxf.dcp.publish.commit import publish
from streamxf.dcp.publish.listing import SLIP, list_files
from streamxf.dcp.save.session import RECORD_ATTRIBUTE, FileRecord, Save
from streamxf.errors import StreamxfError
from streamxf.keys import KeyRing
from streamxf.version import __version__

_NO_RANK = 2**31 - 1
_SUFFIX = ".slip"


def write_slip(writer: Any, save: Save, job: str, results: Sequence[WriteResult]) -> None:
    """Note that a data file is finished.

    Parameters
    ----------
    writer : ChainWriterMixin
    save : Save
    job : str
        The job's id.
    results : sequence of WriteResult
        Those of the file's items.
    """
    record: FileRecord = getattr(results[0].storage_data, RECORD_ATTRIBUTE)
    content = Metadata({}, storage_data={result.index: _place(result) for result in results})
    encryption = save.extensions.chain.encryption
    key = encryption.get_descriptor() if encryption is not None else None
    data_key = encryption.data_key if isinstance(encryption, Encrypt) else None
    manifest = Manifest(
        job, _NO_RANK, key, {"streamxf": __version__, "torch": torch.__version__}, {record.path: record.facts}
    )
    data = metadata_file.dump(content, manifest, data_key)
    # not synced: one that a crash of the machine spoils is not read, and the data file is on the disk already
    publish(writer.fs, writer.path, slip_of(record.path), data, False)


def slip_of(file: str) -> str:
    """The name of the slip of a data file."""
    return f"{file}{_SUFFIX}"


def finished_files(
    writer: Any, save: Save, job: str, files: Sequence[Sequence[Item]], rank: int
) -> tuple[dict[int, list[WriteResult]], int]:
    """Find data files that an earlier process has finished.

    Returns
    -------
    found : dict of int to list of WriteResult
        By the file's number.
    others : int
        How many slips are of other jobs, or cannot be used.
    """
    listed = list_files(writer.fs, writer.path)
    local = local_path(writer.fs, writer.path)
    ring, keyed = _ring(save)
    found: dict[int, list[WriteResult]] = {}
    others = 0
    for name in sorted(listed):
        match = SLIP.fullmatch(name)
        if match is None or int(match["rank"]) != rank:
            continue
        path = name.removesuffix(_SUFFIX)
        number = int(path.split("_")[3])
        if listed[name] is None and local is not None:  # a link, or a pipe that would be waited for
            others += 1
            continue
        try:
            with writer.fs.create_stream(writer.fs.concat_path(writer.path, name), "rb") as file:
                data = metadata_file.read_file(file)
            content = metadata_file.load(data, ring, rank=_NO_RANK, published=keyed)
        except (StreamxfError, FileNotFoundError):  # damaged, or nobody here can vouch for it
            others += 1
            continue
        manifest = metadata_file.manifest_of(content)
        if manifest is None or manifest.save_id != job or number >= len(files) or manifest.files.keys() != {path}:
            others += 1
        elif number not in found and listed.get(path) == manifest.files[path].size:
            results = _results(content, files[number], path)
            if results is not None:
                record = FileRecord(path, manifest.files[path], save.modules, save.extensions.summary(), save.place)
                setattr(results[0].storage_data, RECORD_ATTRIBUTE, record)
                found[number] = results
    return found, others


def _results(content: Metadata, items: Sequence[Item], path: str) -> list[WriteResult] | None:
    """The results of a file's items; None if it has others, or the slip speaks of another file, too."""
    places: Mapping[Any, _StorageInfo] = content.storage_data
    if places.keys() != {item.write.index for item in items} or {place.relative_path for place in places.values()} != {
        path
    }:
        return None
    return [
        WriteResult(item.write.index, places[item.write.index].length, replace(places[item.write.index]))
        for item in items
    ]


def _place(result: WriteResult) -> _StorageInfo:
    """A result's place without what travels on it."""
    place: _StorageInfo = replace(result.storage_data)
    return place


def _ring(save: Save) -> tuple[KeyRing, bool]:
    """What opens the slips of this job, and whether something must."""
    encryption = save.extensions.chain.encryption
    if not isinstance(encryption, Encrypt):
        return KeyRing.of(None), False
    signer = encryption.signer
    return KeyRing.of(list(encryption.recipients), signer.verify_key if signer is not None else None), True
