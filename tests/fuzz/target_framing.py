"""Header, blocks, index and footer of a container, with no codec in the way: the parts of `streamxf.container`."""

from __future__ import annotations

import io
import random
from collections.abc import Iterable

import reference_decoder
from forge import prefix_of, take_apart
from samples import BLOCK, data_of, encode
from streamxf.container.header import Header, Identity, Kind
from streamxf.container.limits import HEADER_FIXED_BYTES
from streamxf.container.parser import NEED_DATA, Block, ContainerParser, End
from streamxf.fileio.blocks import BlockReader, read_header, stream_info
from streamxf.fileio.source import FileSlice

from fuzz import containers
from fuzz.oracle import Finding, agree, attempt
from fuzz.target import Havoc, Target
from streamxf import ZStandard
from streamxf.chain import Chain
from streamxf.coder import StreamCoder, stage_limit

_NO_CODECS = prefix_of(b"")


def run(data: bytes) -> None:
    steps = (max(1, len(data)), 1 + len(data) // 5, HEADER_FIXED_BYTES)
    parsed = [attempt(lambda step=step: _parse(data, step))[0] for step in steps]
    agree(all(found == parsed[0] for found in parsed), "the parser depends on how the bytes arrive")
    sought, _ = attempt(lambda: _seek(data))
    if parsed[0] is None:
        return
    header, blocks, raw_size = parsed[0]
    agree(Header.parse(header.pack()) == header, "a header does not survive being packed")
    if header.chain or header.keyed:
        return
    # without codecs the blocks are the stream, and everybody must see the same
    fits = sum(map(len, blocks)) == raw_size and all(len(block) == header.block_size for block in blocks[:-1])
    agree((sought is not None) == fits, "the reader that seeks has another opinion on the blocks")
    try:
        second = reference_decoder.decode_container(data)
    except reference_decoder.FormatError as error:
        if fits:
            raise Finding("the second decoder refuses the container") from error
        return
    agree(second.payload == b"".join(blocks) == sought, "the decoders read different bytes")
    agree(_told(header) == second.identity, "the decoders read different identities")


def _parse(data: bytes, step: int) -> tuple[Header, list[bytes], int]:
    parser = ContainerParser(stage_limit)
    found: list[Header | Block | End] = []
    pieces = iter([data[at : at + step] for at in range(0, len(data), step)])
    while not found or not isinstance(found[-1], End):
        event = parser.next_event()
        if event is not NEED_DATA:
            found.append(event)
            continue
        piece = next(pieces, None)
        if piece is None:
            parser.finish()
        else:
            parser.feed(piece)
    for piece in pieces:
        parser.feed(piece)
    parser.finish()
    header, *blocks, end = found
    return header, [bytes(block.payload) for block in blocks], end.raw_size


def _seek(data: bytes) -> bytes:
    source = FileSlice(io.BytesIO(data))
    header = read_header(source)
    reader = BlockReader(source, header, StreamCoder(Chain(), stream_info(header)))
    pieces = []
    for index in range(reader.count):
        piece = bytearray(reader.size_of(index))
        reader.decode(index, memoryview(piece))
        pieces.append(bytes(piece))
    return b"".join(pieces)


def _told(header: Header) -> reference_decoder.Identity | None:
    found = header.identity
    return found and reference_decoder.Identity(found.writer_id, int(found.kind), found.offsets, found.name)


def seeds() -> Iterable[bytes]:
    identities = (
        Identity(bytes(range(16)), Kind.BYTES, (), "a"),
        Identity(bytes(range(16)), Kind.TENSOR, (0, 1 << 40), "layer.weight"),
    )
    for data in (b"", data_of(20)):
        parts = take_apart(encode(data, []))
        yield parts.container()
        for identity in identities:
            for flags in (2, 6):
                yield parts.change(identity=identity.pack(), flags=flags).container()
    yield take_apart(encode(data_of(BLOCK + 1), [])).container()
    yield take_apart(encode(bytes(3 * BLOCK), [ZStandard()])).container()


def mutate(data: bytes, choose: random.Random, havoc: Havoc) -> bytes:
    """As for a plain file, whose container this is."""
    return containers.mutate(_NO_CODECS + data, choose, havoc).removeprefix(_NO_CODECS)


TARGET = Target(run, seeds, mutate, max_len=80_000)
