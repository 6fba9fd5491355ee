"""What a load decodes, what memory it takes, and in which order it speaks to the planner."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem

import streamxf
from streamxf import Checksum, Encrypt, engine
from streamxf.dcp import loader as load_module
from streamxf.errors import BlockError, MetadataError, StreamxfError
from streamxf.stream.container import BlockReader
from tests.altered import flip

from .helpers import KEY, data_files, error_of, load, load_into, load_with, refused, save
from .test_loads_like_stock import Into, read_items

MIB = 2**20


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """The blocks that are decoded: the number, and whether that happens in a worker."""
    found: list[tuple[int, bool]] = []
    decode = BlockReader.decode_stored

    def counted(self: BlockReader, index: int, *rest: Any) -> None:
        found.append((index, threading.current_thread().name.startswith("streamxf")))
        decode(self, index, *rest)

    monkeypatch.setattr(BlockReader, "decode_stored", counted)
    monkeypatch.setattr(load_module, "INLINE_BYTES", 0)
    return found


def read_boxes(path: Path, boxes: list[tuple[tuple[int, ...], torch.Tensor]], keys: Any = None, **options: Any) -> Any:
    """Load boxes of the only tensor of a checkpoint, each given by its offsets, into targets."""
    reader = streamxf.FileSystemReader(path, keys=keys, **options)
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, True)
    (index,) = metadata.storage_data
    items = read_items(index, [(offsets, target.size()) for offsets, target in boxes])
    reader.read_data(LoadPlan(items), Into([target for _, target in boxes]))
    return reader.report


@pytest.mark.parametrize("most", [4 * MIB, MIB // 4])
def test_workers_are_given_several_tensors_until_few_are_left(
    most: int, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never more than a worker's turn, so that all have something to do to the end."""
    monkeypatch.setattr(load_module, "_WHOLE", most)
    monkeypatch.setenv("STREAMXF_WORKERS", "1")
    monkeypatch.setattr(engine, "_engine", None)  # an earlier test's has more, which begin in any order
    given: list[int] = []
    run = load_module._run
    monkeypatch.setattr(load_module, "_run", lambda steps: (given.append(len(steps)), run(steps))[1])
    state = {f"t.{number:02}": torch.rand(MIB // 4) for number in range(41)}
    save(state, checkpoint, [Encrypt(KEY)])
    found = load(state, checkpoint)
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())
    assert given[1] == max(given) == 4  # the first tensor is opened by the loader, and its block given alone
    assert given[-1] == 1
    assert sum(given) == 41


@pytest.mark.parametrize("keys", [None, KEY])
def test_rows_take_their_own_blocks_only(checkpoint: Path, decoded: list[Any], keys: Any) -> None:
    """Those that hold a wanted element and no others, with a key too: the size of a tensor stands in its header."""
    stored = torch.randint(0, 99, (32, MIB), dtype=torch.int8)
    save({"t": stored}, checkpoint, [Checksum(), Encrypt(KEY)] if keys else [Checksum()])
    first, second = torch.empty(2, MIB, dtype=torch.int8), torch.empty(1, MIB, dtype=torch.int8)
    report = read_boxes(checkpoint, [((10, 0), first), ((20, 0), second)], keys)
    assert torch.equal(first, stored[10:12])
    assert torch.equal(second, stored[20:21])
    assert sorted(index for index, _ in decoded) == [10, 11, 20]
    assert all(in_worker for _, in_worker in decoded)
    assert (report.items, report.raw_bytes) == (2, 3 * MIB)
    assert report.raw_bytes < report.stored_bytes < report.raw_bytes + 1000


@pytest.mark.parametrize("keys", [None, KEY])
def test_every_block_is_decoded_once(checkpoint: Path, decoded: list[Any], keys: Any) -> None:
    state = {str(number): torch.randint(0, 99, (number * MIB + 5000,), dtype=torch.int8) for number in range(1, 5)}
    save(state, checkpoint, [Checksum(), Encrypt(KEY)] if keys else [Checksum()])
    found = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.load(found, storage_reader=streamxf.FileSystemReader(checkpoint, keys=keys))
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())
    assert sorted(index for index, _ in decoded) == sorted(i for number in range(1, 5) for i in range(number + 1))
    assert all(in_worker for _, in_worker in decoded)


