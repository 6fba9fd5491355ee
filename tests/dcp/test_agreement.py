"""What one rank wrote under another key or chain than the others is not published: no single reader could load it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata

import streamxf
from streamxf import Encrypt, Key, ZStandard
from streamxf.chain import Chain
from streamxf.errors import ChainError, ParameterError, UnsupportedError

from .helpers import KEY, load, refused, save


def results_of(path: Path, rank: int, extensions: list[Any]) -> tuple[Any, Any]:
    """A rank's writer, and what it tells the coordinator."""
    writer = streamxf.FileSystemWriter(path, _extensions=extensions)
    planner = DefaultSavePlanner()
    planner.set_up_planner({f"r{rank}": torch.ones(3)}, is_coordinator=rank == 0)
    writer.set_up_storage_writer(rank == 0, rank=rank, use_collectives=True)
    (plan,) = writer.prepare_global_plan([writer.prepare_local_plan(planner.create_local_plan())])
    return writer, writer.write_data(plan, planner).value()


@pytest.mark.parametrize(
    "other",
    [[ZStandard(), Encrypt(Key.generate())], [Encrypt(KEY)], [ZStandard()], []],
    ids=["another key", "another chain", "no key", "no chain"],
)
def test_ranks_must_agree(tmp_path: Path, other: list[Any]) -> None:
    writer, first = results_of(tmp_path, 0, [ZStandard(), Encrypt(KEY)])
    _, second = results_of(tmp_path, 1, other)
    with pytest.raises(ChainError, match="different chains or keys, so nothing was published"):
        writer.finish(Metadata({}), [first, second])
    assert not (tmp_path / ".metadata").exists()
    writer, first = results_of(tmp_path, 0, other)
    _, second = results_of(tmp_path, 1, other)
    writer.finish(Metadata({}), [first, second])
    assert (tmp_path / ".metadata").exists()


def test_a_sparse_tensor_is_refused_rather_than_lost(tmp_path: Path) -> None:
    with refused(UnsupportedError, "torch.sparse_coo"):
        save({"w": torch.eye(3).to_sparse()}, tmp_path)


@pytest.mark.parametrize("extensions", [ZStandard(), "zstd:level=3", Chain([ZStandard()])])
def test_ways_to_say_one_codec(tmp_path: Path, extensions: Any) -> None:
    save({"w": torch.ones(3)}, tmp_path, extensions)
    assert torch.equal(load({"w": torch.zeros(3)}, tmp_path, None)["w"], torch.ones(3))


def test_arguments_that_say_nothing(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="thread_count=0"):
        streamxf.FileSystemWriter(tmp_path, thread_count=0)
    with pytest.raises(ParameterError, match="keys=key"):
        streamxf.FileSystemReader(tmp_path, KEY)  # type: ignore[arg-type]
    with pytest.raises(ChainError, match=r"Chain\.parse"):
        Chain("zstd")  # type: ignore[arg-type]
