"""A save that cannot fit on its file system says so before it writes; one that may fit is never refused."""

import errno
import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

import streamxf
from streamxf.checkpoint.saving import Save
from streamxf.dcp.plans import RoomNote, check_room, note_room, share_room
from streamxf.dcp.writer import extensions_of
from streamxf.errors import NoSpaceError
from streamxf.storage.abilities import Volume
from streamxf.storage.opening import open_storage

from .helpers import KEY

MIB = 1 << 20
SCRIPT = Path(__file__).parent / "small_disk.py"
CHECKED = (streamxf.Checksum(),)
PACKED = (streamxf.ZStandard(level=1),)


# -- a file system that is small -------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `small_disk.py` found on a tmpfs of 16 MiB, of which nobody else sees anything."""
    if sys.platform != "linux":
        pytest.skip("tmpfs is Linux's")
    folder = tmp_path_factory.mktemp("small")
    mount = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=16m none "$1" && shift && exec "$@"', "sh"]
    try:
        allowed = subprocess.run([*mount, str(folder), "true"], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no unshare, with which a tmpfs is mounted for one process alone")
    if allowed.returncode:
        pytest.skip(f"this system lets nobody mount a tmpfs: {allowed.stderr.strip()}")
    command = [*mount, str(folder), sys.executable, "-W", "ignore", str(SCRIPT), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("case", "needed"),
    [("noise, no codec", "15.0 MiB"), ("noise, checksum and encrypt", "15.0 MiB"), ("zeros, encrypt", "40.0 MiB")],
)
def test_what_does_not_fit_is_refused_before_it_is_written(small_disk: dict[str, Any], case: str, needed: str) -> None:
    ((kind, text),) = small_disk[case]["failures"].values()
    assert kind == "NoSpaceError"
    assert f"at least {needed}" in text
    assert "checkpoint" in text
    assert small_disk[case]["files"] == small_disk["fits"]["files"]
    assert small_disk["old loads"]


def test_what_turns_out_not_to_fit_leaves_nothing_behind(small_disk: dict[str, Any]) -> None:
    """Nobody knew what a chain that compresses would make of it."""
    ((kind, text),) = small_disk["noise, zstd and encrypt"]["failures"].values()
    assert kind in ("OSError", "NoSpaceError")
    assert "No space left" in text
    assert small_disk["noise, zstd and encrypt"]["files"] == small_disk["fits"]["files"]


def test_what_fits_once_it_is_compressed_is_saved(small_disk: dict[str, Any]) -> None:
    assert small_disk["zeros, zstd and encrypt"]["failures"] == {}
    assert len(small_disk["zeros, zstd and encrypt"]["files"]) == 1


def test_ranks_that_share_a_file_system_are_added_up(small_disk: dict[str, Any]) -> None:
    refused = small_disk["several"]["too much"]
    assert {rank: kind for rank, (kind, _) in refused["failures"].items()} == dict.fromkeys("012", "NoSpaceError")
    assert "at least 18.0 MiB are to be written to it by 3 ranks together" in refused["failures"]["0"][1]
    assert refused["files"] == []
    assert small_disk["several"]["fits"]["failures"] == {}
    assert len(small_disk["several"]["fits"]["files"]) == 3


# -- what is known, and what is not ----------------------------------------------------------------


class Disk:
    """A file system that says what the test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.volume: Volume | None = Volume(("host", "1"), 0, True)
        monkeypatch.setattr(Volume, "of", lambda _: self.volume)

    def has(self, free: int, plain: bool = True, name: str = "1") -> None:
        self.volume = Volume(("host", name), free, plain)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def noise(size: int) -> torch.Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))


def planned(state: dict[str, Any], planner: DefaultSavePlanner | None = None) -> tuple[Any, Any]:
    planner = planner or DefaultSavePlanner()
    planner.set_up_planner(state, is_coordinator=True)
    return planner.create_local_plan(), planner


def saving_with(chain: tuple[Any, ...]) -> Save:
    return Save(open_storage("folder"), extensions_of(chain).renew(), 20, True, True, writer_id=b"save")


def refused(state: dict[str, Any], chain: tuple[Any, ...] = CHECKED, planner: Any = None, **changes: Any) -> bool:
    plan, planner = planned(state, planner)
    try:
        check_room(saving_with(chain), replace(plan, **changes), planner)
    except NoSpaceError:
        return True
    return False


def test_the_error_is_one_of_the_operating_systems_too(disk: Disk) -> None:
    plan, planner = planned({"w": noise(100)})
    with pytest.raises(OSError, match="too full") as caught:
        check_room(saving_with(()), plan, planner)
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert type(error) is NoSpaceError
        assert (error.errno, error.file) == (errno.ENOSPC, "folder")


@pytest.mark.parametrize("chain", [(), CHECKED, PACKED, (streamxf.Encrypt(KEY),)], ids=str)
def test_the_border_between_room_and_none(disk: Disk, chain: tuple[Any, ...]) -> None:
    state = {"w": noise(3 * MIB), "step": 1}
    disk.has(3 * MIB)
    assert not refused(state, chain)
    disk.has(3 * MIB - 1)
    assert refused(state, chain) == (chain != PACKED)  # of which nobody knows what it makes of the tensors


def test_a_file_system_that_may_compress_is_given_the_benefit_of_the_doubt(disk: Disk) -> None:
    zeros = {"w": torch.zeros(3 * MIB, dtype=torch.uint8)}
    disk.has(MIB, plain=False)
    assert not refused(zeros)
    assert not refused(zeros, ())
    assert refused(zeros, (streamxf.Encrypt(KEY),))


def test_what_is_not_sure_is_not_refused(disk: Disk) -> None:
    state = {"w": noise(MIB)}

    class Casting(DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            raise AssertionError("nobody but the save itself may ask")

    class Packed(torch.Tensor):
        """Like those whose memory is smaller than what they stand for."""

    disk.has(0)
    assert refused(state)
    assert not refused(state, planner=Casting())
    assert not refused({"w": noise(MIB).as_subclass(Packed)})
    assert not refused({"text": "x" * MIB})
    disk.volume = None
    assert not refused(state)


# -- several ranks ---------------------------------------------------------------------------------


def shared(disk: Disk, names: str, free: int = 3 * MIB) -> list[Any]:
    """Plans of 2 MiB, of ranks on file systems of these names, as the coordinator gives them back."""
    plans = []
    for name in names:
        disk.has(free, name=name)
        plans.append(note_room(planned({"w": noise(2 * MIB)})[0], open_storage("folder"), b"save"))
    return share_room(plans)


def test_only_ranks_of_one_file_system_share_its_room(disk: Disk) -> None:
    notes = [plan.storage_data for plan in shared(disk, "aab")]
    assert [(note.ranks, note.planned) for note in notes] == [(2, 4 * MIB), (2, 4 * MIB), (1, 2 * MIB)]
    assert [(plan.storage_data.ranks, plan.storage_data.planned) for plan in shared(disk, "ab")] == [(1, 0), (1, 0)]


def test_room_is_shared_as_it_was_before_anybody_wrote(disk: Disk) -> None:
    state = {"w": noise(2 * MIB)}
    full, enough = (shared(disk, "aa", free)[1].storage_data for free in (4 * MIB - 1, 4 * MIB))
    disk.has(2 * MIB, name="a")  # the other rank has written already
    assert refused(state, storage_data=full)
    assert not refused(state, storage_data=enough)
    assert not refused(state, PACKED, storage_data=full)  # the other's may become less
    assert not refused(state, storage_data=replace(full, save=b"an earlier one"))


def test_a_plan_that_has_storage_data_keeps_it(disk: Disk) -> None:
    plan = replace(planned({"w": noise(10)})[0], storage_data="a planner's own")
    assert share_room([note_room(plan, open_storage("folder"), b"save")]) == [plan]


# -- the file system itself ------------------------------------------------------------------------


def test_the_volume_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volume, again = Volume.of(tmp_path), Volume.of(tmp_path)
    assert volume is not None
    assert again is not None
    assert volume.name == again.name
    assert volume.free > 0
    assert isinstance(pickle.loads(pickle.dumps(RoomNote(b"", volume))).volume, Volume)
    assert Volume.of(tmp_path / "missing") is None
    monkeypatch.setattr("os.statvfs", lambda _: (tmp_path / "missing").stat())
    assert Volume.of(tmp_path) is None
