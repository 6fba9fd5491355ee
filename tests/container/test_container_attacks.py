"""An attacker who can make every CRC right, but has no key: whatever is changed in a keyed file is noticed.

The guards at the end of the file take the seal or the tag away and show that the faults then get through: so it is the
cryptography that stops them, and not a slip in how they were made.
"""

from __future__ import annotations

from itertools import chain as joined
from itertools import permutations

import pytest
from forge import prefix_of, take_apart
from reference_decoder import FormatError, decode_plain_file
from samples import BLOCK, KEY, READERS, data_of, encode

import streamxf
from streamxf import Checksum, Encrypt
from streamxf.codecs.encrypt import Encrypt as EncryptClass
from streamxf.coder import StreamCoder
from streamxf.errors import AuthenticationError, StreamxfError

SIZE = 3 * BLOCK + 100
DATA = data_of(SIZE)
CODEC = Encrypt(KEY)
PARTS = take_apart(encode(DATA, [CODEC]))
BLOCKS = PARTS.blocks
OTHER = take_apart(encode(data_of(SIZE, seed=1), [CODEC]))  # the same key, another stream
BOTH = pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)


def relast(blocks):
    """The blocks with the last bit where a container must have it."""
    return tuple((index == len(blocks) - 1, payload) for index, (_, payload) in enumerate(blocks))


def sized(blocks):
    """A raw_size that fits blocks of which a short one may stand anywhere."""
    last = min(len(blocks[-1][1]) - 16, BLOCK)
    return PARTS.change(blocks=relast(blocks), raw_size=(len(blocks) - 1) * BLOCK + last)


def refuse(read, file: bytes, *errors: type[Exception]) -> None:
    with pytest.raises(errors or StreamxfError):
        read(file)
    with pytest.raises(FormatError):
        decode_plain_file(file, key=KEY.reveal())


@BOTH
def test_unchanged_parts_are_the_file(read):
    assert read(PARTS.pack()) == DATA
    assert decode_plain_file(PARTS.pack(), key=KEY.reveal()).payload == DATA


ORDERS = [order for size in (1, 2, 3, 4) for order in permutations(range(4), size) if order != (0, 1, 2, 3)]


@BOTH
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_reordered_and_dropped_blocks(read, order):
    refuse(read, sized([BLOCKS[index] for index in order]).pack())


@BOTH
@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("which", range(4))
def test_duplicated_blocks(read, place, which):
    refuse(read, sized([*BLOCKS[:place], BLOCKS[which], *BLOCKS[place:]]).pack())


@BOTH
@pytest.mark.parametrize("which", range(4))
def test_blocks_of_another_stream_of_the_same_key(read, which):
    blocks = [*BLOCKS[:which], OTHER.blocks[which], *BLOCKS[which + 1 :]]
    refuse(read, sized(blocks).pack(), AuthenticationError)


@BOTH
def test_all_blocks_of_another_stream(read):
    refuse(read, PARTS.change(blocks=OTHER.blocks).pack(), AuthenticationError)
    # with its salt and seal too, but without its wrapped key
    refuse(read, PARTS.change(blocks=OTHER.blocks, salt=OTHER.salt, seal=OTHER.seal).pack(), AuthenticationError)


@BOTH
@pytest.mark.parametrize("kept", [1, 2, 3])
def test_truncated_at_a_block_with_a_new_footer(read, kept):
    file = PARTS.change(blocks=relast(BLOCKS[:kept]), raw_size=kept * BLOCK).pack()
    refuse(read, file, AuthenticationError)


@BOTH
@pytest.mark.parametrize("which", range(4))
def test_a_changed_last_bit(read, which):
    blocks = tuple((last != (index == which), payload) for index, (last, payload) in enumerate(BLOCKS))
    refuse(read, PARTS.change(blocks=blocks).pack())


@BOTH
@pytest.mark.parametrize("size", [SIZE - 1, SIZE + 1, 3 * BLOCK + 1, 4 * BLOCK])
def test_another_raw_size(read, size):
    refuse(read, PARTS.change(raw_size=size).pack())


