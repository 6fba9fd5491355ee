"""Conversions that are killed by SIGKILL at one of the moments at which they touch a file, and started again."""

import shutil
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint import save as dcp_save

import streamxf
from streamxf.checkpoint.datafile import DataFile
from streamxf.storage.local import LocalStorage
from streamxf.tools.convert.pack import pack, transcode
from streamxf.tools.convert.unpack import unpack
from tests.dcp.shards import rows, save_shards
from tests.tools.convert.child import STEPS, kills
from tests.tools.convert.states import assert_same, assert_whole, loaded, only_named, trained

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is unavailable")

FILE_SIZE = 600_000
TOUCHES = [(LocalStorage, "put"), (LocalStorage, "create"), (LocalStorage, "remove"), (DataFile, "write")]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("encrypted", [False, True])
def test_pack(tmp_path, encrypted, step):
    """At the target there is nothing, or all of it; and in the end what comes out is the source, byte for byte."""
    key = streamxf.Key(bytes(range(32))) if encrypted else None
    generator = torch.Generator().manual_seed(1)
    source, target = tmp_path / "a.safetensors", tmp_path / "packed"
    save_file({f"w{n}": torch.randn(100, 300, generator=generator).bfloat16() for n in range(60)}, source)
    resumed = 0

    def call() -> Any:
        return pack(source, target, recipients=key, file_size=FILE_SIZE)

    for _ in kills(step, TOUCHES, call):
        if not (target / ".metadata").exists():
            resumed += call().kept_files
        assert_whole(target, key)
        streamxf.clean(target)
        only_named(target)
        unpack(target, tmp_path / "b.safetensors", keys=key, overwrite=True)
        assert (tmp_path / "b.safetensors").read_bytes() == source.read_bytes()
        shutil.rmtree(target)
    assert resumed


@pytest.mark.parametrize("step", STEPS)
def test_transcode_in_place(tmp_path, step):
    """After each kill the old checkpoint loads whole, or the new one does."""
    path = tmp_path / "checkpoint"
    dcp_save(trained(), storage_writer=streamxf.FileSystemWriter(tmp_path / "old"))

    def fresh() -> None:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(tmp_path / "old", path)

    def call() -> Any:
        return transcode(path, chain="zstd:level=1", in_place=True, file_size=FILE_SIZE)

    for _ in kills(step, TOUCHES, call, fresh):
        assert_same(loaded(path), trained())
        call()
        assert_same(loaded(path), trained())
        only_named(path)


@pytest.mark.parametrize("step", STEPS)
def test_transcode_in_place_where_each_rank_has_metadata(tmp_path, step):
    path, ranks = tmp_path / "checkpoint", 3
    whole = torch.arange(90_000.0).reshape(300, 300)
    states = [{"w": rows(whole, rank, ranks), "own": torch.randn(40, 900)} for rank in range(ranks)]
    save_shards(path, states, lambda: [streamxf.ZStandard()], use_collectives=False)
    for _ in kills(step, TOUCHES, lambda: transcode(path, chain="lz4", in_place=True, file_size=20_000)):
        assert_whole(path)  # which reads all that any rank would
        for rank in range(ranks):
            metadata = streamxf.FileSystemReader(path).read_metadata(rank=rank)
            assert metadata.state_dict_metadata.keys() == states[rank].keys()
            assert tuple(metadata.state_dict_metadata["w"].chunks[0].offsets) == states[rank]["w"].offsets
    transcode(path, chain="floatzip", in_place=True)
    assert_whole(path)
