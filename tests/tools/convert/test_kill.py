"""Conversions that are killed at random moments, by SIGKILL, and started again."""

from __future__ import annotations

import hashlib
import multiprocessing
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dcp.shards import rows, save_shards
from safetensors.torch import save_file
from tools.convert.states import assert_same, assert_whole, data_files, loaded, trained
from torch.distributed.checkpoint import save as dcp_save

import streamxf
from streamxf.tools.convert.pack import pack
from streamxf.tools.convert.transcode import transcode
from streamxf.tools.convert.unpack import unpack

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:torch.distributed is unavailable")]

KILLS = 20
FILE_SIZE = 150_000

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["streamxf.tools.convert.pack", "streamxf.convert.transcode"])


class Killing:
    """Starts calls in processes of their own, and kills these after a part of the time that a whole call takes."""

    def __init__(self, call: Callable[..., Any], seed: int) -> None:
        self._call = call
        self._chance = random.Random(seed)
        self._seconds = 0.0
        self.killed = 0

    def whole(self, *arguments: Any, **options: Any) -> None:
        """A call that nobody kills, to see how long it takes; one before, to have everything imported."""
        begin = time.monotonic()
        assert self._run(arguments, options, None) == 0
        self._seconds = time.monotonic() - begin

    def once(self, *arguments: Any, **options: Any) -> bool:
        """A call that may be killed; gives whether it came to its end."""
        code = self._run(arguments, options, self._seconds * self._chance.uniform(0.1, 0.7))
        self.killed += code == -9
        assert code in (0, -9)
        return code == 0

    def _run(self, arguments: Any, options: Any, seconds: float | None) -> int:
        process = _processes.Process(target=self._call, args=arguments, kwargs=options)
        process.start()
        process.join(seconds)
        process.kill()
        process.join()
        assert process.exitcode is not None
        return process.exitcode


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("encrypted", [False, True])
def test_pack(tmp_path, encrypted):
    """At the target there is nothing, or all of it; and in the end what comes out is the source, byte for byte."""
    key = streamxf.Key(bytes(range(32))) if encrypted else None
    generator = torch.Generator().manual_seed(1)
    source, target = tmp_path / "a.safetensors", tmp_path / "packed"
    save_file({f"w{n}": torch.randn(100, 300, generator=generator).bfloat16() for n in range(60)}, source)
    options = {"encrypt_to": key, "file_size": FILE_SIZE}
    killing = Killing(pack, 1)
    killing.whole(source, tmp_path / "warm", **options)
    killing.whole(source, tmp_path / "whole", **options)
    resumed = 0
    while killing.killed < KILLS:
        resumed += bool(list(target.glob("*.slip")))
        if killing.once(source, target, **options) or (target / ".metadata").exists():
            check_packed(source, target, key)
            shutil.rmtree(target)
    assert resumed > KILLS // 4
    if not (target / ".metadata").exists():
        pack(source, target, **options)
    assert sorted(path.name for path in target.iterdir()) == sorted([".metadata", *data_files(target)])
    check_packed(source, target, key)


def check_packed(source: Path, target: Path, key: Any) -> None:
    assert_whole(target, key)
    unpack(target, target.with_suffix(".safetensors"), keys=key, overwrite=True)
    assert sha256(target.with_suffix(".safetensors")) == sha256(source)


def test_transcode_in_place(tmp_path):
    """After each kill the old checkpoint loads whole, or the new one does."""
    path = tmp_path / "checkpoint"
    dcp_save(trained(), storage_writer=streamxf.FileSystemWriter(path))
    shutil.copytree(path, tmp_path / "warm")
    shutil.copytree(path, tmp_path / "whole")
    killing = Killing(transcode, 2)
    killing.whole(tmp_path / "warm", chain="zstd", in_place=True, file_size=FILE_SIZE)
    killing.whole(tmp_path / "whole", chain="zstd", in_place=True, file_size=FILE_SIZE)
    chains = ["zstd", "floatzip+checksum"]
    done = 0
    while killing.killed < KILLS or not done:
        done += killing.once(path, chain=chains[done % 2], in_place=True, file_size=FILE_SIZE)
        assert_same(loaded(path), trained())
        assert_whole(path)
    transcode(path, chain="zstd", in_place=True)
    assert sorted(file.name for file in path.iterdir()) == sorted([".metadata", *data_files(path)])
    assert_same(loaded(path), trained())


def test_transcode_in_place_where_each_rank_has_metadata(tmp_path):
    path, ranks = tmp_path / "checkpoint", 3
    whole = torch.arange(90_000.0).reshape(300, 300)
    states = [{"w": rows(whole, rank, ranks), "own": torch.randn(40, 900)} for rank in range(ranks)]
    save_shards(path, states, lambda: [streamxf.ZStandard()], use_collectives=False)
    shutil.copytree(path, tmp_path / "warm")
    shutil.copytree(path, tmp_path / "whole")
    killing = Killing(transcode, 3)
    killing.whole(tmp_path / "warm", chain="lz4", in_place=True, file_size=20_000)
    killing.whole(tmp_path / "whole", chain="lz4", in_place=True, file_size=20_000)
    for number in range(KILLS // 2):
        killing.once(path, chain=["lz4", "zstd:level=1"][number % 2], in_place=True, file_size=20_000)
        assert_whole(path)  # which reads all that any rank would
        for rank in range(ranks):
            metadata = streamxf.FileSystemReader(path).read_metadata(rank=rank)
            assert metadata.state_dict_metadata.keys() == states[rank].keys()
            assert tuple(metadata.state_dict_metadata["w"].chunks[0].offsets) == states[rank]["w"].offsets
    assert killing.killed
    transcode(path, chain="floatzip", in_place=True)
    assert_whole(path)
