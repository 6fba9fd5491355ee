"""Every single-bit flip, every truncation and 200 appends, of every file of a small checkpoint: none may load.

A whole `dcp.load` costs milliseconds, so the tens of thousands of cases drive the reader through the same steps
without the planner's work. A sample goes through `dcp.load` and must end in the same error.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Checksum, StreamxfError, ZStandard

from .helpers import KEY, data_files, error_of, full_chain, save

SHAPE = (4, 3)
NAMES = {"obj", "w"}
APPENDS = [1, 2, 3, 8, 16, 1000, 4096]

Loader = Callable[[], None]


class Small:
    """A checkpoint of one small tensor and one small object, and a quick way to load it."""

    def __init__(self, folder: Path, *, keyed: bool, stock: bool = False) -> None:
        self.folder = folder
        self.keys = KEY if keyed else None
        state = {"w": torch.arange(12.0).reshape(SHAPE), "obj": "a small object"}
        if stock:
            dcp.save(state, storage_writer=dcp.FileSystemWriter(folder, _extensions=[ZStandard()], sync_files=False))
        else:
            save(state, folder, full_chain() if keyed else [ZStandard(), Checksum()])
        (self.data_file,) = data_files(folder)
        self.metadata_file = folder / ".metadata"
        planner, reader = self._planner()
        self._plan = reader.prepare_global_plan([reader.prepare_local_plan(planner.create_local_plan())])[0]
        assert {item.storage_index.fqn for item in self._plan.items} == NAMES
        self._kept = (planner, reader)

    def _planner(self) -> tuple[Any, Any]:
        reader = streamxf.FileSystemReader(self.folder, keys=self.keys)
        metadata = reader.read_metadata()
        planner = dcp.DefaultLoadPlanner()
        planner.set_up_planner({"w": torch.zeros(SHAPE), "obj": None}, metadata, True)
        reader.set_up_storage_reader(metadata, True)
        return planner, reader

    def load_data(self) -> None:
        """Read the data once more, with metadata that was read before."""
        planner, reader = self._kept
        reader.read_data(self._plan, planner).wait()

    def load_metadata(self) -> None:
        """Read the metadata, then the data that it names."""
        planner, reader = self._planner()
        plan = reader.prepare_local_plan(planner.create_local_plan())
        reader.read_data(plan, planner).wait()

    def load_whole(self) -> None:
        target = {"w": torch.zeros(SHAPE), "obj": None}
        dcp.load(target, storage_reader=streamxf.FileSystemReader(self.folder, keys=self.keys))


@pytest.fixture(params=[True, False], ids=["full-chain", "unkeyed"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Small:
    return Small(tmp_path / "checkpoint", keyed=request.param)


def flips(whole: bytes) -> Iterator[bytes]:
    changed = bytearray(whole)
    for position in range(len(whole)):
        for bit in range(8):
            changed[position] ^= 1 << bit
            yield bytes(changed)
            changed[position] ^= 1 << bit


def truncations(whole: bytes) -> Iterator[bytes]:
    return (whole[:size] for size in range(len(whole)))


def appends(whole: bytes) -> Iterator[bytes]:
    """200 continuations: zeros, noise, and what an honest file ends or begins with."""
    noise = random.Random(11)
    tails = [bytes(size) for size in APPENDS]
    tails += [whole[-size:] for size in APPENDS]
    tails += [whole[:size] for size in APPENDS]
    while len(tails) < 200:
        tails.append(noise.randbytes(noise.choice(APPENDS)))
    return (whole + tail for tail in tails)


def try_all(file: Path, damaged: Iterator[bytes], load: Loader, whole_load: Loader) -> tuple[Counter[str], list[Any]]:
    """Load each damaged version; every 500th also by `dcp.load`, which must say the same."""
    outcomes: Counter[str] = Counter()
    errors: list[Any] = []
    for number, content in enumerate(damaged):
        file.write_bytes(content)
        error = error_of(load)
        outcomes["silent" if error is None else "typed" if isinstance(error, StreamxfError) else "untyped"] += 1
        errors.append(error)
        if number % 500 == 0:
            whole = error_of(whole_load)
            assert type(whole) is type(error)
            assert str(whole) == str(error)
    return outcomes, errors


@pytest.mark.parametrize("damage", [flips, truncations, appends])
def test_damaged_data_never_loads(small: Small, damage: Callable[[bytes], Iterator[bytes]]) -> None:
    whole = small.data_file.read_bytes()
    cases = list(damage(whole))
    outcomes, errors = try_all(small.data_file, iter(cases), small.load_data, small.load_whole)
    assert outcomes == Counter(typed=len(cases))
    assert {error.file for error in errors} == {str(small.data_file)}
    named = {error.item for error in errors}
    if damage is flips:  # each item is hit, and named; a file of the wrong size is refused before any item
        assert named == NAMES
    small.data_file.write_bytes(whole)
    small.load_data()


@pytest.mark.parametrize("damage", [flips, truncations, appends])
def test_damaged_metadata_never_loads(small: Small, damage: Callable[[bytes], Iterator[bytes]]) -> None:
    whole = small.metadata_file.read_bytes()
    cases = list(damage(whole))
    outcomes, errors = try_all(small.metadata_file, iter(cases), small.load_metadata, small.load_whole)
    assert outcomes == Counter(typed=len(cases)), {type(error) for error in errors}
    # an unkeyed file that is cut exactly where the pickle ends looks like torch's own; the first item, which says that
    # it was published, gives it away
    elsewhere = [error for error in errors if error.file != str(small.metadata_file)]
    assert len(elsewhere) == (1 if damage is truncations and small.keys is None else 0)
    assert all("trailer was removed" in str(error) for error in elsewhere)
    small.metadata_file.write_bytes(whole)
    small.load_metadata()


@pytest.mark.parametrize("damage", [flips, truncations])
def test_damaged_data_of_torchs_writer_never_loads(tmp_path: Path, damage: Callable[[bytes], Iterator[bytes]]) -> None:
    """No key, no manifest, no checksum codec: the container's own CRCs are all there is."""
    small = Small(tmp_path / "checkpoint", keyed=False, stock=True)
    cases = list(damage(small.data_file.read_bytes()))
    outcomes, _ = try_all(small.data_file, iter(cases), small.load_data, small.load_whole)
    assert outcomes == Counter(typed=len(cases))


def test_flips_name_the_item_that_they_hit(tmp_path: Path) -> None:
    small = Small(tmp_path / "checkpoint", keyed=True)
    _, reader = small._kept
    whole = bytearray(small.data_file.read_bytes())
    for index, place in reader.storage_data.items():
        for position in range(place.offset, place.offset + place.length, 7):
            whole[position] ^= 16
            small.data_file.write_bytes(whole)
            whole[position] ^= 16
            error = error_of(small.load_data)
            assert isinstance(error, StreamxfError)
            assert error.item == index.fqn
