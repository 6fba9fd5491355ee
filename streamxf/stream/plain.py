"""Plain files through a chain: `open`, and `encode` and `decode` for bytes."""

from __future__ import annotations

import io
import os
from builtins import open as _builtin_open
from collections.abc import Callable
from functools import partial
from typing import IO, Literal, overload

from typing_extensions import Buffer

from streamxf.buffers import write_all
from streamxf.chain import Chain, ChainLike
from streamxf.codecs.encrypt import Encrypt
from streamxf.coder import StreamCoder
from streamxf.errors import ContainerError, ParameterError, PolicyError, located
from streamxf.format.header import Header
from streamxf.format.limits import DEFAULT_BLOCK_LOG2
from streamxf.format.parser import End
from streamxf.format.plain import (
    PREFIX_START_BYTES,
    contents_digest,
    pack_prefix,
    pack_seal,
    parse_prefix,
    parse_seal,
    prefix_size,
)
from streamxf.keys import KeyRing, KeysLike
from streamxf.registry import CodecRegistry
from streamxf.stream.container import BlockReader
from streamxf.stream.draft import Draft
from streamxf.stream.encoder import ContainerEncoder
from streamxf.stream.parts import PlainParts, check_header, check_signed, coder_for
from streamxf.stream.pipe import PipeReader
from streamxf.stream.reader import StreamReader
from streamxf.stream.source import FileSlice
from streamxf.stream.writer import StreamWriter

PathOrFile = str | os.PathLike[str] | IO[bytes]


@overload
def open(
    path_or_file: PathOrFile, mode: Literal["rb"] = "rb", *, keys: KeysLike = ..., registry: CodecRegistry | None = ...
) -> StreamReader | PipeReader: ...
@overload
def open(
    path_or_file: PathOrFile,
    mode: Literal["wb"],
    *,
    chain: ChainLike = ...,
    keys: KeysLike = ...,
    block_size: int = ...,
    registry: CodecRegistry | None = ...,
) -> StreamWriter: ...
def open(
    path_or_file: PathOrFile,
    mode: Literal["rb", "wb"] = "rb",
    *,
    chain: ChainLike | None = None,
    keys: KeysLike = None,
    block_size: int = 1 << DEFAULT_BLOCK_LOG2,
    registry: CodecRegistry | None = None,
) -> StreamReader | PipeReader | StreamWriter:
    """Open a plain file through a chain.

    The file records its chain, so a reader needs only the keys. What is written to a path appears under that name when
    the file is closed, whole; if writing fails, a file that was there before stays. Readers are seekable where the
    source is.

    Parameters
    ----------
    path_or_file : path or binary file
        A file object is used from its current position (to its end, for reading) and stays open.
    mode : {"rb", "wb"}
    chain : Chain, codecs or str
        For writing, such as ``[ZStandard(), Encrypt(key)]`` or ``"zstd+encrypt"``. The default is ``[ZStandard()]``.
    keys : Key, bytes, several of them or a KeyRing
        For reading what is encrypted, and for ``encrypt`` in a chain's text form. With keys, a file that is not
        encrypted is refused, so that nothing unencrypted can be slipped in.
    block_size : int
        Bytes, a power of two from 64 KiB to 16 MiB. For writing.
    registry : CodecRegistry, optional
        Where codecs are looked up.

    Returns
    -------
    file
        A binary file object. Use it in a ``with`` block: only a clean exit, or `close`, finishes a file that is
        written.

    Raises
    ------
    ChainError, ParameterError
        If the chain or another argument cannot be used.
    ContainerError, BlockError, CodecError, AuthenticationError
        If what is read is damaged; also later, by the reads that meet the damage.
    KeyMissingError, UnknownCodecError
        If the file needs a key or a codec that is not there.
    PolicyError
        If keys were given and the file is not encrypted.
    """
    if registry is not None and not isinstance(registry, CodecRegistry):
        raise ParameterError("registry= takes a streamxf.CodecRegistry; that of a streamxf.Registry is in its .codecs")
    if mode == "wb":
        made = Chain.chosen(chain, "zstd", keys, registry)
        return _open_writer(path_or_file, made.renew(), block_log2_of(block_size))
    if mode != "rb":
        raise ParameterError(f"streamxf.open: the mode is 'rb' or 'wb', not {mode!r}")
    if chain is not None:
        raise ParameterError("streamxf.open: a file records its own chain; to read it, pass keys= only")
    return _open_reader(path_or_file, KeyRing.of(keys), registry or CodecRegistry())


