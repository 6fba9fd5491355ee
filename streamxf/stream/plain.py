"""Plain files through a chain: `open`, and `encode` and `decode` for bytes; docs/format.md, "Plain file"."""

from __future__ import annotations

import hashlib
import io
import os
import sys
from builtins import open as _builtin_open
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import IO, Any, Literal, Self, cast, overload

from typing_extensions import Buffer

from streamxf.buffers import flat_view, write_all
from streamxf.chain import Chain, ChainLike, StreamCoder
from streamxf.codec import CodecRegistry
from streamxf.descriptor import Descriptor
from streamxf.errors import AbortedError, ContainerError, ParameterError, PolicyError, located
from streamxf.format import plain
from streamxf.format.container import End
from streamxf.format.digests import Digests, Expected
from streamxf.format.header import Header
from streamxf.format.limits import DEFAULT_BLOCK_LOG2, PLAIN_MAGIC
from streamxf.keys import KeyRing, KeysLike
from streamxf.keys.envelope import DataKey, KeySet, Vouchers
from streamxf.storage.opening import Location, open_storage
from streamxf.storage.reading import FileSlice
from streamxf.storage.storage import Storage, is_url
from streamxf.stream.container import ChainOpener, StoredStream, read_header, read_tail
from streamxf.stream.encoder import ContainerEncoder, StreamWriter, block_log2_of
from streamxf.stream.reader import PipeReader, StreamReader


@dataclass(frozen=True)
class PlainParts:
    """The parts of a plain file, which fit together, unopened by any key; no `wrapped` or `vouchers` if in clear."""

    header: Header
    container: FileSlice
    format_bytes: bytes
    wrapped: str
    vouchers: str = ""
    digests: bytes = b""  # of all that is stored, if it is signed

    @classmethod
    def of(cls, whole: FileSlice) -> Self:
        start = plain.prefix_size(whole.read_at(0, min(plain.PREFIX_START_BYTES, whole.length)))
        wrapped, format_bytes = plain.parse_prefix(whole.read_at(0, start))
        header = read_header(whole.slice(start, whole.length))
        check_header(header, wrapped)
        if not wrapped:
            return cls(header, whole.slice(start, whole.length), format_bytes, wrapped)
        end = whole.read_at(max(0, whole.length - plain.SEAL_END_BYTES), min(whole.length, plain.SEAL_END_BYTES))
        stop = max(start, whole.length - plain.seal_size(end))
        vouchers, digests = plain.parse_seal(whole.read_at(stop, whole.length - stop))
        return cls(header, whole.slice(start, stop), format_bytes, wrapped, vouchers, digests)

    @staticmethod
    def stream_in(whole: FileSlice) -> StoredStream:
        """The container alone, whatever is wrong with what is around it."""
        start = plain.prefix_size(whole.read_at(0, min(plain.PREFIX_START_BYTES, whole.length)))
        start = min(start, whole.length)
        return StoredStream(container := whole.slice(start, whole.length), read_header(container))

    def digest(self) -> bytes:
        """D of the format: the digest that vouchers cover. Raises ContainerError if table or footer are damaged."""
        footer, table = read_tail(self.container, self.header)
        covered = check_digests(self.digests, table.edges(footer.raw_size), len(table.ends), self.vouchers)
        return plain.contents_digest(covered, self.format_bytes)

    @property
    def keys(self) -> KeySet | None:
        """For whom it is encrypted, and what vouches for it; None if in clear. Raises as `digest`."""
        return KeySet.parse(self.wrapped, self.vouchers, self.digest()) if self.wrapped else None

    def resealed(self, wrapped: str, vouchers: str) -> tuple[bytes, bytes]:
        """What stands before the container, and behind it, with other keys."""
        return plain.pack_prefix(wrapped, self.format_bytes), plain.pack_seal(vouchers, self.digests)

    @property
    def stream(self) -> StoredStream:
        """What is stored, whose chain has to be opened first: until then nothing vouches for the digests."""
        expected = Expected(Digests.of(self.digests), 0) if self.digests else None
        return StoredStream(self.container, self.header, expected)

    def chain(self, ring: KeyRing, registry: CodecRegistry) -> ChainOpener:
        # the digest before anything is decoded: vouchers cover the table
        data_key = ring.open(self.wrapped, self.vouchers, self.digest()) if self.wrapped else None
        return _chain_of(self.header, registry, data_key)


def _chain_of(header: Header, registry: CodecRegistry, data_key: DataKey | None) -> ChainOpener:
    descriptors = [Descriptor.parse(text) for text in header.chain]
    return ChainOpener(descriptors, registry, (lambda: data_key) if data_key is not None else None)


