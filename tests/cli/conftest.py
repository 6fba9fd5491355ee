"""What the tests of commands have in common."""

from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import save

import streamxf
from streamxf.keys import Key
from streamxf.keys.file import write_key
from tests.altered import flip

STATE = {
    "layer.weight": torch.arange(6000, dtype=torch.float32).reshape(60, 100),
    "layer.bias": torch.linspace(-1, 1, 100).to(torch.bfloat16),
    "step": 7,
}


@pytest.fixture
def key_file(tmp_path: Path, key: Key) -> Path:
    """A file with a key."""
    path = tmp_path / "test.key"
    write_key(path, key)
    return path


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A checkpoint without encryption."""
    path = tmp_path / "plain"
    save(dict(STATE), storage_writer=streamxf.FileSystemWriter(path))
    return path


@pytest.fixture
def encrypted(tmp_path: Path, key: Key) -> Path:
    """A checkpoint that `key` opens."""
    path = tmp_path / "encrypted"
    chain = [streamxf.ZStandard(), streamxf.Checksum(), streamxf.Encrypt(key)]
    save(dict(STATE), storage_writer=streamxf.FileSystemWriter(path, _extensions=chain))
    return path


def flip_bit(path: Path, position: int = -2000) -> None:
    """Flip a bit of a checkpoint's largest data file."""
    flip(*path.glob("*.distcp"), position)