def encode(data: Buffer, chain: ChainLike = "zstd", *, keys: KeysLike = None) -> bytes:
    """Encode bytes as a plain file in memory; arguments as for `open`."""
    buffer = io.BytesIO()
    with open(buffer, "wb", chain=chain, keys=keys) as file:
        file.write(data)
    return buffer.getvalue()


def decode(data: Buffer, *, keys: KeysLike = None, registry: CodecRegistry | None = None) -> bytes:
    """Undo `encode`; raises as `open` does."""
    with open(io.BytesIO(data), "rb", keys=keys, registry=registry) as file:
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


def block_log2_of(block_size: int) -> int:
    """The container's ``block_log2`` for blocks of `block_size` bytes. Raises ParameterError if that is not a power of
    two from 64 KiB to 16 MiB.
    """
    log2 = block_size.bit_length() - 1 if type(block_size) is int else 0
    if not 16 <= log2 <= 24 or block_size != 1 << log2:
        raise ParameterError(
            f"block_size={block_size!r}: it is a power of two from {1 << 16} (64 KiB) to {1 << 24} (16 MiB)"
        )
    return log2


# -- reading ---------------------------------------------------------------------------------------


def _open_reader(origin: PathOrFile, ring: KeyRing, registry: CodecRegistry) -> StreamReader | PipeReader:
    if not isinstance(origin, str | os.PathLike):
        return _read_file(origin, ring, registry)
    name = os.fspath(origin)
    file = _builtin_open(origin, "rb")  # noqa: SIM115 - the reader closes it
    try:
        with located(file=name):
            return _read_file(file, ring, registry, file.close, name)
    except BaseException:
        file.close()
        raise


def _read_file(
    file: IO[bytes],
    ring: KeyRing,
    registry: CodecRegistry,
    finish: Callable[[], None] | None = None,
    name: str | None = None,
) -> StreamReader | PipeReader:
    if not file.seekable():
        return _read_pipe(file, ring, registry, finish, name)
    parts = PlainParts.of(FileSlice(file, file.tell()))
    _check_encrypted(parts.header, ring)
    blocks = BlockReader(parts.container, parts.header, parts.coder(ring, registry))
    blocks.decode_ends()
    return StreamReader(blocks, finish, name)


def _read_pipe(
    file: IO[bytes], ring: KeyRing, registry: CodecRegistry, finish: Callable[[], None] | None, name: str | None
) -> PipeReader:
    start = _read_exactly(file, PREFIX_START_BYTES)
    wrapped = parse_prefix(start + _read_exactly(file, prefix_size(start) - PREFIX_START_BYTES))

    headers: list[Header] = []

    def begin(header: Header) -> StreamCoder:
        headers.append(header)
        check_header(header, wrapped)
        _check_encrypted(header, ring)
        data_key = ring.open_pipe(wrapped) if wrapped else None
        return coder_for(header, registry, data_key)

    def end(event: End, rest: bytes) -> None:
        if wrapped:
            vouchers = parse_seal(rest)
            check_signed(headers[0], vouchers)
            ring.open(wrapped, vouchers, contents_digest(event.table_digest))
        elif rest:
            raise ContainerError("something follows the container's end")

    return PipeReader(file, begin, end, finish, name)


def _check_encrypted(header: Header, ring: KeyRing) -> None:
    if len(ring) and not header.keyed:
        raise PolicyError(
            "the file is not encrypted, and keys were given, so it may stand where an encrypted one belongs; leave the "
            "keys out if you know that it was not encrypted"
        )


def _read_exactly(file: IO[bytes], size: int) -> bytes:
    data = b""
    while len(data) < size and (more := file.read(size - len(data))):
        data += more
    return data
