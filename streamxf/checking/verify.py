"""`verify`: read every byte of a checkpoint or file, and say what is damaged."""

from __future__ import annotations

import os
from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

from streamxf.checking.plain import check_plain
from streamxf.checking.tensors import check_safetensors, check_torch
from streamxf.dcp.load.items import Require
from streamxf.dcp.metadata.save_ids import SaveIds
from streamxf.dcp.registry import Registry
from streamxf.dcp.verify import verify as dcp
from streamxf.dcp.verify.datafile import DataFile, storage_errors
from streamxf.dcp.verify.report import FileReport, Findings, VerifyReport
from streamxf.errors import (
    ContainerError,
    ForeignError,
    NoCheckpointError,
    ParameterError,
    PolicyError,
    UnsupportedError,
    located,
)
from streamxf.fileio.source import FileSlice
from streamxf.formats import huggingface
from streamxf.formats.contents import Format
from streamxf.formats.location import Location
from streamxf.formats.opening import contents_of, kind_of
from streamxf.keys import KeyRing, KeysLike, TrustLike
from streamxf.progress import Progress, Share
from streamxf.registry import CodecRegistry

if TYPE_CHECKING:
    from torch.distributed.checkpoint._extension import ExtensionRegistry


def verify(
    path: str | os.PathLike[str],
    keys: KeysLike = None,
    *,
    trust: TrustLike = None,
    allow_unsigned: bool = False,
    require: Require | None = None,
    expect_save_id: SaveIds = None,
    registry: ExtensionRegistry | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Read every byte of a checkpoint, and say which items and blocks are damaged.

    Workers read, compare and decode blocks, as in a load. What fsspec reads is read four files at a time, by one thread
    each. Damage is in the report, and raises nothing.

    Nothing is loaded. Besides the metadata, verify takes about 20 MiB on 2 CPUs with blocks of 1 MiB, whatever the size
    of the checkpoint; some MiB more for each further CPU, 16 MiB for each file that fsspec reads, and more for larger
    blocks in proportion. One item more is held at a time where torch has to be asked which tensor it is (tensors of
    subclasses, with unusual strides, or from other writers), and where it passed a stream extension from elsewhere.

    Other formats are checked as far as they go. A file that `streamxf.open` wrote is checked like a checkpoint. Of a
    ``torch.save`` file the directory, the pickle and each record's CRC-32 are checked; of a ``.safetensors`` file the
    header alone, since its tensors have no checksums; of a Hugging Face folder the index and each shard.

    Parameters
    ----------
    path : path or str
        The checkpoint's folder or file, or its URL.
    keys : Key, bytes, location, several of them or a KeyRing, optional
        For what is encrypted. Without them everything is checked that needs no key: sizes, digests, structure
        and the CRC of each block, which show accidents, but not what somebody altered on purpose.
    trust, allow_unsigned, require
        As in `FileSystemReader`.
    expect_save_id : str or several, optional
        The only save that this may be; where ranks have metadata of their own, the ids of all of them.
    registry : ExtensionRegistry, optional
        The reader's ``_extension_registry``.
    storage_options : mapping, optional
        fsspec's, for a URL.
    progress : Progress, optional
        Is told how many bytes the data files have, and as they are read, by any thread.

    Raises
    ------
    NoCheckpointError
        If there is no checkpoint.
    UnsupportedError
        If it is of a kind that cannot be read here.
    KeyMissingError, WrongKeyError, KeyServiceError
        If there are keys, and none of them opens it.
    PolicyError, IdentityError
        If it is weaker than the caller requires, or another save.
    UnknownCodecError, CodecNotAllowedError, DuplicateCodecError
        If a codec is not at hand, and nothing is damaged.
    ParameterError
        If an argument is not what it should be.
    OSError, ForeignError
        If the storage cannot be asked what there is. A file that it does not give is damage.
    """
    location = Location.of(path, storage_options)
    kind: Format | huggingface.Layout | None = None
    if not _is_folder(location):
        kind = kind_of(location)
    else:
        try:
            return dcp.verify(
                path,
                keys,
                trust=trust,
                allow_unsigned=allow_unsigned,
                require=require,
                expect_save_id=expect_save_id,
                registry=registry,
                storage_options=storage_options,
                progress=progress,
            )
        except NoCheckpointError:
            kind = huggingface.layout_of(location.names()) if _is_there(location) else None
            if kind is None:
                raise
    if require is not None or expect_save_id is not None:
        raise ParameterError("require= and expect_save_id= are for checkpoints of DCP, and this is none")
    begin = perf_counter()
    ring = KeyRing.of(keys, trust, allow_unsigned)
    codecs = registry.codecs if isinstance(registry, Registry) else CodecRegistry()
    look = _Look(location, kind, ring, codecs, progress)
    with located(file=os.fspath(path)):
        look.run()
    return look.findings.report(perf_counter() - begin, FileReport)


def _is_folder(location: Location) -> bool:
    """Whether it is one, or nothing: of that DCP's own verify says best what is missing."""
    try:
        with storage_errors(location.given):
            return location.is_folder()
    except FileNotFoundError:
        return True


def _is_there(location: Location) -> bool:
    try:
        return location.is_folder()
    except FileNotFoundError:
        return False


class _Look:
    """One call for files that are no checkpoint of DCP."""

    def __init__(
        self,
        location: Location,
        kind: huggingface.Layout | Format,
        keys: KeyRing,
        registry: CodecRegistry,
        progress: Progress | None,
    ) -> None:
        self._location = location
        self._kind = kind
        self._keys = keys
        self._registry = registry
        self._progress = progress
        self.findings = Findings()

    def run(self) -> None:
        """Check everything."""
        kind = self._kind
        if kind is not Format.PLAIN and len(self._keys):
            raise PolicyError("this is not encrypted, and keys were given; leave keys= out if you know that it was not")
        if isinstance(kind, huggingface.Layout):
            self._check_folder(kind)
        else:
            self._check(self._location.name, kind, alone=True)

    def _check_folder(self, layout: huggingface.Layout) -> None:
        """Each shard by itself, and then, if all are whole, whether index and shards fit each other."""
        try:
            shards = huggingface.shards_of(self._location, layout)
        except ContainerError as error:
            self.findings.damage(error, layout.index or "")
            shards = tuple(name for name in self._location.names() if name.endswith(layout.suffix))
        kind = Format.TORCH if layout.suffix == huggingface.BIN else Format.SAFETENSORS
        for shard in shards:
            self._check(shard, kind, alone=False)
        if not any(map(self.findings.damages_in, (*shards, layout.index or ""))):
            try:
                contents_of(self._location.given, storage_options=self._location.storage_options)
            except ContainerError as error:
                self.findings.damage(error, layout.index or "", error.item)

    def _check(self, name: str, kind: Format, *, alone: bool) -> None:
        findings = Findings()
        try:
            self._read(name, kind, alone, findings)
        except FileNotFoundError:
            findings.damage(ContainerError("the index names this file, and it is not there"), name)
        except (OSError, ForeignError) as error:
            findings.damage(error, name)
        self.findings.add(findings)

    def _read(self, name: str, kind: Format, alone: bool, findings: Findings) -> None:
        inside = "" if alone else name
        size = self._location.size(inside)
        if size is None:
            raise UnsupportedError("this is no regular file")
        share = self._share(size)
        with storage_errors(name), self._location.open(inside) as raw:
            file = DataFile(raw, name, size, bool, share)  # bool() is False: nobody gives up
            findings.files = 1
            if kind is Format.PLAIN:
                check_plain(FileSlice(file, 0, size), name, self._keys, self._registry, findings)
            else:
                findings.bytes_read = size
                check = check_torch if kind is Format.TORCH else check_safetensors
                check(self._location, file, alone, findings)
        if share is not None:
            share.finish()

    def _share(self, size: int) -> Share | None:
        if self._progress is None:
            return None
        self._progress.expect(size)
        return Share(self._progress, size)
