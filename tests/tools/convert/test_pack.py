"""What was packed is in the checkpoint bit for bit, under the names that DCP gives, and comes back as it was."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fsspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch.distributed.checkpoint import FileSystemWriter as StockWriter
from torch.distributed.checkpoint import load as dcp_load
from torch.distributed.checkpoint import save as dcp_save
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import streamxf
from streamxf import engine
from streamxf.errors import ContainerError, NoCheckpointError, ParameterError, UnsupportedError
from streamxf.keys import Key
from streamxf.tools.convert.pack import pack
from streamxf.tools.convert.packed import ITEM
from streamxf.tools.convert.unpack import unpack
from tests.storage.stores import MemoryStorage
from tests.tools.convert import states

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is unavailable")

KEY = Key(bytes(range(32)))


def packed(path: Path | str, keys: Any = None) -> dict[str, Any]:
    """What a packed checkpoint holds, without what pack keeps of the files."""
    return {name: value for name, value in states.loaded(path, keys).items() if not name.startswith(ITEM)}


@settings(settings.get_profile("disk"))
@given(
    st.dictionaries(states.NAMES.filter(lambda name: name != "__metadata__"), states.TENSORS, min_size=1, max_size=5),
    st.none() | st.dictionaries(states.NAMES, states.NAMES, max_size=2),
    st.sampled_from(states.CHAINS),
    st.sampled_from([1, 5000, 2**28]),
)
def test_safetensors(state, metadata, chain, file_size):
    to = KEY if "encrypt" in chain else None
    state = {name: value.contiguous() for name, value in state.items()}
    with TemporaryDirectory() as folder:
        source, target = Path(folder, "a.safetensors"), Path(folder, "packed")
        save_file(state, source, metadata)
        pack(source, target, chain, recipients=to, file_size=file_size)
        states.assert_same(packed(target, to), state)
        states.assert_whole(target, to)
        unpack(target, Path(folder, "b.safetensors"), keys=to)
        assert states.digests(Path(folder, "b.safetensors")) == states.digests(source)


@settings(settings.get_profile("disk"))
@given(states.NESTED, st.sampled_from(states.CHAINS), st.sampled_from([1, 5000, 2**28]))
def test_torch_save(state, chain, file_size):
    to = KEY if "encrypt" in chain else None
    with TemporaryDirectory() as folder:
        source, target = Path(folder, "a.pt"), Path(folder, "packed")
        torch.save(state, source)
        pack(source, target, chain, recipients=to, file_size=file_size)
        states.assert_same(packed(target, to), state)
        unpack(target, Path(folder, "b.pt"), keys=to)
        assert states.digests(Path(folder, "b.pt")) == states.digests(source)


def test_names_are_those_of_a_save_by_dcp(tmp_path):
    torch.save(states.trained(), tmp_path / "a.pt")
    dcp_save(states.trained(), storage_writer=streamxf.FileSystemWriter(tmp_path / "saved", sync_files=False))
    pack(tmp_path / "a.pt", tmp_path / "packed")
    ours, theirs = (streamxf.FileSystemReader(tmp_path / name).read_metadata() for name in ("packed", "saved"))
    assert {*theirs.state_dict_metadata, ITEM, f"{ITEM}/a.pt"} == set(ours.state_dict_metadata)
    for name, item in theirs.state_dict_metadata.items():
        assert ours.state_dict_metadata[name] == item
        assert ours.planner_data[name] == theirs.planner_data[name]


def test_a_training_program_loads_it(tmp_path):
    """By DCP's own planner, into tensors of other dtypes and devices as it likes."""
    torch.save(states.trained(), tmp_path / "a.pt")
    pack(tmp_path / "a.pt", tmp_path / "packed", "zstd")
    state = {"model": {name: torch.zeros(200, 300) for name in states.trained()["model"]}, "step": 0}
    dcp_load(state, storage_reader=streamxf.FileSystemReader(tmp_path / "packed"))
    assert state["step"] == 7
    assert torch.equal(state["model"]["layer.3"], states.trained()["model"]["layer.3"].float())


def test_torchs_own_tools_read_it_without_a_chain(tmp_path):
    torch.save(states.trained(), tmp_path / "a.pt")
    pack(tmp_path / "a.pt", tmp_path / "packed", "")
    dcp_to_torch_save(tmp_path / "packed", tmp_path / "b.pt")
    found = torch.load(tmp_path / "b.pt", weights_only=True)
    del found[ITEM], found[f"{ITEM}/a.pt"]
    states.assert_same(found, states.trained())


def hub(path: Path, suffix: str = "safetensors") -> dict[str, torch.Tensor]:
    """A folder as on the Hugging Face hub."""
    path.mkdir()
    state = {f"model.layers.{n}.weight": torch.randn(60, 90).bfloat16() for n in range(6)}
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    shards = {name: f"{stem}-0000{n % 2 + 1}-of-00002.{suffix}" for n, name in enumerate(state)}
    for shard in set(shards.values()):
        part = {name: state[name] for name in state if shards[name] == shard}
        if suffix == "safetensors":
            save_file(part, path / shard, {"format": "pt"})
        else:
            torch.save(part, path / shard)
    index = {"metadata": {"total_size": 1}, "weight_map": shards}
    (path / f"{stem}.{suffix}.index.json").write_text(json.dumps(index, indent=1))
    (path / "config.json").write_text('{"model_type": "llama"}\n')
    (path / "tokenizer.model").write_bytes(bytes(range(256)) * 100)
    return state


@pytest.mark.parametrize(("suffix", "options"), [("safetensors", {"file_size": 20_000}), ("bin", {})])
def test_a_folder_comes_back_file_by_file(tmp_path, suffix, options):
    state = hub(tmp_path / "hub", suffix)
    pack(tmp_path / "hub", tmp_path / "packed", **options)
    states.assert_same(packed(tmp_path / "packed"), state)
    assert unpack(tmp_path / "packed", tmp_path / "back").restored
    assert states.digests(tmp_path / "back") == states.digests(tmp_path / "hub")


