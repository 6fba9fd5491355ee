"""Where keys are stored: in the metadata files of a checkpoint, or in a plain file; read there, and replaced."""

from __future__ import annotations

import hmac
import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from streamxf import errors
from streamxf.buffers import write_all
from streamxf.errors import located
from streamxf.notes import SAVES, check_uncommitted
from streamxf.places import GLOBAL, Location, Storage, is_run_file, locked, metadata_among, open_storage, read_small
from streamxf.reading import Access, KeySet, Metadata, Note, PlainParts, StoredFile, metadata_files
from streamxf.tools.rekey.recipients import Opened

_STEP = 16 * 2**20  # bytes of a plain file that are copied at a time
_REPLACED = (
    "the metadata was replaced meanwhile: another process saves to this folder, or changes its recipients or names. It "
    "was left as it is; try again when that is over"
)

T = TypeVar("T")
F = TypeVar("F", bound="Holder")


class MetadataFile:
    """A metadata file of a checkpoint, as it was when this was made; nothing of it is believed until it is opened.

    - `name`: in the folder.
    - `label`: its whole path, for errors.
    - `sections`: index and keys as they are stored.
    - `metadata`: what it says, once it was read.
    - `vouched`: its keys as they are stored, signatures alone if it is not encrypted; None if there are none.

    Raises UnsupportedError if it has no index, MetadataError if it is damaged or missing.
    """

    metadata: Metadata

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage, self.name, self.label = storage, name, storage.label(name)
        self._ids: dict[bytes | None, bytes] = {}  # of data keys, by `File.key`
        self.sections = self._sections()
        self._keys = self.vouched = _key_set(self.sections)

    @property
    def is_encrypted(self) -> bool:
        return self._keys is not None and len(self._keys.envelopes) > 0

    @property
    def keys(self) -> KeySet:
        """That of the process that published and, as torch's readers find them, those of the others; once it was
        opened, without what only looks like one. Raises PolicyError if there are none.
        """
        if self._keys is None or not self.is_encrypted:
            cure = "save it with Encrypt, or make an encrypted copy (`streamxf transcode --recipient`)"
            raise errors.PolicyError(f"the checkpoint is not encrypted, so it has no recipients; {cure}")
        return self._keys

    def read(self, access: Access, *, listing: bool = False) -> Metadata:
        """What it says; raises as `read_metadata`."""
        self.metadata = Metadata.of(self.sections, self.name, access, listing=listing)
        return self.metadata

    def open(self, access: Access) -> Opened:
        """Unwrap all data keys, and check what vouches for them."""
        keys, metadata = self.keys, self.read(access)
        opener, data_key = access.keys.open_by(metadata.wrapped, metadata.vouchers, keys.digest)
        index: Any = metadata.index  # there is one where there are sections
        wrapped = {file.key for file in index.files.values() if file.key is not None and any(file.key)}
        others = {key: data_key.unwrap(key) for key in wrapped}
        self._ids = {key: other.id for key, other in others.items()}
        data_keys = {other.id: other for other in (data_key, *others.values())}
        self._keys = keys = keys.only(data_keys)
        if len(keys.envelopes) < len(data_keys) and self.sections.pickled:
            raise errors.MetadataError(
                "the pickle that torch's readers read lacks a wrapped data key: the file is damaged"
            )
        opened = tuple(data_keys[envelope.dek_id] for envelope in keys.envelopes)
        return Opened(keys, opened, opener, index.digests is not None, index.save_id)

    def pack(self, keys: KeySet | None, sections: Any = None, metadata: Metadata | None = None) -> bytes:
        """The file with other keys, if any, and perhaps another index; MetadataError if readers would refuse it."""
        sections, lines = sections or self.sections, keys.lines if keys is not None else None
        head = [self._pickled(metadata or self.metadata, keys)] if sections.pickled else []
        data: bytes = sections.packed(lines, *head)
        made = Metadata.sections_in(StoredFile(self.label, len(data), io.BytesIO(data)))
        found = _key_set(made) if made is not None else None
        if found is not None and keys is not None:
            found = found.only({envelope.dek_id for envelope in keys.envelopes})
        if made is None or found != keys:
            raise errors.MetadataError("the keys cannot be replaced; the metadata was left as it is")
        return data

    def check_uncommitted(self, access: Access) -> None:
        """Raise UnsupportedError if a framework's commit record tells its size."""
        if self.metadata.index is not None and self.metadata.index.run is None:  # else the record counts for nothing
            check_uncommitted(self._storage, [self.name], access)

    def replace(self, packed: bytes) -> None:
        """Put what `pack` made in its place, if it is still the same."""
        self._storage.check_fresh()

        def check() -> None:
            if self._sections() != self.sections:
                raise errors.MetadataError(_REPLACED)

        with locked(self._storage):
            try:
                self._storage.put(self.name, packed, check=check, over=self._storage.stamp(self.name))
            except errors.ReplacedMeanwhile:
                raise errors.MetadataError(_REPLACED) from None

    def _sections(self) -> Any:
        try:
            self._storage.forget_listings()
            with self._storage.open(self.name) as file:
                sections = Metadata.sections_in(file)
                if sections is not None:
                    size = sections.head_size + sections.parts_size
                    file.check_whole(size, errors.MetadataError)
                    data = file.read(0, size)
                    return replace(sections, read=lambda at, count: data[at : at + count])
        except FileNotFoundError as error:
            raise errors.MetadataError("the metadata has gone: is another process saving to this folder?") from error
        text = (
            "the metadata has no index. If another writer saved this checkpoint, torch reads it as it is; for all "
            "else, transcode it. If streamxf's did, the file was cut or altered: restore it"
        )
        late = self._storage.is_late
        raise self._storage.doubted(errors.MetadataError(text)) if late else errors.UnsupportedError(text)

    def _pickled(self, metadata: Metadata, keys: KeySet | None) -> bytes:
        texts = (
            {envelope.dek_id: str(envelope) for envelope in keys.envelopes}
            if keys is not None and keys.envelopes
            else {b"": ""}
        )
        published = {file.key for file in metadata.files.values() if not any(file.key or b"")}
        ids = self._ids | dict.fromkeys(published, next(iter(texts)))  # with a key of zeros, or none
        by_writer = {file.writer: texts.get(ids.get(file.key, b"?")) for file in metadata.files.values()}
        if None in by_writer.values():
            raise errors.UnsupportedError(
                "several processes encrypted this checkpoint, and torch's own readers need each of their data keys "
                "wrapped for its recipients, which it does not have without a pickle: save it with stock=True"
            )
        texts_of = {writer: text or "" for writer, text in by_writer.items()}
        return metadata.stock_pickle(texts_of, self._storage.label())


