"""One flipped bit in a data file, and what the reader says about it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load

import streamxf
from streamxf.cli.timing import State
from streamxf.keys import Key

_BIT = 3


@dataclass(frozen=True)
class Damage:
    """What was flipped, and what came of it.

    Attributes
    ----------
    file, item : str
        Where the bit is.
    byte, bit : int
        Counted from the start of the file; from the lowest bit.
    error : StreamxfError or None
        None if the load went through, which it must not.
    """

    file: str
    item: str
    byte: int
    bit: int
    error: streamxf.StreamxfError | None

    @property
    def found(self) -> bool:
        """Whether the error names the file and the item that were damaged, and a block."""
        error = self.error
        if error is None or error.file is None:
            return False
        return (Path(error.file).name, error.item) == (self.file, self.item) and error.block is not None


def flip_one_bit(state: State, path: Path, key: Key) -> Damage:
    """Flip a bit in the middle of the largest item of the checkpoint at `path`, and load it."""
    metadata = streamxf.FileSystemReader(path, keys=key).read_metadata()
    index, place = max(metadata.storage_data.items(), key=lambda entry: entry[1].length)
    byte = place.offset + place.length // 2
    with (path / place.relative_path).open("r+b") as file:
        file.seek(byte)
        (value,) = file.read(1)
        file.seek(byte)
        file.write(bytes([value ^ 1 << _BIT]))
    return Damage(place.relative_path, index.fqn, byte, _BIT, _error_of_load(state, path, key))


def _error_of_load(state: State, path: Path, key: Key) -> streamxf.StreamxfError | None:
    target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    try:
        load(target, storage_reader=streamxf.FileSystemReader(path, keys=key))
    except CheckpointException as raised:  # DCP's collection of what went wrong on each rank
        errors = [error for error, _ in raised.failures.values() if isinstance(error, streamxf.StreamxfError)]
        if not errors:
            raise
        return errors[0]
    return None
