"""Encrypt on single blocks: the nonce binds the place, a wrong tag leaves no plaintext behind."""

import os
import threading

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

import streamxf
from streamxf import Encrypt
from streamxf.codec import BlockInfo, StreamInfo
from streamxf.errors import AuthenticationError, CodecError
from streamxf.keys import KeyProvider
from streamxf.keys.envelope import DataKey
from tests.altered import bit_flips, flipped
from tests.polling import SECONDS, WatchedLock
from tests.samples import KEY

STREAM = StreamInfo(1 << 16, bytes(32), b"h" * 32)
PLAIN = b"a secret message   " * 10


def block_info(codec: Encrypt, index: int = 0, last: bool = True, limit: int = 1 << 16, taken: list | None = None):
    taken = [] if taken is None else taken

    def scratch(size: int) -> memoryview:
        taken.append(bytearray(b"\xee" * size))
        return memoryview(taken[-1])

    return BlockInfo(index, last, limit, codec.start(STREAM), STREAM, scratch)


@pytest.fixture
def codec() -> Encrypt:
    return Encrypt(KEY)


@pytest.mark.parametrize(("index", "last"), [(0, True), (0, False), (1, True), (300, False), (2**32 - 1, True)])
def test_nonce_and_layout_are_those_of_the_format(codec, index, last):
    stored = bytes(codec.encode(memoryview(PLAIN), block_info(codec, index, last)))
    nonce = index.to_bytes(11, "big") + bytes([last])
    stream_key, seal = codec.data_key.stream_keys(STREAM.salt, STREAM.header_digest)
    assert stored == AESGCM(stream_key).encrypt(nonce, PLAIN, None)
    assert codec.start(STREAM).seal == seal


@pytest.mark.parametrize(("index", "last"), [(1, True), (0, False), (2**32 - 1, True)])
def test_a_block_counts_only_in_its_place(codec, index, last):
    stored = codec.encode(memoryview(PLAIN), block_info(codec, 0, True))
    assert bytes(codec.decode(stored, block_info(codec, 0, True))) == PLAIN
    with pytest.raises(AuthenticationError):
        codec.decode(stored, block_info(codec, index, last))


def test_a_wrong_tag_leaves_zeros(codec):
    stored = flipped(codec.encode(memoryview(PLAIN), block_info(codec)), -1)
    taken: list[bytearray] = []
    with pytest.raises(AuthenticationError):
        codec.decode(memoryview(stored), block_info(codec, taken=taken))
    assert taken == [bytearray(len(PLAIN))]


def test_every_flipped_bit_is_found(codec):
    for changed in bit_flips(codec.encode(memoryview(b"secret"), block_info(codec))):
        with pytest.raises(AuthenticationError):
            codec.decode(memoryview(changed), block_info(codec))


def test_lengths_are_checked_before_memory_is_taken(codec):
    for size in (0, 15, 16 + 101):
        taken: list[bytearray] = []
        with pytest.raises(CodecError, match="encrypted block"):
            codec.decode(memoryview(bytes(size)), block_info(codec, limit=100, taken=taken))
        assert not taken


def test_the_counter_ends_before_it_wraps(codec):
    with pytest.raises(CodecError, match="blocks"):
        codec.encode(memoryview(b""), block_info(codec, index=2**32))


def test_streams_have_keys_of_their_own(codec):
    base = codec.data_key.stream_keys(bytes(32), b"h" * 32)
    assert codec.data_key.stream_keys(b"s" * 32, b"h" * 32) != base
    assert codec.data_key.stream_keys(bytes(32), b"i" * 32) != base
    assert codec.renew().data_key.stream_keys(bytes(32), b"h" * 32) != base


def test_threads_that_save_at_once_share_one_data_key(codec, monkeypatch):
    """The first is still drawing when the other asks."""
    draw = DataKey.draw
    drawn: list[DataKey] = []
    wrapped: list[str] = []
    lock = WatchedLock(codec._turns.here())
    other = threading.Thread(target=lambda: wrapped.append(codec.wrapped))

    def slowly() -> DataKey:
        drawn.append(draw())
        if len(drawn) > 1:
            lock.asked.set()
            return drawn[1]
        other.start()
        assert lock.asked.wait(SECONDS)  # or the other draws, too
        return drawn[0]

    monkeypatch.setattr(DataKey, "draw", slowly)
    monkeypatch.setitem(codec._turns._locks, os.getpid(), lock)
    wrapped.append(codec.wrapped)
    other.join(SECONDS)
    assert len(drawn) == 1
    assert wrapped == [codec.wrapped] * 2


class Nested(KeyProvider):
    """Encrypts by itself, in this thread and in another."""

    kind = "test-nested"
    id = "e" * 16

    def wrap(self, data_key, dek_id):
        done = []
        other = threading.Thread(target=lambda: done.append(streamxf.encode(data_key, [Encrypt(KEY)])), daemon=True)
        other.start()
        other.join(60)
        return done[0] + streamxf.encode(data_key, [Encrypt(KEY)])


def test_a_provider_that_encrypts_by_itself_does_not_hang():
    """Nor does one chain wait for the key service of another."""
    done = []
    thread = threading.Thread(target=lambda: done.append(Encrypt([Nested(), KEY]).descriptor()), daemon=True)
    thread.start()
    thread.join(60)
    assert done


def test_codecs_that_were_made_to_read_differ_by_their_data_keys():
    first, second = (Encrypt(KEY).data_key for _ in range(2))
    assert Encrypt.reading(first) == Encrypt.reading(first)
    assert Encrypt.reading(first) != Encrypt.reading(second)


@pytest.mark.parametrize("direction", ["encode", "decode"])
def test_other_threads_run_while_a_large_block_is_worked_on(codec, direction):
    """They see a block that was begun and is not finished, as they cannot where cryptography before 50.0.0 keeps the
    interpreter's lock.
    """
    block, size, untouched = memoryview(bytes(2**25)), 2**25, b"\xee" * 16
    if direction == "decode":
        block = codec.encode(block, block_info(codec))
    for _ in range(100):
        taken: list[bytearray] = []
        info = block_info(codec, limit=size, taken=taken)
        thread = threading.Thread(target=getattr(codec, direction), args=(block, info))
        thread.start()
        while thread.is_alive():
            if taken and taken[0][:16] != untouched and taken[0][-16:] == untouched:
                thread.join()
                return
    pytest.fail("the interpreter's lock was kept throughout")