@pytest.mark.parametrize("chain", ["floatzip", ""])
def test_stock_checkpoints(tmp_path, chain):
    dcp_save(states.trained(), storage_writer=StockWriter(tmp_path / "stock", sync_files=False))
    pack(tmp_path / "stock", tmp_path / "packed", chain)
    states.assert_same(states.loaded(tmp_path / "packed"), states.trained())


def test_from_url_to_url(tmp_path):
    save_file({"a": torch.arange(300_000.0)}, tmp_path / "a.safetensors")
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/packing/a.safetensors", (tmp_path / "a.safetensors").read_bytes())
    try:
        pack("memory://packing/a.safetensors", "memory://packing/packed", "zstd+checksum", file_size=1)
        reader = streamxf.FsspecReader("memory://packing/packed")
        state = {"a": torch.zeros(300_000)}
        dcp_load(state, storage_reader=reader)
        assert torch.equal(state["a"], torch.arange(300_000.0))
        assert not [name for name in memory.ls("/packing/packed", detail=False) if "slip" in name]
    finally:
        memory.rm("/packing", recursive=True)


def test_from_and_to_a_storage_of_ones_own(tmp_path):
    save_file({"a": torch.arange(300.0)}, tmp_path / "a.safetensors")
    memory = MemoryStorage()
    memory.write("source/a.safetensors", (tmp_path / "a.safetensors").read_bytes())
    for source, target in [
        (memory.child("source"), memory.child("packed")),
        (tmp_path / "a.safetensors", memory.child("beside")),
        (memory.child("source"), tmp_path / "packed"),
    ]:
        pack(source, target)
        with streamxf.Checkpoint(target) as checkpoint:
            assert torch.equal(checkpoint["a"].read(), torch.arange(300.0))


def test_few_blocks_are_held_at_a_time(tmp_path, monkeypatch):
    state = {f"w{n}": torch.randn(1024, 4096) for n in range(3)}
    save_file(state, tmp_path / "a.safetensors")
    shared = engine.shared()
    monkeypatch.setattr(shared.budget, "limit_bytes", 4 * 2**20)
    shared.budget.peak_jobs = shared.budget.peak_bytes = 0
    pack(tmp_path / "a.safetensors", tmp_path / "packed", "floatzip")
    assert 2**20 < shared.budget.peak_bytes <= 4 * 2**20
    states.assert_same(packed(tmp_path / "packed"), state)


# -- what cannot be packed ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", [ITEM, f"{ITEM}/a.safetensors"])
def test_the_name_of_what_is_kept_is_taken(tmp_path, name):
    save_file({name: torch.ones(3)}, tmp_path / "a.safetensors")
    with pytest.raises(ParameterError, match=name):
        pack(tmp_path / "a.safetensors", tmp_path / "packed")


def test_files_that_are_none(tmp_path):
    with pytest.raises(FileNotFoundError):
        pack(tmp_path / "nowhere", tmp_path / "packed")
    (tmp_path / "a.txt").write_text("hello " * 100)
    with pytest.raises(NoCheckpointError):
        pack(tmp_path / "a.txt", tmp_path / "packed")
    save_file({"a": torch.ones(300)}, tmp_path / "a.safetensors")
    cut = (tmp_path / "a.safetensors").read_bytes()[:-1]
    (tmp_path / "a.safetensors").write_bytes(cut)
    with pytest.raises(ContainerError):
        pack(tmp_path / "a.safetensors", tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


def test_nothing_is_packed_into_its_own_folder(tmp_path):
    (tmp_path / "hub").mkdir()
    save_file({"a": torch.ones(2)}, tmp_path / "hub" / "model.safetensors")
    (tmp_path / "link").symlink_to("hub")
    for target in ("hub", "link"):
        with pytest.raises(ParameterError, match="the same"):
            pack(tmp_path / "hub", tmp_path / target)
    assert [path.name for path in (tmp_path / "hub").iterdir()] == ["model.safetensors"]


def test_a_checkpoint_that_is_there_stays(tmp_path):
    save_file({"a": torch.ones(300)}, tmp_path / "a.safetensors")
    pack(tmp_path / "a.safetensors", tmp_path / "packed")
    before = states.data_files(tmp_path / "packed")
    with pytest.raises(FileExistsError):
        pack(tmp_path / "a.safetensors", tmp_path / "packed")
    assert states.data_files(tmp_path / "packed") == before
    pack(tmp_path / "a.safetensors", tmp_path / "packed", overwrite=True)
    assert not set(before) & set(states.data_files(tmp_path / "packed"))


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors", "hub/model.safetensors", "hub/pytorch_model.bin"])
def test_an_item_without_a_name_of_its_own_is_refused_by_its_file(tmp_path: Path, name: str) -> None:
    source = tmp_path / name
    source.parent.mkdir(exist_ok=True)
    (save_file if "safetensors" in name else torch.save)({"": torch.ones(3), "a": torch.ones(2)}, source)
    with pytest.raises(UnsupportedError, match=r"the empty name.*give it a name, and save it again") as caught:
        pack(tmp_path / name.split("/")[0], tmp_path / "packed")
    assert caught.value.file == str(source)
    assert not (tmp_path / "packed").exists()
    torch.save({"a": {"b": torch.ones(3)}, "a.b": torch.ones(2)}, tmp_path / "two.pt")
    with pytest.raises(UnsupportedError, match=r"'a\.b' once flattened: load it with torch\.load, rename a key"):
        pack(tmp_path / "two.pt", tmp_path / "packed")
