"""What a checkpoint becomes in each format, and what is refused."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file
from torch.distributed.checkpoint import FileSystemReader as StockReader
from torch.distributed.checkpoint import FileSystemWriter as StockWriter
from torch.distributed.checkpoint import load as dcp_load
from torch.distributed.checkpoint import save as dcp_save

import streamxf
from streamxf.errors import ContainerError, KeyMissingError, ParameterError, UnsupportedError
from streamxf.tools.convert.pack import pack
from streamxf.tools.convert.unpack import unpack
from tests.altered import flip
from tests.dcp.s3_server import storage
from tests.progress.recorder import Recorder
from tests.tools.convert.states import bits

DTYPES = [torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64]
DTYPES += [torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
DTYPES += [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu]

NAMES = st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__" and name.isprintable())


def tensor(dtype: torch.dtype, shape: tuple[int, ...], data: bytes) -> torch.Tensor:
    count = int(np.prod(shape)) * dtype.itemsize
    data = (data * (count // max(1, len(data)) + 1))[:count]
    if dtype == torch.bool:
        data = bytes(each & 1 for each in data)
    return torch.tensor(list(data), dtype=torch.uint8).view(dtype).view(shape)


TENSORS = st.builds(
    tensor,
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 4), max_size=3).map(tuple),
    st.binary(min_size=1, max_size=64),
)


def trained() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "model": {"b": torch.randn(10).double(), "s": torch.tensor(3), "w": torch.randn(40, 30).bfloat16()},
        "optimizer": [{"lr": 0.1, "m": torch.randn(5, 5)}, {"lr": 0.2, "m": torch.randn(5, 5)}],
        "step": 7,
    }


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A training checkpoint."""
    dcp_save(trained(), storage_writer=streamxf.FileSystemWriter(tmp_path / "checkpoint"))
    return tmp_path / "checkpoint"


def assert_same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key in wanted:
            assert_same(found[key], wanted[key])
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    elif isinstance(wanted, torch.Tensor):
        assert (found.dtype, found.shape, bits(found)) == (wanted.dtype, wanted.shape, bits(wanted))
    else:
        assert found == wanted


# -- safetensors -----------------------------------------------------------------------------------------------------


@settings(settings.get_profile("disk"))
@given(state=st.dictionaries(NAMES, TENSORS, min_size=1, max_size=8))
def test_a_new_file_is_the_one_that_the_library_writes(tmp_path_factory, state):
    folder = tmp_path_factory.mktemp("unpack")
    dcp_save(dict(state), storage_writer=streamxf.FileSystemWriter(folder / "checkpoint"))
    done = unpack(folder / "checkpoint", folder / "x.safetensors")
    data = (folder / "x.safetensors").read_bytes()
    assert data == save(state, metadata={"format": "pt"})
    assert (done.tensors, done.objects, done.bytes, done.restored) == (len(state), 0, len(data), False)


