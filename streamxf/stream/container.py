"""`BlockReader`: a container read at random, block by block, from any thread; how its chain is rebuilt, and in which
order all of it is checked (`StoredStream`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

from streamxf.buffers import Scratch, scratches
from streamxf.cached import cached_property
from streamxf.chain import Chain, StreamCoder
from streamxf.codec import Codec, CodecRegistry, Provider, StreamInfo
from streamxf.codecs.encrypt import Encrypt
from streamxf.descriptor import ENCRYPT, Descriptor
from streamxf.errors import CodecError, ContainerError, StreamxfError, UnsupportedError, located
from streamxf.format.container import Footer, Table, check_stored, lone_block, tail_size
from streamxf.format.digests import Expected, digest_of
from streamxf.format.header import Header, Kind, header_size
from streamxf.format.limits import FOOTER_BYTES, HEADER_FIXED_BYTES
from streamxf.keys.envelope import DataKey
from streamxf.pipeline import run_jobs
from streamxf.report import Meter
from streamxf.storage.reading import FileSlice, Span
from streamxf.stream.reader import BareBlocks, Blocks, MemoryBlocks, Put

CheckSize = Callable[[int], None]

_SMALL = 64 * 1024
_TAIL_GUESS = 16 * 1024  # bytes, at most; the tail of some 2,000 blocks, which have more than 4 KiB each
_TABLE_STEP = 2**16  # bytes of a table that are read before they are checked; whole entries


def read_header(source: FileSlice) -> Header:
    size = header_size(source.read_at(0, min(HEADER_FIXED_BYTES, source.length)))
    return Header.parse(source.read_at(0, size))


def stream_info(header: Header) -> StreamInfo:
    name = header.identity.name if header.identity is not None else None
    return StreamInfo(header.block_size, header.salt, header.digest, name)


def read_tail(source: FileSlice, header: Header, check_size: CheckSize | None = None) -> tuple[Footer, Table]:
    """Footer and table of a container, all of `source`; ContainerError if they are damaged, or contradict it."""
    length = source.length
    # in one read, where the table is not unusually long: files that fetch ahead would fetch again at each step
    guess = min(length, _TAIL_GUESS, 4 * FOOTER_BYTES + length // 1024)
    end = source.read_at(length - guess, guess)
    footer = Footer.parse(end[-FOOTER_BYTES:])
    if check_size is not None:
        check_size(footer.raw_size)
    size = tail_size(footer.blocks(header))
    if header.size + size > length:
        raise ContainerError(f"the table has no room in a container of {length} bytes: it was truncated or appended to")
    table = Table(header)
    if size <= len(end):
        table.feed(end[-size:-FOOTER_BYTES])
    else:
        stop = length - FOOTER_BYTES
        for at in range(length - size, stop, _TABLE_STEP):
            table.feed(source.read_at(at, min(_TABLE_STEP, stop - at)))
    table.finish(footer, length)
    return footer, table


def _tensor_size(header: Header) -> int | None:
    """The bytes of a tensor's elements; None for another stream, whose size the header does not give."""
    identity = header.identity
    return identity.size if identity is not None and identity.kind is Kind.TENSOR else None


