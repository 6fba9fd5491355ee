"""docs/examples/accelerate_fsdp2.py, killed, damaged and resumed; and what `accelerate merge-weights` does."""

from pathlib import Path

import pytest
import torch

import streamxf
from tests.dcp.helpers import stored_chain

from .damaged import assert_falls_back
from .killed import EXAMPLES, assert_managed, two_ranks

pytestmark = pytest.mark.slow

SCRIPT = [Path(__file__).parent / "accelerate_on_cpu.py", EXAMPLES / "accelerate_fsdp2.py"]
FSDP2 = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT"}


def test_killed_and_resumed(tmp_path: Path) -> None:
    utils = pytest.importorskip("accelerate.utils")
    folder = assert_managed(tmp_path, two_ranks(), [*SCRIPT], **FSDP2)
    parts = ["pytorch_model_fsdp_0", "optimizer_0"]
    assert {stored_chain(path / part, None) for path in folder.glob("step-*") for part in parts} == {
        "floatzip+checksum"
    }

    model = folder / "step-12" / "pytorch_model_fsdp_0"
    with streamxf.install("floatzip+checksum"):
        utils.merge_fsdp_weights(str(model), str(tmp_path / "merged"), safe_serialization=False)
    merged = torch.load(tmp_path / "merged" / "pytorch_model.bin")
    with streamxf.Checkpoint(model) as checkpoint:
        assert {*merged} == {name.removeprefix("model.") for name in checkpoint.stored}
        assert all(torch.equal(merged[name], checkpoint[f"model.{name}"].read()) for name in merged)


def test_damaged_and_resumed(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    assert_falls_back(tmp_path, two_ranks(*SCRIPT), "*/*.distcp", **FSDP2)
