"""The text form of chains, both ways, and every way in which it can be wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from samples import KEY, chains

from streamxf import LZ4, Chain, Checksum, Encrypt, Key, ZStandard
from streamxf.errors import ChainError, ParameterError, UnknownCodecError


@given(codecs=chains())
def test_round_trip(codecs):
    assert Chain.parse(str(Chain(codecs)), keys=KEY) == Chain(codecs)


@given(codecs=chains())
def test_descriptors_round_trip(codecs):
    chain = Chain(codecs)
    again = Chain.from_descriptors([str(item) for item in chain.descriptors], keys=KEY)
    assert again.descriptors == chain.descriptors
    assert [type(codec) for codec in again] == [type(codec) for codec in chain]


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
        Chain.parse("encrypt", keys)


def test_no_key_in_the_text():
    assert str(Chain([Encrypt(KEY)])) == "encrypt"
