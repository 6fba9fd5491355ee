"""Where keys are stored: in the metadata files of a checkpoint, or in a plain file; read there, and replaced."""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from streamxf.budget import check_whole
from streamxf.buffers import write_all
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.metadata import metadata_files, metadata_in, read_sections
from streamxf.checkpoint.pickled import pickled
from streamxf.errors import (
    AuthenticationError,
    ContainerError,
    DescriptorError,
    KeyMissingError,
    MetadataError,
    ParameterError,
    PolicyError,
    UnsupportedError,
)
from streamxf.format.index import Index
from streamxf.format.limits import NO_PICKLE, PLAIN_MAGIC, TRAILER_BYTES, WRAPPED_KEY_BYTES
from streamxf.format.names import GLOBAL, rank_metadata_among
from streamxf.format.plain import pack_prefix, pack_seal
from streamxf.format.trailer import Read, Sections, Trailer, pack, pack_keys
from streamxf.keys.envelope import WRAPPED_KEY, Envelope
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
        self._ids: dict[bytes | None, bytes] = {}  # of data keys, by `File.key`

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
                if sections is not None:
                    size = sections.head_size + sections.parts_size
                    check_whole(file.raw, file.size, size, MetadataError)
                    sections = replace(sections, read=_reader_of(file.read(0, size)))
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
        opener, data_key = access.keys.open_by(metadata.wrapped, metadata.vouchers, keys.digest)
        wrapped = {file.key for file in index.files.values() if file.key is not None and any(file.key)}
        others = {key: data_key.unwrap(key) for key in wrapped}
        self._ids |= {key: other.id for key, other in others.items()}
        data_keys = {other.id: other for other in (data_key, *others.values())}
        envelopes = tuple(envelope for envelope in keys.envelopes if envelope.dek_id in data_keys)
        if len(envelopes) < len(data_keys) and sections.pickled:
            raise MetadataError("the pickle that torch's readers read lacks a wrapped data key: the file is damaged")
        opened = tuple(data_keys[envelope.dek_id] for envelope in envelopes)
        hashed = index.hashed or not index.items
        return Opened(replace(keys, envelopes=envelopes), opened, opener, hashed, index.save_id)

    def pack(self, sections: Sections, keys: KeySet | None) -> bytes:
        """The file with other keys, if it has any; raises MetadataError if it would not be as readers expect."""
        head = self._pickled(sections, keys) if sections.pickled else NO_PICKLE
        lines = pack_keys(str(keys.envelopes[0]), str(keys.vouchers)) if keys is not None else b""
        parts = sections.parts(0, sections.parts_size)
        data = pack(head, parts, bytes(sections.root), lines, sections.format_bytes)
        trailer = Trailer.parse(data[-TRAILER_BYTES:], len(data))
        if trailer is None or key_set(trailer.split(data[-trailer.size :], read=_reader_of(data))) != keys:
            raise MetadataError("the keys cannot be replaced; the metadata was left as it is")
        return data

    def _pickled(self, sections: Sections, keys: KeySet | None) -> bytes:
        hashed = keys is not None and keys.vouchers.signature is not None
        index = Index.parse(sections.root, sections.parts, sections.parts_size, hashed=hashed)
        texts = {envelope.dek_id: str(envelope) for envelope in keys.envelopes} if keys is not None else {b"": ""}
        ids = self._ids | {bytes(WRAPPED_KEY_BYTES): next(iter(texts)), None: b""}
        by_writer = {file.writer: texts.get(ids.get(file.key, b"?")) for file in index.files.values()}
        if None in by_writer.values():
            raise UnsupportedError(
                "several processes encrypted this checkpoint, and torch's own readers need each of their data keys "
                "wrapped for its recipients, which it does not have without a pickle: save it with stock=True"
            )
        return pickled(index, {writer: text or "" for writer, text in by_writer.items()}, self._storage.label())

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


def _reader_of(data: bytes) -> Read:
    return lambda at, size: data[at : at + size]


def key_set(sections: Sections) -> KeySet | None:
    """The keys of a metadata file: that of the process that published and, as torch's readers find them, those of the
    others; None if it has none.
    """
    lines = sections.key_lines()
    if lines is None:
        return None
    envelopes = {(first := Envelope.parse(lines[0])).dek_id: first}
    for found in WRAPPED_KEY.findall(sections.head() if sections.pickled else b""):
        with suppress(DescriptorError):
            other = Envelope.parse(found.decode("ascii"))
            envelopes.setdefault(other.dek_id, other)
    return KeySet(tuple(envelopes.values()), Vouchers.parse(lines[1]), sections.digest)


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
