"""`expect_save_id` and `save_id`: T3 of the threat model, a whole older checkpoint put in the place of a newer one."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Checksum
from streamxf.errors import IdentityError, ParameterError, PolicyError

from .helpers import KEY, assert_same, full_chain, load_with, refused

READERS: dict[str, Callable[..., Any]] = {
    "own": streamxf.FileSystemReader,
    "fsspec": lambda path, **options: streamxf.FsspecReader(str(path), **options),
}


@pytest.fixture(params=READERS)
def reader_of(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return READERS[request.param]


def save(path: Path, value: float, **options: Any) -> str:
    """Save, and keep what names the save."""
    writer = streamxf.FileSystemWriter(path, _extensions=full_chain(), sync_files=False)
    dcp.save({"w": torch.full((5,), value)}, storage_writer=writer, **options)
    assert writer.save_id is not None
    return writer.save_id


def test_a_replayed_checkpoint_is_noticed(tmp_path: Path, reader_of: Callable[..., Any]) -> None:
    state = {"w": torch.zeros(5)}
    old = save(tmp_path / "checkpoint", 1.0)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "kept by somebody")
    new = save(tmp_path / "checkpoint", 2.0)
    reader = reader_of(tmp_path / "checkpoint", keys=KEY, expect_save_id=new)
    assert_same(load_with(state, reader), {"w": torch.full((5,), 2.0)})
    assert reader.save_id == new
    shutil.rmtree(tmp_path / "checkpoint")
    shutil.copytree(tmp_path / "kept by somebody", tmp_path / "checkpoint")
    with refused(IdentityError, f"this is the save {old}", f"{new} was expected", ".metadata"):
        load_with(state, reader)
    assert reader.save_id is None
    unaware = reader_of(tmp_path / "checkpoint", keys=KEY)
    assert unaware.save_id is None
    assert_same(load_with(state, unaware), {"w": torch.full((5,), 1.0)})
    assert unaware.save_id == old


def test_a_checkpoint_without_an_index_is_no_save_at_all(checkpoint: Path, reader_of: Callable[..., Any]) -> None:
    state = {"w": torch.zeros(5)}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(checkpoint, sync_files=False))
    with refused(PolicyError, "has no index", "leave expect_save_id out"):
        load_with(state, reader_of(checkpoint, expect_save_id="0" * 32))
    reader = reader_of(checkpoint)
    assert_same(load_with(state, reader), state)
    assert reader.save_id is None


def test_without_a_key(checkpoint: Path, reader_of: Callable[..., Any]) -> None:
    writer = streamxf.FileSystemWriter(checkpoint, _extensions=[Checksum()], sync_files=False)
    dcp.save({"w": torch.ones(5)}, storage_writer=writer)
    assert_same(
        load_with({"w": torch.zeros(5)}, reader_of(checkpoint, expect_save_id=writer.save_id)), {"w": torch.ones(5)}
    )
    with refused(IdentityError, writer.save_id):
        load_with({"w": torch.zeros(5)}, reader_of(checkpoint, expect_save_id="0" * 32))


def test_rank_local_metadata(checkpoint: Path, reader_of: Callable[..., Any]) -> None:
    """Each rank has a save of its own."""
    state = {"w": torch.zeros(5)}
    found = save(checkpoint, 3.0, use_collectives=False)
    assert (checkpoint / "__0.metadata").exists()
    reader = reader_of(checkpoint, keys=KEY, expect_save_id=found)
    assert_same(load_with(state, reader), {"w": torch.full((5,), 3.0)})
    assert reader.save_id == found
    all_ranks = reader_of(checkpoint, keys=KEY, expect_save_id=["1" * 32, found])
    assert_same(load_with(state, all_ranks), {"w": torch.full((5,), 3.0)})
    for given in ("1" * 32, ["1" * 32, "2" * 32]):
        with refused(IdentityError, found):
            load_with(state, reader_of(checkpoint, keys=KEY, expect_save_id=given))


def test_every_rank_looks_for_itself(checkpoint: Path, reader_of: Callable[..., Any]) -> None:
    """What a rank finds is refused before any plan is made, whatever the coordinator found."""
    save(checkpoint, 1.0)
    reader = reader_of(checkpoint, keys=KEY, expect_save_id="0" * 32)
    metadata = reader.read_metadata()
    with refused(IdentityError, "0" * 32 + " was expected"):
        reader.set_up_storage_reader(metadata, False)
    other = reader_of(checkpoint, keys=KEY)
    with refused(IdentityError, "0" * 32 + " was expected"):
        reader.set_up_storage_reader(other.read_metadata(), False)


@pytest.mark.parametrize(
    "given", ["", "0" * 31, "0" * 33, "G" * 32, "A" * 32, 5, b"0" * 32, "0" * 32 + "\n", ["0" * 32, "0" * 31]]
)
def test_what_is_no_id(checkpoint: Path, reader_of: Callable[..., Any], given: Any) -> None:
    with refused(ParameterError, "32 lower-case hexadecimal digits"):
        reader_of(checkpoint, expect_save_id=given)
