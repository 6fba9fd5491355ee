"""``streamxf salvage``."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

import streamxf
from tests.altered import flip
from tests.cli.command import Run
from tests.cli.conftest import STATE, flip_bit
from tests.dcp.shards import rows, save_shards
from tests.failing import fails_with


class Unusual:
    """What no reader unpickles unasked."""


NESTED = {
    "model": {"weight": torch.arange(50_000, dtype=torch.float32), "bias": torch.ones(30).to(torch.bfloat16)},
    "optimizer": {"state": [{"step": 3, "moment": torch.zeros(7)}, {"step": 4}], "notes": ["a", "b"]},
    "step": 7,
}


def flip_in(path: Path, name: str) -> None:
    """Flip a bit in the middle of an item."""
    metadata = streamxf.FileSystemReader(path).read_metadata()
    (place,) = (place for index, place in metadata.storage_data.items() if index.fqn == name)
    file = path / place.relative_path
    flip(file, place.offset + place.length // 2)


def loaded(path: Path, state: dict[str, Any], **options: Any) -> dict[str, Any]:
    load(state, storage_reader=streamxf.FileSystemReader(path, **options))
    return state


def test_of_a_whole_checkpoint_everything_arrives(run: Run, plain: Path, tmp_path: Path):
    assert "3 items salvaged, 0 damaged" in run.exits(0, "salvage", plain, tmp_path / "new", err="").out
    state = loaded(tmp_path / "new", {"layer.weight": torch.zeros(60, 100), "step": 0})
    assert torch.equal(state["layer.weight"], STATE["layer.weight"])
    assert state["step"] == 7
    assert run("verify", tmp_path / "new").code == 0


def test_what_is_lost_is_listed_and_left_out(run: Run, tmp_path: Path):
    save(NESTED | {"step": {1}}, storage_writer=streamxf.FileSystemWriter(tmp_path / "old"))
    before = streamxf.FileSystemReader(tmp_path / "old").read_metadata()
    flip_in(tmp_path / "old", "optimizer.state.0.moment")
    flip_in(tmp_path / "old", "step")
    done = run.exits(1, "salvage", tmp_path / "old", tmp_path / "new", "--json")
    assert {entry["item"] for entry in done.json["damaged"]} == {"optimizer.state.0.moment", "step"}
    after = streamxf.FileSystemReader(tmp_path / "new").read_metadata()
    lost = {"optimizer.state.0.moment", "step"}
    assert set(after.state_dict_metadata) == set(before.state_dict_metadata) - lost == set(done.json["loaded"])
    assert after.planner_data == {name: path for name, path in before.planner_data.items() if name not in lost}
    assert done.json["written"]["items"] == len(after.state_dict_metadata)
    target = {"model": {"weight": torch.zeros(50_000)}, "optimizer": {"notes": [""]}}
    state = loaded(tmp_path / "new", target)
    assert torch.equal(state["model"]["weight"], NESTED["model"]["weight"])
    assert state["optimizer"]["notes"] == ["a", "b"]
    text = run("salvage", tmp_path / "old", tmp_path / "newer").out
    assert "damaged: step: " in text


def test_objects_are_copied_and_not_unpickled(run: Run, tmp_path: Path):
    state = {"weight": torch.ones(5), "odd": Unusual()}
    with pytest.warns(UserWarning, match="readers will refuse"):
        save(dict(state), storage_writer=streamxf.FileSystemWriter(tmp_path / "old"))
    assert run("salvage", tmp_path / "old", tmp_path / "new").code == 0
    found = loaded(tmp_path / "new", {"odd": None}, safe_globals=[Unusual])
    assert isinstance(found["odd"], Unusual)


def test_encrypted_it_does_not_become_plain_by_default(run: Run, encrypted: Path, key_file: Path, tmp_path: Path):
    opens = ["--key", f"file:{key_file}"]
    assert "(--recipient)" in run.exits(2, "salvage", encrypted, tmp_path / "new", *opens).err
    assert not (tmp_path / "new").exists()
    flip_bit(encrypted)
    done = run.exits(1, "salvage", encrypted, tmp_path / "new", *opens, "--recipient", f"file:{key_file}", "--json")
    assert len(done.json["damaged"]) == 1
    assert run("verify", tmp_path / "new", *opens, "--require", "published").code == 0
    assert run("salvage", encrypted, tmp_path / "other").code == 2


def test_without_metadata(run: Run, plain: Path, tmp_path: Path):
    (plain / ".metadata").unlink()
    run.exits(1, "salvage", plain, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    done = run("salvage", plain, tmp_path / "new", "--without-metadata", "--json")
    assert sorted(done.json["loaded"]) == sorted(STATE)
    assert any("vouched" in sentence for sentence in done.json["unchecked"])
    state = loaded(tmp_path / "new", {"layer.weight": torch.zeros(60, 100)})
    assert torch.equal(state["layer.weight"], STATE["layer.weight"])
    (name,) = (file.name for file in plain.glob("*.distcp"))
    known = name.removesuffix(".distcp").rpartition("_")[2]
    chosen = ["--without-metadata", "--writer-id"]
    assert run("salvage", plain, tmp_path / "other", *chosen, known).code == done.code
    assert run("salvage", plain, tmp_path / "another", *chosen, "0" * 32).code == 2
    assert run("salvage", plain, tmp_path / "another", "--writer-id", known).code == 2


def test_a_tensor_in_part(run: Run, tmp_path: Path):
    whole = torch.arange(8000.0).reshape(8, 1000)
    save_shards(tmp_path / "old", [{"w": rows(whole, rank, 2)} for rank in range(2)], lambda: [streamxf.ZStandard()])
    flip_in_chunk(tmp_path / "old", 4)
    without = run("salvage", tmp_path / "old", tmp_path / "new", "--json")
    assert (without.code, without.json["loaded"], without.json["written"]) == (1, [], None)
    assert not (tmp_path / "new").exists()
    done = run.exits(1, "salvage", tmp_path / "old", tmp_path / "new", "--partial", "--json")
    assert done.json["partial"] == ["w"]
    state = loaded(tmp_path / "new", {"w": torch.ones(8, 1000)})
    assert torch.equal(state["w"], torch.cat([whole[:4], torch.zeros(4, 1000)]))


def flip_in_chunk(path: Path, row: int) -> None:
    with streamxf.Checkpoint(path) as checkpoint:
        (item,) = checkpoint.stored.values()
    (place,) = (chunk.place for chunk in item.chunks if chunk.offset[0] == row)
    file = path / place.file
    flip(file, place.at + place.size // 2)


def test_a_file_that_is_gone_is_one_line(run: Run, tmp_path: Path):
    state = {f"layers.{n}.w": torch.ones(3) for n in range(100)}
    save(state, storage_writer=streamxf.FileSystemWriter(tmp_path / "old"))
    (file,) = (tmp_path / "old").glob("*.distcp")
    file.unlink()
    done = run.exits(1, "salvage", tmp_path / "old", tmp_path / "new")
    (line,) = [line for line in done.out.splitlines() if line.startswith("damaged: ")]
    assert line.startswith("damaged: layers.0.w at [0] of size [3], ")
    why = "MetadataError: the file that holds the item is missing from the checkpoint"
    assert line.endswith(f" and 95 more: {why} [file {file}]")


def test_a_copy_is_resumed(run: Run, plain: Path, tmp_path: Path, monkeypatch):
    """A call that could not be finished leaves what it has, and the next one takes it up."""
    from streamxf.checkpoint import resumable

    with monkeypatch.context() as patch:
        patch.setattr(resumable, "publish", fails_with(OSError, 5, "Input/output error", "somewhere"))
        assert run("salvage", plain, tmp_path / "new").code == 1
    assert run("salvage", plain, tmp_path / "new", "--json").json["written"]["kept_files"] == 1
    assert run("verify", tmp_path / "new").code == 0
    shutil.rmtree(tmp_path / "new")


def test_from_one_url_to_another(run: Run, plain: Path):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(f"{plain}/", "/old/", recursive=True)
    try:
        run.exits(0, "salvage", "memory://old", "memory://new", "--chain", "zstd")
        assert run("verify", "memory://new").code == 0
        assert run("diff", plain, "memory://new").code == 0
    finally:
        memory.rm("/", recursive=True)
