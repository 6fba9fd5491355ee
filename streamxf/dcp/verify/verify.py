"""`verify`: read every byte of a checkpoint, and say what is damaged."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

from torch.distributed.checkpoint._extension import ExtensionRegistry

from streamxf.dcp.compat import metadata_name
from streamxf.dcp.load.advice import unfinished
from streamxf.dcp.load.items import ItemOpener, Require
from streamxf.dcp.metadata.save_ids import UNKNOWN_RANKS, SaveIds, as_save_ids, check_save_id
from streamxf.dcp.publish.listing import RANK_METADATA, list_files, made_by_writers, rank_of
from streamxf.dcp.reader import FileSystemReader
from streamxf.dcp.threads import side_by_side
from streamxf.dcp.verify.datafile import storage_errors
from streamxf.dcp.verify.files import FileCheck
from streamxf.dcp.verify.items import Opening, Unproved
from streamxf.dcp.verify.metadata import Content, read_content
from streamxf.dcp.verify.report import Findings, VerifyReport
from streamxf.errors import (
    KeyMissingError,
    KeyServiceError,
    MetadataError,
    NoCheckpointError,
    PolicyError,
    StreamxfError,
    UnsupportedError,
    WrongKeyError,
    located,
)
from streamxf.keys import KeyRing, KeysLike, TrustLike
from streamxf.progress import Progress, Share
from streamxf.registry import providers_in
from streamxf.wording import many

_SUFFIX = ".distcp"
_NO_METADATA = (
    "the metadata is missing, so nothing tells what was saved: it was lost, or no save to this folder was published yet"
)
_AT_ONCE = 4  # files that fsspec reads: each by one thread, which waits for each request


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

    Parameters
    ----------
    path : path or str
        The checkpoint's folder, or its URL.
    keys : Key, bytes, location, several of them or a KeyRing, optional
        For an encrypted checkpoint. Without them everything is checked that needs no key: sizes, digests, structure
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
        If this is a file.
    KeyMissingError, WrongKeyError, KeyServiceError
        If there are keys, and none of them opens the checkpoint.
    UnknownCodecError, CodecNotAllowedError, DuplicateCodecError
        If a codec is not at hand, and nothing is damaged as far as that can be told without it.
    PolicyError, IdentityError
        If it is weaker than the caller requires, or another save.
    ParameterError
        If an argument is not what it should be.
    OSError, ForeignError
        If the storage cannot be asked what there is. A file that it does not give is damage.
    """
    begin = perf_counter()
    ring = KeyRing.of(keys, trust, allow_unsigned)
    look = _Look.of(path, ring, require, expect_save_id, registry, storage_options, progress)
    look.run()
    return look.findings.report(perf_counter() - begin)


