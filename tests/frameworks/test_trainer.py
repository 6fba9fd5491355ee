"""docs/examples/trainer_fsdp2.py, trainer_archive.py and trl_sft.py, killed and resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from dcp.helpers import stored_chain

import streamxf

from .killed import EXAMPLES, assert_resumes, two_ranks

pytestmark = pytest.mark.slow

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


@pytest.mark.parametrize(("package", "example"), [("transformers", "trainer_fsdp2.py"), ("trl", "trl_sft.py")])
def test_fsdp2(package: str, example: str, tmp_path: Path) -> None:
    pytest.importorskip(package)
    safetensors = pytest.importorskip("safetensors.torch")
    utils = pytest.importorskip("accelerate.utils")
    command = two_ranks(Path(__file__).parent / "accelerate_on_cpu.py", EXAMPLES / example)
    folder = assert_resumes(tmp_path, command, **OFFLINE, HF_HOME=str(tmp_path / "home"))
    parts = [f"checkpoint-{step}/{part}" for step in (3, 6, 9, 12) for part in ("pytorch_model_fsdp_0", "optimizer_0")]
    assert {stored_chain(folder / part, None) for part in parts} == {"floatzip+checksum"}

    for state in folder.glob("checkpoint-*/trainer_state.json"):  # by which the example knows a whole checkpoint
        assert all(path.stat().st_mtime_ns <= state.stat().st_mtime_ns for path in state.parent.glob("*/.metadata"))

    model = folder / "checkpoint-12" / "pytorch_model_fsdp_0"
    with streamxf.install("floatzip+checksum"):
        utils.merge_fsdp_weights(str(model), str(tmp_path / "merged"))
    merged = safetensors.load_file(tmp_path / "merged" / "model.safetensors")
    with streamxf.Checkpoint(model) as checkpoint:
        assert {*merged} == {name.removeprefix("model.") for name in checkpoint.items}
        assert all(torch.equal(merged[name], checkpoint[f"model.{name}"].read()) for name in merged)
        assert len(checkpoint.items["model.lm_head.weight"].chunks) == 2, "each process saves a part"


def test_archive(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder = assert_resumes(tmp_path, two_ranks(EXAMPLES / "trainer_archive.py"), **OFFLINE)
    archive = folder / "archive"
    assert streamxf.latest(archive) == str(archive / "checkpoint-12")
    assert {stored_chain(path, None) for path in archive.glob("checkpoint-*")} == {"floatzip+checksum"}
    streamxf.unpack(archive / "checkpoint-12", tmp_path / "unpacked")
    last = folder / "scratch" / "checkpoint-12"
    files = {path.name: path.read_bytes() for path in last.iterdir()}
    assert {*files} >= {"model.safetensors", "optimizer.pt", "rng_state_0.pth", "rng_state_1.pth", "trainer_state.json"}
    assert {path.name: path.read_bytes() for path in (tmp_path / "unpacked").iterdir()} == files