def check_header(header: Header, wrapped: str) -> None:
    if header.identity is not None:
        raise ContainerError("the file holds an item cut out of a checkpoint")
    if bool(wrapped) != header.keyed:
        raise ContainerError("the file's prefix contradicts its header: only one of them has encryption")


def check_digests(digests: bytes, edges: bytes, blocks: int, vouchers: str) -> bytes:
    """What vouchers cover of a file with so many blocks, whose other parts have the digest `edges`."""
    if bool(digests) != bool(Vouchers.parse(vouchers).signatures):
        raise ContainerError(
            "digests and a signature belong together, and this file has only one of them: the signature was removed or "
            "added"
        )
    if digests and (len(digests) != (1 + blocks) * len(edges) or digests[: len(edges)] != edges):
        raise ContainerError("the file's digests are not those of its container: one of them was altered")
    return digests or edges


PathOrFile = Location | IO[bytes]
_TORCH_SAVED = b"PK\x03\x04", b"\x80"  # how files of torch.save begin: those of today, and from before torch 1.6


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
    path_or_file : path, URL, Storage or binary file
        A file object is used from its current position (to its end, for reading) and stays open.
    mode : {"rb", "wb"}
    chain : Chain, codecs or str
        For writing, such as ``[ZStandard(), Encrypt(key)]`` or ``"zstd+encrypt"``. The default is ``"floatzip"``.
    keys : Key, bytes, several of them or a KeyRing
        For reading encrypted files, and for ``encrypt`` in a chain's text form. With keys, unencrypted files are
        refused, since anyone could have put them there.
    block_size : int
        Bytes, a power of two from 64 KiB to 16 MiB. For writing.
    codecs : CodecRegistry, optional
        Where codecs are looked up.
    storage_options : mapping, optional
        fsspec's, for a URL.

    Returns a binary file object. Use it in a ``with`` block: only a clean exit, or `close`, finishes a written file.

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
    prefix = plain.pack_prefix(encryption.wrapped if encryption is not None else "")
    signed = encryption is not None and encryption.signer is not None
    encoder = ContainerEncoder(chain, signed=signed, block_log2=block_log2)

    def seal() -> bytes:
        assert encryption is not None
        vouchers = encryption.vouch(plain.contents_digest(digests := encoder.digests))
        return plain.pack_seal(vouchers, digests if signed else b"")

    if not isinstance(target, _PLACES):
        write_all(target, prefix)
        return StreamWriter(target, encoder, seal=seal if encryption is not None else None)
    with ExitStack() as stack:
        place = open_storage(target, options).replacing()
        file = stack.enter_context(place)
        write_all(file, prefix)
        writer = StreamWriter(file, encoder, seal=seal if encryption is not None else None, finish=partial(_end, place))
        stack.pop_all()
    _being_written[id(place)] = place
    return writer


_PLACES = (str, os.PathLike, Storage)
_being_written: dict[int, Any] = {}
"""Kept here, or a forked child that drops its copy of a writer would take back what its parent writes."""


def _end(place: AbstractContextManager[Any], complete: bool) -> None:
    _being_written.pop(id(place), None)
    error: Any = None if complete else sys.exc_info()[1] or AbortedError("the file was given up")
    place.__exit__(error and type(error), error, error and error.__traceback__)  # may add a note to it


# -- reading ---------------------------------------------------------------------------------------


def _open_reader(
    origin: PathOrFile, ring: KeyRing, registry: CodecRegistry, options: Mapping[str, Any] | None
) -> StreamReader | PipeReader:
    if not isinstance(origin, _PLACES):
        names = (getattr(origin, attribute, None) for attribute in ("full_name", "name"))  # fsspec's with its protocol
        name = next((name for name in names if isinstance(name, str)), None)
        with located(file=name):
            return read_file(origin, ring, registry, name=name)
    opened, storage = ExitStack(), open_storage(origin, options)  # which the reader closes
    try:
        with located(file=storage.label()), storage.doubting():
            file: IO[bytes] | FileSlice
            if isinstance(origin, Storage) or is_url(origin) or options:
                storage.warn_of_caches()
                stored = opened.enter_context(storage.open())
                file = FileSlice(stored.access, 0, stored.size)
            else:
                file = opened.enter_context(_builtin_open(origin, "rb"))  # noqa: SIM115 - so it is one
            return read_file(file, ring, registry, opened.close, storage.label(), doubting=storage.doubting)
    except BaseException:
        opened.close()
        raise