class NoteFile(MetadataFile):
    """A note beside a checkpoint, which has keys as metadata has."""

    def open(self, access: Access) -> Opened:
        keys = self.keys
        opener, data_key = access.keys.open_by(*keys.lines, keys.digest)
        return Opened(keys, (data_key,), opener, signable=True)

    def pack(self, keys: KeySet | None, sections: Any = None, metadata: Metadata | None = None) -> bytes:
        assert keys is not None
        data: bytes = self.sections.packed(keys.lines, b"")
        Note.parse(data)
        return data

    def check_uncommitted(self, access: Access) -> None:
        """No record tells the size of a note."""

    def _sections(self) -> Any:
        return Note.parse(read_small(self._storage, self.name) or b"").sections


def notes_at(path: Location, storage_options: Mapping[str, Any] | None) -> Iterator[NoteFile]:
    """The notes beside a checkpoint's metadata, and of its save, that have keys. What cannot be read stays as it is."""
    storage = open_storage(path, storage_options)
    if not storage.is_folder():
        return
    run, checkpoint = storage.resolved().parent()
    beside = [(storage, name) for name in sorted(storage.names(())) if is_run_file(name)]
    for place, name in (*beside, *([(run, f"{SAVES}/{checkpoint}")] if checkpoint else [])):
        with suppress(errors.MetadataError, errors.DescriptorError, PermissionError):
            made = NoteFile(place, name)
            if made.is_encrypted:
                yield made


def metadata_of(storage: Storage) -> Iterator[MetadataFile]:
    """The metadata files of a checkpoint; raises MetadataError if there are none, or some that readers ignore."""
    found = metadata_files(storage)
    ranks = metadata_among(storage.names().keys() - {GLOBAL})
    if found == [GLOBAL] and ranks:
        raise errors.MetadataError(
            f"the folder has a {GLOBAL} and, beside it, metadata of single ranks such as {ranks[0]}, which readers "
            "ignore: it is left from another save, or of another checkpoint. Move it away, and try again",
            file=storage.label(),
        )
    for name in found:
        with located(file=storage.label(name)), storage.doubting():
            made = MetadataFile(storage, name)
        yield made
        del made  # what nobody has vouched for yet is in memory one at a time


