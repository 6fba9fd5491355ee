"""`streamxf.Checkpoint`: items, tensors, slices and objects of a checkpoint, read without DCP."""

import errno
import gc
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint._extension import ZStandard as TorchZStandard

import streamxf
from streamxf import Checkpoint, Checksum, Encrypt, FloatZip, ZStandard, errors
from streamxf.format.items import ObjectItem, TensorItem
from streamxf.format.table import ItemTable
from tests.altered import flip
from tests.dcp import helpers
from tests.dcp.shards import rows, save_shards
from tests.failing import fails_with

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.complex64, torch.complex128, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
]
FLAT = {
    "weight": ("weight",),
    "half": ("half",),
    "nested.list.0": ("nested", "list", 0),
    "nested.list.1": ("nested", "list", 1),
    "nested.text": ("nested", "text"),
    "nested.raw": ("nested", "raw"),
    "nested.none": ("nested", "none"),
    "step": ("step",),
}


def value_at(state: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        state = state[step]
    return state


def of_streamxf(path: Path, state: dict[str, Any]) -> None:
    helpers.save(state, path, [FloatZip(), Checksum()])


def without_chain(path: Path, state: dict[str, Any]) -> None:
    helpers.save(state, path, [])


def of_torch(path: Path, state: dict[str, Any]) -> None:
    dcp.save(state, storage_writer=dcp.FileSystemWriter(path))


def of_torch_compressed(path: Path, state: dict[str, Any]) -> None:
    dcp.save(state, storage_writer=dcp.FileSystemWriter(path, _extensions=[TorchZStandard()]))


def of_torch_with_codecs(path: Path, state: dict[str, Any]) -> None:
    dcp.save(state, storage_writer=dcp.FileSystemWriter(path, _extensions=[ZStandard(), Checksum()]))


def attached(path: Path, state: dict[str, Any]) -> None:
    dcp.save(state, storage_writer=streamxf.attach(dcp.FileSystemWriter(path), [ZStandard()]))


WRITERS = [of_streamxf, without_chain, of_torch, of_torch_compressed, of_torch_with_codecs, attached]


# -- items, tensors and objects --------------------------------------------------------------------


def test_a_checkpoint_is_a_mapping_of_handles(tmp_path: Path) -> None:
    state = {"a": torch.arange(3), "step": 7}
    dcp.save(state, checkpoint_id=tmp_path, no_dist=True)
    with Checkpoint(tmp_path) as one, Checkpoint(tmp_path) as other:
        assert isinstance(one, Mapping)
        assert list(one.keys()) == list(one.stored) == ["a", "step"]
        assert {name: handle.name for name, handle in one.items()} == {"a": "a", "step": "step"}
        helpers.assert_same({name: handle.read() for name, handle in dict(one).items()}, state)
        assert [handle.name for handle in one.values()] == ["a", "step"]
        assert one.get("b") is None
        assert one == one
        assert one != other
        assert len({one, other, one}) == 2


@pytest.mark.parametrize("writer", WRITERS)
def test_everything_that_was_saved(writer: Callable[[Path, dict[str, Any]], None], tmp_path: Path) -> None:
    state = helpers.small_state()
    writer(tmp_path / "a", state)
    with Checkpoint(tmp_path / "a") as checkpoint:
        assert {name: item.path for name, item in checkpoint.stored.items()} == FLAT
        assert (list(checkpoint), len(checkpoint)) == (list(checkpoint.stored), len(FLAT))
        assert "weight" in checkpoint
        assert "other" not in checkpoint
        for name, path in FLAT.items():
            wanted = value_at(state, path)
            helpers.assert_same(checkpoint[name].read(), wanted, name)
            assert isinstance(checkpoint.stored[name], TensorItem if isinstance(wanted, torch.Tensor) else ObjectItem)
        handle = checkpoint["weight"]
        assert (handle.dtype, handle.shape, len(handle)) == ("float32", (7, 5), 7)
        assert 0 < handle.stored_bytes == sum(chunk.place.size for chunk in handle.chunks)
        assert repr(handle) == "TensorHandle('weight', float32, [7, 5])"
        assert repr(checkpoint["step"]) == "ObjectHandle('step')"
        with pytest.raises(KeyError):
            checkpoint["other"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("framework", ["torch", "numpy"])
@pytest.mark.parametrize("writer", [of_streamxf, of_torch])
def test_every_dtype(writer: Any, framework: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    wanted = torch.randint(0, 2, (3, 4, 5)).to(dtype)
    writer(tmp_path, {"w": wanted})
    with Checkpoint(tmp_path, framework=framework) as checkpoint:
        handle = checkpoint["w"]
        if framework == "torch":
            helpers.assert_same(handle.read(), wanted)
            helpers.assert_same(handle[1:, ::2, -1], wanted[1:, ::2, -1])
        elif (dtype.itemsize == 1 and dtype.is_floating_point) or dtype == torch.bfloat16:
            if importlib.util.find_spec("ml_dtypes") is None:
                with pytest.raises(errors.UnsupportedError, match="install ml_dtypes"):
                    handle.read()
                return
            assert str(handle.read().dtype) == str(dtype).removeprefix("torch.")
            assert handle.read().tobytes() == wanted.view(torch.uint8).numpy().tobytes()
        else:
            assert np.array_equal(handle.read(), wanted.numpy())
            assert handle.read().dtype == wanted.numpy().dtype
            assert np.array_equal(np.asarray(handle), wanted.numpy())
            assert np.asarray(handle, dtype="complex128").dtype == "complex128"


SHAPE = (6, 5, 4)
indices = st.one_of(
    st.integers(-4, 3),
    st.builds(slice, st.none() | st.integers(-7, 7), st.none() | st.integers(-7, 7), st.none() | st.integers(1, 4)),
)
keys = st.lists(indices, max_size=3).flatmap(
    lambda given: st.sampled_from(
        [tuple(given), *((*given[:at], Ellipsis, *given[at:]) for at in range(len(given) + 1))]
    )
)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Checkpoint, torch.Tensor]]:
    """A checkpoint of a tensor in three shards, of a block of its own each."""
    path = tmp_path_factory.mktemp("sharded")
    tensor = torch.arange(120.0).reshape(SHAPE)
    save_shards(path, [{"w": rows(tensor, rank, 3)} for rank in range(3)], lambda: [ZStandard()])
    with Checkpoint(path) as checkpoint:
        yield checkpoint, tensor


@given(key=keys)
def test_any_slice_is_what_torch_makes_of_it(sharded: tuple[Checkpoint, torch.Tensor], key: tuple[Any, ...]) -> None:
    checkpoint, tensor = sharded
    found, wanted = checkpoint["w"][key], tensor[key]
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("key", [6, -7, (0, 5), (0, 0, 0, 0), slice(None, None, -1), (..., ...), None, [1], True, "a"])
def test_what_is_not_an_index(sharded: tuple[Checkpoint, torch.Tensor], key: Any) -> None:
    with pytest.raises(IndexError):
        sharded[0]["w"][key]


def test_a_handle_is_iterated_by_rows(sharded: tuple[Checkpoint, torch.Tensor]) -> None:
    checkpoint, tensor = sharded
    helpers.assert_same(torch.stack(list(checkpoint["w"])), tensor)


def test_a_tensor_without_dimensions(tmp_path: Path) -> None:
    helpers.save({"scalar": torch.tensor(7.5), "empty": torch.ones(0, 3)}, tmp_path)
    with Checkpoint(tmp_path, keys=helpers.KEY) as checkpoint:
        helpers.assert_same(checkpoint["scalar"].read(), torch.tensor(7.5))
        helpers.assert_same(checkpoint["empty"][:, 1:], torch.ones(0, 2))
        with pytest.raises(TypeError, match="no length"):
            len(checkpoint["scalar"])


def test_a_slice_reads_the_blocks_that_it_needs(tmp_path: Path) -> None:
    """Damage elsewhere does not concern it."""
    tensor = torch.randn(1024, 256)
    helpers.save({"w": tensor}, tmp_path, [Checksum()], block_size=2**16)
    (file,) = helpers.data_files(tmp_path)
    flip(file)
    with Checkpoint(tmp_path) as checkpoint:
        helpers.assert_same(checkpoint["w"][:300, 7], tensor[:300, 7])
        helpers.assert_same(checkpoint["w"][-300:], tensor[-300:])
        with pytest.raises(errors.StreamxfError) as caught:
            checkpoint["w"].read()
    assert (caught.value.file, caught.value.item) == (str(file), "w")
    assert caught.value.block is not None


def test_transposed_and_repeated_tensors_of_torch(tmp_path: Path) -> None:
    """torch's writer stores strides."""
    state = {"t": torch.arange(12.0).reshape(3, 4).t(), "expanded": torch.arange(3.0)[:, None].expand(3, 5)}
    of_torch(tmp_path, state)
    with Checkpoint(tmp_path, framework="numpy") as checkpoint:
        for name, wanted in state.items():
            assert np.array_equal(checkpoint[name].read(), wanted.numpy())
            assert np.array_equal(checkpoint[name][1:, 2], wanted[1:, 2].numpy())


def test_objects_are_limited_to_what_is_safe(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="timedelta"):
        helpers.save({"time": timedelta(3)}, tmp_path)
    with (
        Checkpoint(tmp_path, keys=helpers.KEY) as checkpoint,
        pytest.raises(errors.PolicyError, match="timedelta") as caught,
    ):
        checkpoint["time"].read()
    assert caught.value.item == "time"
    for options in ({"safe_globals": [timedelta]}, {"weights_only": False}):
        with Checkpoint(tmp_path, keys=helpers.KEY, **options) as checkpoint:
            assert checkpoint["time"].read() == timedelta(3)


def test_a_tensor_is_no_object(tmp_path: Path) -> None:
    helpers.save(helpers.small_state(), tmp_path)
    with (
        Checkpoint(tmp_path, keys=helpers.KEY) as checkpoint,
        pytest.raises(errors.ParameterError, match="tensor") as caught,
    ):
        checkpoint.load_object("half")
    assert caught.value.item == "half"


# -- whose it is, and where ------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["memory://checkpoint-a/b", "local", "relative", "file"])
def test_anywhere(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = {"local": tmp_path / "a", "relative": "a", "file": (tmp_path / "a").as_uri()}.get(url, url)
    state = helpers.small_state()
    if "://" in str(place):
        writer: Any = streamxf.FsspecWriter(str(place), chain=helpers.full_chain())
    else:
        writer = streamxf.FileSystemWriter(place, chain=helpers.full_chain())
    dcp.save(state, storage_writer=writer)
    with Checkpoint(place, keys=helpers.KEY) as checkpoint:
        helpers.assert_same(checkpoint["weight"][2:4], state["weight"][2:4])
        assert checkpoint["step"].read() == 17
        assert checkpoint.save_ids == (writer.save_id,)
        assert checkpoint.authenticated


def test_storage_options_are_fsspecs(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    state = helpers.small_state()
    helpers.save(state, tmp_path / "a")
    options = {"target_protocol": "file", "cache_storage": str(tmp_path / "cache")}
    with Checkpoint(f"filecache://{tmp_path}/a", keys=helpers.KEY, storage_options=options) as checkpoint:
        helpers.assert_same(checkpoint["weight"].read(), state["weight"])
    assert (tmp_path / "cache").is_dir()


def test_keys(tmp_path: Path) -> None:
    state = helpers.small_state()
    helpers.save(state, tmp_path / "a")
    helpers.save(state, tmp_path / "plain", [])
    with pytest.raises(errors.KeyMissingError):
        Checkpoint(tmp_path / "a")
    with pytest.raises((errors.WrongKeyError, errors.KeyMissingError)):
        Checkpoint(tmp_path / "a", keys=helpers.OTHER_KEY)
    with pytest.raises(errors.PolicyError, match="not encrypted"):
        Checkpoint(tmp_path / "plain", keys=helpers.KEY)
    with pytest.raises(errors.ParameterError):
        Checkpoint(tmp_path / "plain", require="published")
    with Checkpoint(tmp_path / "a", keys=[helpers.OTHER_KEY, helpers.KEY]) as checkpoint:
        assert checkpoint.authenticated
        helpers.assert_same(checkpoint["half"].read(), state["half"])


def test_torchs_own_encrypted_checkpoint(tmp_path: Path) -> None:
    state = helpers.small_state()
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path, _extensions=helpers.full_chain()))
    with pytest.raises(errors.PolicyError, match="does not end in an index"):
        Checkpoint(tmp_path, keys=helpers.KEY)
    with Checkpoint(tmp_path, keys=helpers.KEY, require="encrypted") as checkpoint:
        helpers.assert_same(checkpoint["weight"].read(), state["weight"])
        assert checkpoint["step"].read() == 17
        assert checkpoint.save_ids == ()


def test_signed_checkpoints(tmp_path: Path) -> None:
    private, signing = streamxf.PrivateKey.generate(), streamxf.SigningKey.generate()
    chain = [ZStandard(), Encrypt(private.public, signer=signing)]
    state = helpers.small_state()
    helpers.save(state, tmp_path, chain)
    with pytest.raises(errors.PolicyError):
        Checkpoint(tmp_path, keys=private)
    with Checkpoint(tmp_path, keys=private, trust=signing.verify_key) as checkpoint:
        helpers.assert_same(checkpoint["weight"].read(), state["weight"])


def test_the_expected_save(tmp_path: Path) -> None:
    writer = streamxf.FileSystemWriter(tmp_path, chain=[])
    dcp.save({"w": torch.ones(3)}, storage_writer=writer)
    with Checkpoint(tmp_path, expect_save_id=writer.save_id) as checkpoint:
        assert checkpoint.save_ids == (writer.save_id,)
    with pytest.raises(errors.IdentityError):
        Checkpoint(tmp_path, expect_save_id="0" * 32)


def test_ranks_with_metadata_of_their_own(tmp_path: Path) -> None:
    tensor = torch.randn(9, 4)
    states = [{"w": rows(tensor, rank, 3), "b": torch.full((2,), float(rank)), "step": rank} for rank in range(3)]
    ids = save_shards(tmp_path, states, lambda: [Encrypt(helpers.KEY)], use_collectives=False)
    with Checkpoint(tmp_path, keys=helpers.KEY) as checkpoint:
        helpers.assert_same(checkpoint["w"][2:8], tensor[2:8])  # shards of all ranks
        assert set(checkpoint) == {
            *("w", "b", "step"),
            *(f"{name} (rank {rank})" for name in ("b", "step") for rank in (1, 2)),
        }
        helpers.assert_same(checkpoint["b (rank 2)"].read(), torch.full((2,), 2.0))
        assert checkpoint["step (rank 1)"].read() == 1
        assert checkpoint.save_ids == tuple(ids)
    with Checkpoint(tmp_path, keys=helpers.KEY, rank=1) as checkpoint:
        assert checkpoint["step"].read() == 1
        helpers.assert_same(checkpoint["w"][3:6], tensor[3:6])
        with pytest.raises(errors.MetadataError, match="not stored here"):
            checkpoint["w"].read()


# -- what goes wrong -------------------------------------------------------------------------------


def test_where_there_is_no_checkpoint(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(errors.NoCheckpointError):
            Checkpoint(path)
    helpers.save({"w": torch.ones(3)}, tmp_path / "a")
    (tmp_path / "a" / ".metadata").unlink()
    with pytest.raises(errors.MetadataError, match="no metadata at all"):
        Checkpoint(tmp_path / "a")
    with pytest.raises(errors.ParameterError, match="framework"):
        Checkpoint(tmp_path, framework="jax")  # type: ignore[arg-type]


def test_a_file_that_is_gone_or_cut(tmp_path: Path) -> None:
    helpers.save({"w": torch.ones(3000)}, tmp_path, [])
    (file,) = helpers.data_files(tmp_path)
    whole = file.read_bytes()
    file.unlink()
    with Checkpoint(tmp_path) as checkpoint, pytest.raises(errors.MetadataError, match="missing from the checkpoint"):
        checkpoint["w"].read()
    file.write_bytes(whole[:-1])
    with (
        Checkpoint(tmp_path) as checkpoint,
        pytest.raises(errors.ContainerError, match="truncated or appended to") as caught,
    ):
        checkpoint["w"].read()
    assert caught.value.file == str(file)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="it counts open files as Linux shows them")
def test_files_are_closed(tmp_path: Path) -> None:
    save_shards(tmp_path, [{f"w{rank}": torch.randn(50)} for rank in range(5)])
    gc.collect()  # what earlier tests left open
    before = len(os.listdir("/proc/self/fd"))
    with Checkpoint(tmp_path) as checkpoint:
        assert len(os.listdir("/proc/self/fd")) == before
        for name in checkpoint:
            checkpoint[name].read()
        assert len(os.listdir("/proc/self/fd")) == before + 5
    assert len(os.listdir("/proc/self/fd")) == before


# -- without torch ---------------------------------------------------------------------------------

PROGRAM = """
import sys

sys.modules["torch"] = None
import streamxf

with streamxf.Checkpoint("checkpoint", framework="numpy", keys=bytes(range(32)) if sys.argv[1:] else None) as found:
    for name, item in found.stored.items():
        print(name, (item.dtype, found[name][2:].tolist()) if name in "ab" else found[name].read())
"""


@pytest.mark.parametrize(("writer", "keyed"), [("streamxf", False), ("streamxf", True), ("torch", False)])
def test_torch_need_not_be_there(writer: str, keyed: bool, tmp_path: Path) -> None:
    state = {"a": torch.arange(4.0), "b": torch.arange(6).reshape(3, 2), "step": 17, "text": "x"}
    path = tmp_path / "checkpoint"
    if writer == "streamxf":
        helpers.save(state, path, helpers.full_chain() if keyed else [FloatZip()])
    else:
        of_torch(path, state)
    environment = {**os.environ, "PYTHONPATH": str(Path(streamxf.__file__).parents[1])}
    command = [sys.executable, "-c", PROGRAM, *(["keyed"] if keyed else [])]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["a ('float32', [2.0, 3.0])", "b ('int64', [[4, 5]])", "step 17", "text x"]


def test_a_file_that_cannot_be_read_is_not_damaged_below_a_stream_transform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dcp.save({"w": torch.randn(100_000)}, storage_writer=dcp.FileSystemWriter(tmp_path, _extensions=[TorchZStandard()]))
    with streamxf.Checkpoint(tmp_path) as checkpoint:
        monkeypatch.setattr(
            "streamxf.storage.reading._LocalFile.read_into", fails_with(OSError, errno.EIO, "Input/output error")
        )
        with pytest.raises(OSError, match="Input/output error"):
            checkpoint["w"].read()


@pytest.mark.parametrize("chain", [[ZStandard()], [ZStandard(), Encrypt(helpers.KEY)]], ids=["plain", "keyed"])
def test_no_codec_is_looked_up_before_the_table_has_passed(tmp_path: Path, chain: list[Any]) -> None:
    """R5 of the format: code of third parties is imported only then."""
    with streamxf.CheckpointWriter(tmp_path, chain) as writer:
        writer["weight"] = np.arange(100.0)
    (file,) = helpers.data_files(tmp_path)
    flip(file, -10)  # in the CRC of table and footer
    codecs = helpers.Watched()
    with (
        Checkpoint(tmp_path, keys=helpers.KEY if len(chain) > 1 else None, codecs=codecs) as checkpoint,
        pytest.raises(errors.ContainerError, match="table and footer"),
    ):
        checkpoint["weight"].read()
    assert codecs.built == []


def test_to_open_one_with_a_large_index_reads_no_item(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamxf.format.index._SMALL", 0)
    helpers.save(helpers.small_state(), tmp_path)
    with Checkpoint(tmp_path, keys=helpers.KEY) as checkpoint:
        (metadata,) = checkpoint.metadata
        assert isinstance(metadata.items, ItemTable)
        assert not metadata.items.parts._known
        assert "weight" in checkpoint