@settings(settings.get_profile("disk"))
@given(
    state=st.dictionaries(NAMES, TENSORS, min_size=1, max_size=6),
    metadata=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    chain=st.sampled_from(["", "zstd", "floatzip+checksum"]),
    indent=st.sampled_from([None, 2]),
    data=st.data(),
)
def test_a_packed_file_comes_back_byte_for_byte(tmp_path_factory, state, metadata, chain, indent, data):
    """Whatever its header looks like, which other programs may have written."""
    folder = tmp_path_factory.mktemp("unpack")
    order = data.draw(st.permutations(list(state)))
    names = json.loads(save(state)[8 : 8 + int.from_bytes(save(state)[:8], "little")])
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    content = b""
    for name in order:
        end = len(content) + state[name].nbytes
        header[name] = {
            "shape": names[name]["shape"],
            "dtype": names[name]["dtype"],
            "data_offsets": [len(content), end],
        }
        content += bits(state[name])
    text = json.dumps(header, indent=indent).encode() + b" " * data.draw(st.integers(0, 9))
    (folder / "a.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + content)
    pack(folder / "a.safetensors", folder / "packed", chain)
    done = unpack(folder / "packed", folder / "b.safetensors")
    assert (folder / "b.safetensors").read_bytes() == (folder / "a.safetensors").read_bytes()
    assert done.restored
    unpack(folder / "packed", folder / "c")
    assert (folder / "c").read_bytes() == (folder / "a.safetensors").read_bytes()


def test_what_safetensors_has_no_place_for(tmp_path, checkpoint):
    with pytest.raises(UnsupportedError, match=r"3 objects .*: .*lr.*step"):
        unpack(checkpoint, tmp_path / "x.safetensors")
    done = unpack(checkpoint, tmp_path / "x.safetensors", skip_objects=True)
    assert set(done.left_out) == {"optimizer.0.lr", "optimizer.1.lr", "step"}
    assert "left out: step" in str(done)
    assert len(load_file(tmp_path / "x.safetensors")) == done.tensors == 5
    state = {"c": torch.zeros(2, dtype=torch.complex128), "x": torch.zeros(1)}
    dcp_save(state, storage_writer=streamxf.FileSystemWriter(tmp_path / "complex"))
    with pytest.raises(UnsupportedError, match=r"1 tensor: c \(complex128\)"):
        unpack(tmp_path / "complex", tmp_path / "y.safetensors")
    assert not (tmp_path / "y.safetensors").exists()
    dcp_save({"__metadata__": torch.zeros(1)}, storage_writer=streamxf.FileSystemWriter(tmp_path / "named"))
    with pytest.raises(UnsupportedError, match="of such names: __metadata__"):
        unpack(tmp_path / "named", tmp_path / "y.safetensors")


def test_a_model_is_taken_out_of_a_training_checkpoint(tmp_path, checkpoint):
    model = trained()["model"]
    unpack(checkpoint, tmp_path / "x.safetensors", prefix="model.")
    assert_same(dict(sorted(load_file(tmp_path / "x.safetensors").items())), dict(sorted(model.items())))
    unpack(checkpoint, tmp_path / "x.pt", prefix="model.")
    assert_same(torch.load(tmp_path / "x.pt"), model)
    unpack(checkpoint, tmp_path / "one.safetensors", only=["*.m"], prefix="optimizer.")
    assert list(load_file(tmp_path / "one.safetensors")) == ["0.m", "1.m"]
    with pytest.raises(ParameterError, match="no item has such a name"):
        unpack(checkpoint, tmp_path / "none.safetensors", prefix="other.")


# -- torch.save ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".ckpt", ".PT"])
def test_a_state_dict_is_nested_as_it_was_saved(tmp_path, checkpoint, suffix):
    done = unpack(checkpoint, tmp_path / f"x{suffix}")
    assert_same(torch.load(tmp_path / f"x{suffix}", weights_only=True), trained())
    assert (done.format, done.tensors, done.objects) == ("torch.save", 5, 3)
    assert done.bytes == (tmp_path / f"x{suffix}").stat().st_size


@pytest.mark.parametrize("writer", [StockWriter, streamxf.FileSystemWriter])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex128, torch.complex32], ids=str)
def test_every_dtype_goes_through_torchs_format(tmp_path, writer, dtype):
    state = {"turned": tensor(dtype, (3, 5), bytes(range(60))).T, "x": tensor(dtype, (3, 5), bytes(range(60)))}
    dcp_save(dict(state), storage_writer=writer(tmp_path / "checkpoint"))
    unpack(tmp_path / "checkpoint", tmp_path / "x.pt")
    assert_same(torch.load(tmp_path / "x.pt"), state)


# -- Hugging Face ----------------------------------------------------------------------------------------------------


def test_a_folder_of_shards_has_an_index(tmp_path, checkpoint):
    done = unpack(checkpoint, tmp_path / "hub", prefix="model.", shard_size=100)
    assert (done.format, done.files) == ("Hugging Face", 3)
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
    assert sorted(os.listdir(tmp_path / "hub")) == files
    index = json.loads((tmp_path / "hub" / files[2]).read_text())
    model = trained()["model"]
    assert index["metadata"] == {"total_size": sum(value.nbytes for value in model.values())}
    shards = {name: load_file(tmp_path / "hub" / name) for name in files[:2]}
    assert index["weight_map"] == {name: file for file, shard in shards.items() for name in shard}
    found = {name: value for shard in shards.values() for name, value in shard.items()}
    assert_same({name: found[name] for name in model}, model)
    unpack(checkpoint, tmp_path / "small", prefix="model.")
    assert os.listdir(tmp_path / "small") == ["model.safetensors"], "one file needs no index"


