"""The text form of chains, both ways, and every way in which it can be wrong."""

from __future__ import annotations

import pytest
from hypothesis import given

from streamxf import LZ4, Checksum, CodecRegistry, Encrypt, Key, ZStandard
from streamxf.chain import Chain
from streamxf.descriptor import Descriptor
from streamxf.errors import ChainError, DescriptorError, KeyMissingError, ParameterError, UnknownCodecError
from streamxf.keys import KeyRing
from tests.samples import KEY, chains


def rebuilt(texts, keys):
    return Chain(CodecRegistry().build(Descriptor.parse(text), keys) for text in texts)


@given(codecs=chains())
def test_round_trip(codecs):
    assert Chain.parse(str(Chain(codecs)), keys=KEY) == Chain(codecs)


@given(codecs=chains())
def test_descriptors_round_trip(codecs):
    """As torch's writers record them; and as an index does, which has the wrapped data key in another place."""
    chain = Chain(codecs)
    opener = chain.encryption.data_key if chain.encryption is not None else None
    for again in (
        rebuilt([codec.get_descriptor() for codec in chain], KeyRing.of(KEY)),
        rebuilt([str(item) for item in chain.descriptors], opener),
    ):
        assert again.descriptors == chain.descriptors
        assert [type(codec) for codec in again] == [type(codec) for codec in chain]
        assert (again.encryption is None) or again.encryption.data_key == opener


def test_descriptors_of_an_index_have_no_keys():
    chain = Chain([ZStandard(5), Encrypt(KEY), Checksum("sha256")])
    texts = [str(item) for item in chain.descriptors]
    assert texts == ["streamxf.zstd/1#level=5", "streamxf.encrypt/1", "streamxf.checksum/1?algorithm=sha256"]
    assert chain.bound == ("streamxf.zstd/1", *texts[1:])
    for keys in (None, KeyRing.of(KEY)):
        with pytest.raises((DescriptorError, KeyMissingError)):
            rebuilt(texts, keys)
    with pytest.raises(DescriptorError, match="which belongs elsewhere"):
        rebuilt([codec.get_descriptor() for codec in chain], chain.encryption.data_key)


def test_the_text_form_wraps_no_data_key():
    """A key service would be called for it."""
    codec = Encrypt(KEY)
    assert str(Chain([codec])) == "encrypt"
    assert Chain([codec]).bound == ("streamxf.encrypt/1",)
    assert codec._session is None


@pytest.mark.parametrize(
    ("text", "codecs"),
    [
        ("zstd", [ZStandard()]),
        ("zstd:level=3+checksum+encrypt", [ZStandard(3), Checksum(), Encrypt(KEY)]),
        (" zstd : level = -7 + lz4:level=12 ", [ZStandard(-7), LZ4(12)]),
        ("checksum:algorithm=sha256", [Checksum("sha256")]),
        ("streamxf.zstd:level=1", [ZStandard(1)]),
        ("", []),
        ("  ", []),
    ],
)
def test_meaning(text, codecs):
    assert Chain.parse(text, keys=KEY) == Chain(codecs)


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("zstd+", ChainError, "''"),
        ("+zstd", ChainError, "''"),
        ("zstd++lz4", ChainError, "''"),
        ("zstd:", ChainError, "'zstd:'"),
        (":level=3", ChainError, "':level=3'"),
        ("zstd:level", ChainError, "key=value"),
        ("zstd:level=3,", ChainError, "key=value"),
        ("zstd:=3", ChainError, "key=value"),
        ("zstd:level=3,level=4", ChainError, "twice"),
        ("zstd:level=23", ParameterError, "-7 to 22"),
        ("zstd:level=high", ChainError, "'high'"),
        ("zstd:speed=1", ChainError, "takes: level"),
        ("checksum:algorithm=md5", ParameterError, "crc32c, sha256"),
        ("gzip", ChainError, "built in are zstd, lz4, floatzip, checksum, encrypt"),
        ("acme.delta", UnknownCodecError, "acme.delta"),
        ("encrypt:key=abc", ChainError, "no parameters"),
        ("encrypt+zstd", ChainError, "put it before Encrypt"),
        ("+".join(["checksum"] * 9), ChainError, "at most 8"),
    ],
)
def test_errors(text, error, says):
    with pytest.raises(error, match=says):
        Chain.parse(text, keys=KEY)


@pytest.mark.parametrize(("keys", "count"), [(None, 0), ([KEY, Key.generate()], 2)])
def test_encrypt_needs_exactly_one_key(keys, count):
    with pytest.raises(ChainError, match=f"there are {count}"):
        Chain.parse("encrypt", keys=keys)


def test_no_key_in_the_text():
    assert str(Chain([Encrypt(KEY)])) == "encrypt"
