"""Wrong, missing and rotated keys, and wrapped keys that were altered, through every way to read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Key
from streamxf.errors import DescriptorError, KeyMissingError, WrongKeyError
from streamxf.keys import KeyRing
from tests.dcp.helpers import full_chain, load_with, save
from tests.forge import prefix_of, take_apart
from tests.samples import OneWay, encode

from .rows import Row
from .targets import content, small_state

ROW = "wrong, missing, rotated keys"

TEXT = b"some text"
FIRST = [bytes(range(number, number + 32)) for number in range(10)]

Load = Callable[[Any], Any]


def own(folder: Path, key: Key) -> Load:
    save(small_state(), folder, full_chain(key))
    return lambda keys: content(load_with(small_state(), streamxf.FileSystemReader(folder, keys=keys)))


def fsspec(folder: Path, key: Key) -> Load:
    save(small_state(), folder, full_chain(key))
    return lambda keys: content(load_with(small_state(), streamxf.FsspecReader(str(folder), keys=keys)))


def attached(folder: Path, key: Key) -> Load:
    dcp.save(small_state(), storage_writer=streamxf.attach(dcp.FileSystemWriter(folder), full_chain(key)))
    return lambda keys: content(load_with(small_state(), streamxf.attach(dcp.FileSystemReader(folder), keys=keys)))


def stock(folder: Path, key: Key) -> Load:
    dcp.save(small_state(), storage_writer=dcp.FileSystemWriter(folder, _extensions=full_chain(key)))

    def load(keys: Any) -> Any:
        registry = streamxf.Registry(keys=keys)
        return content(load_with(small_state(), dcp.FileSystemReader(folder, _extension_registry=registry)))

    return load


def file(_: Path, key: Key) -> Load:
    data = encode(TEXT, full_chain(key))
    return lambda keys: streamxf.decode(data, keys=keys)


def pipe(_: Path, key: Key) -> Load:
    data = encode(TEXT, full_chain(key))

    def load(keys: Any) -> bytes:
        with streamxf.open(OneWay(data), "rb", keys=keys) as opened:
            return opened.read()

    return load


WAYS = {way.__name__: way for way in (own, fsspec, attached, stock, file, pipe)}
EVERY = pytest.mark.parametrize("way", WAYS)


def right(way: str) -> Any:
    return TEXT if way in ("file", "pipe") else content(small_state())


@EVERY
def test_wrong_keys(row: Row, tmp_path: Path, way: str) -> None:
    """100, of which each differs from the right one in a bit, or is drawn at random."""
    key = Key(FIRST[3])
    load = WAYS[way](tmp_path / "checkpoint", key)
    for number in range(100):
        other = (
            (int.from_bytes(key.reveal(), "big") ^ 1 << number * 5).to_bytes(32, "big")
            if number < 50
            else Key.generate().reveal()
        )
        error = row.refuse(number, load, other, kind=KeyMissingError)
        assert key.id in str(error)
    assert load(key) == right(way)


@EVERY
def test_missing_keys(row: Row, tmp_path: Path, way: str) -> None:
    """No key at all, in 10 spellings and checkpoints."""
    for number, material in enumerate(FIRST):
        load = WAYS[way](tmp_path / str(number), Key(material))
        error = row.refuse(number, load, (None, KeyRing())[number % 2])
        assert isinstance(error, KeyMissingError)
        assert Key(material).id in str(error)


@EVERY
def test_rotated_keys(row: Row, tmp_path: Path, way: str) -> None:
    """Ten keys, one after the other: what was saved under one is read with it in a ring, and with no other."""
    keys = [Key(material) for material in FIRST]
    for number, key in enumerate(keys):
        load = WAYS[way](tmp_path / str(number), key)
        others = [other for other in keys if other != key]
        row.refuse(number, load, others, kind=KeyMissingError)
        row.refuse(number, load, keys[number + 1 :] or None, kind=KeyMissingError)
        assert row.refuse_or_equal(number, right(way), load, keys) is None


def test_wrapped_keys_altered_in_every_byte(row: Row) -> None:
    key = Key(FIRST[0])
    whole = encode(TEXT, full_chain(key))
    fragment = take_apart(whole).prefix[16:-4]
    rest = whole[len(take_apart(whole).prefix) :]
    for place in range(len(fragment)):
        for letter in b"A0_:&=~":
            if letter == fragment[place]:
                continue
            altered = fragment[:place] + bytes([letter]) + fragment[place + 1 :]
            data = prefix_of(altered) + rest
            kinds = (DescriptorError, WrongKeyError, KeyMissingError)
            row.refuse(place, streamxf.decode, data, keys=key, kind=kinds)


def test_another_streams_wrapped_keys(row: Row) -> None:
    """Wrapped for the same key, so they open; the data was not sealed under them."""
    key = Key(FIRST[0])
    made = [take_apart(encode(TEXT, full_chain(key))) for _ in range(4)]
    for one in made:
        for other in made:
            if one is not other:
                data = one.change(prefix=other.prefix).pack()
                row.refuse("prefix", streamxf.decode, data, keys=key)