# -- DCP -------------------------------------------------------------------------------------------------------------


def test_a_checkpoint_without_a_chain_loads_with_torchs_own_reader(tmp_path, checkpoint):
    unpack(checkpoint, tmp_path / "stock", format="dcp")
    state = {"model": {name: torch.zeros_like(value) for name, value in trained()["model"].items()}, "step": 0}
    dcp_load(state, storage_reader=StockReader(tmp_path / "stock"))
    assert_same(state, {"model": trained()["model"], "step": 7})
    with pytest.raises(ParameterError, match="whole"):
        unpack(checkpoint, tmp_path / "other", format="dcp", prefix="model.")


# -- targets ---------------------------------------------------------------------------------------------------------


def test_what_is_there_is_replaced_only_if_it_may_be(tmp_path, checkpoint):
    target = tmp_path / "x.pt"
    target.write_bytes(b"old")
    target.chmod(0o640)
    with pytest.raises(FileExistsError, match="overwrite"):
        unpack(checkpoint, target)
    assert target.read_bytes() == b"old"
    unpack(checkpoint, target, overwrite=True)
    assert_same(torch.load(target), trained())
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path)) == ["checkpoint", "x.pt"]


def test_a_link_stays_and_what_it_names_is_replaced(tmp_path, checkpoint):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x.pt").write_bytes(b"old")
    (tmp_path / "x.pt").symlink_to("real/x.pt")
    unpack(checkpoint, tmp_path / "x.pt", overwrite=True)
    assert (tmp_path / "x.pt").is_symlink()
    assert_same(torch.load(tmp_path / "real" / "x.pt"), trained())


def test_a_replaced_folder_keeps_what_is_no_part_of_its_weights(tmp_path, checkpoint):
    hub = tmp_path / "hub"
    unpack(checkpoint, hub, prefix="model.", shard_size=100)
    (hub / "config.json").write_text("{}")
    (hub / "assets").mkdir()
    (hub / "assets" / "a.txt").write_text("a")
    with pytest.raises(FileExistsError):
        unpack(checkpoint, hub, prefix="model.")
    unpack(checkpoint, hub, prefix="model.", overwrite=True)
    assert sorted(os.listdir(hub)) == ["assets", "config.json", "model.safetensors"]
    assert (hub / "assets" / "a.txt").read_text() == "a"
    assert sorted(os.listdir(tmp_path)) == ["checkpoint", "hub"]


def test_a_folder_of_other_things_is_never_replaced(tmp_path, checkpoint):
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("text")
    with pytest.raises(FileExistsError, match="not a Hugging Face checkpoint"):
        unpack(checkpoint, home, prefix="model.", overwrite=True)
    with pytest.raises(FileExistsError, match="not a Hugging Face checkpoint"):
        unpack(checkpoint, checkpoint, prefix="model.", format="huggingface", overwrite=True)
    assert (home / "thesis.txt").read_text() == "text"
    with pytest.raises(IsADirectoryError):
        unpack(checkpoint, home, format="torch", overwrite=True)
    with pytest.raises(NotADirectoryError):
        unpack(checkpoint, home / "thesis.txt", prefix="model.", format="huggingface", overwrite=True)
    assert os.listdir(home) == ["thesis.txt"]


def test_folders_above_the_target_are_made(tmp_path, checkpoint):
    unpack(checkpoint, tmp_path / "a" / "b" / "x.pt")
    assert_same(torch.load(tmp_path / "a" / "b" / "x.pt"), trained())


@pytest.mark.parametrize("url", ["file://{}/x.pt", "memory://unpack/{}/x.pt"])
def test_urls(tmp_path, checkpoint, url):
    import fsspec

    url = url.format(str(tmp_path))
    unpack(checkpoint, url)
    with pytest.raises(FileExistsError):
        unpack(checkpoint, url)
    unpack(checkpoint, url, overwrite=True)
    with fsspec.open(url) as file:
        assert_same(torch.load(file), trained())


