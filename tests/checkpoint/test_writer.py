"""`streamxf.CheckpointWriter`: what it writes is what ``dcp.save`` writes, and nothing else is ever published."""

import array as arrays
import errno
import gc
import io
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st

import streamxf
from streamxf import Checkpoint, CheckpointWriter, Checksum, Encrypt, FloatZip, ZStandard
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.datafile import DataFile
from streamxf.checkpoint.metadata import read_metadata
from streamxf.checkpoint.saving import Save
from streamxf.checkpoint.sources import Content
from streamxf.errors import (
    AbortedError,
    ChainError,
    MetadataError,
    ParameterError,
    PolicyError,
    StreamxfError,
    UnsupportedError,
)
from streamxf.format.header import Identity, Kind
from streamxf.format.items import ObjectItem, TensorItem
from streamxf.format.limits import TRAILER_BYTES, WRAPPED_KEY_BYTES
from streamxf.format.sections import Trailer
from streamxf.storage.opening import open_storage
from streamxf.stream.encoder import MemorySource
from streamxf.torchsave.unpickler import read_stock
from streamxf.wording import reason_of
from tests.dcp.helpers import KEY, assert_same, blank, data_files, entries_of, raw_bytes
from tests.dcp.test_frame import DTYPES, filled
from tests.forked import status_of_child
from tests.progress.recorder import Recorder
from tests.reference_decoder import Value
from tests.reference_decoder import load as reference_load
from tests.reference_keys import Reader, aes_key

BLOCK = 1 << 16
CHAINS: dict[str, list[Any]] = {
    "none": [],
    "floatzip": [FloatZip()],
    "full": [ZStandard(level=1), Checksum(), Encrypt(KEY)],
}


def strided(dtype: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return filled(dtype, shape[::-1], seed).permute(tuple(reversed(range(len(shape)))))


def written(path: Path, items: dict[str, Any], **options: Any) -> CheckpointWriter:
    with CheckpointWriter(path, **options) as writer:
        for name, value in items.items():
            writer[name] = value
    return writer


tensors = st.builds(
    lambda make, dtype, shape, seed: make(dtype, shape, seed),
    st.sampled_from([filled, strided]),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 4), max_size=3).map(tuple) | st.just((70_000,)),
    st.integers(0, 9),
)
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary(max_size=9)
)
objects = leaves | st.tuples(leaves, st.dictionaries(st.text(max_size=5), st.lists(leaves, max_size=3), max_size=2))
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


# -- equal to dcp.save ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("chain", CHAINS)
@settings(settings.get_profile("disk"))
@given(state=st.dictionaries(names, tensors | objects, max_size=5))
def test_what_it_writes_is_what_dcp_saves(chain: str, state: dict[str, Any]) -> None:
    codecs = CHAINS[chain]
    keys = KEY if chain == "full" else None
    with TemporaryDirectory() as folder:
        ours, theirs = Path(folder, "ours"), Path(folder, "theirs")
        written(ours, state, chain=codecs, block_size=BLOCK)
        saver = streamxf.FileSystemWriter(theirs, _extensions=codecs, block_size=BLOCK, sync_files=False)
        dcp.save(dict(state), storage_writer=saver, no_dist=True)
        with Checkpoint(ours, keys=keys) as found, Checkpoint(theirs, keys=keys) as expected:
            assert found.stored.keys() == expected.stored.keys() == state.keys()
            for name, item in found.stored.items():
                assert_alike(item, expected.stored[name])
                assert_same(found[name].read(), expected[name].read())
        stock = blank(state)
        reader = dcp.FileSystemReader(ours, _extension_registry=streamxf.Registry(keys=keys))
        dcp.load(stock, storage_reader=reader, no_dist=True)
        assert_same(stock, state)
        decoded = reference_load(ours, Reader([aes_key(KEY.reveal())] if keys else []))
        assert decoded.keys() == state.keys()
        for name, value in state.items():
            found_item = decoded[name]
            if isinstance(found_item, Value):
                assert_same(found_item.value, value)
            elif isinstance(found_item, bytes):
                assert_same(torch.load(io.BytesIO(found_item), weights_only=False), value)
            elif found_item.data is not None:
                assert found_item.data == bytes(raw_bytes(value).numpy())


