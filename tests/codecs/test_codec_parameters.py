"""Bad parameters fail when the codec is made, and the message has what is allowed; descriptors go both ways."""

import pickle

import pytest
from hypothesis import given

from streamxf import LZ4, Checksum, CodecRegistry, Encrypt, FloatZip, PrivateKey, SigningKey, ZStandard
from streamxf.descriptor import Descriptor
from streamxf.errors import DescriptorError, KeyMissingError, ParameterError, PolicyError, UnknownCodecError
from streamxf.keys import KeyRing
from tests.samples import KEY, codecs


@pytest.mark.parametrize("level", [-8, 23, 1.5, True, "3", None, 10**30])
def test_zstd_levels(level):
    with pytest.raises(ParameterError, match="-7 to 22"):
        ZStandard(level=level)


@pytest.mark.parametrize("level", [-65, 13, 0.0, False, "0", None])
def test_lz4_levels(level):
    with pytest.raises(ParameterError, match="-64 to 12"):
        LZ4(level=level)


@pytest.mark.parametrize("speed", [0, 3, 1.0, True, "2", None])
def test_floatzip_speeds(speed):
    with pytest.raises(ParameterError, match="1 or 2"):
        FloatZip(speed=speed)


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
    assert str(FloatZip(speed=2).descriptor()) == "streamxf.floatzip/1"
    assert str(Checksum("sha256").descriptor()) == "streamxf.checksum/1?algorithm=sha256"
    assert Encrypt(KEY).descriptor().bound == "streamxf.encrypt/1"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("streamxf.zstd/1#level=23", ParameterError),
        ("streamxf.zstd/1#level=3.0", DescriptorError),
        ("streamxf.zstd/1#level=+3", DescriptorError),
        ("streamxf.zstd/1#level=03", DescriptorError),
        ("streamxf.lz4/1#level=-0", DescriptorError),
        ("streamxf.zstd/1?level=5", DescriptorError),
        ("streamxf.zstd/1?level=3", DescriptorError),
        ("streamxf.checksum/1?algorithm=crc32c", DescriptorError),
        ("streamxf.checksum/1#algorithm=crc32c", DescriptorError),
        ("streamxf.zstd/1#level=" + "9" * 5000, DescriptorError),
        ("streamxf.zstd/1#speed=3", DescriptorError),
        ("streamxf.floatzip/1#speed=2", DescriptorError),
        ("streamxf.floatzip/1?speed=2", DescriptorError),
        ("streamxf.zstd/2", UnknownCodecError),
        ("streamxf.checksum/1?algorithm=md5", ParameterError),
        # nothing binds a fragment to the data, so it must not say how to decode it
        ("streamxf.checksum/1#algorithm=sha256", DescriptorError),
        ("streamxf.checksum/1?algorithm=sha256#algorithm=crc32c", DescriptorError),
        ("streamxf.zstd/1?level=3#level=4", DescriptorError),
        ("streamxf.encrypt/1", DescriptorError),
        ("streamxf.encrypt/1#dek=x", DescriptorError),
        ("streamxf.encrypt/1?a=1#dek=x", DescriptorError),
    ],
)
def test_descriptors_that_are_refused(text, error):
    name, _, rest = text.partition("/")
    with pytest.raises(error):
        CodecRegistry().build(Descriptor.parse(text), KeyRing([KEY]))
    if error is not UnknownCodecError and name != Encrypt.name:
        with pytest.raises(error):
            CodecRegistry().find(name).from_descriptor(rest)


def test_encrypt_is_rebuilt_with_a_data_key_or_with_keys_for_one():
    codec = Encrypt(KEY)
    bare, full = Descriptor.parse("streamxf.encrypt/1"), Descriptor.parse(codec.get_descriptor())
    assert str(codec.descriptor()) == "streamxf.encrypt/1"
    assert codec.get_descriptor() == f"streamxf.encrypt/1#{codec.wrapped}"
    for made in (
        Encrypt.rebuild(full, KeyRing(KEY)),
        Encrypt.rebuild(bare, codec.data_key),
        Encrypt.reading(codec.data_key),
    ):
        assert made.data_key == codec.data_key
        assert made.descriptor() == bare
        assert made.signer is None
        for write in (lambda made=made: made.wrapped, made.get_descriptor, lambda made=made: made.vouch(bytes(32))):
            with pytest.raises(KeyMissingError, match="made to read"):
                write()
    for descriptor in (bare, full):
        with pytest.raises(KeyMissingError, match=r"use streamxf\.Registry"):
            Encrypt.rebuild(descriptor)
        with pytest.raises(KeyMissingError, match=r"use streamxf\.Registry"):
            Encrypt.from_descriptor(str(descriptor).partition("/")[2])
    with pytest.raises(DescriptorError, match="has no wrapped data key"):
        Encrypt.rebuild(bare, KeyRing(KEY))
    with pytest.raises(DescriptorError, match="which belongs elsewhere"):
        Encrypt.rebuild(full, codec.data_key)
    with pytest.raises(KeyMissingError, match="keys given: none"):
        Encrypt.rebuild(full, KeyRing())


def test_nothing_vouches_for_what_is_rebuilt_with_keys():
    """The descriptor is from a checkpoint without an index."""
    pair, signer = PrivateKey.generate("hpke-x25519"), SigningKey.generate()
    descriptor = Descriptor.parse(Encrypt([KEY, pair.public], signer=signer).get_descriptor())
    for ring in (KeyRing(KEY, trust=signer.verify_key), KeyRing(pair), KeyRing(pair, trust=signer.verify_key)):
        with pytest.raises(PolicyError, match="without an index cannot be signed"):
            CodecRegistry().build(descriptor, ring)
    for ring in (KeyRing(KEY), KeyRing(pair, allow_unsigned=True)):
        assert CodecRegistry().build(descriptor, ring).name == "streamxf.encrypt"