class BlockReader(Blocks):
    """Reads, checks and decodes single blocks of a container; nothing changes, so any thread may. Raises ContainerError
    if table or footer are damaged, or contradict the container; IdentityError if others were vouched for.

    - `header`: identity and chain were checked by the caller.
    - `coder`: its seal was checked by the caller; it may come later. Without one, `decode` checks stored bytes alone.
    - `digests`: what was vouched for, if anything.
    - `check_size`: called with the stream's size, from the footer, before the table is read; may raise.
    - `beneath`: the container beneath a difference, and how its file is called; it may come later, too.
    - `size`: bytes of the stream. Table and footer carry a CRC only, so in a keyed stream that is neither a tensor,
      whose size the header gives, nor has `digests`, it is authentic only once `decode_ends` was called.
    """

    def __init__(
        self,
        source: FileSlice,
        header: Header,
        coder: StreamCoder | None,
        digests: Expected | None = None,
        check_size: CheckSize | None = None,
    ) -> None:
        self._source = source
        self.coder = coder
        self.beneath: tuple[Any, str] | None = None
        self.header: Header = header
        footer, self._table = read_tail(source, header, check_size)
        super().__init__(footer.raw_size, header.block_size)
        self._digests = None if digests is None else digests.of_container(self._table.edges(self.size), self.count)
        known = _tensor_size(header)
        self._size_known = known is not None or digests is not None
        if known not in (None, self.size):
            dtype = header.identity and header.identity.dtype
            raise ContainerError(f"the stream has {self.size} bytes, which are not those of {dtype} elements")

    def stored_size_of(self, index: int) -> int:
        return self._table.ends[index] - self._begin_of(index)

    def expect(self, *runs: Span) -> None:
        self._source.expect(*((self._begin_of(first), self._table.ends[stop - 1]) for first, stop in runs))
        if self.beneath is not None:
            self.beneath[0].expect(*runs)

    def decode(self, index: int, out: memoryview | None) -> None:
        """Decode block `index` into `out`, which has exactly its size, or into nothing to check whether it is intact.
        Raises BlockError, CodecError or AuthenticationError if it is damaged; `out` must not be used then.
        """
        scratch = scratches.take()
        self.decode_stored(index, self._read(index, scratch), scratch, out)

    def decoder(self, index: int) -> Callable[[memoryview | None], None]:
        """A `decode` of block `index` for any thread, once; read here where threads cannot read at the same time."""
        if self._source.parallel:
            return partial(self.decode, index)
        scratch, lower = scratches.take(), None if self.beneath is None else self.beneath[0].decoder(index)
        return partial(self.decode_stored, index, self._read(index, scratch), scratch, lower=lower)

    def run(self, first: int, stop: int, put: Put) -> Callable[[], None]:
        if stop - first == 1 or not self._source.parallel:
            return super().run(first, stop, put)
        return partial(self._run, first, stop, put)

    def _run(self, first: int, stop: int, put: Put) -> None:
        scratch, begin = scratches.take(), self._begin_of(first)
        stored = self._source.view(begin, self._table.ends[stop - 1] - begin, scratch)
        for index in range(first, stop):
            block = stored[self._begin_of(index) - begin : self._table.ends[index] - begin]
            put(index, partial(self.decode_stored, index, block, scratches.take()))
        scratches.give(scratch)

    def decode_stored(
        self,
        index: int,
        stored: memoryview,
        scratch: Scratch,
        out: memoryview | None,
        lower: Callable[[memoryview], None] | None = None,
    ) -> None:
        """The same, of a block that was read, as that beneath it was where `lower` decodes it; gives `scratch` back."""
        last, size = index == self.count - 1, self.size_of(index)
        check = partial(check_stored, stored, index, self.header, last=last, digests=self._digests)
        coder = self.coder
        # the tag covers what the CRC does; who only asks whether the block is intact wants both
        covered = self._digests is None and out is not None and len(stored) > _SMALL
        tagged = covered and coder is not None and coder.tagged
        payload = check(crc=not tagged)
        if coder is not None:
            try:
                decoded = self._decoded(coder, lower, payload, index, last, scratch, out)
            except StreamxfError:
                if tagged:
                    check()  # tells damage from a wrong key
                raise
            if len(decoded) != size:
                raise CodecError(f"block decodes to {len(decoded)} bytes where {size} belong", block=index)
        scratches.give(scratch)

    def _decoded(self, coder: StreamCoder, lower: Any, payload: memoryview, index: int, *how: Any) -> memoryview:
        if self.beneath is None:
            return coder.decode(payload, index, *how)
        (blocks, file), scratch = self.beneath, scratches.take()
        last, work, out = how

        def beneath() -> memoryview:
            if isinstance(blocks, MemoryBlocks):
                return blocks.block(index)
            block = scratch.take(0, blocks.size_of(index))
            with located(file=file):
                lower(block) if lower is not None else blocks.decode(index, block)
            return block

        decoded = coder.decode(payload, index, last, work, out, beneath)
        scratches.give(scratch)
        return decoded

    def _begin_of(self, index: int) -> int:
        return self._table.ends[index - 1] if index else self.header.size

    def _read(self, index: int, scratch: Scratch) -> memoryview:
        begin = self._begin_of(index)
        return self._source.view(begin, self._table.ends[index] - begin, scratch)

    def digest(self, index: int) -> bytes:
        """The SHA-256 of a block as it is stored, once that was found intact; raises BlockError."""
        scratch = scratches.take()
        stored = self._read(index, scratch)
        check_stored(stored, index, self.header, last=index == self.count - 1, digests=self._digests)
        made = digest_of(stored)
        scratches.give(scratch)
        return made

    @property
    def edges(self) -> bytes:
        """The SHA-256 of header, table and footer."""
        return self._table.edges(self.size)

    def decode_ends(self) -> memoryview | None:
        """Decode the blocks that authenticate the size, before anything that depends on it is handed out: the only
        block of an empty stream, and the last of a keyed one. Returns the whole stream if it has one block.
        """
        if self.size and (self._size_known or not self.header.keyed):
            return None
        last = self.count - 1
        out = memoryview(bytearray(self.size_of(last)))
        self.decode(last, out)
        return out if self.count == 1 else None