def assert_alike(found: Any, expected: Any) -> None:
    """The same but for where it is."""
    assert (type(found), found.path) == (type(expected), expected.path)
    if isinstance(found, TensorItem):
        facts = [
            (item.dtype, item.shape, item.properties, [(*c[:2], c[3]) for c in item.chunks])
            for item in (found, expected)
        ]
        assert facts[0] == facts[1]


@pytest.mark.parametrize("chain", CHAINS)
def test_the_pickle_is_torchs_own_metadata(tmp_path: Path, chain: str) -> None:
    state = {"w": torch.nn.Parameter(torch.ones(3, 2)), "é.b": torch.zeros(0, 5), "step": 2**40, "x": torch.tensor(1.5)}
    writer = written(tmp_path / "a", state, chain=CHAINS[chain], extra={"note": [1, -2.5, b"x", (None, {"k": "v"})]})
    saver = streamxf.FileSystemWriter(tmp_path / "b", _extensions=CHAINS[chain])
    dcp.save(dict(state), storage_writer=saver, no_dist=True)
    found, expected = (dcp.FileSystemReader(tmp_path / name).read_metadata() for name in "ab")
    assert found.note == [1, -2.5, b"x", (None, {"k": "v"})]  # type: ignore[attr-defined]
    assert vars(found).pop("note") == Checkpoint(tmp_path / "a", keys=KEY if chain == "full" else None).extra["note"]
    assert found.storage_meta is not None
    assert (found.storage_meta.save_id, found.storage_meta.checkpoint_id) == (writer.save_id, str(tmp_path / "a"))
    assert entries_of(found) == entries_of(expected)
    assert found.planner_data == expected.planner_data == {name: (name,) for name in state}
    assert {*found.storage_data} == {*expected.storage_data}
    assert found.version == expected.version


def test_the_pickle_has_all_of_the_layers_that_are_alike(tmp_path: Path) -> None:
    made = [torch.zeros, torch.ones, lambda *shape: torch.nn.Parameter(torch.ones(*shape))]
    state = {f"{layer}.{kind}": make(3, 2) for layer in range(4) for kind, make in enumerate(made)}
    state |= {
        f"{layer}.{dtype}": torch.ones(3, 2, dtype=dtype) for layer in range(4) for dtype in (torch.half, torch.int)
    }
    state |= {f"{layer}.turned": torch.ones(2, 3) for layer in range(4)}
    written(tmp_path / "a", state)
    dcp.save(dict(state), storage_writer=dcp.FileSystemWriter(tmp_path / "b"), no_dist=True)
    found, expected = (dcp.FileSystemReader(tmp_path / name).read_metadata() for name in "ab")
    assert entries_of(found) == entries_of(expected)
    assert {*found.storage_data} == {*expected.storage_data}


def test_what_it_knows_of_items_leaves_the_garbage_collector_nothing_to_look_into(tmp_path: Path) -> None:
    file = DataFile(io.BytesIO(), "a", Save.to(tmp_path / "a", "floatzip"))
    geometry, before = ((0,), (3,), (3,)), 0
    for number in range(1100):
        if number == 100:
            gc.collect()
            before = len(gc.get_objects())
        part = Identity(b"", Kind.TENSOR, f"w{number}", "float32", *geometry)
        file.add(part, lambda: Content(MemorySource(memoryview(bytes(12))), Kind.TENSOR))
    gc.collect()
    assert len(gc.get_objects()) - before < 100
    assert [(name, chunk.place.number) for name, chunk in file.finish().written] == [(f"w{n}", n) for n in range(1100)]


def test_its_pickle_is_one_of_other_writers_where_the_index_is_gone(tmp_path: Path) -> None:
    written(tmp_path, {"w": torch.ones(300, 2), "step": 1}, chain="zstd")
    data = (tmp_path / ".metadata").read_bytes()
    trailer = Trailer.parse(data[-TRAILER_BYTES:], len(data))
    assert trailer is not None
    with Checkpoint(tmp_path) as checkpoint:
        items = read_stock(data[: trailer.head_size], None).items
        assert items.keys() == checkpoint.stored.keys()
        assert items["w"].places[0][:3] == checkpoint.stored["w"].places[0][:3]


