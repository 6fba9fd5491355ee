"""An attacker who can make every CRC right, but has no key: the header and prefix of an encrypted file.

The tests at the end of the file take the seal away and show that the faults then get through: so it is the
cryptography that stops them, and not a slip in how they were made. tests/hostile/ has the rest of such attacks.
"""

from __future__ import annotations

import pytest

import streamxf
from streamxf import Checksum, Encrypt
from streamxf.chain import StreamCoder
from streamxf.errors import AuthenticationError, StreamxfError
from tests.forge import identity_of, prefix_of, take_apart
from tests.reference_codecs import Refused
from tests.reference_decoder import read_plain
from tests.reference_keys import Reader, aes_key
from tests.samples import BLOCK, KEY, READERS, data_of, encode

SIZE = 3 * BLOCK + 100
DATA = data_of(SIZE)
CODEC = Encrypt(KEY)
PARTS = take_apart(encode(DATA, [CODEC]))
OTHER = take_apart(encode(data_of(SIZE, seed=1), [CODEC]))  # the same key, another stream
HOLDER = Reader([aes_key(KEY.reveal())])
BOTH = pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)


def refuse(read, file: bytes, *errors: type[Exception]) -> None:
    with pytest.raises(errors or StreamxfError):
        read(file)
    with pytest.raises(Refused):
        read_plain(file, HOLDER)


@BOTH
def test_unchanged_parts_are_the_file(read):
    assert read(PARTS.pack()) == DATA
    assert read_plain(PARTS.pack(), HOLDER) == DATA


@BOTH
@pytest.mark.parametrize(
    "change",
    [
        {"salt": bytes(16)},
        pytest.param({"salt": OTHER.salt}, id="salt of another"),
        {"seal": bytes(32)},
        pytest.param({"seal": OTHER.seal}, id="seal of another"),
        pytest.param({"tail": OTHER.tail}, id="vouchers of another"),
        {"tail": b""},
        {"block_log2": 17},
        {"chain": b"streamxf.encrypt/1\nstreamxf.checksum/1"},
        {"chain": b"streamxf.zstd/1\nstreamxf.encrypt/1"},
        {"chain": b"streamxf.encrypt/1\nstreamxf.encrypt/1"},
        {"chain": b"streamxf.encrypt/2"},
        {"chain": b"acme.unknown/1\nstreamxf.encrypt/1"},
        {"chain": b"", "flags": 0, "seal": b""},
        {"chain": b"", "flags": 0, "seal": b"", "prefix": prefix_of(b"")},
        {"chain": b"", "flags": 0, "seal": b"", "prefix": prefix_of(b""), "tail": b""},
        {"flags": 0, "seal": b""},
        {"flags": 3, "identity": identity_of("item")},
        {"flags": 7, "identity": identity_of("item")},
        {"flags": 9},
        {"version": 2},
        {"suite": 2},
        {"flags": 17},
        {"informative": 1},
    ],
    ids=str,
)
def test_an_altered_header(read, change):
    refuse(read, PARTS.change(**change).pack())


@BOTH
def test_an_unknown_codec_is_not_looked_up_before_the_seal(read):
    file = PARTS.change(chain=b"acme.unknown/1\nstreamxf.encrypt/1").pack()
    refuse(read, file, AuthenticationError)


@BOTH
def test_a_bound_container_in_a_plain_file(read):
    plain = take_apart(encode(b"item", ()))
    assert read(plain.pack()) == b"item"
    refuse(read, plain.change(flags=2, identity=identity_of("item")).pack())


@BOTH
def test_another_prefix(read):
    stranger = take_apart(encode(b"", [Encrypt(streamxf.Key.generate())]))
    again = take_apart(encode(b"", [Encrypt(KEY)]))
    refuse(read, PARTS.change(prefix=stranger.prefix).pack())
    refuse(read, PARTS.change(prefix=again.prefix).pack(), AuthenticationError)
    refuse(read, PARTS.change(prefix=prefix_of(b"")).pack())


# -- the same attacks without the defence ----------------------------------------------------------------------------


def open_without_comparing(cls, chain, stream, seal, *, meter=None):
    return cls(chain, stream, meter=meter)


def test_without_the_seal_an_altered_header_would_reach_the_tags(monkeypatch):
    monkeypatch.setattr(StreamCoder, "open", classmethod(open_without_comparing))
    read_pipe = READERS[1]
    with pytest.raises(AuthenticationError, match="tag"):
        read_pipe(PARTS.change(salt=bytes(16)).pack())


@BOTH
def test_without_the_seal_a_changed_seal_would_pass(read, monkeypatch):
    file = PARTS.change(seal=OTHER.seal).pack()
    monkeypatch.setattr(StreamCoder, "open", classmethod(open_without_comparing))
    assert read(file) == DATA


def test_a_checksum_after_encryption_does_not_hide_the_tag():
    parts = take_apart(encode(DATA, [CODEC, Checksum()]))
    one, other, *rest = parts.blocks
    for read in READERS:
        with pytest.raises(AuthenticationError):
            read(parts.change(blocks=(other, one, *rest)).pack())
