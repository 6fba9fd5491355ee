"""Which blocks a reader decodes, where to, and what it holds of them."""

import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from streamxf.codec import CodecRegistry, Provider
from streamxf.descriptor import Descriptor
from streamxf.errors import CodecError, UnknownCodecError
from streamxf.format.header import Header
from streamxf.stream.container import ChainOpener
from streamxf.stream.reader import StreamReader

DATA = b"abcdefghij"


class Blocks:
    """Two blocks of four bytes and one of two, which keep what they are decoded into."""

    size, block_size, count = len(DATA), 4, 3

    def __init__(self, decode: Callable[[int], object] = lambda index: None) -> None:
        self._decode = decode
        self.decoded: dict[int, Any] = {}
        self.out: weakref.ref[memoryview] | None = None

    def size_of(self, index: int) -> int:
        return min(4, self.size - 4 * index)

    def expect(self, *runs: tuple[int, int]) -> None: ...

    def decoder(self, index: int) -> Callable[[memoryview], None]:
        def decode(out: memoryview) -> None:
            self._decode(index)
            self.decoded[index] = out.obj
            self.out = weakref.ref(out)
            out[:] = DATA[4 * index :][: len(out)]

        return decode


def test_whole_blocks_are_decoded_in_their_place_and_once() -> None:
    blocks, target = Blocks(), bytearray(len(DATA))
    reader = StreamReader(blocks)
    reader.seek(5)
    assert reader.read(1) == b"f"
    assert [*blocks.decoded] == [1]
    blocks.decoded.clear()
    assert reader.readinto_at(0, target) == len(DATA)
    assert target == DATA
    assert {index: memory is target for index, memory in blocks.decoded.items()} == {0: True, 2: True}


def test_a_closed_reader_holds_no_block() -> None:
    blocks = Blocks()
    reader = StreamReader(blocks)
    assert reader.read(1) == b"a"
    assert blocks.out is not None
    assert blocks.out() is not None
    reader.close()
    assert blocks.out() is None


def test_a_read_that_fails_waits_for_the_blocks_that_are_being_decoded() -> None:
    """They are decoded into the caller's memory."""
    begun, goes_on, done = threading.Event(), threading.Event(), threading.Event()

    def decode(index: int) -> None:
        if index == 1:
            begun.set()
            assert goes_on.wait(60)
            done.set()
        if index == 2:  # of which a part was asked for, so the thread that reads decodes it
            assert begun.wait(60)
            threading.Timer(0.05, goes_on.set).start()
            raise CodecError("damaged")

    with pytest.raises(CodecError):
        StreamReader(Blocks(decode)).readinto_at(0, bytearray(9))
    assert done.is_set()


def test_a_codec_is_rebuilt_from_all_that_is_known_of_it() -> None:
    """From its whole descriptor; without the data key, and with the package's name where it is not installed."""
    asked: list[Any] = []

    class Registry(CodecRegistry):
        def build(self, descriptor: Any, keys: Any = None, providers: Any = ()) -> Any:
            asked.append((str(descriptor), keys))
            return super().build(descriptor, keys, providers)

    codec = Descriptor.parse("acme.delta/1#window=5")
    opener = ChainOpener([codec], Registry(), providers=[Provider("acme.delta", "acme-codec==1.0")])
    with pytest.raises(UnknownCodecError, match=r"acme-codec==1\.0"):
        opener.unseal(Header(16, (codec.bound,), bytes(16)))()
    assert asked == [("acme.delta/1#window=5", None)]