def test_paths_nest_as_in_a_state_dict(tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path) as writer:
        writer.add("model.layers.0", np.ones(3), path=("model", "layers", 0))
        writer.add("step", 7)
    target: dict[str, Any] = {"model": {"layers": [torch.zeros(3, dtype=torch.float64)]}, "step": 0}
    dcp.load(target, storage_reader=streamxf.FileSystemReader(tmp_path), no_dist=True)
    assert target["step"] == 7
    assert torch.equal(target["model"]["layers"][0], torch.ones(3, dtype=torch.float64))


# -- what is given ----------------------------------------------------------------------------------------------


def read_back(path: Path, value: Any, **options: Any) -> torch.Tensor:
    with CheckpointWriter(path) as writer:
        writer.add("x", value, **options)
    with Checkpoint(path) as checkpoint:
        found = checkpoint["x"].read()
    assert isinstance(found, torch.Tensor)
    return found


class OnlyDlpack:
    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


@pytest.mark.parametrize(
    "value",
    [
        *(np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(3, 2).T, np.arange(12)[::-2], np.arange(6, dtype=">f4")),
        *(np.arange(12, dtype=">c16")[::2], np.array(3, np.uint16), np.zeros((3, 0, 2), np.int8)),
        *(np.array([True, False]), np.broadcast_to(np.float32(2), (300, 400)), arrays.array("h", [1, -2, 3])),
        *(memoryview(b"abcdef")[::2], torch.arange(6.0).reshape(2, 3).t(), torch.arange(4).to(torch.complex64).conj()),
        *(torch.arange(5, dtype=torch.bfloat16), OnlyDlpack(np.arange(5.0))),
        OnlyDlpack(torch.arange(5, dtype=torch.bfloat16)),
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'dtype', '')}",
)
def test_whatever_shows_its_memory_is_a_tensor(tmp_path: Path, value: Any) -> None:
    expected = value if isinstance(value, torch.Tensor) else None
    if expected is None and isinstance(value, OnlyDlpack):
        expected = torch.from_dlpack(value)
    if expected is None:
        made = np.asarray(value)
        expected = torch.from_numpy(made.astype(made.dtype.newbyteorder("="), order="C"))
    assert_same(read_back(tmp_path, value), expected.resolve_conj())


@pytest.mark.parametrize(
    "value", [b"abc", bytearray(b"abc"), "abc", 1, 2.5, None, np.float32(2), [1, 2], {"a": torch.ones(2)}]
)
def test_anything_else_is_an_object_as_it_is_to_dcp(tmp_path: Path, value: Any) -> None:
    written(tmp_path, {"x": value})
    with Checkpoint(tmp_path) as checkpoint:
        assert isinstance(checkpoint.stored["x"], ObjectItem)
        assert_same(checkpoint["x"].read(), value)


def test_a_dtype_says_what_the_elements_are(tmp_path: Path) -> None:
    raw = np.arange(6, dtype=np.uint16)
    assert_same(read_back(tmp_path / "a", raw, dtype="bfloat16"), torch.from_numpy(raw).view(torch.bfloat16))
    eight = torch.arange(6, dtype=torch.uint8)
    assert_same(read_back(tmp_path / "b", eight, dtype=torch.float8_e5m2), eight.view(torch.float8_e5m2))