@dataclass
class _Look:
    """One call of `verify`."""

    reader: Any
    path: str
    expected: frozenset[str] | None
    progress: Progress | None
    findings: Findings = field(default_factory=Findings)
    unproved: Unproved = field(default_factory=Unproved)
    _without_key: list[str] = field(default_factory=list)
    _failures: list[BaseException] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        path: str | os.PathLike[str],
        keys: KeyRing,
        require: Require | None,
        expect_save_id: SaveIds,
        registry: ExtensionRegistry | None,
        storage_options: Mapping[str, Any] | None,
        progress: Progress | None,
    ) -> _Look:
        text = os.fspath(path)
        reader: Any
        if "://" in text or "::" in text or storage_options:
            from streamxf.dcp.fsspec import FsspecReader

            reader = FsspecReader(text, registry, keys=keys, require=require, **(storage_options or {}))
        else:
            reader = FileSystemReader(text, registry, keys=keys, require=require)
        return cls(reader, text, as_save_ids(expect_save_id), progress)

    @property
    def _keys(self) -> KeyRing:
        keys: KeyRing = self.reader._registry.keys
        return keys

    def run(self) -> None:
        """Look at everything."""
        listed = self._listed()
        ranks = sorted(filter(RANK_METADATA.fullmatch, listed), key=lambda name: rank_of(name) or 0)
        names = [".metadata"] if ".metadata" in listed else ranks
        data = {name for name in listed if name.endswith(_SUFFIX)}
        reason = unfinished(listed) if data else "there is no checkpoint: the folder has no .metadata"
        if not names and reason is not None:
            raise NoCheckpointError(reason, file=self.path)
        if not names:
            self.findings.damage(MetadataError(_NO_METADATA), ".metadata")
        contents = {name: self._read(name) for name in names}
        named = set(names)
        tasks: dict[str, tuple[FileCheck, Callable[[], None]]] = {}
        for name, content in contents.items():
            if content is not None:
                self._plan(name, content, tasks, listed)
        if not names or None in contents.values():
            opening = Opening(ItemOpener(self.reader._registry))
            for name in sorted(data - tasks.keys()):
                check = FileCheck(self.reader, opening, name, self._stopped, self._share(listed[name] or 0))
                tasks[name] = check, check.scan
        self._check_files(tasks)
        named |= tasks.keys()
        beside = sorted(name for name in listed if name not in named and made_by_writers(name))
        self.findings.leftovers += self._without_strangers(beside, names) if names and names == ranks else beside
        self._say_what_was_not_checked()
        self._check_codecs()
        if self.unproved.refused and not self.unproved.opened:
            raise self.unproved.refused[0]

    def _listed(self) -> dict[str, int | None]:
        try:
            with storage_errors(self.path):
                return list_files(self.reader.fs, self.reader.path)
        except NotADirectoryError:
            raise UnsupportedError(
                "this is a file, and not a checkpoint's folder. streamxf.pack makes one of a .safetensors or "
                "torch.save file; what streamxf.open wrote is checked as it is read",
                file=self.path,
            ) from None

    def _read(self, name: str) -> Content | None:
        rank = rank_of(name)
        try:
            data = self.reader._read_file(self.reader.fs.concat_path(self.reader.path, metadata_name(rank)))
            self.findings.bytes_read += len(data)
            content = read_content(data, self._keys, rank, self.reader._require == "published")
        except (KeyMissingError, WrongKeyError, KeyServiceError, PolicyError) as error:
            raise error.locate(file=os.path.join(self.path, name)) from None
        except (StreamxfError, OSError) as error:
            self.findings.damage(error, name)
            return None
        self._note_save(content, name)
        return content

    def _note_save(self, content: Content, name: str) -> None:
        manifest = content.manifest
        if manifest is not None:
            self.findings.save_ids.append(manifest.save_id)
        if self.expected is not None:
            if manifest is None:
                raise PolicyError(
                    "a save is expected, and this metadata has no manifest that says which save it is; leave "
                    "expect_save_id= out to verify it",
                    file=name,
                )
            with located(file=name):
                check_save_id(manifest.save_id, self.expected)
        if not content.authenticated:
            self._without_key.append(name)
        elif manifest is None:
            self.findings.not_checked("digests of the metadata and of whole files, which only streamxf's writer makes")

    def _plan(
        self,
        name: str,
        content: Content,
        tasks: dict[str, tuple[FileCheck, Callable[[], None]]],
        listed: Mapping[str, int | None],
    ) -> None:
        """Add the files that the metadata file `name` speaks of to those that are to be checked."""
        reader = self.reader
        providers = tuple(providers_in(getattr(content.metadata.storage_meta, "modules", None)))
        opening = Opening(ItemOpener(reader._registry, reader._require, content.manifest, providers))
        for path, entries in content.by_file().items():
            if path in tasks:  # read once: otherwise little metadata could have the same bytes read without end
                text = f"it places items in {path!r:.120}, as other metadata does; these were not looked at"
                self.findings.damage(MetadataError(text), name)
                continue
            facts = content.manifest.files.get(path) if content.manifest is not None else None
            size = listed.get(path)
            if size is None:
                size = facts.size if facts is not None else max(entry.stop for entry in entries)
            check = FileCheck(reader, opening, path, self._stopped, self._share(size))
            tasks[path] = check, partial(check.run, entries, facts)

    def _share(self, size: int) -> Share | None:
        """What a file of `size` bytes brings those who want to know how far this is."""
        if self.progress is None:
            return None
        self.progress.expect(size)
        return Share(self.progress, size)

    def _check_files(self, tasks: dict[str, tuple[FileCheck, Callable[[], None]]]) -> None:
        waiting = deque(run for _, run in tasks.values())

        def work() -> None:
            while not self._failures:
                try:
                    run = waiting.popleft()
                except IndexError:
                    return
                try:
                    run()
                except BaseException as error:
                    self._failures.append(error)

        by_fsspec = getattr(self.reader.fs, "fs", None) is not None  # else workers read, all from one file
        side_by_side(work, min(_AT_ONCE, len(tasks)) if by_fsspec else 1, self._failures.append)
        if self._failures:
            cause = self._failures[0]
            self._failures.clear()
            try:
                raise cause
            finally:
                del cause  # or it would lead to itself, and live until the garbage is collected
        for check, _ in tasks.values():
            self.findings.add(check.findings)
            self.unproved.add(check.unproved)

    def _stopped(self) -> bool:
        return bool(self._failures)

    def _without_strangers(self, beside: list[str], names: list[str]) -> list[str]:
        """The leftovers where each rank has metadata of its own: another rank's files may be all that is left of its
        part of the checkpoint.
        """
        if self.expected is None or self.expected != set(self.findings.save_ids):
            self.findings.not_checked(UNKNOWN_RANKS)
        known = {None, *map(rank_of, names)}
        strangers = [name for name in beside if rank_of(name) not in known]
        if strangers:
            self.findings.not_checked(
                f"{many(len(strangers), 'file')} of ranks that have no metadata here, such as {strangers[0]}, which "
                "may be all that is left of these ranks' part of the checkpoint"
            )
        return [name for name in beside if rank_of(name) in known]

    def _check_codecs(self) -> None:
        """Say what could not be decoded because a codec is not at hand.

        Raises
        ------
        UnknownCodecError, CodecNotAllowedError, DuplicateCodecError
            If nothing is damaged.
        """
        missing = self.unproved.missing
        if not missing:
            return
        reasons = "; ".join(dict.fromkeys(error.message for error in missing))
        items = many(len(missing), "item")
        if self.findings.is_damaged:
            self.findings.not_checked(f"the content of {items}, since {reasons}")
            return
        checked = [f"the CRCs of {many(self.findings.blocks, 'block')}"] if self.findings.blocks else []
        if self.findings.save_ids:
            checked.insert(0, f"the digests of {many(self.findings.files, 'data file')}")
        rest = f"{' and '.join(checked)} were compared all the same, and match" if checked else "nothing was checked"
        raise type(missing[0])(f"{reasons}. Without it {items} cannot be decoded; {rest}", file=self.path)

    def _say_what_was_not_checked(self) -> None:
        if self._without_key:
            several = f"{len(self._without_key):,} metadata files"
            what = self._without_key[0] if len(self._without_key) == 1 else several
            self.findings.not_checked(f"the MAC of {what}, which needs a key")
        unproved = self.unproved
        for count, noun, what in (
            (unproved.keyed, "encrypted item", "seals, tags and content of {}, which need a key"),
            (unproved.unbound, "item", "whether any were exchanged of {} that are not bound to their places"),
            (unproved.without_crc, "item", "the bytes of {} saved without any checksum"),
            (unproved.foreign, "item", "the bytes of {} that passed a foreign stream extension, but that they decode"),
        ):
            if count:
                self.findings.not_checked(what.format(many(count, noun)))