class ChainOpener:
    """Rebuilds one chain, once, for all streams that have it. No codec but `Encrypt` is imported before a header's seal
    has shown that the chain is authentic.

    - `data_key`: returns the data key, if the chain encrypts; called once.
    - `providers`: the packages that the data names for its codecs, for errors.
    """

    def __init__(
        self,
        descriptors: Sequence[Descriptor],
        registry: CodecRegistry,
        data_key: Callable[[], DataKey] | None = None,
        providers: Iterable[Provider] = (),
    ) -> None:
        self._descriptors = descriptors
        self._registry = registry
        self._data_key = data_key
        self._providers = tuple(providers)

    def unseal(self, header: Header, meter: Meter | None = None) -> Callable[[], StreamCoder]:
        """What makes the chain ready for the stream of a header, whose seal has proved to be right. Raises
        AuthenticationError if it does not match, KeyMissingError, WrongKeyError, DescriptorError without a data key;
        what is returned, UnknownCodecError, DescriptorError, ChainError if the chain cannot be built.
        """
        info = stream_info(header)
        state = self._encryption.unseal(info, header.seal)
        return lambda: StreamCoder(self._chain, info, state, meter=meter)

    @cached_property
    def _encryption(self) -> Chain:
        return Chain([Encrypt.reading(self._data_key())] if self._data_key is not None else [])

    @cached_property
    def _chain(self) -> Chain:
        return Chain(map(self._build, self._descriptors))

    def _build(self, item: Descriptor) -> Codec:
        known = self._encryption.encryption  # whose data key was opened already
        if item.name != ENCRYPT or known is None:
            return self._registry.build(item, providers=self._providers)
        return self._registry.build(replace(item, fragment=()), known.data_key)