def test_ml_dtypes(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for number, name in enumerate(["bfloat16", "float8_e4m3fn", "float8_e5m2"]):
        array = np.arange(12).reshape(3, 4).astype(getattr(ml_dtypes, name))
        for view in (array, array.T, array[:, ::2]):
            found = read_back(tmp_path / f"{number}{view.shape}{view.strides}", view)
            assert found.dtype == getattr(torch, name)
            assert np.array_equal(found.float().numpy(), view.astype(np.float32))


def pieces(data: bytes, step: int) -> Iterator[memoryview]:
    """Always in the same memory."""
    buffer = bytearray(step)
    for at in range(0, len(data), step):
        part = data[at : at + step]
        buffer[: len(part)] = part
        yield memoryview(buffer)[: len(part)]


@pytest.mark.parametrize("chain", ["", "zstd", "checksum"])
@pytest.mark.parametrize("step", [1, 999, BLOCK, 3 * BLOCK + 1])
def test_elements_in_pieces(tmp_path: Path, chain: str, step: int) -> None:
    count = 5 * BLOCK + 8 if step > 1 else 64
    expected = filled("float64", (count // 8,), 3)
    data = bytes(raw_bytes(expected).numpy())
    with CheckpointWriter(tmp_path, chain=chain, block_size=BLOCK) as writer:
        writer.add("pieces", pieces(data, step), dtype="float64", shape=[count // 8])
        writer.add("file", io.BytesIO(data), dtype="float64", shape=expected.shape)
        writer.add("whole", data, dtype="float64", shape=expected.shape)
        writer.add("empty", [], dtype="float64", shape=(0, 3))
    with Checkpoint(tmp_path) as checkpoint:
        for name in ("pieces", "file", "whole"):
            assert_same(checkpoint[name].read(), expected)
        assert checkpoint["empty"].read().shape == (0, 3)


@pytest.mark.parametrize("chain", ["", "zstd"])
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (lambda: [bytes(15)], "fewer bytes than the 16"),
        (lambda: [bytes(9), b"", bytes(8)], "more bytes than the 16"),
        (lambda: io.BytesIO(bytes(17)), "more bytes"),
        (lambda: b"", "fewer"),
    ],
)
def test_pieces_that_do_not_add_up(tmp_path: Path, chain: str, source: Callable[[], Any], reason: str) -> None:
    path = tmp_path / "c"
    with pytest.raises(ParameterError, match=reason) as caught, CheckpointWriter(path, chain=chain) as writer:
        writer.add("w", source(), dtype="float32", shape=(4,))
    assert caught.value.item == "w"
    assert not path.exists()


class Cuts:
    """Says that it has a shape, and is not an array."""

    def __init__(self) -> None:
        self.shape = (2,)


REFUSED: dict[str, tuple[type[Exception], Callable[[CheckpointWriter], object]]] = {
    "a name twice": (ParameterError, lambda w: [w.add("a", 1), w.add("a", 2)]),
    "no name": (ParameterError, lambda w: w.add("", 1)),
    "a number for a name": (ParameterError, lambda w: w.add(3, 1)),  # type: ignore[arg-type]
    "half a character": (ParameterError, lambda w: w.add("\ud800", 1)),
    "a path of floats": (ParameterError, lambda w: w.add("a", 1, path=(1.5,))),  # type: ignore[arg-type]
    "an empty path": (ParameterError, lambda w: w.add("a", 1, path=())),
    "text in an array": (UnsupportedError, lambda w: w.add("a", np.array(["x"]))),
    "objects in an array": (UnsupportedError, lambda w: w.add("a", np.array([None]))),
    "a tensor without data": (UnsupportedError, lambda w: w.add("a", torch.empty(3, device="meta"))),
    "a sparse tensor": (UnsupportedError, lambda w: w.add("a", torch.eye(3).to_sparse())),
    "a dtype of another size": (ParameterError, lambda w: w.add("a", np.zeros(3), dtype="bfloat16")),
    "a dtype nobody knows": (ParameterError, lambda w: w.add("a", np.zeros(3), dtype="float7")),
    "a dtype of an object": (ParameterError, lambda w: w.add("a", "text", dtype="int8")),
    "a shape without a dtype": (ParameterError, lambda w: w.add("a", b"", shape=(0,))),
    "a negative shape": (ParameterError, lambda w: w.add("a", b"", shape=(-1,), dtype="int8")),
    "a shape of an object": (ParameterError, lambda w: w.add("a", Cuts(), shape=(2,), dtype="int8")),
    "a shape of a tensor": (ParameterError, lambda w: w.add("a", torch.ones(2), shape=(2,), dtype="float32")),
    "pieces that are not bytes": (TypeError, lambda w: w.add("a", ["x"], shape=(1,), dtype="int8")),
    "what cannot be pickled": (Exception, lambda w: w.add("a", lambda: None)),
    "a name too long": (StreamxfError, lambda w: w.add("x" * 5000, np.zeros(3))),
}


@pytest.mark.parametrize("there", [True, False])
def test_what_stands_in_the_place_of_the_folder_is_named(tmp_path: Path, there: bool) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    if there:
        (tmp_path / "target").touch()
    text = "this is a file, and" if there else "dangling symbolic link"
    with pytest.raises(NotADirectoryError, match=text):
        CheckpointWriter(tmp_path / "link")


def test_advice_does_not_go_for_a_place(tmp_path: Path) -> None:
    error = OSError(errno.EROFS, os.strerror(errno.EROFS), "c")
    error.add_note("while storing file a")
    advice = "its file system is mounted read-only: have it mounted for writing"
    assert reason_of(error).endswith(f"while storing file a; {advice}")
    save = Save.to(tmp_path / "c", "checksum")
    save.discard([], error)
    assert error.__notes__[1:] == [f"{advice}, or save elsewhere"]
    assert reason_of(error).count(advice) == 1


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("swallowed", [False, True])
def test_after_any_error_nothing_is_published(tmp_path: Path, case: str, swallowed: bool) -> None:
    kind, action = REFUSED[case]
    path = tmp_path / "new" / "checkpoint"
    with pytest.raises(ParameterError if swallowed else kind), CheckpointWriter(path) as writer:
        writer["before"] = np.zeros(10**6)
        try:
            action(writer)
        except kind:
            with pytest.raises(ParameterError, match="nothing will be published"):
                writer.add("after", 1)
            if not swallowed:
                raise
    assert not (tmp_path / "new").exists()
    assert (writer.save_id, writer.report) == (None, None)


# -- one step --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_leaving_by_an_exception_publishes_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    written(tmp_path, {"old": 1})
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(error), CheckpointWriter(tmp_path, overwrite=True) as writer:
        writer["new"] = np.zeros(10**6)
        assert len(data_files(tmp_path)) == 2
        raise error
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_publishing_replaces_in_one_step_and_removes_the_old(tmp_path: Path) -> None:
    first = written(tmp_path, {"old": 1})
    with CheckpointWriter(tmp_path, overwrite=True) as writer:
        writer["new"] = 2
        with Checkpoint(tmp_path) as checkpoint:
            assert checkpoint.save_ids == (first.save_id,)
    with Checkpoint(tmp_path) as checkpoint:
        assert [*checkpoint] == ["new"]
        assert checkpoint.save_ids == (writer.save_id,)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_checkpoint_is_not_replaced_unasked(tmp_path: Path) -> None:
    written(tmp_path, {"old": 1})
    with pytest.raises(FileExistsError):
        CheckpointWriter(tmp_path)


def test_nor_is_one_that_came_meanwhile(tmp_path: Path) -> None:
    with pytest.raises(AbortedError, match=r"may not replace it \(overwrite\)"), CheckpointWriter(tmp_path) as writer:
        writer["mine"] = 1
        other = written(tmp_path, {"other": 1})
    with Checkpoint(tmp_path) as checkpoint:
        assert checkpoint.save_ids == (other.save_id,)
    assert len(list(tmp_path.iterdir())) == 2


def test_an_empty_checkpoint(tmp_path: Path) -> None:
    written(tmp_path, {})
    with Checkpoint(tmp_path) as checkpoint:
        assert not checkpoint.stored
    assert [file.name for file in tmp_path.iterdir()] == [".metadata"]


def test_items_are_for_the_with_block(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path)
    with pytest.raises(ParameterError, match="`with` block"):
        writer["a"] = 1
    assert not list(tmp_path.iterdir())
    with writer:
        writer["a"] = 1
    with pytest.raises(ParameterError, match="another CheckpointWriter"):
        writer["b"] = 1
    with pytest.raises(ParameterError, match="one checkpoint"), writer:
        pass


def test_a_source_that_writes_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="in use"), CheckpointWriter(tmp_path) as writer:

        def source() -> Iterator[bytes]:
            yield b"a"
            writer["inner"] = 1
            yield b"b"

        writer.add("outer", source(), dtype="int8", shape=(2,))
    assert not list(tmp_path.iterdir())


def test_another_thread_waits_for_nothing(tmp_path: Path) -> None:
    found: list[BaseException] = []

    def other(writer: CheckpointWriter) -> None:
        try:
            writer["theirs"] = 1
        except ParameterError as error:
            found.append(error)

    def source(writer: CheckpointWriter) -> Iterator[bytes]:
        thread = threading.Thread(target=other, args=(writer,))
        thread.start()
        thread.join()
        yield b"a"

    with CheckpointWriter(tmp_path) as writer:
        writer.add("mine", source(writer), dtype="int8", shape=(1,))
    assert len(found) == 1
    with Checkpoint(tmp_path) as checkpoint:
        assert [*checkpoint] == ["mine"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_that_goes_on_or_leaves_changes_nothing(tmp_path: Path) -> None:
    def go_on() -> None:
        with pytest.raises(AbortedError):
            writer["b"] = 1
        with pytest.raises(AbortedError):
            writer.__exit__(None, None, None)

    def leave() -> None:
        writer.__exit__(SystemExit, SystemExit(7), None)
        gc.collect()

    sizes = {"a": 10**5, "small": 100, "other": 50}
    with CheckpointWriter(tmp_path, chain="checksum") as writer:
        for name, size in sizes.items():
            assert [status_of_child(act) for act in (go_on, leave)] == [0, 0]
            writer.add(name, np.arange(size))  # small ones are gathered with what follows
    with Checkpoint(tmp_path, framework="numpy") as checkpoint:
        assert {name: checkpoint[name].read().tolist() for name in checkpoint} == {
            name: [*range(size)] for name, size in sizes.items()
        }


# -- memory ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chain", ["", "checksum", "zstd"])
@pytest.mark.parametrize("size", [10, BLOCK // 8, 7 * BLOCK])
def test_memory_may_change_as_soon_as_it_was_given(tmp_path: Path, chain: str, size: int) -> None:
    with CheckpointWriter(tmp_path, chain=chain, block_size=BLOCK) as writer:
        for number in range(4):
            memory = np.full((size, 2), number, np.int64)
            writer[f"{number}"] = memory
            writer[f"{number}t"] = memory.T
            memory[:] = -1
    with Checkpoint(tmp_path, framework="numpy") as checkpoint:
        for number in range(4):
            assert (np.asarray(checkpoint[f"{number}"][...]) == number).all()
            assert (np.asarray(checkpoint[f"{number}t"][...]) == number).all()


def test_without_a_copy_it_stays_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from streamxf.checkpoint.datafile import DataFile

    settled = []
    monkeypatch.setattr(DataFile, "settle", lambda file, settle=DataFile.settle: [settled.append(1), settle(file)])
    with CheckpointWriter(tmp_path, block_size=BLOCK) as writer:
        writer.add("a", np.arange(BLOCK), copy=False)
        assert not settled
        writer.add("b", np.arange(BLOCK))
        assert len(settled) == 1
    assert len(settled) == 2


def test_a_number_that_two_items_have_is_never_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ties a container to its row in the index, and no reader would take either."""
    monkeypatch.setattr("streamxf.checkpoint.saving.count", lambda *_: repeat(7))
    with pytest.raises(MetadataError, match="one writer and number"):
        written(tmp_path / "new", {"a": np.ones(5), "b": np.ones(5)}, chain="zstd")
    assert not (tmp_path / "new").exists()


# -- what else -------------------------------------------------------------------------------------------------


def test_one_process_has_one_data_key(tmp_path: Path) -> None:
    """Which its metadata has: files name those of other processes."""
    with CheckpointWriter(tmp_path, chain=[Encrypt(KEY)]) as writer:
        writer["a"] = np.zeros(10)
    found = read_metadata(open_storage(tmp_path), ".metadata", Access.of(KEY))
    assert {file.key for file in found.files.values()} == {bytes(WRAPPED_KEY_BYTES)}


def test_recipients_and_a_signer(tmp_path: Path) -> None:
    signer = streamxf.SigningKey(bytes(range(7, 39)))
    pair = streamxf.PrivateKey(bytes(range(2, 34)))
    written(tmp_path, {"w": np.ones(5)}, recipients=[KEY, pair.public], signer=signer)
    with Checkpoint(tmp_path, keys=pair, trust=signer.verify_key, require="published") as checkpoint:
        assert torch.equal(checkpoint["w"].read(), torch.ones(5, dtype=torch.float64))
        assert checkpoint.authenticated


def test_a_signer_alone(tmp_path: Path) -> None:
    signer, stranger = (streamxf.SigningKey(bytes(range(first, first + 32))) for first in (7, 8))
    written(tmp_path, {"w": np.ones(5)}, signer=signer)
    with Checkpoint(tmp_path, trust=signer.verify_key) as checkpoint:
        assert torch.equal(checkpoint["w"].read(), torch.ones(5, dtype=torch.float64))
    with pytest.raises(PolicyError):
        Checkpoint(tmp_path, trust=stranger.verify_key)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"chain": "zstd", "recipients": KEY}, ParameterError),
        ({"chain": [FloatZip(), "x"]}, ChainError),
        ({"block_size": 1000}, ParameterError),
        ({"extra": {"planner_data": 1}}, ParameterError),
        ({"extra": {"_private": 1}}, UnsupportedError),
        ({"extra": {"a": object()}}, UnsupportedError),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else value.__name__,
)
def test_arguments_that_cannot_be(tmp_path: Path, options: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        CheckpointWriter(tmp_path / "c", **options)
    assert not list(tmp_path.iterdir())


def test_readers_that_would_refuse_an_object_are_a_warning(tmp_path: Path) -> None:
    value = {"where": Path("x")}
    with pytest.warns(UserWarning, match="readers will refuse objects"):
        written(tmp_path / "a", {"o": value})
    with warnings.catch_warnings(), pytest.raises(UserWarning):
        warnings.simplefilter("error")
        written(tmp_path / "b", {"o": value})
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("chain", ["", "zstd"])
def test_progress_and_report(tmp_path: Path, chain: str) -> None:
    progress = Recorder()
    items = {"w": np.zeros(10**5), "step": 1, "q": torch.zeros(3)}
    writer = written(tmp_path, items, chain=chain, progress=progress, block_size=BLOCK)
    assert progress.expected == progress.done >= 8 * 10**5
    assert writer.report is not None
    assert writer.report.items == 3
    assert writer.report.stored_bytes == sum(file.stat().st_size for file in data_files(tmp_path))


def test_a_url(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        written(tmp_path, {}, chain="")
        with CheckpointWriter("memory://checkpoint-writer/c", overwrite=True) as writer:
            writer["w"] = np.arange(10**5)
        with pytest.raises(RuntimeError), CheckpointWriter("memory://checkpoint-writer/c", overwrite=True) as failing:
            failing["other"] = np.arange(10**5)
            raise RuntimeError
    with Checkpoint("memory://checkpoint-writer/c") as checkpoint:
        assert torch.equal(checkpoint["w"].read(), torch.arange(10**5))
        assert len(checkpoint.storage.names()) == 2


SCRIPT = """
import sys, numpy as np, streamxf
with streamxf.CheckpointWriter(sys.argv[1], chain="zstd+checksum", overwrite=True) as writer:
    writer["w"] = np.arange(10.0)
    writer["step"] = 100
    writer.add("b", (bytes(2) for _ in range(6)), dtype="bfloat16", shape=(2, 3))
assert "torch" not in sys.modules
"""


def test_torch_is_not_needed(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], check=True)
    target = {"w": torch.zeros(10, dtype=torch.float64), "step": 0, "b": torch.ones(2, 3, dtype=torch.bfloat16)}
    dcp.load(target, storage_reader=streamxf.FileSystemReader(tmp_path), no_dist=True)
    assert target["step"] == 100
    assert torch.equal(target["w"], torch.arange(10.0, dtype=torch.float64))