@pytest.mark.parametrize("keys", [None, KEY])
def test_rows_of_a_tensor_of_torchs_writer(checkpoint: Path, decoded: list[Any], keys: Any) -> None:
    """The first block and the last hold torch's frame; they are decoded once for all requests."""
    stored = torch.randint(0, 99, (32, MIB), dtype=torch.int8)
    chain = [Checksum(), Encrypt(KEY)] if keys else [Checksum()]
    dcp.save({"t": stored}, storage_writer=streamxf.attach(dcp.FileSystemWriter(checkpoint), chain))
    first, second = torch.empty(2, MIB, dtype=torch.int8), torch.empty(1, MIB, dtype=torch.int8)
    read_boxes(checkpoint, [((10, 0), first), ((20, 0), second)], keys, require="bound" if keys else None)
    assert torch.equal(first, stored[10:12])
    assert torch.equal(second, stored[20:21])
    ends = [index for index, in_worker in decoded if not in_worker]
    assert set(ends) == {0, 32}
    assert sorted(index for index, in_worker in decoded if in_worker) == [10, 11, 12, 20, 21]


def test_with_keys_the_last_block_is_decoded_even_for_the_first_row(checkpoint: Path) -> None:
    """Unless the header says how large the stream is, as it does for the elements of a tensor."""
    stored = torch.randint(0, 99, (8, MIB), dtype=torch.int8)
    writer = streamxf.attach(dcp.FileSystemWriter(checkpoint, sync_files=False), [Encrypt(KEY)])
    dcp.save({"t": stored}, storage_writer=writer)
    flip(*data_files(checkpoint), -200)  # in the payload of the last block
    with refused(StreamxfError):
        read_boxes(checkpoint, [((0, 0), torch.empty(1, MIB, dtype=torch.int8))], KEY, require="bound")


@pytest.mark.parametrize("attached", [True, False])
def test_a_tensor_whose_memory_is_in_another_order(checkpoint: Path, attached: bool) -> None:
    """torch.save keeps that order, streamxf's writer does not."""
    stored = torch.arange(600 * 1000, dtype=torch.int32).reshape(600, 1000)
    if attached:
        writer = streamxf.attach(dcp.FileSystemWriter(checkpoint, sync_files=False), [Checksum()])
        dcp.save({"t": stored.t()}, storage_writer=writer)
    else:
        save({"t": stored.t()}, checkpoint, [Checksum()])
    target = torch.zeros(1000, 600, dtype=torch.int32)
    read_boxes(checkpoint, [((0, 0), target)])
    assert torch.equal(target, stored.t())


@pytest.mark.parametrize(("item", "block"), [("t", 1), ("t", 0), ("o", 0)])
@pytest.mark.parametrize("cut", [False, True])
def test_an_attached_reader_says_which_file_is_damaged(item: str, block: int, cut: bool, checkpoint: Path) -> None:
    """Also where torch reads what it has opened, and where torch itself has read the metadata."""
    state = {"t": torch.arange(600 * 1000, dtype=torch.int32), "o": "b" * 100_000}
    dcp.save(state, storage_writer=streamxf.attach(dcp.FileSystemWriter(checkpoint), [Checksum()]))
    metadata = dcp.FileSystemReader(checkpoint).read_metadata()
    places = {index.fqn: place for index, place in metadata.storage_data.items()}
    path, place = checkpoint / places[item].relative_path, places[item]
    if cut:
        os.truncate(path, place.offset + place.length - 1)
    else:
        flip(path, place.offset + 500 + block * MIB)
    with refused(StreamxfError, f"[file {path}, item {item}"):
        load_with({item: state[item]}, streamxf.attach(dcp.FileSystemReader(checkpoint)))


