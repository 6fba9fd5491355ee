"""Where keys are stored: in the metadata files of a checkpoint, or in a plain file; read there, and replaced."""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from streamxf.buffers import write_all
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.metadata import metadata_files, metadata_in, read_sections
from streamxf.checkpoint.pickled import pickled
from streamxf.errors import (
    AuthenticationError,
    ContainerError,
    KeyMissingError,
    MetadataError,
    ParameterError,
    PolicyError,
    UnsupportedError,
)
from streamxf.format.index import Index, Sections, Trailer, pack, pack_keys
from streamxf.format.limits import MAX_METADATA, NO_PICKLE, PLAIN_MAGIC, TRAILER_BYTES
from streamxf.format.names import GLOBAL, rank_metadata_among
from streamxf.format.plain import pack_prefix, pack_seal
from streamxf.keys.envelope import Envelope
from streamxf.keys.vouchers import Vouchers
from streamxf.storage.files import open_regular
from streamxf.storage.local import LocalStorage
from streamxf.storage.lock import locked
from streamxf.storage.multipart import ReplacedMeanwhile
from streamxf.storage.opening import Location, open_storage
from streamxf.storage.reading import FileSlice
from streamxf.storage.storage import Storage
from streamxf.stream.plain import PlainParts
from streamxf.tools.rekey.recipients import KeySet, Opened

_STEP = 16 * 2**20  # bytes of a plain file that are copied at a time


_REPLACED = (
    "the metadata was replaced meanwhile: another process saves to this folder, or changes its recipients or names. It "
    "was left as it is; try again when that is over"
)


class MetadataFiles:
    """The metadata files of a checkpoint. One of them is in memory at a time, since nothing vouches for their sizes."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def names(self) -> list[str]:
        """The files; raises MetadataError if there are none, or some that readers ignore."""
        found = metadata_files(self._storage)
        ranks = rank_metadata_among(self._storage.names())
        if found == [GLOBAL] and ranks:
            raise MetadataError(
                f"the folder has a {GLOBAL} and, beside it, metadata of single ranks such as {ranks[0]}, which readers "
                "ignore: it is left from another save, or of another checkpoint. Move it away, and try again",
                file=self._storage.label(),
            )
        return found

    def label(self, name: str) -> str:
        """A file's whole path, for errors."""
        return self._storage.label(name)

    def read(self, name: str) -> tuple[KeySet, Sections]:
        """A file's keys, of which nothing is believed yet, and all else that `open` and `pack` need."""
        sections = self.sections(name)
        if (keys := key_set(sections)) is None:
            raise PolicyError("the checkpoint is not encrypted, so it has no recipients; save it with Encrypt")
        return keys, sections

    def sections(self, name: str) -> Sections:
        """Index and keys as they are stored. Raises UnsupportedError if there are none."""
        try:
            self._storage.forget_listings()
            with self._storage.open(name) as file:
                sections = read_sections(file)
        except FileNotFoundError as error:
            raise MetadataError("the metadata has gone: is another process saving to this folder?") from error
        if sections is None:
            raise UnsupportedError(
                "the metadata has no index. If streamxf's writer saved this checkpoint, the file was cut or altered: "
                "restore it. If another writer did, nothing vouches for which keys belong here: load the checkpoint, "
                "and save it with streamxf's writer"
            )
        return sections

    def open(self, access: Access, name: str, keys: KeySet, sections: Sections) -> Opened:
        """Unwrap all data keys, and check what vouches for them."""
        metadata = metadata_in(sections, name, access)
        index = metadata.index
        assert index is not None  # there is one where there are sections
        wrapped, *others = metadata.wrapped.values()
        opener, data_key = access.keys.open_by(wrapped, metadata.vouchers, keys.digest)
        data_keys = (data_key, *map(access.keys.unwrap, others))
        return Opened(keys, data_keys, opener, index.hashed is not False, index.save_id)

    def pack(self, sections: Sections, keys: KeySet | None) -> bytes:
        """The file with other keys, if it has any; raises MetadataError if it would not be as readers expect."""
        index = Index.parse(sections.index)
        wrapped = {envelope.dek_id: str(envelope) for envelope in keys.envelopes} if keys is not None else {b"": ""}
        by_writer = {writer.id: wrapped[writer.dek or b""] for writer in index.writers}
        first, *others = wrapped.values()
        lines = pack_keys(first, str(keys.vouchers), others) if keys is not None else b""
        head = pickled(index, by_writer, self._storage.label()) if sections.pickled else NO_PICKLE
        data = pack(head, bytes(sections.index), lines, sections.format_bytes)
        if len(data) > MAX_METADATA:
            raise MetadataError(
                f"the metadata would have {len(data)} bytes, {MAX_METADATA} are allowed; name fewer recipients"
            )
        trailer = Trailer.parse(data[-TRAILER_BYTES:], len(data))
        if trailer is None or key_set(trailer.split(data[-trailer.size :])) != keys:
            raise MetadataError("the keys cannot be replaced; the metadata was left as it is")
        return data

    def write(self, name: str, before: KeySet, keys: KeySet) -> None:
        """Replace a file that has the keys `before` by one with other keys."""
        found, sections = self.read(name)
        if found != before:
            raise MetadataError(_REPLACED)
        self.replace(name, sections, sections, keys)

    def replace(self, name: str, before: Sections, sections: Sections, keys: KeySet | None) -> None:
        """Replace a file that is still `before` by what `pack` makes."""
        if self._storage.is_cached:
            raise UnsupportedError(
                "this URL leads through a cache, which may remember the metadata of an older save; use that of the "
                "storage itself. Nothing was changed",
                file=self._storage.label(),
            )

        def check() -> None:
            if self.sections(name) != before:
                raise MetadataError(_REPLACED)

        data = self.pack(sections, keys)
        with locked(self._storage):
            try:
                self._storage.put(name, data, check=check, over=self._storage.stamp(name))
            except ReplacedMeanwhile:
                raise MetadataError(_REPLACED) from None


