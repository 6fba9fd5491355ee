"""Writers that are copied, forked, shared by two saves, or still at work when the script ends."""

import copy
import os
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan

import streamxf
from streamxf import Encrypt
from streamxf.errors import AbortedError, KeyMissingError
from tests.cli import preloaded
from tests.forked import status_of_child

from .helpers import KEY, full_chain, index_of, load_with, refused, since

STATE = {"a": torch.arange(100.0), "b": torch.arange(100.0) + 1}

IN_THE_BACKGROUND = """
import sys, threading, time
import torch
import torch.distributed.checkpoint as dcp
import streamxf

class Slow(streamxf.FileSystemWriter):
    def write_data(self, plan, planner):
        while not threading._SHUTTING_DOWN:  # the script has ended then
            time.sleep(0.001)
        return super().write_data(plan, planner)

state = {"a": torch.arange(100.0), "b": torch.arange(100.0) + 1}
dcp.async_save(state, storage_writer=Slow(sys.argv[1], thread_count=2), no_dist=True)
"""


@since("2.9", "has no `no_dist` for saves in the background")
def test_files_are_written_by_threads_that_start_while_the_interpreter_exits(tmp_path: Path) -> None:
    assert preloaded.script(IN_THE_BACKGROUND, tmp_path / "c").returncode == 0
    loaded = load_with(STATE, streamxf.FileSystemReader(tmp_path / "c"))
    assert all(torch.equal(loaded[name], STATE[name]) for name in STATE)


def test_a_second_save_on_a_writer_that_is_at_work_is_refused(tmp_path: Path) -> None:
    writer = streamxf.FileSystemWriter(tmp_path)
    writer.set_up_storage_writer(True)
    planner: Any = dcp.DefaultSavePlanner()
    writer.write_data(SavePlan([]), planner)
    with pytest.raises(AbortedError, match="another save through this writer"):
        writer.write_data(SavePlan([]), planner)


def test_a_writer_that_has_saved_can_be_copied(tmp_path: Path) -> None:
    writer = streamxf.FileSystemWriter(tmp_path / "one", _extensions=full_chain())
    dcp.save(STATE, storage_writer=writer)
    again = copy.deepcopy(writer)
    dcp.save(STATE, checkpoint_id=tmp_path / "two", storage_writer=again)
    loaded = load_with(STATE, streamxf.FileSystemReader(tmp_path / "two", keys=KEY))
    assert torch.equal(loaded["a"], STATE["a"])


def test_an_attached_writer_works_in_a_forked_child(tmp_path: Path) -> None:
    writer = streamxf.attach(dcp.FileSystemWriter(tmp_path), [Encrypt(KEY)])

    def save() -> None:
        torch.set_num_threads(1)
        dcp.save(STATE, storage_writer=writer, no_dist=True)

    assert status_of_child(save) == 0
    loaded = load_with(STATE, streamxf.FileSystemReader(tmp_path, keys=KEY, require="bound"))
    assert torch.equal(loaded["a"], STATE["a"])


# -- through a pickle, as to a process that saves ------------------------------------------------------

WRITERS: dict[str, Callable[[Path], Any]] = {
    "own": lambda path: streamxf.FileSystemWriter(path, _extensions=full_chain()),
    "attached": lambda path: streamxf.attach(dcp.FileSystemWriter(path), full_chain()),
    "stock": lambda path: dcp.FileSystemWriter(path, _extensions=full_chain()),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_writer_that_went_to_a_child_saves(tmp_path: Path, writer: str) -> None:
    there = ForkingPickler.loads(ForkingPickler.dumps(WRITERS[writer](tmp_path)))
    dcp.save(STATE, storage_writer=there)
    loaded = load_with(STATE, streamxf.FileSystemReader(tmp_path, keys=KEY, require="encrypted"))
    assert torch.equal(loaded["a"], STATE["a"])


@pytest.mark.parametrize("writer", WRITERS)
def test_an_ordinary_pickle_leaves_the_key_behind(tmp_path: Path, writer: str) -> None:
    """The copy can be looked at, and says what is missing once it is to save."""
    pickled = pickle.dumps(WRITERS[writer](tmp_path))
    assert KEY.reveal() not in pickled
    there = pickle.loads(pickled)
    with refused(KeyMissingError, f"key {KEY.id} was left out when this Encrypt was pickled"):
        dcp.save(STATE, storage_writer=there)
    assert not (tmp_path / ".metadata").exists()


# -- which save it is ------------------------------------------------------------------------------------


class Told(DefaultSavePlanner):
    """Keeps what it is told of the storage."""

    meta: Any = None

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        super().set_up_planner(state_dict, storage_meta, is_coordinator)
        self.meta = storage_meta


def test_planners_are_told_the_save_that_is_published(tmp_path: Path) -> None:
    writer = streamxf.FileSystemWriter(tmp_path)
    ids = []
    for _ in range(3):
        planner = Told()
        dcp.save(STATE, storage_writer=writer, planner=planner)
        assert planner.meta.save_id == writer.save_id == index_of(tmp_path).save_id
        assert planner.meta.checkpoint_id == tmp_path
        ids.append(writer.save_id)
    assert len(set(ids)) == 3


def test_a_reader_tells_which_checkpoint_it_read(tmp_path: Path) -> None:
    """As torch's reader does, except that a checkpoint which was moved is where it is now."""
    writer = streamxf.FileSystemWriter(tmp_path / "before")
    dcp.save(STATE, storage_writer=writer)
    now = (tmp_path / "before").rename(tmp_path / "now")
    reader = streamxf.FileSystemReader(now)
    meta = reader.read_metadata().storage_meta
    assert meta is not None
    assert (meta.checkpoint_id, meta.save_id, meta.load_id) == (now, writer.save_id, reader.load_id)


def test_every_rank_has_an_id(tmp_path: Path) -> None:
    """As with torch's writers, where nobody but the coordinator publishes its own."""
    found = []
    for rank in range(2):
        writer: Any = streamxf.FileSystemWriter(tmp_path)
        before = writer.storage_meta().save_id
        writer.set_up_storage_writer(rank == 0, rank=rank, use_collectives=True)
        assert writer.storage_meta().save_id == before
        found += [before, pickle.loads(pickle.dumps(writer)).storage_meta().save_id]
    assert len(set(found)) == 4
    assert all(len(save_id) == 32 for save_id in found)


def test_turning_to_another_checkpoint_draws_another_id(tmp_path: Path) -> None:
    """Planners that were told of a save that never was must not take the next one for it."""
    writer = streamxf.FileSystemWriter(tmp_path / "one")
    before = writer.storage_meta().save_id
    writer.reset(tmp_path / "two")
    assert writer.storage_meta().save_id != before


def test_a_forked_child_has_an_id_of_its_own(tmp_path: Path) -> None:
    writer = streamxf.FileSystemWriter(tmp_path)
    before = writer.storage_meta().save_id
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(there, str(writer.storage_meta().save_id).encode())
        finally:
            os._exit(0)
    os.close(there)
    os.waitpid(child, 0)
    told = os.read(here, 100).decode()
    os.close(here)
    assert len(told) == 32
    assert told != writer.storage_meta().save_id == before
