"""Plain files through a chain: `open`, and `encode` and `decode` for bytes; docs/format.md, "Plain file"."""

from __future__ import annotations

import io
import os
import secrets
import stat
from builtins import open as _builtin_open
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, Literal, Self, overload

from typing_extensions import Buffer

from streamxf.buffers import Writable, write_all
from streamxf.chain import Chain, ChainLike, StreamCoder
from streamxf.codecs.encrypt import Encrypt
from streamxf.descriptor import Descriptor
from streamxf.errors import ContainerError, ParameterError, PolicyError, located
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
from streamxf.storage.source import FileSlice
from streamxf.storage.synced import SyncedFile
from streamxf.stream.container import BlockReader, ChainOpener, read_header
from streamxf.stream.encoder import ContainerEncoder, block_log2_of
from streamxf.stream.pipe import PipeReader
from streamxf.stream.reader import StreamReader
from streamxf.stream.writer import StreamWriter


class Draft:
    """Writes beside `target`, and renames over it on success; otherwise the old file stays. A link is followed to its
    target, which keeps its permissions; raises FileExistsError if that is missing. Anything but a regular file (a
    device, a named pipe) cannot be replaced, and is written to directly.

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

    def finish(self, complete: bool) -> None:
        """Put the file in its place if it is `complete`, else remove it. Raises OSError; the old file stays then."""
        if self._draft is None:
            self._raw.close()
            return
        try:
            if complete:
                self._synced.sync()
            self._raw.close()
            if complete:
                self._draft.replace(self._target)
        finally:
            with suppress(OSError):
                self._raw.close()
            self._draft.unlink(missing_ok=True)


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
    path_or_file: PathOrFile, mode: Literal["rb"] = "rb", *, keys: KeysLike = ..., codecs: CodecRegistry | None = ...
) -> StreamReader | PipeReader: ...
@overload
def open(
    path_or_file: PathOrFile,
    mode: Literal["wb"],
    *,
    chain: ChainLike = ...,
    keys: KeysLike = ...,
    block_size: int = ...,
    codecs: CodecRegistry | None = ...,
) -> StreamWriter: ...
def open(
    path_or_file: PathOrFile,
    mode: Literal["rb", "wb"] = "rb",
    *,
    chain: ChainLike | None = None,
    keys: KeysLike = None,
    block_size: int = 1 << DEFAULT_BLOCK_LOG2,
    codecs: CodecRegistry | None = None,
) -> StreamReader | PipeReader | StreamWriter:
    """Open a plain file through a chain.

    The file records its chain, so a reader needs only the keys. A written file appears under its name, complete, when
    it is closed; if writing fails, an existing file stays. Readers are seekable where the source is.

    Parameters
    ----------
    path_or_file : path or binary file
        A file object is used from its current position (to its end, for reading) and stays open.
    mode : {"rb", "wb"}
    chain : Chain, codecs or str
        For writing, such as ``[ZStandard(), Encrypt(key)]`` or ``"zstd+encrypt"``. The default is ``[ZStandard()]``.
    keys : Key, bytes, several of them or a KeyRing
        For reading encrypted files, and for ``encrypt`` in a chain's text form. With keys, a file that is not encrypted
        is refused, so that nobody can slip one in.
    block_size : int
        Bytes, a power of two from 64 KiB to 16 MiB. For writing.
    codecs : CodecRegistry, optional
        Where codecs are looked up.

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
        made = Chain.chosen(chain, "zstd", keys, codecs)
        return _open_writer(path_or_file, made.renew(), block_log2_of(block_size))
    if mode != "rb":
        raise ParameterError(f"streamxf.open: the mode must be 'rb' or 'wb', not {mode!r}")
    if chain is not None:
        raise ParameterError("streamxf.open: a file records its own chain; to read it, pass keys= only")
    return _open_reader(path_or_file, KeyRing.of(keys), codecs or CodecRegistry())


def encode(data: Buffer, chain: ChainLike = "zstd", *, keys: KeysLike = None) -> bytes:
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


def _open_writer(target: PathOrFile, chain: Chain, block_log2: int) -> StreamWriter:
    encryption = chain.encryption
    prefix = pack_prefix(encryption.wrapped if encryption is not None else "")
    hashed = encryption is not None and encryption.hashed
    encoder = ContainerEncoder(chain, hashed=hashed, block_log2=block_log2)
    seal = partial(_seal, encoder, encryption) if encryption is not None else None
    if not isinstance(target, str | os.PathLike):
        write_all(target, prefix)
        return StreamWriter(target, encoder, seal=seal)
    draft = Draft(target)
    try:
        write_all(draft.file, prefix)
        return StreamWriter(draft.file, encoder, seal=seal, finish=draft.finish)
    except BaseException:
        draft.finish(False)
        raise


def _seal(encoder: ContainerEncoder, encryption: Encrypt) -> bytes:
    return pack_seal(encryption.vouch(contents_digest(encoder.table_digest)))


# -- reading ---------------------------------------------------------------------------------------


def _open_reader(origin: PathOrFile, ring: KeyRing, registry: CodecRegistry) -> StreamReader | PipeReader:
    if not isinstance(origin, str | os.PathLike):
        name = name_of(origin)
        with located(file=name):
            return read_file(origin, ring, registry, name=name)
    name = os.fspath(origin)
    file = _builtin_open(origin, "rb")  # noqa: SIM115 - the reader closes it
    try:
        with located(file=name):
            return read_file(file, ring, registry, file.close, name)
    except BaseException:
        file.close()
        raise


def name_of(file: Any) -> str | None:
    """An open file's path, for errors, if it knows one; fsspec's files have it with their protocol."""
    names = (getattr(file, attribute, None) for attribute in ("full_name", "name"))
    return next((name for name in names if isinstance(name, str)), None)


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
    if not file.seekable():
        return _read_pipe(file, ring, registry, finish, name, encrypted)
    parts = PlainParts.of(FileSlice(file, file.tell()))
    _check_encrypted(parts.header, ring, encrypted)
    blocks = BlockReader(parts.container, parts.header, parts.coder(ring, registry))
    blocks.decode_ends()
    return StreamReader(blocks, finish, name)


def _read_pipe(
    file: IO[bytes],
    ring: KeyRing,
    registry: CodecRegistry,
    finish: Callable[[], None] | None,
    name: str | None,
    encrypted: bool,
) -> PipeReader:
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
