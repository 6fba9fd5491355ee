"""``unpack`` with ``model``: the weights alone, whatever framework saved them, by the names that the model knows."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import streamxf
from streamxf.errors import ParameterError
from streamxf.keys import Key
from tests.saved_by import FOLDERS, MODEL, dcp, torchtitan, trainer


def assert_model(found: dict[str, torch.Tensor]) -> None:
    assert found.keys() == MODEL.keys()
    assert all(torch.equal(found[name], MODEL[name]) for name in MODEL)


@pytest.mark.parametrize("name", FOLDERS)
def test_the_model_of_each_framework(tmp_path: Path, name: str):
    source = tmp_path / name
    source.parent.mkdir(exist_ok=True)
    FOLDERS[name](source)
    done = streamxf.unpack(source, tmp_path / "model.safetensors", model=True)
    assert_model(load_file(tmp_path / "model.safetensors"))
    assert (done.tensors, done.objects) == (len(MODEL), 0)
    streamxf.unpack(source, tmp_path / "model.pt", model=True)
    assert_model(torch.load(tmp_path / "model.pt"))


def test_it_says_what_it_left_out_and_which_prefix_it_took(tmp_path: Path):
    FOLDERS["step-6"](tmp_path / "step-6")
    done = str(streamxf.unpack(tmp_path / "step-6", tmp_path / "model.safetensors", model=True))
    assert "left out: optimizer_0 (4 items)" in done
    assert "took the prefix 'state_dict.' off the model's names" in done


def test_a_large_one_is_sharded_in_a_folder(tmp_path: Path):
    torchtitan(tmp_path / "step-10")
    streamxf.unpack(tmp_path / "step-10", tmp_path / "hub", model=True, shard_size=2000)
    index = json.loads((tmp_path / "hub" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == MODEL.keys()
    assert len(set(index["weight_map"].values())) > 1
    with streamxf.Checkpoint(tmp_path / "step-10") as checkpoint:
        assert len(checkpoint.stored) > len(MODEL)


def test_without_it_every_tensor_is_written(tmp_path: Path):
    torchtitan(tmp_path / "step-10")
    streamxf.unpack(tmp_path / "step-10", tmp_path / "all.safetensors", skip_objects=True)
    assert load_file(tmp_path / "all.safetensors").keys() > MODEL.keys()


def test_an_encrypted_file_of_lightning_takes_a_key(tmp_path: Path):
    key = Key.generate()
    with streamxf.open(tmp_path / "last.ckpt", "wb", chain="zstd+encrypt", keys=key) as file:
        torch.save({"state_dict": MODEL}, file)
    streamxf.unpack(tmp_path / "last.ckpt", tmp_path / "model.safetensors", model=True, keys=key)
    assert_model(load_file(tmp_path / "model.safetensors"))
    with pytest.raises(streamxf.errors.KeyMissingError):
        streamxf.unpack(tmp_path / "last.ckpt", tmp_path / "other.safetensors", model=True)


def test_what_was_packed_has_one_too(tmp_path: Path):
    trainer(tmp_path / "checkpoint-12")
    streamxf.pack(tmp_path / "checkpoint-12", tmp_path / "packed")
    streamxf.unpack(tmp_path / "packed", tmp_path / "model.safetensors", model=True)
    assert_model(load_file(tmp_path / "model.safetensors"))


def test_several_candidates_are_listed(tmp_path: Path):
    dcp({"model": MODEL, "ema": MODEL}, tmp_path / "both")
    with pytest.raises(ParameterError, match=r"2 state dicts, 'ema\.', 'model\.': choose one"):
        streamxf.unpack(tmp_path / "both", tmp_path / "model.safetensors", model=True)
    streamxf.unpack(tmp_path / "both", tmp_path / "model.safetensors", model=True, prefix="ema.")
    assert_model(load_file(tmp_path / "model.safetensors"))
    with pytest.raises(ParameterError, match=r"there are no tensors but those"):
        streamxf.unpack(tmp_path / "both", tmp_path / "no.safetensors", model=True, only=["nothing.*", "optimizer"])


def test_counters_beside_a_state_dict_are_no_model(tmp_path: Path):
    beside = {"step": torch.tensor(3), "best_loss": torch.tensor(0.5)}
    dcp({"model": MODEL, **beside}, tmp_path / "steps")
    torch.save({"model": MODEL, **beside}, tmp_path / "steps.pt")
    for source in ("steps", "steps.pt"):
        done = str(streamxf.unpack(tmp_path / source, tmp_path / f"{source}.safetensors", model=True))
        assert_model(load_file(tmp_path / f"{source}.safetensors"))
        assert "left out: step (1 item)" in done
        assert "left out: best_loss (1 item)" in done
    scale = {"logit_scale": torch.tensor(2.0), "weight": torch.ones(3)}
    dcp({**scale, "deeper": MODEL}, tmp_path / "both")
    with pytest.raises(ParameterError, match=r"2 state dicts, '', 'deeper\.': choose one"):
        streamxf.unpack(tmp_path / "both", tmp_path / "no.safetensors", model=True)


def test_a_single_file_has_no_shards(tmp_path: Path):
    torchtitan(tmp_path / "step-10")
    with pytest.raises(ParameterError, match="only a Hugging Face folder has shards"):
        streamxf.unpack(tmp_path / "step-10", tmp_path / "model.safetensors", model=True, shard_size=2000)
    assert not (tmp_path / "model.safetensors").exists()


def test_what_has_no_model_is_an_error(tmp_path: Path):
    module = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(3)).sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    dcp({"optimizer": optimizer.state_dict(), "step": torch.tensor(3)}, tmp_path / "no model")
    for source in ("optimizer.pt", "no model"):
        with pytest.raises(ParameterError, match=r"there are no tensors but those of optimizers"):
            streamxf.unpack(tmp_path / source, tmp_path / "model.safetensors", model=True)
    assert not (tmp_path / "model.safetensors").exists()


def test_a_run_lists_its_checkpoints(tmp_path: Path):
    for step in (5, 10):
        torchtitan(tmp_path / "run" / f"step-{step}")
    with pytest.raises(ParameterError, match=r"in 2 places: step-10, step-5\. Name one of them"):
        streamxf.unpack(tmp_path / "run", tmp_path / "model.safetensors", model=True)


def test_two_names_that_only_wrappers_tell_apart_are_an_error(tmp_path: Path):
    dcp({"model": {"a.w": torch.zeros(3), "_orig_mod.a.w": torch.ones(3)}}, tmp_path / "twice")
    with pytest.raises(ParameterError, match="two tensors have the same name"):
        streamxf.unpack(tmp_path / "twice", tmp_path / "model.safetensors", model=True)


def test_a_dcp_target_takes_everything(tmp_path: Path):
    with pytest.raises(ParameterError, match="leave out only, prefix and model"):
        streamxf.unpack(tmp_path, tmp_path / "out", format="dcp", model=True)