def read_file(
    file: IO[bytes] | FileSlice,
    ring: KeyRing,
    registry: CodecRegistry,
    finish: Callable[[], None] | None = None,
    name: str | None = None,
    *,
    encrypted: bool = False,
    doubting: Callable[[], Any] = nullcontext,
) -> StreamReader | PipeReader:
    """As `open`; the reader calls `finish` when closed. If `encrypted`, nothing else is read even without keys."""
    if isinstance(file, FileSlice) or file.seekable():
        parts = PlainParts.of(file if isinstance(file, FileSlice) else FileSlice(file, file.tell()))
        _check_encrypted(parts.header.keyed, ring, encrypted)
        blocks = parts.stream.decoded(parts.chain(ring, registry))
        return StreamReader(blocks, finish, name, doubting=doubting)
    start = _read_exactly(file, plain.PREFIX_START_BYTES)
    wrapped, format_bytes = plain.parse_prefix(
        start + _read_exactly(file, plain.prefix_size(start) - plain.PREFIX_START_BYTES)
    )

    def begin(header: Header) -> StreamCoder:
        check_header(header, wrapped)
        _check_encrypted(header.keyed, ring, encrypted)
        data_key = ring.open_pipe(wrapped) if wrapped else None
        return _chain_of(header, registry, data_key).unseal(header)()

    def end(event: End, rest: bytes) -> None:
        if wrapped:
            vouchers, digests = plain.parse_seal(rest)
            covered = check_digests(digests, event.edges, event.blocks, vouchers)
            ring.open(wrapped, vouchers, plain.contents_digest(covered, format_bytes))
        elif rest:
            raise ContainerError("there is data behind the container's end")

    return PipeReader(file, begin, end, finish, name)


def _check_encrypted(keyed: bool, ring: KeyRing, encrypted: bool) -> None:
    if encrypted and not keyed:
        raise PolicyError(
            "the file is not encrypted, and the chain in use encrypts, so it may stand where an encrypted one belongs; "
            "if you know that it was not encrypted, read it without that chain"
        )
    if ring.trust and not keyed and not len(ring):
        raise PolicyError(
            "the file is not encrypted, so it cannot be signed, and signers are trusted (trust); leave them out if you "
            "know where it comes from"
        )
    if len(ring) and not keyed:
        raise PolicyError(
            "the file is not encrypted, and keys were given, so it may stand where an encrypted one belongs; leave the "
            "keys out if you know that it was not encrypted"
        )


def _read_exactly(file: IO[bytes], size: int) -> bytes:
    data = b""
    while len(data) < size and (more := file.read(size - len(data))):
        data += more
    return data


# -- files of frameworks that write a checkpoint into one ----------------------------------------


class ChainFiles:
    """Files, such as a framework's checkpoints, that are saved through a chain and read again: `chain` and `keys` as in
    `open`, the keys by default those of the chain that can read. If it encrypts, only encrypted files are read.
    """

    def __init__(self, chain: ChainLike | None = None, *, keys: KeysLike = None) -> None:
        self.chain = Chain.chosen(chain, keys=(ring := None if keys is None else KeyRing.of(keys)))  # asks but once
        self.keys = self.chain.ring(ring)

    @contextmanager
    def write(self, path: str | os.PathLike[str]) -> Iterator[tuple[IO[bytes], Any]]:
        """A file to write to, and the SHA-256 of what is under `path` once the block ends without an error."""
        storage = open_storage(path)
        if storage.near:
            storage.parent()[0].make_folder(durable=False)
        digest = hashlib.sha256()

        def write(data: Buffer, /) -> int | None:
            count = target.write(data)
            digest.update(flat_view(data)[: count or 0])
            return count

        digested = cast("IO[bytes]", SimpleNamespace(write=write))
        with storage.replacing() as target, open(digested, "wb", chain=self.chain) as file:
            yield cast("IO[bytes]", file), digest

    @contextmanager
    def read(self, path: str | os.PathLike[str], begins: tuple[bytes, ...] = _TORCH_SAVED) -> Iterator[Any]:
        """The file under `path`, as `reader` gives it."""
        with open_storage(path).open() as file, self.reader(file.raw, os.fspath(path), begins) as opened:
            yield opened

    def reader(self, raw: Any, name: str, begins: tuple[bytes, ...] = _TORCH_SAVED, finish: Any = None) -> Any:
        """A file to read from; `raw` itself if it was saved without a chain, and begins with one of these, by default
        as those of ``torch.save``. Closed, it calls `finish`. Raises as `open`; errors have the `name`.
        """
        with located(file=name):
            begin = raw.read(len(PLAIN_MAGIC))
            raw.seek(0)
            encrypts = self.chain.encryption is not None
            if begin == PLAIN_MAGIC:
                return read_file(raw, self.keys, CodecRegistry(), finish, name, encrypted=encrypts)
            _check_encrypted(False, self.keys, encrypts)
            if not begin.startswith(begins):
                raise ContainerError("the file begins neither as with a chain nor as without one: it was damaged")
        return raw