def _key_set(sections: Any) -> KeySet | None:
    lines, head = sections.key_lines(), sections.head() if sections.pickled else b""
    return KeySet.parse(lines[0], lines[1], sections.digest, head) if lines is not None else None


class PlainFile:
    """A local file that `streamxf.open` wrote. Other keys have another size, so it is written again beside itself.

    It has the methods of `MetadataFile`.
    """

    def __init__(self, storage: Storage) -> None:
        self.name, self.label, self._storage = storage.name, storage.label(), storage
        with storage.open() as file:
            self.keys, self._parts = _keys_and_parts(file)

    def open(self, access: Access) -> Opened:
        header = self._parts.header
        try:
            opener, data_key = access.keys.open_by(self._parts.wrapped, self._parts.vouchers, self.keys.digest)
        except errors.KeyMissingError as error:
            raise errors.KeyMissingError(f"this file is {error.message}") from None
        if not hmac.compare_digest(data_key.stream_keys(header.salt, header.digest)[1], header.seal or b""):
            raise errors.AuthenticationError("the header's seal does not match: the file was altered")
        return Opened(self.keys, (data_key,), opener, bool(self._parts.digests))

    def pack(self, keys: KeySet) -> tuple[bytes, bytes]:
        return self._parts.resealed(*keys.lines)

    def replace(self, packed: tuple[bytes, bytes]) -> None:
        (prefix, seal), before = packed, self._storage.version()
        with self._storage.replacing() as draft, self._storage.open() as file:
            found, parts = _keys_and_parts(file)
            write_all(draft, prefix)
            for at in range(0, parts.container.length, _STEP):
                write_all(draft, parts.container.read_at(at, min(_STEP, parts.container.length - at)))
            write_all(draft, seal)
            if found != self.keys or self._storage.version() != before:
                raise errors.ContainerError("the file was replaced meanwhile; it was left as it is. Try again later")


def _keys_and_parts(file: StoredFile) -> tuple[KeySet, PlainParts]:
    parts = PlainParts.of(file.slice(0, file.size))
    if (keys := parts.keys) is None:
        raise errors.PolicyError("the file is not encrypted, so it has no recipients; write it with Encrypt")
    return keys, parts


Holder = MetadataFile | PlainFile


def holders_at(
    path: Location, storage_options: Mapping[str, Any] | None, expected: frozenset[str] | None
) -> Iterator[Holder]:
    """The metadata files of the checkpoint, or the plain file, that is there.

    Raises ParameterError if a certain save is expected and it is a plain file, and UnsupportedError for other files.
    """
    storage = open_storage(path, storage_options)
    is_folder = True
    with suppress(FileNotFoundError):
        is_folder = storage.is_folder()
    if is_folder:
        yield from metadata_of(storage)
        return
    is_plain = False
    if storage.near:
        with storage.open() as file:
            is_plain = file.is_plain
    if not is_plain:
        raise errors.UnsupportedError(
            "this file is neither a checkpoint's folder nor a local file that streamxf.open wrote", file=storage.label()
        )
    if expected is not None:
        raise errors.ParameterError("expect_save_id is for checkpoints: a file that streamxf.open wrote is not a save")
    with located(file=storage.label()):
        made = PlainFile(storage)
    yield made


def each(files: Iterable[F], work: Callable[[F], T]) -> list[T]:
    """What `work` gives for each file."""
    done = []
    for file in files:
        with located(file=file.label):
            done.append(work(file))
        del file  # before the next one is read
    return done


def replace_each(planned: Collection[tuple[Holder, Any] | None], access: Access) -> tuple[str, ...]:
    """Put what `pack` made in the places of files, and return their names. All is made before anything is written.
    Raises UnsupportedError if one of them is metadata that a framework committed.
    """
    done = []
    for file, _ in filter(None, planned):
        if isinstance(file, MetadataFile):
            file.check_uncommitted(access)
    for file, packed in filter(None, planned):
        with located(file=file.label):
            file.replace(packed)
        done.append(file.name)
    return tuple(done)
