"""Bad parameters fail when the codec is made, and the message has what is allowed; descriptors go both ways."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from samples import KEY, codecs

from streamxf import LZ4, Checksum, CodecRegistry, Encrypt, KeyRing, ZStandard
from streamxf.descriptor import Descriptor
from streamxf.errors import DescriptorError, KeyMissingError, ParameterError, UnknownCodecError


@pytest.mark.parametrize("level", [-8, 23, 1.5, True, "3", None, 10**30])
def test_zstd_levels(level):
    with pytest.raises(ParameterError, match="-7 to 22"):
        ZStandard(level=level)


@pytest.mark.parametrize("level", [-65, 13, 0.0, False, "0", None])
def test_lz4_levels(level):
    with pytest.raises(ParameterError, match="-64 to 12"):
        LZ4(level=level)


@pytest.mark.parametrize("algorithm", ["md5", "CRC32C", "", b"sha256", 32, None, ["crc32c"]])
def test_checksum_algorithms(algorithm):
    with pytest.raises(ParameterError, match="crc32c, sha256"):
        Checksum(algorithm=algorithm)


@pytest.mark.parametrize("size", [0, 16, 31, 33, 64])
def test_key_lengths(size):
    with pytest.raises(ParameterError, match=f"32 bytes.*{size}"):
        Encrypt(bytes(size))


@pytest.mark.parametrize("key", ["0" * 32, None, 32])
def test_key_types(key):
    with pytest.raises(ParameterError, match="32 bytes"):
        Encrypt(key)


@pytest.mark.parametrize("make", [ZStandard, LZ4, Checksum, lambda: Encrypt(KEY)])
def test_codecs_are_frozen(make):
    with pytest.raises(AttributeError):
        make().level = 1


@given(codec=codecs)
def test_descriptors_and_pickles_rebuild_a_codec(codec):
    text = str(codec.descriptor())
    assert CodecRegistry().build(Descriptor.parse(text), KeyRing()) == codec
    assert pickle.loads(pickle.dumps(codec)) == codec


def test_descriptors_say_what_a_decoder_needs():
    assert str(ZStandard(5).descriptor()) == "streamxf.zstd/1#level=5"
    assert str(LZ4(-3).descriptor()) == "streamxf.lz4/1#level=-3"
    assert str(Checksum().descriptor()) == "streamxf.checksum/1"
    assert str(Checksum("sha256").descriptor()) == "streamxf.checksum/1?algorithm=sha256"
    assert Encrypt(KEY).descriptor().bound == "streamxf.encrypt/1"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("streamxf.zstd/1#level=23", ParameterError),
        ("streamxf.zstd/1#level=3.0", DescriptorError),
        ("streamxf.zstd/1#level=+3", DescriptorError),
        ("streamxf.zstd/1#level=03", DescriptorError),
        ("streamxf.zstd/1#level=" + "9" * 5000, DescriptorError),
        ("streamxf.zstd/1#speed=3", DescriptorError),
        ("streamxf.zstd/2", UnknownCodecError),
        ("streamxf.checksum/1?algorithm=md5", ParameterError),
        # nothing binds a fragment to the data, so it must not say how to decode it
        ("streamxf.checksum/1#algorithm=sha256", DescriptorError),
        ("streamxf.checksum/1?algorithm=sha256#algorithm=crc32c", DescriptorError),
        ("streamxf.zstd/1?level=3#level=4", DescriptorError),
        ("streamxf.encrypt/1", DescriptorError),
        ("streamxf.encrypt/1?a=1#dek=x", DescriptorError),
    ],
)
def test_descriptors_that_are_refused(text, error):
    with pytest.raises(error):
        CodecRegistry().build(Descriptor.parse(text), KeyRing([KEY]))


@pytest.mark.parametrize(
    ("text", "codec"),
    [
        ("streamxf.zstd/1?level=5", ZStandard(5)),
        ("streamxf.zstd/1#level=5", ZStandard(5)),
        ("streamxf.checksum/1?algorithm=crc32c", Checksum()),
    ],
)
def test_spellings_that_no_writer_uses_but_that_do_no_harm(text, codec):
    assert CodecRegistry().build(Descriptor.parse(text), KeyRing()) == codec


def test_encrypt_is_not_made_without_keys():
    with pytest.raises(KeyMissingError):
        Encrypt.from_descriptor("1#dek=x")