@BOTH
@pytest.mark.parametrize(
    "change",
    [
        {"salt": bytes(32)},
        {"salt": OTHER.salt},
        {"seal": bytes(32)},
        {"seal": OTHER.seal},
        {"block_log2": 17},
        {"chain": b"streamxf.encrypt/1\nstreamxf.checksum/1"},
        {"chain": b"streamxf.zstd/1\nstreamxf.encrypt/1"},
        {"chain": b"streamxf.encrypt/1\nstreamxf.encrypt/1"},
        {"chain": b"streamxf.encrypt/2"},
        {"chain": b"acme.unknown/1\nstreamxf.encrypt/1"},
        {"chain": b"", "flags": 0, "seal": b""},
        {"chain": b"", "flags": 0, "seal": b"", "prefix": prefix_of(b"")},
        {"flags": 0, "seal": b""},
        {"flags": 3, "identity": bytes(16) + b"\x01\x00item"},
        {"flags": 7, "identity": bytes(16) + b"\x01\x00item"},
        {"version": 2},
        {"reserved": 1},
    ],
    ids=str,
)
def test_an_altered_header(read, change):
    refuse(read, PARTS.change(**change).pack())


@BOTH
def test_an_unknown_codec_is_not_looked_for_before_the_seal(read):
    file = PARTS.change(chain=b"acme.unknown/1\nstreamxf.encrypt/1").pack()
    refuse(read, file, AuthenticationError)


@BOTH
@pytest.mark.parametrize("block", range(4))
def test_altered_payloads(read, block):
    last, payload = BLOCKS[block]
    for place in (0, len(payload) // 2, len(payload) - 1):
        changed = bytearray(payload)
        changed[place] ^= 0x80
        blocks = (*BLOCKS[:block], (last, bytes(changed)), *BLOCKS[block + 1 :])
        refuse(read, PARTS.change(blocks=blocks).pack(), AuthenticationError)


@BOTH
def test_a_bound_container_is_no_plain_file(read):
    plain = take_apart(encode(b"item", ()))
    assert read(plain.pack()) == b"item"
    refuse(read, plain.change(flags=2, identity=bytes(16) + b"\x01\x00item").pack())


@BOTH
def test_another_prefix(read):
    stranger = take_apart(encode(b"", [Encrypt(streamxf.Key.generate())]))
    again = take_apart(encode(b"", [Encrypt(KEY)]))
    refuse(read, PARTS.change(prefix=stranger.prefix).pack())
    refuse(read, PARTS.change(prefix=again.prefix).pack(), AuthenticationError)
    refuse(read, PARTS.change(prefix=prefix_of(b"")).pack())


# -- guards ----------------------------------------------------------------------------------------------------------


def broken_open(cls, chain, stream, seal, *, meter=None):
    return cls(chain, stream, meter=meter)


def broken_decode(self, block, info):
    """Decrypts as Encrypt does, and believes every tag."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    key, _ = self.data_key.stream_keys(info.stream.salt, info.stream.header_digest)
    nonce = info.index.to_bytes(11, "big") + bytes([info.last])
    decryptor = Cipher(algorithms.AES(key), modes.CTR(nonce + b"\0\0\0\2")).decryptor()
    return decryptor.update(bytes(block[:-16]))


@BOTH
def test_without_the_seal_an_altered_header_would_reach_the_tags(read, monkeypatch):
    monkeypatch.setattr(StreamCoder, "open", classmethod(broken_open))
    with pytest.raises(AuthenticationError, match="tag"):
        read(PARTS.change(salt=bytes(32)).pack())


@BOTH
def test_without_the_seal_a_changed_seal_would_pass(read, monkeypatch):
    file = PARTS.change(seal=OTHER.seal).pack()
    monkeypatch.setattr(StreamCoder, "open", classmethod(broken_open))
    assert read(file) == DATA


def test_without_tags_every_structural_fault_would_pass(monkeypatch):
    """By the tag alone are these found: once it is believed, wrong bytes come out."""
    monkeypatch.setattr(EncryptClass, "decode", broken_decode)
    whole = joined.from_iterable([permutations(range(3))])
    faults = [sized([BLOCKS[index] for index in (*order, 3)]) for order in whole if order != (0, 1, 2)]
    faults += [PARTS.change(blocks=relast(BLOCKS[:kept]), raw_size=kept * BLOCK) for kept in (1, 2, 3)]
    faults += [sized([*BLOCKS[:1], *BLOCKS])]
    faults += [sized([*BLOCKS[:2], OTHER.blocks[2], BLOCKS[3]])]
    for read in READERS:
        assert read(PARTS.pack()) == DATA
        for fault in faults:
            assert read(fault.pack()) != DATA


def test_a_checksum_after_encryption_does_not_hide_the_tag():
    parts = take_apart(encode(DATA, [CODEC, Checksum()]))
    swapped = (parts.blocks[1], parts.blocks[0], *parts.blocks[2:])
    for read in READERS:
        with pytest.raises(AuthenticationError):
            read(parts.change(blocks=swapped).pack())