def key_set(sections: Sections) -> KeySet | None:
    """The keys of a metadata file; None if it has none."""
    lines = sections.key_lines()
    if lines is None:
        return None
    envelopes = map(Envelope.parse, (lines[0], *sections.other_key_lines()))
    return KeySet(tuple(envelopes), Vouchers.parse(lines[1]), sections.digest)


class PlainFile:
    """A local file that `streamxf.open` wrote. Other keys have another size, so it is written again beside itself.

    It has the methods of `MetadataFiles`.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def names(self) -> list[str]:
        return [os.path.basename(self._path)]

    def label(self, name: str) -> str:
        return self._path

    def read(self, name: str) -> tuple[KeySet, PlainParts]:
        with open_regular(self._path) as file:
            return _parts(file)

    def open(self, access: Access, name: str, keys: KeySet, parts: PlainParts) -> Opened:
        try:
            opener, data_key = access.keys.open_by(parts.wrapped, parts.vouchers, keys.digest)
        except KeyMissingError as error:
            raise KeyMissingError(f"this file is {error.message}") from None
        header = parts.header
        if not hmac.compare_digest(data_key.stream_keys(header.salt, header.digest)[1], header.seal or b""):
            raise AuthenticationError("the header's seal does not match: the file was altered")
        return Opened(keys, (data_key,), opener, header.hashed)

    def pack(self, parts: PlainParts, keys: KeySet) -> tuple[bytes, bytes]:
        return pack_prefix(str(keys.envelopes[0]), parts.format_bytes), pack_seal(str(keys.vouchers))

    def write(self, name: str, before: KeySet, keys: KeySet) -> None:
        with LocalStorage(self._path).replacing() as draft, open_regular(self._path) as file:
            found, parts = _parts(file)
            prefix, seal = self.pack(parts, keys)
            write_all(draft, prefix)
            for at in range(0, parts.container.length, _STEP):
                write_all(draft, parts.container.read_at(at, min(_STEP, parts.container.length - at)))
            write_all(draft, seal)
            if found != before or not os.path.samestat(os.fstat(file.fileno()), os.stat(self._path)):
                raise ContainerError("the file was replaced meanwhile; it was left as it is. Try again later")


def _parts(file: Any) -> tuple[KeySet, PlainParts]:
    parts = PlainParts.of(FileSlice(file))
    if not parts.wrapped:
        raise PolicyError("the file is not encrypted, so it has no recipients; write it with Encrypt")
    return KeySet((Envelope.parse(parts.wrapped),), Vouchers.parse(parts.vouchers), parts.digest()), parts


Holder = MetadataFiles | PlainFile


def holder_at(path: Location, storage_options: Mapping[str, Any] | None, expected: frozenset[str] | None) -> Holder:
    """The checkpoint or the plain file that is there.

    Raises ParameterError if a certain save is expected and it is a plain file, and UnsupportedError for other files.
    """
    storage = open_storage(path, storage_options)
    is_folder = True
    with suppress(FileNotFoundError):
        is_folder = storage.is_folder()
    if is_folder:
        return MetadataFiles(storage)
    is_plain = False
    if isinstance(storage, LocalStorage):
        with open_regular(storage.path) as file:
            is_plain = file.read(len(PLAIN_MAGIC)) == PLAIN_MAGIC
    if not is_plain:
        raise UnsupportedError(
            "this file is neither a checkpoint's folder nor a local file that streamxf.open wrote", file=storage.label()
        )
    if expected is not None:
        raise ParameterError("expect_save_id is for checkpoints: a file that streamxf.open wrote is not a save")
    return PlainFile(storage.path)
