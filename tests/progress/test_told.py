"""What loads, verify and salvage tell: stored bytes, as they are read; and what a save tells: the bytes of tensors and
objects, as their blocks leave.
"""

import importlib.util
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._extension import ZStandard
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import LoadPlan

import streamxf
from streamxf import Checksum, FloatZip
from streamxf.errors import BlockError, ContainerError, ParameterError, UnsupportedError
from tests.altered import flip
from tests.dcp.helpers import KEY, Xor, blank, data_files, error_of, full_chain, save
from tests.dcp.shards import save_as_ranks
from tests.dcp.test_write_failures import FaultyFiles
from tests.tools.verify.remote import url_of

from .recorder import Recorder, make_state, raw_size

CHAINS = {"default": lambda: [FloatZip()], "full": full_chain, "none": list, "foreign": lambda: [Xor(), Checksum()]}
KEYS = {"full": KEY}
MIB = 2**20


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(params=CHAINS)
def chain(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def stored_size(folder: Path) -> int:
    return sum(file.stat().st_size for file in data_files(folder))


def loaded_size(folder: Path, keys: Any = None) -> int:
    """DCP asks for nothing of a tensor that is empty; of the container that values share each counts its own bytes."""
    with streamxf.Checkpoint(folder, keys=keys) as checkpoint:
        places = [place for name, item in checkpoint.stored.items() if name != "empty" for place in item.places]
    return sum(place.size if place.span is None else place.span[1] - place.span[0] for place in places)


def registry() -> streamxf.Registry:
    made = streamxf.Registry()
    made.register(Xor)
    made.register(ZStandard)
    return made


def reader_of(folder: Path, chain: str, recorder: Recorder) -> Any:
    if chain == "foreign":
        return streamxf.FileSystemReader(folder, registry(), progress=recorder)
    return streamxf.FileSystemReader(folder, keys=KEYS.get(chain), progress=recorder)


# -- loads -----------------------------------------------------------------------------------------


def test_a_load(tmp_path: Path, chain: str, recorder: Recorder) -> None:
    save(make_state(), tmp_path, CHAINS[chain](), thread_count=2)
    reader = reader_of(tmp_path, chain, recorder)
    for number in (1, 2):
        dcp.load(blank(make_state()), storage_reader=reader)
        assert recorder.done == recorder.expected == number * loaded_size(tmp_path, KEYS.get(chain))


class FirstHalf(DefaultLoadPlanner):
    """Reads that of a tensor."""

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        (item,) = super().finish_plan(central_plan).items
        return replace(central_plan, items=[replace(item, lengths=torch.Size([item.lengths[0] // 2]))])


def test_a_load_of_the_half_that_takes_less_room(tmp_path: Path) -> None:
    state = {"w": torch.cat([torch.zeros(500_000), torch.randn(500_000)])}
    save(state, tmp_path, [FloatZip()], block_size=1 << 16)
    recorder, target = Recorder(), blank(state)
    reader = streamxf.FileSystemReader(tmp_path, progress=recorder)
    dcp.load(target, storage_reader=reader, planner=FirstHalf())
    assert torch.equal(target["w"][:500_000], state["w"][:500_000])
    assert recorder.done == recorder.expected == stored_size(tmp_path) // 2


@pytest.mark.parametrize("extensions", [[], [ZStandard()]], ids=["plain", "zstd"])
def test_a_load_of_stock_checkpoints(tmp_path: Path, extensions: list[Any], recorder: Recorder) -> None:
    dcp.save(make_state(), storage_writer=dcp.FileSystemWriter(tmp_path, _extensions=extensions))
    reader = streamxf.FileSystemReader(tmp_path, registry(), progress=recorder)
    dcp.load(blank(make_state()), storage_reader=reader)
    assert recorder.done == recorder.expected == loaded_size(tmp_path)


def test_a_load_over_fsspec(tmp_path: Path, recorder: Recorder) -> None:
    save(make_state(), tmp_path, [FloatZip()])
    dcp.load(blank(make_state()), storage_reader=streamxf.FsspecReader(url_of(tmp_path), progress=recorder))
    assert recorder.done == recorder.expected == loaded_size(tmp_path)


def test_a_single_tensor_comes_in_pieces(tmp_path: Path, chain: str, recorder: Recorder) -> None:
    state = {"w": torch.randint(0, 2**30, (10 * MIB,), dtype=torch.int32)}
    save(state, tmp_path, CHAINS[chain]())
    dcp.load({"w": torch.zeros(10 * MIB, dtype=torch.int32)}, storage_reader=reader_of(tmp_path, chain, recorder))
    assert recorder.done == recorder.expected == stored_size(tmp_path)
    assert max(recorder.steps) <= (16 * MIB if chain == "none" else 4 * (MIB + 100))


def test_part_of_a_state_dict(tmp_path: Path, chain: str, recorder: Recorder) -> None:
    save(make_state(), tmp_path, CHAINS[chain]())
    dcp.load({"turned": torch.zeros(200, 300)}, storage_reader=reader_of(tmp_path, chain, recorder))
    assert 0 < recorder.done == recorder.expected < stored_size(tmp_path) / 10


def test_parts_of_a_tensor(tmp_path: Path, recorder: Recorder) -> None:
    """As it is read after resharding: two of four quarters, of which the blocks of others are not read."""
    state = {"w": torch.randn(4000, 1000)}
    save(state, tmp_path, [Checksum()])
    reader = streamxf.FileSystemReader(tmp_path, progress=recorder)
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, True)
    requests, targets = [], {}
    (index,) = [index for index in metadata.storage_data if index.fqn == "w"]
    for start in (0, 2000):
        requests.append(_part(index, start, 1000))
        targets[start] = torch.zeros(1000, 1000)
    reader.read_data(dcp.LoadPlan(requests), _Planner(targets))
    for start, found in targets.items():
        assert torch.equal(found, state["w"][start : start + 1000])
    assert recorder.done == recorder.expected == pytest.approx(stored_size(tmp_path) / 2, abs=2)


def _part(index: Any, start: int, length: int) -> Any:
    from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

    zero, begin = torch.Size([0, 0]), torch.Size([start, 0])
    return ReadItem(LoadItemType.TENSOR, index, zero, index, begin, torch.Size([length, 1000]))


class _Planner(dcp.DefaultLoadPlanner):
    def __init__(self, targets: dict[int, torch.Tensor]) -> None:
        super().__init__()
        self.targets = targets

    def resolve_tensor(self, read_item: Any) -> torch.Tensor:
        return self.targets[read_item.storage_offsets[0]]

    def commit_tensor(self, read_item: Any, tensor: torch.Tensor) -> None:
        pass


def test_a_load_that_fails_is_not_complete(tmp_path: Path, recorder: Recorder) -> None:
    """The large item is refused by its header, so none of its blocks is ever read, however fast reading ahead is."""
    save(make_state(), tmp_path, [FloatZip()])
    expected = loaded_size(tmp_path)
    places = streamxf.FileSystemReader(tmp_path).read_metadata().storage_data
    (large,) = [place for index, place in places.items() if index.fqn == "large"]
    flip(*data_files(tmp_path), large.offset)
    reader = reader_of(tmp_path, "default", recorder)
    assert isinstance(error_of(lambda: dcp.load(blank(make_state()), storage_reader=reader)), ContainerError)
    assert recorder.done < recorder.expected == expected


def test_a_load_of_damaged_blocks(tmp_path: Path, recorder: Recorder) -> None:
    save(make_state(), tmp_path, [FloatZip()])
    flip(*data_files(tmp_path))  # in the middle of the largest item
    reader = reader_of(tmp_path, "default", recorder)
    assert isinstance(error_of(lambda: dcp.load(blank(make_state()), storage_reader=reader)), BlockError)
    assert 0 < recorder.done <= recorder.expected == loaded_size(tmp_path)


# -- verify and salvage ----------------------------------------------------------------------------


def test_verify(tmp_path: Path, chain: str, recorder: Recorder) -> None:
    save(make_state(), tmp_path, CHAINS[chain](), thread_count=2)
    extensions = registry() if chain == "foreign" else None
    assert streamxf.verify(tmp_path, keys=KEYS.get(chain), codecs=extensions, progress=recorder).ok
    assert recorder.done == recorder.expected == stored_size(tmp_path)
    assert len(recorder.steps) > 5  # fewer where many workers finish together


def test_verify_without_the_key(tmp_path: Path, recorder: Recorder) -> None:
    save(make_state(), tmp_path, full_chain())
    assert streamxf.verify(tmp_path, progress=recorder).ok
    assert recorder.done == recorder.expected == stored_size(tmp_path)


def test_verify_over_fsspec(tmp_path: Path, recorder: Recorder) -> None:
    """Several files at a time."""
    save(make_state(), tmp_path, [FloatZip()], single_file_per_rank=False)
    assert streamxf.verify(url_of(tmp_path), progress=recorder).ok
    assert recorder.done == recorder.expected == stored_size(tmp_path)


@pytest.mark.parametrize("harm", ["a byte", "cut", "continued", "a file is missing", "no metadata", "a link"])
def test_verify_of_what_is_damaged(tmp_path: Path, harm: str, recorder: Recorder) -> None:
    """All files are told of, also where there is little to read."""
    save(make_state(), tmp_path, [FloatZip()])
    (file,) = data_files(tmp_path)
    size = whole = file.stat().st_size
    if harm == "a byte":
        flip(file)
    elif harm == "cut":
        size = whole // 2
        file.write_bytes(file.read_bytes()[:size])
    elif harm == "continued":
        size = whole + 3_000_000
        file.write_bytes(file.read_bytes() + bytes(3_000_000))
    elif harm == "a file is missing":
        file.unlink()
    elif harm == "a link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    else:
        (tmp_path / ".metadata").unlink()
    assert streamxf.verify(tmp_path, progress=recorder).ok == (harm == "a link")
    assert recorder.done == recorder.expected == size


@pytest.mark.parametrize("damaged", [False, True], ids=["whole", "damaged"])
@pytest.mark.parametrize("without_metadata", [False, True], ids=["by metadata", "without metadata"])
def test_salvage(tmp_path: Path, damaged: bool, without_metadata: bool, recorder: Recorder) -> None:
    """What is found without metadata is read a second time."""
    save(make_state(), tmp_path, [Checksum()] if without_metadata else [FloatZip()])
    if damaged:
        flip(*data_files(tmp_path))
    if without_metadata:
        (tmp_path / ".metadata").unlink()
    found = streamxf.load_intact(tmp_path, without_metadata=without_metadata, progress=recorder)
    assert bool(found.damaged) == damaged
    assert recorder.done == recorder.expected == (1 + without_metadata) * stored_size(tmp_path)
    assert len(recorder.steps) > 5


def test_salvage_of_a_last_item_that_cannot_be_begun(tmp_path: Path, recorder: Recorder) -> None:
    save(make_state(), tmp_path, [FloatZip()])
    with streamxf.Checkpoint(tmp_path) as checkpoint:
        last = max(item.places[0].at for item in checkpoint.stored.values())
    flip(*data_files(tmp_path), last)
    damaged = streamxf.load_intact(tmp_path, progress=recorder).damaged
    assert {each.item for each in damaged} == {"number", "list"}  # values, in one container
    assert recorder.done == recorder.expected == stored_size(tmp_path)


def test_salvage_into_a_part(tmp_path: Path, recorder: Recorder) -> None:
    save(make_state(), tmp_path, [FloatZip()])
    streamxf.load_intact(tmp_path, {"turned": torch.zeros(200, 300)}, progress=recorder)
    assert 0 < recorder.done == recorder.expected < stored_size(tmp_path) / 10


def test_salvage_of_what_ranks_saved_for_themselves(tmp_path: Path, recorder: Recorder) -> None:
    save_as_ranks(3, tmp_path, full_chain, use_collectives=False)
    found = streamxf.load_intact(tmp_path, keys=KEY, merge_ranks=True, progress=recorder)
    assert len(found.loaded) == 9
    assert recorder.done == recorder.expected == stored_size(tmp_path)


def test_salvage_of_a_file_that_is_mostly_a_hole(tmp_path: Path, recorder: Recorder) -> None:
    save(make_state(), tmp_path, [Checksum()])
    (tmp_path / ".metadata").unlink()
    (file,) = data_files(tmp_path)
    os.truncate(file, 2**40)
    assert streamxf.load_intact(tmp_path, without_metadata=True, progress=recorder).damaged
    assert recorder.done == recorder.expected > 2**40


# -- saves -----------------------------------------------------------------------------------------------------------

OWN = {"default": lambda: None, "foreign": lambda: [Xor(), streamxf.ZStandard()], "foreign alone": lambda: [Xor()]}
SAVED_THROUGH = CHAINS | OWN


@pytest.mark.parametrize("options", [{}, {"thread_count": 3}, {"single_file_per_rank": False}], ids=str)
@pytest.mark.parametrize("chain", SAVED_THROUGH)
def test_all_of_it_is_told(tmp_path: Path, chain: str, options: dict[str, Any], recorder: Recorder) -> None:
    writer = streamxf.FileSystemWriter(tmp_path, _extensions=SAVED_THROUGH[chain](), progress=recorder, **options)
    dcp.save(make_state(), storage_writer=writer)
    has_values = chain in ("default", "full")  # all else is pickled: for torch's own readers, or for transforms
    assert recorder.done == recorder.expected == raw_size(make_state(), values=has_values)


@pytest.mark.parametrize("chain", SAVED_THROUGH)
def test_a_single_tensor_is_saved_in_pieces(tmp_path: Path, chain: str, recorder: Recorder) -> None:
    state = {"w": torch.randint(0, 2**30, (10 * MIB,), dtype=torch.int32)}
    writer = streamxf.FileSystemWriter(tmp_path, _extensions=SAVED_THROUGH[chain](), progress=recorder)
    dcp.save(state, storage_writer=writer)
    assert recorder.done == recorder.expected == 40 * MIB
    assert max(recorder.steps) <= (16 * MIB if chain in ("none", "foreign alone") else MIB + 100)


def test_each_save_counts_again_and_over_fsspec(recorder: Recorder) -> None:
    writer = streamxf.FsspecWriter("memory://progress/saves", _extensions=[Checksum()], progress=recorder)
    for number in (1, 2):
        dcp.save(make_state(), storage_writer=writer)
        assert recorder.done == recorder.expected == number * raw_size(make_state())


def test_in_the_background(tmp_path: Path, recorder: Recorder) -> None:
    writer = streamxf.FileSystemWriter(tmp_path, _extensions=[Checksum()], progress=recorder)
    dcp.async_save(make_state(), storage_writer=writer).result()
    assert recorder.done == recorder.expected == raw_size(make_state())


@pytest.mark.parametrize("progress", [True, False, Recorder()], ids=["bar", "none", "recorder"])
def test_a_copy_in_another_process_saves(tmp_path: Path, progress: Any) -> None:
    """It keeps the bar, and leaves the object where it is."""
    writer = streamxf.FileSystemWriter(tmp_path, _extensions=[FloatZip()], progress=progress)
    copy = pickle.loads(pickle.dumps(writer))
    dcp.save(make_state(), storage_writer=copy)
    assert copy._progress is (progress is True)
    assert writer._progress is progress
    if isinstance(progress, Recorder):
        assert not progress.steps


@pytest.mark.parametrize("chain", ["default", "none"])
def test_a_save_that_fails_is_not_complete(tmp_path: Path, chain: str, recorder: Recorder) -> None:
    writer = streamxf.FileSystemWriter(tmp_path, _extensions=SAVED_THROUGH[chain](), progress=recorder)
    with FaultyFiles("write", 2).patched():
        assert isinstance(error_of(lambda: dcp.save(make_state(), storage_writer=writer)), OSError)
    later = () if chain == "default" else ("set",)  # bare objects come one by one
    begun = {name: value for name, value in make_state().items() if name not in later}
    assert recorder.done < recorder.expected == raw_size(begun, values=chain == "default")


@pytest.mark.parametrize("chain", SAVED_THROUGH)
def test_what_it_raises_fails_the_save(tmp_path: Path, chain: str) -> None:
    class Stopping(Recorder):
        def advance(self, count: int) -> None:
            raise RuntimeError("enough")

    writer = streamxf.FileSystemWriter(tmp_path, _extensions=SAVED_THROUGH[chain](), progress=Stopping())
    assert str(error_of(lambda: dcp.save(make_state(), storage_writer=writer))) == "enough"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("progress", [None, 1, "bar", object(), print])
@pytest.mark.parametrize("made", [streamxf.FileSystemWriter, streamxf.FileSystemReader])
def test_an_object_without_the_methods(tmp_path: Path, made: Any, progress: Any) -> None:
    with pytest.raises(ParameterError, match=r"progress=.*expect and advance"):
        made(tmp_path, progress=progress)


def test_a_bar_needs_rich(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr("streamxf.progress.find_spec", lambda name: None if name == "rich" else found(name))
    with pytest.raises(UnsupportedError, match=r"pip install 'streamxf\[cli\]'"):
        streamxf.FileSystemWriter(tmp_path, progress=True)
    with pytest.raises(UnsupportedError, match=r"pip install 'streamxf\[cli\]'"):
        streamxf.FsspecReader("memory://nothing", keys=KEY, progress=True)
    streamxf.FileSystemWriter(tmp_path, progress=Recorder())
