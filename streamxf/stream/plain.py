"""Plain files through a chain: `open`, and `encode` and `decode` for bytes; docs/format.md, "Plain file"."""

from __future__ import annotations

import io
import os
import secrets
import stat
from builtins import open as _builtin_open
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import IO, Any, Literal, Self, overload

from typing_extensions import Buffer

from streamxf.buffers import Writable, write_all
from streamxf.chain import Chain, ChainLike, StreamCoder
from streamxf.descriptor import Descriptor
from streamxf.errors import AbortedError, ContainerError, ParameterError, PolicyError, located, redacted
from streamxf.format.container import End
from streamxf.format.header import Header
from streamxf.format.limits import DEFAULT_BLOCK_LOG2
from streamxf.format.plain import (
    PREFIX_START_BYTES,
    SEAL_END_BYTES,
    contents_digest,
    pack_prefix,
    pack_seal,
    parse_prefix,
    parse_seal,
    prefix_size,
    seal_size,
)
from streamxf.keys import KeyRing, KeysLike
from streamxf.keys.envelope import DataKey
from streamxf.keys.vouchers import Vouchers
from streamxf.registry import CodecRegistry
from streamxf.storage.files import aim, create
from streamxf.storage.opening import file_system_of, open_storage
from streamxf.storage.source import FileSlice
from streamxf.storage.storage import is_url
from streamxf.storage.synced import SyncedFile
from streamxf.stream.container import BlockReader, ChainOpener, read_header
from streamxf.stream.encoder import ContainerEncoder, block_log2_of
from streamxf.stream.pipe import PipeReader
from streamxf.stream.reader import StreamReader
from streamxf.stream.writer import StreamWriter


class Draft:
    """Writes beside `target`, and renames over it on success; otherwise the old file stays. A link is followed to its
    target, which keeps its permissions; raises FileExistsError if that is missing. Anything but a regular file (a
    device, a named pipe) cannot be replaced, and is written to directly. Without ``with``, `finish` has to be called.

    - `file`: write here. Unbuffered: after a fork the child's copy of a buffer would be flushed into the parent's file.
    """

    def __init__(self, target: str | os.PathLike[str]) -> None:
        self._target = aim(target)
        mode = self._target.stat().st_mode if self._target.exists() else None
        if mode is not None and not stat.S_ISREG(mode):
            self._draft = None
            self._raw: io.FileIO = _builtin_open(self._target, "wb", buffering=0)  # noqa: SIM115 - closed by `finish`
            self.file: Writable = self._raw
            return
        self._draft = self._target.with_name(f".{self._target.name}.{secrets.token_hex(4)}.tmp")
        self._raw = create(self._draft, None if mode is None else self._target)
        self.file = self._synced = SyncedFile(self._raw)

    def __enter__(self) -> Writable:
        return self.file

    def __exit__(self, kind: object, *_: object) -> None:
        self.finish(kind is None)

    def finish(self, complete: bool) -> None:
        """Put the file in its place if it is `complete`, else remove it. Raises OSError; the old file stays then."""
        try:
            with closing(self._raw):
                if complete and self._draft is not None:
                    self._synced.sync()
            if complete and self._draft is not None:
                self._draft.replace(self._target)
        finally:
            if self._draft is not None:
                self._draft.unlink(missing_ok=True)


class RemoteDraft(Draft):
    """The same at a URL: fsspec stores the file at the end, or drops it."""

    def __init__(self, url: str | os.PathLike[str], storage_options: Mapping[str, Any]) -> None:
        filesystem, path = file_system_of(os.fspath(url), storage_options)
        with ExitStack() as opened:
            opened.enter_context(filesystem.transaction)
            self.file = opened.enter_context(filesystem.open(path, "wb"))
            self._opened = opened.pop_all()

    def finish(self, complete: bool) -> None:
        error = None if complete else AbortedError("the file was not completed")
        self._opened.__exit__(type(error) if error else None, error, None)


