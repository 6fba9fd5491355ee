"""A wrapped data key that is damaged or altered is never called intact, with keys or without."""

from pathlib import Path

import pytest
import torch

import streamxf
from streamxf.errors import KeyMissingError, StreamxfError, WrongKeyError
from streamxf.format.sections import pack_keys
from tests.dcp.helpers import KEY, OTHER_KEY, rewritten, save, sections_of


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save({"w": torch.zeros(5), "o": "text"}, tmp_path)
    return tmp_path


def test_a_wrapped_key_that_was_altered_under_a_digest_that_matches(checkpoint: Path) -> None:
    file = checkpoint / ".metadata"
    _, sections = sections_of(checkpoint)
    lines = sections.key_lines()
    assert lines is not None
    raised = set()
    for at in range(lines[0].index("&w="), len(lines[0])):
        other = "0" if lines[0][at] != "0" else "1"
        wrapped = lines[0][:at] + other + lines[0][at + 1 :]
        file.write_bytes(rewritten(sections, keys=pack_keys(wrapped, lines[1])))
        try:
            assert not streamxf.verify(checkpoint, keys=KEY).ok, at
        except StreamxfError as error:
            raised.add(type(error))
    assert raised == {WrongKeyError, KeyMissingError}


def test_a_key_that_was_wrapped_again(checkpoint: Path) -> None:
    streamxf.rekey(checkpoint, keys=KEY, recipients=OTHER_KEY)
    assert streamxf.verify(checkpoint).ok
    assert streamxf.verify(checkpoint, keys=OTHER_KEY).ok
    streamxf.add_recipient(checkpoint, keys=OTHER_KEY, recipients=KEY)
    assert streamxf.verify(checkpoint).ok
