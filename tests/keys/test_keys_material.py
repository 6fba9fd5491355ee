"""What is no random key is refused as one: text, a location, all bytes alike, items that are no bytes."""

import array
import os

import numpy
import pytest

from streamxf import Encrypt, Key, PrivateKey, SigningKey
from streamxf.errors import KeyFileError, ParameterError
from streamxf.keys import read_key

KINDS = [Key, PrivateKey, SigningKey, lambda data: Encrypt(data)]


@pytest.mark.parametrize("make", KINDS, ids=["Key", "PrivateKey", "SigningKey", "Encrypt"])
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(os.urandom(16).hex().encode(), id="hex"),
        pytest.param(os.urandom(16).hex().upper().encode(), id="upper-case hex"),
        b"file:/run/secrets/checkpoint/key",
        b"env:KEY_" + b"~" * 24,
        b"correct horse battery staple 123",
        b"aB3/+_-=.: aB3/+_-=.: aB3/+_-=.:",
    ],
)
def test_text_is_no_key(make, data):
    assert len(data) == 32
    with pytest.raises(ParameterError, match="these are text") as caught:
        make(data)
    assert data.decode() not in str(caught.value)


@pytest.mark.parametrize("make", KINDS, ids=["Key", "PrivateKey", "SigningKey", "Encrypt"])
def test_bytes_that_are_all_alike_are_no_key(make):
    for number in (0, 1, 0x6B, 0xFF):
        with pytest.raises(ParameterError, match="all the same"):
            make(bytes([number] * 32))


def test_items_larger_than_a_byte_are_no_key():
    for data in (numpy.arange(4.0), numpy.arange(8, dtype="<i4"), array.array("d", [1.0, 2.0, 3.0, 4.0])):
        with pytest.raises(ParameterError, match="items of another kind"):
            Key(data)
    whole = bytes(range(32))
    for buffer in (bytearray(whole), memoryview(whole).cast("c"), memoryview(whole).cast("b"), array.array("B", whole)):
        assert Key(buffer) == Key(whole)


def test_keys_that_only_look_a_little_like_text_are_keys():
    for data in (bytes(range(32)), bytes(range(32, 64)), b"\0" + b"a" * 31, b"File:" + b"~" * 27, b"a" * 31 + b"!"):
        assert Key(data).reveal() == data


def test_files_with_such_keys(tmp_path):
    path = tmp_path / "key"
    path.write_text("6b" * 32)
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match="all the same"):
        read_key(path)


@pytest.mark.parametrize("kind", [Key, PrivateKey, SigningKey])
def test_what_is_drawn_is_drawn_again_if_it_looks_like_that(kind, monkeypatch):
    drawn = [bytes(32), b"a" * 31 + b"b", bytes(range(32))]
    monkeypatch.setattr("os.urandom", lambda size: drawn.pop(0))
    assert kind.generate().reveal() == bytes(range(32))
