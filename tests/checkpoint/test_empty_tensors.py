"""The container of a tensor, or a chunk, without elements: nothing of it is handed out, and damage to it is found."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Checksum, Encrypt, ZStandard
from streamxf.errors import StreamxfError
from tests.altered import flipped
from tests.samples import KEY

CHAINS = {"plain": [ZStandard()], "full": [ZStandard(), Checksum(), Encrypt(KEY)]}


def keys_of(name: str) -> streamxf.Key | None:
    return KEY if name == "full" else None


def by_checkpoint(folder: Path, name: str) -> None:
    with streamxf.Checkpoint(folder, keys=keys_of(name), framework="numpy") as checkpoint:
        assert checkpoint["empty"][:].shape == (0, 3)


def by_load(folder: Path, name: str) -> None:
    dcp.load(
        {"empty": torch.empty(0, 3)}, storage_reader=streamxf.FileSystemReader(folder, keys=keys_of(name)), no_dist=True
    )


def by_verify(folder: Path, name: str) -> None:
    report = streamxf.verify(folder, keys=keys_of(name))
    if not report.ok:
        raise StreamxfError(str(report))


def by_salvage(folder: Path, name: str) -> None:
    found = streamxf.load_intact(folder, keys=keys_of(name))
    if found.damaged:
        raise StreamxfError(str(found))


def by_transcode(folder: Path, name: str) -> None:
    streamxf.transcode(folder, folder.with_name("copy"), "lz4", keys=keys_of(name), overwrite=True)


READERS = (by_checkpoint, by_load, by_verify, by_salvage, by_transcode)


def save(folder: Path, name: str) -> Path:
    """A checkpoint of an empty tensor; gives its only data file, which is its container."""
    writer = streamxf.FileSystemWriter(folder, _extensions=CHAINS[name])
    dcp.save({"empty": torch.empty(0, 3)}, storage_writer=writer, no_dist=True)
    [file] = folder.glob("*.distcp")
    return file


def refuses(read: Callable[[Path, str], None], folder: Path, name: str) -> bool:
    try:
        read(folder, name)
    except (StreamxfError, dcp.api.CheckpointException):
        return True
    return False


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["some", "every"])
@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("read", READERS)
def test_a_flip_anywhere_is_found(tmp_path: Path, read: Callable[[Path, str], None], name: str, every: bool) -> None:
    """In the head of the only block, its payload, and the footer, whose magic ends the file."""
    folder = tmp_path / "checkpoint"
    file = save(folder, name)
    whole = file.read_bytes()
    read(folder, name)
    tail = range(len(whole) - 40, len(whole))
    some = {0, 8, 9, 10, 16, 60, *range(len(whole) - 80, len(whole) - 40, 5), *tail[::3]}
    for bit in range(8 * len(whole)) if every else [8 * at + at % 8 for at in some]:
        file.write_bytes(flipped(whole, bit // 8, 1 << bit % 8))
        assert refuses(read, folder, name), f"bit {bit} of {8 * len(whole)}"
