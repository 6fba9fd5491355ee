"""A load opens the files that hold what is wanted, and a constant number of others, however many there are."""

import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf.chain import Chain
from streamxf.dcp import loader
from tests.altered import flipped

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")

_counting: list[Counter[str]] = []


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if _counting and event in ("open", "os.scandir", "os.listdir"):
        _counting[-1]["os.open" if event == "open" and arguments[1] is None else event] += 1


sys.addaudithook(_heard)  # which cannot be taken back


def calls_of_load(folder: Path, files: int, wanted: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Of a load of some items, from a checkpoint that has each in a file of its own."""
    state = {f"weight {number:04}": torch.full((300,), number) for number in range(files)}
    writer = streamxf.FileSystemWriter(folder, single_file_per_rank=False, sync_files=False)
    dcp.save(state, storage_writer=writer, no_dist=True)
    assert len([*folder.glob("*.distcp")]) == files
    target = {name: torch.zeros(300, dtype=torch.int64) for name in [*state][:wanted]}
    found = Counter[str]()
    with monkeypatch.context() as patch:
        for name in ("stat", "lstat", "fstat"):
            patch.setattr(os, name, _counted(getattr(os, name), found))
        _counting.append(found)
        try:
            dcp.load(target, storage_reader=streamxf.FileSystemReader(folder), no_dist=True)
        finally:
            _counting.pop()
    assert all(torch.equal(target[name], state[name]) for name in target)
    return found


def _counted(call: Any, found: Counter[str]) -> Any:
    def counted(*arguments: Any, **options: Any) -> Any:
        found["stat"] += 1
        return call(*arguments, **options)

    return counted


def test_files_that_hold_nothing_that_is_wanted_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls_of_load(tmp_path / "first", 8, 4, monkeypatch)  # which imports what a load needs
    few, many, more = (
        calls_of_load(tmp_path / f"{files} {wanted}", files, wanted, monkeypatch)
        for files, wanted in ((8, 4), (200, 4), (200, 14))
    )
    assert many == few
    assert many["os.open"] > 4
    assert all(more[name] == many[name] + 10 for name in ("os.open", "open"))  # one calls the other
    assert more["stat"] <= many["stat"] + 20  # of open files


SIZE = 2**16  # bytes of a block


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Has workers be given so many blocks together, however little there is to load."""
    for name, value in {"_BATCH": SIZE, "_WHOLE": SIZE, "_TURNS": 1, "INLINE_BYTES": 0}.items():
        monkeypatch.setattr(loader, name, value)
    monkeypatch.setattr(loader, "worker_count", lambda: 1)
    return lambda together: monkeypatch.setattr(loader, "_TOGETHER", together)


def save_blocks(folder: Path, chain: str, count: int) -> tuple[torch.Tensor, Any]:
    """A tensor of so many blocks, of which the last is a little shorter, and the keys to load it."""
    keys = streamxf.Key.generate() if "encrypt" in chain else None
    tensor = torch.randn(count * SIZE // 4 - 5)
    extensions = [*Chain.parse(chain, keys=keys)]
    writer = streamxf.FileSystemWriter(folder, _extensions=extensions, block_size=SIZE, sync_files=False)
    dcp.save({"w": tensor}, storage_writer=writer, no_dist=True)
    return tensor, keys


@pytest.mark.parametrize("chain", ["floatzip+checksum+encrypt", "zstd", ""])
@pytest.mark.parametrize("together", [1, 2, 4, 7])
def test_neighbours_are_read_at_once(
    tmp_path: Path, chain: str, together: int, runs: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that are wanted and follow each other; as many as fit into what the loader lets a worker hold."""
    runs(together)
    tensor, keys = save_blocks(tmp_path / "c", chain, 26)
    reads = list[int]()
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, out, at: reads.append(len(out[0])) or preadv(file, out, at))
    for target in (torch.zeros_like(tensor), torch.zeros(2 * len(tensor))[::2]):
        reads.clear()
        dcp.load({"w": target}, storage_reader=streamxf.FileSystemReader(tmp_path / "c", keys=keys), no_dist=True)
        assert torch.equal(target, tensor)
        if chain:
            assert sum(length > SIZE // 2 for length in reads) == -(-26 // together)


@pytest.mark.parametrize("chain", ["floatzip+checksum+encrypt", "floatzip+checksum", "zstd+encrypt"])
@pytest.mark.parametrize("together", [1, 3, 4])
def test_damage_among_neighbours_is_found_in_its_block(
    tmp_path: Path, chain: str, together: int, runs: Callable[[int], None]
) -> None:
    runs(together)
    tensor, keys = save_blocks(tmp_path / "c", chain, 9)
    (file,) = (tmp_path / "c").glob("*.distcp")
    whole = file.read_bytes()
    step = len(whole) / 9  # nearly the stored size of each block: its middle is a block's middle
    for block in range(9):
        file.write_bytes(flipped(whole, int((block + 0.5) * step), 4))
        for target in (torch.zeros_like(tensor), torch.zeros(2 * len(tensor))[::2]):
            with pytest.raises(CheckpointException) as caught:
                dcp.load({"w": target}, storage_reader=streamxf.FileSystemReader(file.parent, keys=keys), no_dist=True)
            assert f"item w, block {block}]" in str(caught.value)
    file.write_bytes(whole)
    target = torch.zeros_like(tensor)
    dcp.load({"w": target}, storage_reader=streamxf.FileSystemReader(file.parent, keys=keys), no_dist=True)
    assert torch.equal(target, tensor)
