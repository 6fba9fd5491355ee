"""docs/examples/megatron_torch_dist.py, killed, damaged and resumed; and Megatron Core with encryption."""

from importlib.util import find_spec
from pathlib import Path

import pytest

import streamxf
from tests.dcp.helpers import stored_chain

from .damaged import assert_falls_back
from .killed import EXAMPLES, assert_resumes, finished, two_ranks

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("megatron") is None, reason="needs megatron-core")]

ON_CPU = Path(__file__).parent / "megatron_on_cpu.py"
ROUND_TRIP = """
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedObject, ShardedTensor
from megatron.core.dist_checkpointing.validation import StrictHandling

import streamxf


def state(value):
    rank, size = dist.get_rank(), dist.get_world_size()
    weight = ShardedTensor.from_rank_offsets("w", torch.full((400, 5), float(value)), (0, rank, size))
    return {"w": weight, "o": ShardedObject("o", {"value": value}, (size,), (rank,)), "step": 7}


def main(folder, keys):
    dist.init_process_group("gloo")
    value = dist.get_rank() + 1
    with streamxf.install("zstd+encrypt", keys=keys, reader={"require": "bound"}) as installation:
        dist_checkpointing.save(state(value), folder)
        assert not installation.left_alone
        for strict in StrictHandling.ASSUME_OK_UNEXPECTED, StrictHandling.RAISE_ALL:
            loaded = dist_checkpointing.load(state(0), folder, strict=strict)
            assert loaded["w"].eq(value).all() and loaded["o"] == {"value": value} and loaded["step"] == 7
    other = streamxf.Key.generate()
    with streamxf.install("zstd+encrypt", keys=other):
        try:
            dist_checkpointing.load(state(0), folder)
        except BaseException as error:
            assert "KeyMissingError" in str(error), error
        else:
            raise AssertionError("it was loaded with another key")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
"""


def test_killed_and_resumed(tmp_path: Path) -> None:
    folder = assert_resumes(tmp_path, two_ranks(ON_CPU, EXAMPLES / "megatron_torch_dist.py"))
    assert {stored_chain(path, None) for path in folder.glob("iter_*")} == {"floatzip+checksum"}


def test_damaged_and_resumed(tmp_path: Path) -> None:
    assert_falls_back(tmp_path, two_ranks(ON_CPU, EXAMPLES / "megatron_torch_dist.py"), "*.distcp")


def test_encrypted(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(ROUND_TRIP)
    (tmp_path / "saved").mkdir()
    key = streamxf.Key.generate()
    streamxf.keys.write_key(tmp_path / "training.key", key)
    finished(two_ranks(ON_CPU, tmp_path / "script.py", tmp_path / "saved", f"file:{tmp_path / 'training.key'}"))
    with streamxf.Checkpoint(tmp_path / "saved", keys=key, require="bound") as checkpoint:
        assert checkpoint["w"].shape == (800, 5)
        assert checkpoint["w"][799].tolist() == [2.0] * 5
    assert streamxf.verify(tmp_path / "saved", keys=key, require="bound").ok
