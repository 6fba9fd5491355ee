"""How much of a checkpoint is decoded for a sample, and what that holds in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Encrypt, FloatZip, Key
from streamxf.chain import StreamCoder
from streamxf.tuning.sample import BLOCKS, take_sample
from streamxf.tuning.tuner import source_of

KEY = Key(bytes(range(32)))
MIB = 2**20


@pytest.mark.parametrize("shape", [(96, 2**19), (24 * MIB * 2,), (3, 2**23 * 2), (2, 2, 12 * MIB)], ids=str)
def test_only_the_blocks_of_the_sample_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    tensor = torch.zeros(shape, dtype=torch.bfloat16)  # 96 MiB
    dcp.save({"w": tensor}, storage_writer=streamxf.FileSystemWriter(tmp_path, _extensions=[FloatZip(), Encrypt(KEY)]))
    source = source_of(str(tmp_path), KEY)
    decoded: list[int] = []
    real = StreamCoder.decode

    def decode(coder: StreamCoder, *arguments: object, **options: object) -> memoryview:
        block = real(coder, *arguments, **options)  # type: ignore[arg-type]
        decoded.append(len(block))
        return block

    monkeypatch.setattr(StreamCoder, "decode", decode)
    blocks = take_sample(source)
    assert sum(len(block.data) for block in blocks) == BLOCKS * MIB
    assert sum(decoded) <= BLOCKS * MIB
    assert max(decoded) <= MIB


SCRIPT = """
import resource, sys, torch
from streamxf import LZ4, tune

tune({"w": torch.ones(MIB)}, bandwidth=1e9, chains=[[LZ4()]])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = tune(sys.argv[1], bandwidth=1e9, chains=[[LZ4()]])
assert found.raw_bytes == 256 * MIB, found.raw_bytes
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
""".replace("MIB", str(MIB))


@pytest.mark.slow
def test_memory_goes_by_the_sample_and_not_by_the_checkpoint(tmp_path: Path) -> None:
    state = {"w": torch.zeros(128 * MIB, dtype=torch.bfloat16)}
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(tmp_path))
    run = subprocess.run([sys.executable, "-c", SCRIPT, tmp_path], capture_output=True, text=True, check=True)
    assert int(run.stdout) <= 96, "MiB"