class Recording(DefaultLoadPlanner):
    """Notes what is asked of it, and by whom."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, str]] = []
        self.threads: set[int] = set()

    def _note(self, what: str, item: ReadItem) -> None:
        self.calls.append((what, item.dest_index.fqn))
        self.threads.add(threading.get_ident())

    def resolve_tensor(self, read_item: ReadItem) -> Any:
        self._note("resolve", read_item)
        return super().resolve_tensor(read_item)

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        self._note("commit", read_item)
        super().commit_tensor(read_item, tensor)

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:
        self._note("bytes", read_item)
        super().load_bytes(read_item, value)


def test_the_planner_is_asked_in_one_thread_and_once(checkpoint: Path) -> None:
    state: dict[str, Any] = {f"big {number}": torch.randn(700_000) for number in range(4)}
    state |= {f"small {number}": torch.randn(5) for number in range(4)} | {"object": "text"}
    save(state, checkpoint)
    planner = Recording()
    found = {name: torch.zeros_like(value) if isinstance(value, torch.Tensor) else "" for name, value in state.items()}
    dcp.load(found, storage_reader=streamxf.FileSystemReader(checkpoint, keys=KEY), planner=planner)
    assert planner.threads == {threading.get_ident()}
    assert sorted(planner.calls) == sorted(
        [(what, name) for name in state if name != "object" for what in ("resolve", "commit")] + [("bytes", "object")]
    )
    for name in state:
        if name != "object":
            assert planner.calls.index(("resolve", name)) < planner.calls.index(("commit", name))


def test_a_planner_of_ones_own_is_asked_in_turn(checkpoint: Path) -> None:
    state = {f"small {number}": torch.randn(5) for number in range(4)}
    save(state, checkpoint)
    planner = Recording()
    found = {name: torch.zeros(5) for name in state}
    dcp.load(found, storage_reader=streamxf.FileSystemReader(checkpoint, keys=KEY), planner=planner)
    assert [what for what, _ in planner.calls] == ["resolve", "commit"] * 4


def test_a_method_put_in_the_place_of_torchs_is_asked_in_turn(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {f"small {number}": torch.randn(5) for number in range(4)}
    save(state, checkpoint)
    calls: list[str] = []
    resolve = DefaultLoadPlanner.resolve_tensor

    def resolved(planner: DefaultLoadPlanner, item: ReadItem) -> Any:
        calls.append("resolve")
        return resolve(planner, item)

    monkeypatch.setattr(DefaultLoadPlanner, "resolve_tensor", resolved)
    monkeypatch.setattr(DefaultLoadPlanner, "commit_tensor", lambda *_: calls.append("commit"))
    load_into({name: torch.zeros(5) for name in state}, streamxf.FileSystemReader(checkpoint, keys=KEY))
    assert calls == ["resolve", "commit"] * 4


@pytest.mark.parametrize("most", [1, 3, 512])
def test_targets_that_are_asked_for_ahead(checkpoint: Path, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "_TARGETS", most)
    state: dict[str, Any] = {f"{number}": torch.randn(5 + 40_000 * (number % 2)) for number in range(8)}
    state = {"a": "text", **state, "5b": [1], "tied": state["1"], "whole": torch.randn(3, 4)}
    save(state, checkpoint)
    found = {name: torch.zeros_like(value) if isinstance(value, torch.Tensor) else "" for name, value in state.items()}
    found["whole"] = torch.zeros(4, 3).T
    dcp.load(found, storage_reader=streamxf.FileSystemReader(checkpoint, keys=KEY))
    assert found["a"] == "text"
    assert found["5b"] == [1]
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(found[name], value)
            assert found[name]._version > 0


class Staging(DefaultLoadPlanner):
    """Has a single place for all tensors, and takes each from there when it is committed."""

    def __init__(self, place: torch.Tensor) -> None:
        super().__init__()
        self.place = place
        self.found: dict[str, torch.Tensor] = {}

    def resolve_tensor(self, read_item: ReadItem) -> Any:
        return self.place

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        self.found[read_item.dest_index.fqn] = tensor.clone()


@pytest.mark.parametrize("inline", [0, load_module.INLINE_BYTES])
@pytest.mark.parametrize("shape", [(1,), (2, 20), (21, 2), (20, 1), (20, 2, 1), ()])
def test_a_target_of_another_shape_is_refused(
    checkpoint: Path, shape: tuple[int, ...], inline: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_module, "INLINE_BYTES", inline)
    quantized = torch.quantize_per_tensor(torch.ones(20, 2), 0.1, 0, torch.qint8)
    for tensor in (torch.ones(20, 2), quantized):
        save({"w": tensor}, checkpoint)
        planner = Staging(torch.zeros(shape))
        reader = streamxf.FileSystemReader(checkpoint, keys=KEY)
        error = error_of(lambda: dcp.load({"w": torch.empty_like(tensor)}, storage_reader=reader, planner=planner))  # noqa: B023
        assert isinstance(error, MetadataError)
        assert f"the stored tensor has the shape (20, 2), the target {shape}" in str(error)
        assert not planner.place.any()


@pytest.mark.parametrize("place", ["contiguous", "strided", "cast"])
@pytest.mark.parametrize("inline", [0, load_module.INLINE_BYTES])
@pytest.mark.parametrize("count", [20, 700_000])
def test_items_that_share_a_target(
    checkpoint: Path, place: str, inline: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_module, "INLINE_BYTES", inline)
    state = {str(number): torch.full((count, 2), float(number)) for number in range(6)}
    save(state, checkpoint)
    places = {
        "contiguous": torch.empty(count, 2),
        "strided": torch.empty(2, count).t(),
        "cast": torch.empty(count, 2, dtype=torch.float64),
    }
    planner = Staging(places[place])
    target = {name: torch.zeros_like(value) for name, value in state.items()}
    dcp.load(target, storage_reader=streamxf.FileSystemReader(checkpoint, keys=KEY), planner=planner)
    for name, value in state.items():
        assert torch.equal(planner.found[name].float(), value)


def test_views_of_one_buffer_as_targets(checkpoint: Path) -> None:
    """Neighbours in memory do not wait for each other, and do not touch each other."""
    state = {str(number): torch.randn(300_000) for number in range(5)}
    save(state, checkpoint)
    buffer = torch.full((5 * 300_000 + 2,), torch.nan)
    target = {str(number): buffer[1 + number * 300_000 :][:300_000] for number in range(5)}
    dcp.load(target, storage_reader=streamxf.FileSystemReader(checkpoint, keys=KEY))
    assert torch.equal(buffer[1:-1], torch.cat(list(state.values())))
    assert buffer[0].isnan()
    assert buffer[-1].isnan()


def test_a_target_that_cannot_be_written_to_is_refused_as_by_torch(checkpoint: Path) -> None:
    save({"t": torch.randn(300_000)}, checkpoint)
    with torch.inference_mode():
        target = {"t": torch.zeros(300_000)}
    with refused(RuntimeError, "inference"):
        dcp.load(target, storage_reader=streamxf.FileSystemReader(checkpoint, keys=KEY))
    assert not target["t"].any()


# -- damage --------------------------------------------------------------------------------------


def test_a_damaged_block_names_its_place_and_commits_nothing(checkpoint: Path) -> None:
    state = {str(number): torch.randint(0, 99, (4 * MIB,), dtype=torch.int8) for number in range(3)}
    save(state, checkpoint, [Checksum()])
    (path,) = data_files(checkpoint)
    reader = streamxf.FileSystemReader(checkpoint)
    place = next(info for index, info in reader.read_metadata().storage_data.items() if index.fqn == "1")
    flip(path, place.offset + 2 * MIB + MIB // 2)
    planner = Recording()
    target = {name: torch.zeros_like(value) for name, value in state.items()}
    error = error_of(lambda: dcp.load(target, storage_reader=reader, planner=planner))
    assert isinstance(error, BlockError)
    assert (error.file, error.item, error.block) == (str(path), "1", 2)
    assert ("commit", "1") not in planner.calls
    assert reader.report is None
    # what its own check did not let pass is not in the target
    assert not torch.equal(target["1"][2 * MIB :][:MIB], state["1"][2 * MIB :][:MIB])


@pytest.mark.parametrize("count", [40_000, 200_000, 900_000])
@pytest.mark.parametrize("place", [0.0, 0.5, 0.999])
def test_damage_among_tensors_of_few_blocks_names_its_place(checkpoint: Path, count: int, place: float) -> None:
    """A worker opens and decodes several of them: header, block or footer of the fourth is damaged."""
    state = {str(number): torch.randn(count) for number in range(9)}
    save(state, checkpoint)
    (path,) = data_files(checkpoint)
    reader = streamxf.FileSystemReader(checkpoint, keys=KEY)
    stored = {index.fqn: info for index, info in reader.read_metadata().storage_data.items()}
    names = sorted(stored, key=lambda name: stored[name].offset)
    damaged = stored[names[3]]
    at = damaged.offset + int(place * damaged.length)
    flip(path, at)
    planner = Recording()
    target = {name: torch.zeros_like(value) for name, value in state.items()}
    error = error_of(lambda: dcp.load(target, storage_reader=reader, planner=planner))
    assert isinstance(error, StreamxfError)
    assert (error.file, error.item) == (str(path), names[3])
    committed = [name for what, name in planner.calls if what == "commit"]
    assert committed == names[: len(committed)]
    assert len(committed) <= 3
    for name in committed:
        assert torch.equal(target[name], state[name])
    flip(path, at)
    dcp.load(target, storage_reader=reader)
    assert all(torch.equal(target[name], value) for name, value in state.items())


def test_a_report_after_each_load_and_none_after_a_failure(checkpoint: Path) -> None:
    state: dict[str, Any] = {
        "a": torch.randn(600_000),
        "b": torch.randn(10),
        "object": {1, 2},
        "one": "x" * 999,
        "two": [1] * 99,
    }
    save(state, checkpoint)
    reader = streamxf.FileSystemReader(checkpoint, keys=KEY)
    assert reader.report is None
    target = load_into(dict.fromkeys(state) | {"a": torch.zeros(600_000), "b": torch.zeros(10)}, reader)
    report = reader.report
    assert report.items == 5
    assert report.raw_bytes > 600_010 * 4
    assert report.stored_bytes == sum(file.stat().st_size for file in data_files(checkpoint))
    assert set(report.codec_seconds) == {"streamxf.zstd", "streamxf.checksum", "streamxf.encrypt"}
    assert all(seconds > 0 for seconds in report.codec_seconds.values())
    assert report.io_seconds > 0
    assert report.wall_seconds > 0
    assert 1 <= report.peak_blocks <= 3
    (path,) = data_files(checkpoint)
    path.write_bytes(path.read_bytes()[:-1])
    assert error_of(lambda: dcp.load(target, storage_reader=reader)) is not None
    assert reader.report is None


# -- files that are none -------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("which", ["data", ".metadata"])
def test_a_named_pipe_in_place_of_a_file_is_refused_at_once(checkpoint: Path, which: str) -> None:
    save({"t": torch.ones(3)}, checkpoint)
    path = data_files(checkpoint)[0] if which == "data" else checkpoint / ".metadata"
    path.unlink()
    os.mkfifo(path)
    with refused(MetadataError, "not a regular file", path.name):
        load({"t": torch.ones(3)}, checkpoint)


# -- memory --------------------------------------------------------------------------------------

PEAK = """
import json, os, sys, torch, traceback, streamxf
import torch.distributed.checkpoint as dcp
import streamxf.dcp.reader, streamxf.codecs.floatzip, streamxf.codecs.encrypt, streamxf.codecs.checksum
path, elements = sys.argv[1], int(sys.argv[2])
shape, dtype = (elements // 4096, 4096), torch.bfloat16
STATES = {
    "in place": lambda: torch.ones(shape, dtype=dtype),
    "cast": lambda: torch.ones(shape),
    "transposed": lambda: torch.ones(shape[::-1], dtype=dtype).t(),
}
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # each worker has memory of its own

def resident(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) * 1024

def added(kind):
    state = {"t": STATES[kind]()}
    before = resident("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # start the peak anew
    dcp.load(state, storage_reader=streamxf.FileSystemReader(path, keys=bytes(range(32))))
    assert (state["t"][3, 57] if kind == "transposed" else state["t"].view(-1)[12345]) != 1
    return resident("VmHWM") - before

for kind in STATES:
    child = os.fork()
    if not child:
        try:
            print(json.dumps([kind, added(kind)]), flush=True)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
"""


LARGE = 256 * MIB  # in place of which any copy, even of a half, would show


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's count of resident memory")
def test_a_load_of_a_large_tensor_adds_little_memory(tmp_path: Path) -> None:
    stored = torch.empty(LARGE // 8192, 4096, dtype=torch.bfloat16)
    for part in stored.split(8192):
        part.normal_(0, 0.02)
    save({"t": stored}, tmp_path / "large", [streamxf.FloatZip(), Checksum(), Encrypt(KEY)])
    command = [sys.executable, "-W", "ignore", "-c", PEAK, str(tmp_path / "large"), str(LARGE // 2)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    shutil.rmtree(tmp_path / "large")
    added = dict(map(json.loads, done.stdout.splitlines()))
    assert added.keys() == {"in place", "cast", "transposed"}, done.stderr
    assert max(added.values()) <= 96 * MIB, added