@dataclass(slots=True)
class StoredStream:
    """A stream as it is stored, and what is wrong with it, which stops nothing but what relies on it.

    - `header`: of its container; None if it is in none, or if that is damaged.
    - `digests`, `check_size`: as of `BlockReader`.
    - `file`: for errors. `beneath`: of a difference, the stream beneath it, and what gives the opener of its chain.
    - `held`: its bytes instead, where they are in memory.
    - `blocks`: None if header or table are damaged, so that they cannot be found.
    - `locked`: whether the chain needs a key, and there is none.
    - `errors`: in the order of the checks; a load raises the first.
    """

    source: FileSlice
    header: Header | None = None
    digests: Expected | None = None
    check_size: CheckSize | None = None
    blocks: BlockReader | BareBlocks | None = None
    locked: bool = False
    file: str | None = None
    beneath: tuple[StoredStream, Callable[[], ChainOpener]] | None = None
    held: memoryview | None = None
    errors: list[StreamxfError | OSError] = field(default_factory=list)

    def attempt(self, step: Callable[..., Any], *arguments: Any) -> Any:
        """What `step` returns; None if it raises, which is kept."""
        try:
            with located(file=self.file):
                return step(*arguments)
        except (StreamxfError, OSError) as error:
            self.errors.append(error)
            return None

    def check(self) -> None:
        """Raise the first of the errors."""
        if self.errors:
            raise self.errors[0]

    def examine(self, chain: ChainOpener | None, meter: Meter | None = None) -> Self:
        """Check the seal of the container, read its table and look up its codecs, in this order; returns self. Blocks
        are read as they are stored without a chain, or if it cannot be rebuilt.
        """
        make_coder = self.attempt(chain.unseal, self.header, meter) if chain is not None else None
        about = self.source, self.header, None, self.digests, self.check_size
        blocks = self.blocks = self.attempt(BlockReader, *about)
        if blocks is not None and make_coder is not None:
            blocks.coder = self.attempt(make_coder)
        if self.held is not None and blocks is not None:
            blocks.beneath = MemoryBlocks(self.held, None, blocks.block_size), "memory"
        elif self.beneath is not None:
            self._examine_beneath(blocks, chain is not None, meter)
        elif self.header is not None and self.header.base and chain is not None:
            text = "it holds differences from another container, and no metadata says which: read its whole checkpoint"
            self.errors.append(UnsupportedError(text))
        return self

    def _examine_beneath(self, blocks: BlockReader | None, opens: bool, meter: Meter | None) -> None:
        assert self.beneath is not None
        lower, opener = self.beneath
        lower.examine(lower.attempt(opener) if opens and not lower.errors else None, meter)
        if isinstance(lower.blocks, BlockReader) and blocks is not None:
            blocks.beneath = lower.blocks, lower.file or ""
            if lower.blocks.size != blocks.size:
                text = "the container beneath a difference holds a stream of another size: one of them was altered"
                lower.errors.append(ContainerError(text, file=lower.file))
        self.errors += lower.errors

    def stored_digests(self) -> bytes:
        """Those that a signed index has of it; raises the first of the errors, and BlockError for damaged blocks."""
        self.check()
        blocks, made = self.blocks, dict[int, bytes]()
        assert blocks is not None
        count = blocks.count if isinstance(blocks, BlockReader) or blocks.size else 0  # a bare one may have no pieces

        def note(index: int) -> None:
            made[index] = blocks.digest(index)

        run_jobs((partial(note, index), blocks.stored_size_of(index)) for index in range(count))
        lower = b"" if self.beneath is None else self.beneath[0].stored_digests()
        return b"".join([blocks.edges, *(made[index] for index in range(count)), lower])

    def decoded(self, chain: ChainOpener, meter: Meter | None = None) -> Blocks:
        """The stream of the container, its ends decoded; raises the first of the errors."""
        whole = self._decode_small(chain, meter)
        if whole is None:
            self.examine(chain, meter).check()
            assert isinstance(self.blocks, BlockReader)
            whole = self.blocks.decode_ends()
            if whole is None:
                return self.blocks
        return MemoryBlocks(whole, self.header)

    def _decode_small(self, chain: ChainOpener, meter: Meter | None) -> memoryview | None:
        """A stream of few bytes in one block, if that is in memory already, and intact; `BlockReader` says why not."""
        header, whole = self.header, self.source.whole
        assert header is not None
        found = lone_block(memoryview(whole), header) if whole is not None else None
        if found is None or (size := found[1]) > _SMALL or self.digests is not None or header.base:
            return None
        make_coder = chain.unseal(header, meter)
        if self.check_size is not None:
            self.check_size(size)
        if _tensor_size(header) not in (None, size):
            return None
        scratch = scratches.take()
        out = make_coder().decode(found[0], 0, True, scratch, memoryview(bytearray(size)))
        scratches.give(scratch)
        return out
