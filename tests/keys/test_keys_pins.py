"""Locations that pin a key's id, and opened codecs that differ by their data keys."""

from __future__ import annotations

import pytest

from streamxf import Encrypt, Key, KeyRing, PrivateKey
from streamxf.errors import KeyFileError
from streamxf.keys import write_key

KEY = Key(bytes(range(32)))


def test_a_location_may_pin_the_id(tmp_path):
    public, other = PrivateKey.generate().public, PrivateKey.generate().public
    write_key(tmp_path / "team.pub", public)
    assert tuple(KeyRing(f"file:{tmp_path}/team.pub#{public.id}")) == (public,)
    with pytest.raises(KeyFileError, match=f"holds the key {public.id}, and the location requires {other.id}"):
        KeyRing(f"file:{tmp_path}/team.pub#{other.id}")


def test_codecs_that_were_made_to_read_differ_by_their_data_keys():
    first, second = (Encrypt(KEY).data_key for _ in range(2))
    assert Encrypt.reading(first) == Encrypt.reading(first)
    assert Encrypt.reading(first) != Encrypt.reading(second)
