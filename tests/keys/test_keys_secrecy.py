"""Key material is in nothing that could be printed, logged, stored or sent."""

from __future__ import annotations

import base64
import copy
import dataclasses
import io
import logging
import pickle
import traceback

import pytest
from samples import encode

import streamxf
from streamxf import Chain, Encrypt, Key, KeyRing
from streamxf.errors import StreamxfError

SECRET = bytes.fromhex("c3a1f0e2d4b59687788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1")


def spellings(secret: bytes) -> list[bytes]:
    """The ways in which 32 bytes turn up in text."""
    found = [secret, secret.hex().encode(), secret.hex().upper().encode(), repr(secret).encode()[2:-1]]
    for encoder in (base64.b64encode, base64.urlsafe_b64encode, base64.b32encode, base64.b85encode, base64.a85encode):
        found.append(encoder(secret).rstrip(b"="))
    return [*found, str(list(secret)).encode(), str(int.from_bytes(secret, "big")).encode()]


def leaks(text: str | bytes, *secrets: bytes) -> bool:
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return any(spelling in data for secret in secrets for spelling in spellings(secret))


@pytest.fixture
def key() -> Key:
    return Key(SECRET)


def test_the_search_finds_what_it_looks_for():
    assert all(leaks(spelling, SECRET) for spelling in spellings(SECRET))
    assert leaks(repr({"key": SECRET}), SECRET)


def test_texts(key):
    codec = Encrypt(key)
    secrets = (SECRET, key.wrapping_key(), codec.data_key.secret)
    state = codec.start(streamxf.StreamInfo(1 << 16, bytes(32), bytes(32)))
    for thing in (key, KeyRing([key]), codec, Chain([codec]), codec.data_key, state, codec.__dict__):
        for text in (repr(thing), str(thing), f"{thing}", f"{[thing]!r}", logging.Formatter().format(record(thing))):
            assert not leaks(text, *secrets)
    for thing in (codec, Chain([codec])):
        assert not leaks(repr(dataclasses.asdict(thing)), *secrets)


def record(thing: object) -> logging.LogRecord:
    return logging.LogRecord("test", logging.INFO, __file__, 1, "%r %s", (thing, thing), None)


def test_descriptors_and_files(key):
    codec = Encrypt(key)
    assert not leaks(str(codec.descriptor()), SECRET, key.wrapping_key(), codec.data_key.secret)
    assert not leaks(codec.get_descriptor(), SECRET)
    assert not leaks(str(Chain([codec])), SECRET)
    assert not leaks(encode(b"data", [codec]), SECRET, key.wrapping_key())


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles(key, protocol):
    codec = Encrypt(key)
    secrets = (SECRET, key.wrapping_key(), codec.data_key.secret)
    for thing in (codec, Chain([codec]), {"codecs": [codec]}):
        assert not leaks(pickle.dumps(thing, protocol), *secrets)
    for thing in (key, [key], KeyRing([key]), codec.data_key):
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(thing, protocol)


def test_copies_stay_in_the_process_and_work(key):
    codec = Encrypt(key)
    for again in (copy.copy(codec), copy.deepcopy(codec), copy.deepcopy([codec])[0], dataclasses.replace(codec)):
        assert streamxf.decode(streamxf.encode(b"data", [again]), keys=key) == b"data"
    assert copy.deepcopy(key) is copy.copy(key) is key


def test_exceptions(key):
    file = encode(b"data", [Encrypt(key)])
    other = Key.generate()
    damaged = file[:-60] + bytes([file[-60] ^ 1]) + file[-59:]
    attempts = [
        lambda: Encrypt(SECRET + b"x"),
        lambda: Key(SECRET.hex()),
        lambda: KeyRing.of([SECRET[:31]]),
        lambda: streamxf.decode(file),
        lambda: streamxf.decode(file, keys=other),
        lambda: streamxf.decode(damaged, keys=key),
        lambda: streamxf.open(io.BytesIO(), "wb", chain="encrypt", keys=[key, other]),
        lambda: streamxf.open(io.BytesIO(), "wb", chain=[Encrypt(key), streamxf.ZStandard()]),
        lambda: pickle.dumps(key),
    ]
    for attempt in attempts:
        with pytest.raises((StreamxfError, TypeError)) as caught:
            attempt()
        text = "".join(traceback.format_exception(caught.value))
        assert not leaks(text, SECRET, SECRET[:31], other.reveal())


def test_a_key_does_not_change(key):
    with pytest.raises(AttributeError):
        key.id = "0" * 16
    with pytest.raises(AttributeError):
        key._material = bytes(32)
    assert not hasattr(key, "__dict__")