def test_a_folder_at_a_url(tmp_path, checkpoint):
    import fsspec

    url = f"memory://unpack{tmp_path}/hub"
    memory = fsspec.filesystem("memory")
    unpack(checkpoint, url, prefix="model.", shard_size=100)
    memory.pipe_file(f"{url}/config.json", b"{}")
    with pytest.raises(FileExistsError):
        unpack(checkpoint, url, prefix="model.")
    unpack(checkpoint, url, prefix="model.", overwrite=True)
    found = {os.path.basename(name) for name in memory.ls(url, detail=False)}
    assert found == {"config.json", "model.safetensors"}, "an older index would be the one that counts"


def test_a_failed_upload_stores_nothing(tmp_path, checkpoint):
    import fsspec

    damage(checkpoint)
    url = f"memory://unpack{tmp_path}/x.pt"
    with pytest.raises(ContainerError):
        unpack(checkpoint, url)
    assert not fsspec.filesystem("memory").exists(url)


@pytest.mark.s3
def test_s3(tmp_path, checkpoint, endpoint):
    """A URL of an object store, from end to end."""
    import s3fs

    options = storage(endpoint)
    bucket = s3fs.S3FileSystem(**options)
    unpack(checkpoint, "s3://checkpoints/hub", prefix="model.", shard_size=100, target_options=options)
    assert sorted(os.path.basename(name) for name in bucket.ls("checkpoints/hub")) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    unpack("s3://checkpoints/hub", tmp_path / "x.pt", storage_options=options)
    assert_same(
        torch.load(tmp_path / "x.pt"), {name: trained()["model"][name] for name in torch.load(tmp_path / "x.pt")}
    )


# -- sources ---------------------------------------------------------------------------------------------------------


def damage(checkpoint: Path) -> None:
    (file,) = checkpoint.glob("*.distcp")
    flip(file)


def test_damage_is_never_written(tmp_path, checkpoint):
    damage(checkpoint)
    with pytest.raises(ContainerError):
        unpack(checkpoint, tmp_path / "x.pt")
    assert os.listdir(tmp_path) == ["checkpoint"]


def test_an_encrypted_checkpoint(tmp_path, key):
    chain = [streamxf.ZStandard(), streamxf.Encrypt(key)]
    dcp_save(trained(), storage_writer=streamxf.FileSystemWriter(tmp_path / "checkpoint", _extensions=chain))
    with pytest.raises(KeyMissingError):
        unpack(tmp_path / "checkpoint", tmp_path / "x.pt")
    unpack(tmp_path / "checkpoint", tmp_path / "x.pt", keys=key)
    assert_same(torch.load(tmp_path / "x.pt"), trained())


def test_from_one_file_format_to_another(tmp_path):
    state = {"a": torch.arange(5.0), "b": torch.zeros(2, 2, dtype=torch.int8)}
    save_file(state, tmp_path / "a.safetensors", {"made": "by hand"})
    unpack(tmp_path / "a.safetensors", tmp_path / "a.pt")
    assert_same(dict(sorted(torch.load(tmp_path / "a.pt").items())), state)
    unpack(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert_same(load_file(tmp_path / "b.safetensors"), state)
    with safe_open(tmp_path / "b.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "made": "by hand"}


def test_progress_comes_to_its_end(tmp_path, checkpoint):
    told = Recorder()
    done = unpack(checkpoint, tmp_path / "x.pt", progress=told)
    assert told.expected == told.done == done.bytes


def test_files_are_on_the_disk_before_they_take_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / "from").mkdir(exist_ok=True)
        save_file({name: torch.zeros(9)}, tmp_path / "from" / f"{name}.safetensors")
    pack(tmp_path / "from", tmp_path / "packed")
    synced: list[tuple[str, bool]] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        synced.append((Path(path).name, (tmp_path / "to").exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    unpack(tmp_path / "packed", tmp_path / "to")
    assert {("a.safetensors", False), ("b.safetensors", False)} <= {*synced}