def draft_at(path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Draft:
    return RemoteDraft(path, storage_options or {}) if is_url(path) or storage_options else Draft(path)


@dataclass(frozen=True)
class PlainParts:
    """The parts of a plain file, which fit together; no key has opened it yet. `wrapped` and `vouchers` are empty if
    the chain does not encrypt.
    """

    header: Header
    container: FileSlice
    wrapped: str
    vouchers: str = ""

    @classmethod
    def of(cls, whole: FileSlice) -> Self:
        start = prefix_size(whole.read_at(0, min(PREFIX_START_BYTES, whole.length)))
        wrapped = parse_prefix(whole.read_at(0, start))
        header = read_header(whole.slice(start, whole.length))
        check_header(header, wrapped)
        if not wrapped:
            return cls(header, whole.slice(start, whole.length), wrapped)
        end = whole.read_at(max(0, whole.length - SEAL_END_BYTES), min(whole.length, SEAL_END_BYTES))
        stop = max(start, whole.length - seal_size(end))
        vouchers = parse_seal(whole.read_at(stop, whole.length - stop))
        check_signed(header, vouchers)
        return cls(header, whole.slice(start, stop), wrapped, vouchers)

    def digest(self) -> bytes:
        """D of the format: the digest that vouchers cover. Raises ContainerError if table or footer are damaged."""
        return contents_digest(BlockReader(self.container, self.header, None).table_digest)

    def coder(self, ring: KeyRing, registry: CodecRegistry) -> StreamCoder:
        # the digest before any coder is made: vouchers cover the table
        data_key = ring.open(self.wrapped, self.vouchers, self.digest()) if self.wrapped else None
        return coder_for(self.header, registry, data_key)


def coder_for(header: Header, registry: CodecRegistry, data_key: DataKey | None) -> StreamCoder:
    descriptors = [Descriptor.parse(text) for text in header.chain]
    return ChainOpener(descriptors, registry, (lambda: data_key) if data_key is not None else None).coder(header)


def check_header(header: Header, wrapped: str) -> None:
    if header.identity is not None:
        raise ContainerError("the file holds an item cut out of a checkpoint")
    if bool(wrapped) != header.keyed:
        raise ContainerError("the file's prefix contradicts its header: only one of them has encryption")
    if header.hashed and not header.keyed:
        raise ContainerError("the file has hashes of its blocks and is not signed, which no writer makes")


def check_signed(header: Header, vouchers: str) -> None:
    if header.hashed != (Vouchers.parse(vouchers).signature is not None):
        raise ContainerError(
            "hashes of blocks and a signature belong together, and this file has only one of them: the signature was "
            "removed or added"
        )


PathOrFile = str | os.PathLike[str] | IO[bytes]


@overload
def open(
    path_or_file: PathOrFile,
    mode: Literal["rb"] = "rb",
    *,
    keys: KeysLike = ...,
    codecs: CodecRegistry | None = ...,
    storage_options: Mapping[str, Any] | None = ...,
) -> StreamReader | PipeReader: ...
@overload
def open(
    path_or_file: PathOrFile,
    mode: Literal["wb"],
    *,
    chain: ChainLike | None = ...,
    keys: KeysLike = ...,
    block_size: int = ...,
    codecs: CodecRegistry | None = ...,
    storage_options: Mapping[str, Any] | None = ...,
) -> StreamWriter: ...
def open(
    path_or_file: PathOrFile,
    mode: Literal["rb", "wb"] = "rb",
    *,
    chain: ChainLike | None = None,
    keys: KeysLike = None,
    block_size: int = 1 << DEFAULT_BLOCK_LOG2,
    codecs: CodecRegistry | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> StreamReader | PipeReader | StreamWriter:
    """Open a plain file through a chain.

    The file records its chain, so a reader needs only the keys. A written file appears under its name, complete, when
    it is closed; if writing fails, an existing file stays. Readers are seekable where the source is.

    Parameters
    ----------
    path_or_file : path, URL or binary file
        A file object is used from its current position (to its end, for reading) and stays open.
    mode : {"rb", "wb"}
    chain : Chain, codecs or str
        For writing, such as ``[ZStandard(), Encrypt(key)]`` or ``"zstd+encrypt"``. The default is ``"floatzip"``.
    keys : Key, bytes, several of them or a KeyRing
        For reading encrypted files, and for ``encrypt`` in a chain's text form. With keys, a file that is not encrypted
        is refused, so that nobody can slip one in.
    block_size : int
        Bytes, a power of two from 64 KiB to 16 MiB. For writing.
    codecs : CodecRegistry, optional
        Where codecs are looked up.
    storage_options : mapping, optional
        fsspec's, for a URL.

    Returns
    -------
    file
        A binary file object. Use it in a ``with`` block: only a clean exit, or `close`, finishes a written file.

    Raises
    ------
    ChainError, ParameterError
        If the chain or another argument cannot be used.
    ContainerError, BlockError, CodecError, AuthenticationError
        If the file is damaged; also raised later, by the reads that meet the damage.
    KeyMissingError, UnknownCodecError
        If the file needs a key that was not given, or a codec that is not installed.
    PolicyError
        If keys were given and the file is not encrypted.
    """
    if codecs is not None and not isinstance(codecs, CodecRegistry):
        raise ParameterError("codecs= takes a streamxf.CodecRegistry; that of a streamxf.Registry is in its .codecs")
    if mode == "wb":
        made = Chain.chosen(chain, keys=keys, codecs=codecs)
        return _open_writer(path_or_file, made.renew(), block_log2_of(block_size), storage_options)
    if mode != "rb":
        raise ParameterError(f"streamxf.open: the mode must be 'rb' or 'wb', not {mode!r}")
    if chain is not None:
        raise ParameterError("streamxf.open: a file records its own chain; to read it, pass keys= only")
    return _open_reader(path_or_file, KeyRing.of(keys), codecs or CodecRegistry(), storage_options)


def encode(data: Buffer, chain: ChainLike | None = None, *, keys: KeysLike = None) -> bytes:
    """Encode bytes as a plain file in memory; arguments as for `open`."""
    buffer = io.BytesIO()
    with open(buffer, "wb", chain=chain, keys=keys) as file:
        file.write(data)
    return buffer.getvalue()


def decode(data: Buffer, *, keys: KeysLike = None, codecs: CodecRegistry | None = None) -> bytes:
    """Undo `encode`; raises as `open` does."""
    with open(io.BytesIO(data), "rb", keys=keys, codecs=codecs) as file:
        return file.read() or b""


# -- writing ---------------------------------------------------------------------------------------


def _open_writer(target: PathOrFile, chain: Chain, block_log2: int, options: Mapping[str, Any] | None) -> StreamWriter:
    encryption = chain.encryption
    prefix = pack_prefix(encryption.wrapped if encryption is not None else "")
    hashed = encryption is not None and encryption.hashed
    encoder = ContainerEncoder(chain, hashed=hashed, block_log2=block_log2)
    seal = (lambda: pack_seal(encryption.vouch(contents_digest(encoder.table_digest)))) if encryption else None
    if not isinstance(target, str | os.PathLike):
        write_all(target, prefix)
        return StreamWriter(target, encoder, seal=seal)
    draft = draft_at(target, options)
    try:
        write_all(draft.file, prefix)
        return StreamWriter(draft.file, encoder, seal=seal, finish=draft.finish)
    except BaseException:
        draft.finish(False)
        raise


# -- reading ---------------------------------------------------------------------------------------


def _open_reader(
    origin: PathOrFile, ring: KeyRing, registry: CodecRegistry, options: Mapping[str, Any] | None
) -> StreamReader | PipeReader:
    if not isinstance(origin, str | os.PathLike):
        names = (getattr(origin, attribute, None) for attribute in ("full_name", "name"))  # fsspec's with its protocol
        name = next((name for name in names if isinstance(name, str)), None)
        with located(file=name):
            return read_file(origin, ring, registry, name=name)
    name, opened = redacted(os.fspath(origin)), ExitStack()  # which the reader closes
    try:
        with located(file=name):
            if is_url(origin) or options:
                file: IO[bytes] = opened.enter_context(open_storage(origin, options).open()).raw
            else:
                file = opened.enter_context(_builtin_open(origin, "rb"))  # noqa: SIM115 - so it is one
            return read_file(file, ring, registry, opened.close, name)
    except BaseException:
        opened.close()
        raise


def read_file(
    file: IO[bytes],
    ring: KeyRing,
    registry: CodecRegistry,
    finish: Callable[[], None] | None = None,
    name: str | None = None,
    *,
    encrypted: bool = False,
) -> StreamReader | PipeReader:
    """As `open`; the reader calls `finish` when it is closed. With `encrypted`, nothing else is read even if there are
    no keys.
    """
    if file.seekable():
        parts = PlainParts.of(FileSlice(file, file.tell()))
        _check_encrypted(parts.header, ring, encrypted)
        blocks = BlockReader(parts.container, parts.header, parts.coder(ring, registry))
        blocks.decode_ends()
        return StreamReader(blocks, finish, name)
    start = _read_exactly(file, PREFIX_START_BYTES)
    wrapped = parse_prefix(start + _read_exactly(file, prefix_size(start) - PREFIX_START_BYTES))

    headers: list[Header] = []

    def begin(header: Header) -> StreamCoder:
        headers.append(header)
        check_header(header, wrapped)
        _check_encrypted(header, ring, encrypted)
        data_key = ring.open_pipe(wrapped) if wrapped else None
        return coder_for(header, registry, data_key)

    def end(event: End, rest: bytes) -> None:
        if wrapped:
            vouchers = parse_seal(rest)
            check_signed(headers[0], vouchers)
            ring.open(wrapped, vouchers, contents_digest(event.table_digest))
        elif rest:
            raise ContainerError("there is data behind the container's end")

    return PipeReader(file, begin, end, finish, name)


def _check_encrypted(header: Header, ring: KeyRing, encrypted: bool) -> None:
    if header.keyed:
        return
    if encrypted:
        raise unencrypted()
    if len(ring):
        raise PolicyError(
            "the file is not encrypted, and keys were given, so it may stand where an encrypted one belongs; leave the "
            "keys out if you know that it was not encrypted"
        )


def unencrypted() -> PolicyError:
    """The error of a job that encrypts its files, and finds another."""
    return PolicyError(
        "the file is not encrypted, and the chain in use encrypts, so it may stand where an encrypted one belongs; if "
        "you know that it was not encrypted, read it without that chain"
    )


def _read_exactly(file: IO[bytes], size: int) -> bytes:
    data = b""
    while len(data) < size and (more := file.read(size - len(data))):
        data += more
    return data
