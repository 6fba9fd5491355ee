"""A wrapped data key that is damaged: with keys it is never called whole, without them as far as copies of it tell."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from dcp.helpers import KEY, OTHER_KEY, manifest_of, save

import streamxf
from streamxf.errors import KeyMissingError, StreamxfError, WrongKeyError


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save({"w": torch.zeros(5), "o": "text"}, tmp_path)
    return tmp_path


def test_flipped_bits(checkpoint: Path) -> None:
    file = checkpoint / ".metadata"
    whole = file.read_bytes()
    described = str(manifest_of(checkpoint).key)
    places = [at for at in range(len(whole)) if whole.startswith(described.encode(), at)]
    assert len(places) == 2, "the items' and the manifest's"
    begin = described.index("&w=")
    raised = set()
    for place in places:
        for at in range(place + begin, place + len(described)):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            assert not streamxf.verify(checkpoint).ok, at
            try:
                assert not streamxf.verify(checkpoint, KEY).ok, at
            except StreamxfError as error:
                raised.add(type(error))
    assert raised == {WrongKeyError, KeyMissingError}


def test_a_key_that_was_wrapped_anew(checkpoint: Path) -> None:
    """All copies of it change."""
    streamxf.rekey(checkpoint, KEY, OTHER_KEY)
    assert streamxf.verify(checkpoint).ok
    assert streamxf.verify(checkpoint, OTHER_KEY).ok
    streamxf.add_recipient(checkpoint, OTHER_KEY, KEY)
    assert streamxf.verify(checkpoint).ok
