"""`verify`: read every byte of a checkpoint, and say what is damaged."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from torch.distributed.checkpoint._extension import ExtensionRegistry

from streamxf.dcp.compat import metadata_name
from streamxf.dcp.load.items import ItemOpener, Require
from streamxf.dcp.metadata.save_ids import SaveIds, as_save_ids, check_save_id
from streamxf.dcp.publish.listing import RANK_METADATA, list_files, made_by_writers, rank_of
from streamxf.dcp.reader import FileSystemReader
from streamxf.dcp.verify.files import FileChecker, Unproved
from streamxf.dcp.verify.metadata import Content, read_content
from streamxf.dcp.verify.report import Findings, VerifyReport
from streamxf.errors import (
    KeyMissingError,
    KeyServiceError,
    MetadataError,
    PolicyError,
    StreamxfError,
    UnsupportedError,
    WrongKeyError,
)
from streamxf.keys import KeyRing, KeysLike, TrustLike
from streamxf.registry import providers_in

_SUFFIX = ".distcp"


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
) -> VerifyReport:
    """Read every byte of a checkpoint, and say which items and blocks are damaged.

    Nothing is loaded: memory stays small, whatever the size of the checkpoint, but for tensors that torch alone can
    tell apart, one at a time. Damage is in the report, and raises nothing.

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

    Raises
    ------
    MetadataError
        If there is no checkpoint.
    UnsupportedError
        If this is a file.
    KeyMissingError, WrongKeyError, KeyServiceError
        If there are keys, and none of them opens the checkpoint.
    PolicyError, IdentityError
        If it is weaker than the caller requires, or another save.
    ParameterError
        If an argument is not what it should be.
    """
    begin = perf_counter()
    look = _Look.of(path, KeyRing.of(keys, trust, allow_unsigned), require, expect_save_id, registry, storage_options)
    look.run()
    return look.findings.report(perf_counter() - begin)


@dataclass
class _Look:
    """One call of `verify`."""

    reader: Any
    path: str
    expected: frozenset[str] | None
    findings: Findings = field(default_factory=Findings)
    unproved: Unproved = field(default_factory=Unproved)

    @classmethod
    def of(
        cls,
        path: str | os.PathLike[str],
        keys: KeyRing,
        require: Require | None,
        expect_save_id: SaveIds,
        registry: ExtensionRegistry | None,
        storage_options: Mapping[str, Any] | None,
    ) -> _Look:
        text = os.fspath(path)
        reader: Any
        if "://" in text or "::" in text or storage_options:
            from streamxf.dcp.fsspec import FsspecReader

            reader = FsspecReader(text, registry, keys=keys, require=require, **(storage_options or {}))
        else:
            reader = FileSystemReader(text, registry, keys=keys, require=require)
        return cls(reader, text, as_save_ids(expect_save_id))

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
        if not names and not data:
            raise MetadataError("there is no checkpoint: the folder has no .metadata", file=self.path)
        if not names:
            self.findings.damage(MetadataError("the metadata is missing: nothing tells what was saved"), ".metadata")
        contents = {name: self._read(name) for name in names}
        named = set(names)
        for content in contents.values():
            if content is not None:
                named |= self._check(content)
        if not names or None in contents.values():
            for name in sorted(data - named):
                self._checker(None).scan(name)
            named |= data
        self.findings.leftovers += sorted(name for name in listed if name not in named and made_by_writers(name))
        self._say_what_was_not_checked()
        if self.unproved.refused and not self.unproved.opened:
            raise self.unproved.refused[0]

    def _listed(self) -> dict[str, int | None]:
        try:
            return list_files(self.reader.fs, self.reader.path)
        except NotADirectoryError:
            raise UnsupportedError(
                "this is a file, and not a checkpoint's folder; streamxf.open checks a plain file as it reads it",
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
        except StreamxfError as error:
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
            check_save_id(manifest.save_id, self.expected)
        if not content.authenticated:
            self.findings.not_checked(f"{name}: its MAC, for want of a key; who altered it on purpose is not found out")
        elif manifest is None:
            self.findings.not_checked(
                f"{name}: it has no manifest, so there is no digest of it or of whole files, and nothing tells whether "
                "files of other saves stand in the place of its own"
            )

    def _check(self, content: Content) -> set[str]:
        checker = self._checker(content)
        by_file = content.by_file()
        for name, entries in by_file.items():
            facts = content.manifest.files.get(name) if content.manifest is not None else None
            checker.check(name, entries, facts)
        return set(by_file)

    def _checker(self, content: Content | None) -> FileChecker:
        reader = self.reader
        if content is None:
            return FileChecker(reader, ItemOpener(reader._registry), self.findings, self.unproved)
        providers = tuple(providers_in(getattr(content.metadata.storage_meta, "modules", None)))
        opener = ItemOpener(reader._registry, reader._require, content.manifest, providers)
        return FileChecker(reader, opener, self.findings, self.unproved)

    def _say_what_was_not_checked(self) -> None:
        sentences = {
            "encrypted, without a key for them: neither seals and tags were checked, nor what they decode to": (
                self.unproved.keyed
            ),
            "not bound to their places: whether they were exchanged": self.unproved.unbound,
            "objects, which were not unpickled: whether readers allow what they need (see streamxf.unsafe_globals)": (
                self.unproved.objects
            ),
            "saved without any checksum: whether their bytes are those that were saved": self.unproved.without_crc,
            "through a stream extension that is not streamxf's: nothing but that they decode": self.unproved.foreign,
        }
        for sentence, count in sentences.items():
            if count:
                self.findings.not_checked(f"items {sentence} ({count:,})")
