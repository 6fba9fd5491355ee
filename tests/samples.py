"""What the tests below DCP feed to streamxf: data, chains, ways of cutting, and sources that can do little."""

import io
import random
import struct
from collections.abc import Iterable

from hypothesis import strategies as st

import streamxf
from streamxf import LZ4, Checksum, Encrypt, ZStandard

KEY = streamxf.Key(bytes(range(32)))
BLOCK = 1 << 16  # the smallest that the format allows: several blocks cost little
FULL = (ZStandard(level=3), Checksum(), Encrypt(KEY))

EDGES = tuple(blocks * BLOCK + off for blocks in range(4) for off in (-1, 0, 1) if blocks or off >= 0)


def data_of(size: int, seed: int = 0) -> bytes:
    """`size` bytes in which no two blocks are alike, one half of them compressible."""
    noise = random.Random(seed).randbytes(size // 2)
    text = b"".join(b"%08x" % number for number in range(seed, seed + (size - len(noise)) // 8 + 1))
    return noise + text[: size - len(noise)]


def floats(count: int, code: str, seed: int = 0) -> bytes:
    """`count` numbers as weights are: normally distributed, in the format that `struct` calls `code`."""
    draw = random.Random(seed).gauss
    return struct.pack(f"<{count}{code}", *(draw(0, 0.02) for _ in range(count)))


def blobs(max_size: int = 3 * BLOCK + 1) -> st.SearchStrategy[bytes]:
    """Any bytes: small ones in full generality, larger ones by size and seed, with block edges drawn often."""
    edges = st.sampled_from([edge for edge in EDGES if edge <= max_size])
    sizes = st.one_of(edges, st.integers(0, max_size))
    filled = st.builds(lambda size, byte: bytes([byte]) * size, sizes, st.integers(0, 255))
    return st.one_of(st.binary(max_size=500), st.builds(data_of, sizes, st.integers(0, 3)), filled)


codecs = st.one_of(
    st.builds(ZStandard, level=st.integers(-7, 22)),
    st.builds(LZ4, level=st.integers(-64, 12)),
    st.builds(Checksum, algorithm=st.sampled_from(["crc32c", "sha256"])),
)
checksums = st.builds(Checksum, algorithm=st.sampled_from(["crc32c", "sha256"]))


@st.composite
def chains(draw: st.DrawFn, most: int = 4) -> tuple[streamxf.Codec, ...]:
    """Any legal chain of up to `most` built-in codecs with any parameters."""
    before = draw(st.lists(codecs, max_size=most))
    if len(before) == most or not draw(st.booleans()):
        return tuple(before)
    after = draw(st.lists(checksums, max_size=most - 1 - len(before)))
    return (*before, Encrypt(KEY), *after)


def cuts(max_pieces: int = 12) -> st.SearchStrategy[list[int]]:
    """Sizes of pieces; whoever cuts repeats them until the data is used up."""
    return st.lists(st.one_of(st.integers(1, 2 * BLOCK + 1), st.integers(0, 40)), min_size=1, max_size=max_pieces)


def cut(data: bytes, sizes: list[int]) -> Iterable[bytes]:
    """Cut `data` into pieces of `sizes`; what remains is the last piece."""
    position = 0
    for size in sizes:
        yield data[position : position + size]
        position += size
    yield data[position:]


def encode(data: bytes, chain: Iterable[streamxf.Codec] = FULL, block_size: int = BLOCK) -> bytes:
    """`data` as a plain file."""
    target = io.BytesIO()
    with streamxf.open(target, "wb", chain=tuple(chain), block_size=block_size) as file:
        file.write(data)
    return target.getvalue()


class OneWay(io.RawIOBase):
    """A source that cannot seek and gives at most `step` bytes at a time, as a pipe does."""

    def __init__(self, data: bytes, step: int = 1 << 30) -> None:
        super().__init__()
        self.source = io.BytesIO(data)
        self.step = step

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        return self.source.readinto(memoryview(buffer)[: self.step])


def keys_for(chain: Iterable[streamxf.Codec]) -> streamxf.Key | None:
    """What a reader of a file that `chain` wrote must be given: with a key, what is not encrypted is refused."""
    return KEY if any(isinstance(codec, streamxf.Encrypt) for codec in chain) else None


def keys_of(file: bytes) -> streamxf.Key | None:
    """The same, from the file."""
    return KEY if b"streamxf.encrypt" in file else None


def read_seekable(data: bytes) -> bytes:
    """Everything in a plain file, by the reader that seeks."""
    with streamxf.open(io.BytesIO(data), "rb", keys=keys_of(data)) as file:
        return file.read()


def read_pipe(data: bytes) -> bytes:
    """Everything in a plain file, by the reader that goes front to back."""
    with streamxf.open(OneWay(data), "rb", keys=keys_of(data)) as file:
        return file.read()


READERS = (read_seekable, read_pipe)
