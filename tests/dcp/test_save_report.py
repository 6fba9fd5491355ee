"""What a writer reports after a save."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Checksum, Encrypt, ZStandard
from streamxf.report import SaveReport

from .helpers import KEY, Xor, data_files, full_chain


def make_state() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    return {"large": torch.randn(2**20, generator=generator), "small": torch.zeros(5), "step": 3}


def torch_bytes(state: dict[str, Any], path: Path) -> int:
    """What torch's own writer stores."""
    dcp.save(state, storage_writer=dcp.FileSystemWriter(path))
    return sum(info.length for info in dcp.FileSystemReader(path).read_metadata().storage_data.values())


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("chain", ["full chain", "no codec", "foreign", "foreign alone"])
def test_bytes_and_items(tmp_path: Path, chain: str, threads: int) -> None:
    extensions: list[Any] = {
        "full chain": full_chain(),
        "no codec": [],
        "foreign": [Xor(), ZStandard()],
        "foreign alone": [Xor()],
    }[chain]
    writer = streamxf.FileSystemWriter(tmp_path / "own", _extensions=extensions, thread_count=threads)
    assert writer.report is None
    dcp.save(make_state(), storage_writer=writer)
    report = writer.report
    assert isinstance(report, SaveReport)
    assert report.items == 3
    assert report.stored_bytes == sum(file.stat().st_size for file in data_files(tmp_path / "own"))
    raw = torch_bytes(make_state(), tmp_path / "stock")
    if chain == "full chain":  # tensors are their elements
        step = torch_bytes({"step": 3}, tmp_path / "object")
        raw = step + sum(tensor.nbytes for tensor in make_state().values() if isinstance(tensor, torch.Tensor))
    # torch notes more in the zip file of each item: two versions and a hash
    assert raw - 2000 <= report.raw_bytes <= raw
    assert report.ratio == report.stored_bytes / report.raw_bytes
    assert 0 < report.io_seconds <= report.wall_seconds * threads
    names = {codec.name for codec in extensions if isinstance(codec, streamxf.Codec)}
    assert set(report.codec_seconds) == names
    assert all(seconds > 0 for seconds in report.codec_seconds.values())
    assert (report.peak_blocks > 0) == bool(names)
    json.dumps(report.to_dict(), allow_nan=False)
    assert "3" in str(report).splitlines()[1]


def test_each_save_has_a_report_of_its_own(tmp_path: Path) -> None:
    writer = streamxf.FileSystemWriter(tmp_path, _extensions=[Checksum()])
    dcp.save(make_state(), storage_writer=writer)
    first = writer.report
    dcp.save({"w": torch.zeros(3)}, storage_writer=writer)
    assert first is not None
    assert writer.report is not None
    assert (first.items, writer.report.items) == (3, 1)
    assert writer.report.raw_bytes < 3000
    assert copy.deepcopy(writer).report is None


def test_after_a_save_in_the_background(tmp_path: Path) -> None:
    writer = streamxf.FileSystemWriter(tmp_path, _extensions=[Encrypt(KEY)])
    future: Any = dcp.async_save(make_state(), storage_writer=writer)
    future.result()
    assert writer.report is not None
    assert writer.report.items == 3
