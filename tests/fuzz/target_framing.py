"""Header, blocks, table and footer of a container, with no codec in the way."""

import io
import random
from collections.abc import Iterable

from streamxf import ZStandard
from streamxf.chain import Chain, StreamCoder
from streamxf.format.container import NEED_DATA, Block, ContainerParser, End
from streamxf.format.header import Header, Kind
from streamxf.format.items import coded_dtype, elements_size
from streamxf.format.limits import HEADER_FIXED_BYTES
from streamxf.storage.reading import FileSlice
from streamxf.stream.container import BlockReader, read_header, stream_info
from tests.forge import BOUND, PUBLISHED, identity_of, prefix_of, take_apart
from tests.fuzz import containers, second
from tests.fuzz.oracle import agree, attempt
from tests.fuzz.target import Havoc, Target
from tests.reference_decoder import read_container
from tests.samples import BLOCK, data_of, encode

_NO_KEY = prefix_of()


def run(data: bytes) -> None:
    steps = (max(1, len(data)), 1 + len(data) // 5, HEADER_FIXED_BYTES)
    parsed = [attempt(lambda step=step: _parse(data, step))[0] for step in steps]
    agree(all(found == parsed[0] for found in parsed), "the parser depends on how the bytes arrive")
    sought, error = attempt(lambda: _seek(data))
    if parsed[0] is None:
        return
    header, blocks, raw_size = parsed[0]
    agree(Header.parse(header.pack()) == header, "a header does not survive being packed")
    if header.chain:
        return
    # without codecs the blocks are the stream, and all readers must see the same
    fits = sum(map(len, blocks)) == raw_size and all(len(block) == header.block_size for block in blocks[:-1])
    identity = header.identity
    if identity is not None and identity.kind is Kind.TENSOR:
        fits = fits and raw_size == elements_size(identity.dtype, identity.shape)
    agree((sought is not None) == fits, "the reader that seeks sees other blocks")
    found = None if sought is None else (_told(header), b"".join(blocks), sought)
    second.compare(found, error, lambda: _by_reference(data))


def _by_reference(data: bytes) -> tuple[object, bytes, bytes]:
    header, stream = read_container(data)
    return header.identity and tuple(header.identity), stream, stream


def _told(header: Header) -> object:
    found = header.identity
    if found is None:
        return None
    facts = coded_dtype(found.dtype), found.offset, found.shape, found.tensor_shape, found.name
    return found.writer_id, found.number, int(found.kind), *facts


def _parse(data: bytes, step: int) -> tuple[Header, list[bytes], int]:
    parser = ContainerParser()
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


def seeds() -> Iterable[bytes]:
    box = (0, 1 << 40), (2, 5), (2, 1 << 41)
    for size in (0, 20):
        parts = take_apart(encode(data_of(size), []))
        yield parts.container()
        yield parts.change(identity=identity_of("a"), flags=BOUND).container()
        yield parts.change(identity=identity_of("layer.weight", 3, "quint8", *box), flags=BOUND | PUBLISHED).container()
    tensor = identity_of("layer.weight", 2, "int16", *box)
    yield take_apart(encode(data_of(20), [])).change(identity=tensor, flags=BOUND | PUBLISHED).container()
    yield take_apart(encode(data_of(BLOCK + 1), [])).container()
    yield take_apart(encode(bytes(3 * BLOCK), [ZStandard()])).container()


def mutate(data: bytes, choose: random.Random, havoc: Havoc) -> bytes:
    """As for a plain file, whose container this is."""
    return containers.mutate(_NO_KEY + data, choose, havoc).removeprefix(_NO_KEY)


TARGET = Target(run, seeds, mutate, max_len=80_000)
